"""The stores that must keep a contract: memory, local disk (plain and recycling), and servers of object stores."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deltamq.tables.store.file_pool import PoolingFiles
from deltamq.tables.store.local import LocalStore
from deltamq.tables.store.store import MemoryStore, Store

__all__ = ["OBJECT_STORES", "STORES", "OpenAgain", "opened_again"]

#: Names of fixtures with a server.
OBJECT_STORES = ["s3", *(pytest.param(name, marks=pytest.mark.long) for name in ("azure", "gcs"))]
STORES = ["memory", "local", "recycling", *OBJECT_STORES]
OpenAgain = Callable[[], Store]


def opened_again(request: pytest.FixtureRequest, folder: Path) -> Iterator[OpenAgain]:
    """Return, in a fixture with `params=STORES`, a function that opens a store on the same files as another process."""
    memory = MemoryStore()
    opened: list[Store] = []
    prefix = uuid.uuid4().hex

    def open_one() -> Store:
        store: Store
        if request.param == "memory":
            store = memory
        elif request.param == "local":
            store = LocalStore(folder)
        elif request.param == "recycling":
            store = LocalStore(folder, PoolingFiles(str(folder)))
        else:
            store = request.getfixturevalue(request.param).store(prefix)
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        store.close()
