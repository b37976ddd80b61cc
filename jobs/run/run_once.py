"""Running jobs from a notebook or a shell, in the session that is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.run.driver_lock import DriverBusy, driver_lock
from jobs.run.last_run import utc_now
from jobs.run.registry import Facts, jobs_named
from jobs.run.storage import storage
from tables.config import Config

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["run_jobs"]


def run_jobs(spark: SparkSession, conf: Config, *names: str) -> dict[str, Facts]:
    """Run the named jobs once, in this order; returns the facts of each.

    A job that a driver (`deltamq jobs run`) has is left to that one, and is not in the result.
    """
    store = storage(conf.warehouse.uri)
    facts: dict[str, Facts] = {}
    for job in jobs_named(names):
        try:
            with driver_lock(store, job.name):
                facts[job.name] = job.run(spark if job.needs_spark(conf) else None, conf, utc_now())
        except DriverBusy:
            continue
    return facts
