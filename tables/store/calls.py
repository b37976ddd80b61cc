"""Appends as coroutines that await calls of the store: the code that runs one decides where these are made.

coroutine --awaits a StoreCall--> blocking()     makes it on this thread
                              --> an event loop  has it made by a native thread, the network's client, or a thread,
                                                 and goes on with other partitions meanwhile
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, cast

T = TypeVar("T")
Returned = TypeVar("Returned", covariant=True)


class StoreCall(Protocol[Returned]):
    """One call of the store, or other long work, not begun yet."""

    def here(self) -> Returned:
        """Make the call on this thread, and return its result or raise its error."""

    def aside(self) -> Coroutine[Any, Any, Returned]:
        """Return the call as a coroutine of the running event loop, which does not block it."""


#: A coroutine that awaits nothing but store calls.
Work: TypeAlias = Coroutine[Any, Any, T]


class _Awaited(Generic[T]):
    __slots__ = ("_call",)

    def __init__(self, call: StoreCall[T]) -> None:
        self._call = call

    def __await__(self) -> Generator[StoreCall[T], T, T]:
        return (yield self._call)


async def awaited(call: StoreCall[T]) -> T:
    """Return the result of a call, once the code that runs the coroutine has had it made; raise its error."""
    outcome: T = await _Awaited(call)
    return outcome


class ThreadCall(Generic[T]):
    """What blocks or computes for long: an event loop has it done by a thread."""

    __slots__ = ("_work",)

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work

    def here(self) -> T:
        return self._work()

    async def aside(self) -> T:
        return await asyncio.to_thread(self._work)


async def on_a_thread(work: Callable[[], T]) -> T:
    """Do what blocks or computes for long, off the event loop if one runs the coroutine."""
    return await awaited(ThreadCall(work))


def blocking(work: Work[T]) -> T:
    """Run a coroutine to its end on this thread, and return its result."""
    try:
        call = work.send(None)
        while True:
            try:
                outcome = call.here()
            except Exception as error:
                call = work.throw(error)
            else:
                call = work.send(outcome)
    except StopIteration as end:
        return cast("T", end.value)
