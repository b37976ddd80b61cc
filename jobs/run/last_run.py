"""The last run of each job in a warehouse: one small file for each application and job, replaced as a whole.

`deltamq jobs list` shows these files, and the scheduler continues from them at its start, so both work without Spark. A
job that runs four times a second does not write its file four times a second (see `Recorder`). Files of applications
that have ended are removed by the next application whose runs have covered the same shards.

    jobs/<job>/runs/<application>.json
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from typing import Final

import msgspec

from deltamq.tables.ops.job_runs import IDLE_RECORD_S, LastRun, newest_run, read_runs, runs_folder
from deltamq.tables.store.store import Store

#: Seconds between two records of runs that did something, or ended differently from the previous run.
_BUSY_RECORD_S: Final = 1.0


def read_last_run(store: Store, job: str) -> LastRun | None:
    """Return a job's last run; None if it never ran, or its record cannot be read."""
    return newest_run(read_runs(store, job))


def write_last_run(store: Store, run: LastRun) -> None:
    """Replace the record of the job's last run in its application."""
    store.replace(f"{runs_folder(run.job)}/{run.application}.json", msgspec.json.encode(run))


def _forget_covered(store: Store, run: LastRun) -> None:
    for earlier in read_runs(store, run.job):
        if earlier.application != run.application and set(earlier.shards) <= set(run.shards):
            store.delete(f"{runs_folder(run.job)}/{earlier.application}.json")


class Recorder:
    """Records the runs of one job in this process: at most once a second, and less often while the job is idle.

    A failure and the first success after it are written at once, because users look for these.
    """

    def __init__(
        self, store: Store, job: str, application: str = "any", *, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self.job = job
        self._store = store
        self._application = application
        self._monotonic_s = monotonic_s
        self._before = read_last_run(store, job)
        self._rows = 0
        self._since: datetime | None = None
        self._covered: Collection[str] = ()
        self._waiting: LastRun | None = None
        self._written: LastRun | None = None
        self._written_s = 0.0

    def note(self, run: LastRun) -> None:
        """Add a run, and write the record if it is time to."""
        self._since = self._since or run.started_at
        rows = run.facts.get("rows", 0)
        self._rows += rows if isinstance(rows, int) else 0
        self._before = self._waiting = msgspec.structs.replace(
            _after(self._before, run), rows=self._rows, since=self._since, application=self._application
        )
        if self._is_time(self._waiting):
            self.flush()

    def _is_time(self, run: LastRun) -> bool:
        before = self._written
        if before is None or before.ok != run.ok:
            return True
        changed = (before.detail, before.facts, before.rows, before.failures, before.shards) != (
            run.detail,
            run.facts,
            run.rows,
            run.failures,
            run.shards,
        )
        return self._monotonic_s() - self._written_s >= (_BUSY_RECORD_S if changed else IDLE_RECORD_S)

    def flush(self) -> None:
        """Write the newest run unless it is written already."""
        if self._waiting is not None and self._waiting is not self._written:
            write_last_run(self._store, self._waiting)
            self._written = self._waiting
            self._written_s = self._monotonic_s()
            if set(self._written.shards) - set(self._covered):
                _forget_covered(self._store, self._written)
            self._covered = self._written.shards


def _after(before: LastRun | None, run: LastRun) -> LastRun:
    ok_at = before.ok_at if before else None
    if run.ok:
        error, error_at = (before.last_error, before.last_error_at) if before else ("", None)
        return msgspec.structs.replace(run, ok_at=run.started_at, last_error=error, last_error_at=error_at)
    failures = (before.failures if before else 0) + 1
    return msgspec.structs.replace(
        run, ok_at=ok_at, failures=failures, last_error=run.detail, last_error_at=run.started_at
    )


def seconds_until_due(run: LastRun | None, every_s: float, now: datetime) -> float:
    """Return the seconds until the job is due, 0 if it is due now."""
    if run is None:
        return 0.0
    # a clock that was set back must not keep a job from running
    return min(every_s, max(0.0, every_s - (now - run.started_at).total_seconds()))


def utc_now() -> datetime:
    """Return the current time, as jobs get it."""
    # Not `datetime.now`: tests give a process another time by replacing `time.time`.
    return datetime.fromtimestamp(time.time(), UTC)
