"""Runs jobs: each on a thread of its own, whenever it is due, until stopped.

No job waits for another, so a merge of two seconds does not delay a message that is due for redelivery. Each run holds
the locks of its shards. The applications of one warehouse share the shards, and one without shards stands by (SPEC
RELY-3). A run that fails is reported, recorded, and repeated when it is next due; it stops nothing else.

    keeper      look for other applications --> take and give shards --> watch the runs --> ... --> stop: all ended
    each job    wait until a shard is due --> run with the held ones --> record --> ... --> stop: end after its run
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from typing import Any, Final, Protocol

from deltamq.jobs.run.application import Application, Applications, Holder
from deltamq.jobs.run.last_run import Recorder, utc_now
from deltamq.jobs.run.locks import ShardLock
from deltamq.jobs.run.registry import Facts, Job
from deltamq.jobs.run.telling import error_text, job_line, shard_text
from deltamq.jobs.run.work import Work
from deltamq.mq.errors import DeltaMQError
from deltamq.tables.config import Config
from deltamq.tables.ops.job_runs import LastRun
from deltamq.tables.store.store import Store

#: Seconds between wake-ups of the main thread: Python runs signal handlers only then.
_LOOK_S: Final = 0.2
#: Seconds between looks at the runs of `run_once`.
_WATCH_S: Final = 1.0
#: Seconds that runs may go on after a stop before they are cancelled ...
STOP_S: Final = 15.0
#: ... and then have this many seconds to end.
CANCEL_S: Final = 10.0


class Runner(Protocol):
    """Carries out a job: Spark, or a test."""

    def __call__(self, job: Job, conf: Config, now: datetime, shards: Sequence[str]) -> Facts:
        """Run the job for the shards."""

    def missing(self, job: Job, conf: Config) -> str:
        """Return what the job needs by now and is not here; empty if it can run."""

    def cancel(self, job: str) -> None:
        """Make the job's run end soon, if that is possible from outside; blocks."""

    def progress(self, job: str) -> str:
        """Return the progress of the job's run, for people."""


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
        ran: Callable[[LastRun], None] = lambda _: None,
        every_s: float | None = None,
        now: Callable[[], datetime] = utc_now,
        wait: bool = True,
        me: Holder | None = None,
        stop_s: float = STOP_S,
    ) -> None:
        """Wait for shards of other applications if `wait`; otherwise a held shard is an error. `ran` gets each run."""
        self._conf = conf
        self._store = store
        self._runner = runner
        self._tell = tell
        self._ran = ran
        self._now = now
        self._wait = wait
        self._stop_s = stop_s
        self._me = me or Holder.this()
        self._works = [Work(job, conf, store, self._me, every_s=every_s, tell=tell, now=now) for job in jobs]
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._broken: Exception | None = None
        #: Jobs whose runs did not end when cancelled; their shards are released when the process ends.
        self.unfinished: list[str] = []

    def stop(self) -> None:
        """Stop after the runs that are under way, if any.

        Safe in a signal handler: the main thread, which handlers interrupt, never waits for these events itself.
        """
        self._stopping.set()
        for work in self._works:
            work.woken.set()

    def run_once(self) -> bool:
        """Run every job now, one after another; return True if all succeeded.

        A job works on the free shards; it counts as failed if another application holds some.
        """
        succeeded: list[bool] = []
        watching = self._thread("mq-jobs-watch", self._watch_until_ended, None)
        running = self._thread("mq-jobs-once", self._run_each, succeeded)
        for thread in (watching, running):
            thread.start()
        self._await_end([running])
        self.unfinished = [work.job.name for work in self._works if running.is_alive() and work.running_s()]
        if self._broken is not None:
            raise self._broken
        return not self.unfinished and all(succeeded)

    def run_until_stopped(self) -> None:
        """Run each job whenever it is due, counting from its last run.

        Raises
        ------
        DriverBusy
            Another application has a shard, and `wait` is false; nothing was started here.
        """
        with ExitStack() as leaving:
            for work in self._works:
                leaving.callback(work.shards.release)
            applications = Applications(self._store, Application(holder=self._me, jobs=self._engines()))
            leaving.callback(applications.withdraw)
            if not self._wait:
                for work in self._works:
                    work.shards.take_all()
                    work.note_due(work.shards.held)
            self._run_threads(applications)
        if self._broken is not None:
            raise self._broken

    def _engines(self) -> Mapping[str, str]:
        return {work.job.name: work.job.engine(self._conf) for work in self._works}

    def _run_threads(self, applications: Applications) -> None:
        threads = {work: self._thread(f"mq-job-{work.job.name}", self._run_job, work) for work in self._works}
        keeper = self._thread("mq-jobs-keeper", self._keep, applications)
        for thread in (keeper, *threads.values()):
            thread.start()
        self._await_end(list(threads.values()))
        keeper.join(CANCEL_S)
        self.unfinished = [work.job.name for work, thread in threads.items() if thread.is_alive()]

    def _await_end(self, threads: Sequence[threading.Thread]) -> None:
        """After a stop, give runs time to end, then cancel them."""
        _join(threads, until=self._stopping)
        _join(threads, for_s=self._stop_s)
        for work in self._works:
            work.cancel("the application is stopping", self._runner.cancel)
        _join(threads, for_s=CANCEL_S)
        self._ended.set()

    def _thread(self, name: str, run: Callable[[Any], None], given: object) -> threading.Thread:
        return threading.Thread(target=self._guarded, args=(run, given), name=name, daemon=True)

    def _guarded(self, run: Callable[[Any], None], given: object) -> None:
        """Errors of jobs end one run; any other error would go unseen, so it stops all jobs."""
        try:
            run(given)
        except Exception as error:  # the main thread raises it again
            self._broken = error
            self.stop()

    def _keep(self, applications: Applications) -> None:
        self._look(applications)
        self._tell_standby()
        while not self._ended.wait(applications.look_s(waiting=not all(work.shards.is_whole for work in self._works))):
            if not self._stopping.is_set():
                self._look(applications)
            self._watch()

    def _watch(self) -> None:
        limit_s = self._conf.jobs.run_s_max
        for work in self._works:
            work.watch(self._runner.progress)
            if work.running_s() > limit_s:
                work.cancel(f"it ran longer than jobs.run_s_max = {limit_s} s", self._runner.cancel)

    def _watch_until_ended(self, _: object) -> None:
        while not self._ended.wait(_WATCH_S):
            self._watch()

    def _run_each(self, succeeded: list[bool]) -> None:
        for work in self._works:
            if not self._stopping.is_set():
                succeeded.append(self._run_alone(work))

    def _look(self, applications: Applications) -> None:
        try:
            applications.look()
        except (DeltaMQError, OSError) as error:
            for work in self._works:
                work.telling.trouble(f"other applications are not known: {error_text(error)}")
            return
        for work in self._works:
            work.look(applications.taking_part(work.job.name), self._runner.missing)

    def _tell_standby(self) -> None:
        waiting = {work.job.name: work.shards.others for work in self._works if work.shards.others}
        if waiting:
            holders = dict.fromkeys(str(holder) for others in waiting.values() for holder in others.values())
            shards = " ".join(f"{job}[{shard_text(sorted(others))[7:]}]" for job, others in waiting.items())
            self._tell(f"stands by for {shards}, held by {', '.join(holders)}")

    def _run_job(self, work: Work) -> None:
        recorder = Recorder(self._store, work.job.name, self._me.application)
        while not self._stopping.is_set():
            if work.woken.wait(work.wait_s()):
                work.woken.clear()  # shards came or went, or the application stops: look again
                continue
            before = len(work.shards.held)
            locks = work.shards.begin_run()
            if len(locks) < before:
                work.telling.trouble("its lock is lost; asking for it again")
            if not locks:
                continue
            try:
                run = self._run(work, locks)
            finally:
                work.shards.end_run()
            self._ended_run(work, run)
            self._record(recorder, run)
        self._record(recorder, None)

    def _run_alone(self, work: Work) -> bool:
        refused = work.shards.take_free()
        for reason in dict.fromkeys(refused.values()):
            self._tell(job_line(work.job.name, ok=False, seconds=0.0, shown=reason))
        locks = work.shards.begin_run()
        if not locks:
            return not refused
        try:
            run = self._run(work, locks)
            recorder = Recorder(self._store, work.job.name, self._me.application)
            recorder.note(run)
            recorder.flush()
        finally:
            work.shards.end_run()
            work.shards.release()
        self._ended_run(work, run)
        return run.ok and not refused

    def _ended_run(self, work: Work, run: LastRun) -> None:
        work.telling.ran(run)
        self._ran(run)

    def _run(self, work: Work, locks: Sequence[ShardLock]) -> LastRun:
        now, began = self._now(), time.monotonic()
        shards = [lock.shard for lock in locks]
        ok, detail, facts, engine = False, "", {}, ""
        work.began(shards, now)
        try:
            _check(locks)
            engine = work.job.engine(self._conf)  # some jobs look into the warehouse for it
            facts = dict(self._runner(work.job, self._conf, now, shards))
            _check(locks)
            ok = True
        except Exception as error:  # an error of a job ends only this run
            detail = error_text(error)
        finally:
            work.ended(is_quiet=ok and not facts.get("rows"))
        if work.cancelled:
            detail = f"{work.cancelled}; {detail}".removesuffix("; ")
        return LastRun(
            job=work.job.name,
            started_at=now,
            seconds=round(time.monotonic() - began, 3),
            ok=ok,
            detail=detail,
            facts=facts,
            shards=shards,
            engine=engine,
            every_s=work.period_s(),
        )

    def _record(self, recorder: Recorder, run: LastRun | None) -> None:
        """None: write the last run. A job goes on even if its runs cannot be recorded."""
        try:
            if run is None:
                recorder.flush()
            else:
                recorder.note(run)
        except (DeltaMQError, OSError) as error:
            shown = f"its run is not recorded: {error_text(error)}"
            self._tell(job_line(recorder.job, ok=False, seconds=0.0, shown=shown))


def _check(locks: Sequence[ShardLock]) -> None:
    for lock in locks:
        lock.check()


def _join(threads: Sequence[threading.Thread], *, until: threading.Event | None = None, for_s: float = 0.0) -> None:
    """Wait until all have ended, the event is set, or the time is over; signal handlers run meanwhile."""
    deadline = time.monotonic() + for_s
    while any(thread.is_alive() for thread in threads):
        if until.is_set() if until is not None else time.monotonic() >= deadline:
            return
        alive = next((thread for thread in threads if thread.is_alive()), None)
        if alive is not None:
            alive.join(_LOOK_S)
