"""The stub service, factories of producers and consumers that are closed at the end, and the command line."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import pytest
from blockbuster import blockbuster_ctx

from deltamq.mq.client.admin.admin import Admin, AsyncAdmin
from deltamq.mq.client.cli import root as cli
from deltamq.mq.client.orderly.consumer import AsyncOrderlyConsumer, OrderlyConsumer
from deltamq.mq.client.outbox.relay import AsyncOutboxRelay, OutboxRelay
from deltamq.mq.client.pop.client import AsyncPopClient, PopClient
from deltamq.mq.client.pop.consumer import AsyncPopConsumer, PopConsumer
from deltamq.mq.client.produce.producer import AsyncProducer, Producer
from deltamq.mq.client.pull.consumer import AsyncPullConsumer, PullConsumer
from tests.unit.client.cli.cli_run import Done, Run
from tests.unit.client.on_loop import InShell, LoopThread, OnLoop
from tests.unit.client.pop.pop_consumers import QUICK, Consume, Seen
from tests.unit.client.stub_service import StubService

#: The client for an event loop of each one for threads.
ON_LOOP: Final[dict[Any, Callable[..., Any]]] = {
    Admin: AsyncAdmin,
    OrderlyConsumer: AsyncOrderlyConsumer,
    OutboxRelay: AsyncOutboxRelay,
    PopClient: AsyncPopClient,
    PopConsumer: AsyncPopConsumer,
    Producer: AsyncProducer,
    PullConsumer: AsyncPullConsumer,
}


@pytest.fixture
def stub() -> Iterator[StubService]:
    with StubService() as service:
        yield service


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Play each case with both shells, unless it is about threads."""
    if "in_shell" in metafunc.fixturenames:
        shells = ["threads"] if metafunc.definition.get_closest_marker("threads") else ["threads", "loop"]
        metafunc.parametrize("in_shell", shells, indirect=True)


@pytest.fixture
def in_shell(request: pytest.FixtureRequest) -> Iterator[InShell]:
    """Make a client for threads, or for an event loop, by the class for threads."""
    if request.param == "threads":
        yield lambda kind, *args, **options: kind(*args, **options)
        return
    # What blocks the loop raises an error there: a wait for a lock or a socket, a sleep, a file.
    with blockbuster_ctx("deltamq.mq.client"):
        loop = LoopThread()
        yield lambda kind, *args, **options: OnLoop(loop, ON_LOOP[kind], *args, **options)
        loop.close()


@pytest.fixture
def make_producer(stub: StubService, in_shell: InShell) -> Iterator[Callable[..., Producer]]:
    """Make producers with short waits, so that tests of retries are quick."""
    made: list[Producer] = []

    def make(**settings: Any) -> Producer:
        defaults: dict[str, Any] = {"first_wait_ms": 1, "wait_ms_max": 5, "timeout_s": 60, "request_timeout_s": 30}
        made.append(in_shell(Producer, stub.url, **{**defaults, **settings}))
        return made[-1]

    yield make
    stub.ended.set()
    for producer in made:
        producer.close(timeout_s=1)


@pytest.fixture
def producer(make_producer: Callable[..., Producer]) -> Producer:
    return make_producer()


@pytest.fixture
def run(stub: StubService, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run `deltamq ARGS --url STUB` with the given standard input."""
    for name in ("DELTAMQ_CLIENT_URL", "DELTAMQ_CLIENT_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DELTAMQ_URL", stub.url)

    def run(*arguments: str, stdin: bytes = b"") -> Done:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as end:
            cli.main(arguments)
        sys.stdout.flush()
        out, err = capsysbinary.readouterr()
        return Done(int(end.value.code or 0), out.decode(), err.decode())

    return run


@pytest.fixture
def seen(stub: StubService) -> Seen:
    return Seen(stub)


@pytest.fixture
def consume(stub: StubService, in_shell: InShell) -> Iterator[Consume]:
    made: list[PopConsumer] = []

    def make(
        handler: Any, topics: str | Sequence[str] = "orders", *, start: bool = True, **settings: Any
    ) -> PopConsumer:
        consumer: PopConsumer = in_shell(
            PopConsumer, stub.url, "billing", topics, handler, **{"patience": QUICK, **settings}
        )
        made.append(consumer)
        if start:
            consumer.start()
        return consumer

    yield make
    stub.ended.set()
    for consumer in made:
        consumer.close(timeout_s=1)
