"""Runs jobs once from a notebook or a shell, in the existing session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltamq.jobs.run.application import Holder
from deltamq.jobs.run.last_run import utc_now
from deltamq.jobs.run.registry import Facts, Job, jobs_named
from deltamq.jobs.run.shards import JobShards
from deltamq.jobs.tasks.warehouse_files import storage
from deltamq.tables.config import Config
from deltamq.tables.store.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


#: The fact that names the shards that other applications hold.
HELD_BY_OTHERS = "held_by_others"


def run_jobs(spark: SparkSession, conf: Config, *names: str) -> dict[str, Facts]:
    """Run the named jobs once, in this order; return the facts of each.

    A job works on the free shards. Shards that an application (`deltamq jobs run`) holds stay with it: the fact
    `held_by_others` names them and their holders. If no shard of a job was free, this is its only fact.
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
            session = spark if job.needs_spark(conf) else None
            facts.update(job.run(session, conf, utc_now(), [lock.shard for lock in locks]))
            for lock in locks:
                lock.check()
    finally:
        shards.end_run()
        shards.release()
    if refused:
        facts[HELD_BY_OTHERS] = "; ".join(dict.fromkeys(refused.values()))
    return facts
