"""The relay: sends what is committed in an outbox, until it is acknowledged (SPEC SEND-7).

    pass:   claim ──► send ──► settle      each lane one request, all lanes at once; two commits for all of them
              ▲                   │
              └── rest: at once ──┴── nothing to do: after `poll_ms`, or `wake()`

A lane has some of the keys of a topic, or its messages without a key. Any number of relays may run: each lane is sent
by one of them at a time, and a lane of a relay that died goes on when its lease ends (`Ledger` says why nothing is then
stored twice, or out of order). What becomes of a request is a pure decision (`mq/client/outbox/next_step.py`).
"""

from __future__ import annotations

import inspect
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ClassVar, Final, Protocol, TypeAlias, TypeVar, Unpack
from uuid import uuid4

import msgspec
from msgspec.structs import fields

from deltamq.mq.backoff import Backoff
from deltamq.mq.client.http.calls import ClientAccess
from deltamq.mq.client.messages.message import Message, SentRange
from deltamq.mq.client.outbox.ledger import (
    Claim,
    ClaimLimits,
    LaneLost,
    Ledger,
    SetAside,
    not_repeatable,
)
from deltamq.mq.client.outbox.next_step import NextStep, after_unknown, step_after, too_late
from deltamq.mq.client.outbox.outbox import TABLE
from deltamq.mq.client.outbox.session import DATABASE_FAILED, Session
from deltamq.mq.client.outbox.statements import Connection, OutboxDialect, Tables
from deltamq.mq.client.produce.calls import ProducerCalls
from deltamq.mq.client.produce.producer import AsyncProducer, Producer
from deltamq.mq.client.shells.both import Awaiting, Blocking, Client, both
from deltamq.mq.client.shells.forks import Birthplace
from deltamq.mq.client.shells.shell import Outcome, Shell, Signal, Stop
from deltamq.mq.errors import DeltaMQError, Refused, Unavailable, Unknown
from deltamq.mq.limits import MIB, REQUEST_MESSAGES_MAX

log = logging.getLogger("deltamq.client")

T = TypeVar("T")
#: Seconds beyond the deadline of a request after which its producer counts as stuck.
_HANG_S: Final = 60.0

_LEASE_FACTOR_MIN: Final = 2
_BYTES_MAX: Final = 32 * MIB


#: What a relay's send will be: where the messages of a request are stored.
Sending: TypeAlias = Outcome[tuple[SentRange, ...]]


class Sender(Protocol):
    """The part of a producer that a relay uses."""

    def send_fixed(
        self, topic: str, messages: Sequence[Message], *, producer_id: str, producer_seq: int, timeout_s: float
    ) -> Sending | Coroutine[Any, Any, Sending]: ...


class RelayStats(msgspec.Struct, frozen=True, kw_only=True):
    """What a relay has done, in one pass or since it was made."""

    #: Messages acknowledged; of these, those that an earlier attempt had stored.
    sent: int = 0
    duplicates: int = 0
    #: Messages set aside with an error.
    set_aside: int = 0
    #: Requests; of these, those that failed and are repeated, and refused ones that were divided.
    requests: int = 0
    repeated: int = 0
    divided: int = 0
    #: Requests whose lane another relay had taken over meanwhile.
    lost: int = 0
    #: Lanes that a pass left to the next one, which comes at once: it had enough requests, or had looked at enough.
    lanes_left: int = 0
    #: Failures of the database.
    database_failures: int = 0

    @property
    def went_on(self) -> bool:
        """True if there may be more to do at once."""
        return self.sent + self.set_aside + self.divided + self.lanes_left > 0

    def __add__(self, other: RelayStats) -> RelayStats:
        return RelayStats(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})


