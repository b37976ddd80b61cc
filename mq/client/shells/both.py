"""Methods of both shells, written once: `both` makes an ordinary method of them, or a coroutine function."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from deltamq.mq.client.shells.shell import Shell, run_now

P = ParamSpec("P")
T = TypeVar("T")


class Blocking:
    """A client with threads."""


class Awaiting:
    """A client on an event loop."""

    shell: Shell


class both(Generic[P, T]):  # a decorator
    """A method of both shells, written as a coroutine function.

    Code of the core calls it by `core`, which is a coroutine function for every client.
    """

    def __init__(self, core: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> None:
        self.core = core
        self.__doc__ = core.__doc__
        self.__name__ = core.__name__
        self.__wrapped__ = core

    @overload
    def __get__(self, client: None, owner: type) -> Self: ...
    @overload
    def __get__(self, client: Blocking, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: Awaiting, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, client: Any, owner: type) -> Any:
        core = self.core
        if client is None:
            return self
        return functools.partial(_run_now if isinstance(client, Blocking) else _checked, core, client)


def _run_now(core: Callable[..., Coroutine[Any, Any, T]], client: Blocking, *args: Any, **options: Any) -> T:
    return run_now(core(client, *args, **options))


async def _checked(core: Callable[..., Coroutine[Any, Any, T]], client: Awaiting, *args: Any, **options: Any) -> T:
    client.shell.check()
    return await core(client, *args, **options)
