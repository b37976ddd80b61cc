"""A store in memory whose puts are awaited, as those of an object store are, and held until a test lets them go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

import pyarrow as pa

from deltamq.tables.store.calls import awaited
from deltamq.tables.store.store import MemoryStore, NewFile

__all__ = ["RemoteStore"]

T = TypeVar("T")


class _Held(Generic[T]):
    def __init__(self, store: RemoteStore, key: str, call: Callable[[], T]) -> None:
        self._store = store
        self._key = key
        self._call = call

    def here(self) -> T:
        return self._call()

    async def aside(self) -> T:
        await self._store.passed(self._key)
        return self._call()


class RemoteStore(MemoryStore):
    """Puts of one event loop wait until `go_on`, data files and commits apart; what threads do goes on at once."""

    cheap_look = False

    def __init__(self) -> None:
        super().__init__()
        #: The keys whose puts wait, in the order of their beginning.
        self.held: list[str] = []
        self._gates: dict[str, asyncio.Future[Exception | None]] = {}
        self._holds = False

    def all_keys(self) -> list[str]:
        """Return the keys of all files."""
        return list(self._files)

    def hold(self) -> None:
        """Hold all puts that begin from now on."""
        self._holds = True

    def release(self) -> None:
        """Let everything go on, also what follows."""
        self._holds = False
        for key in list(self.held):
            self.go_on(key)

    def go_on(self, key: str, error: Exception | None = None) -> None:
        """Let a put that waits go on, or fail with `error` without having done anything."""
        self.held.remove(key)
        self._gates.pop(key).set_result(error)

    async def passed(self, key: str) -> None:
        """Return when the put of a key may go on."""
        if self._holds:
            self._gates[key] = asyncio.get_running_loop().create_future()
            self.held.append(key)
            error = await self._gates[key]
            if error is not None:
                raise error

    async def holds(self, *, data: int = 0, commits: int = 0) -> tuple[list[str], list[str]]:
        """Return the data files and commits that wait, once they are so many."""
        while True:
            waiting = [k for k in self.held if k.endswith(".parquet")], [k for k in self.held if k.endswith(".json")]
            if (len(waiting[0]), len(waiting[1])) == (data, commits):
                return waiting
            await asyncio.sleep(0)

    def _awaited(self, key: str, call: Callable[[], T]) -> Coroutine[Any, Any, T]:
        return awaited(_Held(self, key, call))

    async def put_ahead(self, key: str, data: pa.Buffer | bytes) -> bool:
        await self._awaited(key, lambda: self.put(key, data, durable=True))
        return True

    async def put_commit(self, key: str, data: bytes, file: NewFile | None, *, durable: bool) -> bool:
        if file is not None:
            await self.put_ahead(*file)
        return await self._awaited(key, lambda: self.put_if_absent(key, data, durable=durable))
