"""Divides the partitions of a job among items, and runs these: in tasks of Spark, or in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import pyarrow as pa

from deltamq.jobs.tasks.tasks import run_in_tasks

T = TypeVar("T")
#: A task that fails is repeated, so it must not take long.
_CHUNK_MAX: Final = 128
_CHUNKS: Final = 16
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


def chunks_of(partitions: Sequence[T]) -> list[tuple[T, ...]]:
    """Return the partitions in chunks; neighbours, which often are of similar size, go into different chunks."""
    if not partitions:
        return []
    size = min(_CHUNK_MAX, -(-len(partitions) // _CHUNKS))
    count = -(-len(partitions) // size)
    return [tuple(partitions[at::count]) for at in range(count)]
