"""Warehouses, each of a process of its own, on shared files in memory, with a clock that tests move."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from deltamq.tables.log.bounds import BOUNDS, LogBounds
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.settings import LogSettings
from deltamq.tables.store.store import MemoryStore, Store
from tests.faulty_store import FaultyStore
from tests.rows import REF
from tests.set_clock import SetClock

OpenLog = Callable[..., PartitionLog]


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def files() -> MemoryStore:
    """The disk that all processes of a test share."""
    return MemoryStore()


@pytest.fixture
def store(files: MemoryStore) -> FaultyStore:
    """The first process's store on these files."""
    return FaultyStore(files)


@pytest.fixture
def open_log(files: MemoryStore, clock: SetClock) -> Iterator[OpenLog]:
    """A function that opens or creates REF, at each call as a further process with its writer."""
    opened: list[Warehouse] = []

    def open_one(store: Store | None = None, bounds: LogBounds = BOUNDS, **settings: Any) -> PartitionLog:
        warehouse = Warehouse.open(
            "",
            store=store or files,
            settings=LogSettings(**settings),
            clock=clock,
            bounds=bounds,
        )
        opened.append(warehouse)
        return warehouse.create(REF)

    yield open_one
    for warehouse in opened:
        warehouse.close()
