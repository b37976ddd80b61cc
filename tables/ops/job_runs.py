"""What the jobs of a warehouse wrote of their runs, read without Spark: by commands, by SQL, and by the service.

jobs/<job>/runs/<application>.json       the last run that ended
jobs/<job>/running/<application>.json    a run under way; a kill leaves the file
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec

from deltamq.tables.store.store import FileMissing, Store

#: Seconds between two records of runs that found nothing to do: four idle jobs then sync one file a second together.
IDLE_RECORD_S: Final = 4.0


class LastRun(msgspec.Struct, frozen=True, kw_only=True):
    """A finished run. `ok_at` is the start of the newest run that succeeded.

    `rows` is the sum of the fact `rows` over the runs since `since`, since not every run is written. `failures` counts
    failures in a row; `last_error` stays after a later success.
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
    shards: Sequence[str] = ("all",)
    application: str = "any"
    engine: str = ""
    every_s: float = 0.0
    failures: int = 0
    last_error: str = ""
    last_error_at: datetime | None = None


class RunningRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run under way."""

    job: str
    started_at: datetime
    shards: Sequence[str]
    application: str


_runs: Final = msgspec.json.Decoder(LastRun)
_running: Final = msgspec.json.Decoder(RunningRun)


def read_runs(store: Store, job: str) -> list[LastRun]:
    """Return the last run of each application that ran the job, the newest first."""
    runs = []
    for name in store.names(runs_folder(job)):
        with contextlib.suppress(FileMissing, msgspec.DecodeError):
            runs.append(_runs.decode(bytes(store.read(f"{runs_folder(job)}/{name}"))))
    return sorted(runs, key=lambda run: run.started_at, reverse=True)


def newest_run(runs: Sequence[LastRun], shard: str | None = None) -> LastRun | None:
    """Return the newest of the runs, or of the runs that included a shard."""
    about = [run for run in runs if shard is None or shard in run.shards]
    if not about:
        return None
    oks = [run.ok_at for run in about if run.ok_at is not None]
    return msgspec.structs.replace(about[0], ok_at=max(oks, default=None))


def seconds_behind(run: LastRun | None, every_s: float, now: datetime) -> float:
    """Return how long the job is overdue in seconds, 0 if it is not yet due or has never run.

    Runs are written at intervals, so a job that is due more often is not overdue within that interval.
    """
    if run is None:
        return 0.0
    unwritten_s = IDLE_RECORD_S if every_s < IDLE_RECORD_S else 0.0
    return max(0.0, (now - run.started_at).total_seconds() - every_s - unwritten_s)


def read_running(store: Store, job: str) -> list[RunningRun]:
    """Return the recorded runs of a job, which have not ended or were killed."""
    running = []
    folder = f"jobs/{job}/running"
    for name in store.names(folder):
        with contextlib.suppress(FileMissing, msgspec.DecodeError):
            running.append(_running.decode(bytes(store.read(f"{folder}/{name}"))))
    return running


def runs_folder(job: str) -> str:
    """Return the folder of a job's last runs."""
    return f"jobs/{job}/runs"
