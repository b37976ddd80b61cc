"""Spark Connect: clients without a JVM, on a server whose Python does not have the project (SPEC SPARK-6)."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deltamq.jobs.setup.jars import PROJECT_FOLDER
from tests.queue_tables import QueueTables
from tests.spark.connect_server import ConnectServer, connect_server

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1_500)]

_READ = """
import json, sys
from deltamq.jobs.sql import read_topic, register_views, spark_session
from deltamq.jobs.spark.session import another_session
from deltamq.tables.config import load

conf = load(overrides={"warehouse.uri": sys.argv[1]})
spark = spark_session("client", conf=conf)
mq = spark.read.format("mq").option("topic", "orders")
found = {"session": type(spark).__module__}
found["rows"] = sorted(bytes(row.body).decode() for row in mq.load().collect())
found["pushed"] = mq.load().where("offset < 2").count()
found["narrow"] = mq.schema("offset BIGINT").load().count()
found["topic"] = read_topic(spark, "orders").where("key = 'key-b'").count()
register_views(spark, conf)
found["ends"] = [row.end_offset for row in spark.sql(
    "SELECT end_offset FROM mq_partitions WHERE space = 'topics' ORDER BY partition").collect()]
other = another_session(spark, sys.argv[1])
other.conf.set("spark.sql.shuffle.partitions", "7")
found["apart"] = spark.conf.get("spark.sql.shuffle.partitions") != "7"
if len(sys.argv) > 2:
    found["in flight"] = [row.offset for row in spark.table("mq_in_flight").orderBy("offset").collect()]
found["other"] = other.read.format("mq").option("topic", "orders").load().count()
print(json.dumps(found))
"""


# Counts of a view by different conditions, within one statement, and after more messages (SPEC SPARK-13).
_FRESH = """
import contextlib, json, sys
from deltamq.jobs.sql import spark_session
from deltamq.tables.config import load
from tests.queue_tables import QueueTables

spark = spark_session("client", conf=load(overrides={"warehouse.uri": sys.argv[1]}))
spark.read.format("mq").option("topic", "orders").load().createOrReplaceTempView("seen")
spark.sql(f"CREATE TEMPORARY VIEW used USING mq OPTIONS (topic 'orders', warehouse '{sys.argv[1]}')")
found = {}
for view in ("seen", "used"):
    every, first = f"SELECT count(*) FROM {view}", f"SELECT count(*) FROM {view} WHERE offset = 0"
    queries = (every, first, every, f"SELECT ({first}), ({every})", f"{first} UNION ALL {every}")
    found[view] = [[list(row) for row in spark.sql(query).collect()] for query in queries]
    with contextlib.closing(QueueTables(sys.argv[1])) as tables:
        tables.send(tables.topic("orders"), "more")
    found[view].append([list(row) for row in spark.sql(every).collect()])
print(json.dumps(found))
"""


_STREAMS = """
import json, sys
from deltamq.jobs.sql import spark_session
from deltamq.tables.config import load

warehouse, folder = sys.argv[1:]
spark = spark_session("client", conf=load(overrides={"warehouse.uri": warehouse}))

def run(writer, name):
    writer = writer.option("checkpointLocation", f"{folder}/{name}").trigger(availableNow=True)
    query = writer.start() if name != "table" else writer.format("delta").start(f"{folder}/out")
    assert query.awaitTermination(300)
    return query.lastProgress

read = spark.readStream.format("mq").option("topic", "orders").option("startingOffsets", "earliest").load()
run(read.writeStream, "table")
found = {"table": spark.read.format("delta").load(f"{folder}/out").count()}
run(read.selectExpr("key", "body AS value").writeStream.format("mq").option("topic", "copies"), "sink")
run(read.selectExpr("key", "body AS value").writeStream.format("mq").option("topic", "copies"), "sink")
found["copies"] = spark.read.format("mq").option("topic", "copies").load().count()
rows = spark.read.format("mq").option("topic", "orders").load().selectExpr("key", "body AS value")
for _ in range(2):
    rows.write.format("mq").option("topic", "copies").option("idempotencyKey", "again").mode("append").save()
