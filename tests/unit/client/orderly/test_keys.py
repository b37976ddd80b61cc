"""The ordered consumer whose keys are heard in parallel, against the stub service (SPEC ORDER-11)."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from deltamq.mq.client.messages.received import OrderedMessage
from deltamq.mq.client.orderly.consumer import OrderlyConsumer
from deltamq.mq.client.orderly.listener import Suspend
from deltamq.mq.client.orderly.work import monotonic_ms
from deltamq.mq.errors import Refused
from deltamq.mq.order.orderly import Verdict
from tests.unit.client.orderly.orderly_consumers import PARTITION, Ear, Listen, fill, listen
from tests.unit.client.stub_queue import QueueFault
from tests.unit.client.stub_service import StubService

__all__ = ["listen"]

PARALLEL = {"keys_in_parallel": 4, "client_id": "one"}


def fill_keys(stub: StubService, keys: str) -> None:
    """Add a message for each letter, which is its key."""
    for key in keys:
        fill(stub, 1, key=key)


def done(stub: StubService, count: int) -> None:
    stub.wait_for(lambda: stub.order.committed.get(PARTITION, 0) == count)


def offsets_by_key(ear: Ear) -> dict[str | None, list[int]]:
    found: dict[str | None, list[int]] = {}
    for message in ear.heard:
        found.setdefault(message.key, []).append(message.offset)
    return found


class Gates:
    """A listener whose messages at some offsets wait until the test lets them go on."""

    def __init__(self, *offsets: int) -> None:
        self.open = {offset: threading.Event() for offset in offsets}
        self.reached = {offset: threading.Event() for offset in offsets}

    def __call__(self, message: OrderedMessage) -> Verdict:
        if message.offset in self.open:
            self.reached[message.offset].set()
            assert self.open[message.offset].wait(20)
        return Verdict.SUCCESS


def test_order_11_keys_of_a_partition_are_heard_at_once_and_each_key_in_order(
    stub: StubService, listen: Listen
) -> None:
    stub.create("orders", 1)
    fill_keys(stub, "abcd" * 50)
    together = threading.Barrier(4, timeout=30)

    def say(message: OrderedMessage) -> Verdict:
        if message.offset < 4:
            together.wait()  # passes only when four keys are heard at once
        return Verdict.SUCCESS

    ear = Ear(stub, say)
    listen(ear, **PARALLEL)
    done(stub, 200)
    assert offsets_by_key(ear) == {key: list(range(at, 200, 4)) for at, key in enumerate("abcd")}
    assert ear.most_in_one == 4


def test_order_11_threads_are_shared_by_all_partitions_in_turn(stub: StubService, listen: Listen) -> None:
    stub.create("orders", 2)
    fill_keys(stub, "ab" * 20)
    fill(stub, 20, "orders@broker-b")
    ear = Ear(stub)
    listen(ear, keys_in_parallel=2, concurrency=2, turn_ms=1)
    done(stub, 40)
    stub.wait_for(lambda: stub.order.committed.get("orders@broker-b", 0) == 20)
    assert ear.most <= 2


def test_order_11_more_is_fetched_while_a_listener_is_slow_and_the_commit_is_the_lowest_offset_not_done(
    stub: StubService, listen: Listen
) -> None:
    stub.create("orders", 1)
    fill_keys(stub, "abbb" + "c" * 20)
    gates = Gates(0)
    ear = Ear(stub, gates)
    consumer = listen(ear, **PARALLEL, fetch_messages=4, ahead_messages=10)
    stub.wait_for(lambda: len(ear.heard) == 10)
    assert consumer.positions() == {("orders", PARTITION): 0}
    stub.wait_for(lambda: consumer.done_ahead() == {("orders", PARTITION): 9})
    assert PARTITION not in stub.order.committed
    assert sorted(ear.offsets()) == list(range(10)), "no further ahead"
    gates.open[0].set()
    done(stub, 24)
    assert sorted(ear.offsets()) == list(range(24))
    assert consumer.done_ahead() == {("orders", PARTITION): 0}


@pytest.mark.parametrize("said", [Verdict.SUSPEND, Suspend(10), None], ids=str)
def test_order_11_a_message_that_fails_stops_only_its_key(stub: StubService, listen: Listen, said: object) -> None:
    stub.create("orders", 1)
    fill_keys(stub, "ababab")
    ear = Ear(stub, lambda message: said if message.offset == 0 and message.attempt < 3 else Verdict.SUCCESS)
    listen(ear, **PARALLEL)
    done(stub, 6)
    assert offsets_by_key(ear) == {"a": [0, 0, 0, 2, 4], "b": [1, 3, 5]}
    assert [message.attempt for message in ear.heard if message.offset == 0] == [1, 2, 3]


def test_order_11_a_message_that_fails_for_good_is_a_dead_letter_and_its_key_goes_on(
    stub: StubService, listen: Listen
) -> None:
    stub.create("orders", 1)
    fill_keys(stub, "aba")
    stub.queue.faults["aside"].append(QueueFault.UNAVAILABLE)
    ear = Ear(stub, lambda message: Verdict.SUSPEND if message.offset == 0 else Verdict.SUCCESS)
    listen(ear, **PARALLEL)
    done(stub, 3)
    assert offsets_by_key(ear) == {"a": [0, 0, 0, 0, 2], "b": [1]}, "once more, since it could not be stored at first"
    assert stub.order.aside == [(PARTITION, 0, "dead", "max_attempts", 4)]


def test_order_11_in_a_strict_topic_a_key_fails_for_ever_and_others_go_on_up_to_the_bound(
    stub: StubService, listen: Listen
) -> None:
    stub.create("orders", 1, strict=True)
    fill_keys(stub, "a" + "b" * 20)
    ear = Ear(stub, lambda message: Verdict.SUSPEND if message.key == "a" else Verdict.SUCCESS)
    consumer = listen(ear, **PARALLEL, ahead_messages=8)
    stub.wait_for(lambda: ear.offsets().count(0) > 10)
    assert [offset for offset in ear.offsets() if offset] == list(range(1, 8))
    assert stub.order.aside == [] and PARTITION not in stub.order.committed
    assert consumer.close(timeout_s=10), "a key that fails does not hold up the handover"


def test_order_11_a_handover_repeats_nothing_and_finishes_what_lies_between(stub: StubService, listen: Listen) -> None:
    stub.create("orders", 1)
    fill_keys(stub, "aaab" + "c" * 10)
    gates = Gates(0, 5)
    one, other = Ear(stub, gates), Ear(stub)
    consumer = listen(one, **PARALLEL)
    assert gates.reached[0].wait(10) and gates.reached[5].wait(10)
    listen(other, client_id="two")
    closing = threading.Thread(target=consumer.close)
    closing.start()
    stub.wait_for(lambda: stub.order.owner("ledger", PARTITION) == "two")
    gates.open[5].set()
    gates.open[0].set()
    closing.join()
    done(stub, 14)
    assert sorted(one.offsets()) == [0, 1, 2, 3, 4, 5], "1 and 2 kept 3 to 5 from a commit"
    assert other.offsets() == list(range(6, 14))


def test_order_11_what_was_done_ahead_of_the_commit_is_heard_again_after_a_crash(
    stub: StubService, listen: Listen
) -> None:
    stub.create("orders", 1)
    fill_keys(stub, "abbbc")
    gates = Gates(0)
    one = Ear(stub, gates)
    listen(one, **PARALLEL)
    stub.wait_for(lambda: sorted(one.offsets()) == [0, 1, 2, 3, 4])
    stub.order.call_offline("one")
    other = Ear(stub)
    listen(other, client_id="two", keys_in_parallel=4)
    stub.wait_for(lambda: bool(other.heard) or stub.order.owner("ledger", PARTITION) == "one")
    gates.open[0].set()
    done(stub, 5)
    assert {*one.offsets(), *other.offsets()} == set(range(5))
    assert all(heard == sorted(heard) for heard in offsets_by_key(other).values())


def test_order_11_results_that_come_after_the_lock_was_lost_are_not_committed(
    stub: StubService, listen: Listen
) -> None:
    stub.create("orders", 1)
    stub.order.authorized_ms = 2_000  # one of them is the margin
    fill_keys(stub, "ab")
    gates = Gates(0, 1)
    ear = Ear(stub, gates)
    consumer = listen(ear, **PARALLEL)
    assert gates.reached[0].wait(10) and gates.reached[1].wait(10)
    with stub.changed:
        stub.queue.faults["heartbeat"].extend([QueueFault.UNAVAILABLE] * 10_000)
    authorization = consumer._heartbeats.authorization
    stub.wait_for(lambda: not authorization.holds(monotonic_ms()), timeout_s=10)
    gates.open[1].set()
    gates.open[0].set()
    stub.wait_for(lambda: consumer.partitions() == (), timeout_s=10)
    assert PARTITION not in stub.order.committed
    assert consumer.stats().expired == 1
    with stub.changed:
        stub.queue.faults["heartbeat"].clear()


def test_order_11_a_careful_client_hears_one_message_at_a_time_each_after_a_commit(
    stub: StubService, listen: Listen
) -> None:
    stub.create("orders", 1)
    fill_keys(stub, "ab" * 150)
    stub.order.attempts[PARTITION] = 2
    stub.queue.faults["PUT"].append(QueueFault.UNAVAILABLE)
    seen: list[tuple[int, int]] = []

    def say(message: OrderedMessage) -> Verdict:
        seen.append((message.offset, stub.order.committed.get(PARTITION, 0)))
        return Verdict.SUCCESS

    ear = Ear(stub, say)
    listen(ear, **PARALLEL, commit_ms=60_000)
    stub.wait_for(lambda: len(seen) == 300)
    assert seen == [(offset, offset) for offset in range(300)]
    assert ear.most == 1


def test_order_11_batches_are_of_one_key(stub: StubService, listen: Listen) -> None:
    stub.create("orders", 1)
    fill_keys(stub, "aabbab")
    heard: list[list[int]] = []

    def listener(messages: list[OrderedMessage]) -> Verdict:
        heard.append([message.offset for message in messages])
        return Verdict.SUCCESS

    listen(listener, **PARALLEL, batch_messages=3)
    done(stub, 6)
    assert sorted(heard) == [[0, 1, 4], [2, 3, 5]]


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"keys_in_parallel": 0}, "keys_in_parallel"),
        ({"keys_in_parallel": 5, "concurrency": 4}, "keys_in_parallel"),
        ({"keys_in_parallel": 5, "ahead_messages": 4}, "ahead_messages"),
        ({"keys_in_parallel": 2, "autocommit": False}, "autocommit"),
    ],
)
def test_order_11_settings_out_of_bounds_are_refused(stub: StubService, settings: dict[str, Any], field: str) -> None:
    with pytest.raises(Refused) as refused:
        OrderlyConsumer(stub.url, "ledger", "orders", print, **settings)
    assert refused.value.field == field
