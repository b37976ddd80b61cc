"""Work in tasks of Spark: one item of work is one task, and its result is a few columns.

    driver                                       executors
    items --one partition each--> mapInArrow --> work(item) --> Arrow batches --> driver: counts, or a DataFrame

A task may run twice, at once or one after another (retries, speculation, lost executors). So `work` appends only
requests that are named after their cause (I11). `work` is a function of a module, since executors import it by name,
and an item is a small value that can be pickled. Only DataFrames are used, so it also runs in a session of Spark
Connect.

A DeltaMQ error that ends a task reaches the driver as text in one of Spark's errors. `errors_of_tasks` turns it back
into the same error, with its code, field and extra values (`jobs.tasks.task_errors`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from deltamq.jobs.tasks.task_errors import as_text, errors_of_tasks
from deltamq.jobs.tasks.worker import keep_imports
from deltamq.tables.failpoints import failpoint

Item = TypeVar("Item")
Work = Callable[[Item], Iterable[pa.RecordBatch]]
Batches = Iterator[pa.RecordBatch]


def frame_of_tasks(spark: SparkSession, items: Sequence[Item], work: Work[Item], schema: pa.Schema) -> DataFrame:
    """Return the batches that `work` yields for all items, as a DataFrame that has not run yet.

    Evaluate it within `errors_of_tasks()`.

    Parameters
    ----------
    items
        The items, one task for each; at least one.
    schema
        The columns of the batches that `work` yields.
    """
    assert items, "there is at least one task"
    all_items = list(items)

    def run(batches: Batches) -> Batches:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from work(all_items[number])

    return in_tasks(spark.range(0, len(all_items), 1, len(all_items)), run, schema)


def in_tasks(
    frame: DataFrame, run: Callable[[Batches], Iterable[pa.RecordBatch]], schema: pa.Schema | StructType
) -> DataFrame:
    """Apply `run` to the batches of each partition of `frame`; return the result as a DataFrame, not yet evaluated."""

    def run_in_worker(batches: Batches) -> Batches:
        keep_imports()
        with as_text():
            yield from run(batches)

    return frame.mapInArrow(run_in_worker, schema if isinstance(schema, StructType) else from_arrow_schema(schema))


def run_in_tasks(spark: SparkSession, items: Sequence[Item], work: Work[Item], schema: pa.Schema) -> pa.Table:
    """Run `work` for each item in its own task; return all results, which must be small, or raise its DeltaMQError."""
    if not items:
        return schema.empty_table()
    with errors_of_tasks():
        return frame_of_tasks(spark, items, work, schema).toArrow().cast(schema)


def task_failpoint(name: str) -> None:
    """Hit a failpoint in a task, in first attempts only, so that Spark's retry gets past it."""
    context = TaskContext.get()
    if context is None or context.attemptNumber() == 0:
        failpoint(name)
