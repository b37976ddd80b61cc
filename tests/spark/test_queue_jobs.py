"""`revive` and `delay` as Spark jobs: their work is done in tasks, once, whatever becomes of these (SPEC SPARK-7)."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from deltamq.jobs.merge.merge import merge
from deltamq.jobs.queue.delay import delay
from deltamq.jobs.queue.revive import revive
from deltamq.jobs.run.registry import jobs_named
from deltamq.jobs.tasks.warehouses import close_warehouses
from deltamq.mq.limits import ACK_SETTLE_MS
from tests.queue_tables import QueueTables, at, with_spark_engine

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

_ROOT = Path(__file__).parents[2]
_STEPS = ("after_data_write", "before_log_tmp", "after_link")
#: Where tasks of the two jobs pass, and a run of each by two drivers at once.
POINTS = ("revive.after_append=kill@1", "delay.after_append=kill@1")
MORE_POINTS = (
    "revive.after_append=kill@2",
    "revive.after_lost=kill@1",
    "revive.after_done=kill@1",
    "delay.after_mark=kill@1",
    *(f"commit.{step}=kill@{hit}" for step in _STEPS for hit in (1, 2, 3)),
    "revive.after_append=kill@1*2",
    "delay.after_append=kill@1*2",
    "revive.after_done=kill@1*2",
)


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[QueueTables]:
    with closing(QueueTables(tmp_path / "warehouse")) as made:
        yield made
        close_warehouses()


@pytest.mark.long
def test_spark_07_what_is_due_is_moved_in_tasks_before_and_after_a_merge(
    spark: SparkSession, tables: QueueTables
) -> None:
    conf = with_spark_engine(tables.conf)
    topic, group, late = tables.topic(), tables.group(), tables.topic("late")
    now_ms = time.time_ns() // 1_000_000
    offsets = tables.send(topic, *(f"m{number}" for number in range(8)))
    for number in range(4):
        popped = tables.pop(group, topic, offsets[2 * number : 2 * number + 2], at_ms=now_ms + number, queue=number)
        tables.ack(popped, offsets[2 * number])
    tables.delay(late, ("soon", now_ms + 1_000), ("later", now_ms + 90_000))
    merge(spark, tables.conf, at(now_ms))
    more = tables.send(topic, "m8")
    tables.pop(group, topic, more, at_ms=now_ms, queue=1)
    due_ms = now_ms + 10_003 + ACK_SETTLE_MS
    assert revive(spark, conf, at(now_ms))["rows"] == 0
    facts = revive(spark, conf, at(due_ms))
    assert (facts["rows"], facts["late_ms"], facts["tasks"]) == (5, 3 + ACK_SETTLE_MS, 2)
    assert sorted(row["body"] for row in tables.retried(group, topic)) == [b"m1", b"m3", b"m5", b"m7", b"m8"]
    facts = delay(spark, conf, at(due_ms))
    assert (facts["rows"], facts["tasks"]) == (1, 1)
    assert [row["body"] for row in tables.delivered(late)] == [b"soon"]
    merge(spark, tables.conf, at(due_ms))
    assert revive(spark, conf, at(due_ms + 100_000))["rows"] == 0
    assert delay(spark, conf, at(due_ms + 100_000))["rows"] == 1


def test_spark_07_who_has_some_brokers_leaves_the_others_alone(spark: SparkSession, tables: QueueTables) -> None:
    conf = with_spark_engine(tables.conf)
    topic, group = tables.topic(partitions=2, brokers=("broker-a", "broker-b")), tables.group()
    for partition in (0, 1):
        tables.pop(group, topic, tables.send(topic, f"m{partition}", partition=partition), partition=partition)
    (job,) = jobs_named(("revive",))
    assert list(job.shards(conf)) == ["broker-a", "broker-b"]
    assert job.needs_spark(conf) and not job.needs_spark(tables.conf)
    assert job.every_s(conf) > job.every_s(tables.conf)
    assert revive(spark, conf, at(100_000), shards=["broker-b"])["rows"] == 1
    assert tables.retried(group, topic) == []
    assert len(tables.retried(group, topic, "broker-b")) == 1


def _played(folder: Path, points: tuple[str, ...]) -> list[dict[str, object]]:
    command = [sys.executable, "-m", "tests.spark.queue_faults", str(folder), *points]
    done = subprocess.run(
        command, cwd=_ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, timeout=900
    )
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith(b"{")]


def _check(found: list[dict[str, object]], points: tuple[str, ...]) -> None:
    assert [one["point"] for one in found] == [point.partition("*")[0] for point in points]
    for one in found:
        assert one["hit"], f"no worker came to {one['point']}"
        assert one["failed"] == [], "Spark repeats a task whose worker was killed"
        assert (one["revived"], one["delivered"]) == (True, True), one
        assert one["lost"] == [[[0, 1]]], one


@pytest.mark.promise("JOB-20")
@pytest.mark.long
def test_spark_07_a_task_whose_worker_was_killed_is_repeated_and_stores_nothing_twice(tmp_path: Path) -> None:
    _check(_played(tmp_path, POINTS), POINTS)


@pytest.mark.promise("JOB-20")
@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_spark_07_workers_killed_at_every_point_and_under_two_drivers_store_nothing_twice(tmp_path: Path) -> None:
    _check(_played(tmp_path, MORE_POINTS), MORE_POINTS)
