"""The turns of partitions whose keys are heard in parallel: several threads for one partition (SPEC ORDER-11).

    look ──┬── Fetch ──► the answer looks again          listener threads, up to `keys_in_parallel` for a partition:
           ├── Busy ───► a listener's end looks again      begin ──► listener ──► finished ──► begin ...
           └── Stop ───► the last commit, the release      nothing to begin ──► the thread is free

`mq.order.keyed.KeyedRun` decides what to do. `look` never waits, so the thread that wakes the partition runs it; only
listeners, and the calls that follow from their verdicts, need threads. Whatever may make more messages ready starts
more of them: a fetch, a listener's end, and the end of a suspension.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, TypeAlias

from deltamq.mq.client.orderly.listener import ListenerOutcome
from deltamq.mq.client.orderly.work import OrderlyWork, Timers, WorkState, monotonic_ms
from deltamq.mq.order.keyed import Busy, KeyedRun
from deltamq.mq.order.orderly import Fetch, MoveAway, Process, Stop, Verdict

#: Wait before another try, if a careful run could not commit, in milliseconds.
_DOUBT_MS: Final = 50

#: A part of a turn.
Turn: TypeAlias = Callable[[OrderlyWork], Coroutine[Any, Any, None]]


class KeyedTurns:
    """Runs works whose keys are heard in parallel.

    It calls `hear` with a batch for the listener, `set_aside` with a batch to move away (it returns whether that was
    stored), `fetch` with the offset of a fetch, `stopped` when a run is over, `wake` when a work has something to do,
    and `commit` to commit a position at once (it returns whether everything is committed). `submit` runs a part of a
    turn in a listener thread.
    """

    def __init__(
        self,
        submit: Callable[[OrderlyWork, Turn], None],
        timers: Timers,
        *,
        keys_in_parallel: int,
        turn_ms: int,
        hear: Callable[[OrderlyWork, Process], Coroutine[Any, Any, ListenerOutcome]],
        set_aside: Callable[[OrderlyWork, MoveAway, Verdict], Coroutine[Any, Any, bool]],
        fetch: Callable[[OrderlyWork, int], None],
        stopped: Callable[[OrderlyWork], None],
        wake: Callable[[OrderlyWork], None],
        commit: Callable[[OrderlyWork], Coroutine[Any, Any, bool]],
    ) -> None:
        self._submit = submit
        self._timers = timers
        self._keys_in_parallel = keys_in_parallel
        self._turn_ms = turn_ms
        self._hear = hear
        self._set_aside = set_aside
        self._fetch = fetch
        self._stopped = stopped
        self._wake = wake
        self._commit = commit

    def look(self, work: OrderlyWork) -> None:
        """Do what the partition needs, in the calling thread, and start listeners."""
        with work.mutex:
            step = _run(work).look(monotonic_ms())
            count = self._claim(work)
            # With the mutex held: a listener that ends in between must find the new state, to wake the work.
            work.state = WorkState.BUSY if isinstance(step, Busy) else WorkState.RUNNING
        self._start(work, count)
        if isinstance(step, Fetch):
            self._fetch(work, step.offset)
        elif isinstance(step, Stop):
            work.state = WorkState.ENDING
            self._stopped(work)

    # Listeners --------------------------------------------------------------------------------------------------

    def _claim(self, work: OrderlyWork) -> int:
        """Return how many listener threads to start now, and count them; call this with the mutex held."""
        free = self._keys_in_parallel - work.listeners
        count = min(free, _run(work).startable(monotonic_ms())) if free > 0 else 0
        work.listeners += count
        return count

    def _start(self, work: OrderlyWork, count: int) -> None:
        for _ in range(count):
            self._submit(work, self._listen)

    def _fill(self, work: OrderlyWork) -> None:
        with work.mutex:
            count = self._claim(work)
            self._arm(work)
        self._start(work, count)

    async def _listen(self, work: OrderlyWork) -> None:
        """Hear messages in this thread as long as there are some, or until other partitions have a turn (ORDER-9)."""
        until_ms = monotonic_ms() + self._turn_ms
        while await self._is_safe(work) and (step := self._begin(work)) is not None:
            await self._process(work, step)
            if monotonic_ms() >= until_ms:
                self._submit(work, self._listen)
                return

    async def _is_safe(self, work: OrderlyWork) -> bool:
        """Commit for a careful run; if that fails, give up the thread and try again a little later."""
        with work.mutex:
            careful = work.run.is_careful and work.run.may_commit(monotonic_ms())
        if not careful or await self._commit(work):
            return True
        with work.mutex:
            work.listeners -= 1
        self._timers.at(monotonic_ms() + _DOUBT_MS, partial(self._fill, work))
        return False

    def _begin(self, work: OrderlyWork) -> Process | MoveAway | None:
        """Take the next batch; if there is none, the thread is no longer counted."""
        with work.mutex:
            step = _run(work).begin(monotonic_ms(), committed=work.is_committed)
            if step is None:
                work.listeners -= 1
        return step

    async def _process(self, work: OrderlyWork, step: Process | MoveAway) -> None:
        run = _run(work)
        verdict = Verdict.SUSPEND
        away = step if isinstance(step, MoveAway) else None
        if isinstance(step, Process):
            outcome = await self._hear(work, step)
            verdict = outcome.verdict
            with work.mutex:
                away = run.finished(step.offsets[0], verdict, monotonic_ms(), asked_ms=outcome.suspend_ms)
        if away is not None:
            ok = await self._set_aside(work, away, verdict)
            with work.mutex:
                run.moved(away.offsets[0], ok, monotonic_ms())
        with work.mutex:
            work.forget_done()
            # This thread takes the next batch itself.
            count = self._claim(work) if run.startable(monotonic_ms()) > 1 else 0
            self._arm(work)
            is_due = work.state is WorkState.BUSY and not isinstance(run.look(monotonic_ms()), Busy)
        self._start(work, count)
        if is_due:
            self._wake(work)

    # Suspensions ------------------------------------------------------------------------------------------------

    def _arm(self, work: OrderlyWork) -> None:
        """Plan to go on with the next suspended key; call this with the mutex held."""
        due_ms = _run(work).resume_ms()
        if due_ms is None or due_ms <= monotonic_ms() or (work.timer_ms is not None and work.timer_ms <= due_ms):
            return
        work.timer_ms = due_ms
        self._timers.at(due_ms, partial(self._resume, work, due_ms))

    def _resume(self, work: OrderlyWork, due_ms: int) -> None:
        with work.mutex:
            if work.timer_ms == due_ms:
                work.timer_ms = None
        self._fill(work)


def _run(work: OrderlyWork) -> KeyedRun:
    run = work.run
    assert isinstance(run, KeyedRun), "the keys of this partition are heard in parallel"
    return run
