"""The events of exclusive clients in the metadata log, and how they are stored (see `mq.meta.online`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from deltamq.mq.meta.allocation import Allocation
from deltamq.mq.stored_json import Form, forms_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """How a client consumes a topic (SPEC CONS-1, CONS-3, CONS-9)."""

    order: bool
    tags: str
    #: A SQL condition; None for no condition, and in events of releases without filters.
    filter: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineClient:
    """One stay of an exclusive client in its group."""

    id: str
    #: The number of the event that began the stay; tells it from earlier and later stays.
    joined: int
    topics: Mapping[str, Subscription]
    #: Whether it has sent `online: false`: it has no partitions any more, but may be finishing its work.
    leaving: bool
    #: Wall time at which the stay began; only for display.
    since_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientPut:
    """A client joined or changed its subscriptions; holds the complete new state of the client."""

    kind: ClassVar[str] = "client_put"
    group: str
    client: OnlineClient

    @property
    def key(self) -> str:
        return f"client/{self.group}/{self.client.id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientGone:
    """A stay ended: everything that the client held is free, because it may not consume any more."""

    kind: ClassVar[str] = "client_gone"
    group: str
    id: str
    joined: int

    @property
    def key(self) -> str:
        return f"client/{self.group}/{self.id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocated:
    """The partitions of a topic were allocated to clients; without owners, no client may consume the topic."""

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
#: The stored form of each kind of event.
ONLINE_EVENTS: Final[Mapping[str, Form[Any]]] = forms_of(ClientPut, ClientGone, Allocated)
