"""How a consumer ends, and what it refuses to begin."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from deltamq.mq.client.http.retries import Patience
from deltamq.mq.client.messages.received import PoppedMessage
from deltamq.mq.client.pop.consumer import PopConsumer
from deltamq.mq.errors import DeltaMQError, Forbidden, Refused
from tests.unit.client.pop.pop_consumers import QUICK, Consume, Seen, wait_done
from tests.unit.client.stub_queue import QueueFault
from tests.unit.client.stub_service import StubService

# The end -------------------------------------------------------------------------------------------------------


@pytest.mark.promise("SDK-7")
def test_close_gives_back_what_was_not_begun(stub: StubService, consume: Consume, seen: Seen) -> None:
    stub.queue.fill("orders", 12)
    release = threading.Event()

    def handle(message: PoppedMessage) -> None:
        seen.enter()
        release.wait(20)
        seen.leave()
        seen.add(message)

    consumer = consume(handle, concurrency=2, prefetch=10, invisible_ms=60_000)
    stub.queue.wait_for(lambda: consumer.stats().held == 12 and seen.running == 2)
    closing = threading.Thread(target=consumer.close)
    closing.start()
    # The ten that wait are another's at once; the two that run are finished.
    others = Seen(stub)
    consume(others, invisible_ms=60_000)
    stub.queue.wait_for(lambda: len(others.messages) == 10)
    release.set()
    closing.join(10)
    wait_done(stub)
    assert sorted(seen.numbers + others.numbers) == list(range(12))
    assert len(seen.numbers) == 2
    assert consumer.close()
    assert consumer.stats().released == 10


@pytest.mark.promise("SDK-7")
def test_close_gives_back_what_does_not_finish_in_time(
    stub: StubService, consume: Consume, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    stub.queue.fill("orders", 1)
    stuck = threading.Event()

    def handle(message: PoppedMessage) -> None:
        seen.enter()
        stuck.wait(120)

    consumer = consume(handle, invisible_ms=60_000)
    stub.queue.wait_for(lambda: seen.running == 1)
    began = time.monotonic()
    closed = consumer.close(timeout_s=0.2)
    assert time.monotonic() - began < 30, "it does not wait for what is stuck"
    assert (closed.unfinished, closed.untold, bool(closed)) == (1, 0, False)
    assert "event=handlers_unfinished" in caplog.text
    others = Seen(stub)
    consume(others)
    stub.queue.wait_for(lambda: others.numbers == [0])
    stuck.set()
    wait_done(stub)


def test_close_calls_off_a_waiting_pop(stub: StubService, consume: Consume, seen: Seen) -> None:
    stub.queue.fill("orders", 0)
    consumer = consume(seen, wait_ms=20_000)
    stub.queue.wait_for(lambda: stub.queue.pops_open == 1)
    assert consumer.close()
    stub.queue.wait_for(lambda: stub.queue.pops_cancelled == 1)


def test_close_gives_back_what_an_answer_on_its_way_brings(stub: StubService, consume: Consume, seen: Seen) -> None:
    stub.queue.fill("orders", 3)
    stub.queue.faults["pop"].append(QueueFault.GATE_AFTER)
    consumer = consume(seen, invisible_ms=60_000)
    stub.queue.wait_for(lambda: stub.queue.look(lambda twin: twin.in_flight("billing", "orders")) == 3)
    closing = threading.Thread(target=consumer.close)
    closing.start()
    # The pop has been called off when start is refused and the slots are closed; its answer comes only now.
    stub.queue.wait_for(lambda: stub.queue.half_closed == 1)
    stub.queue.gate.set()
    closing.join(10)
    assert seen.messages == []
    assert (consumer.stats().received, consumer.stats().released) == (3, 3)
    others = Seen(stub)
    consume(others)
    stub.queue.wait_for(lambda: len(others.messages) == 3)


def test_a_pop_that_hangs_does_not_keep_a_consumer_from_closing(
    stub: StubService, consume: Consume, seen: Seen
) -> None:
    stub.queue.fill("orders", 1)
    stub.queue.faults["pop"].append(QueueFault.HANG_AFTER)
    consumer = consume(seen)
    stub.queue.wait_for(lambda: stub.queue.look(lambda twin: twin.in_flight("billing", "orders")) == 1)
    began = time.monotonic()
    assert consumer.close()
    assert time.monotonic() - began < 15, "that is how long a pop waits"


def test_close_while_the_service_is_away_says_what_is_untold(stub: StubService, consume: Consume, seen: Seen) -> None:
    stub.queue.fill("orders", 2)
    release = threading.Event()

    def handle(message: PoppedMessage) -> None:
        seen.enter()
        release.wait(20)

    consumer = consume(handle, patience=Patience(first_wait_ms=1, wait_ms_max=20, request_timeout_s=0.2))
    stub.queue.wait_for(lambda: seen.running == 2)
    stub.away = True
    stub.close_connections()
    release.set()
    closed = consumer.close(timeout_s=1)
    assert (closed.unfinished, closed.untold) == (0, 2)


def test_a_handler_stops_its_consumer_but_does_not_close_it(stub: StubService, consume: Consume) -> None:
    stub.queue.fill("orders", 1)
    refused: list[str] = []

    def handle(message: PoppedMessage) -> None:
        try:
            consumer.close()
        except Refused as error:
            refused.append(error.code)
        consumer.stop()

    consumer = consume(handle, start=False)
    consumer.run()
    assert refused == ["close_in_handler"]
    wait_done(stub)


def test_leaving_the_block_closes(stub: StubService, seen: Seen) -> None:
    stub.queue.fill("orders", 5)
    with PopConsumer(stub.url, "billing", "orders", seen, patience=QUICK) as consumer:
        wait_done(stub)
    assert consumer.close()
    stub.queue.faults["pop"].append(QueueFault.FORBIDDEN)
    with pytest.raises(Forbidden), PopConsumer(stub.url, "billing", "orders", seen, patience=QUICK) as consumer:
        stub.queue.wait_for(lambda: consumer.error is not None)


async def asynchronous(message: PoppedMessage) -> None:
    """What no consumer can call."""


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"topics": []}, "topics"),
        ({"topics": "no/topic"}, "topic"),
        ({"group": ""}, "group"),
        ({"concurrency": 0}, "concurrency"),
        ({"prefetch": -1}, "prefetch"),
        ({"batch_messages": 1_025}, "batch_messages"),
        ({"max_messages": 2_000}, "max_messages"),
        ({"format": "json"}, "format"),
        ({"order": "partition"}, "order"),
        ({"wait_ms": 60_000}, "wait_ms"),
        ({"handler": None}, "handler"),
        ({"handler": asynchronous}, "handler"),
    ],
)
def test_a_wrong_argument_is_named(stub: StubService, settings: dict[str, Any], field: str) -> None:
    arguments = {"url": stub.url, "group": "g", "topics": "orders", "handler": print, **settings}
    with pytest.raises(DeltaMQError) as caught:
        PopConsumer(**arguments)
    assert caught.value.field == field
