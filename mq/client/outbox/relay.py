"""The relay: sends what is committed in an outbox, until it is acknowledged (SPEC SEND-7).

    pass:   claim ──► send ──► settle      each lane one request, all lanes at once; two commits for all of them
              ▲                   │
              └── rest: at once ──┴── nothing to do: after `poll_ms`, or `wake()`

A lane has some of the keys of a topic, or its messages without a key. Any number of relays may run: each lane is sent
by one of them at a time, and a lane of a relay that died goes on when its lease ends (`Ledger` says why nothing is then
stored twice, or out of order). What becomes of a request is a pure decision from its outcome:

    outcome                                            step
    -------------------------------------------------- --------------------------------------------------------------
    stored, now or by an earlier attempt               STORED      its rows are deleted
    the service is away, busy, does not know           REPEAT      the very same request, after a growing wait
    the relay's token is wrong                         REPEAT      no message is to blame
    the topic or the named partition does not exist    SET_ASIDE   all its rows, which share both
    refused, several messages                          DIVIDE      nothing was stored: fewer messages, until one is left
    refused, one message                               SET_ASIDE
    may be stored, and can no longer be recognised     SET_ASIDE   only a person can decide whether to send it again

If an earlier attempt may have been applied, a refusal means this only if that attempt would have met it, too
(`after_unknown`). Fewer messages are another request, with another name: what is stored would be stored once more.
"""

from __future__ import annotations

import enum
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Final, Protocol, Unpack
from uuid import uuid4

from deltamq.mq.backoff import Backoff
from deltamq.mq.client.http.calls import ClientAccess, Closing
from deltamq.mq.client.http.retries import REQUEST_SIZE, TIMED_OUT
from deltamq.mq.client.messages.message import Message, SentRange
from deltamq.mq.client.outbox.ledger import (
    OUTCOME_UNKNOWN,
    Claim,
    ClaimLimits,
    LaneLost,
    Ledger,
    SetAside,
    not_repeatable,
)
from deltamq.mq.client.outbox.outbox import TABLE
from deltamq.mq.client.outbox.session import DATABASE_FAILED, Session
from deltamq.mq.client.outbox.statements import Connection, OutboxDialect, Tables
from deltamq.mq.client.produce.producer import Producer
from deltamq.mq.client.shells.forks import Birthplace
from deltamq.mq.client.shells.send_future import SendFuture
from deltamq.mq.errors import DeltaMQError, Forbidden, NotFound, Refused, Unauthenticated, Unavailable, Unknown
from deltamq.mq.limits import MIB, PRODUCER_WINDOW_MS, REQUEST_MESSAGES_MAX

log = logging.getLogger("deltamq.client")

#: How long after its first attempt a request is repeated: an hour less than the service remembers it, for clocks that
#: do not agree.
REPEATABLE_MS: Final = PRODUCER_WINDOW_MS - 3600 * 1000

_NOWHERE: Final = frozenset({"topic_not_found", "partition_not_found", "physical_partition"})
_FORGOTTEN: Final = "producer_sequence_out_of_order"


class NextStep(enum.Enum):
    """What to do with the rows of a request."""

    STORED = "stored"
    REPEAT = "repeat"
    DIVIDE = "divide"
    SET_ASIDE = "set aside"


def step_after(error: DeltaMQError | None, rows: int) -> NextStep:
    """Return what to do with `rows` rows after `error`, or after success."""
    if error is None:
        return NextStep.STORED
    if error.code in _NOWHERE or error.code in (_FORGOTTEN, OUTCOME_UNKNOWN):
        return NextStep.SET_ASIDE
    if isinstance(error, Refused) and not isinstance(error, (Unauthenticated, Forbidden)):
        return NextStep.SET_ASIDE if rows == 1 else NextStep.DIVIDE
    return NextStep.REPEAT


def after_unknown(error: DeltaMQError) -> DeltaMQError:
    """Return what `error` proves about a request of which an earlier attempt may be stored.

    What the service refuses by rules that do not change was refused every time. A limit may have been lowered since:
    then the outcome stays unknown. A refusal by a proxy, which does not know the request, says nothing.
    """
    if error.code in REQUEST_SIZE:
        return Unknown(
            f"an earlier attempt may be stored, and now: {error.detail}; look for the message_id in the topic before "
            "it is sent again",
            code=OUTCOME_UNKNOWN,
        )
    is_of_the_moment = isinstance(error, NotFound) or error.status == TIMED_OUT
    if is_of_the_moment and error.code not in _NOWHERE:
        return Unknown(error.detail, code=error.code)
    return error


def too_late(first_attempt_ms: int, now_ms: int) -> Unknown | None:
    """Return the error of a request that may be stored, but that the service would no longer recognise; else None."""
    if now_ms - first_attempt_ms < REPEATABLE_MS:
        return None
    return Unknown(
        f"sent more than {REPEATABLE_MS // 3_600_000} hours ago without an answer: it may be stored; look for its "
        "message_id in the topic before it is sent again",
        code=OUTCOME_UNKNOWN,
    )


_LEASE_FACTOR_MIN: Final = 2
_BYTES_MAX: Final = 32 * MIB


