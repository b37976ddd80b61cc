"""What the driver of `revive` has in memory after some runs by the Spark engine, in a process that does nothing else.

python -m tests.bench.jobs.driver_memory WAREHOUSE RUNS      MiB of Python and of the JVM's live heap, as JSON
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from deltamq.jobs.queue.revive_task import TaskReviver
from deltamq.jobs.spark.session import spark_session
from deltamq.jobs.tasks.items import runner_of
from deltamq.jobs.tasks.warehouses import warehouse_of
from deltamq.tables.config import load

_MIB: Final = 1 << 20


def main(warehouse: str, runs: int) -> None:
    """Run the job at intervals of a second of its own time, and look at what stays."""
    conf = load(overrides={"warehouse.uri": warehouse})
    spark = spark_session("driver-memory", warehouse=warehouse)
    job, now = TaskReviver(warehouse_of(conf), conf), datetime.now(UTC)
    for number in range(runs):
        at = now + timedelta(seconds=number)
        job.run(runner_of(spark), int(at.timestamp() * 1_000))
    assert spark._jvm is not None, "a session with a JVM of its own"
    runtime = spark._jvm.java.lang.Runtime.getRuntime()
    for _ in range(3):
        runtime.gc()
    heap = (runtime.totalMemory() - runtime.freeMemory()) / _MIB
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    spark.stop()
    print(json.dumps({"python_mib": pages * 4096 / _MIB, "heap_mib": heap}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
