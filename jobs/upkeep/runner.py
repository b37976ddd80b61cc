"""Runs the items of a job: in tasks of Spark, or in this process, one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from deltamq.jobs.tasks.tasks import run_in_tasks

#: Takes the items, the function that carries out an item, and the columns that it yields.
Runner = Callable[[Sequence[Any], Callable[[Any], Iterable[pa.RecordBatch]], pa.Schema], pa.Table]


def runner_of(spark: Any) -> Runner:
    """Return a runner that uses tasks of the session, or this process without one."""
    return in_this_process if spark is None else partial(run_in_tasks, spark)


def in_this_process(
    items: Sequence[Any], work: Callable[[Any], Iterable[pa.RecordBatch]], schema: pa.Schema
) -> pa.Table:
    """Carry out the items one after another, as tasks would."""
    return pa.Table.from_batches((batch for item in items for batch in work(item)), schema)
