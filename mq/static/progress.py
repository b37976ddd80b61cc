"""A group's progress in a logical queue, which is stored separately for each segment (SPEC STATIC-15, 16).

    segments of a queue     [0 .. 120) sealed     [120 .. 200) sealed     [10000 ...     the leader
    the group is done to        120                   150                     -
    its position                                      150   the oldest segment that is not consumed to its end

The group's *committed* offset is its position, or, while it has committed nothing in that segment, the end of the
newest segment before in which it has: it did not commit the hole behind that end (STATIC-25).

A commit at a logical offset moves the segments before it to their ends and its own to the offset, in this order. So a
commit that is cut short leaves a position that is not beyond what was committed.

In a global queue each cluster holds the progress for its own stays (STATIC-19). They are parts of one local queue, in
which a group's progress is one local offset:

    stays               east [0 .. 400) ended      west [400 .. 520) ended      east [520 ...
    progress, local     east: 460                  west: 120                    460 is 520 + 60 in east's third stay
    position                                                                    580, since west is consumed to its end

A commit at a global offset moves the clusters of older stays to the ends of these, and then its own to the offset.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from deltamq.mq.static.global_queues import GlobalQueues
from deltamq.mq.static.logical_queue import LogicalQueue
from deltamq.mq.static.reading import read_start
from deltamq.mq.static.segments import Segment, Stay


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
    """Return the newest readable segment in which a group has committed a logical offset: that commit has the text.

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
    place = read_start(queue, offset)
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


def offset_at_time(queue: LogicalQueue, offsets: Mapping[str, SegmentOffsets]) -> int:
    """Return the smallest logical offset at or after a time, over all segments; the end if there is none.

    `offsets` has for each readable segment's partition what it has at or after the time.
    """
    for segment in queue.readable:
        offset, end_offset = offsets[segment.partition]
        if offset < end_offset:
            return segment.logical(offset)
    newest = queue.newest_readable
    return newest.logical(_within(newest, offsets[newest.partition].end_offset))


def _within(segment: Segment, offset: int) -> int:
    return min(offset, segment.end_offset) if segment.is_sealed else offset


def global_commit_parts(world: GlobalQueues, queue: int, offset: int) -> dict[str, int]:
    """Return the local offset that a commit at a global offset stores in each cluster, in this order.

    The last one is the cluster where the offset lies. Clusters that never had a message before it are left out.
    """
    target, local = _committed_place(world, queue, offset)
    parts: dict[str, int] = {}
    for stay in world.readable(queue):
        parts.pop(stay.cluster, None)
        if stay == target:
            parts[stay.cluster] = local
            break
        parts[stay.cluster] = stay.local_end
    return {cluster: at for cluster, at in parts.items() if at or cluster == target.cluster}


def committed_as(world: GlobalQueues, queue: int, offset: int) -> int:
    """Return the global offset that a commit at an offset stores: inside a hole, the offset behind it."""
    target, local = _committed_place(world, queue, offset)
    return target.shown(local)


def _committed_place(world: GlobalQueues, queue: int, offset: int) -> tuple[Stay, int]:
    """Return the stay and the local offset of a commit; the end of a stay before a hole belongs to that stay."""
    target, local = world.place(queue, offset)
    if target.shown(local) != offset:
        for stay in world.readable(queue):
            if stay.is_ended and stay.logic_end == offset:
                return stay, stay.local_end
    return target, local


def global_reset_parts(world: GlobalQueues, queue: int, offset: int) -> dict[str, int]:
    """Return the local offset of each cluster after a reset to a global offset: newer stays at their beginning."""
    parts = global_commit_parts(world, queue, offset)
    for stay in world.readable(queue):
        parts.setdefault(stay.cluster, stay.local_start)
    return parts


def global_position(world: GlobalQueues, queue: int, done: Mapping[str, int | None]) -> int:
    """Return the global offset that a group has committed, by the local offsets to which it is done in each cluster.

    It is the offset of the first message that the group is not done with, or, while it has committed nothing in that
    stay, the end of the newest stay before in which it has (STATIC-25). In a cluster without progress, nothing counts
    as consumed.
    """
    passed: list[Stay] = []
    readable = world.readable(queue)
    for stay in readable:
        known = done.get(stay.cluster)
        at = max(known or 0, stay.local_start)
        if stay == readable[-1] or at < stay.local_end:
            # In a cluster to which the queue came back, the beginning is where its stay before has ended.
            if known is None or (at == stay.local_start and stay.local_start):
                before = [earlier for earlier in passed if done.get(earlier.cluster) is not None]
                if before:
                    return before[-1].logic_end
            return stay.shown(min(at, stay.local_end) if stay.is_ended else at)
        passed.append(stay)
    raise AssertionError("a queue has a stay with global offsets")


def shown_in(world: GlobalQueues, queue: int, cluster: str, local: int) -> int:
    """Return the global offset of a cluster's local one; behind an ended stay, the end of that stay."""
    stays = [stay for stay in world.readable(queue) if stay.cluster == cluster]
    stay = next((candidate for candidate in reversed(stays) if candidate.local_start <= local), stays[0])
    return stay.shown(min(local, stay.local_end) if stay.is_ended else local)
