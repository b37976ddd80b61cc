"""Partitions in chunks, one for each task: few enough that a task is worth its start, enough that all cores work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

__all__ = ["chunks_of"]

T = TypeVar("T")
#: A task that fails is repeated, so it must not be long either.
_CHUNK_MAX: Final = 128
_CHUNKS: Final = 16


def chunks_of(found: Sequence[T]) -> list[tuple[T, ...]]:
    """Return all of `found` in chunks; neighbours, which may be alike in size, go to different ones."""
    if not found:
        return []
    size = min(_CHUNK_MAX, -(-len(found) // _CHUNKS))
    count = -(-len(found) // size)
    return [tuple(found[at::count]) for at in range(count)]
