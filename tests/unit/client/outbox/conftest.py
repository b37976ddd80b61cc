"""Each test of the relay runs on SQLite and on a real PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deltamq.mq.client.outbox.relay import OutboxRelay
from tests.outbox_database import OutboxDatabase, sqlite_database
from tests.postgresql_server import postgresql_server
from tests.unit.client.on_loop import InShell
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


class LoopSender:
    """A sender of tests, for a relay on an event loop."""

    def __init__(self, sender: Any) -> None:
        self._sender = sender

    async def send_fixed(self, *args: Any, **options: Any) -> asyncio.Future[Any]:
        return asyncio.wrap_future(self._sender.send_fixed(*args, **options))


@pytest.fixture
def make_relay(
    database: OutboxDatabase, service: OutboxService, clock: Clock, in_shell: InShell, request: pytest.FixtureRequest
) -> Iterator[MakeRelay]:
    made: list[OutboxRelay] = []
    on_loop = "loop" in request.node.callspec.params.values()

    def make(**settings: Any) -> OutboxRelay:
        defaults: dict[str, Any] = {"table": database.table, "now_ms": clock, "connect": database.connect}
        arguments = {**defaults, **settings}
        producer = arguments.pop("producer", service)
        if on_loop and hasattr(producer, "send_fixed"):
            producer = LoopSender(producer)
        made.append(in_shell(OutboxRelay, arguments.pop("connect"), producer, **arguments))
        return made[-1]

    yield make
    for relay in made:
        relay.close()