class Sender(Protocol):
    """The part of a `Producer` that a relay uses."""

    def send_fixed(
        self, topic: str, messages: Sequence[Message], *, producer_id: str, producer_seq: int, timeout_s: float
    ) -> SendFuture[tuple[SentRange, ...]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayStats:
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


class OutboxRelay(Closing):
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
        self._own: Producer | None = None
        if isinstance(producer, str) or not hasattr(producer, "send_fixed"):
            producer = self._own = Producer(producer, timeout_s=timeout_s, **access)
        self._producer: Sender = producer
        self._timeout_s = timeout_s
        self._lease_ms = round(lease_s * 1000)
        self._poll_s = poll_ms / 1000
        self._waits_ms = Backoff(first_wait_ms, wait_ms_max)
        self._on_set_aside = on_set_aside
        self._now_ms = now_ms
        self._stats = RelayStats()
        self._checked = False
        self._birthplace = Birthplace("OutboxRelay")
        self._stopping = threading.Event()
        self._woken = threading.Event()

    # Running ----------------------------------------------------------------------------------------------------

    def run(self, until: threading.Event | None = None) -> None:
        """Send what is committed, now and later, until `stop` is called or `until` is set.

        Failures of the service and of the database are repeated with growing waits.

        Raises
        ------
        NotFound
            `outbox_not_found`: the database has no such table.
        """
        try:
            self._run(until)
        finally:
            # In the thread that used the connection: SQLite's may be used, and closed, by no other.
            self._leave()

    def _run(self, until: threading.Event | None) -> None:
        failures = 0
        while not (self._stopping.is_set() or (until is not None and until.is_set())):
            try:
                went_on = self.run_once().went_on
            except Unavailable as error:
                if error.code != DATABASE_FAILED:
                    raise
                failures += 1
                self._stats += RelayStats(database_failures=1)
                log.warning("event=outbox_database_failed failures=%d error=%s", failures, error.detail)
                self._wait(self._waits_ms.after(failures) / 1000)
                continue
            failures = 0
            if not went_on:
                self._wait(self._poll_s)

    def run_once(self) -> RelayStats:
        """Send one request of each lane that has messages and is not waiting, and return what was done.

        Raises
        ------
        NotFound
            `outbox_not_found`: the database has no such table.
        Unavailable
            `outbox_database_failed`: the database failed. What was sent is repeated harmlessly.
        """
        self._birthplace.check()
        if not self._checked:
            self._session.check_tables(self._tables)
            self._checked = True
        now_ms = self._now_ms()
        claims = self._ledger.claims(now_ms, now_ms + self._lease_ms)
        done = self._report_set_aside(RelayStats(lanes_left=self._ledger.lanes_left))
        # Counted now: it stays done if the rest of the pass fails.
        self._stats += done
        if not claims:
            return done
        settled = self._settled([(claim, *outcome) for claim, outcome in zip(claims, self._send(claims), strict=True)])
        self._stats += settled
        return done + settled

    def drain(self) -> bool:
        """Run passes while messages can be sent now; returns whether none is left that waits."""
        self._ledger.look_again()
        while not self._stopping.is_set() and self.run_once().went_on:
            pass
        return not self._ledger.waiting()

    def wake(self) -> None:
        """Look at the database at once; for callers that have just committed."""
        self._woken.set()

    def stop(self) -> None:
        """Let `run` end after the pass under way; safe in a signal handler."""
        self._stopping.set()
        self._woken.set()

    def stats(self) -> RelayStats:
        """Return the counts since the relay was made."""
        return self._stats

    def close(self) -> None:
        """Give up the relay's leases, and close its connection; called by the thread that ran it, or after `run`."""
        if not self._birthplace.is_here:
            return  # the connection and the leases are the parent's
        self.stop()
        self._leave()
        if self._own is not None:
            self._own.close()

    def _leave(self) -> None:
        try:
            if self._session.is_open:
                self._ledger.release()
        except Unavailable:
            log.info("event=outbox_leases_not_released")
        finally:
            self._session.close()

    def _wait(self, seconds: float) -> None:
        self._woken.wait(seconds)
        if not self._stopping.is_set():
            self._woken.clear()

    # One pass ---------------------------------------------------------------------------------------------------

    def _send(self, claims: Sequence[Claim]) -> list[tuple[DeltaMQError | None, int]]:
        """Send the requests of all claims at once; returns the error of each, if any, and its duplicates."""
        sends = [self._begin(claim) for claim in claims]
        return [_outcome(send) for send in sends]

    def _begin(self, claim: Claim) -> SendFuture[tuple[SentRange, ...]] | DeltaMQError:
        error = not_repeatable(claim)
        if error is None and claim.inherited:
            error = too_late(claim.first_attempt_ms, self._now_ms())
        if error is not None:
            return error
        try:
            return self._producer.send_fixed(
                claim.topic,
                claim.messages,
                producer_id=claim.producer_id,
                producer_seq=claim.producer_seq,
                timeout_s=self._timeout_s,
            )
        except DeltaMQError as refused:
            return refused

    def _settled(self, outcomes: Sequence[tuple[Claim, DeltaMQError | None, int]]) -> RelayStats:
        done = RelayStats(requests=len(outcomes))
        with self._ledger.transaction():
            for claim, error, duplicates in outcomes:
                try:
                    done += self._settle(claim, error, duplicates)
                except LaneLost:
                    log.warning("event=outbox_lane_lost lane=%s", claim.lane)
                    done += RelayStats(lost=1)
        return self._report_set_aside(done)

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


def _outcome(send: SendFuture[tuple[SentRange, ...]] | DeltaMQError) -> tuple[DeltaMQError | None, int]:
    if isinstance(send, DeltaMQError):
        return send, 0
    try:
        # Without a timeout: the producer resolves every request at its deadline.
        ranges = send.result()
    except DeltaMQError as error:
        return error, 0
    return None, sum(placed.count for placed in ranges if placed.duplicate)


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
