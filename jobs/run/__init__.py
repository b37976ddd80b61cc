"""Running jobs: their registry, their schedules and locks, and the records of their runs."""

from __future__ import annotations

from deltamq.jobs.run.application import Holder
from deltamq.jobs.run.jvm_lock import forget_jvm, lock_jvm
from deltamq.jobs.run.last_run import utc_now
from deltamq.jobs.run.locks import known_shards, shard_lock
from deltamq.jobs.run.registry import WHOLE, Facts, Job, all_jobs, job, jobs_named, with_spark_engine
from deltamq.jobs.run.run_once import run_jobs
from deltamq.jobs.run.schedule import Scheduler
from deltamq.jobs.run.state import JobState, ShardState, behind_of, job_state, jobs_seen, shard_states

__all__ = [
    "WHOLE",
    "Facts",
    "Holder",
    "Job",
    "JobState",
    "Scheduler",
    "ShardState",
    "all_jobs",
    "behind_of",
    "forget_jvm",
    "job",
    "job_state",
    "jobs_named",
    "jobs_seen",
    "known_shards",
    "lock_jvm",
    "run_jobs",
    "shard_lock",
    "shard_states",
    "utc_now",
    "with_spark_engine",
]
