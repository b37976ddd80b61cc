"""The logs that lanes write: progress, checkpoints, losses, dead letters."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from deltamq.api.log.partition import Partition, Partitions
from deltamq.api.log.record_log import RecordLog
from deltamq.api.queue.offset_log import OffsetLog
from deltamq.api.queue.revive_queues import ReviveQueues
from deltamq.mq.errors import Unavailable
from deltamq.mq.meta.group import Group
from deltamq.mq.names import broker_of
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.queue.handle import HandleKeys
from deltamq.mq.queue.revive import LostReason, LostRecord
from deltamq.tables.clock import Clock
from deltamq.tables.delta.stamped import ProducerStamp, one_batch
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.point_reads import pick
from deltamq.tables.queue.records import rows_of_lost_records
from deltamq.tables.queue.redelivery_rows import again, with_reason
from deltamq.tables.queue.refs import LOST, dead_ref, system_ref

T = TypeVar("T")


class Dying(NamedTuple):
    """A message consumed in order that goes to the dead letters or to the retry topic."""

    group: Group
    topic: str
    lane: LaneKey
    offset: int
    #: How often its delivery failed.
    failures: int
    reason: str
    #: The idempotent producer that appends it, as its request 0.
    request: str

    @property
    def broker(self) -> str:
        return broker_of(self.lane.partition)


class QueueLogs:
    """The logs that store lanes' state, the clock by which lanes decide, and the keys of their handles."""

    def __init__(
        self,
        partitions: Partitions,
        cluster: str,
        *,
        offsets: OffsetLog,
        keys: HandleKeys,
        clock: Clock,
    ) -> None:
        self.offsets = offsets
        self.revive = ReviveQueues(partitions, cluster)
        self.keys = keys
        self._partitions = partitions
        self._cluster = cluster
        self._clock = clock
        self._lost: dict[str, RecordLog[LostRecord]] = {}

    def now_ms(self) -> int:
        """Return the wall clock's time, which all processes use for pop times and due times."""
        return self._clock.wall_us() // 1_000

    async def run(self, work: Callable[[], T]) -> T:
        """Run blocking work on a thread."""
        return await self._partitions.run(work)

    async def lose(self, lane: LaneKey, topic: str, lost: tuple[tuple[int, int], ...]) -> None:
        """Record messages, as ranges, that retention took before the group was done with them (SPEC POP-12)."""
        broker = broker_of(lane.partition)
        log = self._lost.get(broker)
        if log is None:
            partition = self._partitions.of(system_ref(LOST, self._cluster, broker))
            log = self._lost[broker] = RecordLog(partition, rows_of_lost_records)
        record = LostRecord(
            lane=lane,
            topic=topic,
            ranges=lost,
            reason=LostReason.RETENTION,
            time_ms=self.now_ms(),
        )
        await log.append([record])

    async def bury(self, dead: Dying, log: PartitionLog) -> bool:
        """Append a message to its group's dead letters; a repeated call stores nothing twice.

        Returns False if retention has taken the message, which is recorded.
        """
        row = await self._copy(dead, log)
        if row is None:
            return False
        await self._send(with_reason(row, [dead.reason]), self.dead(dead.group, dead.broker), dead.request)
        return True

    def dead(self, group: Group, broker: str) -> Partition:
        """Return the partition of a group's dead letters on a broker."""
        return self._partitions.of(dead_ref(group.name, group.epoch, broker))

    async def retry(self, failed: Dying, log: PartitionLog, target: Partition) -> bool:
        """Append a message to its group's retry partition; a repeated call stores nothing twice.

        Returns False if retention has taken the message, which is recorded.
        """
        row = await self._copy(failed, log)
        if row is not None:
            await self._send(row, target, failed.request)
        return row is not None

    async def _copy(self, dying: Dying, log: PartitionLog) -> pa.RecordBatch | None:
        """Return the message as a failed one; None if it is gone, which is recorded."""
        offset, lane = dying.offset, dying.lane
        picked = await self.run(partial(pick, log, np.array([offset], dtype=np.int64), bytes_max=None))
        if offset in picked.gone:
            await self.lose(lane, dying.topic, ((offset, offset + 1),))
            return None
        if picked.unreadable:
            raise Unavailable(f"offset {offset} of {lane.partition} cannot be read now: {picked.unreadable[offset]}")
        return again(picked.rows, dying.topic, lane.partition, [dying.failures])

    async def _send(self, row: pa.RecordBatch, target: Partition, request: str) -> None:
        await RecordLog(target, one_batch).append([row], ProducerStamp(request, 0, None, 1))
