"""The stub service and a producer factory whose producers are closed at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mq.client import Producer
from tests.unit.client.stub_service import StubService


@pytest.fixture
def stub() -> Iterator[StubService]:
    with StubService() as service:
        yield service


@pytest.fixture
def make_producer(stub: StubService) -> Iterator[Callable[..., Producer]]:
    """Producers with short waits, so that a test of retries takes no seconds."""
    made: list[Producer] = []

    def make(**settings: Any) -> Producer:
        defaults: dict[str, Any] = {"first_wait_ms": 1, "wait_ms_max": 5, "timeout_s": 10, "request_timeout_s": 5}
        made.append(Producer(stub.url, **{**defaults, **settings}))
        return made[-1]

    yield make
    stub.ended.set()
    for producer in made:
        producer.close(timeout_s=1)


@pytest.fixture
def producer(make_producer: Callable[..., Producer]) -> Producer:
    return make_producer()
