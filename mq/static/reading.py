"""Where a read of a logical queue goes, and how its result is told in logical offsets (SPEC STATIC-13 to 15).

    logical offset --segment_at--> segment, physical offset --read--> rows, next offset --> logical
                        '-- at or behind the end of a sealed segment: the next readable segment

Only the leader answers "too large" and only the earliest segment "too small"; everywhere else a read goes on forward.
One read never crosses a segment.
"""

from __future__ import annotations

from typing import NamedTuple

from deltamq.mq.static.logical_queue import LogicalQueue
from deltamq.mq.static.segment import Segment


class ReadPlace(NamedTuple):
    """Where a read begins."""

    segment: Segment
    #: The physical offset.
    offset: int


def place_of(queue: LogicalQueue, offset: int) -> ReadPlace:
    """Return where a read from a logical offset begins; an offset behind a sealed segment goes forward."""
    segment = queue.segment_at(offset)
    physical = segment.physical(offset)
    while segment.is_sealed and physical >= segment.end_offset:
        following = queue.after(segment)
        if following is None:
            return ReadPlace(segment, segment.end_offset)
        segment, physical = following, following.start_offset
    return ReadPlace(segment, physical)


def next_after(queue: LogicalQueue, segment: Segment, offset: int) -> int:
    """Return the logical offset to read next, after a read of `segment` that ended at a physical offset."""
    if segment.is_sealed and offset >= segment.end_offset:
        following = queue.after(segment)
        if following is not None:
            return following.logic_offset
        return segment.logic_end
    return segment.logical(offset)
