"""Helpers of tests of consumers: handlers that record, and a wait until a group is done."""

from __future__ import annotations

from collections.abc import Callable

from deltamq.mq.client.http.retries import Patience
from deltamq.mq.client.messages.received import PoppedMessage
from deltamq.mq.client.pop.consumer import PopConsumer
from tests.unit.client.stub_service import StubService

__all__ = ["QUICK", "Consume", "Seen", "wait_done"]

Consume = Callable[..., PopConsumer]
QUICK = Patience(first_wait_ms=1, wait_ms_max=20, timeout_s=5, request_timeout_s=2)


class Seen:
    """A handler that records its messages in order; other handlers may add theirs."""

    def __init__(self, stub: StubService) -> None:
        self._stub = stub
        self.messages: list[PoppedMessage] = []
        self.running = self.running_max = 0

    def __call__(self, message: PoppedMessage) -> None:
        self.add(message)

    def add(self, *messages: PoppedMessage) -> None:
        with self._stub.changed:
            self.messages += messages
            self._stub.changed.notify_all()

    def enter(self) -> None:
        with self._stub.changed:
            self.running += 1
            self.running_max = max(self.running, self.running_max)
            self._stub.changed.notify_all()

    def leave(self) -> None:
        with self._stub.changed:
            self.running -= 1

    @property
    def numbers(self) -> list[int]:
        return [int(message.body) for message in self.messages]


def wait_done(stub: StubService, topic: str = "orders", timeout_s: float = 20.0) -> None:
    stub.queue.wait_for(lambda: stub.queue.is_done("billing", topic), timeout_s)
