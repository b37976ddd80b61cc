"""Work in tasks of Spark: one item of work is one task, and what comes back is a few columns.

    driver                                       executors
    items --one partition each--> mapInArrow --> work(item) --> Arrow batches --> driver: counts, or a DataFrame

A task may run twice, at once or one after another (retries, speculation, executors that were lost): whatever `work`
appends, it appends as requests that are named after their cause (I11). `work` is a function of a module, since
executors import it by name, and an item is a small value that can be pickled. Only DataFrames are used, so it runs in
a session of Spark Connect as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

__all__ = ["frame_of_tasks", "run_in_tasks"]

Item = TypeVar("Item")
Work = Callable[[Item], Iterable[pa.RecordBatch]]


def frame_of_tasks(spark: SparkSession, items: Sequence[Item], work: Work[Item], schema: pa.Schema) -> DataFrame:
    """Return what `work` yields for each item, as a DataFrame that has not run yet.

    Parameters
    ----------
    items
        One task each; at least one.
    schema
        The columns of the batches that `work` yields.
    """
    assert items, "no task has nothing to do"
    given = list(items)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from work(given[number])

    numbers = spark.range(0, len(given), 1, len(given))
    return numbers.mapInArrow(run, from_arrow_schema(schema))


def run_in_tasks(spark: SparkSession, items: Sequence[Item], work: Work[Item], schema: pa.Schema) -> pa.Table:
    """Run `work` for each item in a task of its own; return all that they yielded, which must be little."""
    if not items:
        return schema.empty_table()
    return frame_of_tasks(spark, items, work, schema).toArrow().cast(schema)
