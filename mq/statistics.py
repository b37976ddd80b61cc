"""Statistics of groups: what became of the messages that they got, counted by minute (SPEC CONS-6).

    delivered, succeeded, failed, ... --> the running minute's `Consumed` --minute over--> a record in a log --> SQL

Each process counts what it sees. A record has all that its process counted of that minute so far, so a record that is
stored twice, or again with more, counts once: the highest of each number. Minutes go by the wall clock.

`Pulled` knows when each message that exclusive clients pulled was delivered, until it is committed or fails.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
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
    #: The time from `born_time` to the delivery, over all deliveries: the sum and the longest.
    age_ms: int = 0
    age_max_ms: int = 0
    #: The time from the delivery to the outcome, over all messages with one: the sum and the longest.
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
    minute_ms: int
    group: str
    topic: str
    topic_id: str
    broker: str
    process: str
    consumed: Consumed


_read: Final = msgspec.json.Decoder(_Stored).decode


class StatisticsRecord(msgspec.Struct, frozen=True):
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
    sums: dict[str, Consumed] = {}
    for part in parts:
        for topic, consumed in part.items():
            sums.setdefault(topic, Consumed()).add(consumed)
    return sums


#: Minutes that a process keeps in memory, the running one included.
KEPT_MINUTES: Final = 16
#: Bound on what is kept of all minutes: one for each group, topic and broker.
_ROWS_MAX: Final = 20_000


class Minutes:
    """What this process counted in the last `KEPT_MINUTES` minutes."""

    def __init__(self) -> None:
        self._rows: dict[MinuteKey, Consumed] = {}
        #: What has changed since it was stored.
        self._unsaved: set[MinuteKey] = set()

    def add(self, key: MinuteKey, consumed: Consumed) -> None:
        """Add what was counted in a minute."""
        self._unsaved.add(key)
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = Consumed()
        row.add(consumed)

    def take_unsaved(self, now_ms: int, *, broker: str | None = None, whole: bool = False) -> dict[MinuteKey, Consumed]:
        """Return copies of the rows to be stored: the minutes that are over, or all with `whole`."""
        taken = {
            key: msgspec.structs.replace(self._rows[key])
            for key in self._unsaved
            if (whole or key.minute_ms + MINUTE_MS <= now_ms or key.minute_ms > now_ms) and broker in (None, key.broker)
        }
        self._unsaved -= taken.keys()
        return taken

    def not_saved(self, keys: Collection[MinuteKey]) -> None:
        """Note that these rows could not be stored."""
        self._unsaved |= self._rows.keys() & keys

    def since(self, first_ms: int, group: str) -> dict[str, Consumed]:
        """Return by topic what the group did in minutes from `first_ms` on."""
        sums: dict[str, Consumed] = {}
        for key, row in self._rows.items():
            if key.group == group and key.minute_ms >= first_ms:
                sums.setdefault(key.topic, Consumed()).add(row)
        return sums

    def forget_old(self, now_ms: int) -> None:
        """Forget minutes older than the kept ones, and the oldest rows if there are too many."""
        oldest_ms = now_ms - now_ms % MINUTE_MS - (KEPT_MINUTES - 1) * MINUTE_MS
        gone = [key for key in self._rows if key.minute_ms < oldest_ms]
        if len(self._rows) - len(gone) > _ROWS_MAX:
            gone = sorted(self._rows)[: len(self._rows) - _ROWS_MAX]
        for key in gone:
            if key not in self._unsaved:
                del self._rows[key]

    def forget_group(self, group: str) -> None:
        """Forget a group that was deleted."""
        for key in [key for key in self._rows if key.group == group]:
            del self._rows[key]
            self._unsaved.discard(key)


#: Ranges that are kept apart in a partition; older ones count as one.
_RANGES_MAX: Final = 64


class PulledMessages(NamedTuple):
    """Some messages that were delivered at the same time."""

    messages: int
    delivered_ms: int


class _Range(msgspec.Struct):
    """Messages from offset `first` to `stop`, exclusive, of which `left` have no outcome yet."""

    first: int
    stop: int
    left: int
    delivered_ms: int
    #: The offsets that failed; `left` does not count them.
    failed: set[int] = msgspec.field(default_factory=set)

    def take_before(self, offset: int) -> int:
        """Take out the messages before an offset in the range; return how many."""
        failed = {at for at in self.failed if at < offset}
        taken = min(self.left, offset - self.first - len(failed))
        self.first, self.left, self.failed = offset, self.left - taken, self.failed - failed
        return taken


class Pulled:
    """The messages of one partition that clients of an exclusive group pulled and have not committed.

    Offsets are as clients see them. The service knows a pulled message by its offset only, so that a commit in the
    middle of a filtered answer is counted by its distance from the first message, and the rest with the next commit.
    """

    __slots__ = ("_ranges", "_top")

    def __init__(self) -> None:
        self._ranges: deque[_Range] = deque()
        self._top = 0

    def take(self, first: int, last: int, count: int, now_ms: int) -> int:
        """Note `count` messages between two offsets, both included; return how many were delivered before."""
        again = max(0, min(count, self._top - first))
        while self._ranges and self._ranges[-1].stop > first:
            end = self._ranges.pop()
            if end.first < first:
                delivered_ms, failed = end.delivered_ms, {at for at in end.failed if at < first}
                left = min(end.left, first - end.first - len(failed))
                self._ranges.append(_Range(end.first, first, left, delivered_ms, failed))
        self._ranges.append(_Range(first, last + 1, count, now_ms))
        self._top = max(self._top, last + 1)
        if len(self._ranges) > _RANGES_MAX:
            oldest, following = self._ranges.popleft(), self._ranges.popleft()
            joined = _Range(oldest.first, following.stop, oldest.left + following.left, oldest.delivered_ms)
            joined.failed = oldest.failed | following.failed
            self._ranges.appendleft(joined)
        return again

    def commit(self, offset: int) -> Iterator[PulledMessages]:
        """Yield what lies before a committed offset, once."""
        while self._ranges and self._ranges[0].first < offset:
            oldest = self._ranges[0]
            if oldest.stop <= offset:
                self._ranges.popleft()
                taken = oldest.left
            else:
                taken = oldest.take_before(offset)
            if taken:
                yield PulledMessages(taken, oldest.delivered_ms)

    def settle(self, offset: int) -> PulledMessages | None:
        """Take out one message that failed; None if it is not known, or is taken out already."""
        for span in self._ranges:
            if span.first <= offset < span.stop and span.left and offset not in span.failed:
                span.failed.add(offset)
                span.left -= 1
                return PulledMessages(1, span.delivered_ms)
        return None
