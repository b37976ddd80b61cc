"""The events of exclusive clients in the metadata log, and how they are stored (see `mq.meta.online`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from mq.meta.allocation import Allocation
from mq.stored_json import Form, forms_of

__all__ = [
    "ONLINE_EVENTS",
    "Allocated",
    "ClientGone",
    "ClientPut",
    "OnlineClient",
    "OnlineEvent",
    "Subscription",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """How a client consumes a topic (SPEC CONS-1, CONS-3)."""

    order: bool
    tags: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineClient:
    """One stay of an exclusive client in its group."""

    id: str
    #: The number of the event with which the stay began: tells it from earlier and later ones.
    joined: int
    topics: Mapping[str, Subscription]
    #: It said `online: false`: it has no partitions any more, but may be finishing.
    leaving: bool
    #: Wall time of its beginning, to show.
    since_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientPut:
    """A client came, or changed what it wants: this is the whole of it from now on."""

    kind: ClassVar[str] = "client_put"
    group: str
    client: OnlineClient

    @property
    def key(self) -> str:
        return f"client/{self.group}/{self.client.id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientGone:
    """A stay ended: whatever the client held is free, because it may not consume any more."""

    kind: ClassVar[str] = "client_gone"
    group: str
    id: str
    joined: int

    @property
    def key(self) -> str:
        return f"client/{self.group}/{self.id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocated:
    """Who may consume which partition of a topic, from now on; without owners, nobody."""

    kind: ClassVar[str] = "allocated"
    group: str
    topic: str
    topic_id: str
    epoch: int
    owners: Allocation

    @property
    def key(self) -> str:
        return f"allocation/{self.group}/{self.topic}"


OnlineEvent = ClientPut | ClientGone | Allocated
#: How they are stored, by kind.
ONLINE_EVENTS: Final[Mapping[str, Form[Any]]] = forms_of(ClientPut, ClientGone, Allocated)
