"""Clients of both shells: which shell they have, their `with` blocks, and methods that are written once (`both`)."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, cast, overload

from deltamq.mq.client.shells.shell import Shell, run_now
from deltamq.mq.client.shells.threads import ThreadShell

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class Client:
    """What has a shell, and is closed at the end of its `with` block; `Blocking` or `Awaiting` says how."""

    shell: Shell

    def _make_shell(self) -> Shell:
        raise AssertionError("a client is Blocking or Awaiting, or gets the shell of one that is")

    async def _enter(self) -> None:
        """Begin what a `with` block begins."""

    def _left(self, closed: Any, error: BaseException | None) -> None:
        """Look at what `close` returned, at the end of a block that ends with this error; raise what went wrong."""

    @property
    def _is_elsewhere(self) -> bool:
        """Whether this is the child of a fork, and what would be closed is the parent's."""
        return False


class Blocking(Client):
    """A client with threads."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        _write_out(cls, lambda written: written.blocking())

    def _make_shell(self) -> Shell:
        return ThreadShell()

    def __enter__(self) -> Self:
        run_now(self._enter())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._is_elsewhere:
            # The method of the client's class: users may have a class of their own.
            self._left(cast("Any", self).close(), error)


class Awaiting(Client):
    """A client on an event loop."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        _write_out(cls, lambda written: written.awaiting())

    def _make_shell(self) -> Shell:
        # Programs with threads do not load asyncio.
        from deltamq.mq.client.shells.loop import LoopShell

        return LoopShell(type(self).__name__)

    async def __aenter__(self) -> Self:
        self.shell.check()
        await self._enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left(await cast("Any", self).close(), error)


class Written(ABC, Generic[F]):
    """A method that is written once; code of the core calls it by `core`, which is the same for every client.

    Classes of clients have a plain function in its place, since a send passes here: a descriptor would make another
    object for each call.
    """

    def __init__(self, core: F) -> None:
        self.core = core
        self.__doc__ = core.__doc__
        self.__name__ = core.__name__
        self.__wrapped__ = core

    @abstractmethod
    def blocking(self) -> Callable[..., Any]:
        """Return the method of a client with threads."""

    @abstractmethod
    def awaiting(self) -> Callable[..., Any]:
        """Return the method of a client on an event loop."""


def _write_out(cls: type, method_of: Callable[[Written[Any]], Callable[..., Any]]) -> None:
    for name in dir(cls):
        written = getattr(cls, name, None)
        if isinstance(written, Written):
            setattr(cls, name, functools.wraps(written.core)(method_of(written)))


class both(Written[Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]], Generic[P, T]):  # a decorator
    """A method of both shells, written as a coroutine function."""

    @overload
    def __get__(self, client: None, owner: type) -> Self: ...
    @overload
    def __get__(self, client: Blocking, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: Awaiting, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, client: Any, owner: type) -> Any:
        assert client is None, "a client is Blocking or Awaiting"
        return self

    def blocking(self) -> Callable[..., T]:
        """Return the method of a client with threads."""
        core = self.core

        def method(client: Blocking, *args: Any, **options: Any) -> T:
            return run_now(core(client, *args, **options))

        return method

    def awaiting(self) -> Callable[..., Coroutine[Any, Any, T]]:
        """Return the method of a client on an event loop."""
        core = self.core

        async def method(client: Awaiting, *args: Any, **options: Any) -> T:
            client.shell.check()
            return await core(client, *args, **options)

        return method
