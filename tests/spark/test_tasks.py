"""Work in tasks: each item once, in a task of its own, and its rows come back."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession

from deltamq.jobs.tasks.tasks import run_in_tasks
from deltamq.mq.errors import Corrupt

_GARBAGE = pa.schema([("kept", pa.int64()), ("collected", pa.int64())])
_SCHEMA = pa.schema([("item", pa.int64()), ("partition", pa.int64()), ("pid", pa.int64())])


def _seen(item: int) -> Iterator[pa.RecordBatch]:
    context = TaskContext.get()
    assert context is not None
    for _ in range(item):
        row = {"item": item, "partition": context.partitionId(), "pid": os.getpid()}
        yield pa.RecordBatch.from_pylist([row], schema=_SCHEMA)


@pytest.mark.spark
def test_spark_07_each_item_of_work_is_a_task_outside_of_the_driver(spark: SparkSession) -> None:
    found = run_in_tasks(spark, [1, 2, 0, 3], _seen, _SCHEMA).to_pylist()
    assert sorted(row["item"] for row in found) == [1, 2, 2, 3, 3, 3]
    assert len({row["partition"] for row in found}) == 3
    assert os.getpid() not in {row["pid"] for row in found}


@pytest.mark.spark
def test_spark_07_without_work_no_task_is_started(spark: SparkSession) -> None:
    assert run_in_tasks(spark, [], _seen, _SCHEMA).num_rows == 0


def _collected(item: int) -> Iterator[pa.RecordBatch]:
    row = {"kept": gc.get_freeze_count(), "collected": len(gc.get_objects())}
    yield pa.RecordBatch.from_pylist([row], schema=_GARBAGE)


@pytest.mark.spark
def test_spark_07_what_a_worker_imported_is_not_collected_after_each_task(spark: SparkSession) -> None:
    for _ in range(2):
        (row,) = run_in_tasks(spark, [1], _collected, _GARBAGE).to_pylist()
        assert row["kept"] > row["collected"] > 0, "most objects; workers of other tests have imported more since"


def _damaged(item: int) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pylist([], schema=_SCHEMA)
    raise Corrupt(f"log {item} is damaged", code="record_corrupt")


@pytest.mark.spark
def test_spark_07_an_error_of_ours_reaches_the_driver_as_itself(spark: SparkSession) -> None:
    with pytest.raises(Corrupt, match="log 5 is damaged") as raised:
        run_in_tasks(spark, [5], _damaged, _SCHEMA)
    assert raised.value.code == "record_corrupt"
