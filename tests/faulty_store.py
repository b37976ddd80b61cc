"""A store around another one, which fails as a test demands."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from deltamq.tables.store.file_pool import PoolingFiles
from deltamq.tables.store.local import LocalStore
from deltamq.tables.store.store import ListedFile, NewFile, Store, put_in_turn, read_in_turn

__all__ = ["FaultyStore", "HeldReads", "failing", "faulty_disk"]

T = TypeVar("T")
Fault = Callable[[str], None]


def failing(error: Exception) -> Fault:
    """Return a fault that raises `error`."""

    def fail(key: str) -> None:
        raise error

    return fail


class FaultyStore:
    """Forwards every call; `before[name]` and `after[name]` run before and after the call of that name, with its key.

    The caller sees their exceptions: after one of `before`, nothing was done; after one of `after`, everything was. A
    fault stays until it is removed, unless it was set by `once`. `calls` are all calls that began, in order.
    """

    def __init__(self, store: Store, *, cheap_look: bool | None = None) -> None:
        self._store = store
        self.cheap_look = store.cheap_look if cheap_look is None else cheap_look
        self.before: dict[str, Fault] = {}
        self.after: dict[str, Fault] = {}
        self.calls: list[tuple[str, str]] = []

    def once(self, when: str, name: str, fault: Fault, *, key: str = "") -> None:
        """Let `fault` run at the next call of `name` whose key contains `key`."""
        faults = self.before if when == "before" else self.after

        def run(called: str) -> None:
            if key in called:
                del faults[name]
                fault(called)

        faults[name] = run

    def keys(self, name: str) -> list[str]:
        """Return the keys of the calls of `name`, in order."""
        return [key for called, key in self.calls if called == name]

    def _around(self, name: str, key: str, call: Callable[[], T]) -> T:
        self.calls.append((name, key))
        if name in self.before:
            self.before[name](key)
        result = call()
        if name in self.after:
            self.after[name](key)
        return result

    def uri(self, key: str) -> str:
        return self._store.uri(key)

    def put(self, key: str, data: pa.Buffer | bytes, *, durable: bool) -> None:
        self._around("put", key, lambda: self._store.put(key, data, durable=durable))

    def put_if_absent(self, key: str, data: bytes, *, durable: bool) -> bool:
        return self._around("put_if_absent", key, lambda: self._store.put_if_absent(key, data, durable=durable))

    async def put_ahead(self, key: str, data: pa.Buffer | bytes) -> bool:
        if not self.cheap_look:
            self.put(key, data, durable=True)
        return not self.cheap_look

    async def put_commit(self, key: str, data: bytes, file: NewFile | None, *, durable: bool) -> bool:
        return await put_in_turn(self, key, data, file, durable=durable)

    def replace(self, key: str, data: pa.Buffer | bytes) -> None:
        self._around("replace", key, lambda: self._store.replace(key, data))

    def read(self, key: str) -> pa.Buffer:
        return self._around("read", key, lambda: self._store.read(key))

    def read_each(self, keys: Sequence[str]) -> Sequence[pa.Buffer | None]:
        return read_in_turn(self, keys)

    def read_parts(self, key: str, size: int, ranges: Sequence[tuple[int, int]]) -> pa.Buffer:
        return self._around("read_parts", key, lambda: self._store.read_parts(key, size, ranges))

    def exists(self, key: str) -> bool:
        return self._around("exists", key, lambda: self._store.exists(key))

    def stamp(self, folder: str) -> int | None:
        return self._store.stamp(folder)

    def sync(self, keys: list[str]) -> None:
        self._around("sync", ",".join(keys), lambda: self._store.sync(keys))

    def entries(self, folder: str) -> list[ListedFile]:
        return self._around("entries", folder, lambda: self._store.entries(folder))

    def names(self, folder: str) -> list[str]:
        return self._around("names", folder, lambda: self._store.names(folder))

    def folders(self, folder: str) -> list[str]:
        return self._around("folders", folder, lambda: self._store.folders(folder))

    def delete(self, key: str) -> None:
        self._around("delete", key, lambda: self._store.delete(key))

    def delete_tree(self, folder: str) -> None:
        self._around("delete_tree", folder, lambda: self._store.delete_tree(folder))

    def prepare(self) -> None:
        self._store.prepare()

    def close(self) -> None:
        self._store.close()


def faulty_disk(folder: Path) -> FaultyStore:
    """Return a faulty store around a folder of the local disk, as a service opens it."""
    folder.mkdir(parents=True, exist_ok=True)
    return FaultyStore(LocalStore(folder, PoolingFiles(str(folder))))


class HeldReads:
    """Holds the reads of data files, once begun, until `release`."""

    def __init__(self) -> None:
        self._began = threading.Event()
        self._released = threading.Event()

    def begin(self, store: FaultyStore) -> None:
        """Hold the reads of `store` from now on."""
        store.before["read"] = store.before["read_parts"] = self._hold

    def wait(self) -> None:
        """Wait until a read is held."""
        assert self._began.wait(30), "nothing was read"

    def release(self) -> None:
        """Let all reads go on, also those that follow."""
        self._released.set()

    def _hold(self, key: str) -> None:
        if key.endswith(".parquet"):
            self._began.set()
            assert self._released.wait(60)
