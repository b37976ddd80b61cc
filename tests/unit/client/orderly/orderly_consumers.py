"""Helpers of tests of ordered consumers: messages by partition, and listeners that record."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from deltamq.mq.client.messages.received import OrderedMessage
from deltamq.mq.client.orderly.consumer import OrderlyConsumer
from deltamq.mq.order.orderly import Verdict
from tests.unit.client.on_loop import InShell
from tests.unit.client.pop.pop_consumers import QUICK
from tests.unit.client.stub_service import StubService

__all__ = ["PARTITION", "Ear", "Listen", "fill", "listen"]

PARTITION = "orders@broker-a"

Listen = Callable[..., OrderlyConsumer]


def fill(stub: StubService, count: int, partition: str = PARTITION, **fields: Any) -> None:
    """Add `count` messages to one partition."""
    with stub.changed:
        log = stub.topics["orders"].log(partition)
        log += [{"offset": at, "body": str(at).encode(), **fields} for at in range(len(log), len(log) + count)]
        stub.changed.notify_all()


class Ear:
    """A listener that records its messages, and returns the verdicts that the test wants."""

    def __init__(self, stub: StubService, say: Callable[[OrderedMessage], object] = lambda _: Verdict.SUCCESS) -> None:
        self._stub = stub
        self._say = say
        self.heard: list[OrderedMessage] = []
        self.running: dict[str, int] = defaultdict(int)
        #: Maximum number of calls at once, in one partition and in all.
        self.most_in_one = self.most = 0
        self.threads: set[int] = set()

    def __call__(self, message: OrderedMessage) -> object:
        with self._stub.changed:
            self.heard.append(message)
            self.threads.add(threading.get_ident())
            self.running[message.partition] += 1
            self.most_in_one = max(self.most_in_one, self.running[message.partition])
            self.most = max(self.most, sum(self.running.values()))
            self._stub.changed.notify_all()
        try:
            return self._say(message)
        finally:
            with self._stub.changed:
                self.running[message.partition] -= 1
                self._stub.changed.notify_all()

    def offsets(self, partition: str = PARTITION) -> list[int]:
        with self._stub.changed:
            return [message.offset for message in self.heard if message.partition == partition]


@pytest.fixture
def listen(stub: StubService, in_shell: InShell) -> Iterator[Listen]:
    """Make ordered consumers of the exclusive group `ledger` that are closed at the end."""
    made: list[OrderlyConsumer] = []
    stub.order.strategies["ledger"] = "exclusive"
    with stub.changed:
        stub.queue.twin.put_group("ledger", consume_strategy="exclusive", max_attempts=3)

    def make(listener: Any, *, start: bool = True, **settings: Any) -> OrderlyConsumer:
        defaults = {"suspend_ms": 10, "commit_ms": 5, "patience": QUICK}
        made.append(in_shell(OrderlyConsumer, stub.url, "ledger", "orders", listener, **{**defaults, **settings}))
        if start:
            made[-1].start()
        return made[-1]

    yield make
    stub.ended.set()
    for consumer in made:
        consumer.close(timeout_s=1)