class OutboxRelayCore(Client, ABC):
    """What `OutboxRelay` and `AsyncOutboxRelay` have in common."""

    _producer_kind: ClassVar[type[Producer] | type[AsyncProducer]]

    def __init__(
        self,
        connect: Callable[[], Connection],
        producer: Sender | str | Sequence[str],
        *,
        table: str = TABLE,
        dialect: OutboxDialect | None = None,
        strict: bool = False,
        messages_max: int = 1_000,
        bytes_max: int = 4 * MIB,
        lanes_max: int = 64,
        timeout_s: float = 10.0,
        lease_s: float = 30.0,
        poll_ms: int = 500,
        first_wait_ms: int = 200,
        wait_ms_max: int = 60_000,
        on_set_aside: Callable[[SetAside], object] = lambda aside: None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        new_id: Callable[[], str] = lambda: uuid4().hex,
        **access: Unpack[ClientAccess],
    ) -> None:
        _check(messages_max, bytes_max, lanes_max, timeout_s, lease_s, poll_ms, first_wait_ms, wait_ms_max)
        self._session = Session(connect, dialect)
        self._tables = Tables(table)
        self._ledger = Ledger(
            self._session,
            self._tables,
            holder=new_id(),
            bounds=ClaimLimits(messages_max=messages_max, bytes_max=bytes_max, lanes_max=lanes_max),
            strict=strict,
            new_id=new_id,
        )
        self.shell = self._make_shell()
        self._own: Producer | AsyncProducer | None = None
        if isinstance(producer, str) or not hasattr(producer, "send_fixed"):
            producer = self._own = self._producer_kind(producer, timeout_s=timeout_s, **access)
        self._producer: Sender = producer
        self._timeout_s = timeout_s
        self._lease_ms = round(lease_s * 1000)
        self._poll_s = poll_ms / 1000
        self._waits_ms = Backoff(first_wait_ms, wait_ms_max)
        self._on_set_aside = on_set_aside
        self._now_ms = now_ms
        self._stats = RelayStats()
        self._checked = False
        self._birthplace = Birthplace(type(self).__name__)
        self._stopping = Stop(self.shell)
        self._woken = Signal(self.shell)

    @abstractmethod
    async def _in_db(self, work: Callable[[], T]) -> T:
        """Do work that uses the connection to the database, in the thread that it belongs to."""

    # Running ----------------------------------------------------------------------------------------------------

    @both
    async def run(self, until: threading.Event | None = None) -> None:
        """Send what is committed, now and later, until `stop` is called or `until` is set.

        Failures of the service and of the database are repeated with growing waits.

        Raises
        ------
        NotFound
            `outbox_not_found`: the database has no such table.
        """
        try:
            await self._run(until)
        finally:
            # In the thread that used the connection: SQLite's may be used, and closed, by no other.
            await self._in_db(self._give_up)

    async def _run(self, until: threading.Event | None) -> None:
        failures = 0
        while not (self._stopping.is_set or (until is not None and until.is_set())):
            try:
                went_on = (await self._run_once()).went_on
            except Unavailable as error:
                if error.code != DATABASE_FAILED:
                    raise
                failures += 1
                self._stats += RelayStats(database_failures=1)
                log.warning("event=outbox_database_failed failures=%d error=%s", failures, error.detail)
                await self._wait(self._waits_ms.after(failures) / 1000)
                continue
            failures = 0
            if not went_on:
                await self._wait(self._poll_s)

    @both
    async def run_once(self) -> RelayStats:
        """Send one request of each lane that has messages and is not waiting, and return what was done.

        Raises
        ------
        NotFound
            `outbox_not_found`: the database has no such table.
        Unavailable
            `outbox_database_failed`: the database failed. What was sent is repeated harmlessly.
        """
        return await self._run_once()

    async def _run_once(self) -> RelayStats:
        self._birthplace.check()
        self.shell.check()
        claims, done = await self._in_db(self._claimed)
        if not claims:
            return done
        sends = [await self._begin(claim) for claim in claims]
        outcomes = [(claim, *await self._outcome(send)) for claim, send in zip(claims, sends, strict=True)]
        return done + await self._in_db(partial(self._settled, outcomes))

    def _claimed(self) -> tuple[list[Claim], RelayStats]:
        if not self._checked:
            self._session.check_tables(self._tables)
            self._checked = True
        now_ms = self._now_ms()
        claims = self._ledger.claims(now_ms, now_ms + self._lease_ms)
        done = self._report_set_aside(RelayStats(lanes_left=self._ledger.lanes_left))
        # Counted now: it stays done if the rest of the pass fails.
        self._stats += done
        return claims, done

    @both
    async def drain(self) -> bool:
        """Run passes while messages can be sent now; returns whether none is left that waits."""
        self._ledger.look_again()
        while not self._stopping.is_set and (await self._run_once()).went_on:
            pass
        return not await self._in_db(self._ledger.waiting)

    def wake(self) -> None:
        """Look at the database at once; for callers that have just committed."""
        self._woken.give()

    def stop(self) -> None:
        """Let `run` end after the pass under way; safe in a signal handler."""
        self._stopping.set()
        self._woken.give()

    def stats(self) -> RelayStats:
        """Return the counts since the relay was made."""
        return self._stats

    @both
    async def close(self) -> None:
        """Give up the relay's leases, and close its connection; called by the thread that ran it, or after `run`."""
        if not self._birthplace.is_here:
            return  # the connection and the leases are the parent's
        self.stop()
        await self._in_db(self._give_up)
        if self._own is not None:
            await ProducerCalls.close.core(self._own)
        await self.shell.close()

    def _give_up(self) -> None:
        try:
            if self._session.is_open:
                self._ledger.release()
        except Unavailable:
            log.info("event=outbox_leases_not_released")
        finally:
            self._session.close()

    async def _wait(self, seconds: float) -> None:
        if not self._stopping.is_set:
            await self._woken.wait(seconds)

    # One pass ---------------------------------------------------------------------------------------------------

    async def _begin(self, claim: Claim) -> Sending | DeltaMQError:
        error = not_repeatable(claim)
        if error is None and claim.inherited:
            error = too_late(claim.first_attempt_ms, self._now_ms())
        if error is not None:
            return error
        try:
            sending = self._producer.send_fixed(
                claim.topic,
                claim.messages,
                producer_id=claim.producer_id,
                producer_seq=claim.producer_seq,
                timeout_s=self._timeout_s,
            )
            return await sending if inspect.iscoroutine(sending) else sending  # type: ignore[return-value]
        except DeltaMQError as refused:
            return refused

    async def _outcome(self, send: Sending | DeltaMQError) -> tuple[DeltaMQError | None, int]:
        if isinstance(send, DeltaMQError):
            return send, 0
        try:
            # The producer resolves every request at its deadline; this only makes a hang an error.
            ranges = await self.shell.outcome(send, self.shell.now() + self._timeout_s + _HANG_S)
        except TimeoutError:
            return Unknown("the producer does not say what became of the request"), 0
        except DeltaMQError as error:
            return error, 0
        return None, sum(placed.count for placed in ranges if placed.duplicate)

    def _settled(self, outcomes: Sequence[tuple[Claim, DeltaMQError | None, int]]) -> RelayStats:
        done = RelayStats(requests=len(outcomes))
        with self._ledger.transaction():
            for claim, error, duplicates in outcomes:
                try:
                    done += self._settle(claim, error, duplicates)
                except LaneLost:
                    log.warning("event=outbox_lane_lost lane=%s", claim.lane)
                    done += RelayStats(lost=1)
        done = self._report_set_aside(done)
        self._stats += done
        return done

    def _settle(self, claim: Claim, error: DeltaMQError | None, duplicates: int) -> RelayStats:
        rows = len(claim.rows)
        if error is None:
            self._ledger.stored(claim)
            return RelayStats(sent=rows, duplicates=duplicates)
        if claim.inherited:
            error = after_unknown(error)
        step = step_after(error, rows)
        if step is NextStep.DIVIDE:
            self._ledger.divided(claim)
            return RelayStats(divided=1)
        if step is NextStep.SET_ASIDE:
            self._ledger.set_aside(claim, error, self._now_ms())
            return RelayStats()  # counted when it is reported
        wait_ms = round(self._waits_ms.after(claim.failures + 1))
        self._ledger.repeat(claim, error, now_ms=self._now_ms(), wait_ms=wait_ms)
        log.info("event=outbox_repeated lane=%s failures=%d code=%s", claim.lane, claim.failures + 1, error.code)
        return RelayStats(repeated=1)

    def _report_set_aside(self, done: RelayStats) -> RelayStats:
        """Report and count what was set aside; called after the commit."""
        for aside in self._ledger.take_set_aside():
            log.warning(
                "event=outbox_set_aside topic=%s messages=%d first_id=%d code=%s",
                aside.topic,
                len(aside.ids),
                aside.ids[0],
                aside.code,
            )
            self._on_set_aside(aside)
            done += RelayStats(set_aside=len(aside.ids))
        return done


