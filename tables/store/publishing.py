"""Commits as coroutines: the code that runs one decides where its file calls are made.

coroutine --awaits a Publishing--> blocking()         makes them on this thread
                               --> NativePool.begin    has them made on a thread without Python, and goes on later
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any, Protocol, TypeAlias, TypeVar

from deltamq.tables.store.file_system import Failed

T = TypeVar("T")


class Publishing(Protocol):
    """The file calls of one commit, not begun yet."""

    def here(self) -> Failed | None:
        """Make the calls on this thread; return what failed, None if nothing did."""


#: A coroutine that awaits nothing but the outcome of publications.
Work: TypeAlias = Coroutine[Any, Any, T]


class _Awaited:
    __slots__ = ("_publishing",)

    def __init__(self, publishing: Publishing) -> None:
        self._publishing = publishing

    def __await__(self) -> Generator[Publishing, Failed | None, Failed | None]:
        return (yield self._publishing)


async def awaited(publishing: Publishing) -> Failed | None:
    """Return what failed, once the code that runs the coroutine has had the calls made."""
    return await _Awaited(publishing)


def blocking(work: Work[T]) -> T:
    """Run a coroutine to its end on this thread, and return its result."""
    failed: Failed | None = None
    try:
        while True:
            failed = work.send(failed).here()
    except StopIteration as end:
        result: T = end.value
        return result