found["again"] = spark.read.format("mq").option("topic", "copies").load().count()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    with connect_server(tmp_path_factory.mktemp("connect")) as running:
        yield running


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    """Two messages that are given away and one that nobody has asked for."""
    made = QueueTables(tmp_path / "w")
    topic, group = made.topic("orders"), made.group("billing")
    made.send(topic, "a", "b", "c")
    made.pop(group, topic, [0, 1])
    made.close()
    return tmp_path / "w"


_FOUND = {
    "session": "pyspark.sql.connect.session",
    "rows": ["a", "b", "c"],
    "pushed": 2,
    "narrow": 3,
    "topic": 1,
    "ends": [3],
    "apart": True,
    "other": 3,
}


@pytest.mark.promise("PIPE-19")
@pytest.mark.long
def test_spark_06_topics_and_sql_over_connect(server: ConnectServer, warehouse: Path) -> None:
    read = server.python(_READ, str(warehouse))
    assert read.returncode == 0, read.stderr
    assert json.loads(read.stdout) == _FOUND


@pytest.mark.long
def test_spark_13_views_over_connect_see_what_is_stored_when_a_query_runs(
    server: ConnectServer, warehouse: Path
) -> None:
    ran = server.python(_FRESH, str(warehouse))
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == {
        "seen": [[[3]], [[1]], [[3]], [[1, 3]], [[1], [3]], [[4]]],
        "used": [[[4]], [[1]], [[4]], [[1, 4]], [[1], [4]], [[5]]],
    }


@pytest.mark.promise("PIPE-19")
@pytest.mark.long
def test_spark_06_jobs_over_connect(server: ConnectServer, warehouse: Path) -> None:
    command = str(Path(sys.executable).with_name("deltamq"))
    ran = server.run(command, "jobs", "run", "merge", "verify", "--once", "--warehouse", str(warehouse))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "job=merge ok" in ran.stdout
    assert "job=verify ok" in ran.stdout
    read = server.python(_READ, str(warehouse), "merged")
    assert read.returncode == 0, read.stderr
    assert json.loads(read.stdout) == {**_FOUND, "in flight": [0, 1]}


@pytest.mark.long
def test_spark_06_streams_over_connect_where_the_server_has_the_project(warehouse: Path, tmp_path: Path) -> None:
    made = QueueTables(warehouse)
    made.topic("copies")
    made.close()
    with connect_server(tmp_path / "server", with_project=True) as server:
        ran = server.python(_STREAMS, str(warehouse), str(tmp_path / "streams"))
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == {"table": 3, "copies": 3, "again": 6}


@pytest.mark.long
def test_spark_06_the_jobs_of_the_queue_over_connect(server: ConnectServer, warehouse: Path) -> None:
    command = (str(Path(sys.executable).with_name("deltamq")), "jobs", "run", "--once", "--engine", "spark")
    jobs = (
        "merge",
        "revive",
        "delay",
        "retain",
        "compact",
        "erase",
        "verify",
        "replay",
        "reset",
        "export",
        "latest",
        "catalog",
    )
    ran = server.run(*command, *jobs, "--warehouse", str(warehouse))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert [job for job in jobs if f"job={job} ok" not in ran.stdout] == []


@pytest.mark.promise("PIPE-21")
def test_spark_06_a_server_that_is_not_there_is_told_in_seconds(tmp_path: Path) -> None:
    gone = ConnectServer(1)
    ran = gone.python(_READ, str(tmp_path))
    assert "Spark Connect at sc://127.0.0.1:1 does not answer" in ran.stderr.splitlines()[-1]


def test_spark_06_the_servers_settings_are_in_the_repository() -> None:
    text = (PROJECT_FOLDER / "conf" / "spark-connect.properties").read_text(encoding="utf-8")
    assert "io.delta.sql.DeltaSparkSessionExtension" in text
