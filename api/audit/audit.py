"""What a process records in `sys/audit`: acts, refusals by minute, and the ends of acts of killed processes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, Final

from deltamq.api.audit.acts import Acts
from deltamq.api.audit.calls import AuditedCalls, address_of, code_of
from deltamq.api.audit.settling import Settling
from deltamq.api.auth.caller import CALLER
from deltamq.api.auth.calls import call_of
from deltamq.api.log.partition import Partition, Partitions
from deltamq.api.log.record_log import RecordLog
from deltamq.api.wire.request import Scope, Send
from deltamq.mq.audit import ANONYMOUS, AuditRecord, RefusalCount, Refusals
from deltamq.mq.errors import DeltaMQError
from deltamq.mq.meta.fold import Meta
from deltamq.tables.queue.metadata import MetaLog
from deltamq.tables.queue.records import rows_of_audit
from deltamq.tables.queue.refs import AUDIT

log = logging.getLogger("deltamq.api")

#: Seconds between two looks whether a minute is over, or an end can be stored; and between two looks for killed acts.
_LOOK_S: Final = 5.0
_SETTLE_S: Final = 30.0
#: Seconds that a stop takes for storing at most.
_STOP_S: Final = 5.0
#: What is counted: callers without a valid key, those that may not do it, and those that ask for too much.
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
        """Begin to store what is counted, and to settle acts of processes that are not in the `newest` metadata."""
        self._timer = self._loop.create_task(self._repeat(newest))

    async def store(self, records: Sequence[AuditRecord]) -> None:
        """Return when the records are durable; raises what an append raises."""
        await self._log.append(records)

    # Refusals.

    def answered(self, scope: Scope, status: int, body: object, principal: str | None = None) -> None:
        """Count an answer if it is a refusal; without `principal` the caller in the scope is meant."""
        if status not in _REFUSED:
            return
        found = call_of(scope["method"], scope["raw_path"])
        caller = scope.get(CALLER)
        known = principal or (caller.name if caller is not None else "")
        call = _NO_CALL if found is None else found.name
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
        """Store the minutes that are over, or all with `whole`; what cannot be stored is stored later."""
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
        """Store what was counted; what cannot be stored in a few seconds is lost."""
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
