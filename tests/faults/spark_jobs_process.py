"""An application of four jobs on one Spark, of which a test kills the JVM.

    python -m tests.faults.spark_jobs_process <warehouse>

| job       |                                                                             |
|-----------|-----------------------------------------------------------------------------|
| `plain`   | needs no Spark                                                              |
| `short`   | a query of a moment; its facts say in which pool and which JVM it ran       |
| `endless` | a query that takes all cores and never ends: its run is cancelled           |
| `big`     | sends more to the driver than it may                                        |
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from deltamq.jobs.run.application import Holder
from deltamq.jobs.run.registry import Facts, Job
from deltamq.jobs.run.schedule import Scheduler
from deltamq.jobs.spark.runner import SparkRunner
from deltamq.jobs.tasks.warehouse_files import storage
from deltamq.tables.config import Config, load

ROWS = 1_000
RUN_S_MAX = 8


def plain(spark: Any, conf: Config, now: datetime, shards: Sequence[str] | None = None) -> Facts:
    assert spark is None
    return {"rows": 1}


def short(spark: Any, conf: Config, now: datetime, shards: Sequence[str] | None = None) -> Facts:
    context = spark.sparkContext
    rows = spark.range(ROWS).count()
    mode = context._jsc.sc().getSchedulingMode().toString()
    pool = context.getLocalProperty("spark.scheduler.pool")
    options = context._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()
    ends = "-XX:+ExitOnOutOfMemoryError" in list(options)
    return {
        "rows": rows,
        "pool": pool,
        "mode": mode,
        "jvm": context._gateway.proc.pid,
        "ends_without_memory": int(ends),
    }


def endless(spark: Any, conf: Config, now: datetime, shards: Sequence[str] | None = None) -> Facts:
    tasks = 10_000  # short tasks, as every job should have
    rows = spark.range(0, 10**12, 1, tasks).selectExpr("id % 7 AS one").where("one = 8").count()
    return {"rows": rows}


def big(spark: Any, conf: Config, now: datetime, shards: Sequence[str] | None = None) -> Facts:
    return {"rows": len(spark.range(400_000).selectExpr("id", "uuid() AS text").toArrow())}


def _job(run: Any, every_s: float) -> Job:
    name = run.__name__
    return Job(
        name=name,
        run=run,
        every_s=lambda conf: every_s,
        document=f"Do {name}.",
        needs_spark=lambda conf: name != "plain",
    )


def main() -> None:
    conf = load(
        overrides={
            "warehouse.uri": sys.argv[1],
            "jobs.master": "local[2]",
            "jobs.run_s_max": RUN_S_MAX,
            "jobs.result_size_max": "8m",
        }
    )
    store = storage(conf.warehouse.uri)
    Path(sys.argv[1]).mkdir(exist_ok=True)
    me = Holder.this()
    runner = SparkRunner(conf, me=me)
    jobs = [_job(plain, 0.1), _job(short, 0.1), _job(endless, 0.1), _job(big, 0.5)]
    scheduler = Scheduler(jobs, conf, store, runner=runner, tell=lambda line: print(line, flush=True), me=me)
    signal.signal(signal.SIGTERM, lambda *_: scheduler.stop())
    scheduler.run_until_stopped()
    assert not scheduler.unfinished
    runner.close()
    print(f"ended with {threading.active_count()} threads", flush=True)


if __name__ == "__main__":
    main()
