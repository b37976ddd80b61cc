"""The interface to the storage of tables: local disk, object store or memory.

The whole design rests on one method: `put_if_absent` creates a file under a name that does not exist yet, or returns
that the name exists; of any number of processes exactly one wins. `probe` proves this before a service starts
(SPEC RELY-3).

Keys are relative to the warehouse, with `/`. Data is durable when a call with `durable=True` returns.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Sequence
from typing import Final, Protocol, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from deltamq.mq.errors import READ_ONLY, DeltaMQError, NotFound, StorageFull, Unavailable, Unknown
from deltamq.tables.failpoints import failpoint

#: Key and content of a data file.
NewFile: TypeAlias = tuple[str, pa.Buffer | bytes]
#: How often an answer to the probe may be lost.
_PROBES: Final = 3
_PLAIN: Final = ".mq-probe/plain"


class StoreUnsafe(Unavailable):
    """Put-if-absent does not hold on this warehouse: two writers could overwrite each other."""

    code = "store_unsafe"


class FileMissing(NotFound):
    """A file of a table does not exist."""

    code = "file_missing"


class NotDurable(Unknown):
    """The file is stored and visible to all processes, but a power cut could lose it."""


class ListedFile(msgspec.Struct, frozen=True):
    """One file in a listing: `name` without its folder, `modified_ms` by the store's wall clock."""

    name: str
    size: int
    modified_ms: int


