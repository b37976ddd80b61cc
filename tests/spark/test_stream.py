"""`readStream.format("mq")` in Spark: exactly once into a Delta table, from its checkpoint, with a group (SPARK-2).

One application at a time on one checkpoint (SPARK-22), and errors that say what happened (SPARK-23).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from deltamq.jobs.sql.reader import read_topic
from deltamq.jobs.stream.progress import behind
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.tables.queue.recovery import recover_progress
from tests.queue_tables import BROKER, CLUSTER, QueueTables
from tests.rows import next_millisecond
from tests.unit.jobs.stream.driven import Stream

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


def test_spark_22_a_query_that_another_application_goes_on_with_ends_by_name(
    spark: SparkSession, tables: QueueTables, tmp_path: Path
) -> None:
    tables.send(tables.topic(), "a", "b")
    batches: list[int] = []
    frame = _stream(spark, tables, maxOffsetsPerTrigger="1")
    writer = frame.writeStream.foreachBatch(lambda rows, _: batches.append(rows.count()))
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        query.processAllAvailable()
        log = tmp_path / "checkpoint" / "offsets"
        newest = max((int(one.name), one) for one in log.iterdir() if one.name.isdigit())[1]
        other = Stream(tables.warehouse.uri, json.loads(newest.read_text(encoding="utf-8").splitlines()[-1]))
        assert other.batch() == []
        with pytest.raises(StreamingQueryException) as caught:
            query.awaitTermination(120)
    finally:
        query.stop()
    assert batches == [1, 1]
    assert re.fullmatch(
        r"\[STREAM_FAILED\] Query \[id = \S+, runId = \S+\] terminated with exception: \[\w+\] Failed when Python "
        r"streaming data source perform latestOffset: deltamq\.jobs\.tasks\.checkpoint_claims\.CheckpointTaken: "
        r"this query's "
        r"checkpoint was taken over by an application \(host \S+, process \d+, since \S+Z\); one checkpoint has one "
        r"application at a time, and the later one goes on\. To go on here instead, stop that one and start this "
        r"again; a second query needs a checkpointLocation of its own",
        str(caught.value).partition("\n")[0],
    )


@pytest.mark.long
def test_spark_23_the_first_line_says_what_happened_and_what_to_do(
    spark: SparkSession, tables: QueueTables, tmp_path: Path
) -> None:
    tables.send(tables.topic(), "a")
    with pytest.raises(StreamingQueryException) as planned:
        _into(_stream(spark, tables, endingOffsets="latest"), tmp_path / "planned")
    rows = _stream(spark, tables).selectExpr("CAST(body AS STRING) AS value", "'a b' AS topic")
    writer = rows.writeStream.format("mq").option("warehouse", tables.warehouse.uri).trigger(availableNow=True)
    with pytest.raises(StreamingQueryException) as written:
        writer.option("checkpointLocation", str(tmp_path / "written")).start().awaitTermination()
    firsts = [
        str(one.value).partition("\n")[0].partition("terminated with exception: ")[2] for one in (planned, written)
    ]
    assert firsts == [
        "[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming data source perform initialOffset: "
        "deltamq.mq.errors.Refused: option endingOffsets: cannot be given to a stream, which has no end; "
        "batch reads take it",
        "[PYTHON_EXCEPTION] An exception was thrown from the Python worker: "
        "deltamq.mq.errors.Refused: topic must be 1 to 249 characters of A-Z a-z 0-9 . _ % | - and not '.' or '..'",
    ]


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


#: An application that was started in a folder of its own, and knows nothing of ours.
_ELSEWHERE = """
import sys
from deltamq.jobs.spark.session import spark_session

warehouse, folder = sys.argv[1:]
spark = spark_session("elsewhere", warehouse=warehouse)
options = {"topic": "orders", "warehouse": warehouse, "startingOffsets": "earliest", "group": "elsewhere"}
frame = spark.readStream.format("mq").options(**options).load()
writer = frame.writeStream.format("delta").option("checkpointLocation", folder + "/checkpoint")
writer.trigger(availableNow=True).start(folder + "/table").awaitTermination()
print(spark.read.format("delta").load(folder + "/table").count())
"""


@pytest.mark.long
@pytest.mark.parametrize("path", ["hostile", "missing"])
def test_spark_02_a_stream_is_planned_by_our_modules_whatever_the_users_are_called(
    tables: QueueTables, tmp_path: Path, path: str
) -> None:
    """Spark runs the planner in a process of its own, in the working directory and with the path of the user."""
    folder = tmp_path / "users"
    for name in ("api", "jobs", "mq", "tables"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(f"raise ImportError('the user has {name}, too')")
    tables.send(tables.topic(partitions=2), *"abcde")
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environ |= {"PYTHONPATH": str(folder)} if path == "hostile" else {}
    command = [sys.executable, "-c", _ELSEWHERE, tables.warehouse.uri, str(tmp_path)]
    ran = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=390)
    assert (ran.returncode, ran.stdout.split()[-1:]) == (0, ["5"]), ran.stderr[-4_000:]


def test_spark_04_time_travel_reads_a_topic_as_it_was(spark: SparkSession, tables: QueueTables) -> None:
    topic = tables.topic()
    tables.send(topic, "a", "b")
    moment_us = tables.log(topic).files[-1].append_max_us + 1
    moment = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=moment_us)).isoformat()
    next_millisecond()
    tables.send(topic, "c")
    options = {"topic": "orders", "warehouse": tables.warehouse.uri, "columns": "key"}
    for bound in ({"asOfOffset": "2"}, {"asOfTime": moment}):
        read = spark.read.format("mq").options(**options, **bound).load()
        assert [row["key"] for row in read.collect()] == ["key-a", "key-b"]
        assert read_topic(spark, **options, **bound).columns == ["key"]
        assert read_topic(spark, **options, **bound).count() == 2
