"""Access: which brokers and partitions may be read and written to now (SPEC ROUTE-9).

    nothing set      readable and writable, for every broker and partition
    set              what was forbidden, why, and until when; one that forbids nothing is forgotten

A partition may be used as far as its broker's access and its own both allow. Access with an end is over at that time by
the clock of each process; no event says so. What is stored stays, whatever the access.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Final, NamedTuple

import msgspec

from deltamq.mq.errors import NOT_READABLE, NOT_WRITABLE, Unavailable
from deltamq.mq.names import broker_of
from deltamq.mq.stored_json import Form, forms_of


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """What is allowed at a broker or partition."""

    readable: bool = True
    writable: bool = True
    #: Why something is forbidden, in the words of the caller that forbade it.
    reason: str = ""
    #: When it ends by itself, in milliseconds since 1970; None for an access that stays until it is changed.
    until_ms: int | None = None

    @property
    def is_open(self) -> bool:
        """Whether nothing is forbidden."""
        return self.readable and self.writable

    def and_(self, other: Access) -> Access:
        """Combine two rules: allow what both allow, keep the reasons, end at the earlier end."""
        if self.is_open or other.is_open:
            return other if self.is_open else self
        ends = [access.until_ms for access in (self, other) if access.until_ms is not None]
        return Access(
            readable=self.readable and other.readable,
            writable=self.writable and other.writable,
            reason="; ".join(dict.fromkeys(access.reason for access in (self, other) if access.reason)),
            until_ms=min(ends, default=None),
        )


#: The access of a broker or partition for which none is set.
OPEN: Final = Access()


class PartitionOf(NamedTuple):
    """A partition in one life of a topic."""

    topic_id: str
    partition: str


class BrokerAccessPut(msgspec.Struct, frozen=True, kw_only=True):
    """The access of a broker was set."""

    kind: ClassVar[str] = "broker_access_put"
    broker: str
    access: Access

    @property
    def key(self) -> str:
        return f"access/{self.broker}"


class PartitionAccessPut(msgspec.Struct, frozen=True, kw_only=True):
    """The access of a partition was set."""

    kind: ClassVar[str] = "partition_access_put"
    topic_id: str
    partition: str
    access: Access

    @property
    def key(self) -> str:
        return f"access/{self.topic_id}/{self.partition}"


AccessEvent = BrokerAccessPut | PartitionAccessPut

#: The stored form of each kind of event.
ACCESS_EVENTS: Final[Mapping[str, Form[Any]]] = forms_of(BrokerAccessPut, PartitionAccessPut)


class AccessState(msgspec.Struct, frozen=True):
    """Everything that is forbidden. Immutable: `apply_all` returns the next one. False if nothing is."""

    #: The access of brokers by name; never modified.
    brokers: Mapping[str, Access] = msgspec.field(default_factory=dict)
    #: The access of partitions; never modified.
    partitions: Mapping[PartitionOf, Access] = msgspec.field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.brokers or self.partitions)

    @property
    def ends_ms(self) -> int | None:
        """When the first access ends by itself; None if none does."""
        ends = [
            access.until_ms
            for access in (*self.brokers.values(), *self.partitions.values())
            if access.until_ms is not None
        ]
        return min(ends, default=None)

    def at(self, now_ms: int) -> AccessState:
        """Return the state without what has ended by `now_ms`: the same object if nothing has."""
        ends_ms = self.ends_ms
        if ends_ms is None or now_ms < ends_ms:
            return self

        def lasts(access: Access) -> bool:
            return access.until_ms is None or now_ms < access.until_ms

        return AccessState(
            {broker: access for broker, access in self.brokers.items() if lasts(access)},
            {place: access for place, access in self.partitions.items() if lasts(access)},
        )

    def of_broker(self, broker: str) -> Access:
        """Return the access of a broker."""
        return self.brokers.get(broker, OPEN)

    def of(self, topic_id: str, partition: str) -> Access:
        """Return the access of a partition: what its broker's and its own both allow."""
        own = self.partitions.get(PartitionOf(topic_id, partition), OPEN)
        return own.and_(self.of_broker(broker_of(partition)))

    def writable(self, brokers: Iterable[str]) -> list[str]:
        """Return the brokers that may be written to, in the same order."""
        return [broker for broker in brokers if self.of_broker(broker).writable]

    def check_readable(self, topic_id: str, partition: str, name: str | None = None) -> None:
        """Return if a partition may be read, else raise `Unavailable` (`not_readable`); clients know it by `name`."""
        access = self.of(topic_id, partition)
        if not access.readable:
            raise not_readable(name or partition, access)

    def apply_all(self, events: Iterable[AccessEvent]) -> AccessState:
        """Return the state after `events`."""
        brokers, partitions = dict(self.brokers), dict(self.partitions)
        for event in events:
            if isinstance(event, BrokerAccessPut):
                brokers.pop(event.broker, None)
                if not event.access.is_open:
                    brokers[event.broker] = event.access
            else:
                place = PartitionOf(event.topic_id, event.partition)
                partitions.pop(place, None)
                if not event.access.is_open:
                    partitions[place] = event.access
        return AccessState(brokers, partitions)

    def without_topic(self, topic_id: str) -> AccessState:
        """Return the state without the partitions of a topic that ended."""
        return self.without([place for place in self.partitions if place.topic_id == topic_id])

    def without(self, places: Iterable[PartitionOf]) -> AccessState:
        """Return the state without these partitions: the same object if nothing was set for them."""
        gone = {place for place in places if place in self.partitions}
        if not gone:
            return self
        return AccessState(
            self.brokers, {place: access for place, access in self.partitions.items() if place not in gone}
        )


def not_writable(what: str, access: Access) -> Unavailable:
    """Return the error of a send to `what`: nothing of it was stored."""
    return _forbidden(f"{what} cannot be written to at the moment", NOT_WRITABLE, access)


def not_readable(what: str, access: Access) -> Unavailable:
    """Return the error of a read of `what`."""
    return _forbidden(f"{what} cannot be read at the moment", NOT_READABLE, access)


def _forbidden(detail: str, code: str, access: Access) -> Unavailable:
    extra = {"reason": access.reason, "until_ms": access.until_ms}
    return Unavailable(f"{detail}: {access.reason}" if access.reason else detail, code=code, extra=extra)
