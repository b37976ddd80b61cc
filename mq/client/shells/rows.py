"""Methods of both shells that yield rows, written once: `both_rows`."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from deltamq.mq.client.shells.both import Awaiting, Blocking, Written
from deltamq.mq.client.shells.shell import run_now

P = ParamSpec("P")
T = TypeVar("T")


class both_rows(Written[Callable[Concatenate[Any, P], AsyncGenerator[T, None]]], Generic[P, T]):  # a decorator
    """A method of both shells that yields rows, written as an asynchronous generator."""

    @overload
    def __get__(self, client: None, owner: type) -> Self: ...
    @overload
    def __get__(self, client: Blocking, owner: type) -> Callable[P, Generator[T, None, None]]: ...
    @overload
    def __get__(self, client: Awaiting, owner: type) -> Callable[P, AsyncGenerator[T, None]]: ...
    def __get__(self, client: Any, owner: type) -> Any:
        assert client is None, "a client is Blocking or Awaiting"
        return self

    def blocking(self) -> Callable[..., Generator[T, None, None]]:
        """Return the method of a client with threads."""
        core = self.core

        def method(client: Blocking, *args: Any, **options: Any) -> Generator[T, None, None]:
            rows = core(client, *args, **options)
            try:
                while True:
                    try:
                        row = run_now(_next(rows))
                    except StopAsyncIteration:
                        return
                    yield row
            finally:
                run_now(rows.aclose())

        return method

    def awaiting(self) -> Callable[..., AsyncGenerator[T, None]]:
        """Return the method of a client on an event loop."""
        core = self.core

        async def method(client: Awaiting, *args: Any, **options: Any) -> AsyncGenerator[T, None]:
            client.shell.check()
            async with contextlib.aclosing(core(client, *args, **options)) as rows:
                async for row in rows:
                    yield row

        return method


async def _next(rows: AsyncGenerator[T, None]) -> T:
    return await anext(rows)
