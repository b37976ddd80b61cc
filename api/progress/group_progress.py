"""The progress of a group: commits in lanes of all processes, and what they mean in logical queues (SPEC STATIC-16).

    lanes --by broker--> ours: stored here     theirs: forwarded as commits of their partitions  --> one result
    queue, logical offset <--> segments, positions of lanes

The pure part is `mq.static.progress`. A segment without progress counts as if the group began there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Mapping
from functools import partial
from typing import Final, NamedTuple
from urllib.parse import quote

import msgspec

from deltamq.api.host.hosted_meta import HostedMeta
from deltamq.api.host.hosting import Hosting
from deltamq.api.host.owners import Owners, together
from deltamq.api.host.peers import Call, Peer
from deltamq.api.queue.group_topic import begin, bounds_at
from deltamq.api.queue.lanes import Lanes
from deltamq.api.queue.moved_progress import MovedProgress
from deltamq.api.statistics import GroupStatistics
from deltamq.api.wire.answer import Header
from deltamq.mq.errors import Unprocessable
from deltamq.mq.meta.group import Group
from deltamq.mq.meta.topics import Topic
from deltamq.mq.names import broker_of
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.queue.progress import Bounds, Committed, Start, StartKind, reset_position
from deltamq.mq.static.logical_queue import LogicalQueue
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
from deltamq.mq.static.reading import read_start
from deltamq.mq.static.segments import Segment
from deltamq.mq.wire.groups import CommitRequest, CommittedOffsets
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.reader import Born


class GroupCommits:
    """Stores commits of clients in partitions of any process; used on the event loop."""

    def __init__(
        self, meta: HostedMeta, lanes: LaneCommits, queues: QueueProgress, statistics: GroupStatistics
    ) -> None:
        self._meta = meta
        self._lanes = lanes
        self._queues = queues
        self._statistics = statistics

    async def in_partition(
        self,
        topic: Topic,
        group: Group,
        partition: str,
        offset: int,
        *,
        metadata: str = "",
        headers: Collection[Header] = (),
    ) -> int:
        """Commit an offset of a partition; return the group's offset, which may be greater; durable when this returns.

        `headers` are the client's request's. Raises as `LaneCommits.anywhere` does.
        """
        await begin(self._meta, topic, group)
        lane = LaneKey(topic.id, group.name, False, partition)
        done = await self._lanes.anywhere(
            topic.name, lane, offset, meant=None, attempts=0, headers=headers, metadata=metadata
        )
        self._statistics.committed(group.name, topic, partition, broker_of(partition), done.offset)
        return done.offset

    async def in_queue(
        self,
        topic: Topic,
        group: Group,
        queue: LogicalQueue,
        offset: int,
        *,
        metadata: str = "",
        headers: Collection[Header] = (),
    ) -> int:
        """Do as `in_partition` for a logical offset of a queue of a static topic (SPEC STATIC-16)."""
        await begin(self._meta, topic, group)
        done = await self._queues.store(topic, group, queue, offset, metadata=metadata, headers=headers)
        self._statistics.committed(group.name, topic, queue.name, queue.leader.broker, done.offset)
        return done.offset


class QueuePosition(NamedTuple):
    """Where a group is in a logical queue."""

    #: The logical offset up to which the group is done, or where it would begin.
    offset: int
    #: The segment of that offset, where the next commit goes, and the progress stored there.
    segment: Segment
    committed: Committed | None
    #: Whether the group has progress in any segment.
    is_begun: bool
    #: The epoch of the group's offsets; None if there is no such group.
    epoch: int | None
    #: The logical offset that the group committed last, which a hole may separate from `offset` (SPEC STATIC-25).
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
        """Return where the group is; with `newest`, all commits before the call count, at whatever process."""
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
        """Return the epoch of the group's last reset in the queue; None if there is no group."""
        epochs = map(self._lanes.groups.epoch_of, self.lanes(topic, group, queue))
        return max((epoch for epoch in epochs if epoch is not None), default=None)

    async def bounds(self, topic: Topic, queue: LogicalQueue) -> Bounds:
        """Return the logical offsets that the queue holds (SPEC STATIC-15), undecided messages left out."""
        first = queue.readable[0]
        low = first.logical((await self._log(topic, first)).min_offset)
        return Bounds(low, await self.end(topic, queue))

    async def end(self, topic: Topic, queue: LogicalQueue) -> int:
        """Return the logical offset behind the last message that has one."""
        newest = queue.newest_readable
        return newest.logic_end if newest.is_sealed else newest.logical((await self._log(topic, newest)).end_offset)

    async def offset_at(self, topic: Topic, queue: LogicalQueue, time_us: int) -> int:
        """Return the first logical offset whose append time is at or after a time; the end if there is none."""
        offsets: dict[str, SegmentOffsets] = {}
        for segment in queue.readable:
            log = await self._log(topic, segment)
            offset = await self._lanes.logs.run(partial(log.offset_at, time_us))
            offsets[segment.partition] = SegmentOffsets(offset, log.end_offset)
        return offset_at_time(queue, offsets)

    async def born_at(self, topic: Topic, queue: LogicalQueue, time_us: int) -> Born | None:
        """Return the first message born at or after a time, at its logical offset; None if there is none."""
        for segment in queue.readable:
            log = await self._log(topic, segment)
            born = await self._lanes.logs.run(partial(log.born_at, time_us))
            if born is not None:
                return born._replace(offset=segment.logical(born.offset))
        return None

    async def last_born_ms(self, topic: Topic, queue: LogicalQueue) -> int | None:
        """Return the latest born time in a queue in whole milliseconds; None if it is empty."""
        logs = [await self._log(topic, segment) for segment in queue.readable]
        times = [await self._lanes.logs.run(log.last_born_ms) for log in logs]
        return max((time for time in times if time is not None), default=None)

    async def _log(self, topic: Topic, segment: Segment) -> PartitionLog:
        """Return the segment's log with the commits of all processes."""
        log = await self._lanes.partition_of(lane_of(topic, "", segment), topic.name).look()
        assert log is not None, "a topic's partition exists, or `look` has raised"
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
        """Commit a logical offset in the lanes of any process; return the progress as a logical offset.

        Older segments are stored first. `meant`, `attempts`, `metadata` and errors are as for `Lanes.commit`;
        `headers` are the client's request's.
        """
        before = await self.of(topic, group, queue)
        if attempts:  # they belong to the next message, which a hole may separate from the committed offset
            place = read_start(queue, offset)
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
        for place, at in [*begun, (segment, physical)]:
            lane = lane_of(topic, group.name, place)
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


