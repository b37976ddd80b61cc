"""One DataFrame or view, many queries: each sees what is stored when it runs, and one state (SPEC SPARK-13).

Spark keeps what a Python source planned in its table object, so a plan must hold neither offsets nor conditions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from deltamq.jobs.read.topics import Catalog
from deltamq.jobs.spark.session import another_session
from deltamq.jobs.sql.queue_source import register_queue_sources
from deltamq.jobs.sql.reader import read_topic
from deltamq.jobs.tasks.warehouse_files import storage
from deltamq.mq.errors import Refused
from deltamq.tables.log.batch import Batch
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.queue.refs import retry_ref
from tests.queue_tables import QueueTables
from tests.unit.jobs.warehouses import Filled, rows

pytestmark = pytest.mark.spark

A, B = "seen@broker-a", "seen@broker-b"
_NO_TABLE = r"A table cannot be made with USING mq.*CREATE TEMPORARY VIEW"
_names = (f"v{number}" for number in count())


@pytest.fixture
def seen(filled: Filled) -> Filled:
    """100 messages with the key a, 20 with the key b, in two partitions."""
    _send(filled, 100, "a")
    _send(filled, 20, "b")
    return filled


def _send(filled: Filled, number: int, key: str) -> None:
    for partition, part in ((A, number // 2), (B, number - number // 2)):
        filled.append("seen", partition, *[b"x"] * part, key=key)


Make = Callable[[SparkSession, Filled, str], None]


def _dataframe(spark: SparkSession, seen: Filled, name: str) -> None:
    spark.read.format("mq").options(topic="seen", warehouse=seen.uri).load().createOrReplaceTempView(name)


def _using(spark: SparkSession, seen: Filled, name: str) -> None:
    spark.sql(f"CREATE TEMPORARY VIEW {name} USING mq OPTIONS (topic 'seen', warehouse '{seen.uri}')")


def _native(spark: SparkSession, seen: Filled, name: str) -> None:
    read_topic(spark, "seen", warehouse=seen.uri).createOrReplaceTempView(name)


WAYS = {"format": _dataframe, "USING": _using, "read_topic": _native}


@pytest.fixture(params=["format", *(pytest.param(one, marks=pytest.mark.long) for one in ("USING", "read_topic"))])
def view(request: pytest.FixtureRequest, spark: SparkSession, seen: Filled) -> Iterator[str]:
    name = next(_names)
    WAYS[request.param](spark, seen, name)
    yield name
    spark.catalog.dropTempView(name)


def _counts(spark: SparkSession, query: str) -> tuple[int, ...]:
    (row,) = spark.sql(query).collect()
    return tuple(row)


def test_spark_13_each_query_of_a_view_sees_what_is_stored_when_it_runs(
    spark: SparkSession, seen: Filled, view: str
) -> None:
    every, one = f"SELECT count(*) FROM {view}", f"SELECT count(*) FROM {view} WHERE key = '%s'"
    assert [_counts(spark, query) for query in (every, one % "a", every, one % "b", every)] == [
        (120,),
        (100,),
        (120,),
        (20,),
        (120,),
    ]
    shapes = {
        f"SELECT ({one % 'a'}), ({every}), ({one % 'b'})": (100, 120, 20),
        f"SELECT count(*) FROM (SELECT key FROM {view} WHERE key = 'b' UNION ALL SELECT key FROM {view})": (140,),
        f"SELECT count(*) FROM {view} x JOIN {view} y USING (partition, offset) WHERE x.key = 'b'": (20,),
        f"SELECT count(*) FROM {view} x LEFT ANTI JOIN (SELECT * FROM {view} WHERE key = 'a') y "
        "ON x.partition = y.partition AND x.offset = y.offset": (20,),
        f"WITH w AS (SELECT * FROM {view} WHERE key = 'a') SELECT (SELECT count(*) FROM w), "
        f"(SELECT count(*) FROM {view} WHERE offset < 10), (SELECT max(offset) FROM w)": (100, 20, 49),
        f"SELECT count(*) FROM {view} WHERE key IN (SELECT key FROM {view} WHERE key = 'b')": (20,),
    }
    assert {query: _counts(spark, query) for query in shapes} == shapes
    _send(seen, 30, "c")
    after = [_counts(spark, query) for query in (one % "c", every, one % "a", f"SELECT ({one % 'c'}), ({every})")]
    assert after == [(30,), (150,), (100,), (30, 150)]


def test_spark_13_what_is_cached_stays_and_what_is_not_goes_on(spark: SparkSession, seen: Filled) -> None:
    frame = spark.read.format("mq").options(topic="seen", warehouse=seen.uri).load()
    cached = frame.where("key = 'a'").cache()
    assert cached.count() == 100
    _send(seen, 10, "a")
    assert (cached.count(), frame.where("key = 'a'").count(), frame.count()) == (100, 100, 130)
    cached.unpersist(blocking=True)
    assert (frame.where("key = 'a'").count(), len(frame.rdd.collect()), frame.rdd.count()) == (110, 130, 130)
    _send(seen, 10, "a")
    assert len(frame.rdd.collect()) == 140
    limited = [row["offset"] for row in frame.orderBy("partition", "offset").limit(3).collect()]
    assert limited == [0, 1, 2] and sum(1 for _ in frame.toLocalIterator()) == 140


def test_spark_13_parts_computed_in_different_jobs_miss_no_message(spark: SparkSession, seen: Filled) -> None:
    frame = spark.read.format("mq").options(topic="seen", warehouse=seen.uri, minPartitions=5).load()
    places = frame.select("partition", "offset")
    stored = {(A, at) for at in range(60)} | {(B, at) for at in range(60)}
    cached = places.cache()
    assert len(cached.take(1)) == 1
    _send(seen, 100, "a")
    rows = [tuple(row) for row in cached.collect()]
    cached.unpersist(blocking=True)
    assert stored <= set(rows) and len(set(rows)) == len(rows)
    kept = places.rdd.map(tuple).cache()
    assert kept.first()
    _send(seen, 100, "a")
    found = kept.collect()
    kept.unpersist()
    assert stored <= set(found) and len(set(found)) == len(found)


def test_spark_13_queries_of_a_streams_batch_see_what_the_batch_has_stored(
    spark: SparkSession, seen: Filled, tmp_path: Path
) -> None:
    frame = spark.read.format("mq").options(topic="seen", warehouse=seen.uri).load()
    counts: list[int] = []

    def each(batch: DataFrame, number: int) -> None:
        counts.append(frame.count())
        _send(seen, 3, "a")
        counts.append(frame.count())

    source = spark.readStream.format("mq").options(topic="seen", warehouse=seen.uri, startingOffsets="earliest").load()
    writer = source.writeStream.foreachBatch(each).option("checkpointLocation", str(tmp_path / "checkpoint"))
    assert writer.trigger(availableNow=True).start().awaitTermination(120)
    assert counts == [120, 123]


def test_spark_13_a_native_read_sees_tables_that_were_made_since(spark: SparkSession, tmp_path: Path) -> None:
    tables = QueueTables(tmp_path)
    topic = tables.topic("orders", partitions=2)
    tables.send(topic, "a")
    uri = tables.warehouse.uri
    folders = {one.ref.folder for one in Catalog(storage(uri)).partitions("orders")}
    assert [Path(uri, folder).exists() for folder in sorted(folders)] == [True, False]
    frames = [read_topic(spark, "orders", warehouse=uri, **more) for more in ({}, {"endingOffsets": "latest"})]
    tables.send(topic, "b", "c", partition=1)
    assert [frame.count() for frame in frames] == [3, 1]
    grown = tables.topic("orders", partitions=4)
    tables.send(grown, "d", partition=3)
    tables.close()
    assert [frame.count() for frame in frames] == [4, 1]
    assert sorted(row.partition for row in frames[0].select("partition").distinct().collect()) == [
        "orders#1@broker-a",
        "orders#3@broker-a",
        "orders@broker-a",
    ]


def test_spark_13_a_native_read_refuses_the_filter_that_it_would_not_apply(spark: SparkSession, seen: Filled) -> None:
    with pytest.raises(Refused, match=r"option filter: is for format.*where"):
        read_topic(spark, "seen", warehouse=seen.uri, filter="key = 'a'")


def test_spark_13_two_sessions_of_an_application_have_queries_of_their_own(spark: SparkSession, seen: Filled) -> None:
    def counted(session: SparkSession) -> int:
        frame: DataFrame = session.read.format("mq").options(topic="seen", warehouse=seen.uri).load()
        return frame.count()

    other = another_session(spark, seen.uri)
    assert (counted(spark), counted(other)) == (120, 120)
    _send(seen, 5, "a")
    assert (counted(other), counted(spark)) == (125, 125)


def test_spark_13_views_of_the_queue_are_fresh_too(spark: SparkSession, seen: Filled) -> None:
    register_queue_sources(spark)
    name = next(_names)
    spark.read.format("mq_partitions").option("warehouse", seen.uri).load().createOrReplaceTempView(name)
    stored = f"SELECT sum(end_offset) FROM {name} WHERE space = 'topics'"
    assert _counts(spark, stored) == (120,)
    _send(seen, 6, "a")
    seen.append("another", "another@broker-a", b"x")
    assert _counts(spark, f"SELECT ({stored}), ({stored} AND topic = 'seen'), (SELECT count(*) FROM {name})") == (
        127,
        126,
        3,
    )
    retried = seen.warehouse.create(retry_ref("g", 1, "seen", 1, "broker-a"))
    spark.read.format("mq_space").options(warehouse=seen.uri, space="retry").load().createOrReplaceTempView(name)
    for stored_now in (2, 4):
        retried.append([Batch(rows([b"x", b"y"]))])
        assert _counts(spark, f"SELECT count(*), (SELECT count(*) FROM {name} WHERE offset > 0) FROM {name}") == (
            stored_now,
            stored_now - 1,
        )
    spark.catalog.dropTempView(name)


def test_spark_15_a_table_using_mq_is_refused_by_a_sentence(spark: SparkSession, seen: Filled) -> None:
    for statement in ("CREATE TABLE kept USING mq OPTIONS (topic 'seen')", "CREATE TABLE IF NOT EXISTS kept USING mq"):
        with pytest.raises((PySparkException, Py4JJavaError), match=_NO_TABLE):
            spark.sql(statement)
    with pytest.raises((PySparkException, Py4JJavaError), match="topics have no paths: name one with the option topic"):
        spark.read.format("mq").load("seen")


def test_spark_15_of_a_table_with_columns_of_its_own_nothing_is_answered(spark: SparkSession, seen: Filled) -> None:
    """Spark makes it without asking the source, and refuses to read and to write it."""
    spark.sql(f"CREATE TABLE kept (offset BIGINT) USING mq OPTIONS (topic 'seen', warehouse '{seen.uri}')")
    try:
        for statement in ("SELECT count(*) FROM kept", "INSERT INTO kept VALUES (1)"):
            with pytest.raises(PySparkException, match="mq is not a valid Spark SQL Data Source"):
                spark.sql(statement)
    finally:
        spark.sql("DROP TABLE kept")


def test_spark_15_a_table_made_of_a_query_fails_in_spark_and_nothing_is_made(spark: SparkSession, seen: Filled) -> None:
    """Delta's catalog has no table to write to, and asks no source: when it does, a sentence of ours can be said."""
    rows = spark.sql("SELECT 'x' AS value")
    ways: dict[str, Callable[[], object]] = {
        "SQL": lambda: spark.sql("CREATE TABLE kept USING mq OPTIONS (topic 'seen') AS SELECT 'x' AS value"),
        "saveAsTable": lambda: rows.write.format("mq").option("topic", "seen").saveAsTable("kept"),
        "writeTo": lambda: rows.writeTo("kept").using("mq").option("topic", "seen").create(),
    }
    for name, way in ways.items():
        with pytest.raises((PySparkException, Py4JJavaError), match=r"\[INTERNAL_ERROR\] Executed create failed"):
            way()
        assert not spark.catalog.tableExists("kept"), name
    assert spark.read.format("mq").options(topic="seen", warehouse=seen.uri).load().count() == 120


