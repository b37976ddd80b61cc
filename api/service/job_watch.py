"""Looks whether the jobs that the queue needs run anywhere (SPEC RETRY-7).

Jobs are processes of their own and may be anybody's; they leave small files in the warehouse, which this reads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from deltamq.mq.errors import DeltaMQError
from deltamq.mq.jobs import NEEDED_JOBS, is_missing
from deltamq.tables.ops.job_runs import LastRun, newest_run, read_running, read_runs
from deltamq.tables.store.store import Store

log = logging.getLogger("deltamq.api")

_FOLDER: Final = "jobs"
#: Seconds for which a look is good enough for who asks.
_FRESH_S: Final = 2.0
#: Seconds between two looks without a question, and from the start to the first: jobs start later than services.
_LOOK_S: Final = 60.0
_MS: Final = 1_000


class JobReport(NamedTuple):
    """What is known of one job; `missing` says what does not happen because it runs nowhere, else it is empty."""

    job: str
    last: LastRun | None
    running_since: datetime | None
    missing: str


class JobWatch:
    """Reads the records of runs when somebody asks, and each minute; lives on the event loop."""

    def __init__(
        self,
        store: Store,
        *,
        run: Callable[[Callable[[], list[JobReport]]], Awaitable[list[JobReport]]],
        now_ms: Callable[[], int],
        is_used: Callable[[], bool],
    ) -> None:
        """`run` calls a function on a thread; `is_used` is whether anybody would miss a job."""
        self._store = store
        self._run = run
        self._now_ms = now_ms
        self._is_used = is_used
        self._loop = asyncio.get_running_loop()
        self._reports: list[JobReport] = []
        self._read_at = -_FRESH_S
        self._told: frozenset[str] = frozenset()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look."""
        self._task = self._loop.create_task(self._look_on())

    async def stop(self) -> None:
        """End the watch, if it was started."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def missing(self) -> Sequence[JobReport]:
        """The jobs that the queue needs and that ran nowhere, at the last look."""
        return [one for one in self._reports if one.missing]

    async def reports(self) -> list[JobReport]:
        """Return all jobs that have run in the warehouse or are needed, by name, as of two seconds ago at most.

        What cannot be read now is as at the last look.
        """
        if self._loop.time() - self._read_at >= _FRESH_S:
            self._read_at = self._loop.time()
            try:
                self._reports = await self._run(self._read)
            except DeltaMQError as error:
                log.warning("event=jobs_not_read code=%s detail=%r", error.code, error.detail)
        return self._reports

    def _read(self) -> list[JobReport]:
        names = sorted({*self._store.folders(_FOLDER), *NEEDED_JOBS})
        return [self._report(name) for name in names]

    def _report(self, job: str) -> JobReport:
        last, running = newest_run(read_runs(self._store, job)), read_running(self._store, job)
        since = max((one.started_at for one in running), default=None)
        is_gone = job in NEEDED_JOBS and is_missing(
            ok_ms=_ms(last.ok_at) if last is not None and last.ok_at is not None else None,
            running_ms=None if since is None else _ms(since),
            every_ms=0 if last is None else int(last.every_s * _MS),
            now_ms=self._now_ms(),
        )
        return JobReport(job, last, since, NEEDED_JOBS[job] if is_gone else "")

    async def _look_on(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            await self.reports()
            self._tell()

    def _tell(self) -> None:
        """Log what has changed since the last look."""
        missing = {one.job: one for one in self.missing} if self._is_used() else {}
        for name in sorted(missing.keys() - self._told):
            last = missing[name].last
            since = "never" if last is None or last.ok_at is None else last.ok_at.isoformat()
            does_not = missing[name].missing
            log.warning("event=job_missing job=%s last_ok=%s means=%r remedy='deltamq jobs run'", name, since, does_not)
        for name in sorted(self._told - missing.keys()):
            log.info("event=job_back job=%s", name)
        self._told = frozenset(missing)


def _ms(at: datetime) -> int:
    return int(at.timestamp() * _MS)