#: Header of a commit that another process forwards: the offsets are where the group begins.
_BEGINS: Final = b"mq-begins"
_NO_TEXTS: Final[Mapping[str, str]] = {}


def is_begin(headers: Collection[Header]) -> bool:
    """Whether a commit only records where the group begins."""
    return any(name == _BEGINS for name, _ in headers)


class LaneCommits:
    """Stores commits of clients; used on the event loop."""

    def __init__(self, lanes: Lanes, hosting: Hosting, owners: Owners) -> None:
        self._lanes = lanes
        self._hosting = hosting
        self._owners = owners

    async def here(
        self,
        topic: str,
        lanes: Mapping[LaneKey, int],
        epochs: Mapping[str, int],
        attempts: Mapping[str, int],
        *,
        metadata: Mapping[str, str] = _NO_TEXTS,
        begins: bool = False,
    ) -> dict[str, Committed]:
        """Store commits in lanes of this process; expected `epochs`, `attempts` and `metadata` are by partition.

        With `begins`, the offsets are starts, and do not count as consumption.

        Raises
        ------
        Unavailable
            This process does not serve a broker, or lost it meanwhile.
        DeltaMQError
            As `Lanes.commit` raises.
        """
        held = {broker: self._hosting.epoch(broker) for broker in {broker_of(lane.partition) for lane in lanes}}

        def commit(lane: LaneKey, offset: int) -> Awaitable[Committed]:
            name = lane.partition
            tried, text = attempts.get(name, 0), metadata.get(name, "")
            return self._lanes.commit(lane, topic, offset, epochs.get(name), attempts=tried, metadata=text)

        done = await together([commit(lane, at) for lane, at in lanes.items()])
        for broker, epoch in held.items():
            await self._hosting.confirm(broker, epoch)
        now_ms = self._lanes.logs.now_ms()
        for lane in () if begins else lanes:
            self._lanes.consumed(lane, now_ms)
        return {lane.partition: committed for lane, committed in zip(lanes, done, strict=True)}

    async def there(self, peer: Peer, call: Call, asked: CommitRequest) -> dict[str, Committed]:
        """Let another process commit `asked`, which is a part of `call`."""
        answer = await self._owners.ask(peer, call._replace(body=msgspec.json.encode(asked)), CommittedOffsets)
        return {name: Committed(answer.epochs[name], at) for name, at in answer.offsets.items()}

    async def begin(
        self, topic: str, lane: LaneKey, offset: int, *, found_again: bool, headers: Collection[Header]
    ) -> None:
        """Store where a group begins in a lane of any process.

        It is durable when this returns, unless it is `found_again` after a crash: then, in a lane of this process, it
        is stored soon, and from then on messages that retention takes count as lost.
        """
        epoch = self._lanes.groups.epoch_of(lane)
        if epoch is not None and found_again and self._hosting.hosts(broker_of(lane.partition)):
            self._lanes.logs.offsets.note(lane, topic, Committed(epoch, offset))
            return
        await self.anywhere(topic, lane, offset, meant=None, attempts=0, headers=headers, begins=True)

    async def anywhere(
        self,
        topic: str,
        lane: LaneKey,
        offset: int,
        *,
        meant: int | None,
        attempts: int,
        headers: Collection[Header],
        metadata: str = "",
        begins: bool = False,
    ) -> Committed:
        """Store one commit in a lane of any process.

        `headers` are the client's request's; for `begins` see `here`, for `metadata` see `decide_commit`. Another
        process takes the partition's name only from this one, so the client's access is checked before.
        """
        name = lane.partition
        target = f"/v1/groups/{quote(lane.group, safe='')}/topics/{quote(topic, safe='')}/offsets"
        call = Call.on_behalf("PUT", target, [*headers, (_BEGINS, b"1")] if begins else headers)
        peer = self._owners.of(broker_of(name), call)
        epochs, tried = {} if meant is None else {name: meant}, {name: attempts} if attempts else {}
        texts = {name: metadata} if metadata else {}
        if peer is None:
            return (await self.here(topic, {lane: offset}, epochs, tried, metadata=texts, begins=begins))[name]
        asked = CommitRequest(
            offsets={name: offset}, epochs=epochs, attempts=tried, topic_id=lane.topic_id, metadata=texts or None
        )
        return (await self.there(peer, call, asked))[name]
