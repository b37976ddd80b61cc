"""Futures, one-way sends, and the end of a producer: what is queued is sent, and what is not is told (SEND-6)."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from concurrent.futures import as_completed

import pytest

from deltamq.mq.client.produce.producer import Producer
from deltamq.mq.client.produce.routers import Closed
from deltamq.mq.errors import Refused, Unavailable, Unknown
from tests.unit.client.stub_service import StubService
from tests.unit.client.stub_topics import Fault

MakeProducer = Callable[..., Producer]


def test_futures_work_with_as_completed(stub: StubService, producer: Producer) -> None:
    stub.create("orders", 2)
    futures = [producer.send_soon("orders", b"x") for _ in range(50)]
    assert len([f.result() for f in as_completed(futures, timeout=10)]) == 50


@pytest.mark.threads
def test_a_callback_may_send_but_must_not_wait(stub: StubService, producer: Producer) -> None:
    stub.create("orders", 1)
    outcome: list[object] = []
    done = threading.Event()

    def callback(future: object) -> None:
        try:
            producer.send("orders", b"waits")
        except Refused as error:
            outcome.append(error.code)
        outcome.append(producer.send_soon("orders", b"does not wait"))
        done.set()

    gate = threading.Event()
    stub.on_post = lambda post: gate.wait(30)
    producer.send_soon("orders", b"x").add_done_callback(callback)
    gate.set()
    assert done.wait(30)
    assert outcome[0] == "wait_in_callback"
    assert outcome[1].result(timeout=30).offset == 1


def test_send_06_oneway_is_sent_and_a_loss_is_counted(
    stub: StubService, make_producer: MakeProducer, caplog: pytest.LogCaptureFixture
) -> None:
    stub.create("orders", 1)
    producer = make_producer(retries=0)
    producer.send_oneway("orders", b"one")
    assert producer.flush()
    stub.faults.append(Fault.REFUSE)
    producer.send_oneway("orders", b"two")
    assert producer.flush()
    assert stub.bodies("orders") == [b"one"]
    assert producer.stats().oneway_lost == 1
    assert "event=oneway_lost" in caplog.text
    assert "two" not in caplog.text


def test_closing_sends_what_is_queued(stub: StubService, make_producer: MakeProducer) -> None:
    stub.create("orders", 2)
    producer = make_producer(linger_ms=50)
    for n in range(100):
        producer.send_soon("orders", str(n).encode())
    assert producer.close() == Closed(not_sent=0, unresolved=0)
    assert len(stub.bodies("orders")) == 100
    with pytest.raises(Unavailable) as caught:
        producer.send("orders", b"late")
    assert caught.value.code == "producer_closed"
    assert producer.close()


def test_closing_in_vain_says_what_was_not_sent(stub: StubService, make_producer: MakeProducer) -> None:
    stub.create("orders", 1)
    producer = make_producer()
    stub.faults.append(Fault.HANG_BEFORE)
    first = producer.send_soon("orders", b"in flight")
    stub.wait_for(lambda: len(stub.posts) == 1)
    rest = [producer.send_soon("orders", b"queued") for _ in range(3)]
    closed = producer.close(timeout_s=0.1)
    assert closed == Closed(not_sent=3, unresolved=1)
    assert not closed
    assert not first.done() or isinstance(first.exception(), Unknown), "a loop ends what is under way"
    for future in rest:
        with pytest.raises(Unavailable) as caught:
            future.result(timeout=0)
        assert caught.value.code == "not_sent"
    stub.ended.set()
    with pytest.raises(Unknown):
        first.result(timeout=10)


def test_a_with_block_that_loses_messages_does_not_end_in_silence(stub: StubService) -> None:
    stub.create("orders", 1)
    stub.faults.append(Fault.HANG_BEFORE)
    with pytest.raises(Unavailable, match="1 unresolved") as caught, _quickly_closed(stub) as producer:
        producer.send_soon("orders", b"x")
        stub.wait_for(lambda: len(stub.posts) == 1)
    assert caught.value.code == "closed_unsettled"


class _QuicklyClosed(Producer):
    def close(self, timeout_s: float = 0.05) -> Closed:
        return super().close(timeout_s)


def _quickly_closed(stub: StubService) -> Producer:
    return _QuicklyClosed(stub.url)


@pytest.mark.threads
def test_an_interrupted_send_leaves_a_working_producer(stub: StubService, producer: Producer) -> None:
    stub.create("orders", 1)
    producer.send("orders", b"before")
    main = threading.main_thread().ident
    assert main is not None
    # Spark, or a command that ran before in this process, may have put another handler there.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    stub.faults.append(Fault.HANG_BEFORE)
    stub.on_post = lambda post: signal.pthread_kill(main, signal.SIGINT)
    try:
        with pytest.raises(KeyboardInterrupt):
            producer.send("orders", b"interrupted")
    finally:
        signal.signal(signal.SIGINT, handler)
    stub.on_post = lambda post: None
    assert (producer.stats().unknown, producer.stats().unresolved) == (1, 0)
    assert producer.send("orders", b"after").offset == 1
    assert [post.seq for post in stub.posts] == [0, 1, 2]
