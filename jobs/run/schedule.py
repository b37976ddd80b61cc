"""Runs jobs: each on a thread of its own, whenever it is due, until told to stop.

A merge of two seconds must not delay a message that is due again now, so no job waits for another. Each job's driver
lock is held from before the first run to after the last: a second driver of the warehouse refuses instead of taking
turns (RELIABILITY R3). A run that fails is told, recorded and tried again when it is next due; it stops nothing else.

    lock every job --> thread: wait until due, run, record --> ... --> stop: each thread ends after its run --> unlock
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import datetime
from typing import Final, Protocol

from jobs.run.driver_lock import DriverBusy, DriverLock, driver_lock
from jobs.run.last_run import LastRun, Recorder, read_last_run, seconds_until_due, utc_now
from jobs.run.registry import Facts, Job
from mq.errors import DeltaMQError, Fenced
from tables.config import Config
from tables.store import Store

__all__ = ["Scheduler"]

#: A lock that was lost, to an outage of the object store or to another driver, is asked for again after so long.
_LOST_LOCK_RETRY_S: Final = 5.0
#: The main thread wakes so often: a signal that another thread got has its handler run only then.
_LOOK_S: Final = 0.2
_DETAIL_LENGTH_MAX: Final = 1_000
#: A job that is due several times a second is told of when it did something, and at least this often.
_TELL_IDLE_S: Final = 60.0


class Runner(Protocol):
    """What carries out a job: Spark, or a test."""

    def __call__(self, job: Job, conf: Config, now: datetime) -> Facts: ...


class Scheduler:
    """Some jobs of one warehouse."""

    def __init__(
        self,
        jobs: Sequence[Job],
        conf: Config,
        store: Store,
        *,
        runner: Runner,
        tell: Callable[[str], None],
        every_s: float | None = None,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self._jobs = jobs
        self._conf = conf
        self._store = store
        self._runner = runner
        self._tell = tell
        self._every_s = every_s
        self._now = now
        self._stopping = threading.Event()
        self._broken: Exception | None = None

    def stop(self) -> None:
        """End after the runs that are under way, if any.

        Safe in a signal handler: the main thread, which handlers interrupt, never waits for this event itself.
        """
        self._stopping.set()

    def run_once(self) -> bool:
        """Run every job now, one after another; True if all succeeded.

        A job that another driver is running right now counts as failed.
        """
        succeeded = [self._run_alone(job) for job in self._jobs if not self._stopping.is_set()]
        return all(succeeded)

    def run_until_stopped(self) -> None:
        """Run each job whenever it is due, going on from when it last ran.

        Raises
        ------
        DriverBusy
            Another driver has one of the jobs; none was started here.
        """
        with ExitStack() as locks:
            held = [(job, locks.enter_context(_Held(self._store, job.name))) for job in self._jobs]
            threads = [
                threading.Thread(target=self._thread, args=one, name=f"mq-job-{one[0].name}", daemon=True)
                for one in held
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive():
                    thread.join(_LOOK_S)
        if self._broken is not None:
            raise self._broken

    def _thread(self, job: Job, held: _Held) -> None:
        """What a job raises ends one run; an error here would end its schedule unseen, so it ends all of them."""
        try:
            self._run_job(job, held)
        except Exception as error:  # raised again by the main thread
            self._broken = error
            self.stop()

    def _run_job(self, job: Job, held: _Held) -> None:
        """Run one job until stopped."""
        recorder = Recorder(self._store, job.name)
        telling = _Telling(self._tell)
        period_s = self._period_s(job)
        due = time.monotonic() + seconds_until_due(read_last_run(self._store, job.name), period_s, self._now())
        while not self._stopping.wait(max(0.0, due - time.monotonic())):
            began = time.monotonic()
            if not held.take():
                telling.busy(job)
                due = began + _LOST_LOCK_RETRY_S
                continue
            run = self._run(job, held.lock)
            telling.ran(run)
            self._record(recorder, run)
            # A run that took longer than the period is followed at once, and not by all that were missed.
            due = max(began + period_s, time.monotonic())
        self._record(recorder, None)

    def _period_s(self, job: Job) -> float:
        return job.every_s(self._conf) if self._every_s is None else self._every_s

    def _run_alone(self, job: Job) -> bool:
        try:
            with driver_lock(self._store, job.name) as lock:
                run = self._run(job, lock)
                recorder = Recorder(self._store, job.name)
                recorder.note(run)
                recorder.flush()
        except DriverBusy as error:
            self._tell(_line(job.name, ok=False, seconds=0.0, shown=error.detail))
            return False
        _Telling(self._tell).ran(run)
        return run.ok

    def _run(self, job: Job, lock: DriverLock) -> LastRun:
        now, began = self._now(), time.monotonic()
        ok, detail, facts = False, "", {}
        try:
            lock.check()
            facts = dict(self._runner(job, self._conf, now))
            lock.check()
            ok = True
        except Exception as error:  # whatever a job raises ends this run of it, not the others
            detail = _told(error)
        seconds = round(time.monotonic() - began, 3)
        return LastRun(job=job.name, started_at=now, seconds=seconds, ok=ok, detail=detail, facts=facts)

    def _record(self, recorder: Recorder, run: LastRun | None) -> None:
        """Note a run, or write what is noted; a job goes on working though nobody can be told of it."""
        try:
            if run is None:
                recorder.flush()
            else:
                recorder.note(run)
        except (DeltaMQError, OSError) as error:
            self._tell(_line(recorder.job, ok=False, seconds=0.0, shown=f"its run is not recorded: {_told(error)}"))


class _Held:
    """The lock of one job for as long as its thread runs; taken again when it was lost."""

    def __init__(self, store: Store, job: str) -> None:
        self._store = store
        self._job = job
        self._stack = ExitStack()
        self.lock: DriverLock

    def __enter__(self) -> _Held:
        self.lock = self._stack.enter_context(driver_lock(self._store, self._job))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def take(self) -> bool:
        """Whether this process has the lock; asks for it once when it was lost."""
        try:
            self.lock.check()
        except Fenced:
            with contextlib.suppress(DeltaMQError):
                self._stack.close()
            self._stack = ExitStack()
            try:
                self.lock = self._stack.enter_context(driver_lock(self._store, self._job))
            except DeltaMQError:
                return False
        return True


class _Telling:
    """One line for each run that is worth one."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._last: tuple[bool, str] | None = None
        self._told_s = 0.0

    def ran(self, run: LastRun) -> None:
        """Tell of a run that did something, ended otherwise than the one before, or comes after a long silence."""
        outcome = (run.ok, run.detail)
        quiet = time.monotonic() - self._told_s < _TELL_IDLE_S
        if quiet and outcome == self._last and not run.facts.get("rows"):
            return
        self._last, self._told_s = outcome, time.monotonic()
        shown = " ".join(f"{key}={value}" for key, value in run.facts.items())
        self._tell(_line(run.job, ok=run.ok, seconds=run.seconds, shown=shown or run.detail))

    def busy(self, job: Job) -> None:
        """Tell once that another driver has the job."""
        outcome = (False, "lock lost")
        if outcome != self._last:
            self._last = outcome
            self._tell(_line(job.name, ok=False, seconds=0.0, shown="its lock is lost; asking for it again"))


def _line(job: str, *, ok: bool, seconds: float, shown: str) -> str:
    return f"job={job} {'ok' if ok else 'FAILED'} seconds={seconds} {shown}".rstrip()


def _told(error: Exception) -> str:
    text = f"{type(error).__name__}: {error}".replace("\n", " ")
    return text if len(text) <= _DETAIL_LENGTH_MAX else text[: _DETAIL_LENGTH_MAX - 3] + "..."
