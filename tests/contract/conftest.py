"""Fixtures of the contract tests: servers of object stores, started once, and tables that are opened several times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deltamq.tables.log.bounds import BOUNDS, LogBounds
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.store.store import MemoryStore
from tests.object_servers import SERVERS, ObjectServer, running
from tests.s3_server import ServerUnavailable
from tests.store_proxy import StoreProxy, store_proxy


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    with running(SERVERS["s3"], tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="session")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    with running(SERVERS["azure"], tmp_path_factory.mktemp("azure")) as server:
        yield server


@pytest.fixture(scope="session")
def gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    with running(SERVERS["gcs"], tmp_path_factory.mktemp("gcs")) as server:
        yield server


@pytest.fixture(scope="session")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreProxy]:
    """A proxy before an S3 server of its own, without latency and faults; skipped as `s3` is."""
    try:
        with store_proxy(tmp_path_factory.mktemp("proxied")) as running:
            yield running
    except ServerUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(params=["local", "memory"])
def warehouses(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Warehouse]]:
    """A function that opens the same tables, at each call as a further process would."""
    opened: list[Warehouse] = []
    memory = MemoryStore()

    def open_again(bounds: LogBounds = BOUNDS) -> Warehouse:
        store = memory if request.param == "memory" else None
        opened.append(Warehouse.open(str(tmp_path), store=store, bounds=bounds))
        return opened[-1]

    yield open_again
    for warehouse in opened:
        warehouse.close()
