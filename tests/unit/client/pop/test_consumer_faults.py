"""Consumers whose handlers are slow, and whose service is away or loses its answers (POP-8, POP-9)."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest

from deltamq.mq.client.messages.received import PoppedMessage, Result
from deltamq.mq.errors import Forbidden, Refused
from tests.unit.client.pop.pop_consumers import Consume, Seen, wait_done
from tests.unit.client.stub_queue import QueueFault
from tests.unit.client.stub_service import StubService

# Long handlers -------------------------------------------------------------------------------------------------


@pytest.mark.promise("SDK-3")
def test_pop_09_a_slow_handler_keeps_its_message(stub: StubService, consume: Consume, seen: Seen) -> None:
    stub.queue.fill("orders", 3)
    release = threading.Event()

    def handle(message: PoppedMessage) -> None:
        seen(message)
        release.wait(20)

    consumer = consume(handle, concurrency=3, invisible_ms=4_000)
    stub.queue.wait_for(lambda: len(seen.messages) == 3)
    other = consume(seen, concurrency=3, invisible_ms=4_000)
    # Each was renewed more often than its invisible time lasted.
    stub.queue.wait_for(lambda: consumer.stats().renewals >= 9)
    release.set()
    wait_done(stub)
    assert sorted(seen.numbers) == [0, 1, 2]
    assert consumer.stats().expired == other.stats().expired == 0


def test_waiting_messages_are_renewed_too(stub: StubService, consume: Consume, seen: Seen) -> None:
    stub.queue.fill("orders", 4)
    release = threading.Event()

    def handle(message: PoppedMessage) -> None:
        seen(message)
        release.wait(20)

    consumer = consume(handle, concurrency=1, prefetch=3, invisible_ms=4_000)
    stub.queue.wait_for(lambda: consumer.stats().renewals >= 12)
    release.set()
    wait_done(stub)
    assert seen.numbers == [0, 1, 2, 3]


def test_renewal_ends_after_the_time_that_is_set(stub: StubService, consume: Consume, seen: Seen) -> None:
    stub.queue.fill("orders", 1)
    stuck = threading.Event()

    def handle(message: PoppedMessage) -> None:
        seen(message)
        if message.delivery_attempt == 1:
            stuck.wait(20)

    consumer = consume(handle, concurrency=2, invisible_ms=1_000, renew_for_s=1.2)
    stub.queue.wait_for(lambda: len(seen.messages) == 2)
    assert consumer.stats().renewals >= 1
    wait_done(stub)
    stuck.set()
    assert consumer.close()
    assert consumer.stats().expired == 1


def test_a_renewal_that_the_service_does_not_answer_is_repeated(
    stub: StubService, consume: Consume, seen: Seen
) -> None:
    stub.queue.fill("orders", 1)
    stub.queue.faults["invisible"].extend([QueueFault.UNAVAILABLE, QueueFault.DROP_BEFORE] * 2)
    release = threading.Event()

    def handle(message: PoppedMessage) -> None:
        seen(message)
        release.wait(20)

    consumer = consume(handle, invisible_ms=4_000)
    stub.queue.wait_for(lambda: consumer.stats().renewals >= 3)
    release.set()
    wait_done(stub)
    assert seen.numbers == [0]


def test_a_new_handle_that_is_lost_means_another_delivery(
    stub: StubService, consume: Consume, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    stub.queue.fill("orders", 1)
    stub.queue.faults["invisible"].append(QueueFault.DROP_AFTER)
    release = threading.Event()

    def handle(message: PoppedMessage) -> None:
        seen(message)
        if message.delivery_attempt == 1:
            release.wait(20)

    consumer = consume(handle, concurrency=2, invisible_ms=1_500)
    stub.queue.wait_for(lambda: len(seen.messages) == 2)
    release.set()
    wait_done(stub)
    assert "event=new_handle_lost" in caplog.text
    assert consumer.stats().expired == 1


def test_pop_08_an_answer_that_comes_too_late_changes_nothing(stub: StubService, consume: Consume, seen: Seen) -> None:
    stub.queue.fill("orders", 1)
    stub.queue.faults["invisible"].extend([QueueFault.UNAVAILABLE] * 1_000)
    late = threading.Event()
    received: list[float] = []

    def handle(message: PoppedMessage) -> None:
        received.append(time.monotonic())
        seen(message)
        if message.delivery_attempt == 1:
            late.wait(20)

    consumer = consume(handle, concurrency=2, invisible_ms=300)
    # The service gives it to another before this consumer, whose clock began later, takes its lease for over.
    stub.queue.wait_for(lambda: len(seen.messages) == 2 and time.monotonic() > received[0] + 0.3)
    late.set()
    wait_done(stub)
    assert consumer.stats().expired >= 1
    stub.queue.fill("orders", 5, start=1)
    wait_done(stub)
    assert sorted(set(seen.numbers)) == list(range(6))


# The service away ----------------------------------------------------------------------------------------------


@pytest.mark.promise("SDK-4")
def test_a_pop_whose_answer_is_lost_loses_nothing(stub: StubService, consume: Consume, seen: Seen) -> None:
    stub.queue.fill("orders", 50)
    stub.queue.faults["pop"].extend([QueueFault.DROP_AFTER, QueueFault.NONE, QueueFault.GARBAGE, QueueFault.DROP_AFTER])
    consumer = consume(seen, concurrency=5, invisible_ms=300)
    wait_done(stub)
    # What was popped in a lost answer comes once its invisible time is over; what is seen twice was acknowledged late.
    assert sorted(set(seen.numbers)) == list(range(50))
    assert consumer.stats().failed_pops >= 2


def test_acknowledgements_carried_by_a_lost_pop_are_told_again(stub: StubService, consume: Consume, seen: Seen) -> None:
    stub.queue.fill("orders", 3)
    stub.queue.faults["pop"].extend([QueueFault.NONE, QueueFault.DROP_BEFORE, QueueFault.DROP_AFTER])
    consumer = consume(seen, concurrency=1, invisible_ms=1_500)
    wait_done(stub)
    assert Counter(seen.numbers) == Counter([0, 1, 2])
    assert consumer.stats().expired == 0


def test_static_19_acknowledgements_for_a_cluster_that_is_away_are_carried_until_it_is_back(
    stub: StubService, consume: Consume, seen: Seen
) -> None:
    stub.queue.fill("orders", 3)
    stub.queue.pops_while_away = 3
    consumer = consume(seen, concurrency=1, invisible_ms=20_000, wait_ms=50)
    wait_done(stub)
    assert seen.numbers == [0, 1, 2]
    assert stub.queue.pops_while_away < 3  # how many pops carry an acknowledgement is up to the threads
    assert consumer.stats().expired == 0


def test_static_19_acknowledgements_for_a_cluster_that_stays_away_end_with_their_leases(
    stub: StubService, consume: Consume, seen: Seen
) -> None:
    stub.queue.fill("orders", 1)
    stub.queue.pops_while_away = 1_000_000
    consumer = consume(seen, concurrency=1, invisible_ms=300)
    stub.queue.wait_for(lambda: consumer.stats().expired == 1)
    stub.queue.pops_while_away = 0
    wait_done(stub)
    assert [one.delivery_attempt for one in seen.messages][:2] == [1, 2]


@pytest.mark.promise("SDK-4")
@pytest.mark.parametrize("fault", [QueueFault.DROP_BEFORE, QueueFault.DROP_AFTER, QueueFault.UNAVAILABLE])
def test_pop_08_an_acknowledgement_whose_answer_is_lost_is_repeated(
    stub: StubService, consume: Consume, seen: Seen, fault: QueueFault
) -> None:
    stub.queue.fill("orders", 2)
    stub.queue.faults["ack"].append(fault)

    def handle(message: PoppedMessage) -> None:
        # The next pop is open: it cannot carry the acknowledgement.
        stub.queue.wait_for(lambda: stub.queue.pops_open == 1)
        seen(message)

    consumer = consume(handle, concurrency=4, ack_within_ms=1)
    stub.queue.wait_for(lambda: len(stub.queue.calls_of("ack")) >= 2)
    wait_done(stub)
    assert sorted(seen.numbers) == [0, 1]
    assert consumer.stats().expired == 0


@pytest.mark.parametrize("fault", [QueueFault.DROP_BEFORE, QueueFault.DROP_AFTER])
def test_a_nack_whose_answer_is_lost_counts_once(
    stub: StubService, consume: Consume, seen: Seen, fault: QueueFault
) -> None:
    stub.queue.fill("orders", 1)
    stub.queue.faults["nack"].append(fault)

    def handle(message: PoppedMessage) -> Result:
        seen(message)
        return Result.OK if message.delivery_attempt > 1 else Result.RETRY(delay_ms=1)

    consumer = consume(handle)
    wait_done(stub)
    assert [message.delivery_attempt for message in seen.messages] == [1, 2]
    assert consumer.stats().expired == 0


def test_a_consumer_goes_on_when_the_service_comes_back(stub: StubService, consume: Consume, seen: Seen) -> None:
    stub.queue.fill("orders", 5)
    consumer = consume(seen)
    wait_done(stub)
    stub.away = True
    stub.close_connections()
    stub.queue.wait_for(lambda: consumer.stats().failed_pops >= 3)
    stub.queue.fill("orders", 5, start=5)
    stub.away = False
    wait_done(stub)
    assert sorted(seen.numbers) == list(range(10))


def test_a_topic_may_come_later(stub: StubService, consume: Consume, seen: Seen) -> None:
    consumer = consume(seen)
    stub.queue.wait_for(lambda: consumer.stats().failed_pops >= 2)
    stub.queue.fill("orders", 3)
    wait_done(stub)
    assert sorted(seen.numbers) == [0, 1, 2]


def test_a_service_that_answers_at_once_with_nothing_is_not_asked_in_a_hurry(
    stub: StubService, consume: Consume, seen: Seen
) -> None:
    stub.queue.fill("orders", 0)
    stub.queue.impatient = True
    consume(seen)
    stub.queue.wait_for(lambda: len(stub.queue.calls_of("pop")) >= 8)
    times = [call.at for call in stub.queue.calls_of("pop")]
    # 5 ms, 10, 20, ... : eight pops take 635 ms of pauses.
    assert times[7] - times[0] >= 0.6
    stub.queue.fill("orders", 1)
    wait_done(stub)


def test_a_waiting_consumer_asks_seldom(stub: StubService, consume: Consume, seen: Seen) -> None:
    stub.queue.fill("orders", 1)
    consumer = consume(seen, wait_ms=300)
    stub.queue.wait_for(lambda: len(stub.queue.calls_of("pop")) >= 5)
    times = [call.at for call in stub.queue.calls_of("pop")]
    assert times[-1] - times[1] >= 0.25 * (len(times) - 2)
    assert consumer.stats().failed_pops == 0


def test_a_refusal_for_good_ends_the_run(stub: StubService, consume: Consume, seen: Seen) -> None:
    stub.queue.fill("orders", 1)
    stub.queue.faults["pop"].append(QueueFault.FORBIDDEN)
    consumer = consume(seen, start=False)
    with pytest.raises(Forbidden):
        consumer.run()
    assert isinstance(consumer.error, Forbidden)
    with pytest.raises(Refused, match="make another one"):
        consumer.start()
