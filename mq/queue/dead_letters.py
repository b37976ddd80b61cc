"""Dead letters: marks that some were sent back or deleted, and how each is sent back once (SPEC RETRY-3, RETRY-8).

    dead letters   0  1  2  3  4  5  6      marks: sent back [1, 4), deleted [3, 5)
                   n  s  s  d  d  n  n

A dead letter without a mark is new. One that was deleted stays so, whatever was done with it before or is done later.
Of several sendings, the last is shown. So a mark that is stored twice counts once.

A replay is a request of an idempotent producer that is named after the dead letter's place. Repeated, because its
answer was lost or by mistake, it stores nothing twice while the partition remembers the request (see `mq.producer`). A
message that dies again is another dead letter, with another name.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from deltamq.mq.errors import Corrupt
from deltamq.mq.limits import PRODUCER_REQUESTS_KEPT
from deltamq.mq.names import broker_of
from deltamq.mq.offset_ranges import OffsetRanges
from deltamq.mq.stored_json import corrupt_when_damaged, to_json

LetterState: TypeAlias = Literal["new", "sent_back", "deleted"]


class SentBack(msgspec.Struct, frozen=True):
    """Dead letters at offsets `[low, high)` were appended to their targets: `to` is `origin` or `retry`.

    `by` is the principal that asked for it; empty without authentication, and for jobs.
    """

    ranges: tuple[tuple[int, int], ...]
    to: str
    time_ms: int
    by: str = ""


class Deleted(msgspec.Struct, frozen=True):
    """Dead letters at offsets `[low, high)` are shown no more, and never sent back; retention removes them."""

    ranges: tuple[tuple[int, int], ...]
    time_ms: int
    by: str = ""


DeadMark = SentBack | Deleted
_sent_back: Final = msgspec.json.Decoder(SentBack).decode
_deleted: Final = msgspec.json.Decoder(Deleted).decode


def dead_mark_to_json(mark: DeadMark) -> tuple[str, bytes]:
    """Return the tag and the body of a mark."""
    return ("sent_back" if isinstance(mark, SentBack) else "deleted"), to_json(mark)


def dead_mark_from_json(tag: str, body: bytes) -> DeadMark:
    """Return the mark that `dead_mark_to_json` wrote; raises `Corrupt` (`dead_mark_corrupt`) when it is damaged."""
    with corrupt_when_damaged(f"a stored {tag} mark", code="dead_mark_corrupt"):
        if tag == "sent_back":
            return _sent_back(body)
        if tag == "deleted":
            return _deleted(body)
    raise Corrupt(f"the marks of dead letters hold a record of unknown kind {tag!r}", code="dead_mark_corrupt")


class _Sending(NamedTuple):
    time_ms: int
    by: str


class LetterMarks:
    """The marks of one partition of dead letters, folded; memory grows with the number of ranges that differ."""

    __slots__ = ("_deleted", "_highs", "_lows", "_sendings", "_sent")

    def __init__(self) -> None:
        self._deleted = OffsetRanges()
        self._sent = OffsetRanges()
        #: What was sent back, in ranges that ascend and do not overlap, and how.
        self._lows: list[int] = []
        self._highs: list[int] = []
        self._sendings: list[_Sending] = []

    def copy(self) -> LetterMarks:
        """Return a copy, to which other marks may be added."""
        other = LetterMarks()
        other._deleted, other._sent = OffsetRanges(self._deleted), OffsetRanges(self._sent)
        other._lows, other._highs, other._sendings = self._lows[:], self._highs[:], self._sendings[:]
        return other

    def add(self, mark: DeadMark) -> None:
        """Add a mark, the newest so far."""
        for low, high in mark.ranges:
            if low >= high:
                continue
            if isinstance(mark, Deleted):
                self._deleted.add(low, high)
            else:
                self._sent.add(low, high)
                self._send(low, high, _Sending(mark.time_ms, mark.by))

    def _send(self, low: int, high: int, sending: _Sending) -> None:
        """Put a range over the ones that it overlaps; join it with neighbours of the same sending."""
        first, last = bisect_right(self._highs, low), bisect_left(self._lows, high)
        parts = [(low, high, sending)]
        if first < last:
            before, after = self._lows[first], self._highs[last - 1]
            if before < low:
                parts.insert(0, (before, low, self._sendings[first]))
            if after > high:
                parts.append((high, after, self._sendings[last - 1]))
        if first and self._highs[first - 1] == parts[0][0] and self._sendings[first - 1] == parts[0][2]:
            first -= 1
            parts[0] = (self._lows[first], *parts[0][1:])
        self._lows[first:last] = [part[0] for part in parts]
        self._highs[first:last] = [part[1] for part in parts]
        self._sendings[first:last] = [part[2] for part in parts]

    def drop_below(self, offset: int) -> None:
        """Forget the marks of dead letters below `offset`: they are removed."""
        self._deleted.drop_below(offset)
        self._sent.drop_below(offset)
        gone = bisect_right(self._highs, offset)
        del self._lows[:gone], self._highs[:gone], self._sendings[:gone]

    def state(self, offset: int) -> LetterState:
        """Return the state of the dead letter at `offset`."""
        return "deleted" if offset in self._deleted else "sent_back" if offset in self._sent else "new"

    def sent(self, offset: int) -> tuple[int, str] | None:
        """Return when a dead letter was last sent back, in milliseconds, and by whom; None if it never was."""
        at = bisect_right(self._lows, offset) - 1
        return self._sendings[at] if at >= 0 and offset < self._highs[at] else None

    def sent_ranges(self, low: int, high: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges of `[low, high)` that were sent back, whether or not they are deleted since."""
        return _within(self._sent, low, high)

    def deleted_ranges(self, low: int, high: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges of `[low, high)` that are deleted."""
        return _within(self._deleted, low, high)


def _within(ranges: OffsetRanges, low: int, high: int) -> Iterator[tuple[int, int]]:
    at = ranges.next_from(low)
    while at is not None and at < high:
        end = ranges.gap_from(at)
        yield at, min(end, high)
        at = ranges.next_from(end)


class Replay(NamedTuple):
    """One dead letter of one life of a group."""

    group: str
    group_epoch: int
    #: The partition of dead letters, and the offset in it.
    partition: str
    offset: int

    @property
    def producer_id(self) -> str:
        """The producer of this replay, the same at each repetition; 16 offsets share one.

        A partition remembers that many requests of each producer.
        """
        digest = hashlib.sha256(json.dumps([self.group, self.group_epoch, self.partition]).encode()).hexdigest()
        return f"replay-{digest[:16]}-{self.offset // PRODUCER_REQUESTS_KEPT}"

    @property
    def producer_seq(self) -> int:
        return self.offset % PRODUCER_REQUESTS_KEPT


def retry_broker(dead_partition: str, partitions: tuple[str, ...]) -> str:
    """Return the broker on which a dead letter is retried: its own if the topic has a partition there.

    Groups look for retried messages only on the topic's brokers.
    """
    brokers = [broker_of(partition) for partition in partitions]
    own = broker_of(dead_partition)
    return own if own in brokers else brokers[0]
