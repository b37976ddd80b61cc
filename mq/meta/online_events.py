"""The events of exclusive clients in the metadata log, and how they are stored (see `mq.meta.online`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, Self

from mq.meta.allocation import Allocation
from mq.stored_json import array, event_of, integer, mapping, text

__all__ = [
    "Allocated",
    "ClientGone",
    "ClientPut",
    "OnlineClient",
    "OnlineEvent",
    "Subscription",
    "online_event_from_json",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """How a client consumes a topic (SPEC CONS-1, CONS-3)."""

    order: bool = False
    tags: str = "*"

    def to_json(self) -> dict[str, object]:
        return {"order": self.order, "tags": self.tags}

    @classmethod
    def from_json(cls, value: object) -> Subscription:
        stored = mapping(value)
        return cls(order=stored["order"] is True, tags=text(stored["tags"]))


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

    def to_json(self) -> dict[str, object]:
        return {
            "id": self.id,
            "joined": self.joined,
            "topics": {topic: one.to_json() for topic, one in self.topics.items()},
            "leaving": self.leaving,
            "since_ms": self.since_ms,
        }

    @classmethod
    def from_json(cls, value: object) -> OnlineClient:
        stored = mapping(value)
        return cls(
            id=text(stored["id"]),
            joined=integer(stored["joined"]),
            topics={topic: Subscription.from_json(one) for topic, one in mapping(stored["topics"]).items()},
            leaving=stored["leaving"] is True,
            since_ms=integer(stored["since_ms"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientPut:
    """A client came, or changed what it wants: this is the whole of it from now on."""

    kind: ClassVar[str] = "client_put"
    group: str
    client: OnlineClient

    @property
    def key(self) -> str:
        return f"client/{self.group}/{self.client.id}"

    def to_json(self) -> dict[str, object]:
        return {"group": self.group, "client": self.client.to_json()}

    @classmethod
    def from_json(cls, value: object) -> Self:
        stored = mapping(value)
        return cls(group=text(stored["group"]), client=OnlineClient.from_json(stored["client"]))


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

    def to_json(self) -> dict[str, object]:
        return {"group": self.group, "id": self.id, "joined": self.joined}

    @classmethod
    def from_json(cls, value: object) -> Self:
        stored = mapping(value)
        return cls(group=text(stored["group"]), id=text(stored["id"]), joined=integer(stored["joined"]))


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

    def to_json(self) -> dict[str, object]:
        return {
            "group": self.group,
            "topic": self.topic,
            "topic_id": self.topic_id,
            "epoch": self.epoch,
            "owners": {client: list(those) for client, those in self.owners.items()},
        }

    @classmethod
    def from_json(cls, value: object) -> Self:
        stored = mapping(value)
        return cls(
            group=text(stored["group"]),
            topic=text(stored["topic"]),
            topic_id=text(stored["topic_id"]),
            epoch=integer(stored["epoch"]),
            owners={client: tuple(map(text, array(those))) for client, those in mapping(stored["owners"]).items()},
        )


OnlineEvent = ClientPut | ClientGone | Allocated
_EVENTS: Final[Mapping[str, type[OnlineEvent]]] = {one.kind: one for one in (ClientPut, ClientGone, Allocated)}


def online_event_from_json(kind: str, value: object) -> OnlineEvent | None:
    """The event of this `kind` that `to_json` wrote; None when the kind is none of exclusive clients.

    Raises
    ------
    Corrupt
        `meta_event_corrupt` when the value is damaged.
    """
    return event_of(_EVENTS, kind, value)
