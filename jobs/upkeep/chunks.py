"""Cuts partitions into chunks, one for each task: big enough to be worth a task, and enough to keep all cores busy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

T = TypeVar("T")
#: A task that fails is repeated, so it must not take long.
_CHUNK_MAX: Final = 128
_CHUNKS: Final = 16


def chunks_of(partitions: Sequence[T]) -> list[tuple[T, ...]]:
    """Return the partitions in chunks; neighbours, which often are of similar size, go into different chunks."""
    if not partitions:
        return []
    size = min(_CHUNK_MAX, -(-len(partitions) // _CHUNKS))
    count = -(-len(partitions) // size)
    return [tuple(partitions[at::count]) for at in range(count)]
