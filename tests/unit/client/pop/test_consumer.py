"""The consumer of a group: each message handled at least once, once when nothing fails (CONS-5, CONS-6, POP)."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence

import pyarrow as pa
import pytest

from deltamq.mq.client.messages.received import PoppedMessage, Result
from deltamq.mq.client.pop.telemetry import Ending
from tests.unit.client.pop.pop_consumers import Consume, Seen, wait_done
from tests.unit.client.stub_service import StubService

# Done once -----------------------------------------------------------------------------------------------------


@pytest.mark.promise("SDK-1")
def test_every_message_is_handled_once_and_acknowledged(stub: StubService, consume: Consume, seen: Seen) -> None:
    stub.queue.fill("orders", 500, partitions=3)
    consumer = consume(seen)
    wait_done(stub)
    assert sorted(seen.numbers) == list(range(500))
    closed = consumer.close()
    assert closed
    stats = consumer.stats()
    assert (stats.received, stats.ok, stats.expired, stats.held) == (500, 500, 0, 0)


def test_a_message_carries_what_its_producer_sent(stub: StubService, consume: Consume, seen: Seen) -> None:
    stub.queue.fill("orders", 1, key="k", tag="T", headers={"a": "b"}, message_id="m-1")
    consume(seen)
    stub.queue.wait_for(lambda: bool(seen.messages))
    (message,) = seen.messages
    assert (message.topic, message.partition, message.offset) == ("orders", "orders@memory", 0)
    assert (message.body, message.key, message.tag, message.headers) == (b"0", "k", "T", {"a": "b"})
    assert (message.message_id, message.delivery_attempt) == ("m-1", 1)
    assert message.append_us is not None
    assert message.handle


def test_messages_that_come_later_are_handled_at_once(stub: StubService, consume: Consume, seen: Seen) -> None:
    stub.queue.fill("orders", 0)
    consume(seen)
    stub.queue.wait_for(lambda: stub.queue.pops_open == 1)
    began = time.monotonic()
    stub.queue.fill("orders", 3)
    wait_done(stub)
    assert time.monotonic() - began < 15, "that is how long a pop waits"
    assert sorted(seen.numbers) == [0, 1, 2]


def test_pops_carry_the_acknowledgements_of_what_is_done(stub: StubService, consume: Consume, seen: Seen) -> None:
    stub.queue.fill("orders", 200)
    consume(seen, concurrency=4, ack_within_ms=5_000)
    stub.queue.wait_for(lambda: len(seen.messages) == 200)
    carried = sum(len(call.request.get("ack", ())) for call in stub.queue.calls_of("pop"))
    alone = sum(len(call.request["handles"]) for call in stub.queue.calls_of("ack"))
    assert carried >= 190
    assert alone <= 10


def test_an_acknowledgement_does_not_wait_long_for_a_pop(stub: StubService, consume: Consume, seen: Seen) -> None:
    stub.queue.fill("orders", 1)

    def handle(message: PoppedMessage) -> None:
        # The next pop has gone without it.
        stub.queue.wait_for(lambda: len(stub.queue.calls_of("pop")) == 2)
        seen(message)

    consume(handle, concurrency=2, ack_within_ms=20)
    stub.queue.wait_for(lambda: bool(seen.messages))
    began = time.monotonic()
    wait_done(stub)
    assert time.monotonic() - began < 15, "that is how long the next pop waits"
    assert len(stub.queue.calls_of("ack")) == 1


def test_pop_01_a_pop_takes_no_more_than_handlers_are_free(stub: StubService, consume: Consume, seen: Seen) -> None:
    stub.queue.fill("orders", 60)
    open_gate = threading.Event()

    def handle(message: PoppedMessage) -> None:
        seen.enter()
        open_gate.wait(10)
        seen.add(message)
        seen.leave()

    consumer = consume(handle, concurrency=5)
    stub.queue.wait_for(lambda: seen.running == 5)
    assert consumer.stats().held == 5
    assert [call.request["max_messages"] for call in stub.queue.calls_of("pop")] == [5]
    open_gate.set()
    wait_done(stub)
    assert seen.running_max <= 5
    assert max(call.request["max_messages"] for call in stub.queue.calls_of("pop")) <= 5


def test_prefetched_messages_wait_here(stub: StubService, consume: Consume, seen: Seen) -> None:
    stub.queue.fill("orders", 60)
    open_gate = threading.Event()

    def handle(message: PoppedMessage) -> None:
        seen.enter()
        open_gate.wait(10)
        seen.leave()
        seen.add(message)

    consumer = consume(handle, concurrency=2, prefetch=10)
    stub.queue.wait_for(lambda: consumer.stats().held == 12 and seen.running == 2)
    open_gate.set()
    wait_done(stub)
    assert seen.running_max == 2


def test_cons_05_consumers_share_a_group(stub: StubService, consume: Consume, seen: Seen) -> None:
    stub.queue.fill("orders", 400)
    consumers = [consume(seen, concurrency=3) for _ in range(3)]
    wait_done(stub)
    assert sorted(seen.numbers) == list(range(400))
    assert sum(consumer.stats().ok for consumer in consumers) == 400


def test_cons_03_other_tags_count_as_consumed(stub: StubService, consume: Consume, seen: Seen) -> None:
    stub.queue.fill("orders", 30, tag=lambda n: "ABC"[n % 3])
    consume(seen, tags="A||C")
    wait_done(stub)
    assert sorted(seen.numbers) == [n for n in range(30) if n % 3 != 1]


def test_cons_09_messages_that_the_filter_is_not_true_for_count_as_consumed(
    stub: StubService, consume: Consume, seen: Seen
) -> None:
    stub.queue.fill("orders", 30, tag=lambda n: "ABC"[n % 3])
    consume(seen, filter="tag <> 'A'", tags="A||C")
    wait_done(stub)
    assert sorted(seen.numbers) == [n for n in range(30) if n % 3 == 2]


# Failures of handlers ------------------------------------------------------------------------------------------


@pytest.mark.promise("SDK-2")
def test_retry_01_a_handler_that_raises_gets_the_message_again(
    stub: StubService, consume: Consume, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    stub.queue.look(lambda twin: twin.put_group("billing", retry_policy={"fixed_ms": 1}))
    stub.queue.fill("orders", 10)

    def handle(message: PoppedMessage) -> None:
        seen(message)
        if int(message.body) == 3 and message.delivery_attempt <= 2:
            raise ValueError("not today")

    consumer = consume(handle)
    wait_done(stub)
    assert Counter(seen.numbers) == Counter([*range(10), 3, 3])
    again = [message for message in seen.messages if message.delivery_attempt > 1]
    assert [(one.delivery_attempt, one.origin is not None and one.origin.offset) for one in again] == [(2, 3), (3, 3)]
    stats = consumer.stats()
    assert (stats.ok, stats.retried) == (10, 2)
    assert stats.failed_rate > 0
    assert caplog.text.count("event=handler_failed message=orders@memory:3") == 2, "by its first place, both times"
    assert "not today" in caplog.text


@pytest.mark.parametrize("end", [SystemExit("bye"), KeyboardInterrupt()], ids=lambda end: type(end).__name__)
def test_a_handler_that_wants_to_end_the_process_only_fails(
    stub: StubService, consume: Consume, seen: Seen, end: BaseException
) -> None:
    stub.queue.look(lambda twin: twin.put_group("billing", retry_policy={"fixed_ms": 1}))
    stub.queue.fill("orders", 3)

    def handle(message: PoppedMessage) -> None:
        seen(message)
        if message.delivery_attempt == 1:
            raise end

    consume(handle, concurrency=1)
    wait_done(stub)
    assert Counter(seen.numbers) == Counter([*range(3), *range(3)])


def test_pop_10_a_handler_chooses_when_it_gets_the_message_again(
    stub: StubService, consume: Consume, seen: Seen
) -> None:
    stub.queue.fill("orders", 2)

    def handle(message: PoppedMessage) -> Result:
        seen(message)
        return Result.RETRY(delay_ms=1) if message.delivery_attempt == 1 else Result.OK

    consume(handle, concurrency=1)
    wait_done(stub)
    assert Counter(seen.numbers) == Counter([0, 1, 0, 1])
    assert {call.request["delay_ms"] for call in stub.queue.calls_of("nack")} == {1}


def test_retry_03_a_handler_condemns_a_message_with_its_reason(stub: StubService, consume: Consume, seen: Seen) -> None:
    stub.queue.fill("orders", 3)
    consumer = consume(lambda message: Result.DEAD("no such customer") if message.body == b"1" else None)
    wait_done(stub)
    (letter,) = stub.queue.look(lambda twin: twin.dead_letters("billing"))
    assert (letter.body, letter.headers["mq-dead-reason"]) == (b"1", "no such customer")
    wait_done(stub)
    assert (consumer.stats().ok, consumer.stats().dead) == (2, 1)


def test_retry_03_after_the_last_attempt_a_message_is_dead(stub: StubService, consume: Consume, seen: Seen) -> None:
    stub.queue.look(lambda twin: twin.put_group("billing", retry_policy={"fixed_ms": 1}, max_attempts=2))
    stub.queue.fill("orders", 1)

    def handle(message: PoppedMessage) -> Result:
        seen(message)
        return Result.RETRY

    consume(handle)
    stub.queue.wait_for(lambda: bool(stub.queue.look(lambda twin: twin.dead_letters("billing"))))
    assert [message.delivery_attempt for message in seen.messages] == [1, 2]


@pytest.mark.promise("SDK-2")
def test_what_is_no_clear_success_is_none(
    stub: StubService, consume: Consume, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    stub.queue.look(lambda twin: twin.put_group("billing", retry_policy={"fixed_ms": 1}))
    stub.queue.fill("orders", 1)

    def handle(message: PoppedMessage) -> object:
        seen(message)
        return False if message.delivery_attempt == 1 else None

    consume(handle)
    wait_done(stub)
    assert len(seen.messages) == 2
    assert "a handler returns None, Result.OK" in caplog.text


def test_cons_06_hooks_look_on(stub: StubService, consume: Consume, caplog: pytest.LogCaptureFixture) -> None:
    stub.queue.look(lambda twin: twin.put_group("billing", retry_policy={"fixed_ms": 1}))
    stub.queue.fill("orders", 1)
    told: list[tuple[str, object]] = []

    def handle(message: PoppedMessage) -> None:
        told.append(("handle", message.delivery_attempt))
        if message.delivery_attempt == 1:
            raise ValueError("no")

    def after(message: PoppedMessage, results: Sequence[Result], ending: Ending) -> None:
        told.append(("after", (*results, ending.how, type(ending.error).__name__)))
        raise RuntimeError("a hook that fails changes nothing")

    consume(handle, before=lambda message: told.append(("before", message.offset)), after=after)
    wait_done(stub)
    assert told == [
        ("before", 0),
        ("handle", 1),
        ("after", (Result.RETRY, "exception", "ValueError")),
        ("before", 0),
        ("handle", 2),
        ("after", (Result.OK, "success", "NoneType")),
    ]
    assert "event=hook_failed" in caplog.text


def test_cons_06_a_hook_is_told_how_the_handler_ended(stub: StubService, consume: Consume) -> None:
    stub.queue.fill("orders", 3)
    endings: dict[int, Ending] = {}

    def handle(message: PoppedMessage) -> Result:
        if message.offset == 2:
            threading.Event().wait(1)
        return Result.DEAD if message.offset == 1 else Result.OK

    def after(message: PoppedMessage, results: Sequence[Result], ending: Ending) -> None:
        endings[message.offset] = ending

    consume(handle, after=after, consume_timeout_s=1)
    wait_done(stub)
    assert [endings[offset].how for offset in range(3)] == ["success", "failed", "timed_out"]
    assert endings[0].took_ms < 1_000 <= endings[2].took_ms


def test_cons_06_statistics_tell_times_and_rates(stub: StubService, consume: Consume, seen: Seen) -> None:
    stub.queue.fill("orders", 4)
    gone = threading.Event()

    def handle(message: PoppedMessage) -> None:
        gone.wait(0.05)

    consumer = consume(handle, concurrency=4)
    assert consumer.stats().consume_ms_mean is None
    wait_done(stub)
    stats = consumer.stats()
    assert stats.ok_rate > 0
    assert stats.consume_ms_mean is not None and 45 <= stats.consume_ms_mean < 60_000
    assert stats.consume_ms_max is not None and stats.consume_ms_max >= stats.consume_ms_mean
    assert stats.born_to_consumed_ms_mean is not None and stats.born_to_consumed_ms_mean >= 0
    assert stats.pops >= 1


# Batches -------------------------------------------------------------------------------------------------------


def test_a_batch_handler_gets_lists(stub: StubService, consume: Consume, seen: Seen) -> None:
    stub.queue.fill("orders", 100)
    sizes: list[int] = []

    def handle(batch: list[PoppedMessage]) -> None:
        sizes.append(len(batch))
        seen.add(*batch)

    consumer = consume(handle, batch_messages=30, concurrency=1)
    wait_done(stub)
    assert seen.numbers == list(range(100))
    assert sizes == [30, 30, 30, 10]
    assert consumer.stats().ok == 100


def test_a_batch_handler_answers_for_each(stub: StubService, consume: Consume, seen: Seen) -> None:
    stub.queue.fill("orders", 4)

    def handle(batch: list[PoppedMessage]) -> list[Result | None]:
        seen.add(*batch)
        if batch[0].delivery_attempt > 1:
            return [Result.OK] * len(batch)
        return [None, Result.RETRY(delay_ms=1), Result.DEAD("bad"), Result.OK]

    consumer = consume(handle, batch_messages=10)
    stub.queue.wait_for(lambda: stub.queue.is_done("billing", "orders") and len(seen.messages) == 5)
    assert seen.numbers == [0, 1, 2, 3, 1]
    stub.queue.wait_for(lambda: bool(stub.queue.look(lambda twin: twin.dead_letters("billing"))))
    stats = consumer.stats()
    assert (stats.ok, stats.retried, stats.dead) == (3, 1, 1)


def test_an_arrow_handler_gets_tables_with_handles(stub: StubService, consume: Consume) -> None:
    stub.queue.fill("orders", 100, key="k")
    tables: list[pa.Table] = []
    consumer = consume(tables.append, format="arrow", batch_messages=40, concurrency=1)
    wait_done(stub)
    assert [len(table) for table in tables] == [40, 40, 20]
    rows = pa.concat_tables(tables)
    assert rows.column("body").to_pylist() == [str(n).encode() for n in range(100)]
    assert len(set(rows.column("handle").to_pylist())) == 100
    assert set(rows.column("delivery_attempt").to_pylist()) == {1}
    assert consumer.stats().ok == 100


def test_a_failed_arrow_batch_comes_again(stub: StubService, consume: Consume) -> None:
    stub.queue.look(lambda twin: twin.put_group("billing", retry_policy={"fixed_ms": 1}))
    stub.queue.fill("orders", 10)
    attempts: list[int] = []

    def handle(rows: pa.Table) -> None:
        attempts.extend(rows.column("delivery_attempt").to_pylist())
        if attempts[-1] == 1:
            raise ValueError("a bad day")

    consume(handle, format="arrow")
    wait_done(stub)
    # Messages become due one by one, so the second attempt may come in several batches.
    assert Counter(attempts) == {1: 10, 2: 10}


# Several topics ------------------------------------------------------------------------------------------------


def test_a_quiet_topic_does_not_keep_handlers_from_a_busy_one(stub: StubService, consume: Consume, seen: Seen) -> None:
    stub.queue.fill("quiet", 0)
    stub.queue.fill("busy", 40)
    gate = threading.Barrier(4, timeout=10)

    def handle(message: PoppedMessage) -> None:
        seen.enter()
        gate.wait()
        seen.leave()
        seen.add(message)

    consume(handle, ["quiet", "busy"], concurrency=4)
    wait_done(stub, "busy")
    assert seen.running_max == 4
    stub.queue.fill("quiet", 4)
    wait_done(stub, "quiet")
    assert Counter(message.topic for message in seen.messages) == {"busy": 40, "quiet": 4}


def test_one_handler_serves_several_topics(stub: StubService, consume: Consume, seen: Seen) -> None:
    topics = ["a", "b", "c"]
    for topic in topics:
        stub.queue.fill(topic, 0)
    consume(seen, topics, concurrency=1)
    stub.queue.wait_for(lambda: stub.queue.pops_open == 3)
    for topic in topics:
        stub.queue.fill(topic, 5)
    for topic in topics:
        wait_done(stub, topic)
    assert len(seen.messages) == 15
