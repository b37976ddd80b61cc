"""The lanes of this process: partitions as groups see them, with their progress and their messages in flight.

    tables (recovery) --> lane opened on first use --> pops and acks in memory --> logs --> tables

A lane is popped either without order (`UnorderedPop`) or in order (`OrderedLanes`), and cannot change while messages
are in flight there; see `api.queue.lane_pops`. Everything runs on the event loop, so no lock is needed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Final

from deltamq.api.log.partition import Partition, Partitions
from deltamq.api.queue.group_topic import GroupTopic, LanePartition, Waiters
from deltamq.api.queue.logs import OffsetLog, QueueLogs
from deltamq.api.queue.ordered_pop import OrderedLanes
from deltamq.api.queue.unordered_pop import UnorderedPop
from deltamq.mq.errors import Conflict, DeltaMQError, NotFound, Unavailable
from deltamq.mq.limits import BUCKET_MS
from deltamq.mq.meta.group import NO_OFFSET, Group, GroupsState
from deltamq.mq.meta.topics import Topic
from deltamq.mq.names import CONSUMER_OFFSETS, CONSUMER_OFFSETS_ID, broker_of, member_name, split_member
from deltamq.mq.queue.buffer import Buffer
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.queue.handle import HandleKeys
from deltamq.mq.queue.lane import BufferSettings, InFlight, Lane
from deltamq.mq.queue.ordered_pop import OrderedLane
from deltamq.mq.queue.progress import Bounds, Committed, check_epoch, decide_commit
from deltamq.tables.clock import Clock
from deltamq.tables.config_sections import QueueSettings
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.queue.lane_states import LaneStates
from deltamq.tables.queue.metadata import MetaLog
from deltamq.tables.queue.recovery import Recovered
from deltamq.tables.queue.refs import retry_ref

log = logging.getLogger("deltamq.api")

_NOTHING_STORED: Final = LaneStates()
#: Seconds that a stop takes for storing at most; messages whose state is not stored by then are delivered again.
_STOP_S: Final = 30.0


class Lanes:
    """All lanes that this process serves."""

    def __init__(
        self,
        partitions: Partitions,
        meta: MetaLog,
        settings: QueueSettings,
        cluster: str,
        *,
        keys: HandleKeys,
        clock: Clock,
    ) -> None:
        self._partitions = partitions
        self._meta = meta
        self._offsets = OffsetLog(partitions, cluster)
        #: The tables' states of lanes that have not been opened.
        self._states: dict[LaneKey, LaneStates] = {}
        #: The brokers whose lanes are served here, each with its epoch.
        self._epochs: dict[str, int] = {}
        self.buffer = Buffer(
            BufferSettings(
                enabled=settings.memory_match,
                stay_ms=settings.stay_buffer_ms,
                checkpoints_max=settings.buffer_checkpoints_max,
                partition_checkpoints_max=settings.partition_checkpoints_max,
            )
        )
        self.logs = QueueLogs(partitions, cluster, offsets=self._offsets, keys=keys, clock=clock)
        self.unordered = UnorderedPop(self.buffer, self.logs, self.open)
        self.ordered = OrderedLanes(self.logs)
        self._consumed_ms: dict[LaneKey, int] = {}
        self._group_topics: dict[tuple[str, str], GroupTopic] = {}
        self._storing: set[asyncio.Task[None]] = set()
        self._losing = asyncio.Lock()
        self._timers = [
            partitions.loop.create_task(self._repeat(BUCKET_MS / 1000, self._tick)),
            partitions.loop.create_task(self._repeat(settings.commit_every_ms / 1000, self.flush)),
        ]

    # Brokers come and go.

    def adopt(self, broker: str, epoch: int, recovered: Recovered) -> None:
        """Begin to serve the lanes of a broker, as recovered from the tables."""
        self.drop(broker)
        self._offsets.adopt(recovered.committed)
        self._states.update(recovered.states)
        self._epochs[broker] = epoch
        resets = (lane for lane in self.groups.resets if broker_of(lane.partition) == broker)
        self._record_ends({lane: recovered.committed.get(lane) for lane in chain(recovered.committed, resets)})

    def drop(self, broker: str) -> None:
        """Forget the lanes of a broker that another process serves."""
        self._epochs.pop(broker, None)
        self._offsets.drop(broker)
        known = {lane.key for lane in self.buffer.lanes}.union(
            self._states, self._consumed_ms, (key for key, _ in self.ordered)
        )
        self.forget([key for key in known if broker_of(key.partition) == broker])

    async def drain(self, broker: str) -> None:
        """Store the state of a broker's lanes that is only in memory, so that another process can go on.

        Raises
        ------
        DeltaMQError
            Some of it is not stored, and stays in memory.
        """
        lanes = [lane for lane in self.buffer.lanes if broker_of(lane.key.partition) == broker]
        await asyncio.gather(*self._storing)
        await self.unordered.store_all(self.buffer.leave(lanes))
        await self.flush()

    def check_hosted(self, lane: LaneKey) -> None:
        """Return if this process serves the lane's broker, else raise `Unavailable`."""
        broker = broker_of(lane.partition)
        if broker not in self._epochs:
            raise Unavailable(f"broker {broker} is being taken over; ask again", code="broker_unavailable")

    # Queries and commits.

    async def follow_streams(self, broker: str) -> None:
        """Read the progress of streaming queries in partitions of a broker that this process serves."""
        await self._offsets.follow(broker)

    async def committed(self, lane: LaneKey) -> Committed | None:
        """Return the group's progress in its present epoch, memory included; None if it has not begun there."""
        return self.progress(lane)

    def has_passed(self, lane: LaneKey, offset: int) -> bool | None:
        """Return whether a message was delivered or skipped, in memory included; None if the group has not begun."""
        progress = self.progress(lane)
        if progress is None:
            return None
        held = self.buffer.lane(lane)
        if held is not None and held.epoch == progress.epoch and (offset < held.latest or offset in held.covered):
            return True
        return offset < progress.offset or any(low <= offset < high for low, high in progress.done)

    def is_finished(self, lane: LaneKey, end_offset: int) -> bool:
        """Whether the group is done with a lane that gets no messages behind `end_offset`."""
        progress = self.progress(lane)
        return progress is not None and progress.offset >= end_offset

    def progress(self, lane: LaneKey) -> Committed | None:
        """Do as `committed`, for what this process knows now."""
        known = self.known(lane)
        held, ordered = self.buffer.lane(lane), self.ordered.get(lane)
        if known is not None and held is not None and held.epoch == known.epoch:
            known = known.join(Committed(held.epoch, held.committed))
        if known is not None and ordered is not None and ordered.epoch == known.epoch:
            known = known.join(ordered.progress())
        return known

    def known(self, lane: LaneKey) -> Committed | None:
        """Return the group's progress in its present epoch, as the offsets log will store it; None if not begun."""
        return self._meta.groups.committed_in(lane, self._offsets.get(lane))

    def topics_of(self, group: str) -> set[str]:
        """Return the ids of the topics in which this process has state of the group.

        It looks only at lanes that groups have touched, not at thousands of partitions that no group reads.
        """
        known = chain(self.begun(), self._consumed_ms, self.groups.resets)
        return {key.topic_id for key in known if key.group == group}

    def begun(self) -> Iterator[LaneKey]:
        """Yield the lanes in which this process knows progress of a group, some of them twice."""
        opened = [lane.key for lane in self.buffer.lanes], (key for key, _ in self.ordered)
        return chain(self._offsets.lanes, self._states, *opened)

    def members_of(self, group: str) -> set[str]:
        """Return the clients of a broadcast group of which this process has state, as `GROUP@CLIENT`."""
        prefix = member_name(group, "")
        known = chain(self._lanes_of_members(), self.groups.resets)
        return {key.group for key in known if key.group.startswith(prefix)}

    def _lanes_of_members(self) -> Iterator[LaneKey]:
        return (lane for lane in chain(self._offsets.lanes, self._consumed_ms) if split_member(lane.group) is not None)

    def in_flight(self, lane: LaneKey) -> int:
        """Return the number of messages that clients hold, or that wait to be delivered again after their time."""
        held, ordered = self.buffer.lane(lane), self.ordered.get(lane)
        return (held.in_flight + held.waiting if held else 0) + (len(ordered.flights) if ordered else 0)

    def flights_of(self, group: str) -> Iterator[InFlight]:
        """Yield the messages of a group that clients hold, or that wait to be delivered again, as memory knows them."""
        for key in [key for key in self._states if key.group == group]:
            self.recall(key)
        for lane in self.buffer.lanes:
            if lane.key.group == group:
                yield from lane.flights()
        for key, ordered in self.ordered:
            if key.group == group:
                yield from ordered.in_flight(key)

    def in_flight_everywhere(self) -> int:
        """Return the number of messages in flight of all groups."""
        return sum(lane.in_flight + lane.waiting for lane in self.buffer.lanes) + sum(
            len(ordered.flights) for _, ordered in self.ordered
        )

    @property
    def waiting(self) -> int:
        """The number of pops that wait for messages."""
        return sum(len(group_topic.waiters) for group_topic in tuple(self._group_topics.values()))

    @property
    def checkpoints_in_memory(self) -> int:
        """The number of checkpoints that a crash would lose."""
        return len(self.buffer)

    def last_consumed_ms(self, lane: LaneKey) -> int | None:
        """Return when the group last consumed in the lane, as far as this process knows (see `consumed`)."""
        return self._consumed_ms.get(lane)

    def consumed(self, lane: LaneKey, now_ms: int) -> None:
        """Note that the group pops, acknowledges, commits, or pulls under its lock in the lane."""
        self._consumed_ms[lane] = now_ms

    async def commit(
        self,
        lane: LaneKey,
        topic: str,
        offset: int,
        meant: int | None = None,
        *,
        attempts: int = 0,
        metadata: str = "",
    ) -> Committed:
        """Commit for a client; durable when this returns (SPEC CONS-4).

        `meant` is the epoch that the client expects; without it, the epoch in which the commit begins, so that a reset
        meanwhile is not undone (POP-18). `attempts` is how often the message at `offset` was tried in place
        (ORDER-8); `metadata` is the commit's text (KAFKA-13, see `decide_commit`).

        Raises
        ------
        Unprocessable
            `offset_out_of_range`: the partition does not have that offset yet.
        Conflict
            `epoch_over`: the epoch `meant` is over.
        """
        self.check_hosted(lane)
        began = self._epoch(lane)
        opened = await self.partition_of(lane, topic).look()
        bounds = Bounds(0, 0) if opened is None else Bounds(opened.min_offset, opened.end_offset)

        def decided() -> tuple[Committed, range]:
            epoch, present = self._epoch(lane), self.progress(lane)
            check_epoch(lane.partition, began if meant is None else meant, epoch)
            before, now_ms = present or Committed(epoch, 0), self.logs.now_ms()
            committed = decide_commit(before, offset, bounds, attempts=attempts, now_ms=now_ms, metadata=metadata)
            return committed, self._lost(lane, present, committed, bounds)

        committed, lost = decided()
        if not lost:
            await self._offsets.store(lane, topic, committed)
        else:
            # One at a time: a second commit then finds that the group has passed the lost messages.
            async with self._losing:
                committed, lost = decided()
                if lost:
                    await self.logs.lose(lane, topic, ((lost.start, lost.stop),))
                await self._offsets.store(lane, topic, committed)
        held, ordered = self.buffer.lane(lane), self.ordered.get(lane)
        if held is not None and held.epoch == committed.epoch:
            self.buffer.commit_to(held, committed.offset)
        if ordered is not None and ordered.epoch == committed.epoch:
            ordered.lose_below(committed.offset)
        return committed

    def _epoch(self, lane: LaneKey) -> int:
        epoch = self._meta.groups.epoch_of(lane)
        if epoch is None:
            raise NotFound(f"there is no group {lane.group}", code="group_not_found", field="group")
        return epoch

    def _lost(self, lane: LaneKey, present: Committed | None, committed: Committed, bounds: Bounds) -> range:
        """Return the offsets that a commit passes over because retention took them, to be recorded (SPEC POP-12).

        Popped messages are left out, since the revive job records which of them are lost; so are messages from before
        the group began, and committed offsets, of which the newer ones are stored.
        """
        if present is None or lane.topic_id == CONSUMER_OFFSETS_ID:
            return range(0)
        held, ordered = self.buffer.lane(lane), self.ordered.get(lane)
        done = [end for _, end in present.done] + [sent.offset + 1 for sent in present.delivered if sent.is_leased]
        popped = [held.latest] if held is not None and held.epoch == present.epoch else []
        popped += [ordered.next_offset] if ordered is not None and ordered.epoch == present.epoch else []
        return range(max([present.offset, *done, *popped]), min(committed.offset, bounds.min_offset))

    def partition_of(self, lane: LaneKey, topic: str) -> Partition:
        """Return the partition that the lane reads; raise `NotFound` if its topic or group has ended."""
        if lane.topic_id == CONSUMER_OFFSETS_ID:
            return self._offsets.partition(broker_of(lane.partition))
        present = self._meta.state.topic(topic)
        if present.id != lane.topic_id:
            raise NotFound(f"topic {topic} was deleted", code="topic_not_found", field="topic")
        if not lane.retry:
            return self._partitions.get(present, lane.partition)
        epoch = self._meta.groups.group(lane.group).epoch
        broker = broker_of(lane.partition)
        return self._partitions.of(retry_ref(lane.group, epoch, topic, present.generation, broker))

    async def bounds(self, lane: LaneKey, topic: str) -> Bounds | None:
        """Return the present bounds of the lane's partition; None for a retry partition that does not exist yet."""
        log = await self.partition_of(lane, topic).look()
        return None if log is None else Bounds(log.min_offset, log.end_offset)

    def void(self, lanes: Iterable[LaneKey]) -> None:
        """Forget lanes whose epoch is over (SPEC POP-18), and record it for readers of offsets logs (SPEC KAFKA-30)."""
        stored = {lane: self._offsets.get(lane) for lane in lanes}
        self.forget(stored)
        self._record_ends(stored)

    def _record_ends(self, stored: Mapping[LaneKey, Committed | None]) -> None:
        """Note where groups are in lanes whose epoch is over, as the offsets logs do not say so yet.

        A reset is known from the metadata, and so is the end of a group; these records change nothing but what a reader
        of an offsets log sees. After a kill between the event and its record, the next process that serves the broker
        notes it.
        """
        groups = self.groups
        for lane, at in stored.items():
            now = groups.resets.get(lane) or Committed(groups.epoch_of(lane) or groups.epoch, NO_OFFSET)
            if at is not None and (at.epoch, at.offset) >= (now.epoch, now.offset):
                continue
            if now.offset == NO_OFFSET and (at is None or at.offset == NO_OFFSET):
                continue
            topic = self._topic_name(lane) if broker_of(lane.partition) in self._epochs else None
            if topic is not None:
                self._offsets.note(lane, topic, now)

    def forget(self, lanes: Iterable[LaneKey]) -> None:
        """Forget lanes whose epoch is over (SPEC POP-18), and let waiting pops look again.

        With a lane of a broadcast group its clients' lanes end.
        """
        over = set(lanes)
        for lane in over | {lane for lane in self._lanes_of_members() if _lane_of_group(lane) in over}:
            self.buffer.drop_lane(lane)
            self.ordered.forget(lane)
            self._offsets.forget(lane)
            self._states.pop(lane, None)
            self._consumed_ms.pop(lane, None)
            ended = self._group_topics.pop((lane.group, lane.topic_id), None)
            if ended is not None:
                ended.waiters.wake()

    @property
    def groups(self) -> GroupsState:
        """The newest state of the groups that this process knows."""
        return self._meta.groups

    def topic(self, name: str) -> Topic | None:
        """Return a topic by name, as far as this process knows."""
        return self._meta.state.topics.get(name)

    # Lanes for pops and handles.

    def group_topic(self, topic: Topic, group: Group) -> GroupTopic:
        """Return the group in the topic, with its lanes."""
        key = (group.name, topic.id)
        known = self._group_topics.get(key)
        if known is None or known.topic.route is not topic.route or known.group.epoch != group.epoch:
            waiters = known.waiters if known is not None else Waiters()
            known = self._group_topics[key] = GroupTopic(topic, group, self._partitions, waiters)
        return known

    def wake(self, group: str, topic_id: str) -> None:
        """Let the group's waiting pops look again: the topic may have messages for them (SPEC POP-15)."""
        group_topic = self._group_topics.get((group, topic_id))
        if group_topic is not None:
            group_topic.waiters.wake()

    def wake_all(self, topic_id: str) -> None:
        """Let all groups' waiting pops of a topic look again: its partitions have changed."""
        for (_, present_id), group_topic in self._group_topics.items():
            if present_id == topic_id:
                group_topic.waiters.wake()

    def wake_at(self, broker: str) -> None:
        """Let all waiting pops look again in topics of a broker that this process begins to serve."""
        for group_topic in self._group_topics.values():
            if broker in group_topic.brokers:
                group_topic.waiters.wake()

    def wake_routed(self, topics: Mapping[str, Topic]) -> None:
        """Let waiting pops look again in topics whose routes have changed; `topics` are all topics by name."""
        for group_topic in self._group_topics.values():
            if not len(group_topic.waiters):
                continue
            topic = topics.get(group_topic.topic.name)
            if topic is not None and topic.route is not group_topic.topic.route:
                group_topic.waiters.wake()

    def open(self, key: LaneKey) -> Lane | None:
        """Return the lane from memory, or opened from the tables; None if the group has not begun there."""
        self.check_hosted(key)
        lane = self.buffer.lane(key)
        if lane is not None and lane.epoch == self._meta.groups.epoch_of(key):
            return lane
        known = self.known(key)
        if known is None:
            return None
        now_ms, stored = self.logs.now_ms(), self._states.pop(key, _NOTHING_STORED)
        covered, states = stored.live(known.epoch, known.offset, now_ms)
        tenure = self._epochs[broker_of(key.partition)]
        return self.buffer.open_lane(key, known, tenure=tenure, now_ms=now_ms, states=states, covered=covered)

    def ordered_of_handle(self, key: LaneKey, epoch: int) -> OrderedLane:
        """Return the ordered lane of a live handle of this epoch, from memory or opened from the tables."""
        self.check_hosted(key)
        ordered = self.ordered.get(key)
        if ordered is not None and ordered.epoch == epoch:
            return ordered
        known = self.known(key)
        if known is None or known.epoch != epoch:
            raise Conflict("the message is not in flight", code="handle_expired", field="handle")
        return self.ordered.open_for_handle(key, known)

    def recall(self, key: LaneKey) -> None:
        """Open a lane that has checkpoints in the tables, so that its overdue messages are known before a pop."""
        if key in self._states and broker_of(key.partition) in self._epochs and self.ordered.get(key) is None:
            self.open(key)

    def is_drained(self, key: LaneKey, log: PartitionLog) -> bool:
        """Whether a pop without order would get nothing there; a quick check for idle lanes."""
        lane = self.buffer.lane(key)
        return (
            lane is not None
            and lane.latest >= log.end_offset
            and lane.epoch == self._meta.groups.epoch_of(key)
            and self.ordered.get(key) is None
        )

    def left(self, visit: LanePartition) -> int:
        """Return how many messages of the partition the group has yet to get, as far as this process knows."""
        key, opened = visit.key, visit.partition.log
        if opened is None:
            return 0
        ordered, lane = self.ordered.get(key), self.buffer.lane(key)
        if ordered is not None:
            at = ordered.next_offset
        elif lane is not None:
            at = lane.latest
        else:
            known = self.known(key)
            at = 0 if known is None else known.offset
        return max(0, opened.end_offset - max(at, opened.min_offset))

    # Periodic work.

    async def _repeat(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            await _logged(work())

    async def _tick(self) -> None:
        """Store checkpoints that must leave memory, in a task, so that a slow disk does not delay the next tick."""
        decisions = self.buffer.tick(self.logs.now_ms())
        if decisions:
            task = self._partitions.loop.create_task(_logged(self.unordered.store_all(decisions)))
            self._storing.add(task)
            task.add_done_callback(self._storing.discard)

    async def store_due(self) -> None:
        """Store checkpoints that must leave memory now; return when that is done or has failed."""
        await self._tick()
        await asyncio.gather(*self._storing)

    async def flush(self) -> None:
        """Store the offsets that have changed."""
        for commit in self.buffer.commits():
            topic = self._topic_name(commit.lane)
            if topic is not None:
                self._offsets.note(commit.lane, topic, Committed(commit.epoch, commit.offset))
        await self._offsets.flush()

    def _topic_name(self, lane: LaneKey) -> str | None:
        if lane.topic_id == CONSUMER_OFFSETS_ID:
            return CONSUMER_OFFSETS
        group_topic = self._group_topics.get((lane.group, lane.topic_id))
        if group_topic is not None:
            return group_topic.topic.name
        return next((topic.name for topic in self._meta.state.topics.values() if topic.id == lane.topic_id), None)

    async def stop(self) -> None:
        """Store all state that is only in memory; messages whose state cannot be stored are delivered again."""
        for timer in self._timers:
            timer.cancel()
        await asyncio.gather(*self._timers, return_exceptions=True)
        try:
            async with asyncio.timeout(_STOP_S):
                await asyncio.gather(*self._storing)
                await _logged(self.unordered.store_all(self.buffer.stop()))
                await _logged(self.flush())
        except TimeoutError:
            log.error("event=stop_incomplete checkpoints=%d", self.checkpoints_in_memory)


async def _logged(work: Awaitable[None]) -> None:
    """Run periodic work; log a failure, since the next run tries again."""
    try:
        await work
    except DeltaMQError as error:
        log.warning("event=queue_log_failed code=%s detail=%r", error.code, error.detail)
    except Exception as error:
        log.error("event=queue_log_failed kind=%s", type(error).__name__, exc_info=error)


def _lane_of_group(lane: LaneKey) -> LaneKey:
    """Return the broadcast group's lane for the lane of one of its clients."""
    member = split_member(lane.group)
    assert member is not None, "a lane of a client"
    return lane._replace(group=member[0])
