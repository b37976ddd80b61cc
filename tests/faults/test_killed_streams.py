"""Streaming queries killed with SIGKILL, whole or in part, and the rows of their Delta table afterwards (SPARK-2)."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession

from deltamq.mq.meta.topics import Topic
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.tables.queue.recovery import recover_progress
from tests.faults.stream_process import StreamProcess, start_query
from tests.queue_tables import BROKER, CLUSTER, QueueTables

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(3_000), pytest.mark.promise("PIPE-1")]

#: What is armed in all processes of an application; the kill takes one, and the application is started again.
POINTS = (
    "stream.before_latest=kill@2",
    "stream.after_latest=kill@1",
    "stream.after_plan=kill@2",
    "stream.task=kill@3",
    "stream.before_group_commit=kill@1",
    "stream.after_group_commit=kill@2",
)
SINK_POINTS = (
    "sink.before_stage=kill@1",
    "sink.after_stage=kill@2",
    "sink.before_manifest=kill@1",
    "sink.after_manifest=kill@1",
    "sink.before_append=kill@2",
    "sink.after_append=kill@1",
    "sink.before_done=kill@1",
    "sink.after_done=kill@1",
)
#: The topic into which a query writes that does not write into a Delta table.
COPIES = "copies"


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[QueueTables]:
    made = QueueTables(tmp_path / "warehouse")
    yield made
    made.close()


def _send(tables: QueueTables, topic: Topic, messages: int) -> None:
    for partition in range(len(topic.route.partitions)):
        tables.send(topic, *(str(i) for i in range(messages)), partition=partition)


def _check(spark: SparkSession, tables: QueueTables, topic: Topic, folder: Path, into: str | None = None) -> None:
    """Each message is in the table, or the other topic, once, and nothing else is; the group is at the end."""
    if into is None:
        rows = spark.read.format("delta").load(str(folder / "table"))
        places = rows.selectExpr("concat(partition, '/', offset) AS place")
    else:
        rows = spark.read.format("mq").option("warehouse", tables.warehouse.uri).option("topic", into).load()
        places = rows.selectExpr("CAST(body AS STRING) AS place")
    found = sorted((row.place.partition("/")[0], int(row.place.partition("/")[2])) for row in places.collect())
    sent = []
    for number, name in enumerate(topic.route.partitions):
        log = tables.log(topic, number)
        log.refresh()
        sent += [(name, offset) for offset in range(log.end_offset)]
    assert found == sorted(sent)
    committed: Any = recover_progress(tables.warehouse, CLUSTER, [BROKER])
    for name in topic.route.partitions:
        assert committed[LaneKey(topic.id, "killed", False, name)].offset <= dict(sorted(sent))[name] + 1


@pytest.mark.parametrize(("into", "points"), [(None, POINTS), (COPIES, SINK_POINTS)], ids=["table", "topic"])
def test_spark_02_applications_killed_at_every_point_store_each_message_once(
    spark: SparkSession, tables: QueueTables, tmp_path: Path, into: str | None, points: Sequence[str]
) -> None:
    topic = tables.topic(partitions=3)
    tables.topic(COPIES, partitions=2)
    chance = random.Random(7)
    for point in [*points, *[""] * int(os.environ.get("STREAM_KILLS", "4"))]:
        _send(tables, topic, 150)
        process = StreamProcess(tables.warehouse.uri, tmp_path, failpoints=point, into=into)
        checkpoint = tmp_path / "checkpoint" / "offsets"
        before = len(list(checkpoint.glob("*")))
        while process.wait(0.1) is None and len(list(checkpoint.glob("*"))) == before:
            pass  # until it has planned a batch
        deadline = time.monotonic() + chance.uniform(0, 3)
        while time.monotonic() < deadline and process.wait(0.05) is None:
            _send(tables, topic, 10)
        process.kill()
    _end_and_check(spark, tables, topic, tmp_path, into)


@pytest.mark.parametrize("into", [None, COPIES], ids=["table", "topic"])
def test_spark_02_two_applications_on_one_checkpoint_store_each_message_once(
    spark: SparkSession, tables: QueueTables, tmp_path: Path, into: str | None
) -> None:
    topic = tables.topic(partitions=3)
    tables.topic(COPIES, partitions=2)
    _send(tables, topic, 150)
    both = [StreamProcess(tables.warehouse.uri, tmp_path, into=into) for _ in range(2)]
    deadline = time.monotonic() + 300
    while all(process.wait(0.05) is None for process in both):
        _send(tables, topic, 5)
        assert time.monotonic() < deadline, "Spark tells one of them that there is another"
    for process in both:
        process.kill()
    _end_and_check(spark, tables, topic, tmp_path, into)


def test_spark_22_the_earlier_of_two_applications_ends_though_there_is_nothing_to_read(
    spark: SparkSession, tables: QueueTables, tmp_path: Path
) -> None:
    topic = tables.topic(partitions=3)
    _send(tables, topic, 50)
    first = StreamProcess(tables.warehouse.uri, tmp_path)
    commits = tmp_path / "checkpoint" / "commits"
    while first.wait(0.1) is None and not list(commits.glob("[0-9]*")):
        pass  # until it has done a batch
    second = StreamProcess(tables.warehouse.uri, tmp_path)
    assert first.wait(300) not in (0, None), "it ends by an error"
    first.kill()
    assert second.wait(0) is None
    _send(tables, topic, 50)
    (tmp_path / "end").touch()
    assert second.wait(300) == 0
    _check(spark, tables, topic, tmp_path)


def _end_and_check(spark: SparkSession, tables: QueueTables, topic: Topic, folder: Path, into: str | None) -> None:
    (folder / "end").touch()
    assert StreamProcess(tables.warehouse.uri, folder, into=into).wait(600) == 0
    _check(spark, tables, topic, folder, into)


def test_spark_02_planners_and_workers_killed_in_the_middle_store_each_message_once(
    spark: SparkSession, tables: QueueTables, tmp_path: Path
) -> None:
    topic = tables.topic(partitions=3)
    jvm = int(spark._jvm.ProcessHandle.current().pid())  # type: ignore[union-attr]
    chance = random.Random(11)
    killed = 0
    for _ in range(int(os.environ.get("STREAM_KILLS", "4")) * 3):
        _send(tables, topic, 500)
        query = start_query(spark, tables.warehouse.uri, tmp_path)
        deadline = time.monotonic() + chance.uniform(0.2, 3)
        while query.isActive and time.monotonic() < deadline:
            _send(tables, topic, 5)
        for pid in chance.sample(sorted(_pythons_below(jvm)), k=1) if query.isActive else []:
            os.kill(pid, signal.SIGKILL)
            killed += 1
        _finish(query)
    assert killed > 0
    query = start_query(spark, tables.warehouse.uri, tmp_path)
    query.processAllAvailable()
    query.stop()
    _check(spark, tables, topic, tmp_path)


def _finish(query: Any) -> None:
    """Let it go on or fail; a query whose planner or task was killed says so."""
    try:
        query.processAllAvailable()
    except (StreamingQueryException, PySparkException):
        assert query.exception() is not None
    query.stop()


def _pythons_below(pid: int) -> Iterator[int]:
    """The Python processes that this JVM started, and theirs."""
    for child in _children(pid):
        if "python" in Path(f"/proc/{child}/cmdline").read_bytes().decode(errors="replace"):
            yield child
        yield from _pythons_below(child)


def _children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(child) for child in task.read_text().split()]
        except OSError:
            continue
    return found
