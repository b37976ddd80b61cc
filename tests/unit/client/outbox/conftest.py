"""Each test of the relay runs on SQLite and on a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deltamq.mq.client.outbox.relay import OutboxRelay
from tests.outbox_database import OutboxDatabase, sqlite_database
from tests.postgresql_server import postgresql_server
from tests.unit.client.outbox.outbox_service import OutboxService

MakeRelay = Callable[..., OutboxRelay]


@pytest.fixture(scope="package")
def postgresql_url() -> Iterator[str]:
    with postgresql_server() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> OutboxDatabase:
    if request.param == "sqlite":
        return sqlite_database(tmp_path)
    return OutboxDatabase(request.getfixturevalue("postgresql_url"))


@pytest.fixture
def service() -> OutboxService:
    return OutboxService()


class Clock:
    """The relays' clock, in ms, which stands still unless a test moves it."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make_relay(database: OutboxDatabase, service: OutboxService, clock: Clock) -> Iterator[MakeRelay]:
    made: list[OutboxRelay] = []

    def make(**settings: Any) -> OutboxRelay:
        defaults: dict[str, Any] = {"table": database.table, "now_ms": clock, "connect": database.connect}
        arguments = {**defaults, **settings}
        made.append(OutboxRelay(arguments.pop("connect"), arguments.pop("producer", service), **arguments))
        return made[-1]

    yield make
    for relay in made:
        relay.close()
