"""Ends for acts of processes that were killed: what they changed in the metadata carries their id (SPEC SEC-40).

begun, no end, its process is gone --events with its id--> done
                                    --none, and the metadata log reaches back so far--> failed: nothing was changed
                                    --an act that is not in the metadata, or older--> unknown, for good
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from deltamq.api.log.partition import Partition, Partitions
from deltamq.mq.audit import ActBegun, ActEnded, AuditRecord, Outcome
from deltamq.mq.errors import NotFound
from deltamq.mq.meta.fold import Meta
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.paging import pages
from deltamq.tables.queue.metadata import MetaLog
from deltamq.tables.queue.records import audit_records_of

#: How far back a process looks when it starts.
_BACK_MS: Final = 24 * 3_600_000
#: Acts of which something lies outside of the metadata.
_BEYOND_METADATA: Final = ("POST /v1/groups/{group}/dead-letters/replay",)


class Settling:
    """Finds and settles such acts; used on the event loop, reads on threads."""

    def __init__(
        self,
        partition: Partition,
        partitions: Partitions,
        meta: MetaLog,
        *,
        store: Callable[[Sequence[AuditRecord]], Awaitable[None]],
        now_ms: Callable[[], int],
    ) -> None:
        self._partition = partition
        self._run = partitions.run
        self._meta = meta
        self._store = store
        self._now_ms = now_ms
        #: Where the next look goes on; None before the first.
        self._position: int | None = None
        self._open: dict[str, ActBegun] = {}

    @property
    def is_pending(self) -> bool:
        """Whether an act had begun and not ended at the last look."""
        return bool(self._open)

    async def settle(self, newest: Meta, process: str) -> None:
        """Store the ends of acts of other processes that the newest metadata does not have."""
        opened = await self._partition.look()
        if opened is None:
            return
        await self._run(lambda: self._read(opened))
        alive = {*newest.brokers.hosts, process}
        gone = [act for act in self._open.values() if act.process not in alive]
        if not gone:
            return
        ids = {act.id for act in gone}
        done, since_us = await self._run(lambda: self._meta.acts_done(ids))
        ends = [self._end(act, act.id in done, act.time_ms * 1_000 > since_us) for act in gone]
        await self._store(ends)
        for act in gone:
            self._open.pop(act.id, None)

    def _read(self, opened: PartitionLog) -> None:
        """Read on, and note which acts have begun and not ended."""
        if self._position is None or self._position < opened.min_offset:
            back_us = (self._now_ms() - _BACK_MS) * 1_000
            self._position = max(opened.min_offset, opened.offset_at(back_us))
        try:
            for page in pages(opened, self._position):
                for record in audit_records_of(page.rows):
                    if isinstance(record, ActBegun):
                        self._open[record.id] = record
                    elif isinstance(record, ActEnded):
                        self._open.pop(record.id, None)
                self._position = page.next_offset
        except NotFound:
            self._position = None  # retention took it meanwhile

    def _end(self, act: ActBegun, is_done: bool, is_whole: bool) -> ActEnded:
        outcome: Outcome = "unknown"
        if is_done:
            outcome = "done"
        elif is_whole and act.call not in _BEYOND_METADATA:
            outcome = "failed"
        return ActEnded(
            id=act.id,
            time_ms=self._now_ms(),
            outcome=outcome,
            status=0,
            code="process_ended",
            detail="its process ended before it recorded this; the metadata says what was done",
            events=(),
            before="",
            after="",
        )
