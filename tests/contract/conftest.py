"""Fixtures of the contract tests: the S3 server, started once, and tables that are opened several times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deltamq.tables.log.bounds import BOUNDS, LogBounds
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.store.store import MemoryStore
from tests.s3_server import S3Server, ServerUnavailable, s3_server


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real S3 API server; if there is none, tests that need it are skipped with the reason."""
    try:
        with s3_server(tmp_path_factory.mktemp("s3")) as server:
            yield server
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
