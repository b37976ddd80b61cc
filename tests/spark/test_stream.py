"""`readStream.format("mq")` in Spark: exactly once into a Delta table, from its checkpoint, with a group (SPARK-2)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from jobs.sql import read_topic
from jobs.stream.progress import behind
from mq.queue.checkpoint import LaneKey
from tables.queue.recovery import recover_progress
from tests.queue_tables import BROKER, CLUSTER, QueueTables

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400), pytest.mark.promise("PIPE-1")]


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[QueueTables]:
    made = QueueTables(tmp_path / "warehouse")
    yield made
    made.close()


def _stream(spark: SparkSession, tables: QueueTables, **options: str) -> DataFrame:
    given = {"topic": "orders", "warehouse": tables.warehouse.uri, "startingOffsets": "earliest", **options}
    return spark.readStream.format("mq").options(**given).load()


def _into(frame: DataFrame, folder: Path) -> StreamingQuery:
    """Write what is there now into a Delta table."""
    writer = frame.writeStream.format("delta").option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(folder / "table"))
    query.awaitTermination()
    return query


def test_spark_02_a_topic_streams_into_a_delta_table_exactly_once(
    spark: SparkSession, tables: QueueTables, tmp_path: Path
) -> None:
    topic = tables.topic(partitions=2)
    tables.send(topic, *"abcde")
    tables.send(topic, *"xyz", partition=1)
    frame = _stream(spark, tables, maxOffsetsPerTrigger="6", group="dashboard", columns="partition, offset, key")
    assert frame.columns == ["partition", "offset", "key"]
    query = _into(frame, tmp_path)
    assert [p.numInputRows for p in query.recentProgress] == [5, 3]
    assert [one.total for p in query.recentProgress for one in behind(p)] == [3, 0]
    tables.send(topic, "f")
    _into(frame, tmp_path)
    rows = spark.read.format("delta").load(str(tmp_path / "table")).collect()
    assert sorted((row["partition"], row["offset"], row["key"]) for row in rows) == [
        *(("orders#1@broker-a", i, f"key-{body}") for i, body in enumerate("xyz")),
        *(("orders@broker-a", i, f"key-{body}") for i, body in enumerate("abcdef")),
    ]
    committed: Any = recover_progress(tables.warehouse, CLUSTER, [BROKER])
    lanes = [LaneKey(topic.id, "dashboard", False, name) for name in topic.route.partitions]
    assert [committed[lane].offset for lane in lanes] == [6, 3], "the last batch of AvailableNow, too"


@pytest.mark.long
def test_spark_02_a_stream_says_what_keeps_it_from_going_on(
    spark: SparkSession, tables: QueueTables, tmp_path: Path
) -> None:
    topic = tables.topic()
    tables.send(topic, "a", "b")
    _into(_stream(spark, tables, rowFormat="kafka", minOffsetsPerTrigger="1"), tmp_path)
    tables.send(topic, "c")
    tables.log(topic).delete_below(2)
    tables.send(topic, "d")
    tables.log(topic).delete_below(3)
    with pytest.raises(StreamingQueryException, match=r"removed offsets \[2, 3\)"):
        _into(_stream(spark, tables, rowFormat="kafka"), tmp_path)
    _into(_stream(spark, tables, rowFormat="kafka", failOnDataLoss="false"), tmp_path)
    rows = spark.read.format("delta").load(str(tmp_path / "table")).collect()
    assert sorted(bytes(row["value"]) for row in rows) == [b"a", b"b", b"d"]
    with pytest.raises(StreamingQueryException, match="endingOffsets: cannot be given to a stream"):
        _into(_stream(spark, tables, endingOffsets="latest"), tmp_path)


def test_spark_04_time_travel_reads_a_topic_as_it_was(spark: SparkSession, tables: QueueTables) -> None:
    topic = tables.topic()
    tables.send(topic, "a", "b")
    moment_us = tables.log(topic).files[-1].append_max_us + 1
    moment = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=moment_us)).isoformat()
    tables.send(topic, "c")
    options = {"topic": "orders", "warehouse": tables.warehouse.uri, "columns": "key"}
    for bound in ({"asOfOffset": "2"}, {"asOfTime": moment}):
        read = spark.read.format("mq").options(**options, **bound).load()
        assert [row["key"] for row in read.collect()] == ["key-a", "key-b"]
        assert read_topic(spark, **options, **bound).columns == ["key"]
        assert read_topic(spark, **options, **bound).count() == 2
