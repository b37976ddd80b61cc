"""A partition with everything that a log may have, and processes that verify it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.settings import LogSettings
from deltamq.tables.store.store import MemoryStore
from tests.rows import REF, batch, numbered_bodies
from tests.set_clock import SetClock
from tests.unit.tables.ops.damage import OTHER, OpenWarehouse


@pytest.fixture
def open_warehouse(files: MemoryStore, clock: SetClock) -> Iterator[OpenWarehouse]:
    opened: list[Warehouse] = []

    def open_one(store: Any = None, **settings: Any) -> Warehouse:
        settings = {"flush_interval_ms": 3_600_000, **settings}
        found = Warehouse.open("", store=store or files, settings=LogSettings(**settings), clock=clock)
        opened.append(found)
        return found

    yield open_one
    for warehouse in opened:
        warehouse.close()


@pytest.fixture
def log(open_warehouse: OpenWarehouse) -> PartitionLog:
    """A log of eleven commits with a checkpoint of version 8 and one roll-up, next to another partition."""
    warehouse = open_warehouse(rollup_files=8, checkpoint_commits=9, log_keep_ms=1_000)
    warehouse.create(OTHER).append([batch(b"other")])
    log = warehouse.create(REF)
    for body in numbered_bodies("m", 10):
        log.append([batch(body)])
        log.maintain()
    assert (log.version, log.checkpoint_version, len(log.files)) == (11, 9, 3)
    return log


@pytest.fixture
def warehouse(open_warehouse: OpenWarehouse) -> Warehouse:
    """The warehouse of another process, which verifies."""
    return open_warehouse()
