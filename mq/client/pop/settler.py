"""Reports outcomes of messages to the service: acknowledgements in batches, other outcomes in calls of their own.

    handlers ──► acks ──┬──► carried by the next pop of their topic
                        └──► a call of their own, `ack_within_ms` after the first at the latest
             ──► nacks, dead letters, releases: calls of their own, at once

An unanswered report is repeated until the message's invisible time is over: acknowledging twice is harmless (POP-8),
and a message whose outcome never arrives is delivered again.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from deltamq.mq.client.http.retries import is_worth_retrying
from deltamq.mq.client.messages.received import Dead, Retry
from deltamq.mq.client.pop.client import (
    HANDLE_EXPIRED,
    HANDLES_MAX,
    OUTCOME_UNKNOWN,
    QUEUE_UNSERVED,
    PopCalls,
    failed_of,
)
from deltamq.mq.client.pop.lease import Lease, Release, Settlement
from deltamq.mq.errors import Conflict, DeltaMQError, Unknown
from deltamq.mq.wire.pop import AckRequest, DeadRequest, FailedHandle, NackRequest

log = logging.getLogger("deltamq.client")

_NEVER: Final = float("inf")
_WAIT_S_MAX: Final = 3600.0
_CALL_S_MIN: Final = 0.05


class Settler:
    """The outcomes that one consumer has to report; `run` reports them."""

    def __init__(self, client: PopCalls, *, ack_within_ms: float) -> None:
        self._client = client
        #: Seconds that an acknowledgement may wait for a pop to carry it.
        self.ack_within_s = ack_within_ms / 1000
        self._changed = client.shell.condition()
        #: Acknowledgements by topic, oldest first, each with its time of arrival.
        self._acks: dict[str, deque[tuple[float, Lease]]] = {}
        #: Other outcomes, oldest first.
        self._others: deque[tuple[Lease, Settlement]] = deque()
        #: Number of outcomes in calls that are under way.
        self._under_way = 0
        self._failures = 0
        self._not_before = 0.0
        self._draining_until: float | None = None
        #: When `run` wakes by itself, and whether it is to look again before.
        self._wake_at = 0.0
        self._woken = False
        #: Number of outcomes reported too late: their messages are delivered again.
        self.expired = 0

    # Outcomes ---------------------------------------------------------------------------------------------------

    def put(self, lease: Lease, settlement: Settlement) -> None:
        """Queue the outcome of a finished lease."""
        with self._changed.lock:
            if isinstance(settlement, (Retry, Dead, Release)):
                self._others.append((lease, settlement))
                self._wake()
                return
            now = self._client.shell.now()
            waiting = self._acks.setdefault(lease.topic, deque())
            waiting.append((now, lease))
            if now + self.ack_within_s < self._wake_at or len(waiting) == HANDLES_MAX:
                self._wake()

    # Acknowledgements in pops -----------------------------------------------------------------------------------

    def take_acks(self, topic: str) -> list[Lease]:
        """Take acknowledgements for the next pop of `topic` to carry; afterwards call `carried` or `not_carried`."""
        with self._changed.lock:
            return self._take(topic)

    def _take(self, topic: str) -> list[Lease]:
        waiting = self._acks.get(topic)
        if not waiting:
            return []
        taken = [waiting.popleft()[1] for _ in range(min(len(waiting), HANDLES_MAX))]
        self._under_way += len(taken)
        return taken

    def carried(self, leases: Sequence[Lease], failed: Sequence[FailedHandle]) -> None:
        """Note that the service has these acknowledgements, except the failed ones.

        Acknowledgements for a cluster that is away are queued again while their leases last: nothing was sent there.
        """
        now, unserved = (
            self._client.shell.now(),
            {refused.handle for refused in failed if refused.code == QUEUE_UNSERVED},
        )
        again = [lease for lease in leases if lease.handle in unserved and now < lease.expires_at]
        with self._changed.lock:
            self._under_way -= len(leases)
            self._failures = 0
            self._give_back(again)
            self._wake()
        left = {lease.handle for lease in again}
        self._note(leases, [refused for refused in failed if refused.handle not in left])

    def not_carried(self, leases: Sequence[Lease]) -> None:
        """Queue acknowledgements again, because it is not known whether the service has them."""
        with self._changed.lock:
            self._under_way -= len(leases)
            self._give_back(leases)
            self._wake()

    def _give_back(self, leases: Sequence[Lease]) -> None:
        """Put acknowledgements back at the head of the queue, due at once."""
        for lease in reversed(leases):
            self._acks.setdefault(lease.topic, deque()).appendleft((0.0, lease))

    def _note(self, leases: Iterable[Lease], failed: Sequence[FailedHandle]) -> None:
        if not failed:
            return
        by_handle = {lease.handle: lease for lease in leases}
        refused = [(by_handle[f.handle], f.code) for f in failed if f.handle in by_handle]
        # A call whose answer was lost may have been applied; then that is why its handles have expired.
        late = [(lease, code) for lease, code in refused if not (lease.perhaps_reported and code == HANDLE_EXPIRED)]
        if not late:
            return
        with self._changed.lock:
            self.expired += len(late)
        log.warning(
            "event=answer_too_late count=%d code=%s first=%s they %s delivered again; give handlers less work at "
            "once, or a longer invisible_ms",
            len(late),
            late[0][1],
            late[0][0].place,
            "may be" if any(code == OUTCOME_UNKNOWN for _, code in late) else "are",
        )

    # Reporting --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Report outcomes until `drain` is over."""
        while True:
            with self._changed.lock:
                now, until = self._client.shell.now(), self._draining_until
                if until is not None and (now >= until or not self._unreported()):
                    return
                due_at = self._due_at()
                self._wake_at = 0.0 if due_at <= now else due_at if until is None else min(due_at, until)
                self._woken = False
                work = self._next() if due_at <= now else None
            if work is not None:
                await self._report(*work)
            else:
                await self._changed.until(lambda: self._woken, min(self._wake_at - now, _WAIT_S_MAX))

    def _wake(self) -> None:
        with self._changed.lock:
            self._woken = True
            self._changed.notify()

    def _due_at(self) -> float:
        if self._others:
            return self._not_before
        firsts = [waiting for waiting in self._acks.values() if waiting]
        if not firsts:
            return _NEVER
        wait_s = 0.0 if self._draining_until is not None else self.ack_within_s
        if any(len(waiting) >= HANDLES_MAX for waiting in firsts):
            wait_s = 0.0
        return max(self._not_before, min(waiting[0][0] for waiting in firsts) + wait_s)

    def _unreported(self) -> int:
        return self._under_way + len(self._others) + sum(len(waiting) for waiting in self._acks.values())

    def _next(self) -> tuple[Settlement | None, list[Lease]]:
        """Return the outcome that the next call reports (None: acknowledged), and its leases."""
        if not self._others:
            leases: list[Lease] = []
            for topic in list(self._acks):
                if len(leases) < HANDLES_MAX:
                    leases += self._take(topic)
            return None, leases
        settlement = self._others[0][1]
        limit = 1 if isinstance(settlement, Release) else HANDLES_MAX
        same: list[tuple[Lease, Settlement]] = []
        while self._others and self._others[0][1] == settlement and len(same) < limit:
            same.append(self._others.popleft())
        self._under_way += len(same)
        return settlement, [lease for lease, _ in same]

    async def _report(self, settlement: Settlement | None, leases: list[Lease]) -> None:
        """Make one attempt of one call; unanswered outcomes go back to the queue."""
        lost = 0
        again: list[Lease] = []
        failed: Sequence[FailedHandle] = ()
        cause: DeltaMQError | None = None
        try:
            failed = await self._call(settlement, leases)
        except DeltaMQError as error:
            cause = error
            if is_worth_retrying(error):
                now = self._client.shell.now()
                again = [lease for lease in leases if now < lease.expires_at]
                # An acknowledgement may be repeated; any other outcome ends its handle.
                if settlement is not None and isinstance(error, Unknown):
                    for lease in again:
                        lease.perhaps_reported = True
                lost = len(leases) - len(again)
                log.warning("event=answer_not_told count=%d code=%s again=%d", len(leases), error.code, len(again))
            else:
                lost = len(leases)
                log.error("event=answer_refused count=%d code=%s detail=%s", lost, error.code, error.detail)
        self._note(leases, failed)
        with self._changed.lock:
            self._under_way -= len(leases)
            self.expired += lost
            self._settle_failures(cause if again else None)
            if settlement is None:
                self._give_back(again)
            else:
                self._others.extendleft((lease, settlement) for lease in reversed(again))
            self._wake()

    def _settle_failures(self, cause: DeltaMQError | None) -> None:
        if cause is None:
            self._failures = 0
            self._not_before = 0.0
            return
        self._failures += 1
        self._not_before = self._client.shell.now() + self._client.patience.wait_s(
            self._failures, random.random(), cause
        )

    async def _call(self, settlement: Settlement | None, leases: list[Lease]) -> Sequence[FailedHandle]:
        timeout_s = self._client.patience.request_timeout_s
        if self._draining_until is not None:
            timeout_s = min(timeout_s, max(_CALL_S_MIN, self._draining_until - self._client.shell.now()))
        if isinstance(settlement, Release):
            return await self._release(leases[0], timeout_s)
        handles = [lease.handle for lease in leases]
        if isinstance(settlement, Retry):
            return await self._settle("nack", NackRequest(handles, settlement.delay_ms), leases, timeout_s)
        if isinstance(settlement, Dead):
            return await self._settle("dead", DeadRequest(handles, settlement.reason), leases, timeout_s)
        return await self._settle("ack", AckRequest(handles), leases, timeout_s)

    async def _settle(
        self, verb: str, request: AckRequest | NackRequest | DeadRequest, leases: list[Lease], timeout_s: float
    ) -> Sequence[FailedHandle]:
        # The service forwards handles of other brokers.
        answer = await self._client.call_once(verb, msgspec.json.encode(request), timeout_s, leases[0].broker)
        return failed_of(answer.body)

    async def _release(self, lease: Lease, timeout_s: float) -> Sequence[FailedHandle]:
        try:
            await self._client.change_once(lease.handle, 0, timeout_s, lease.broker)
        except Conflict as error:
            if is_worth_retrying(error):
                raise
            return [FailedHandle(lease.handle, error.code)]
        return ()

    # The end ----------------------------------------------------------------------------------------------------

    def drain(self, deadline: float) -> None:
        """Report the remaining outcomes, until `deadline` at most; then `run` ends."""
        with self._changed.lock:
            self._draining_until = deadline
            self._not_before = 0.0
            self._wake()

    @property
    def untold(self) -> int:
        """Number of outcomes that the service does not know yet."""
        with self._changed.lock:
            return self._unreported()
