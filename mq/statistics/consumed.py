"""What groups do with the messages that they get, counted by minute (SPEC CONS-6).

    delivered, succeeded, failed, ... --> the running minute's `Consumed` --minute over--> a record in a log --> SQL

Each process counts what it sees. A record has all that its process counted of that minute so far, so a record that is
stored twice, or again with more, counts once: the highest of each number. Minutes are those of the wall clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from deltamq.mq.stored_json import corrupt_when_damaged, to_json

MINUTE_MS: Final = 60_000


class Consumed(msgspec.Struct):
    """What a group did with a topic's messages; each number only grows."""

    #: Messages that clients got, and how many of them were delivered before.
    delivered: int = 0
    redelivered: int = 0
    #: Messages that clients acknowledged or committed, gave back as failed, and sent to the dead letters.
    succeeded: int = 0
    failed: int = 0
    dead: int = 0
    #: Of the delivered messages, the time since their `born_time`: the sum and the longest.
    age_ms: int = 0
    age_max_ms: int = 0
    #: Of those with an outcome, the time since their delivery: the sum and the longest.
    handling_ms: int = 0
    handling_max_ms: int = 0

    def add(self, other: Consumed) -> None:
        """Add what was counted elsewhere, or in another minute."""
        self.delivered += other.delivered
        self.redelivered += other.redelivered
        self.succeeded += other.succeeded
        self.failed += other.failed
        self.dead += other.dead
        self.age_ms += other.age_ms
        self.age_max_ms = max(self.age_max_ms, other.age_max_ms)
        self.handling_ms += other.handling_ms
        self.handling_max_ms = max(self.handling_max_ms, other.handling_max_ms)


class MinuteKey(NamedTuple):
    """A minute, by its begin, of a group in the part of a topic that one broker has."""

    minute_ms: int
    group: str
    topic: str
    topic_id: str
    broker: str


class _Stored(msgspec.Struct):
    """The stored form of a record."""

    minute_ms: int
    group: str
    topic: str
    topic_id: str
    broker: str
    process: str
    consumed: Consumed


_read: Final = msgspec.json.Decoder(_Stored).decode


@dataclass(frozen=True, slots=True)
class StatisticsRecord:
    """What one process counted in a minute."""

    key: MinuteKey
    #: The id of the process, new with each start.
    process: str
    consumed: Consumed

    def to_json(self) -> bytes:
        return to_json(_Stored(*self.key, self.process, self.consumed))

    @classmethod
    def from_json(cls, body: bytes) -> StatisticsRecord:
        """Return the record that `to_json` wrote; raises `Corrupt` (`statistics_record_corrupt`) when damaged."""
        with corrupt_when_damaged("a record of statistics", code="statistics_record_corrupt"):
            stored = _read(body)
        key = MinuteKey(stored.minute_ms, stored.group, stored.topic, stored.topic_id, stored.broker)
        return cls(key, stored.process, stored.consumed)


def sums_of(parts: Iterable[Mapping[str, Consumed]]) -> dict[str, Consumed]:
    """Return by topic the sum of what several processes counted."""
    found: dict[str, Consumed] = {}
    for part in parts:
        for topic, consumed in part.items():
            found.setdefault(topic, Consumed()).add(consumed)
    return found
