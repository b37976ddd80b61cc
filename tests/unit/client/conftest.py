"""The stub service, factories of producers and consumers that are closed at the end, and the command line."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from deltamq.mq.client.cli import root as cli
from deltamq.mq.client.pop.consumer import PopConsumer
from deltamq.mq.client.produce.producer import Producer
from tests.unit.client.cli.cli_run import Done, Run
from tests.unit.client.pop.pop_consumers import QUICK, Consume, Seen
from tests.unit.client.stub_service import StubService


@pytest.fixture
def stub() -> Iterator[StubService]:
    with StubService() as service:
        yield service


@pytest.fixture
def make_producer(stub: StubService) -> Iterator[Callable[..., Producer]]:
    """Make producers with short waits, so that tests of retries are quick."""
    made: list[Producer] = []

    def make(**settings: Any) -> Producer:
        defaults: dict[str, Any] = {"first_wait_ms": 1, "wait_ms_max": 5, "timeout_s": 60, "request_timeout_s": 30}
        made.append(Producer(stub.url, **{**defaults, **settings}))
        return made[-1]

    yield make
    stub.ended.set()
    for producer in made:
        producer.close(timeout_s=1)


@pytest.fixture
def producer(make_producer: Callable[..., Producer]) -> Producer:
    return make_producer()


@pytest.fixture
def run(stub: StubService, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run `deltamq ARGS --url STUB` with the given standard input."""
    for name in ("DELTAMQ_CLIENT_URL", "DELTAMQ_CLIENT_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DELTAMQ_URL", stub.url)

    def run(*arguments: str, stdin: bytes = b"") -> Done:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as end:
            cli.main(arguments)
        sys.stdout.flush()
        out, err = capfdbinary.readouterr()
        return Done(int(end.value.code or 0), out.decode(), err.decode())

    return run


@pytest.fixture
def seen(stub: StubService) -> Seen:
    return Seen(stub)


@pytest.fixture
def consume(stub: StubService) -> Iterator[Consume]:
    made: list[PopConsumer] = []

    def make(
        handler: Any, topics: str | Sequence[str] = "orders", *, start: bool = True, **settings: Any
    ) -> PopConsumer:
        consumer = PopConsumer(stub.url, "billing", topics, handler, **{"patience": QUICK, **settings})
        made.append(consumer)
        if start:
            consumer.start()
        return consumer

    yield make
    stub.ended.set()
    for consumer in made:
        consumer.close(timeout_s=1)