class Store(Protocol):
    """A store of files by key."""

    #: Whether `exists` takes microseconds, so that a writer may check for a file before it does its work.
    cheap_look: bool

    def uri(self, key: str) -> str:
        """Return the URI under which another engine opens the file or folder."""

    def put(self, key: str, data: pa.Buffer | bytes, *, durable: bool) -> None:
        """Write a new file under a name that no other writer uses."""

    def put_if_absent(self, key: str, data: bytes, *, durable: bool) -> bool:
        """Create `key` atomically; return False if it exists already.

        Raises `NotDurable` if the file was created, but not made durable, and `Unknown` if the outcome is not known:
        the caller must read `key` back. False may also mean that an earlier attempt within this call created the file.
        """

    async def put_ahead(self, key: str, data: pa.Buffer | bytes) -> bool:
        """Put a data file long before its commit; return False, and do nothing, where `put_commit` has no need of that.

        A round trip of an object store can pass while the commit before is under way. Raises as `put` does.
        """

    async def put_commit(self, key: str, data: bytes, file: NewFile | None, *, durable: bool) -> bool:
        """Put a data file, if one is given, then create the commit `key`: as `put` and `put_if_absent` do.

        The file is complete, and durable if the commit is, before the commit exists. A commit that lost leaves its
        file, which no commit names then. Raises as `put` and `put_if_absent` do.
        """

    def replace(self, key: str, data: pa.Buffer | bytes) -> None:
        """Write or overwrite a file atomically and durably."""

    def read(self, key: str) -> pa.Buffer:
        """Return the whole file; raises `FileMissing`."""

    def read_each(self, keys: Sequence[str]) -> Sequence[pa.Buffer | None]:
        """Return whole files, None for one that does not exist; at once where each takes a round trip."""

    def read_parts(self, key: str, size: int, ranges: Sequence[tuple[int, int]]) -> pa.Buffer:
        """Return a buffer of `size` bytes with only the byte ranges `[start, stop)` filled; raises `FileMissing`.

        Bytes of a range that lie beyond the end of the file are zero, so that the caller's checksums detect them.
        (Uninitialized memory could hold the right bytes, left by a read before the file was cut.)
        """

    def exists(self, key: str) -> bool: ...

    def stamp(self, folder: str) -> int | None:
        """Return a number that changes when a file of the folder appears or disappears; None if the store has none."""

    def sync(self, keys: list[str]) -> None:
        """Make files that any process wrote with `durable=False` durable, in this order."""

    def entries(self, folder: str) -> list[ListedFile]:
        """Return the files directly in `folder`, sorted by name; an empty list if there is no such folder."""

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in `folder`, sorted: for 100,000 files a tenth of the cost of `entries`."""

    def folders(self, folder: str) -> list[str]:
        """Return the names of the folders directly in `folder`, sorted."""

    def delete(self, key: str) -> None:
        """Remove a file; do nothing if it does not exist."""

    def delete_tree(self, folder: str) -> None:
        """Remove a folder and everything below it: it disappears at once, its space is freed soon after."""

    def prepare(self) -> None:
        """Do in advance what would slow down later writes; called in the background, several times a second."""

    def close(self) -> None:
        """Release what the process holds besides the files."""


def probe(store: Store) -> bool:
    """Prove that `put_if_absent` lets exactly one writer win; raise `StoreUnsafe` otherwise (SPEC RELY-3).

    A full disk passes: readers can use it, and no writer can write to it. So does a store that this process may only
    read, for which the answer is False (SPEC RELY-17).
    """
    for tries in range(1, _PROBES + 1):
        try:
            return _probed(store, f".mq-probe/{uuid.uuid4().hex}")
        except Unknown as error:
            if tries == _PROBES:
                store.replace(_PLAIN, b"plain")  # raises, if the store does not answer at all
                store.delete(_PLAIN)
                detail = f"{store.uri('')} takes a plain put and no conditional one ({error.detail})"
                raise StoreUnsafe(f"{detail}: use local disk, or an object store with conditional put") from error
    raise AssertionError("the last try decides")


def _probed(store: Store, key: str) -> bool:
    """Return whether this process may write, as `probe` does; raise `Unknown` if an answer was lost."""
    try:
        first = store.put_if_absent(key, b"first", durable=True)
        second = store.put_if_absent(key, b"second", durable=True)
        content = store.read(key).to_pybytes()
    except StorageFull:
        return True
    except StoreUnsafe:
        raise
    except Unavailable as error:
        if error.code == READ_ONLY:
            return False
        raise Unavailable(f"{store.uri('')}: {error.detail}", code=error.code) from error
    with contextlib.suppress(DeltaMQError):  # a file that stays does no harm
        store.delete(key)
    if not first or second or content != b"first":
        raise StoreUnsafe(f"{store.uri('')} overwrites files: use local disk, or an object store with conditional put")
    return True


async def put_in_turn(store: Store, key: str, data: bytes, file: NewFile | None, *, durable: bool) -> bool:
    """Put a data file and its commit by one call each: `put_commit` of stores that have no shorter way."""
    if file is not None:
        store.put(*file, durable=durable)
        failpoint("commit.after_data_write")
    return store.put_if_absent(key, data, durable=durable)


def read_in_turn(store: Store, keys: Sequence[str]) -> Sequence[pa.Buffer | None]:
    """Read files one after the other: `read_each` of stores where that is as fast."""

    def read(key: str) -> pa.Buffer | None:
        try:
            return store.read(key)
        except FileMissing:
            return None

    return [read(key) for key in keys]


def sparse_buffer(size: int, ranges: Sequence[tuple[int, int]], parts: Sequence[bytes | pa.Buffer]) -> pa.Buffer:
    """Return a buffer of `size` bytes with each of `parts` at the start of its range, and zeros behind it.

    Bytes outside the ranges are never touched, so they cost no memory.
    """
    space = np.empty(size, dtype=np.uint8)
    for (start, stop), part in zip(ranges, parts, strict=True):
        view = np.frombuffer(part, dtype=np.uint8)[: min(stop, size) - start]
        space[start : start + len(view)] = view
        space[start + len(view) : stop] = 0
    return pa.py_buffer(space)


class MemoryStore:
    """A store in memory for tests and examples; its files are lost when the process ends."""

    cheap_look = True

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}
        self._lock = threading.Lock()
        self._changes = 0

    def uri(self, key: str) -> str:
        return f"memory:///{key}"

    def put(self, key: str, data: pa.Buffer | bytes, *, durable: bool) -> None:
        with self._lock:
            self._files[key] = bytes(data)
            self._changes += 1

    def put_if_absent(self, key: str, data: bytes, *, durable: bool) -> bool:
        with self._lock:
            if key in self._files:
                return False
            self._files[key] = bytes(data)
            self._changes += 1
            return True

    async def put_ahead(self, key: str, data: pa.Buffer | bytes) -> bool:
        return False

    async def put_commit(self, key: str, data: bytes, file: NewFile | None, *, durable: bool) -> bool:
        return await put_in_turn(self, key, data, file, durable=durable)

    def replace(self, key: str, data: pa.Buffer | bytes) -> None:
        self.put(key, data, durable=True)

    def read(self, key: str) -> pa.Buffer:
        data = self._files.get(key)
        if data is None:
            raise FileMissing(key)
        return pa.py_buffer(data)

    def read_each(self, keys: Sequence[str]) -> Sequence[pa.Buffer | None]:
        return read_in_turn(self, keys)

    def read_parts(self, key: str, size: int, ranges: Sequence[tuple[int, int]]) -> pa.Buffer:
        whole = memoryview(self.read(key))
        return sparse_buffer(size, ranges, [bytes(whole[start:stop]) for start, stop in ranges])

    def exists(self, key: str) -> bool:
        return key in self._files

    def stamp(self, folder: str) -> int | None:
        return self._changes

    def sync(self, keys: list[str]) -> None:
        """Do nothing: memory has nothing to sync."""

    def entries(self, folder: str) -> list[ListedFile]:
        prefix = folder and folder.rstrip("/") + "/"
        with self._lock:
            files = {k[len(prefix) :]: len(v) for k, v in self._files.items() if k.startswith(prefix)}
        return [ListedFile(n, size, 0) for n, size in sorted(files.items()) if "/" not in n]

    def names(self, folder: str) -> list[str]:
        return [entry.name for entry in self.entries(folder)]

    def folders(self, folder: str) -> list[str]:
        prefix = folder and folder.rstrip("/") + "/"
        with self._lock:
            tails = [k[len(prefix) :] for k in self._files if k.startswith(prefix)]
        return sorted({t.split("/", 1)[0] for t in tails if "/" in t})

    def delete(self, key: str) -> None:
        with self._lock:
            self._files.pop(key, None)
            self._changes += 1

    def prepare(self) -> None:
        """Do nothing: memory needs no preparation."""

    def close(self) -> None:
        """Do nothing: memory holds nothing to release."""

    def delete_tree(self, folder: str) -> None:
        prefix = folder.rstrip("/") + "/"
        with self._lock:
            for key in [k for k in self._files if k.startswith(prefix)]:
                del self._files[key]
