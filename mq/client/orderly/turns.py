"""The turns of an ordered consumer: each partition in one thread at a time, for a minute at most (SPEC ORDER-6 to 9).

    turn: next ──┬── Process ──► listener ──► verdict ──► next ...
                 ├── MoveAway ─► attempts used up by earlier clients: set aside ──► next ...
                 ├── Fetch ────► the thread is free; the answer begins another turn
                 ├── Wait ─────► suspended: another turn begins when the time is over
                 ├── Yield ────► queued behind the other partitions
                 └── Stop ─────► the last commit, if the partition was handed over; then the lock's release

`mq.order.orderly.OrderlyRun` decides what to do. Partitions whose keys are heard in parallel have their own turns
(`mq/client/orderly/keyed_turns.py`); they share the listener threads, the fetches and the timers.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal

import msgspec
from msgspec.structs import replace

from deltamq.mq.client.http.retries import asked_s, is_worth_retrying
from deltamq.mq.client.messages.received import OrderedMessage, ordered_messages_of
from deltamq.mq.client.orderly.calls import OrderlyCalls
from deltamq.mq.client.orderly.fetches import OrderlyFetch, OrderlyFetches
from deltamq.mq.client.orderly.keyed_turns import KeyedTurns, Turn
from deltamq.mq.client.orderly.listener import Heard, ListenerOutcome, Listening
from deltamq.mq.client.orderly.work import OrderlyWork, Timers, WorkState, monotonic_ms
from deltamq.mq.client.pop.telemetry import ConsumerCounters
from deltamq.mq.client.pull.fetch import FetchAsk, Fetched, Fetches
from deltamq.mq.client.shells.shell import Inside
from deltamq.mq.errors import Conflict, DeltaMQError, NotFound
from deltamq.mq.order.keyed import KeyedRun
from deltamq.mq.order.orderly import Fetch, MoveAway, OrderlyRun, Process, Stop, Verdict, Wait, Yield
from deltamq.mq.queue.retry import DeadReason
from deltamq.mq.wire.groups import SubscriptionRequest

log = logging.getLogger("deltamq.client")

#: Shorter than the interval of lock renewals, because each answer renews the lock.
_FETCH_WAIT_MS: Final = 5_000
#: Pauses after fetches that found nothing although they were to wait: 10 ms, 20, ... at most 200.
_PAUSE_MS_MIN: Final = 10
_PAUSE_MS_MAX: Final = 200
_DOUBLINGS_MAX: Final = 10
#: Wait after a fetch whose partition or offset is missing, or that was refused, in milliseconds.
_MISSING_MS: Final = 1_000
_DOUBT_MS: Final = 50
_FAILED_MS_MAX: Final = 1_000
#: The states in which any change makes a work ready again.
_WAKEFUL: Final = (WorkState.FETCHING, WorkState.WAITING, WorkState.BUSY)
#: The reason of a dead letter whose listener returned `Verdict.DEAD`.
_REJECTED: Final = "rejected by its listener"


class FetchSize(msgspec.Struct, frozen=True, kw_only=True):
    """Maximum size of one fetch, and whether its messages have a `value`."""

    messages: int
    bytes: int
    typed: bool = False


class Turns:
    """Runs the works of one consumer.

    It calls `refused` after a refused fetch, `stopped` when a work's run is over, and `fail` with an error that ends
    the consumer. `commit` commits a work's position at once, and returns whether it could.
    """

    def __init__(
        self,
        calls: OrderlyCalls,
        topics: Mapping[str, SubscriptionRequest],
        listening: Listening,
        counters: ConsumerCounters,
        fetches: Fetches[OrderlyFetch],
        *,
        concurrency: int,
        turn_ms: int,
        keys_in_parallel: int,
        batches: bool,
        size: FetchSize,
        refused: Callable[[OrderlyWork, Conflict], None],
        stopped: Callable[[OrderlyWork], None],
        commit: Callable[[OrderlyWork], Coroutine[Any, Any, bool]],
        fail: Callable[[DeltaMQError], None],
        poke: Callable[[], None],
    ) -> None:
        self._calls = calls
        self._topics = topics
        self._listening = listening
        self._counters = counters
        self._batches = batches
        self._size = size
        self._refused = refused
        self._stopped = stopped
        self._commit = commit
        self._fail = fail
        self._workers = calls.shell.workers(concurrency, "deltamq-listener")
        self.fetches = OrderlyFetches(calls.hosts, fetches, self._heard)
        self.timers = Timers(poke)
        self._keyed = KeyedTurns(
            self._submit,
            self.timers,
            keys_in_parallel=keys_in_parallel,
            turn_ms=turn_ms,
            hear=self._hear,
            set_aside=self._set_aside,
            fetch=self._fetch,
            stopped=stopped,
            wake=self.wake,
            commit=commit,
        )
        #: Active where a listener runs.
        self.inside = Inside("deltamq-listener")

    # Where a work goes ------------------------------------------------------------------------------------------

    def begin(self, work: OrderlyWork) -> None:
        """Run a queued work in the background; if keys are heard in parallel, only its listeners do."""
        if isinstance(work.run, KeyedRun):
            try:
                self._keyed.look(work)
            except Exception as error:
                self._stuck(work, error)
        else:
            self._submit(work, self._turn)

    def _submit(self, work: OrderlyWork, turn: Turn) -> None:
        self._workers.submit(partial(self._guarded, work, turn))

    def wake(self, work: OrderlyWork, ticket: int | None = None) -> None:
        """Make a waiting work ready again; with a `ticket`, only if that wait is still current."""
        with work.mutex:
            if work.state not in _WAKEFUL or ticket not in (None, work.ticket):
                return
            work.state = WorkState.QUEUED
            work.ticket += 1
        self.begin(work)

    def _park(self, work: OrderlyWork, until_ms: int, ticket: int) -> None:
        """Let a work wait until a time, unless it was woken since it had this ticket."""
        with work.mutex:
            if work.ticket != ticket:
                return
            work.state = WorkState.WAITING
            work.ticket += 1
            ticket = work.ticket
        self.timers.at(until_ms, partial(self.wake, work, ticket))
        self._wake_if_over(work)

    def _wake_if_over(self, work: OrderlyWork) -> None:
        """Wake a work whose right ended while its thread ran: that change could not wake it."""
        if not work.right.allocated or not work.right.holds(monotonic_ms()):
            self.wake(work)

    # A turn -----------------------------------------------------------------------------------------------------

    async def _guarded(self, work: OrderlyWork, turn: Turn) -> None:
        """Run a part of a turn; an unexpected error ends the consumer, which must not look alive while one is stuck."""
        try:
            await turn(work)
        except Exception as error:
            self._stuck(work, error)

    def _stuck(self, work: OrderlyWork, error: Exception) -> None:
        log.error("event=turn_failed partition=%s", work.partition, exc_info=error)
        self._fail(DeltaMQError(f"{work.partition} cannot go on: {error}", code="consumer_failed"))

    async def _turn(self, work: OrderlyWork) -> None:
        run = work.run
        assert isinstance(run, OrderlyRun), "its messages are heard one after another"
        with work.mutex:
            work.state = WorkState.RUNNING
            run.begin_turn(monotonic_ms())
        while True:
            with work.mutex:
                careful, ticket = run.is_careful and run.may_commit(monotonic_ms()), work.ticket
            if careful and not await self._commit(work):
                self._park(work, monotonic_ms() + _DOUBT_MS, ticket)
                return
            with work.mutex:
                step = run.next(monotonic_ms())
            if isinstance(step, Process):
                await self._process(work, run, step)
                continue
            if isinstance(step, MoveAway):
                await self._move_away(work, run, step, Verdict.SUSPEND)
                continue
            if isinstance(step, Fetch):
                self._fetch(work, step.offset)
            elif isinstance(step, Wait):
                self._park(work, step.until_ms, work.ticket)
            elif isinstance(step, Yield):
                work.state = WorkState.QUEUED
                self.begin(work)
            elif isinstance(step, Stop):
                work.state = WorkState.ENDING
                self._stopped(work)
            return

    async def _process(self, work: OrderlyWork, run: OrderlyRun, step: Process) -> None:
        outcome = await self._hear(work, step)
        with work.mutex:
            away = run.finished(outcome.verdict, monotonic_ms(), asked_ms=outcome.suspend_ms)
            work.forget_done()
        if away is not None:
            await self._move_away(work, run, away, outcome.verdict)

    async def _move_away(self, work: OrderlyWork, run: OrderlyRun, away: MoveAway, verdict: Verdict) -> None:
        moved = await self._set_aside(work, away, verdict)
        with work.mutex:
            run.moved(moved, monotonic_ms())
            work.forget_done()

    async def _hear(self, work: OrderlyWork, step: Process) -> ListenerOutcome:
        messages = [work.messages[offset] for offset in step.offsets]
        if step.attempt > 1:
            messages = [replace(message, attempt=step.attempt) for message in messages]
        heard: Heard = messages if self._batches else messages[0]
        place = f"{work.partition}:{step.offsets[0]}"
        with self.inside:
            outcome = await self._listening.run(heard, len(messages), place)
        with work.mutex:
            lost = not work.run.may_commit(monotonic_ms())
        if lost:
            log.warning("event=result_discarded message=%s the partition may belong to another client", place)
        return outcome

    async def _set_aside(self, work: OrderlyWork, away: MoveAway, verdict: Verdict) -> bool:
        """Append messages to the dead letters or retries; returns whether that was stored (SPEC ORDER-8)."""
        to: Literal["dead", "retry"] = "dead" if away.dead else "retry"
        reason = _REJECTED if verdict is Verdict.DEAD else DeadReason.MAX_ATTEMPTS.value
        try:
            await self._calls.set_aside(work, away, to=to, reason=reason)
        except DeltaMQError as error:
            place = f"{work.partition}:{away.offsets[0]}"
            log.warning("event=not_set_aside message=%s to=%s code=%s", place, to, error.code)
            if isinstance(error, Conflict):
                self._refused(work, error)
            return False
        return True

    # Fetches ----------------------------------------------------------------------------------------------------

    def _fetch(self, work: OrderlyWork, offset: int) -> None:
        with work.mutex:
            work.state = WorkState.FETCHING
            work.ticket += 1
            ticket = work.ticket
        wanted = self._topics[work.topic]
        ask = FetchAsk(
            topic=work.topic,
            partition=work.partition,
            offset=offset,
            max_messages=self._size.messages,
            max_bytes=self._size.bytes,
            wait_ms=_FETCH_WAIT_MS,
            tags=wanted.tags or "*",
            filter=wanted.filter,
            group=self._calls.group,
            client_id=self._calls.client_id,
            typed=self._size.typed,
        )
        self.fetches.ask(OrderlyFetch(work=work, ticket=ticket, ask=ask))
        self._wake_if_over(work)

    def _heard(self, fetch: OrderlyFetch, answer: Fetched | DeltaMQError) -> None:
        """Take in the answer to a fetch; runs where all fetches are read, so it must be quick."""
        self._counters.add(**{"failed_pops" if isinstance(answer, DeltaMQError) else "pops": 1})
        work = fetch.work
        pause_ms = 0
        with work.mutex:
            if work.state is not WorkState.FETCHING or work.ticket != fetch.ticket:
                return
            if isinstance(answer, Fetched):
                pause_ms = self._take_in(work, fetch.ask, answer)
        if isinstance(answer, DeltaMQError):
            pause_ms = self._fetch_failed(work, answer)
        if pause_ms:
            self._park(work, monotonic_ms() + pause_ms, fetch.ticket)
        else:
            self.wake(work, fetch.ticket)

    def _take_in(self, work: OrderlyWork, ask: FetchAsk, fetched: Fetched) -> int:
        """Take in fetched messages, with the mutex held; returns the milliseconds to pause."""
        work.failures = 0
        if fetched.status == "offset_too_small":
            lost = fetched.min_offset - ask.offset
            log.error("event=messages_lost partition=%s offset=%d count=%d", work.partition, ask.offset, lost)
            _take(work.run, (), fetched.min_offset)
            return 0
        if fetched.status == "offset_too_large":
            log.error("event=offset_too_large partition=%s offset=%d", work.partition, ask.offset)
            return _MISSING_MS
        messages = ordered_messages_of(work.topic, work.partition, fetched.rows)
        _take(work.run, messages, fetched.next_offset)
        work.messages.update((message.offset, message) for message in messages)
        self._counters.add(received=len(messages))
        if fetched.next_offset > ask.offset:
            work.empty_fetches = 0
            return 0
        work.empty_fetches += 1
        return min(_PAUSE_MS_MIN << min(work.empty_fetches - 1, _DOUBLINGS_MAX), _PAUSE_MS_MAX)

    def _fetch_failed(self, work: OrderlyWork, error: DeltaMQError) -> int:
        """Return the milliseconds to pause after a failed fetch."""
        if isinstance(error, Conflict) and not is_worth_retrying(error):
            self._refused(work, error)
            return _DOUBT_MS
        if isinstance(error, NotFound):
            return _MISSING_MS
        if not is_worth_retrying(error):
            self._fail(error)
            return _MISSING_MS
        work.failures += 1
        log.info("event=fetch_failed partition=%s code=%s", work.partition, error.code)
        wait_ms = round(self._calls.patience.wait_s(work.failures, random.random()) * 1000)
        return max(min(max(wait_ms, _PAUSE_MS_MIN), _FAILED_MS_MAX), round(asked_s(error) * 1000))

    async def close(self) -> None:
        """End the workers as they become idle."""
        await self.fetches.close()
        await self._workers.close()


def _take(run: OrderlyRun | KeyedRun, messages: Sequence[OrderedMessage], next_offset: int) -> None:
    if isinstance(run, KeyedRun):
        run.fetched([(message.offset, message.key) for message in messages], next_offset)
    else:
        run.fetched([message.offset for message in messages], next_offset)
