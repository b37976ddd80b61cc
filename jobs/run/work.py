"""One job in this application: its shards, their due times, and the run that is under way.

A long run has a small file, so that other processes see when it began. A kill leaves the file, which has no meaning
then, because its application no longer owns the shards in it.

    jobs/<job>/running/<application>.json
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

import msgspec

from deltamq.jobs.run.application import Holder
from deltamq.jobs.run.last_run import seconds_until_due
from deltamq.jobs.run.registry import Job
from deltamq.jobs.run.shards import JobShards
from deltamq.jobs.run.telling import Telling, error_text
from deltamq.mq.errors import DeltaMQError
from deltamq.tables.config import Config
from deltamq.tables.ops.job_runs import LastRun, RunningRun, newest_run, read_running, read_runs
from deltamq.tables.store.store import Store

#: Seconds after which a run is recorded for `deltamq jobs list`; recording every run would double its cost.
_NOTED_S: Final = 2.0
#: Interval at which a long run is printed, in seconds.
_TELL_RUNNING_S: Final = 60.0
#: By how much the interval grows while a job finds nothing on an object store, and up to how many seconds.
_SLOWER: Final = 1.5
_QUIET_S: Final = 2.0
_CANCEL_AGAIN_S: Final = 5.0


class Work:
    """The state of one job that the scheduler's threads share."""

    def __init__(
        self,
        job: Job,
        conf: Config,
        store: Store,
        me: Holder,
        *,
        every_s: float | None,
        tell: Callable[[str], None],
        now: Callable[[], datetime],
    ) -> None:
        self.job = job
        self.shards = JobShards(job, conf, store, me)
        self.telling = Telling(tell, job.name)
        #: Set when shards came or went, and at a stop. The main thread never waits for it: signal handlers set it.
        self.woken = threading.Event()
        #: Why the run under way must end; empty while it may go on.
        self.cancelled = ""
        self._conf = conf
        self._store = store
        self._me = me
        self._every_s = every_s
        #: The present interval, which is longer than the job's while it finds nothing on an object store.
        self._interval_s = 0.0
        self._now = now
        self._due_s: dict[str, float] = {}
        self._run: RunningRun | None = None
        self._began_s = 0.0
        self._told_s = 0.0
        self._noted = False
        self._cancelled_s = 0.0
        self._cancelling: threading.Thread | None = None
        #: Guards the record of a run, which must not be written after the run has ended.
        self._noting = threading.Lock()

    def period_s(self) -> float:
        """Return the job's interval in seconds."""
        return self.job.every_s(self._conf) if self._every_s is None else self._every_s

    def wait_s(self) -> float | None:
        """Return the seconds until a run is due; None without a shard."""
        # A shard that was just taken has no due time yet: `woken` is set when it has.
        first = min((self._due_s.get(shard, math.inf) for shard in self.shards.held), default=math.inf)
        return None if first == math.inf else max(0.0, first - time.monotonic())

    def look(self, taking_part: Sequence[str], missing: Callable[[Job, Config], str]) -> None:
        """Tend the shards, from the keeper's thread; leave them to others while something is `missing` here."""
        try:
            if why := missing(self.job, self._conf):
                self.telling.trouble(why)
                tended = self.shards.leave()
            else:
                tended = self.shards.tend(taking_part)
        except Exception as error:  # an error of a job about its shards stops no other job
            self.telling.trouble(f"its shards are not known: {error_text(error)}")
            return
        self.telling.took(tended.taken)
        self.telling.gave(tended.given)
        if tended.taken or tended.given:
            self.note_due(list(tended.taken))
            self.woken.set()

    def note_due(self, shards: Sequence[str]) -> None:
        """Set the due times of shards that were taken, counting from their last run in any application."""
        runs: Sequence[LastRun] = ()
        with contextlib.suppress(DeltaMQError, OSError):  # unknown: due now
            runs = read_runs(self._store, self.job.name)
        for shard in shards:
            waits_s = seconds_until_due(newest_run(runs, shard), self.period_s(), self._now())
            self._due_s[shard] = time.monotonic() + waits_s

    def began(self, shards: Sequence[str], at: datetime) -> None:
        """Mark the start of a run."""
        self.cancelled, self._noted = "", False
        self._began_s = self._told_s = time.monotonic()
        self._run = RunningRun(job=self.job.name, started_at=at, shards=shards, application=self._me.application)

    def ended(self, *, is_quiet: bool) -> None:
        """Mark the end of the run: its shards are due one interval after its start, and missed times are skipped.

        On an object store, where a look is paid for, the interval of a job that looks several times a second grows
        while its runs find nothing (`is_quiet`).
        """
        assert self._run is not None, "a run began"
        period_s = self.period_s()
        grown_s = min(self._interval_s * _SLOWER, _QUIET_S) if is_quiet and not self._store.cheap_look else 0.0
        self._interval_s = max(period_s, grown_s)
        due_s = max(self._began_s + self._interval_s, time.monotonic())
        self._due_s |= dict.fromkeys(self._run.shards, due_s)
        with self._noting:
            run, self._run = self._run, None
            if self._noted:
                with contextlib.suppress(DeltaMQError, OSError):
                    self._store.delete(_key(run))

    def running_s(self) -> float:
        """Return how many seconds the run under way has lasted; 0 without one."""
        return time.monotonic() - self._began_s if self._run is not None else 0.0

    def cancel(self, why: str, cancel: Callable[[str], None]) -> None:
        """Cancel the run under way, repeatedly: it may begin another query after the cancelled one.

        A thread cancels, since a driver that hangs may not answer.
        """
        if self._run is None or (self._cancelling is not None and self._cancelling.is_alive()):
            return
        if self.cancelled and time.monotonic() - self._cancelled_s < _CANCEL_AGAIN_S:
            return
        self.cancelled, self._cancelled_s = why, time.monotonic()
        self._cancelling = threading.Thread(target=cancel, args=(self.job.name,), name="mq-jobs-cancel", daemon=True)
        self._cancelling.start()

    def watch(self, progress: Callable[[str], str]) -> None:
        """Record and print a long run, from the keeper's thread."""
        run, seconds = self._run, time.monotonic() - self._began_s
        if run is None or seconds < _NOTED_S:
            return
        with self._noting:
            if not self._noted and self._run is run:
                self._noted = True
                with contextlib.suppress(DeltaMQError, OSError):
                    _note_running(self._store, run)
        if time.monotonic() - self._told_s >= _TELL_RUNNING_S:
            self._told_s = time.monotonic()
            self.telling.running(seconds, progress(self.job.name))


def _note_running(store: Store, run: RunningRun) -> None:
    """Record a run, and remove the records of killed runs of the same shards."""
    store.replace(_key(run), msgspec.json.encode(run))
    for left in read_running(store, run.job):
        if left.application != run.application and set(left.shards) <= set(run.shards):
            store.delete(_key(left))


def _key(run: RunningRun) -> str:
    return f"jobs/{run.job}/running/{run.application}.json"
