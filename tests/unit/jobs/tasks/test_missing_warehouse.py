"""Where a warehouse's disk is not mounted, nothing but a service that starts may make one (SPEC RELY-10)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from deltamq.jobs.run.locks import shard_lock
from deltamq.jobs.sink.open_sink import OpenSink, SinkSettings
from deltamq.jobs.tasks.warehouse_files import files_at, storage
from deltamq.jobs.tasks.warehouses import warehouse_of
from deltamq.mq.errors import DeltaMQError, NotFound
from deltamq.tables.config import load
from deltamq.tables.log.warehouse import Warehouse, open_store


def _lock(uri: str) -> None:
    with shard_lock(files_at(uri), "merge", "all"):
        pass


WAYS: dict[str, Callable[[str], object]] = {
    "a write": lambda uri: files_at(uri).put("sys/file", b"x", durable=True),
    "a commit": lambda uri: files_at(uri).put_if_absent("sys/_delta_log/0.json", b"x", durable=True),
    "a lock": _lock,
    "a store": lambda uri: open_store(uri, create=False),
    "a warehouse": lambda uri: Warehouse.open(uri, create=False),
    "a task": lambda uri: warehouse_of(load(None, {"warehouse.uri": uri})),
    "a sink": lambda uri: OpenSink(SinkSettings.of(load(None, {}), uri)),
}


@pytest.mark.parametrize("way", WAYS)
def test_rely_10_nothing_is_made_where_the_warehouse_is_not_mounted(tmp_path: Path, way: str) -> None:
    with pytest.raises(DeltaMQError, match="is the warehouse's disk mounted") as gone:
        WAYS[way](str(tmp_path / "lib" / "warehouse"))
    assert gone.value.code == "store_gone" and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["lib", "lib/warehouse"])
def test_rely_10_what_names_a_warehouse_says_that_it_is_not_there(tmp_path: Path, name: str) -> None:
    with pytest.raises(NotFound, match="there is no warehouse"):
        storage(str(tmp_path / name))
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_gone_between_two_writes_is_not_replaced(tmp_path: Path) -> None:
    root = tmp_path / "warehouse"
    store = files_at(str(root), create=True)
    store.put("sys/one", b"x", durable=True)
    root.rename(tmp_path / "unmounted")
    for key in ("sys/two", "topics/orders/file"):
        with pytest.raises(DeltaMQError):
            store.put(key, b"x", durable=True)
    assert [path.name for path in tmp_path.iterdir()] == ["unmounted"]
