"""The sink in Spark when its Python workers are killed, and when tasks are speculated: each row once (SPARK-3)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

_DRIVER = """
import sys, time
from deltamq.jobs.sql import spark_session
from deltamq.jobs.sink.open_sink import OpenSink, SinkSettings
from deltamq.tables.config import load
from deltamq.tables.log.warehouse import Warehouse

folder, kills = sys.argv[1], sys.argv[2]
uri = folder + "/warehouse"
Warehouse.open(uri).close()
OpenSink(SinkSettings.of(load(overrides={"warehouse.uri": uri}), uri)).topic("orders")
spark = spark_session(
    "killed",
    warehouse=uri,
    **{
        "spark.master": "local[2,4]",
        "spark.task.maxFailures": "4",
        "spark.speculation": "true",
        "spark.speculation.multiplier": "1.0",
        "spark.speculation.quantile": "0.1",
        "spark.speculation.interval": "50ms",
    },
)
if kills:
    spark.conf.set("spark.sql.execution.pyspark.udf.faulthandler.enabled", "false")
rows = spark.range(0, 3000, 1, 4).selectExpr("concat('k', id % 20) AS key", "CAST(id AS STRING) AS value", "id")


def deadly(batches):
    # each task's worker is killed once, behind its first rows: what it has staged is nobody's
    import os, signal
    for batch in batches:
        yield batch
        mark = f"{folder}/killed-{batch.column(2)[0].as_py() // 750}"
        if kills and not os.path.exists(mark):
            open(mark, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)


wide = rows.mapInArrow(deadly, rows.schema).drop("id")
for batch in range(2):
    write = wide.write.format("mq").mode("append").option("topic", "orders")
    write.option("producerId", "nightly").option("batchId", str(batch)).save()
stored = spark.read.format("mq").option("topic", "orders").load().selectExpr("CAST(CAST(body AS STRING) AS INT) AS n")
found = sorted(row.n for row in stored.collect())
assert found == sorted([*range(3000), *range(3000)]), len(found)
print("STORED", len(found))
spark.stop()
"""


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kills", ["", "kills"])
def test_spark_03_killed_workers_and_speculated_tasks_store_each_row_once(tmp_path: Path, kills: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", _DRIVER, str(tmp_path), kills],
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
    )
    assert "STORED 6000" in run.stdout, run.stderr[-3000:]
    assert run.returncode != -signal.SIGKILL
    if kills:
        assert len(list(tmp_path.glob("killed-*"))) == 4
