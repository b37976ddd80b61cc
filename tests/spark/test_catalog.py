"""Topics in a Spark catalog: what is there, what a run changes, and what queries cost (SPEC SPARK-11)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path

import pytest
from msgspec.structs import replace
from pyspark.sql import DataFrame, SparkSession

from deltamq.jobs.merge.merge import merge
from deltamq.jobs.spark.session import another_session
from deltamq.jobs.sql.catalog import catalog, register_tables
from deltamq.jobs.sql.views import register_views
from deltamq.jobs.tasks.warehouses import close_warehouses
from deltamq.mq.errors import Conflict, Refused
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.queue.dead_letters import Deleted, SentBack
from deltamq.mq.queue.progress import Committed, OffsetRecord
from deltamq.tables.log.batch import Batch
from deltamq.tables.ops.verification import Gravity, verify
from deltamq.tables.paths import Space
from deltamq.tables.queue.records import rows_of_dead_marks, rows_of_offset_records
from deltamq.tables.queue.refs import OFFSETS, dead_marks_ref, dead_ref, system_ref
from tests.queue_tables import BROKER, CLUSTER, QueueTables
from tests.unit.jobs.warehouses import rows

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.promise("PIPE-16")]

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[QueueTables]:
    made = QueueTables(tmp_path / "warehouse")
    yield made
    close_warehouses()
    made.close()


@pytest.fixture
def schema(spark: SparkSession, tmp_path: Path) -> Iterator[str]:
    """A schema that goes with the test."""
    name = f"mq_{tmp_path.name.replace('-', '_')}"[:60]
    spark.sql(f"CREATE SCHEMA {name} LOCATION '{tmp_path}/spark'")
    yield name
    spark.sql(f"DROP SCHEMA {name} CASCADE")


def names(spark: SparkSession, schema: str) -> set[str]:
    return {row.tableName for row in spark.sql(f"SHOW TABLES IN {schema}").collect() if not row.isTemporary}


def count(spark: SparkSession, name: str) -> int:
    return spark.table(name).count()


@pytest.mark.long
def test_spark_11_the_catalog_follows_topics_that_grow_go_and_come_again(
    spark: SparkSession, tables: QueueTables, schema: str
) -> None:
    orders, odd, gone = (tables.topic(name) for name in ("orders", "Odd_name.v2", "gone"))
    tables.send(orders, "a", "b")
    tables.send(odd, "c")
    tables.send(gone, "x")
    versions = {ref.folder: tables.warehouse.open_partition(ref).version for ref in tables.warehouse.refs(Space.TOPICS)}
    # With the catalog's name, the job works in memory, too.
    conf = replace(tables.conf, jobs=replace(tables.conf.jobs, catalog_schema=f"spark_catalog.{schema}"))
    assert register_tables(spark, conf.jobs.catalog_schema, tables.conf) == sorted(names(spark, schema))
    assert {f"topic_{one}" for one in ("orders", "_4fdd__name_2ev2")} <= names(spark, schema)
    found = spark.table(f"{schema}.topic_orders")
    assert found.columns[-2:] == ["topic", "partition"] and found.columns[0] == "offset"
    assert [(bytes(r.body), r.topic, r.offset) for r in found.orderBy("offset").collect()] == [
        (b"a", "orders", 0),
        (b"b", "orders", 1),
    ]
    # I3: making a table of a partition commits nothing to it.
    for ref in tables.warehouse.refs(Space.TOPICS):
        log = tables.warehouse.open_partition(ref)
        log.refresh()
        assert log.version == versions[ref.folder]
    assert [one for one in verify(tables.warehouse) if one.gravity is not Gravity.NOTE] == []

    # What arrives is seen without another run; a second run has nothing to do.
    tables.send(orders, "d")
    assert count(spark, f"{schema}.topic_orders") == 3
    assert catalog(spark, conf, NOW) == {"made": 0, "dropped": 0}

    # An expansion; a topic that is deleted; one that is deleted and made again under its name.
    orders = tables.topic("orders", 2)
    log = tables.warehouse.create(replace(tables.log(orders).ref, name=orders.route.partitions[1]))
    log.append([Batch(rows([b"e"]))])
    tables.delete_topic(gone)
    tables.delete_topic(odd)
    tables.send(tables.topic("Odd_name.v2"), "f", "g")
    assert catalog(spark, conf, NOW) == {"made": 4, "dropped": 3}
    assert count(spark, f"{schema}.topic_orders") == 4
    assert not [name for name in names(spark, schema) if "gone" in name]
    assert count(spark, f"{schema}.topic__4fdd__name_2ev2") == 2


def test_spark_11_without_settings_the_warehouse_is_the_sessions(
    spark: SparkSession, tables: QueueTables, schema: str
) -> None:
    tables.send(tables.topic(), "a")
    other = another_session(spark, tables.conf.warehouse.uri)
    assert "topic_orders" in register_tables(other, schema)
    register_views(other)
    assert other.table("mq_partitions").where("space = 'topics'").count() == 1


@pytest.mark.long
def test_spark_11_groups_dead_letters_and_lag_are_there_once_they_are_merged(
    spark: SparkSession, tables: QueueTables, schema: str
) -> None:
    topic, group = tables.topic(), tables.group()
    sent = tables.send(topic, "a", "b", "c")
    tables.pop(group, topic, sent, at_ms=int(NOW.timestamp() * 1000), invisible_ms=10_000)
    lane = LaneKey(topic.id, group.name, False, topic.route.partitions[0])
    record = OffsetRecord(lane=lane, topic=topic.name, committed=Committed(group.epoch, 1))
    tables.warehouse.create(system_ref(OFFSETS, CLUSTER, BROKER)).append([Batch(rows_of_offset_records([record]))])
    dead = tables.warehouse.create(dead_ref(group.name, group.epoch, BROKER))
    dead.append([Batch(rows([b"new", b"sent", b"sent twice", b"deleted"]))])
    marks = tables.warehouse.create(dead_marks_ref(group.name, group.epoch, BROKER))
    by_ada, by_bob = SentBack(((1, 4),), "retry", 5_000, "ada"), SentBack(((2, 3),), "origin", 9_000, "bob")
    marks.append([Batch(rows_of_dead_marks([by_ada, by_bob, Deleted(((3, 4),), 7_000)]))])
    merge(spark, tables.conf, datetime.now(UTC))
    register_tables(spark, schema, tables.conf)
    (lag,) = spark.sql(f"SELECT * FROM {schema}.lag WHERE NOT retry").collect()
    assert (lag["group"], lag.topic, lag.lag) == (group.name, topic.name, 2)
    assert spark.table(f"{schema}.in_flight").count() == 3
    letters = spark.sql(f"SELECT *, unix_millis(sent_back_time) AS ms FROM {schema}.dead_letters ORDER BY offset")
    assert [(one["group"], bytes(one.body), one.state, one.ms, one.sent_back_by) for one in letters.collect()] == [
        (group.name, b"new", "new", None, None),
        (group.name, b"sent", "sent_back", 5_000, "ada"),
        (group.name, b"sent twice", "sent_back", 9_000, "bob"),
        (group.name, b"deleted", "deleted", 5_000, "ada"),
    ]
    assert spark.table(f"{schema}.state_groups").count() == 1
    assert {row.space for row in spark.table(f"{schema}.partitions").collect()} >= {"topics", "dlq", "sys"}


@pytest.mark.long
def test_spark_11_only_what_it_made_itself_is_dropped_or_replaced(
    spark: SparkSession, tables: QueueTables, schema: str
) -> None:
    tables.send(tables.topic("orders"), "a")
    spark.sql(f"CREATE VIEW {schema}.topic_orders AS SELECT 1 AS mine")
    spark.sql(f"CREATE VIEW {schema}.topic_gone COMMENT 'mine' AS SELECT 2 AS mine")
    with pytest.raises(Conflict, match="topic_orders"):
        register_tables(spark, schema, tables.conf)
    assert spark.table(f"{schema}.topic_orders").columns == ["mine"] and "topic_gone" in names(spark, schema)
    assert any(name.startswith("partition_orders") for name in names(spark, schema))
    with pytest.raises(Refused, match="SCHEMA"):
        register_tables(spark, "a; DROP SCHEMA x", tables.conf)


@pytest.mark.long
def test_spark_11_a_query_through_a_view_reads_no_more_than_one_of_the_tables_themselves(
    spark: SparkSession, tables: QueueTables, schema: str
) -> None:
    topic = tables.topic("orders", 2)
    logs = [tables.warehouse.create(replace(tables.log(topic).ref, name=name)) for name in topic.route.partitions]
    for log in logs:
        for at in range(3):
            log.append([Batch(rows([b"%d" % at] * 10))])
    register_tables(spark, schema, tables.conf)
    view = spark.table(f"{schema}.topic_orders")
    plain = reduce(DataFrame.unionAll, [spark.read.format("delta").load(log.location) for log in logs])

    def scans(frame: DataFrame) -> list[str]:
        plan = frame._jdf.queryExecution().sparkPlan().toString()
        return [part.split("Location")[0].split("] ")[-1] for part in plan.split("FileScan")[1:]]

    queries = ("offset", "tag")
    assert len(scans(view.select(*queries))) == 2
    for scan in scans(view.select(*queries)):
        assert "body" not in scan
    files = view.where("offset >= 25").inputFiles()
    assert sorted(files) == sorted(plain.where("offset >= 25").inputFiles()) and len(files) == 2
    one = view.where(f"partition = '{topic.route.partitions[0]}'")
    assert len(one.inputFiles()) == 3, "another partition's files are not read"
    assert view.groupBy().count().collect() == plain.groupBy().count().collect()


_HIVE = """
import sys
from deltamq.jobs.sql import register_tables, spark_session
from deltamq.tables.config import load
folder = sys.argv[1]
spark = spark_session(
    "catalog", warehouse=folder,
    **{"spark.sql.catalogImplementation": "hive", "spark.master": "local[1]",
       "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder}/metastore;create=true"})
if sys.argv[2] == "make":
    register_tables(spark, "deltamq", load(overrides={"warehouse.uri": folder}))
else:
    print(spark.sql("SELECT count(*) AS n FROM deltamq.topic__4frders").collect()[0].n)
    print([r.tableName for r in spark.sql("SHOW TABLES IN deltamq").collect() if r.tableName.startswith("topic_")])
spark.stop()
"""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_spark_11_another_application_finds_topics_in_the_metastore(tables: QueueTables, tmp_path: Path) -> None:
    tables.send(tables.topic("Orders"), "a", "b")
    folder = tables.warehouse.uri

    def ran(what: str) -> str:
        command = [sys.executable, "-c", _HIVE, folder, what]
        return subprocess.run(command, cwd=tmp_path, check=True, text=True, stdout=subprocess.PIPE).stdout

    ran("make")
    assert ran("read").splitlines()[-2:] == ["2", "['topic__4frders']"]
