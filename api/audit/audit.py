"""What a process records in `sys/audit`: acts, refusals by minute, and the ends of acts of killed processes.

It is read page by page (SPEC SEC-42). The changes of a killed process in the metadata carry the act's id (SPEC SEC-40):

    begun, no end, its process is gone --events with its id--> done
                                        --none, and the metadata log reaches back so far--> failed: nothing was changed
                                        --an act that is not in the metadata, or older--> unknown, for good
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, MutableMapping, Sequence
from typing import Any, Final, NamedTuple

from deltamq.api.audit.acts import Acts
from deltamq.api.audit.calls import AuditedCalls, address_of, code_of
from deltamq.api.auth.caller import CALLER
from deltamq.api.auth.calls import call_of
from deltamq.api.log.partition import Partition, Partitions
from deltamq.api.log.record_log import RecordLog
from deltamq.api.wire.request import Scope, Send
from deltamq.mq.audit import ANONYMOUS, ActBegun, ActEnded, AuditRecord, Outcome, RefusalCount, Refusals
from deltamq.mq.errors import DeltaMQError, NotFound
from deltamq.mq.limits import ENDS_LOOKED_MAX
from deltamq.mq.meta.fold import Meta
from deltamq.tables.log.fetch import FetchStatus
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.paging import pages
from deltamq.tables.queue.metadata import MetaLog
from deltamq.tables.queue.records import audit_records_of, rows_of_audit
from deltamq.tables.queue.refs import AUDIT

log = logging.getLogger("deltamq.api")

#: Seconds between two tries to store minutes and ends; and between two looks for acts of killed processes.
_LOOK_S: Final = 5.0
_SETTLE_S: Final = 30.0
#: Seconds that a stop takes for storing at most.
_STOP_S: Final = 5.0
#: Statuses that are counted: no valid key, no access, too many requests.
_REFUSED: Final = frozenset((401, 403, 429))
#: A call that the service does not have.
_NO_CALL: Final = "(none)"


class Audit:
    """The audit of one process; used on the event loop."""

    def __init__(
        self,
        partitions: Partitions,
        meta: MetaLog,
        *,
        process: Callable[[], str],
        now_ms: Callable[[], int],
        new_id: Callable[[], str],
    ) -> None:
        self.partition: Partition = partitions.of(AUDIT)
        self._log: RecordLog[AuditRecord] = RecordLog(self.partition, rows_of_audit)
        self._process = process
        self._now_ms = now_ms
        self._new_id = new_id
        self.acts = Acts(self.store, process=process, now_ms=now_ms, new_id=new_id)
        self.calls = AuditedCalls(self.acts)
        self._refusals = Refusals()
        self._settling = Settling(self.partition, partitions, meta, store=self.store, now_ms=now_ms)
        self._loop = partitions.loop
        self._timer: asyncio.Task[None] | None = None

    def start(self, newest: Callable[[], Meta]) -> None:
        """Begin to store counts, and to settle acts of processes that are not in the `newest` metadata."""
        self._timer = self._loop.create_task(self._repeat(newest))

    async def store(self, records: Sequence[AuditRecord]) -> None:
        """Return when the records are durable; raises as an append does."""
        await self._log.append(records)

    # Refusals.

    def answered(self, scope: Scope, status: int, body: object, principal: str | None = None) -> None:
        """Count an answer if it is a refusal; without `principal` it counts for the caller in the scope."""
        if status not in _REFUSED:
            return
        entry = call_of(scope["method"], scope["raw_path"])
        caller = scope.get(CALLER)
        known = principal or (caller.name if caller is not None else "")
        call = _NO_CALL if entry is None else entry.name
        self.refused(known, call, status, code_of(body), address_of(scope))

    def refused(self, principal: str, call: str, status: int, code: str, address: str) -> None:
        """Count a refusal; a caller without a valid key or token has an empty `principal`."""
        self._refusals.add(self._now_ms(), principal or ANONYMOUS, call, status, code, address)

    def watched(self, scope: Scope, send: Send) -> Send:
        """Return a `send` that counts refusals of calls that are checked further where names in bodies are read."""
        status = 200

        async def watching(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            elif status in _REFUSED:
                self.answered(scope, status, message.get("body"))
                status = 200
            await send(message)

        return watching

    async def flush(self, *, whole: bool = False) -> None:
        """Store ended minutes, or all with `whole`; minutes that cannot be stored are stored later."""
        taken = self._refusals.take(self._now_ms(), whole=whole)
        records = [
            RefusalCount(
                id=self._new_id(),
                minute_ms=key.minute_ms,
                process=self._process(),
                principal=key.principal,
                call=key.call,
                status=key.status,
                code=key.code,
                count=row.count,
                address=row.address,
            )
            for key, row in taken.items()
        ]
        if not records:
            return
        try:
            await self.store(records)
        except BaseException as error:
            dropped = self._refusals.give_back(taken)
            if not isinstance(error, DeltaMQError | OSError):
                raise
            log.warning("event=refusals_not_stored rows=%d dropped=%d", len(records), dropped)

    async def _repeat(self, newest: Callable[[], Meta]) -> None:
        settle_at = 0.0
        while True:
            try:
                if self._loop.time() >= settle_at or self._settling.is_pending:
                    settle_at = self._loop.time() + _SETTLE_S
                    await self._settling.settle(newest(), self._process())
                await self.acts.store_waiting()
                await self.flush()
            except DeltaMQError as error:
                log.warning("event=audit_behind code=%s", error.code)
            except Exception as error:
                log.error("event=audit_behind kind=%s", type(error).__name__, exc_info=error)
            await asyncio.sleep(_LOOK_S)

    async def stop(self) -> None:
        """Store the counts; those that cannot be stored in a few seconds are lost."""
        if self._timer is None:
            return
        self._timer.cancel()
        await asyncio.gather(self._timer, return_exceptions=True)
        try:
            async with asyncio.timeout(_STOP_S):
                await self.acts.store_waiting()
                await self.flush(whole=True)
        except TimeoutError:
            log.error("event=audit_lost")


#: How far back a process looks when it starts.
_BACK_MS: Final = 24 * 3_600_000
#: Acts that change more than the metadata.
_BEYOND_METADATA: Final = ("POST /v1/groups/{group}/dead-letters/replay",)


class Settling:
    """Settles acts of killed processes; used on the event loop, reads on threads."""

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
        """Store the ends of acts of processes that are not in the newest metadata."""
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


_ROWS: Final = 1_000
_BYTES: Final = 4 << 20


class ActView(NamedTuple):
    """An act, and its end if it has one."""

    begun: ActBegun
    ended: ActEnded | None


def read_acts(
    log: PartitionLog, start: int, *, wanted: Callable[[ActBegun], bool], limit: int
) -> tuple[list[ActView], int | None]:
    """Return up to `limit` acts from an offset on, each once, and the next page's offset; None behind the last.

    The end of an act lies behind its begin; it is looked for in `ENDS_LOOKED_MAX` rows beyond the page.
    """
    begun: dict[str, ActBegun] = {}
    ended: dict[str, ActEnded] = {}
    following: int | None = None
    beyond = 0
    for offset, record in _records(log, start):
        if following is not None:
            beyond += 1
            if beyond > ENDS_LOOKED_MAX or begun.keys() <= ended.keys():
                break
        if isinstance(record, ActBegun) and wanted(record) and record.id not in begun:
            if len(begun) < limit:
                begun[record.id] = record
            elif following is None:
                following = offset
        elif isinstance(record, ActEnded) and record.id in begun:
            known = ended.get(record.id)
            if known is None or known.status < record.status:  # its own process knows best
                ended[record.id] = record
    return [ActView(act, ended.get(id_)) for id_, act in begun.items()], following


def read_refusals(
    log: PartitionLog, start: int, *, wanted: Callable[[RefusalCount], bool], limit: int
) -> tuple[list[RefusalCount], int | None]:
    """Return up to `limit` rows of refusals from an offset on, and the next page's offset; None behind the last."""
    counts: dict[str, RefusalCount] = {}
    for offset, record in _records(log, start):
        if isinstance(record, RefusalCount) and wanted(record):
            if len(counts) == limit:
                return list(counts.values()), offset
            counts[record.id] = record
    return list(counts.values()), None


def _records(log: PartitionLog, start: int) -> Iterator[tuple[int, AuditRecord]]:
    at = max(start, log.min_offset)
    while at < log.end_offset:
        page = log.read(at, max_messages=_ROWS, max_bytes=_BYTES)
        if page.status is not FetchStatus.FOUND:  # retention took it meanwhile
            at = max(at + 1, page.min_offset)
            continue
        yield from zip(page.rows.column("offset").to_pylist(), audit_records_of(page.rows), strict=True)
        at = page.next_offset
