"""Messages that exclusive clients pulled: when each was delivered, until it is committed or fails."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

#: Ranges that are told apart in a partition; older ones count as one.
_RANGES_MAX: Final = 64


class PulledMessages(NamedTuple):
    """Some messages that were delivered at the same time."""

    messages: int
    delivered_ms: int


@dataclass(slots=True)
class _Range:
    """Messages from offset `first` to `stop`, exclusive, of which `left` have no outcome yet."""

    first: int
    stop: int
    left: int
    delivered_ms: int
    #: The offsets that failed; they are not among those left.
    failed: set[int] = field(default_factory=set)

    def take_before(self, offset: int) -> int:
        """Take out the messages before an offset in the range; return how many."""
        failed = {one for one in self.failed if one < offset}
        taken = min(self.left, offset - self.first - len(failed))
        self.first, self.left, self.failed = offset, self.left - taken, self.failed - failed
        return taken


class Pulled:
    """The messages of one partition that clients of an exclusive group pulled and have not committed.

    Offsets are those that clients see. The service knows a pulled message by its offset only, so that a commit in the
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
                delivered_ms, failed = end.delivered_ms, {one for one in end.failed if one < first}
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
            one = self._ranges[0]
            if one.stop <= offset:
                self._ranges.popleft()
                taken = one.left
            else:
                taken = one.take_before(offset)
            if taken:
                yield PulledMessages(taken, one.delivered_ms)

    def settle(self, offset: int) -> PulledMessages | None:
        """Take out one message that failed; None if it is not known, or is taken out already."""
        for one in self._ranges:
            if one.first <= offset < one.stop and one.left and offset not in one.failed:
                one.failed.add(offset)
                one.left -= 1
                return PulledMessages(1, one.delivered_ms)
        return None
