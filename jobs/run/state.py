"""The state of a warehouse's jobs: shards, owners, last runs, lag. Read from small files, without Spark.

The owner is the current holder of a shard's lock, so a killed process owns none (with a lease: from its expiry on).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from deltamq.jobs.run.application import Holder
from deltamq.jobs.run.locks import holder_of, known_shards
from deltamq.jobs.run.registry import Job
from deltamq.tables.config import Config
from deltamq.tables.ops.job_runs import LastRun, RunningRun, newest_run, read_running, read_runs, seconds_behind
from deltamq.tables.store.store import Store

_BEHIND: Final = "behind_"


class ShardState(msgspec.Struct, frozen=True, kw_only=True):
    """One shard of a job."""

    shard: str
    owner: Holder | None
    #: The newest run that included the shard, and the run that is under way.
    last: LastRun | None
    running: RunningRun | None


class JobState(msgspec.Struct, frozen=True, kw_only=True):
    """One job."""

    job: Job
    engine: str
    every_s: float
    last: LastRun | None
    #: Seconds that the job is overdue.
    behind_s: float
    shards: Sequence[ShardState]


def job_state(job: Job, conf: Config, store: Store, now: datetime) -> JobState:
    """Return the state of a job."""
    every_s = job.every_s(conf)
    last = newest_run(read_runs(store, job.name))
    shards = shard_states(store, job.name, _shards(job, conf, store))
    ran: list[LastRun | None] = [shard.last for shard in shards if shard.last is not None]
    return JobState(
        job=job,
        engine=last.engine if last is not None and last.engine else job.engine(conf),
        every_s=every_s,
        last=last,
        behind_s=max(seconds_behind(run, every_s, now) for run in ran or [last]),
        shards=shards,
    )


def shard_states(store: Store, job: str, shards: Sequence[str]) -> list[ShardState]:
    """Return the state of some shards of a job."""
    runs, running = read_runs(store, job), read_running(store, job)
    states = []
    for shard in shards:
        owner = holder_of(store, job, shard)
        under_way = [
            run for run in running if owner is not None and run.application == owner.application and shard in run.shards
        ]
        last = newest_run(runs, shard)
        states.append(ShardState(shard=shard, owner=owner, last=last, running=under_way[0] if under_way else None))
    return states


def jobs_seen(store: Store) -> list[str]:
    """Return the names of the jobs that have run in the warehouse, or hold a shard."""
    return [name for name in store.folders("jobs") if store.names(f"jobs/{name}/runs") or known_shards(store, name)]


def behind_of(last: LastRun | None) -> Mapping[str, int]:
    """Return the facts of a run that say how far behind its job is: `behind_ms`, `behind_records`."""
    facts = last.facts if last is not None else {}
    return {name: value for name, value in facts.items() if name.startswith(_BEHIND) and isinstance(value, int)}


def _shards(job: Job, conf: Config, store: Store) -> list[str]:
    known = known_shards(store, job.name)
    try:
        named = list(job.shards(conf))
    except Exception:  # a job may raise anything for a warehouse that it cannot read
        named = known
    return sorted({*named, *(shard for shard in known if shard not in named and holder_of(store, job.name, shard))})
