"""When a job last ran in a warehouse and how it ended: one small file for each job, replaced whole.

It is what `deltamq jobs list` shows and what the next start of the scheduler goes on from, so both work without Spark.
A job that runs four times a second does not write it four times a second (see `Recorder`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import msgspec

from tables.store import FileMissing, Store

__all__ = [
    "IDLE_RECORD_S",
    "LastRun",
    "Recorder",
    "read_last_run",
    "seconds_behind",
    "seconds_until_due",
    "utc_now",
    "write_last_run",
]

#: Runs that did something, or ended otherwise than those before, are written at most this often ...
_BUSY_RECORD_S: Final = 1.0
#: ... and those that found nothing to do this often: four jobs without work sync one file a second between them.
IDLE_RECORD_S: Final = 4.0


class LastRun(msgspec.Struct, frozen=True, kw_only=True):
    """A finished run. `ok_at` is the start of the newest run that succeeded.

    `rows` adds up what the runs since `since` told of in their facts as `rows`: of the many runs of a second only
    one is written.
    """

    job: str
    started_at: datetime
    seconds: float
    ok: bool
    detail: str
    facts: dict[str, int | str] = {}
    ok_at: datetime | None = None
    rows: int = 0
    since: datetime | None = None


_decode = msgspec.json.Decoder(LastRun)


def read_last_run(store: Store, job: str) -> LastRun | None:
    """Return a job's last run; None when it never ran, or what is there cannot be read."""
    try:
        return _decode.decode(bytes(store.read(_key(job))))
    except (FileMissing, msgspec.DecodeError):
        return None


def write_last_run(store: Store, run: LastRun) -> None:
    """Replace what is known of the job's last run."""
    store.replace(_key(run.job), msgspec.json.encode(run))


class Recorder:
    """The runs of one job in this process: what happened is written at most once a second, idling more seldom.

    A failure and the first success after it are written at once: that is what people look for.
    """

    def __init__(self, store: Store, job: str, *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self.job = job
        self._store = store
        self._monotonic_s = monotonic_s
        before = read_last_run(store, job)
        self._ok_at = before.ok_at if before else None
        self._rows = 0
        self._since: datetime | None = None
        self._waiting: LastRun | None = None
        self._written: LastRun | None = None
        self._written_s = 0.0

    def note(self, run: LastRun) -> None:
        """Take note of a run, and write it when it is time to."""
        self._since = self._since or run.started_at
        self._ok_at = run.started_at if run.ok else self._ok_at
        rows = run.facts.get("rows", 0)
        self._rows += rows if isinstance(rows, int) else 0
        self._waiting = msgspec.structs.replace(run, ok_at=self._ok_at, rows=self._rows, since=self._since)
        if self._is_time(self._waiting):
            self.flush()

    def _is_time(self, run: LastRun) -> bool:
        before = self._written
        if before is None or before.ok != run.ok:
            return True
        changed = (before.detail, before.facts, before.rows) != (run.detail, run.facts, run.rows)
        return self._monotonic_s() - self._written_s >= (_BUSY_RECORD_S if changed else IDLE_RECORD_S)

    def flush(self) -> None:
        """Write the newest run, if it is not written yet."""
        if self._waiting is not None and self._waiting is not self._written:
            write_last_run(self._store, self._waiting)
            self._written = self._waiting
            self._written_s = self._monotonic_s()


def seconds_behind(run: LastRun | None, every_s: float, now: datetime) -> float:
    """Return how long the job is overdue, 0 when it is not yet due; a job that never ran is due now.

    A job that is due more often than its runs are written is not behind because of that.
    """
    if run is None:
        return 0.0
    unwritten_s = IDLE_RECORD_S if every_s < IDLE_RECORD_S else 0.0
    return max(0.0, (now - run.started_at).total_seconds() - every_s - unwritten_s)


def seconds_until_due(run: LastRun | None, every_s: float, now: datetime) -> float:
    """Return how long it is until the job is due, 0 when it is."""
    if run is None:
        return 0.0
    # a clock that was set back must not keep a job from running
    return min(every_s, max(0.0, every_s - (now - run.started_at).total_seconds()))


def utc_now() -> datetime:
    """Return the time that jobs are given."""
    return datetime.now(UTC)


def _key(job: str) -> str:
    return f"jobs/{job}/last_run.json"