class OutboxRelay(OutboxRelayCore, Blocking):
    """Sends the committed messages of an outbox, each once, messages of a key in order.

    One thread uses a relay; only `stop`, `wake` and `stats` may be called from others. Order is promised among messages
    whose transactions did not overlap.

    Parameters
    ----------
    connect
        Makes the relay's own connection to the database, without autocommit. It is called again after a failure.
    producer
        A producer, or the service's URL. A producer that is handed over is not closed.
    strict
        Messages of a key wait while an earlier one of it is set aside. By default they go on without it.
    messages_max, bytes_max, lanes_max
        Maximum size of one request, and number of requests of one pass.
    timeout_s, lease_s
        Maximum seconds of a request with its retries, and seconds after which another relay takes over what a dead one
        had claimed.
    poll_ms
        Milliseconds between two looks at a database without messages.
    first_wait_ms, wait_ms_max
        The wait after a failed request, which doubles with each further failure, up to a maximum.
    on_set_aside
        Called with each `SetAside`, after its commit. It is not called if that commit seems to fail, though it may have
        happened: only the database knows for certain what is set aside.
    access
        How the service is reached, for example `token`, if `producer` is a URL; see `Calls`.
    """

    _producer_kind = Producer

    async def _in_db(self, work: Callable[[], T]) -> T:
        return work()


