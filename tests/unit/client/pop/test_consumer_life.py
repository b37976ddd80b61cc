"""What a consumer's run and close have to do with signals."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

import pytest

from deltamq.mq.client.messages.received import OrderedMessage, PoppedMessage
from deltamq.mq.client.orderly.consumer import OrderlyConsumer
from deltamq.mq.client.pop.consumer import PopConsumer
from deltamq.mq.order.orderly import Verdict
from tests.unit.client.orderly.orderly_consumers import PARTITION, Listen, fill, listen
from tests.unit.client.pop.pop_consumers import Consume, Seen
from tests.unit.client.stub_service import StubService

__all__ = ["listen"]


def _to_the_process() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def _to_this_thread() -> None:
    """As the system may do: when a process that was suspended goes on, any of its threads takes what has come."""
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)


def _run(consumer: PopConsumer | OrderlyConsumer) -> None:
    before = signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
    try:
        consumer.run()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert consumer.close(), "everything was finished and handed over"


@pytest.mark.threads
@pytest.mark.parametrize("kill", [_to_the_process, _to_this_thread])
def test_cons_05_a_signal_stops_a_run_whichever_thread_gets_it(
    stub: StubService, consume: Consume, seen: Seen, kill: Callable[[], None]
) -> None:
    stub.queue.fill("orders", 1)

    def handle(message: PoppedMessage) -> None:
        seen(message)
        kill()

    _run(consume(handle, start=False))
    assert seen.numbers == [0]
    assert stub.queue.is_done("billing", "orders")


@pytest.mark.threads
@pytest.mark.parametrize("kill", [_to_the_process, _to_this_thread])
def test_order_05_a_signal_stops_a_run_whichever_thread_gets_it(
    stub: StubService, listen: Listen, kill: Callable[[], None]
) -> None:
    stub.create("orders", 1)
    fill(stub, 1)

    def say(message: OrderedMessage) -> Verdict:
        kill()
        return Verdict.SUCCESS

    _run(listen(say, start=False))
    assert stub.order.committed[PARTITION] == 1
