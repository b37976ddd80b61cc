"""The port to where tables lie: local disk, object store or memory, behind six calls.

The whole design rests on one of them: `put_if_absent` stores a file under a name that does not exist yet, or says
that it does; of any number of processes exactly one wins. `probe` proves it before a service starts (RELIABILITY R3).

Keys are relative to the warehouse, with `/`. Data is durable when a call with `durable=True` returns.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from mq.errors import NotFound, Unavailable, Unknown

__all__ = ["Entry", "FileMissing", "MemoryStore", "NotDurable", "Store", "StoreUnsafe", "probe", "sparse_buffer"]


class StoreUnsafe(Unavailable):
    """Put-if-absent does not hold on this warehouse: two writers could overwrite each other."""

    code = "store_unsafe"


class FileMissing(NotFound):
    """A file of a table is not there."""

    code = "file_missing"


class NotDurable(Unknown):
    """The file is stored and seen by all, but a power cut could take it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of a listing: `name` without its folder, `modified_ms` by the store's wall clock."""

    name: str
    size: int
    modified_ms: int


class Store(Protocol):
    """Files by key."""

    #: True where asking for one file costs microseconds, so that a writer may look before it works.
    cheap_look: bool

    def uri(self, key: str) -> str:
        """What another engine opens."""

    def put(self, key: str, data: pa.Buffer | bytes, *, durable: bool) -> None:
        """Write a new file whose name nobody else uses."""

    def put_if_absent(self, key: str, data: bytes, *, durable: bool) -> bool:
        """Create `key` atomically; False when it exists.

        Raises `NotDurable` when it was created, but not made durable, and `Unknown` when the outcome cannot be told:
        the caller must read `key` back. False may also mean that an earlier try of this very call created it.
        """

    def replace(self, key: str, data: pa.Buffer | bytes) -> None:
        """Write or overwrite atomically and durably."""

    def read(self, key: str) -> pa.Buffer:
        """The whole file; raises `FileMissing`."""

    def read_parts(self, key: str, size: int, ranges: Sequence[tuple[int, int]]) -> pa.Buffer:
        """A buffer of `size` bytes in which only the byte ranges `[start, stop)` are filled; raises `FileMissing`.

        What the file does not have of a range is zeros, so that the caller's checksums see it. (Left as it happens to
        be in memory it could be the right bytes, of an earlier read of the then whole file.)
        """

    def exists(self, key: str) -> bool: ...

    def sync(self, keys: list[str]) -> None:
        """Make files that were written with `durable=False`, by whichever process, durable in this order."""

    def entries(self, folder: str) -> list[Entry]:
        """Files directly in `folder`, sorted by name; empty when there is no such folder."""

    def names(self, folder: str) -> list[str]:
        """The names alone, sorted: of a hundred thousand files they cost a tenth."""

    def folders(self, folder: str) -> list[str]:
        """Names of the folders directly in `folder`, sorted."""

    def delete(self, key: str) -> None:
        """Remove a file; one that is gone is no error."""

    def delete_tree(self, folder: str) -> None:
        """Remove a folder with all below it; out of sight at once, out of space soon."""

    def prepare(self) -> None:
        """Do ahead what would slow coming writes; called in the background, several times a second."""

    def close(self) -> None:
        """Let go of what the process holds beside the files."""


def probe(store: Store) -> None:
    """Prove that `put_if_absent` lets exactly one writer win; raise `StoreUnsafe` otherwise (RELIABILITY R3)."""
    key = f".mq-probe/{uuid.uuid4().hex}"
    try:
        first = store.put_if_absent(key, b"first", durable=True)
        second = store.put_if_absent(key, b"second", durable=True)
        content = store.read(key).to_pybytes()
    finally:
        store.delete(key)
    if not first or second or content != b"first":
        raise StoreUnsafe(f"{store.uri('')} overwrites files: use local disk, or an object store with conditional put")


def sparse_buffer(size: int, ranges: Sequence[tuple[int, int]], parts: Sequence[bytes | pa.Buffer]) -> pa.Buffer:
    """`size` bytes with what was read of each range at its place, and zeros for what was not.

    What is in no range is never touched, so it costs no memory.
    """
    space = np.empty(size, dtype=np.uint8)
    for (start, stop), part in zip(ranges, parts, strict=True):
        view = np.frombuffer(part, dtype=np.uint8)[: min(stop, size) - start]
        space[start : start + len(view)] = view
        space[start + len(view) : stop] = 0
    return pa.py_buffer(space)


class MemoryStore:
    """Twin of the real stores for tests and examples; everything is lost when the process ends."""

    cheap_look = True

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def uri(self, key: str) -> str:
        return f"memory:///{key}"

    def put(self, key: str, data: pa.Buffer | bytes, *, durable: bool) -> None:
        with self._lock:
            self._files[key] = bytes(data)

    def put_if_absent(self, key: str, data: bytes, *, durable: bool) -> bool:
        with self._lock:
            if key in self._files:
                return False
            self._files[key] = bytes(data)
            return True

    def replace(self, key: str, data: pa.Buffer | bytes) -> None:
        self.put(key, data, durable=True)

    def read(self, key: str) -> pa.Buffer:
        data = self._files.get(key)
        if data is None:
            raise FileMissing(key)
        return pa.py_buffer(data)

    def read_parts(self, key: str, size: int, ranges: Sequence[tuple[int, int]]) -> pa.Buffer:
        whole = memoryview(self.read(key))
        return sparse_buffer(size, ranges, [bytes(whole[start:stop]) for start, stop in ranges])

    def exists(self, key: str) -> bool:
        return key in self._files

    def sync(self, keys: list[str]) -> None:
        """Memory has nothing to sync."""

    def entries(self, folder: str) -> list[Entry]:
        prefix = folder.rstrip("/") + "/"
        with self._lock:
            files = {k[len(prefix) :]: len(v) for k, v in self._files.items() if k.startswith(prefix)}
        return [Entry(n, size, 0) for n, size in sorted(files.items()) if "/" not in n]

    def names(self, folder: str) -> list[str]:
        return [entry.name for entry in self.entries(folder)]

    def folders(self, folder: str) -> list[str]:
        prefix = folder.rstrip("/") + "/"
        with self._lock:
            tails = [k[len(prefix) :] for k in self._files if k.startswith(prefix)]
        return sorted({t.split("/", 1)[0] for t in tails if "/" in t})

    def delete(self, key: str) -> None:
        with self._lock:
            self._files.pop(key, None)

    def prepare(self) -> None:
        """Memory needs no preparing."""

    def close(self) -> None:
        """Memory needs no closing."""

    def delete_tree(self, folder: str) -> None:
        prefix = folder.rstrip("/") + "/"
        with self._lock:
            for key in [k for k in self._files if k.startswith(prefix)]:
                del self._files[key]
