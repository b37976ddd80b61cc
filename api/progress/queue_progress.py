"""A group's progress in the logical queues of static topics, which the lanes of their segments hold (SPEC STATIC-16).

    queue, logical offset <--> segments, positions of lanes     the lanes may be those of several processes

The pure part is `mq.static.progress`. A segment where the group has no progress counts as the group would begin there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from functools import partial
from typing import NamedTuple

from deltamq.api.progress.lane_commits import LaneCommits
from deltamq.api.queue.group_start import bounds_at
from deltamq.api.queue.lanes import Lanes
from deltamq.api.queue.moved_progress import MovedProgress
from deltamq.api.wire.answer import Header
from deltamq.mq.errors import Unprocessable
from deltamq.mq.meta.group import Group
from deltamq.mq.meta.topics import Topic
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.queue.progress import Bounds, Committed, Start, StartKind, reset_position
from deltamq.mq.static.logical_queue import LogicalQueue, Segment
from deltamq.mq.static.progress import (
    SegmentOffsets,
    commit_steps,
    committed_at,
    committed_offset,
    offset_at_time,
    position_of,
    reset_steps,
    unfinished,
)
from deltamq.mq.static.reading import place_of
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.reader import Born


class QueuePosition(NamedTuple):
    """Where a group is in a logical queue."""

    #: The logical offset up to which it is done, or where it would begin.
    offset: int
    #: The segment of that offset, where its next commit goes, and the progress stored there.
    segment: Segment
    committed: Committed | None
    #: Whether it has progress in any segment.
    is_begun: bool
    #: The epoch of its offsets; None if there is no such group.
    epoch: int | None
    #: The logical offset that it has committed last, which a hole may separate from `offset` (SPEC STATIC-25).
    committed_offset: int
    #: The text that was committed with that offset (SPEC KAFKA-13).
    metadata: str = ""


class QueueProgress:
    """The progress of all groups in all logical queues; used on the event loop."""

    def __init__(self, lanes: Lanes, moved: MovedProgress, commits: LaneCommits) -> None:
        self._lanes = lanes
        self._moved = moved
        self._commits = commits

    # Queries.

    async def of(self, topic: Topic, group: Group, queue: LogicalQueue, *, newest: bool = False) -> QueuePosition:
        """Return where the group is; with `newest`, all that was committed before the call counts, wherever it was."""
        since_s = asyncio.get_running_loop().time() if newest else 0.0
        known: dict[str, Committed | None] = {}
        for segment in queue.readable:
            known[segment.partition] = await self._moved.committed(lane_of(topic, group.name, segment), since_s)
        positions: dict[str, int] = {}
        for segment in queue.readable:
            committed = known[segment.partition]
            if committed is None and newest:
                await self._log(topic, segment)
            positions[segment.partition] = (
                committed.offset
                if committed is not None
                else await self._moved.position(topic, group, segment.partition, pop=False)
            )
        segment, offset = unfinished(queue, positions), position_of(queue, positions)
        stored = {partition: None if at is None else at.offset for partition, at in known.items()}
        shown = committed_offset(queue, stored, positions)
        noting = committed_at(queue, stored, shown)
        noted = None if noting is None else known[noting.partition]
        return QueuePosition(
            offset=offset,
            segment=segment,
            committed=known[segment.partition],
            is_begun=any(committed is not None for committed in known.values()),
            epoch=self.epoch_of(topic, group.name, queue),
            committed_offset=shown,
            metadata="" if noted is None else noted.metadata,
        )

    def lanes(self, topic: Topic, group: str, queue: LogicalQueue) -> list[LaneKey]:
        """Return the lanes of a group in the segments of a queue, the oldest first."""
        return [lane_of(topic, group, segment) for segment in queue.segments]

    def epoch_of(self, topic: Topic, group: str, queue: LogicalQueue) -> int | None:
        """Return the epoch of the group's offsets in the queue: that of its last reset; None if there is no group."""
        epochs = map(self._lanes.groups.epoch_of, self.lanes(topic, group, queue))
        return max((epoch for epoch in epochs if epoch is not None), default=None)

    async def bounds(self, topic: Topic, queue: LogicalQueue) -> Bounds:
        """Return the logical offsets that the queue holds (SPEC STATIC-15), undecided messages left out."""
        first = queue.readable[0]
        low = first.logical((await self._log(topic, first)).min_offset)
        return Bounds(low, await self.end(topic, queue))

    async def end(self, topic: Topic, queue: LogicalQueue) -> int:
        """Return the logical offset behind the last message with one."""
        newest = queue.newest_readable
        return newest.logic_end if newest.is_sealed else newest.logical((await self._log(topic, newest)).end_offset)

    async def offset_at(self, topic: Topic, queue: LogicalQueue, time_us: int) -> int:
        """Return the smallest logical offset whose append time is at or after a time; the end if there is none."""
        found: dict[str, SegmentOffsets] = {}
        for segment in queue.readable:
            log = await self._log(topic, segment)
            offset = await self._lanes.logs.run(partial(log.offset_at, time_us))
            found[segment.partition] = SegmentOffsets(offset, log.end_offset)
        return offset_at_time(queue, found)

    async def born_at(self, topic: Topic, queue: LogicalQueue, time_us: int) -> Born | None:
        """Return the first message born at or after a time, at its logical offset; None if there is none."""
        for segment in queue.readable:
            log = await self._log(topic, segment)
            found = await self._lanes.logs.run(partial(log.born_at, time_us))
            if found is not None:
                return found._replace(offset=segment.logical(found.offset))
        return None

    async def last_born_ms(self, topic: Topic, queue: LogicalQueue) -> int | None:
        """Return the latest born time in a queue in whole milliseconds; None if it is empty."""
        logs = [await self._log(topic, segment) for segment in queue.readable]
        times = [await self._lanes.logs.run(log.last_born_ms) for log in logs]
        return max((time for time in times if time is not None), default=None)

    async def _log(self, topic: Topic, segment: Segment) -> PartitionLog:
        """Return the segment's log with the commits of all processes."""
        log = await self._lanes.partition_of(lane_of(topic, "", segment), topic.name).look()
        assert log is not None, "a topic's partition is there, or raised why not"
        return log

    # Commits.

    async def store(
        self,
        topic: Topic,
        group: Group,
        queue: LogicalQueue,
        offset: int,
        *,
        meant: int | None = None,
        attempts: int = 0,
        metadata: str = "",
        headers: Collection[Header] = (),
    ) -> Committed:
        """Commit a logical offset in the lanes of any process; return the progress, with its logical offset.

        The lanes of older segments come first. `meant`, `attempts`, `metadata` and errors are as for `Lanes.commit`;
        `headers` are those of the client's request.
        """
        before = await self.of(topic, group, queue)
        if attempts:  # of the message that follows, which a hole may separate from what was committed
            place = place_of(queue, offset)
            offset = place.segment.logical(place.offset)
        store = partial(self._commits.anywhere, topic.name, meant=meant, headers=headers)
        *older, (segment, physical) = commit_steps(queue, offset)
        for passed, end in older:
            lane = lane_of(topic, group.name, passed)
            known = await self._moved.committed(lane)
            if end > passed.start_offset and (known is None or known.offset < end):
                await store(lane, end, attempts=0)
        done = await store(lane_of(topic, group.name, segment), physical, attempts=attempts, metadata=metadata)
        reached = max(segment.logical(done.offset), before.committed_offset if before.is_begun else 0)
        return Committed(done.epoch if before.epoch is None else max(before.epoch, done.epoch), reached)

    async def begin(
        self,
        topic: Topic,
        group: Group,
        queue: LogicalQueue,
        offset: int,
        *,
        found_again: bool,
        headers: Collection[Header],
    ) -> None:
        """Store that the group begins at a logical offset of a queue in which it has no progress.

        `found_again` and `headers` are as for `LaneCommits.begin`.
        """
        *older, (segment, physical) = commit_steps(queue, offset)
        begun = [(passed, end) for passed, end in older if end > passed.start_offset]
        for one, at in [*begun, (segment, physical)]:
            lane = lane_of(topic, group.name, one)
            await self._commits.begin(topic.name, lane, at, found_again=found_again, headers=headers)

    # Resets.

    async def reset_lanes(
        self, topic: Topic, group: str, queue: LogicalQueue, target: Start | int, field: str
    ) -> tuple[dict[LaneKey, int], int]:
        """Return the new offset of each lane for a reset of the queue, and its new logical offset.

        Raises
        ------
        Unprocessable
            `offset_out_of_range`, naming `field`: the queue does not have that offset yet.
        """
        bounds = await self.bounds(topic, queue)
        if isinstance(target, Start) and target.time_ms is None:
            lanes = {
                lane_of(topic, group, segment): reset_position(target, await self._segment_bounds(topic, segment))
                for segment in queue.segments
            }
            return lanes, bounds.min_offset if target.kind is StartKind.FIRST else bounds.end_offset
        if isinstance(target, Start):
            assert target.time_ms is not None, "it is checked above"
            offset = await self.offset_at(topic, queue, target.time_ms * 1_000)
        else:
            offset = target
        check_offset(queue.name, offset, bounds.end_offset, field)
        offset = max(offset, bounds.min_offset)
        steps = reset_steps(queue, offset)
        lanes = {
            lane_of(topic, group, segment): reset_position(at, await self._segment_bounds(topic, segment))
            for segment, at in steps
        }
        return lanes, offset

    async def lanes_at(self, topic: Topic, group: str, queue: LogicalQueue, offset: int) -> dict[LaneKey, int]:
        """Return the offset of each lane when the group is put at an offset that may be beyond the queue's end."""
        offset = max(offset, (await self.bounds(topic, queue)).min_offset)
        return {lane_of(topic, group, segment): at for segment, at in reset_steps(queue, offset)}

    async def _segment_bounds(self, topic: Topic, segment: Segment) -> Bounds:
        return await bounds_at(self._lanes.logs.run, await self._log(topic, segment), None)


def lane_of(topic: Topic, group: str, segment: Segment) -> LaneKey:
    """Return the lane of a group in a segment."""
    return LaneKey(topic.id, group, False, segment.partition)


def check_offset(partition: str, offset: int, end_offset: int, field: str) -> None:
    """Refuse an offset that a partition, as clients see it, does not have yet.

    Raises
    ------
    Unprocessable
        `offset_out_of_range`, naming `field` and the partition.
    """
    if offset > end_offset:
        raise Unprocessable(
            f"{field}: {offset} is beyond the end offset {end_offset} of {partition}",
            code="offset_out_of_range",
            field=f"{field}.{partition}",
            extra={"end_offset": end_offset},
        )