class AsyncOutboxRelay(OutboxRelayCore, Awaiting):
    """`OutboxRelay` for an event loop: the same parameters; the database is used in one thread of its own.

    One task uses a relay; the producer is an `AsyncProducer`, or the service's URL.
    """

    _producer_kind = AsyncProducer

    def _make_shell(self) -> Shell:
        self._thread = ThreadPoolExecutor(1, "deltamq-outbox")
        return super()._make_shell()

    async def _in_db(self, work: Callable[[], T]) -> T:
        import asyncio

        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def _check(
    messages_max: int,
    bytes_max: int,
    lanes_max: int,
    timeout_s: float,
    lease_s: float,
    poll_ms: int,
    first_wait_ms: int,
    wait_ms_max: int,
) -> None:
    for name, value, low, high in (
        ("messages_max", messages_max, 1, REQUEST_MESSAGES_MAX),
        ("bytes_max", bytes_max, 1, _BYTES_MAX),
        ("lanes_max", lanes_max, 1, 1_024),
        ("timeout_s", timeout_s, 0.001, 3_600),
        # A request that is under way longer than the lease would be sent by two relays.
        ("lease_s", lease_s, _LEASE_FACTOR_MIN * timeout_s, 24 * 3_600),
        ("poll_ms", poll_ms, 1, 3_600_000),
        ("first_wait_ms", first_wait_ms, 1, wait_ms_max),
        ("wait_ms_max", wait_ms_max, 1, 3_600_000),
    ):
        if not low <= value <= high:
            raise Refused(f"{name} must be from {low:,} to {high:,}, not {value:,}", field=name)
