"""Ordered pops: whole partitions, and keys (SPEC POP-16, POP-17, ORDER-8)."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from deltamq.api.ports import Ports
from deltamq.mq.errors import StorageFull
from deltamq.mq.queue.retry import DEAD_REASON_HEADER
from deltamq.tables.queue.refs import OFFSETS
from tests.api.queue_calls import Consumer, Queue, queue_in
from tests.faulty_store import faulty_disk

MINUTE = 60_000

pytestmark = pytest.mark.static_too


def _offset(queue: Queue, consumer: Consumer) -> int:
    (lane,) = consumer.lanes()
    stored = queue.committed(lane)
    assert stored is not None
    return stored.offset


# A whole partition ------------------------------------------------------------------------------------------------


def test_pop_16_nothing_more_comes_while_something_is_in_flight(queue: Queue) -> None:
    queue.send(*"abcdef")
    billing = queue.consumer("billing")
    found = billing.pop(3, order=True)
    assert found.bodies == ["a", "b", "c"]
    assert billing.pop(3, order=True).bodies == []
    billing.ack(found.handles[:2])
    assert billing.pop(3, order=True).bodies == []
    assert billing.pop(3, order=True, ack=found.handles[2:]).bodies == ["d", "e", "f"]
    assert _offset(queue, billing) == 3, "progress is stored before the answer"


def test_pop_16_the_same_messages_come_again_in_order(queue: Queue) -> None:
    queue.send(*"abcd")
    billing = queue.consumer("billing")
    found = billing.pop(3, order=True, invisible_ms=10_000)
    assert billing.ack([found.handles[1]]) == billing.ack([found.handles[1]]) == {}
    queue.advance(9_000)
    assert billing.pop(order=True).bodies == []
    queue.advance(1_000)
    again = billing.pop(order=True)
    assert again.bodies == ["a", "c"] and again.attempts == [2, 2]
    assert billing.ack([found.handles[0]]) == {found.handles[0]: "handle_expired"}
    assert billing.pop(order=True, ack=again.handles).bodies == ["d"]
    queue.revive()
    assert queue.retries("billing") == [], "ordered pops have no checkpoints"


def test_pop_16_the_group_may_say_it_and_partitions_are_apart(queue: Queue) -> None:
    first, second = queue.topic(partitions=2, name="events")
    queue.send("a", "b", topic="events", partition=first)
    queue.send("c", "d", topic="events", partition=second)
    queue.group("billing", order=True)
    billing = queue.consumer("billing", "events")
    bodies = {billing.pop(1).bodies[0], billing.pop(1).bodies[0]}
    assert bodies == {"a", "c"} and billing.pop().bodies == []


@pytest.mark.parametrize("in_order", [False, True])
def test_pop_16_leases_outlive_a_crash_and_the_rest_is_counted_on(queue: Queue, in_order: bool) -> None:
    queue.send(*"abcd")
    billing = queue.consumer("billing")
    first = billing.pop(3, order=True, invisible_ms=10_000)
    billing.ack([first.handles[1]])
    queue.restart() if in_order else queue.crash()
    billing = queue.consumer("billing")
    assert billing.pop(3, order=True).bodies == [], "the partition is held as before"
    queue.advance(9_000)
    assert billing.pop(3, order=True).bodies == []
    queue.advance(1_000)
    again = billing.pop(3, order=True)
    assert again.bodies == ["a", "c"] and again.attempts == [2, 2]
    assert billing.ack([first.handles[0]]) == {first.handles[0]: "handle_expired"}
    assert billing.pop(3, order=True, ack=again.handles).bodies == ["d"]


@pytest.mark.promise("HOST-4")
@pytest.mark.parametrize("order", [True, "key"])
def test_pop_08_handles_outlive_a_crash_also_when_they_come_before_the_first_pop(queue: Queue, order: object) -> None:
    queue.send(*"abcde")
    billing = queue.consumer("billing")
    found = billing.pop(4, order=order)
    queue.crash()
    billing = queue.consumer("billing")
    assert billing.ack(found.handles[:1]) == billing.ack(found.handles[:1]) == {}
    assert billing.dead(found.handles[1:2], "cannot be parsed") == {}
    new = billing.invisible(found.handles[2], 2 * MINUTE).json["handle"]
    assert billing.nack(found.handles[3:], delay_ms=0) == {}
    queue.crash()
    billing = queue.consumer("billing")
    assert billing.ack([found.handles[2]]) == {found.handles[2]: "handle_expired"}, "it was changed"
    assert billing.ack([found.handles[1]]) == {}, "it is done"
    assert billing.pop(1, order=order).bodies == ([] if order is True else ["d"])
    assert billing.ack([new]) == {}
    assert _offset(queue, billing) == 3
    again = billing.pop(order=order)
    assert again.bodies == (["d"] if order is True else ["e"])
    assert [dict(dead["headers"])[DEAD_REASON_HEADER] for dead in queue.dead_letters("billing")] == ["cannot be parsed"]


def test_pop_08_a_lane_whose_flights_are_all_done_says_so_after_a_crash(queue: Queue) -> None:
    """An acknowledgement whose answer was lost is repeated at who took over."""
    queue.send(*"ab")
    billing = queue.consumer("billing")
    found = billing.pop(order=True)
    billing.ack(found.handles)
    queue.crash()
    billing = queue.consumer("billing")
    assert billing.ack(found.handles) == {}
    assert billing.nack(found.handles) == dict.fromkeys(found.handles, "handle_expired")
    queue.send("c")
    assert billing.pop().bodies == ["c"], "nothing is in flight in order"


def test_pop_16_a_released_batch_comes_again_at_once(queue: Queue) -> None:
    queue.send(*"ab")
    billing = queue.consumer("billing")
    found = billing.pop(order=True)
    assert billing.nack(found.handles, delay_ms=0) == {}
    again = billing.pop(order=True)
    assert again.bodies == ["a", "b"] and again.attempts == [2, 2]
    new = billing.invisible(again.handles[0], 20 * MINUTE).json["handle"]
    queue.advance(2 * MINUTE)
    assert billing.pop(order=True).bodies == [], "one of the batch is held for longer"
    assert billing.ack([new]) == {}
    assert billing.pop(order=True).bodies == ["b"]


def test_retry_03_an_ordered_message_that_fails_too_often_is_a_dead_letter_and_the_rest_goes_on(queue: Queue) -> None:
    billing = queue.group("billing", order=True, max_attempts=2)
    queue.send("bad", "good")
    for attempt in (1, 2):
        found = billing.pop(1)
        assert found.bodies == ["bad"] and found.attempts == [attempt]
        queue.advance(MINUTE)
    assert billing.pop(1).bodies == ["good"]
    (dead,) = queue.dead_letters("billing")
    assert (dead["body"], dead["reconsume_times"]) == (b"bad", 2)
    assert dict(dead["headers"])[DEAD_REASON_HEADER] == "max_attempts"
    assert dead["origin"] == {"topic": "orders", "partition": "orders@broker-a", "offset": 0}


def test_retry_03_a_condemned_ordered_message_is_dead_at_once(queue: Queue) -> None:
    queue.send(*"abc")
    billing = queue.consumer("billing")
    found = billing.pop(2, order=True)
    assert billing.dead(found.handles[:1], "cannot be parsed") == {}
    assert billing.ack(found.handles[:1]) == {}, "it is done"
    (dead,) = queue.dead_letters("billing")
    assert dict(dead["headers"])[DEAD_REASON_HEADER] == "cannot be parsed"
    assert billing.pop(order=True, ack=found.handles[1:]).bodies == ["c"]
    queue.crash()
    queue.advance(MINUTE)
    assert queue.consumer("billing").pop(order=True).bodies == ["c"]
    assert len(queue.dead_letters("billing")) == 1


def test_order_08_a_strict_topic_repeats_a_failing_message_in_place_for_ever(queue: Queue) -> None:
    queue.topic(name="strict", order_strategy="strict")
    queue.group("billing", order=True, max_attempts=2, retry_policy={"fixed_ms": 0})
    billing = queue.consumer("billing", "strict")
    queue.send("bad", "good", topic="strict")
    for attempt in range(1, 6):
        found = billing.pop(1)
        assert found.bodies == ["bad"] and found.attempts == [attempt]
        assert billing.nack(found.handles) == {}
    assert queue.dead_letters("billing") == []


def test_group_settings_that_change_in_flight_count_from_the_next_pop(queue: Queue) -> None:
    billing = queue.group("billing", order=True, max_attempts=10)
    queue.send("bad", "good")
    billing.nack(billing.pop(1).handles, delay_ms=0)
    billing.nack(billing.pop(1).handles, delay_ms=0)
    queue.group("billing", max_attempts=2)
    assert billing.pop(1).bodies == ["good"]
    assert len(queue.dead_letters("billing")) == 1


def test_an_ordered_pop_with_tags_passes_over_the_others(queue: Queue) -> None:
    for at, tag in enumerate("xyxyx"):
        queue.send(f"{at}", tag=tag)
    billing = queue.consumer("billing")
    found = billing.pop(2, order=True, tags="x")
    assert found.bodies == ["0", "2"]
    assert billing.pop(2, order=True, tags="x", ack=found.handles).bodies == ["4"]


# Keys -------------------------------------------------------------------------------------------------------------


def _send_keys(queue: Queue, keys: str) -> None:
    for at, key in enumerate(keys):
        queue.send(f"{key}{at}", key=key)


def test_pop_17_one_message_of_a_key_at_a_time_and_other_keys_go_on(queue: Queue) -> None:
    _send_keys(queue, "abaca")
    billing = queue.consumer("billing")
    found = billing.pop(order="key")
    assert found.bodies == ["a0", "b1", "c3"]
    assert billing.pop(order="key").bodies == []
    assert billing.pop(order="key", ack=found.handles[1:2]).bodies == []
    assert billing.pop(order="key", ack=found.handles[:1]).bodies == ["a2"]
    assert _offset(queue, billing) == 2


def test_pop_17_a_poison_key_stops_only_itself(queue: Queue) -> None:
    billing = queue.group("billing", order="key", max_attempts=2, retry_policy={"fixed_ms": 0})
    _send_keys(queue, "pqpqpq")
    seen = []
    for _ in range(12):
        for message in billing.pop().messages:
            seen.append(message["body"])
            what = billing.nack if message["key"] == "p" else billing.ack
            assert what([message["handle"]]) == {}
    assert [body for body in seen if body[0] == "q"] == ["q1", "q3", "q5"]
    assert [body for body in seen if body[0] == "p"] == ["p0", "p0", "p2", "p2", "p4", "p4"]
    assert [row["body"] for row in queue.dead_letters("billing")] == [b"p0", b"p2", b"p4"]


def test_pop_17_messages_without_a_key_follow_nobody(queue: Queue) -> None:
    queue.send(*map(str, range(5)))
    billing = queue.consumer("billing")
    assert billing.pop(3, order="key").bodies == ["0", "1", "2"]
    assert billing.pop(3, order="key").bodies == ["3", "4"]


def test_pop_17_many_clients_keep_each_key_in_order(queue: Queue) -> None:
    _send_keys(queue, "abcdefgh" * 12)
    billing = queue.consumer("billing")
    lock = threading.Lock()
    done: list[str] = []
    held: set[str] = set()

    def work() -> None:
        while len(done) < 96:
            for message in billing.pop(4, order="key").messages:
                with lock:
                    assert message["key"] not in held, "two of one key at a time"
                    held.add(message["key"])
                with lock:
                    held.remove(message["key"])
                    done.append(message["body"])
                assert billing.ack([message["handle"]]) == {}

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for key in "abcdefgh":
        numbers = [int(body[1:]) for body in done if body[0] == key]
        assert numbers == sorted(numbers) and len(numbers) == 12


def test_pop_17_a_crash_goes_on_with_each_key_where_it_was(queue: Queue) -> None:
    _send_keys(queue, "aabb")
    billing = queue.consumer("billing")
    found = billing.pop(order="key")
    billing.ack(found.handles[:1])
    queue.crash()
    billing = queue.consumer("billing")
    again = billing.pop(order="key")
    assert again.bodies == ["a1"] and again.attempts == [1], "b2 is still leased"
    assert billing.ack(found.handles[1:]) == {}
    assert billing.pop(order="key").bodies == ["b3"]


@pytest.mark.parametrize(("one", "other"), [(True, "key"), ("key", True)])
def test_pop_17_after_a_crash_a_group_may_be_popped_in_the_other_order(
    queue: Queue, one: object, other: object
) -> None:
    _send_keys(queue, "aab")
    found = queue.consumer("billing").pop(order=one)
    queue.crash()
    billing = queue.consumer("billing")
    assert billing.pop(order=other).bodies == []
    queue.advance(MINUTE)
    again = billing.pop(order=other)
    assert again.bodies == {True: ["a0", "b2"], "key": ["a0"]}[one]  # type: ignore[index] # True or "key"
    assert billing.ack(found.handles) == dict.fromkeys(found.handles, "handle_expired")
    more = billing.pop(order=other, ack=again.handles)
    assert more.bodies == {True: ["a1"], "key": ["a1", "b2"]}[one]  # type: ignore[index] # True or "key"
    assert more.attempts == {True: [2], "key": [1, 2]}[one]  # type: ignore[index] # True or "key"


# Bytes ------------------------------------------------------------------------------------------------------------


def test_rely_8_a_pop_by_key_stops_at_the_bytes_of_an_answer(tmp_path: Path) -> None:
    """As one without order does; it was bounded by its number of messages alone."""
    with queue_in(tmp_path / "warehouse", Ports(pop_bytes_max=250_000)) as queue:
        queue.topic()
        for key in "abcdef":
            queue.send(key * 100_000, key=key)
        billing = queue.consumer("billing")
        found = [billing.pop(order="key") for _ in range(3)]
        assert [[body[0] for body in one.bodies] for one in found] == [["a", "b"], ["c", "d"], ["e", "f"]]
        queue.crash()
        queue.advance(MINUTE)
        billing = queue.consumer("billing")
        again = billing.pop(order="key")
        assert [body[0] for body in again.bodies] == ["a", "b"] and again.attempts == [2, 2]


def test_rely_8_a_pop_by_key_finds_one_message_at_least(tmp_path: Path) -> None:
    with queue_in(tmp_path / "warehouse", Ports(pop_bytes_max=50_000)) as queue:
        queue.topic()
        for key in "ab":
            queue.send(key * 100_000, key=key)
        billing = queue.consumer("billing")
        assert [body[0] for body in billing.pop(order="key").bodies] == ["a"]
        queue.crash()
        queue.advance(MINUTE)
        billing = queue.consumer("billing")
        assert [body[0] for body in billing.pop(order="key").bodies] == ["a"], "that comes again, too"


def test_rely_8_what_comes_again_in_order_stops_there_too(tmp_path: Path) -> None:
    with queue_in(tmp_path / "warehouse") as queue:
        queue.topic()
        for body in "abcd":
            queue.send(body * 100_000)
        assert len(queue.consumer("billing").pop(order=True).bodies) == 4
    with queue_in(tmp_path / "warehouse", Ports(pop_bytes_max=250_000)) as queue:
        queue.advance(MINUTE)
        billing = queue.consumer("billing")
        again = billing.pop(order=True)
        assert [body[0] for body in again.bodies] == ["a", "b"] and again.attempts == [2, 2]
        assert billing.pop(order=True).bodies == [], "they hold the partition"
        rest = billing.pop(order=True, ack=again.handles)
        assert [body[0] for body in rest.bodies] == ["c", "d"] and rest.attempts == [2, 2]


# Both ways --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("one", "other"), [(False, True), (True, False), (True, "key"), ("key", False)])
def test_the_order_changes_only_when_nothing_is_in_flight(queue: Queue, one: object, other: object) -> None:
    queue.send(*"abcd")
    billing = queue.consumer("billing")
    found = billing.pop(2, order=one)
    refused = billing.ask(order=other)
    assert (refused.status, refused.json["code"], refused.json["field"]) == (409, "order_conflict", "order")
    assert billing.ack(found.handles) == {}
    more = billing.pop(1, order=other)
    assert more.bodies == ["c"]
    assert billing.pop(1, order=one, ack=more.handles).bodies == ["d"]


@pytest.mark.parametrize("order", [True, "key"])
def test_a_pop_without_order_is_refused_also_after_a_crash(queue: Queue, order: object) -> None:
    queue.send(*"abc")
    found = queue.consumer("billing").pop(2, order=order)
    queue.crash()
    billing = queue.consumer("billing")
    assert billing.ask().json["code"] == "order_conflict", "they are leased"
    assert billing.ack(found.handles[:1]) == {}
    assert billing.ask().json["code"] == "order_conflict"
    assert billing.ack(found.handles[1:]) == {}
    assert billing.pop().bodies == ["c"]


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize(("one", "other"), [(True, "key"), ("key", True)])
def test_pop_16_an_order_whose_messages_are_overdue_gives_way_to_the_other(
    queue: Queue, one: object, other: object, crash: bool
) -> None:
    queue.send(*"abcd")
    old = queue.consumer("billing").pop(2, order=one)
    if crash:
        queue.crash()
    queue.advance(MINUTE)
    billing = queue.consumer("billing")
    again = billing.pop(2, order=other)
    assert again.bodies == ["a", "b"] and again.attempts == [2, 2]
    assert billing.ack(old.handles) == dict.fromkeys(old.handles, "handle_expired")
    if not crash:
        assert billing.ask(order=one).json["code"] == "order_conflict", "they are leased again"
    rest = billing.pop(order=other, ack=again.handles)
    assert rest.bodies == ["c", "d"] and rest.attempts == [1, 1]
    assert billing.ack(rest.handles) == {} and billing.in_flight() == 0


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("order", [True, "key"])
def test_pop_11_what_is_overdue_in_order_is_retried_when_the_group_pops_without(
    queue: Queue, order: object, crash: bool
) -> None:
    queue.send(*"abcd")
    queue.consumer("billing").pop(2, order=order)
    if crash:
        queue.crash()
    queue.advance(MINUTE)
    billing = queue.consumer("billing")
    found = billing.pop_again(4)
    attempts = dict(zip(found.bodies, found.attempts, strict=True))
    assert attempts == {"a": 2, "b": 2, "c": 1, "d": 1}
    assert billing.ack(found.handles) == {} and billing.in_flight() == 0
    queue.settle()  # acknowledgements that are only in memory come again after a crash
    queue.crash()
    billing = queue.consumer("billing")
    assert billing.pop(wait_ms=200).bodies == [] and len(queue.retries("billing")) == 2


def test_pop_11_an_overdue_message_that_is_retried_has_no_more_attempts_than_others(queue: Queue) -> None:
    billing = queue.group("billing", max_attempts=3)
    queue.send("a", "b")
    for attempt in (1, 2):
        assert billing.pop(1, order=True).attempts == [attempt]
        queue.advance(MINUTE)
    (third,) = [m for m in billing.pop_again(2).messages if m["body"] == "a"]
    assert third["delivery_attempt"] == 3
    queue.advance(2 * MINUTE)
    queue.revive()
    (dead,) = queue.dead_letters("billing")
    assert (dead["body"], dead["reconsume_times"]) == (b"a", 3)


def test_pop_11_what_is_overdue_for_the_last_time_in_order_is_a_dead_letter(queue: Queue) -> None:
    billing = queue.group("billing", max_attempts=1)
    queue.send("a", "b")
    assert billing.pop(1, order="key").bodies == ["a"]
    queue.advance(MINUTE)
    assert billing.pop().bodies == ["b"]
    assert [dead["body"] for dead in queue.dead_letters("billing")] == [b"a"] and queue.retries("billing") == []


def test_pop_11_an_overdue_message_is_retried_once_though_its_pop_is_repeated(tmp_path: Path) -> None:
    """The first pop without order could not store that the lane is done with it; then the process ended."""
    store = faulty_disk(tmp_path / "warehouse")
    with queue_in(tmp_path / "warehouse", Ports(store=store)) as queue:
        queue.topic()
        queue.send(*"abc")
        billing = queue.consumer("billing")
        assert billing.pop(3, order=True).bodies == ["a", "b", "c"]
        queue.advance(MINUTE)

        def full(key: str) -> None:
            if OFFSETS in key and queue.retries("billing"):
                raise StorageFull

        store.before["put"] = full
        # Which of its lanes a pop visits first is drawn: the retries come in this answer, or in the next one.
        assert billing.ask(max_messages=32).status in (200, 507)
        assert len(queue.retries("billing")) == 3
        store.before.clear()
        queue.crash()
        again = queue.consumer("billing").pop_again(3)
        assert sorted(again.bodies) == ["a", "b", "c"] and again.attempts == [2, 2, 2]
        assert len(queue.retries("billing")) == 3


def test_a_late_handle_of_before_does_not_take_a_lane_back(queue: Queue) -> None:
    """An acknowledgement that comes twice, when the lane was popped in order meanwhile and is not any more."""
    queue.send(*"abc")
    billing = queue.consumer("billing")
    first = billing.pop(1)
    billing.ack(first.handles)
    second = billing.pop(1, order=True)
    assert billing.ack(first.handles) == {}
    billing.ack(second.handles)
    assert billing.pop().bodies == ["c"]


def test_a_partition_in_another_order_keeps_no_message_of_the_others(queue: Queue) -> None:
    first, second = queue.topic(partitions=2, name="events")
    queue.send("a", topic="events", partition=first)
    billing = queue.consumer("billing", "events")
    billing.pop(order=True)
    queue.send("b", topic="events", partition=second)
    assert billing.pop().bodies == ["b"]


def test_a_lane_in_order_goes_on_behind_what_was_popped_without(queue: Queue) -> None:
    queue.send(*map(str, range(60)))
    billing = queue.consumer("billing")
    first, second = billing.pop(20), billing.pop(20)
    billing.ack(first.handles)
    billing.ack(second.handles)
    queue.restart()
    assert queue.consumer("billing").pop(order=True).bodies[0] == "40"


def test_cons_04_a_clients_own_commit_moves_lanes_in_memory(queue: Queue) -> None:
    queue.send(*map(str, range(10)))
    for order in (False, True, "key"):
        consumer = queue.consumer(f"group-{order}")
        assert consumer.pop(2, order=order).bodies == ["0", "1"]
        path = f"{consumer.path}/topics/orders/offsets"
        assert queue.api.call("PUT", path, {"offsets": {"orders@broker-a": 5}}).status == 200
        assert consumer.pop(1, order=order).bodies == ["5"], order
