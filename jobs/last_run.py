"""When a job last ran in a warehouse and how it ended: one small file for each job, replaced whole.

It is what `deltamq jobs list` shows and what the next start of the scheduler goes on from, so both work without Spark.
"""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from tables.store import FileMissing, Store

__all__ = ["LastRun", "read_last_run", "write_last_run"]


class LastRun(msgspec.Struct, frozen=True, kw_only=True):
    """A finished run. `ok_at` is the start of the newest run that succeeded."""

    job: str
    started_at: datetime
    seconds: float
    ok: bool
    detail: str
    facts: dict[str, int | str] = {}
    ok_at: datetime | None = None


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


def seconds_behind(run: LastRun | None, every_s: float, now: datetime) -> float:
    """Return how long the job is overdue, 0 when it is not yet due; a job that never ran is due now."""
    if run is None:
        return 0.0
    return max(0.0, (now - run.started_at).total_seconds() - every_s)


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
