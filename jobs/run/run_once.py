"""Running jobs from a notebook or a shell, in the session that is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.run.application import Holder
from jobs.run.last_run import utc_now
from jobs.run.registry import Facts, Job, jobs_named
from jobs.run.shards import JobShards
from jobs.tasks import storage
from tables.config import Config
from tables.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["HELD_BY_OTHERS", "run_jobs"]

#: The fact that names the shards that were left to those who have them.
HELD_BY_OTHERS = "held_by_others"


def run_jobs(spark: SparkSession, conf: Config, *names: str) -> dict[str, Facts]:
    """Run the named jobs once, in this order; returns the facts of each.

    A job works on the shards that are free. Those that an application (`deltamq jobs run`) has are left to it: the fact
    `held_by_others` says which, and who has them. It is the only fact of a job of which no shard was free.
    """
    store = storage(conf.warehouse.uri)
    me = Holder.this()
    return {job.name: _run(spark, conf, store, job, me) for job in jobs_named(names)}


def _run(spark: SparkSession, conf: Config, store: Store, job: Job, me: Holder) -> Facts:
    shards = JobShards(job, conf, store, me)
    try:
        refused = shards.take_free()
        facts: dict[str, int | str] = {}
        locks = shards.begin_run()
        if locks:
            given = spark if job.needs_spark(conf) else None
            facts.update(job.run(given, conf, utc_now(), [lock.shard for lock in locks]))
            for lock in locks:
                lock.check()
    finally:
        shards.end_run()
        shards.release()
    if refused:
        facts[HELD_BY_OTHERS] = "; ".join(dict.fromkeys(refused.values()))
    return facts
