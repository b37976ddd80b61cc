"""The lanes of this process: partitions as groups see them, with their progress and what is in flight.

Everything here happens on the event loop: `mq.buffer.Buffer` needs no lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from api.offset_log import OffsetLog
from api.partition import Partition, Partitions
from mq.buffer import Buffer
from mq.buffer_decisions import BufferSettings
from mq.checkpoint import LaneKey
from mq.checkpoint_state import CheckpointState
from mq.errors import NotFound
from mq.names import split_partition
from mq.progress import Bounds, Committed, decide_commit
from mq.topics import Topic
from tables.config import QueueSettings
from tables.metadata import MetaLog
from tables.queue_refs import retry_ref
from tables.recovery import Recovered

__all__ = ["Lanes"]


class Lanes:
    """All lanes that this process serves."""

    def __init__(
        self, partitions: Partitions, meta: MetaLog, settings: QueueSettings, cluster: str, recovered: Recovered
    ) -> None:
        self._partitions = partitions
        self._meta = meta
        self._offsets = OffsetLog(partitions, cluster, recovered.committed)
        #: What the tables said of lanes that nobody has asked for since the start.
        self._states: dict[LaneKey, Sequence[CheckpointState]] = dict(recovered.states)
        self._buffer = Buffer(
            BufferSettings(
                enabled=settings.memory_match,
                stay_ms=settings.stay_buffer_ms,
                checkpoints_max=settings.buffer_checkpoints_max,
                partition_checkpoints_max=settings.partition_checkpoints_max,
            )
        )
        self._consumed_ms: dict[LaneKey, int] = {}

    # What others ask.

    async def committed(self, lane: LaneKey) -> Committed | None:
        """The group's progress in its present epoch, memory included; None when it has not begun there."""
        known = self._meta.groups.committed_in(lane, self._offsets.get(lane))
        held = self._buffer.lane(lane)
        if known is not None and held is not None and held.epoch == known.epoch:
            return known.join(Committed(held.epoch, held.committed))
        return known

    def in_flight(self, lane: LaneKey) -> int:
        """Messages that clients of the group hold."""
        held = self._buffer.lane(lane)
        return held.in_flight if held else 0

    def last_consumed_ms(self, lane: LaneKey) -> int | None:
        """When the group last popped or acknowledged something there, as far as this process knows."""
        return self._consumed_ms.get(lane)

    async def commit(self, lane: LaneKey, topic: str, offset: int) -> Committed:
        """A client's own commit; durable when this returns (SPEC CONS-4).

        Raises
        ------
        Unprocessable
            `offset_out_of_range`: the partition does not have that offset yet.
        """
        epoch = self._meta.groups.epoch_of(lane)
        if epoch is None:
            raise NotFound(f"there is no group {lane.group}", code="group_not_found", field="group")
        bounds = await self._bounds(lane, topic)
        present = await self.committed(lane) or Committed(epoch, 0)
        committed = decide_commit(present, offset, bounds)
        await self._offsets.store(lane, topic, committed)
        held = self._buffer.lane(lane)
        if held is not None and held.epoch == committed.epoch:
            self._buffer.commit_to(held, committed.offset)
        return committed

    async def _bounds(self, lane: LaneKey, topic: str) -> Bounds:
        partition = self.partition_of(lane, topic)
        await partition.refresh()
        log = partition.log
        return Bounds(0, 0) if log is None else Bounds(log.min_offset, log.end_offset)

    def partition_of(self, lane: LaneKey, topic: str) -> Partition:
        """What the lane's group reads; `NotFound` when topic or group have ended."""
        found = self._topic(lane, topic)
        if not lane.retry:
            return self._partitions.get(found, lane.partition)
        epoch = self._meta.groups.group(lane.group).epoch
        _, broker = split_partition(lane.partition)
        return self._partitions.of(retry_ref(lane.group, epoch, topic, found.generation, broker))

    def _topic(self, lane: LaneKey, name: str) -> Topic:
        found = self._meta.state.topic(name)
        if found.id != lane.topic_id:
            raise NotFound(f"topic {name} was deleted", code="topic_not_found", field="topic")
        return found

    def forget(self, lanes: Iterable[LaneKey]) -> None:
        """The epoch of these lanes is over: memory of them is void (SPEC POP-18)."""
        for lane in lanes:
            self._buffer.drop_lane(lane)
            self._offsets.forget(lane)
            self._states.pop(lane, None)
            self._consumed_ms.pop(lane, None)

    # What a service does all the time.

    async def flush(self) -> None:
        """Store the offsets that have moved."""
        for commit in self._buffer.commits():
            topic = self._topic_of(commit.lane)
            if topic is not None:
                self._offsets.note(commit.lane, topic, Committed(commit.epoch, commit.offset))
        await self._offsets.flush()

    def _topic_of(self, lane: LaneKey) -> str | None:
        """The name of the lane's topic; None when it was deleted."""
        return next((t.name for t in self._meta.state.topics.values() if t.id == lane.topic_id), None)
