"""Divides the partitions of a job among items, and runs these: in tasks of Spark, or in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, Protocol, TypeVar

import msgspec
import pyarrow as pa
from msgspec.msgpack import Decoder

from deltamq.jobs.tasks.tasks import run_in_tasks

T = TypeVar("T")
Item = TypeVar("Item")
#: A task that fails is repeated, so it must not take long.
_CHUNK_MAX: Final = 128
_CHUNKS: Final = 16
_PACKED: Final = pa.schema([("result", pa.binary())])


class Runner(Protocol):
    """Carries out items; returns their results, which msgspec packs, and `unpack` reads.

    A decoder is made at import: msgspec crashes when several threads meet a type for the first time.
    """

    def __call__(self, items: Sequence[Item], work: Callable[[Item], T], unpack: Decoder[T]) -> list[T]: ...


def runner_of(spark: Any) -> Runner:
    """Return a runner that uses tasks of the session, or this process without one."""
    return in_this_process if spark is None else partial(_in_tasks, spark)


def in_this_process(items: Sequence[Item], work: Callable[[Item], T], unpack: Decoder[T]) -> list[T]:
    """Carry out the items one after another, as tasks would."""
    return [unpack.decode(msgspec.msgpack.encode(work(item))) for item in items]


def _in_tasks(spark: Any, items: Sequence[Item], work: Callable[[Item], T], unpack: Decoder[T]) -> list[T]:
    def packed(item: Item) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"result": [msgspec.msgpack.encode(work(item))]}, schema=_PACKED)

    return [unpack.decode(result) for result in run_in_tasks(spark, items, packed, _PACKED).column(0).to_pylist()]


def chunks_of(partitions: Sequence[T]) -> list[tuple[T, ...]]:
    """Return the partitions in chunks; neighbours, which often are of similar size, go into different chunks."""
    if not partitions:
        return []
    size = min(_CHUNK_MAX, -(-len(partitions) // _CHUNKS))
    count = -(-len(partitions) // size)
    return [tuple(partitions[at::count]) for at in range(count)]
