"""The progress of groups in partitions: read from the offsets logs, changed in memory, and stored.

    buffer.commits() --note--> unsaved --flush, every commit_every_ms--> one append for each broker
    client's commit  --store-----------------------------------------> an append of its own, durable when it returns
    streaming query  --appends to the log itself--> follow, when a request asks for groups' progress

Records are joined (`mq.queue.progress.Committed.join`), so appends may overtake each other.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from deltamq.api.log.partition import Partitions
from deltamq.api.log.record_log import RecordLog
from deltamq.mq.names import broker_of
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.queue.progress import STREAM_PRODUCER_PREFIX, Committed, OffsetRecord, committed_of
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.paging import NotStored, pages
from deltamq.tables.queue.records import offset_records_of, rows_of_offset_records
from deltamq.tables.queue.recovery import recover_progress
from deltamq.tables.queue.refs import OFFSETS, system_ref

#: Seconds between two reads of the records of streaming queries; a list of groups asks once for each group.
_FOLLOW_AGAIN_S: Final = 0.1


class OffsetLog:
    """The offsets logs of all brokers of this process; used on the event loop."""

    def __init__(self, partitions: Partitions, cluster: str) -> None:
        self._partitions = partitions
        self._cluster = cluster
        self._known: dict[LaneKey, Committed] = {}
        self._unsaved: dict[LaneKey, OffsetRecord] = {}
        self._logs: dict[str, RecordLog[OffsetRecord]] = {}
        #: By broker, the offset up to which the records of streaming queries were read.
        self._followed: dict[str, int] = {}
        self._followed_at: dict[str, float] = {}
        self._following = asyncio.Lock()
        self._flushing = asyncio.Lock()

    def adopt(self, stored: Mapping[LaneKey, Committed]) -> None:
        """Take over the progress from the tables, for the lanes of a broker that this process begins to serve."""
        self._known.update(stored)

    def drop(self, broker: str) -> None:
        """Forget the lanes of a broker that another process serves."""
        self._followed.pop(broker, None)
        self._followed_at.pop(broker, None)
        for known in (self._known, self._unsaved):
            for lane in [one for one in known if broker_of(one.partition) == broker]:
                del known[lane]

    def get(self, lane: LaneKey) -> Committed | None:
        """Return the newest known progress, in whatever epoch; it is stored, or will be with the next flush."""
        return self._known.get(lane)

    async def follow(self, broker: str) -> None:
        """Read what streaming queries have recorded in the offsets log of a broker that this process serves."""
        partition = self._partitions.of(system_ref(OFFSETS, self._cluster, broker))
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
                records = [one for page in pages(log, begun) for one in offset_records_of(_of_streams(page.rows))]
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
        """Store the noted progress; what cannot be stored stays noted."""
        # One flush at a time, so that when a call returns, all that was noted before it is stored.
        async with self._flushing:
            await self._flush_all()

    async def _flush_all(self) -> None:
        records, self._unsaved = self._unsaved, {}
        if not records:
            return
        by_broker: dict[str, list[OffsetRecord]] = {}
        for lane, record in records.items():
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

    async def _append(self, records: list[OffsetRecord]) -> None:
        """Append records of one broker's lanes."""
        broker = broker_of(records[0].lane.partition)
        log = self._logs.get(broker)
        if log is None:
            partition = self._partitions.of(system_ref(OFFSETS, self._cluster, broker))
            log = self._logs[broker] = RecordLog(partition, rows_of_offset_records, owner_only=True)
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
    """Return the records of streaming queries; this process knows its own."""
    by_query = pc.starts_with(rows.column("producer_id"), STREAM_PRODUCER_PREFIX)
    return rows.filter(pc.fill_null(by_query, False))