def test_spark_15_a_topic_whose_log_is_gone_is_no_empty_topic(spark: SparkSession, seen: Filled) -> None:
    frame = spark.read.format("mq").options(topic="seen", warehouse=seen.uri).load()
    assert frame.count() == 120
    seen.warehouse.store.delete_tree("topics/seen/seen@broker-a/_delta_log")
    with pytest.raises((PySparkException, Py4JJavaError), match=r"seen@broker-a has data .* but no log"):
        frame.count()


@pytest.mark.parametrize("space", [Space.TOPICS, Space.RETRY])
def test_spark_15_views_of_the_queue_do_not_leave_out_a_log_that_is_gone(
    spark: SparkSession, filled: Filled, space: Space
) -> None:
    register_queue_sources(spark)
    topics = space is Space.TOPICS
    ref = PartitionRef(space, "seen", A) if topics else retry_ref("readers", 1, "seen", 0, "broker-a")
    filled.warehouse.create(ref).append([Batch(rows([b"x"]))])
    views = ["mq_partitions"] if topics else ["mq_partitions", "mq_space"]
    frames = [spark.read.format(view).options(warehouse=filled.uri, space=space.value).load() for view in views]
    assert [frame.count() for frame in frames] == [1] * len(views)
    filled.warehouse.store.delete_tree(f"{ref.folder}/_delta_log")
    for frame in frames:
        with pytest.raises((PySparkException, Py4JJavaError), match=r"@broker-a.* has data .* but no log"):
            frame.count()
