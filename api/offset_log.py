"""How far groups are in partitions: what the offsets logs say, what has moved since, and storing it.

    buffer.commits() --note--> unsaved --flush, every commit_every_ms--> one append for each broker
    client's commit  --store-----------------------------------------> an append of its own, durable when it returns

Records are joined (`mq.progress.Committed.join`), so appends may overtake each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from api.partition import Partitions
from api.record_log import RecordLog
from mq.checkpoint import LaneKey
from mq.names import split_partition
from mq.progress import Committed, OffsetRecord
from tables.queue_refs import OFFSETS, system_ref
from tables.records import rows_of_offset_records

__all__ = ["OffsetLog"]


class OffsetLog:
    """The offsets logs of all brokers of this process; used on the event loop."""

    def __init__(self, partitions: Partitions, cluster: str) -> None:
        self._partitions = partitions
        self._cluster = cluster
        self._known: dict[LaneKey, Committed] = {}
        self._unsaved: dict[LaneKey, OffsetRecord] = {}
        self._logs: dict[str, RecordLog[OffsetRecord]] = {}
        self._flushing = asyncio.Lock()

    def adopt(self, stored: Mapping[LaneKey, Committed]) -> None:
        """What the tables say of the lanes of a broker that this process begins to serve."""
        self._known.update(stored)

    def drop(self, broker: str) -> None:
        """Another process serves the broker."""
        for known in (self._known, self._unsaved):
            for lane in [one for one in known if split_partition(one.partition)[1] == broker]:
                del known[lane]

    def get(self, lane: LaneKey) -> Committed | None:
        """The newest progress that is known, whatever its epoch; stored, or to be stored with the next flush."""
        return self._known.get(lane)

    def note(self, lane: LaneKey, topic: str, committed: Committed) -> None:
        """Progress to be stored with the next flush."""
        self._unsaved[lane] = OffsetRecord(lane=lane, topic=topic, committed=self._join(lane, committed))

    async def store(self, lane: LaneKey, topic: str, committed: Committed) -> None:
        """Progress that is durable when this returns."""
        await self._append([OffsetRecord(lane=lane, topic=topic, committed=committed)])
        self._join(lane, committed)

    async def flush(self) -> None:
        """Store what was noted; what could not be stored is noted again."""
        # One at a time, so that whoever asks for it knows afterwards that all is stored.
        async with self._flushing:
            await self._flush_all()

    async def _flush_all(self) -> None:
        records, self._unsaved = self._unsaved, {}
        if not records:
            return
        by_broker: dict[str, list[OffsetRecord]] = {}
        for lane, record in records.items():
            by_broker.setdefault(split_partition(lane.partition)[1], []).append(record)
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
        """Append records of lanes of one broker."""
        _, broker = split_partition(records[0].lane.partition)
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
        """The lane's epoch is over."""
        self._known.pop(lane, None)
        self._unsaved.pop(lane, None)
