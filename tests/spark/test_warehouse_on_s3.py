"""A warehouse on S3: Spark reads message tables there and writes state tables (SPEC SPARK-6).

It needs the jars of `make setup S3=1` and a server, and is skipped without them; `make faults` runs it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deltamq.jobs.setup.jars import PROJECT_FOLDER, S3A, jars_folder, wrong_jars
from deltamq.tables.state.schema import POP_CHECKPOINTS
from deltamq.tables.state.table import read_state_log
from deltamq.tables.store.store import Store
from tests.queue_tables import QueueTables
from tests.s3_server import S3Server, ServerUnavailable, s3_server
from tests.spark.cluster import cluster

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(3_000)]

_READ = """
import json, sys
from deltamq.jobs.sql import read_topic, register_views, spark_session
from deltamq.tables.config import load

conf = load(overrides={"warehouse.uri": sys.argv[1]})
spark = spark_session("s3", conf=conf)
mq = spark.read.format("mq").option("topic", "orders")
register_views(spark, conf)
found = {
    "rows": sorted(bytes(row.body).decode() for row in mq.load().collect()),
    "topic": read_topic(spark, "orders").where("key = 'key-b'").count(),
    "in flight": [row.offset for row in spark.table("mq_in_flight").orderBy("offset").collect()],
    "ends": [r.end_offset for r in spark.sql("SELECT end_offset FROM mq_partitions WHERE space = 'topics'").collect()],
}
print(json.dumps(found))
"""

#: Erases a key whose message an export has in a table on the same store; says what the table has, and what is left.
_ERASE = """
import json, sys, time
from datetime import UTC, datetime
from deltamq.jobs.export.export import export_topic
from deltamq.jobs.sql import spark_session
from deltamq.jobs.tasks.warehouses import warehouse_of
from deltamq.jobs.upkeep.erase import erase
from deltamq.tables.config import load
from deltamq.tables.ops.erasures import ask, read_erasure, replace_open
from msgspec.structs import replace

uri, to = sys.argv[1:]
conf = load(overrides={"warehouse.uri": uri, "log.file_keep_ms": 1, "log.log_keep_ms": 1_000})
spark, now = spark_session("s3", conf=conf), datetime.now(UTC)
export_topic(spark, "orders", to, schema="v STRING", warehouse=uri)
kept = "'delta.deletedFileRetentionDuration' = 'interval 0 hours', 'delta.checkpointInterval' = '5'"
for table in (to, f"{to}_quarantine"):
    spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ({kept})")
warehouse = warehouse_of(conf)
asked = ask(warehouse.store, "orders", ["key-b"], time.time_ns() // 1_000)
erase(spark, conf, now)
erased = read_erasure(warehouse.store, asked.id)
replace_open(warehouse.store, replace(erased, erased_boot_ms=warehouse.clock.boot_ms() - 2 * 86_400_000))
while erase(spark, conf, now)["open"]:
    pass
rows = spark.read.format("delta").load(f"{to}_quarantine").collect()
exports = [[export.rows, export.failure] for export in read_erasure(warehouse.store, asked.id).exports.values()]
print(json.dumps({"rows": sorted(bytes(row.body).decode() for row in rows), "exports": exports}))
"""


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    if wrong_jars(jars_folder(), S3A):
        pytest.skip("the jars for S3 are not there: make setup S3=1")
    try:
        with s3_server(tmp_path_factory.mktemp("s3")) as server:
            yield server
    except ServerUnavailable as error:
        pytest.skip(str(error))


def _run(s3: S3Server, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, **s3.environment(), **environment}
    return subprocess.run(
        command, env=environ, cwd=PROJECT_FOLDER, capture_output=True, text=True, timeout=1_200, check=False
    )


def _fill(s3: S3Server, prefix: str) -> tuple[str, Store]:
    store = s3.store(prefix)
    made = QueueTables(s3.uri(prefix), store)
    topic, group = made.topic("orders"), made.group("billing")
    made.send(topic, "a", "b", "c")
    made.pop(group, topic, [0, 1])
    made.close()
    return s3.uri(prefix), store


def _check(s3: S3Server, uri: str, store: Store, **environment: str) -> None:
    """Merge twice, verify, and read everything: the second merge finds its own commit and adds nothing."""
    command = (str(Path(sys.executable).with_name("deltamq")), "jobs", "run", "--once", "--warehouse", uri)
    ran = _run(s3, *command, "merge", "verify", **environment)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert all(f"job={name} ok" in ran.stdout for name in ("merge", "verify"))
    # Whatever Spark's own processes write, each line is JSON (SPEC LOOK-13).
    again = _run(s3, *command, "merge", DELTAMQ_JOBS_LOG_FORMAT="json", **environment)
    assert (again.returncode, again.stdout) == (0, ""), again.stderr
    assert [line["job"] for line in map(json.loads, again.stderr.splitlines()) if line["event"] == "job_ok"] == [
        "merge"
    ]
    state = read_state_log(store, POP_CHECKPOINTS)
    assert state is not None
    assert state.files, "Spark committed it, and our own reader reads it"
    read = _run(s3, sys.executable, "-c", _READ, uri, **environment)
    assert read.returncode == 0, read.stderr
    assert json.loads(read.stdout) == {"rows": ["a", "b", "c"], "topic": 1, "in flight": [0, 1], "ends": [3]}


@pytest.mark.promise("PIPE-20")
def test_spark_06_jobs_and_sql_on_a_warehouse_on_s3(s3: S3Server) -> None:
    uri, store = _fill(s3, "local")
    _check(s3, uri, store)


def test_spark_03_a_topic_streams_into_another_on_s3(s3: S3Server) -> None:
    uri, store = _fill(s3, "streams")
    made = QueueTables(uri, store)
    for name in ("copies", "numbers"):
        made.topic(name, 2)
    made.close()
    ran = _run(s3, sys.executable, "-m", "tests.spark.stream_application", uri, s3.uri("checkpoints/copies"))
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == {"copies": ["a", "b", "c"], "numbers": sorted(map(str, range(30)))}


def test_erase_6_an_export_on_s3_loses_the_rows_of_erased_messages_and_its_old_files(s3: S3Server) -> None:
    uri, _ = _fill(s3, "erased")
    to = s3.uri("exports/silver").replace("s3://", "s3a://")
    ran = _run(s3, sys.executable, "-X", "faulthandler", "-c", _ERASE, uri, to)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout.splitlines()[-1]) == {"rows": ["a", "c"], "exports": [[1, ""]]}
    left = s3.store("exports")
    data = [left.read(f"silver_quarantine/{name}") for name in left.names("silver_quarantine") if "parquet" in name]
    assert data and not any(b"key-b" in file for file in data)


@pytest.mark.promise("PIPE-20")
def test_spark_06_a_cluster_and_a_warehouse_on_s3(s3: S3Server, tmp_path: Path) -> None:
    uri, store = _fill(s3, "cluster")
    with cluster(tmp_path / "cluster") as running:
        environment = {**running.environment, "DELTAMQ_PROFILE": "cluster", "DELTAMQ_JOBS_MASTER": running.master}
        _check(s3, uri, store, **environment)
