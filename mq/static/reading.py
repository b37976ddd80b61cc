"""Where a read of a logical queue goes, and what its segments have stored, in logical offsets (STATIC-13 to 15).

    logical offset --segment_at--> segment, physical offset --read--> rows, next offset --> logical
                        '-- at or behind the end of a sealed segment: the next readable segment

Only the leader answers "too large" and only the earliest segment "too small"; everywhere else a read goes on forward.
One read never crosses a segment: a range of logical offsets is one read for each that it crosses (`StoredOffsets`).

    segments     [0 ...... 120)   hole   [10000 .... 10030)          retention may have removed messages at the start
    messages      120                     30                         150 messages between the offsets 0 and 10030

Amounts are numbers of messages: a hole has none (STATIC-15). A partition of a plain topic is one stretch whose offsets
are the stored ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import msgspec

from deltamq.mq.static.logical_queue import LogicalQueue
from deltamq.mq.static.segments import Segment


class ReadStart(NamedTuple):
    """Where a read begins."""

    segment: Segment
    #: The physical offset.
    offset: int


def read_start(queue: LogicalQueue, offset: int) -> ReadStart:
    """Return where a read from a logical offset begins; an offset behind a sealed segment goes forward."""
    segment = queue.segment_at(offset)
    physical = segment.physical(offset)
    while segment.is_sealed and physical >= segment.end_offset:
        following = queue.after(segment)
        if following is None:
            return ReadStart(segment, segment.end_offset)
        segment, physical = following, following.start_offset
    return ReadStart(segment, physical)


def next_after(queue: LogicalQueue, segment: Segment, offset: int) -> int:
    """Return the logical offset to read next, after a read of `segment` that ended at a physical offset."""
    if segment.is_sealed and offset >= segment.end_offset:
        following = queue.after(segment)
        if following is not None:
            return following.logic_offset
        return segment.logic_end
    return segment.logical(offset)


class Stretch(NamedTuple):
    """The stored messages `[low, end)` of one segment, in physical offsets."""

    #: What turns a physical offset into the logical one, when added; the logical offset of the segment's offset 0.
    delta: int
    low: int
    end: int

    def cut(self, start: int, stop: int) -> tuple[int, int]:
        """Return the physical offsets of the stored messages in the logical range `[start, stop)`, maybe none."""
        first = min(max(start - self.delta, self.low), self.end)
        return first, max(first, min(stop - self.delta, self.end))


class StoredOffsets(msgspec.Struct, frozen=True):
    """The stretches of one partition that clients see, oldest first; at least one. All offsets below are logical."""

    stretches: tuple[Stretch, ...]

    def __post_init__(self) -> None:
        assert self.stretches, "a partition has a place for its first message"

    @classmethod
    def of_plain(cls, low: int, end: int) -> StoredOffsets:
        """Return the offsets of a partition that is no logical queue."""
        return cls((Stretch(0, low, end),))

    @property
    def first(self) -> int:
        """The minimum: the earliest segment's first stored offset, or its end if it has none."""
        return self.stretches[0].delta + self.stretches[0].low

    @property
    def end(self) -> int:
        """The maximum: the offset behind the last message of the newest segment."""
        return self.stretches[-1].delta + self.stretches[-1].end

    @property
    def whole_from(self) -> int:
        """The offset from which on no message is removed."""
        cut_off = [stretch.delta + stretch.low for stretch in self.stretches if stretch.low > 0]
        return cut_off[-1] if cut_off else self.stretches[0].delta

    @property
    def holes(self) -> tuple[tuple[int, int], ...]:
        """The ranges `[low, high)` between the segments that have no messages."""
        edges = ((before.delta + before.end, after.delta) for before, after in pairwise(self.stretches))
        return tuple((low, high) for low, high in edges if low < high)

    def count(self, start: int, stop: int) -> int:
        """Return how many messages are stored in `[start, stop)`."""
        return sum(high - low for low, high in self.cut(start, stop))

    def cut(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield for each stretch the physical offsets of its messages in `[start, stop)`, maybe none."""
        return (stretch.cut(start, stop) for stretch in self.stretches)

    def lost(self, start: int, stop: int | None = None) -> int:
        """Return how many messages of `[start, stop)` retention removed; no `stop`: all from `start` on.

        Offsets below the earliest segment count as messages: which of them were holes is no longer known.
        """
        until = self.end if stop is None else stop
        dropped = max(0, min(until, self.stretches[0].delta) - start)
        return dropped + sum(
            max(0, min(until - stretch.delta, stretch.low) - max(start - stretch.delta, 0))
            for stretch in self.stretches
        )

    def forward(self, offset: int) -> int:
        """Return the first stored offset at or after this one, or the end if there is none (SPEC STATIC-14)."""
        return self.after(offset, 0)

    def after(self, start: int, count: int) -> int:
        """Return the offset at which a read goes on that has read `count` messages from `start` on."""
        for stretch in self.stretches:
            at, end = max(start, stretch.delta + stretch.low), stretch.delta + stretch.end
            if at < end:
                if count < end - at:
                    return at + count
                count -= end - at
        return self.end
