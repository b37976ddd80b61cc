"""The logs that lanes write: progress, checkpoints, losses, dead letters."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from deltamq.api.log.partition import Partition, Partitions
from deltamq.api.log.record_log import RecordLog
from deltamq.mq.errors import Unavailable
from deltamq.mq.limits import REVIVE_QUEUES
from deltamq.mq.meta.group import NO_OFFSET, Group
from deltamq.mq.names import broker_of
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.queue.handle import HandleKeys
from deltamq.mq.queue.progress import STREAM_PRODUCER_PREFIX, Committed, OffsetRecord, committed_of
from deltamq.mq.queue.revive import LostReason, LostRecord
from deltamq.mq.queue.revive_log import Record
from deltamq.tables.clock import Clock
from deltamq.tables.delta.stamped import ProducerStamp, one_batch
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.paging import NotStored, pages
from deltamq.tables.queue.records import (
    offset_records_of,
    rows_of_lost_records,
    rows_of_offset_records,
    rows_of_records,
)
from deltamq.tables.queue.recovery import recover_progress
from deltamq.tables.queue.redelivery_rows import again, with_reason
from deltamq.tables.queue.refs import LOST, OFFSETS, dead_ref, revive_ref, system_ref
from deltamq.tables.queue.waiting_rows import pick_to_wait

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
    """The logs of lanes' state, the lanes' clock, and the keys of their handles."""

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
        """Record ranges of messages that retention took before the group was done with them (SPEC POP-12)."""
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
        """Return the message as a failed one; record it as lost and return None if it is gone."""
        offset, lane = dying.offset, dying.lane
        at = np.array([offset], dtype=np.int64)
        picked = await self.run(partial(pick_to_wait, log, at, self._partitions.codecs, bytes_max=None))
        if offset in picked.gone:
            await self.lose(lane, dying.topic, ((offset, offset + 1),))
            return None
        if picked.unreadable:
            raise Unavailable(f"offset {offset} of {lane.partition} cannot be read now: {picked.unreadable[offset]}")
        return again(picked.rows, dying.topic, lane.partition, [dying.failures])

    async def _send(self, row: pa.RecordBatch, target: Partition, request: str) -> None:
        await RecordLog(target, one_batch).append([row], ProducerStamp(request, 0, None, 1))


#: Seconds between two reads of the records of streaming queries; a list of groups asks for each group.
_FOLLOW_AGAIN_S: Final = 0.1


class OffsetLog:
    """The offsets logs of all brokers of this process; used on the event loop.

        buffer.commits() --note--> unsaved --flush, every commit_every_ms--> one append for each broker
        client's commit  --store-----------------------------------------> an append of its own, durable when it returns
        streaming query  --appends to the log itself--> follow, when a request asks for groups' progress

    Records are joined (`mq.queue.progress.Committed.join`), so appends may overtake each other.
    """

    def __init__(self, partitions: Partitions, cluster: str) -> None:
        self._partitions = partitions
        self._cluster = cluster
        self._known: dict[LaneKey, Committed] = {}
        self._unsaved: dict[LaneKey, OffsetRecord] = {}
        self._logs: dict[str, RecordLog[OffsetRecord]] = {}
        #: By broker, the offset up to which records of streaming queries were read.
        self._followed: dict[str, int] = {}
        self._followed_at: dict[str, float] = {}
        self._following = asyncio.Lock()
        self._flushing = asyncio.Lock()

    def partition(self, broker: str) -> Partition:
        """Return the log of a broker."""
        return self._partitions.of(system_ref(OFFSETS, self._cluster, broker))

    def adopt(self, stored: Mapping[LaneKey, Committed]) -> None:
        """Take over the progress from the tables, for the lanes of a broker that this process begins to serve."""
        self._known.update(stored)

    def drop(self, broker: str) -> None:
        """Forget the lanes of a broker that another process serves."""
        self._followed.pop(broker, None)
        self._followed_at.pop(broker, None)
        for known in (self._known, self._unsaved):
            for lane in [lane for lane in known if broker_of(lane.partition) == broker]:
                del known[lane]

    def get(self, lane: LaneKey) -> Committed | None:
        """Return the newest known progress, of any epoch; it is stored, or will be with the next flush."""
        return self._known.get(lane)

    async def follow(self, broker: str) -> None:
        """Read the records of streaming queries in the offsets log of a broker that this process serves."""
        partition = self.partition(broker)
        async with self._following:
            now = self._partitions.loop.time()
            if now - self._followed_at.get(broker, -_FOLLOW_AGAIN_S) < _FOLLOW_AGAIN_S:
                return
            self._followed_at[broker] = now
            log = await partition.look()
            if log is None or log.end_offset == self._followed.get(broker):
                return
            end = log.end_offset
            begun = self._followed.get(broker)
            stored = await self._partitions.run(lambda: self._recorded(log, broker, begun))
            for lane, committed in stored.items():
                self._join(lane, committed)
            self._followed[broker] = end

    def _recorded(self, log: PartitionLog, broker: str, begun: int | None) -> Mapping[LaneKey, Committed]:
        """Read the records of queries from offset `begun` on, or the whole progress without `begun`; blocking."""
        if begun is not None:
            with contextlib.suppress(NotStored):
                records = [record for page in pages(log, begun) for record in offset_records_of(_of_streams(page.rows))]
                return committed_of({}, records)
        return recover_progress(self._partitions.warehouse, self._cluster, [broker])

    @property
    def lanes(self) -> Collection[LaneKey]:
        """The lanes with known progress."""
        return self._known.keys()

    def note(self, lane: LaneKey, topic: str, committed: Committed) -> None:
        """Note progress, to be stored with the next flush."""
        self._unsaved[lane] = OffsetRecord(lane=lane, topic=topic, committed=self._join(lane, committed))

    async def store(self, lane: LaneKey, topic: str, committed: Committed) -> None:
        """Store progress; it is durable when this returns."""
        await self._append([OffsetRecord(lane=lane, topic=topic, committed=committed)])
        self._join(lane, committed)

    async def flush(self) -> None:
        """Store the noted progress; progress that cannot be stored stays noted."""
        # One flush at a time: when a call returns, everything noted before it is stored.
        async with self._flushing:
            await self._flush_all()

    async def _flush_all(self) -> None:
        records, self._unsaved = self._unsaved, {}
        if not records:
            return
        by_broker: dict[str, list[OffsetRecord]] = {}
        for lane, record in records.items():
            newest = self._known.get(lane, record.committed)
            if newest is not record.committed:  # a commit was stored since: a reader of the log is not put back
                record = replace(record, committed=newest)
            by_broker.setdefault(broker_of(lane.partition), []).append(record)
        appends = [self._flush(part) for part in by_broker.values()]
        failed = [error for error in await asyncio.gather(*appends, return_exceptions=True) if error is not None]
        if failed:
            raise failed[0]

    async def _flush(self, records: list[OffsetRecord]) -> None:
        try:
            await self._append(records)
        except BaseException:
            for record in records:
                if record.lane in self._known:
                    self._unsaved.setdefault(record.lane, record)
            raise
        for record in records:
            if record.committed.offset == NO_OFFSET and self._known.get(record.lane) == record.committed:
                del self._known[record.lane]

    async def _append(self, records: list[OffsetRecord]) -> None:
        broker = broker_of(records[0].lane.partition)
        log = self._logs.get(broker)
        if log is None:
            log = self._logs[broker] = RecordLog(self.partition(broker), rows_of_offset_records, owner_only=True)
        await log.append(records)

    def _join(self, lane: LaneKey, committed: Committed) -> Committed:
        before = self._known.get(lane)
        joined = self._known[lane] = committed if before is None else before.join(committed)
        return joined

    def forget(self, lane: LaneKey) -> None:
        """Forget a lane whose epoch is over."""
        self._known.pop(lane, None)
        self._unsaved.pop(lane, None)


def _of_streams(rows: pa.Table) -> pa.Table:
    """Return the records of streaming queries; this process knows its own records."""
    by_query = pc.starts_with(rows.column("producer_id"), STREAM_PRODUCER_PREFIX)
    return rows.filter(pc.fill_null(by_query, False))


#: Seconds of one queue's turn: long enough that nearly all acknowledgements go to the queue of the new checkpoints.
_TURN_S: Final = 1.0


class Destined(NamedTuple):
    """A record, its partition, and the queue to which it goes."""

    partition: str
    queue: int
    record: Record


class ReviveQueues:
    """The revive logs of all brokers of this process; used on the event loop.

        checkpoints of a pop --> the queue whose turn it is        acks and changes --> the queue of their checkpoint

    The turn moves every second, not with every pop, so that records that arrive together share a commit.
    """

    def __init__(self, partitions: Partitions, cluster: str) -> None:
        self._partitions = partitions
        self._cluster = cluster
        self._logs: dict[tuple[str, int], RecordLog[Record]] = {}
        self._queue = 0
        self._turn_ends_s = 0.0
        #: Records appended so far.
        self.records = 0

    def turn(self) -> int:
        """Return the queue for the checkpoints of a pop."""
        now_s = self._partitions.loop.time()
        if now_s >= self._turn_ends_s:
            self._queue = (self._queue + 1) % REVIVE_QUEUES
            self._turn_ends_s = now_s + _TURN_S
        return self._queue

    async def store(self, partition: str, queue: int, records: Sequence[Record]) -> None:
        """Append records about messages of a partition to a queue of its broker; they are durable when this returns.

        Raises
        ------
        DeltaMQError
            The records are certainly not stored.
        """
        broker = broker_of(partition)
        log = self._logs.get((broker, queue))
        if log is None:
            ref = revive_ref(self._cluster, queue, broker)
            log = self._logs[broker, queue] = RecordLog(self._partitions.of(ref), rows_of_records, owner_only=True)
        await log.append(records)
        self.records += len(records)

    async def store_each(self, destined: Iterable[Destined]) -> list[Exception | None]:
        """Append each record to its queue, one append per queue; return each record's error, or None."""
        destined = list(destined)
        groups: dict[tuple[str, int], list[int]] = {}
        for at, record in enumerate(destined):
            broker = broker_of(record.partition)
            groups.setdefault((broker, record.queue), []).append(at)
        appends = [
            self.store(destined[positions[0]].partition, queue, [destined[at].record for at in positions])
            for (_, queue), positions in groups.items()
        ]
        results = [await _outcome(appends[0])] if len(appends) == 1 else await asyncio.gather(*map(_outcome, appends))
        outcomes: list[Exception | None] = [None] * len(destined)
        for positions, outcome in zip(groups.values(), results, strict=True):
            for at in positions:
                outcomes[at] = outcome
        return outcomes


async def _outcome(append: Awaitable[None]) -> Exception | None:
    try:
        await append
    except Exception as error:
        return error
    return None
