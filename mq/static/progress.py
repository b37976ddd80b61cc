"""A group's progress in a logical queue, which is stored for each segment by itself (SPEC STATIC-15, 16).

    segments of a queue     [0 .. 120) sealed     [120 .. 200) sealed     [10000 ...     the leader
    the group is done to        120                   150                     -
    its position                                      150   the oldest segment that is not consumed to its end

What the group has *committed* is where it is, or, while it has committed nothing in that segment, the end of the newest
segment before in which it has: a hole behind that end is nothing that it committed (STATIC-25).

A commit at a logical offset moves the segments before it to their ends and its own to the offset, in this order. So a
commit that is cut short leaves a position that is not beyond what was committed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from deltamq.mq.static.logical_queue import LogicalQueue
from deltamq.mq.static.reading import place_of
from deltamq.mq.static.segment import Segment


class SegmentOffsets(NamedTuple):
    """What a segment has at or after a time, as physical offsets."""

    #: The first message at or after the time; `end_offset` if there is none.
    offset: int
    end_offset: int


def unfinished(queue: LogicalQueue, positions: Mapping[str, int]) -> Segment:
    """Return the oldest readable segment that is not consumed to its sealed end, else the newest readable one.

    `positions` has for each readable segment's partition the physical offset up to which the group is done.
    """
    for segment in queue.readable:
        if not segment.is_sealed or positions[segment.partition] < segment.end_offset:
            return segment
    return queue.newest_readable


def position_of(queue: LogicalQueue, positions: Mapping[str, int]) -> int:
    """Return the logical offset up to which a group is done; for `positions` see `unfinished`."""
    segment = unfinished(queue, positions)
    return segment.logical(_within(segment, positions[segment.partition]))


def committed_offset(queue: LogicalQueue, committed: Mapping[str, int | None], positions: Mapping[str, int]) -> int:
    """Return the logical offset that a group has committed last, or where it begins if it has committed none.

    `committed` has the group's physical offsets by partition, None where it has not begun; for `positions` see
    `unfinished`.
    """
    newest = unfinished(queue, positions)
    for segment in reversed(queue.readable[: queue.readable.index(newest) + 1]):
        at = committed.get(segment.partition)
        if at is not None:
            return segment.logical(_within(segment, at))
    return position_of(queue, positions)


def committed_at(queue: LogicalQueue, committed: Mapping[str, int | None], offset: int) -> Segment | None:
    """Return the newest readable segment in which a group has committed a logical offset: its commit has the text.

    `committed` has the group's physical offsets by partition. An offset between two segments may be in both.
    """
    for segment in reversed(queue.readable):
        at = committed.get(segment.partition)
        if at is not None and segment.logical(_within(segment, at)) == offset:
            return segment
    return None


def commit_steps(queue: LogicalQueue, offset: int) -> Iterator[tuple[Segment, int]]:
    """Yield the physical offsets that a commit at a logical offset stores, in this order: older segments first.

    A commit at the end of a sealed segment is one at the beginning of the next, as it is for reading: the progress
    outlives the old segment. Unless there is a hole between them: then the two are different offsets.
    """
    place = place_of(queue, offset)
    for segment in queue.readable:
        if segment is place.segment:
            yield segment, place.offset
            return
        yield segment, segment.end_offset
        if segment.is_sealed and segment.logic_end == offset and place.segment.logical(place.offset) != offset:
            return


def reset_steps(queue: LogicalQueue, offset: int) -> Iterator[tuple[Segment, int]]:
    """Yield the physical offset of every segment after a reset to a logical offset: newer ones at their beginning."""
    done = dict(commit_steps(queue, offset))
    for segment in queue.segments:
        yield segment, done.get(segment, segment.start_offset)


def offset_at_time(queue: LogicalQueue, found: Mapping[str, SegmentOffsets]) -> int:
    """Return the smallest logical offset at or after a time, over all segments; the end if there is none.

    `found` has what each readable segment's partition has at or after the time.
    """
    for segment in queue.readable:
        offset, end_offset = found[segment.partition]
        if offset < end_offset:
            return segment.logical(offset)
    newest = queue.newest_readable
    return newest.logical(_within(newest, found[newest.partition].end_offset))


def _within(segment: Segment, offset: int) -> int:
    """Return the physical offset, but not beyond the end of a sealed segment."""
    return min(offset, segment.end_offset) if segment.is_sealed else offset
