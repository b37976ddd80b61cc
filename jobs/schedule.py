"""Runs jobs: each when it is due, one at a time in this process, until told to stop.

A run that fails is told, recorded and tried again when it is next due; it never stops the others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final, Protocol

from jobs.driver_lock import DriverBusy, driver_lock
from jobs.last_run import LastRun, read_last_run, seconds_until_due, utc_now, write_last_run
from jobs.registry import Facts, Job
from tables.config import Config
from tables.store import Store

__all__ = ["Scheduler"]

#: A job that another driver is running is looked at again after so long.
_BUSY_RETRY_S: Final = 5.0
_DETAIL_LENGTH_MAX: Final = 1_000


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

    def stop(self) -> None:
        """End after the job that is running, if any; safe in a signal handler."""
        self._stopping.set()

    def run_once(self) -> bool:
        """Run every job now; True if all succeeded. A job that another driver runs right now counts as failed."""
        succeeded = [self._run(job) for job in self._jobs if not self._stopping.is_set()]
        return all(succeeded)

    def run_until_stopped(self) -> None:
        """Run each job whenever it is due, going on from when it last ran."""
        due = {job.name: self._first_due(job) for job in self._jobs}
        while not self._stopping.is_set():
            job = min(self._jobs, key=lambda j: due[j.name])
            if self._stopping.wait(max(0.0, due[job.name] - time.monotonic())):
                return
            began = time.monotonic()
            busy = False
            try:
                self._run(job, raise_busy=True)
            except DriverBusy:
                busy = True
            due[job.name] = time.monotonic() + _BUSY_RETRY_S if busy else began + self._period_s(job)

    def _period_s(self, job: Job) -> float:
        return job.every_s(self._conf) if self._every_s is None else self._every_s

    def _first_due(self, job: Job) -> float:
        last = read_last_run(self._store, job.name)
        return time.monotonic() + seconds_until_due(last, self._period_s(job), self._now())

    def _run(self, job: Job, *, raise_busy: bool = False) -> bool:
        now, began = self._now(), time.monotonic()
        ok, detail, facts = False, "", {}
        try:
            with driver_lock(self._store, job.name) as lock:
                try:
                    facts = dict(self._runner(job, self._conf, now))
                    lock.check()
                    ok = True
                except Exception as error:  # whatever a job raises ends this run of it, not the others
                    detail = _told(error)
                seconds = round(time.monotonic() - began, 3)
                self._record(job, now, seconds, ok=ok, detail=detail, facts=facts)
        except DriverBusy as error:
            if raise_busy:
                raise
            detail, seconds = error.detail, 0.0
        shown = " ".join(f"{key}={value}" for key, value in facts.items())
        self._tell(f"job={job.name} {'ok' if ok else 'FAILED'} seconds={seconds} {shown or detail}".rstrip())
        return ok

    def _record(
        self, job: Job, now: datetime, seconds: float, *, ok: bool, detail: str, facts: dict[str, int | str]
    ) -> None:
        before = read_last_run(self._store, job.name)
        ok_at = now if ok else (before.ok_at if before else None)
        run = LastRun(job=job.name, started_at=now, seconds=seconds, ok=ok, detail=detail, facts=facts, ok_at=ok_at)
        write_last_run(self._store, run)


def _told(error: Exception) -> str:
    text = f"{type(error).__name__}: {error}".replace("\n", " ")
    return text if len(text) <= _DETAIL_LENGTH_MAX else text[: _DETAIL_LENGTH_MAX - 3] + "..."
