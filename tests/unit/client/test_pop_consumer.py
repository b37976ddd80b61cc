"""The consumer of a group: each message handled at least once, once when nothing fails (CONS-5, CONS-6, POP)."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from mq.client import Patience, PopConsumer, PoppedMessage, Result
from mq.errors import DeltaMQError, Forbidden, Refused
from tests.unit.client.stub_queue import QueueFault
from tests.unit.client.stub_service import StubService

MakeConsumer = Callable[..., PopConsumer]
QUICK = Patience(first_wait_ms=1, wait_ms_max=20, timeout_s=5, request_timeout_s=2)


class Seen:
    """What handlers got, in order; a handler by itself."""

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


@pytest.fixture
def seen(stub: StubService) -> Seen:
    return Seen(stub)


@pytest.fixture
def make(stub: StubService) -> Iterator[MakeConsumer]:
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


def wait_done(stub: StubService, topic: str = "orders", timeout_s: float = 20.0) -> None:
    stub.queue.wait_for(lambda: stub.queue.is_done("billing", topic), timeout_s)


# Done once -----------------------------------------------------------------------------------------------------


def test_every_message_is_handled_once_and_acknowledged(stub: StubService, make: MakeConsumer, seen: Seen) -> None:
    stub.queue.fill("orders", 500, partitions=3)
    consumer = make(seen)
    wait_done(stub)
    assert sorted(seen.numbers) == list(range(500))
    closed = consumer.close()
    assert closed
    stats = consumer.stats()
    assert (stats.received, stats.ok, stats.expired, stats.held) == (500, 500, 0, 0)


def test_a_message_carries_what_its_producer_sent(stub: StubService, make: MakeConsumer, seen: Seen) -> None:
    stub.queue.fill("orders", 1, key="k", tag="T", headers={"a": "b"}, message_id="m-1")
    make(seen)
    stub.queue.wait_for(lambda: bool(seen.messages))
    (message,) = seen.messages
    assert (message.topic, message.partition, message.offset) == ("orders", "orders@memory", 0)
    assert (message.body, message.key, message.tag, message.headers) == (b"0", "k", "T", {"a": "b"})
    assert (message.message_id, message.delivery_attempt) == ("m-1", 1)
    assert message.append_us is not None
    assert message.handle


def test_messages_that_come_later_are_handled_at_once(stub: StubService, make: MakeConsumer, seen: Seen) -> None:
    stub.queue.fill("orders", 0)
    make(seen)
    stub.queue.wait_for(lambda: stub.queue.pops_open == 1)
    began = time.monotonic()
    stub.queue.fill("orders", 3)
    wait_done(stub)
    # Not the 15 s that a pop waits.
    assert time.monotonic() - began < 5
    assert sorted(seen.numbers) == [0, 1, 2]


def test_pops_carry_the_acknowledgements_of_what_is_done(stub: StubService, make: MakeConsumer, seen: Seen) -> None:
    stub.queue.fill("orders", 200)
    make(seen, concurrency=4, ack_within_ms=5_000)
    stub.queue.wait_for(lambda: len(seen.messages) == 200)
    carried = sum(len(call.request.get("ack", ())) for call in stub.queue.calls_of("pop"))
    alone = sum(len(call.request["handles"]) for call in stub.queue.calls_of("ack"))
    assert carried >= 190
    assert alone <= 10


def test_an_acknowledgement_does_not_wait_long_for_a_pop(stub: StubService, make: MakeConsumer, seen: Seen) -> None:
    stub.queue.fill("orders", 1)

    def handle(message: PoppedMessage) -> None:
        # The next pop has gone without it.
        stub.queue.wait_for(lambda: len(stub.queue.calls_of("pop")) == 2)
        seen(message)

    make(handle, concurrency=2, ack_within_ms=20)
    stub.queue.wait_for(lambda: bool(seen.messages))
    began = time.monotonic()
    wait_done(stub)
    # Not the 15 s that the next pop waits.
    assert time.monotonic() - began < 5
    assert len(stub.queue.calls_of("ack")) == 1


def test_pop_01_a_pop_takes_no_more_than_handlers_are_free(stub: StubService, make: MakeConsumer, seen: Seen) -> None:
    stub.queue.fill("orders", 60)
    open_gate = threading.Event()

    def handle(message: PoppedMessage) -> None:
        seen.enter()
        open_gate.wait(10)
        seen.add(message)
        seen.leave()

    consumer = make(handle, concurrency=5)
    stub.queue.wait_for(lambda: seen.running == 5)
    assert consumer.stats().held == 5
    assert [call.request["max_messages"] for call in stub.queue.calls_of("pop")] == [5]
    open_gate.set()
    wait_done(stub)
    assert seen.running_max <= 5
    assert max(call.request["max_messages"] for call in stub.queue.calls_of("pop")) <= 5


def test_prefetched_messages_wait_here(stub: StubService, make: MakeConsumer, seen: Seen) -> None:
    stub.queue.fill("orders", 60)
    open_gate = threading.Event()

    def handle(message: PoppedMessage) -> None:
        seen.enter()
        open_gate.wait(10)
        seen.leave()
        seen.add(message)

    consumer = make(handle, concurrency=2, prefetch=10)
    stub.queue.wait_for(lambda: consumer.stats().held == 12 and seen.running == 2)
    open_gate.set()
    wait_done(stub)
    assert seen.running_max == 2


def test_cons_05_consumers_share_a_group(stub: StubService, make: MakeConsumer, seen: Seen) -> None:
    stub.queue.fill("orders", 400)
    consumers = [make(seen, concurrency=3) for _ in range(3)]
    wait_done(stub)
    assert sorted(seen.numbers) == list(range(400))
    assert sum(consumer.stats().ok for consumer in consumers) == 400


def test_cons_03_other_tags_count_as_consumed(stub: StubService, make: MakeConsumer, seen: Seen) -> None:
    stub.queue.fill("orders", 30, tag=lambda n: "ABC"[n % 3])
    make(seen, tags="A||C")
    wait_done(stub)
    assert sorted(seen.numbers) == [n for n in range(30) if n % 3 != 1]


# Failures of handlers ------------------------------------------------------------------------------------------


def test_retry_01_a_handler_that_raises_gets_the_message_again(
    stub: StubService, make: MakeConsumer, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    stub.queue.look(lambda twin: twin.put_group("billing", retry_policy={"fixed_ms": 1}))
    stub.queue.fill("orders", 10)

    def handle(message: PoppedMessage) -> None:
        seen(message)
        if int(message.body) == 3 and message.delivery_attempt == 1:
            raise ValueError("not today")

    consumer = make(handle)
    wait_done(stub)
    assert Counter(seen.numbers) == Counter([*range(10), 3])
    again = seen.messages[-1]
    assert (again.delivery_attempt, again.origin is not None and again.origin.offset) == (2, 3)
    stats = consumer.stats()
    assert (stats.ok, stats.retried) == (10, 1)
    assert stats.failed_rate > 0
    assert "event=handler_failed message=orders@memory:3" in caplog.text
    assert "not today" in caplog.text


@pytest.mark.parametrize("end", [SystemExit("bye"), KeyboardInterrupt()], ids=lambda end: type(end).__name__)
def test_a_handler_that_wants_to_end_the_process_only_fails(
    stub: StubService, make: MakeConsumer, seen: Seen, end: BaseException
) -> None:
    stub.queue.look(lambda twin: twin.put_group("billing", retry_policy={"fixed_ms": 1}))
    stub.queue.fill("orders", 3)

    def handle(message: PoppedMessage) -> None:
        seen(message)
        if message.delivery_attempt == 1:
            raise end

    make(handle, concurrency=1)
    wait_done(stub)
    assert Counter(seen.numbers) == Counter([*range(3), *range(3)])


def test_pop_10_a_handler_chooses_when_it_gets_the_message_again(
    stub: StubService, make: MakeConsumer, seen: Seen
) -> None:
    stub.queue.fill("orders", 2)

    def handle(message: PoppedMessage) -> Result:
        seen(message)
        return Result.RETRY(delay_ms=1) if message.delivery_attempt == 1 else Result.OK

    make(handle, concurrency=1)
    wait_done(stub)
    assert Counter(seen.numbers) == Counter([0, 1, 0, 1])
    assert {call.request["delay_ms"] for call in stub.queue.calls_of("nack")} == {1}


def test_retry_03_a_handler_condemns_a_message_with_its_reason(
    stub: StubService, make: MakeConsumer, seen: Seen
) -> None:
    stub.queue.fill("orders", 3)
    consumer = make(lambda message: Result.DEAD("no such customer") if message.body == b"1" else None)
    wait_done(stub)
    (letter,) = stub.queue.look(lambda twin: twin.dead_letters("billing"))
    assert (letter.body, letter.headers["mq-dead-reason"]) == (b"1", "no such customer")
    wait_done(stub)
    assert (consumer.stats().ok, consumer.stats().dead) == (2, 1)


def test_retry_03_after_the_last_attempt_a_message_is_dead(stub: StubService, make: MakeConsumer, seen: Seen) -> None:
    stub.queue.look(lambda twin: twin.put_group("billing", retry_policy={"fixed_ms": 1}, max_attempts=2))
    stub.queue.fill("orders", 1)

    def handle(message: PoppedMessage) -> Result:
        seen(message)
        return Result.RETRY

    make(handle)
    stub.queue.wait_for(lambda: bool(stub.queue.look(lambda twin: twin.dead_letters("billing"))))
    assert [message.delivery_attempt for message in seen.messages] == [1, 2]


def test_what_is_no_clear_success_is_none(
    stub: StubService, make: MakeConsumer, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    stub.queue.look(lambda twin: twin.put_group("billing", retry_policy={"fixed_ms": 1}))
    stub.queue.fill("orders", 1)

    def handle(message: PoppedMessage) -> object:
        seen(message)
        return False if message.delivery_attempt == 1 else None

    make(handle)
    wait_done(stub)
    assert len(seen.messages) == 2
    assert "a handler returns None, Result.OK" in caplog.text


def test_cons_06_hooks_look_on(stub: StubService, make: MakeConsumer, caplog: pytest.LogCaptureFixture) -> None:
    stub.queue.look(lambda twin: twin.put_group("billing", retry_policy={"fixed_ms": 1}))
    stub.queue.fill("orders", 1)
    told: list[tuple[str, object]] = []

    def handle(message: PoppedMessage) -> None:
        told.append(("handle", message.delivery_attempt))
        if message.delivery_attempt == 1:
            raise ValueError("no")

    def after(message: PoppedMessage, results: Sequence[Result], error: BaseException | None) -> None:
        told.append(("after", (*results, type(error).__name__)))
        raise RuntimeError("a hook that fails changes nothing")

    make(handle, before=lambda message: told.append(("before", message.offset)), after=after)
    wait_done(stub)
    assert told == [
        ("before", 0),
        ("handle", 1),
        ("after", (Result.RETRY, "ValueError")),
        ("before", 0),
        ("handle", 2),
        ("after", (Result.OK, "NoneType")),
    ]
    assert "event=hook_failed" in caplog.text


def test_cons_06_statistics_tell_times_and_rates(stub: StubService, make: MakeConsumer, seen: Seen) -> None:
    stub.queue.fill("orders", 4)
    gone = threading.Event()

    def handle(message: PoppedMessage) -> None:
        gone.wait(0.05)

    consumer = make(handle, concurrency=4)
    assert consumer.stats().consume_ms_mean is None
    wait_done(stub)
    stats = consumer.stats()
    assert stats.ok_rate > 0
    assert stats.consume_ms_mean is not None and 45 <= stats.consume_ms_mean < 5_000
    assert stats.consume_ms_max is not None and stats.consume_ms_max >= stats.consume_ms_mean
    assert stats.born_to_consumed_ms_mean is not None and stats.born_to_consumed_ms_mean >= 0
    assert stats.pops >= 1


# Long handlers -------------------------------------------------------------------------------------------------


def test_pop_09_a_slow_handler_keeps_its_message(stub: StubService, make: MakeConsumer, seen: Seen) -> None:
    stub.queue.fill("orders", 3)
    release = threading.Event()

    def handle(message: PoppedMessage) -> None:
        seen(message)
        release.wait(20)

    consumer = make(handle, concurrency=3, invisible_ms=1_200)
    stub.queue.wait_for(lambda: len(seen.messages) == 3)
    other = make(seen, concurrency=3, invisible_ms=1_200)
    # Each was renewed more often than its invisible time lasted.
    stub.queue.wait_for(lambda: consumer.stats().renewals >= 9)
    release.set()
    wait_done(stub)
    assert sorted(seen.numbers) == [0, 1, 2]
    assert consumer.stats().expired == other.stats().expired == 0


def test_waiting_messages_are_renewed_too(stub: StubService, make: MakeConsumer, seen: Seen) -> None:
    stub.queue.fill("orders", 4)
    release = threading.Event()

    def handle(message: PoppedMessage) -> None:
        seen(message)
        release.wait(20)

    consumer = make(handle, concurrency=1, prefetch=3, invisible_ms=1_200)
    stub.queue.wait_for(lambda: consumer.stats().renewals >= 12)
    release.set()
    wait_done(stub)
    assert seen.numbers == [0, 1, 2, 3]


def test_renewal_ends_after_the_time_that_is_set(stub: StubService, make: MakeConsumer, seen: Seen) -> None:
    stub.queue.fill("orders", 1)
    stuck = threading.Event()

    def handle(message: PoppedMessage) -> None:
        seen(message)
        if message.delivery_attempt == 1:
            stuck.wait(20)

    consumer = make(handle, concurrency=2, invisible_ms=1_000, renew_for_s=1.2)
    stub.queue.wait_for(lambda: len(seen.messages) == 2)
    assert consumer.stats().renewals >= 1
    wait_done(stub)
    stuck.set()
    assert consumer.close()
    assert consumer.stats().expired == 1


def test_a_renewal_that_the_service_does_not_answer_is_repeated(
    stub: StubService, make: MakeConsumer, seen: Seen
) -> None:
    stub.queue.fill("orders", 1)
    stub.queue.faults["invisible"].extend([QueueFault.UNAVAILABLE, QueueFault.DROP_BEFORE] * 2)
    release = threading.Event()

    def handle(message: PoppedMessage) -> None:
        seen(message)
        release.wait(20)

    consumer = make(handle, invisible_ms=1_500)
    stub.queue.wait_for(lambda: consumer.stats().renewals >= 3)
    release.set()
    wait_done(stub)
    assert seen.numbers == [0]


def test_a_new_handle_that_is_lost_means_another_delivery(
    stub: StubService, make: MakeConsumer, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    stub.queue.fill("orders", 1)
    stub.queue.faults["invisible"].append(QueueFault.DROP_AFTER)
    release = threading.Event()

    def handle(message: PoppedMessage) -> None:
        seen(message)
        if message.delivery_attempt == 1:
            release.wait(20)

    consumer = make(handle, concurrency=2, invisible_ms=600)
    stub.queue.wait_for(lambda: len(seen.messages) == 2)
    release.set()
    wait_done(stub)
    assert "event=new_handle_lost" in caplog.text
    assert consumer.stats().expired == 1


def test_pop_08_an_answer_that_comes_too_late_changes_nothing(
    stub: StubService, make: MakeConsumer, seen: Seen
) -> None:
    stub.queue.fill("orders", 1)
    stub.queue.faults["invisible"].extend([QueueFault.UNAVAILABLE] * 1_000)
    late = threading.Event()

    def handle(message: PoppedMessage) -> None:
        seen(message)
        if message.delivery_attempt == 1:
            late.wait(20)

    consumer = make(handle, concurrency=2, invisible_ms=300)
    stub.queue.wait_for(lambda: len(seen.messages) == 2)
    late.set()
    wait_done(stub)
    assert consumer.stats().expired >= 1
    stub.queue.fill("orders", 5, start=1)
    wait_done(stub)
    assert sorted(set(seen.numbers)) == list(range(6))


# The service away ----------------------------------------------------------------------------------------------


def test_a_pop_whose_answer_is_lost_loses_nothing(stub: StubService, make: MakeConsumer, seen: Seen) -> None:
    stub.queue.fill("orders", 50)
    stub.queue.faults["pop"].extend([QueueFault.DROP_AFTER, QueueFault.NONE, QueueFault.GARBAGE, QueueFault.DROP_AFTER])
    consumer = make(seen, concurrency=5, invisible_ms=300)
    wait_done(stub)
    # What was popped in a lost answer comes once its invisible time is over; what is seen twice was acknowledged late.
    assert sorted(set(seen.numbers)) == list(range(50))
    assert consumer.stats().failed_pops >= 2


def test_acknowledgements_carried_by_a_lost_pop_are_told_again(
    stub: StubService, make: MakeConsumer, seen: Seen
) -> None:
    stub.queue.fill("orders", 3)
    stub.queue.faults["pop"].extend([QueueFault.NONE, QueueFault.DROP_BEFORE, QueueFault.DROP_AFTER])
    consumer = make(seen, concurrency=1, invisible_ms=1_500)
    wait_done(stub)
    assert Counter(seen.numbers) == Counter([0, 1, 2])
    assert consumer.stats().expired == 0


@pytest.mark.parametrize("fault", [QueueFault.DROP_BEFORE, QueueFault.DROP_AFTER, QueueFault.UNAVAILABLE])
def test_pop_08_an_acknowledgement_whose_answer_is_lost_is_repeated(
    stub: StubService, make: MakeConsumer, seen: Seen, fault: QueueFault
) -> None:
    stub.queue.fill("orders", 2)
    stub.queue.faults["ack"].append(fault)
    consumer = make(seen, concurrency=4, ack_within_ms=1)
    stub.queue.wait_for(lambda: len(stub.queue.calls_of("ack")) >= 2)
    wait_done(stub)
    assert sorted(seen.numbers) == [0, 1]
    assert consumer.stats().expired == 0


@pytest.mark.parametrize("fault", [QueueFault.DROP_BEFORE, QueueFault.DROP_AFTER])
def test_a_nack_whose_answer_is_lost_counts_once(
    stub: StubService, make: MakeConsumer, seen: Seen, fault: QueueFault
) -> None:
    stub.queue.fill("orders", 1)
    stub.queue.faults["nack"].append(fault)

    def handle(message: PoppedMessage) -> Result:
        seen(message)
        return Result.OK if message.delivery_attempt > 1 else Result.RETRY(delay_ms=1)

    consumer = make(handle)
    wait_done(stub)
    assert [message.delivery_attempt for message in seen.messages] == [1, 2]
    assert consumer.stats().expired == 0


def test_a_consumer_goes_on_when_the_service_comes_back(stub: StubService, make: MakeConsumer, seen: Seen) -> None:
    stub.queue.fill("orders", 5)
    consumer = make(seen)
    wait_done(stub)
    stub.away = True
    stub.close_connections()
    stub.queue.wait_for(lambda: consumer.stats().failed_pops >= 3)
    stub.queue.fill("orders", 5, start=5)
    stub.away = False
    wait_done(stub)
    assert sorted(seen.numbers) == list(range(10))


def test_a_topic_may_come_later(stub: StubService, make: MakeConsumer, seen: Seen) -> None:
    consumer = make(seen)
    stub.queue.wait_for(lambda: consumer.stats().failed_pops >= 2)
    stub.queue.fill("orders", 3)
    wait_done(stub)
    assert sorted(seen.numbers) == [0, 1, 2]


def test_a_service_that_answers_at_once_with_nothing_is_not_asked_in_a_hurry(
    stub: StubService, make: MakeConsumer, seen: Seen
) -> None:
    stub.queue.fill("orders", 0)
    stub.queue.impatient = True
    make(seen)
    stub.queue.wait_for(lambda: len(stub.queue.calls_of("pop")) >= 8)
    times = [call.at for call in stub.queue.calls_of("pop")]
    # 5 ms, 10, 20, ... : eight pops take 635 ms of pauses.
    assert times[7] - times[0] >= 0.6
    stub.queue.fill("orders", 1)
    wait_done(stub)


def test_a_waiting_consumer_asks_seldom(stub: StubService, make: MakeConsumer, seen: Seen) -> None:
    stub.queue.fill("orders", 1)
    consumer = make(seen, wait_ms=300)
    stub.queue.wait_for(lambda: len(stub.queue.calls_of("pop")) >= 5)
    times = [call.at for call in stub.queue.calls_of("pop")]
    assert times[-1] - times[1] >= 0.25 * (len(times) - 2)
    assert consumer.stats().failed_pops == 0


def test_a_refusal_for_good_ends_the_run(stub: StubService, make: MakeConsumer, seen: Seen) -> None:
    stub.queue.fill("orders", 1)
    stub.queue.faults["pop"].append(QueueFault.FORBIDDEN)
    consumer = make(seen, start=False)
    with pytest.raises(Forbidden):
        consumer.run()
    assert isinstance(consumer.error, Forbidden)
    with pytest.raises(Refused, match="make another one"):
        consumer.start()


# Order ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_messages", [None, 8])
def test_pop_16_a_partition_in_order_is_handled_one_after_another(
    stub: StubService, make: MakeConsumer, seen: Seen, max_messages: int | None
) -> None:
    stub.queue.fill("orders", 60, partitions=3)
    running: Counter[str] = Counter()
    crowded: list[str] = []

    def handle(message: PoppedMessage) -> Result:
        with stub.changed:
            running[message.partition] += 1
            if running[message.partition] > 1:
                crowded.append(message.partition)
        first_time = message.offset % 7 == 3 and message.delivery_attempt == 1
        seen(message)
        with stub.changed:
            running[message.partition] -= 1
        return Result.RETRY(delay_ms=1) if first_time else Result.OK

    make(handle, order=True, max_messages=max_messages)
    make(handle, order=True, max_messages=max_messages)
    wait_done(stub, timeout_s=20)
    assert crowded == []
    by_partition: dict[str, list[int]] = {}
    for message in seen.messages:
        by_partition.setdefault(message.partition, []).append(message.offset)
    for offsets in by_partition.values():
        # Nothing overtakes a message that failed: without the repetition the order is that of the log.
        assert list(dict.fromkeys(offsets)) == list(range(20))
        assert all(later <= earlier + 1 for earlier, later in pairwise(offsets))


def test_pop_17_messages_of_a_key_follow_each_other(stub: StubService, make: MakeConsumer, seen: Seen) -> None:
    stub.queue.fill("orders", 60, key=lambda n: f"k{n % 6}")
    poison = 7

    def handle(message: PoppedMessage) -> Result:
        seen(message)
        again = int(message.body) == poison and message.delivery_attempt < 3
        return Result.RETRY(delay_ms=50) if again else Result.OK

    make(handle, order="key")
    make(handle, order="key")
    wait_done(stub)
    by_key: dict[str | None, list[int]] = {}
    for message in seen.messages:
        by_key.setdefault(message.key, []).append(int(message.body))
    for key in range(6):
        expected = list(range(key, 60, 6))
        if key == poison % 6:
            at = expected.index(poison)
            expected[at:at] = [poison, poison]
        assert by_key[f"k{key}"] == expected
    # The other keys went on meanwhile.
    last_of_poison = max(at for at, number in enumerate(seen.numbers) if number == poison)
    assert seen.numbers.index(8 + 12) < last_of_poison


@pytest.mark.parametrize(("order", "sent"), [(True, True), ("key", "key"), (False, False)])
def test_a_consumer_that_does_not_say_follows_its_group(
    stub: StubService, make: MakeConsumer, seen: Seen, order: bool | str, sent: bool | str
) -> None:
    stub.queue.look(lambda twin: twin.put_group("billing", order=order))
    stub.queue.faults["GET"].extend([QueueFault.UNAVAILABLE, QueueFault.DROP_AFTER, QueueFault.GARBAGE])
    stub.queue.fill("orders", 20, key="k")
    make(seen)
    wait_done(stub)
    assert {call.request.get("order") for call in stub.queue.calls_of("pop")} == {sent}
    assert sorted(seen.numbers) == list(range(20))
    assert order is False or seen.numbers == list(range(20))


def test_a_group_that_may_not_be_seen_ends_the_run(stub: StubService, make: MakeConsumer, seen: Seen) -> None:
    stub.queue.faults["GET"].append(QueueFault.FORBIDDEN)
    with pytest.raises(Forbidden):
        make(seen, start=False).run()


def test_a_consumer_can_be_closed_before_the_service_is_there(
    make: MakeConsumer, seen: Seen, stub: StubService
) -> None:
    stub.away = True
    consumer = make(seen)
    stub.queue.wait_for(lambda: stub.away_calls >= 2)
    assert consumer.close()
    assert consumer.error is None


def test_an_ordered_consumer_acknowledges_at_once(stub: StubService, make: MakeConsumer, seen: Seen) -> None:
    stub.queue.fill("orders", 20)
    began = time.monotonic()
    make(seen, order=True, ack_within_ms=5_000)
    wait_done(stub)
    assert seen.numbers == list(range(20))
    assert time.monotonic() - began < 5


# Batches -------------------------------------------------------------------------------------------------------


def test_a_batch_handler_gets_lists(stub: StubService, make: MakeConsumer, seen: Seen) -> None:
    stub.queue.fill("orders", 100)
    sizes: list[int] = []

    def handle(batch: list[PoppedMessage]) -> None:
        sizes.append(len(batch))
        seen.add(*batch)

    consumer = make(handle, batch_messages=30, concurrency=1)
    wait_done(stub)
    assert seen.numbers == list(range(100))
    assert sizes == [30, 30, 30, 10]
    assert consumer.stats().ok == 100


def test_a_batch_handler_answers_for_each(stub: StubService, make: MakeConsumer, seen: Seen) -> None:
    stub.queue.fill("orders", 4)

    def handle(batch: list[PoppedMessage]) -> list[Result | None]:
        seen.add(*batch)
        if batch[0].delivery_attempt > 1:
            return [Result.OK] * len(batch)
        return [None, Result.RETRY(delay_ms=1), Result.DEAD("bad"), Result.OK]

    consumer = make(handle, batch_messages=10)
    stub.queue.wait_for(lambda: stub.queue.is_done("billing", "orders") and len(seen.messages) == 5)
    assert seen.numbers == [0, 1, 2, 3, 1]
    stub.queue.wait_for(lambda: bool(stub.queue.look(lambda twin: twin.dead_letters("billing"))))
    stats = consumer.stats()
    assert (stats.ok, stats.retried, stats.dead) == (3, 1, 1)


def test_an_arrow_handler_gets_tables_with_handles(stub: StubService, make: MakeConsumer) -> None:
    stub.queue.fill("orders", 100, key="k")
    tables: list[pa.Table] = []
    consumer = make(tables.append, format="arrow", batch_messages=40, concurrency=1)
    wait_done(stub)
    assert [len(table) for table in tables] == [40, 40, 20]
    rows = pa.concat_tables(tables)
    assert rows.column("body").to_pylist() == [str(n).encode() for n in range(100)]
    assert len(set(rows.column("handle").to_pylist())) == 100
    assert set(rows.column("delivery_attempt").to_pylist()) == {1}
    assert consumer.stats().ok == 100


def test_a_failed_arrow_batch_comes_again(stub: StubService, make: MakeConsumer) -> None:
    stub.queue.look(lambda twin: twin.put_group("billing", retry_policy={"fixed_ms": 1}))
    stub.queue.fill("orders", 10)
    attempts: list[int] = []

    def handle(rows: pa.Table) -> None:
        attempts.append(rows.column("delivery_attempt")[0].as_py())
        if attempts[-1] == 1:
            raise ValueError("a bad day")

    make(handle, format="arrow")
    wait_done(stub)
    assert attempts == [1, 2]


# Several topics ------------------------------------------------------------------------------------------------


def test_a_quiet_topic_does_not_keep_handlers_from_a_busy_one(
    stub: StubService, make: MakeConsumer, seen: Seen
) -> None:
    stub.queue.fill("quiet", 0)
    stub.queue.fill("busy", 40)
    gate = threading.Barrier(4, timeout=10)

    def handle(message: PoppedMessage) -> None:
        seen.enter()
        gate.wait()
        seen.leave()
        seen.add(message)

    make(handle, ["quiet", "busy"], concurrency=4)
    wait_done(stub, "busy")
    assert seen.running_max == 4
    stub.queue.fill("quiet", 4)
    wait_done(stub, "quiet")
    assert Counter(message.topic for message in seen.messages) == {"busy": 40, "quiet": 4}


def test_one_handler_serves_several_topics(stub: StubService, make: MakeConsumer, seen: Seen) -> None:
    topics = ["a", "b", "c"]
    for topic in topics:
        stub.queue.fill(topic, 0)
    make(seen, topics, concurrency=1)
    stub.queue.wait_for(lambda: stub.queue.pops_open == 3)
    for topic in topics:
        stub.queue.fill(topic, 5)
    for topic in topics:
        wait_done(stub, topic)
    assert len(seen.messages) == 15


# The end -------------------------------------------------------------------------------------------------------


def test_close_gives_back_what_was_not_begun(stub: StubService, make: MakeConsumer, seen: Seen) -> None:
    stub.queue.fill("orders", 12)
    release = threading.Event()

    def handle(message: PoppedMessage) -> None:
        seen.enter()
        release.wait(20)
        seen.leave()
        seen.add(message)

    consumer = make(handle, concurrency=2, prefetch=10, invisible_ms=60_000)
    stub.queue.wait_for(lambda: consumer.stats().held == 12 and seen.running == 2)
    closing = threading.Thread(target=consumer.close)
    closing.start()
    # The ten that wait are another's at once; the two that run are finished.
    others = Seen(stub)
    make(others, invisible_ms=60_000)
    stub.queue.wait_for(lambda: len(others.messages) == 10)
    release.set()
    closing.join(10)
    wait_done(stub)
    assert sorted(seen.numbers + others.numbers) == list(range(12))
    assert len(seen.numbers) == 2
    assert consumer.close()
    assert consumer.stats().released == 10


def test_close_gives_back_what_does_not_finish_in_time(
    stub: StubService, make: MakeConsumer, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    stub.queue.fill("orders", 1)
    stuck = threading.Event()

    def handle(message: PoppedMessage) -> None:
        seen.enter()
        stuck.wait(20)

    consumer = make(handle, invisible_ms=60_000)
    stub.queue.wait_for(lambda: seen.running == 1)
    began = time.monotonic()
    closed = consumer.close(timeout_s=0.2)
    assert time.monotonic() - began < 3
    assert (closed.unfinished, closed.untold, bool(closed)) == (1, 0, False)
    assert "event=handlers_unfinished" in caplog.text
    others = Seen(stub)
    make(others)
    stub.queue.wait_for(lambda: others.numbers == [0])
    stuck.set()
    wait_done(stub)


def test_close_calls_off_a_waiting_pop(stub: StubService, make: MakeConsumer, seen: Seen) -> None:
    stub.queue.fill("orders", 0)
    consumer = make(seen, wait_ms=20_000)
    stub.queue.wait_for(lambda: stub.queue.pops_open == 1)
    began = time.monotonic()
    assert consumer.close()
    assert time.monotonic() - began < 1.5
    stub.queue.wait_for(lambda: stub.queue.pops_cancelled == 1)


def test_close_gives_back_what_an_answer_on_its_way_brings(stub: StubService, make: MakeConsumer, seen: Seen) -> None:
    stub.queue.fill("orders", 3)
    stub.queue.faults["pop"].append(QueueFault.GATE_AFTER)
    consumer = make(seen, invisible_ms=60_000)
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
    make(others)
    stub.queue.wait_for(lambda: len(others.messages) == 3)


def test_a_pop_that_hangs_does_not_keep_a_consumer_from_closing(
    stub: StubService, make: MakeConsumer, seen: Seen
) -> None:
    stub.queue.fill("orders", 1)
    stub.queue.faults["pop"].append(QueueFault.HANG_AFTER)
    consumer = make(seen)
    stub.queue.wait_for(lambda: stub.queue.look(lambda twin: twin.in_flight("billing", "orders")) == 1)
    began = time.monotonic()
    assert consumer.close()
    assert time.monotonic() - began < 6


def test_close_while_the_service_is_away_says_what_is_untold(stub: StubService, make: MakeConsumer, seen: Seen) -> None:
    stub.queue.fill("orders", 2)
    release = threading.Event()

    def handle(message: PoppedMessage) -> None:
        seen.enter()
        release.wait(20)

    consumer = make(handle, patience=Patience(first_wait_ms=1, wait_ms_max=20, request_timeout_s=0.2))
    stub.queue.wait_for(lambda: seen.running == 2)
    stub.away = True
    stub.close_connections()
    release.set()
    closed = consumer.close(timeout_s=1)
    assert (closed.unfinished, closed.untold) == (0, 2)


def test_a_handler_stops_its_consumer_but_does_not_close_it(stub: StubService, make: MakeConsumer) -> None:
    stub.queue.fill("orders", 1)
    refused: list[str] = []

    def handle(message: PoppedMessage) -> None:
        try:
            consumer.close()
        except Refused as error:
            refused.append(error.code)
        consumer.stop()

    consumer = make(handle, start=False)
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
