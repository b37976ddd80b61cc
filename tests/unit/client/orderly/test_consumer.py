"""The ordered consumer against the stub service: order, verdicts, and what becomes of what fails."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.client.messages.received import OrderedMessage
from deltamq.mq.client.orderly.consumer import OrderlyConsumer
from deltamq.mq.client.orderly.listener import Suspend
from deltamq.mq.client.pop.telemetry import Ending
from deltamq.mq.errors import Conflict, Forbidden, Refused
from deltamq.mq.order.orderly import Verdict
from tests.unit.client.orderly.orderly_consumers import PARTITION, Ear, Listen, fill, listen
from tests.unit.client.pop.pop_consumers import QUICK
from tests.unit.client.stub_queue import QueueFault
from tests.unit.client.stub_service import StubService

__all__ = ["listen"]

OTHER = "orders@broker-b"


def done(stub: StubService, count: int, partition: str = PARTITION) -> None:
    stub.wait_for(lambda: stub.order.committed.get(partition, 0) == count)


@pytest.mark.promise("LOCK-10")
def test_order_06_each_partition_is_heard_in_order_by_one_thread_at_a_time_and_several_at_once(
    stub: StubService, listen: Listen
) -> None:
    stub.create("orders", 2)
    fill(stub, 50)
    fill(stub, 50, OTHER)
    together = threading.Barrier(2, timeout=30)

    def say(message: OrderedMessage) -> Verdict:
        if message.offset == 0:
            together.wait()  # passes only when both partitions are heard at once
        return Verdict.SUCCESS

    ear = Ear(stub, say)
    listen(ear)
    done(stub, 50)
    done(stub, 50, OTHER)
    assert ear.offsets() == ear.offsets(OTHER) == list(range(50))
    assert (ear.most_in_one, ear.most) == (1, 2)


def test_order_06_a_single_thread_hears_all_partitions_in_turn(stub: StubService, listen: Listen) -> None:
    stub.create("orders", 2)
    fill(stub, 20)
    fill(stub, 20, OTHER)
    ear = Ear(stub)
    listen(ear, concurrency=1)
    done(stub, 20)
    done(stub, 20, OTHER)
    assert ear.most == 1


def test_order_09_after_its_turn_a_partition_waits_behind_others(stub: StubService, listen: Listen) -> None:
    stub.create("orders", 2)
    fill(stub, 200)

    def say(message: OrderedMessage) -> Verdict:
        if (message.partition, message.offset) == (PARTITION, 0):
            fill(stub, 5, OTHER)  # while the only thread has the long one
        time.sleep(0.005)
        return Verdict.SUCCESS

    ear = Ear(stub, say)
    listen(ear, concurrency=1, turn_ms=20)
    done(stub, 200)
    done(stub, 5, OTHER)
    order = [message.partition for message in ear.heard]
    assert order[0] == PARTITION and order.index(OTHER) < 190, "the long one let the short one pass"
    assert order[-1] == PARTITION and ear.most == 1


@pytest.mark.promise("LOCK-13")
@pytest.mark.parametrize("said", [Verdict.SUSPEND, Suspend(10), None, "nonsense"], ids=str)
def test_order_07_what_is_no_success_is_heard_again_and_nothing_overtakes_it(
    stub: StubService, listen: Listen, said: object
) -> None:
    stub.create("orders", 1)
    fill(stub, 4)
    ear = Ear(stub, lambda message: said if message.offset == 1 and message.attempt < 3 else Verdict.SUCCESS)
    listen(ear)
    done(stub, 4)
    assert [(message.offset, message.attempt) for message in ear.heard] == [
        (0, 1),
        (1, 1),
        (1, 2),
        (1, 3),
        (2, 1),
        (3, 1),
    ]
    assert stub.order.aside == []


def test_order_07_an_exception_is_a_suspension_and_is_shown_to_the_hook(stub: StubService, listen: Listen) -> None:
    stub.create("orders", 1)
    fill(stub, 2)
    seen: list[tuple[int, Verdict, str, str]] = []

    def say(message: OrderedMessage) -> Verdict | None:
        if message.offset == 0 and message.attempt == 1:
            raise OSError("no disk")
        return None if message.offset == 1 and message.attempt == 1 else Verdict.SUCCESS

    def after(message: OrderedMessage, verdict: Verdict, ending: Ending) -> None:
        seen.append((message.offset, verdict, ending.how, str(ending.error or "")))

    def before(message: OrderedMessage) -> None:
        raise RuntimeError("a hook only looks on")

    consumer = listen(Ear(stub, say), before=before, after=after)
    done(stub, 2)
    assert seen == [
        (0, Verdict.SUSPEND, "exception", "no disk"),
        (0, Verdict.SUCCESS, "success", ""),
        (1, Verdict.SUSPEND, "nothing", ""),
        (1, Verdict.SUCCESS, "success", ""),
    ]
    stats = consumer.stats()
    assert (stats.ok, stats.retried, stats.dead, stats.received) == (2, 2, 0, 2)
    assert stats.consume_ms_mean is not None and stats.pops >= 1


def test_order_08_after_its_attempts_a_message_is_dead_and_the_partition_moves_on(
    stub: StubService, listen: Listen
) -> None:
    stub.create("orders", 1)
    fill(stub, 3)
    ear = Ear(stub, lambda message: Verdict.SUSPEND if message.offset == 1 else Verdict.SUCCESS)
    listen(ear)
    done(stub, 3)
    assert ear.offsets() == [0, 1, 1, 1, 2], "the group's max_attempts are 3"
    assert stub.order.aside == [(PARTITION, 1, "dead", "max_attempts", 3)]


def test_order_08_a_dead_letter_that_cannot_be_stored_is_tried_again_in_place(
    stub: StubService, listen: Listen
) -> None:
    stub.create("orders", 1)
    fill(stub, 2)
    stub.queue.faults["aside"].extend([QueueFault.UNAVAILABLE, QueueFault.DROP_AFTER])
    ear = Ear(stub, lambda message: Verdict.DEAD if message.offset == 0 else Verdict.SUCCESS)
    listen(ear)
    done(stub, 2)
    assert ear.offsets() == [0, 0, 0, 1]
    assert [(offset, why) for _, offset, _, why, _ in stub.order.aside] == [(0, "rejected by its listener")]


@pytest.mark.promise("LOCK-14")
def test_order_08_attempts_are_committed_and_the_next_client_counts_on(stub: StubService, listen: Listen) -> None:
    stub.create("orders", 1)
    fill(stub, 3)
    first = Ear(stub, lambda message: Verdict.SUSPEND if message.offset == 1 else Verdict.SUCCESS)
    consumer = listen(first, max_attempts=100)
    stub.wait_for(lambda: stub.order.attempts.get(PARTITION, 0) >= 2)
    consumer.close()
    failed = first.offsets().count(1)
    assert (stub.order.committed[PARTITION], stub.order.attempts[PARTITION]) == (1, failed)
    again = Ear(stub, lambda message: Verdict.SUSPEND if message.offset == 1 else Verdict.SUCCESS)
    listen(again, max_attempts=failed + 2)
    done(stub, 3)
    assert [message.attempt for message in again.heard] == [failed + 1, failed + 2, 1]
    assert stub.order.aside == [(PARTITION, 1, "dead", "max_attempts", failed + 2)]


def test_order_08_what_ended_clients_before_is_dead_without_being_heard(stub: StubService, listen: Listen) -> None:
    stub.create("orders", 1)
    fill(stub, 3)
    stub.order.committed[PARTITION], stub.order.attempts[PARTITION] = 1, 3
    stub.queue.faults["aside"].append(QueueFault.DROP_BEFORE)
    ear = Ear(stub, lambda message: Verdict.SUSPEND if message.offset == 1 else Verdict.SUCCESS)
    listen(ear, suspend_ms=10)
    done(stub, 3)
    assert ear.offsets() == [1, 2], "heard once more, since it could not be set aside at first"
    assert stub.order.aside == [(PARTITION, 1, "dead", "max_attempts", 4)]


def test_order_08_a_careful_client_commits_before_each_message(stub: StubService, listen: Listen) -> None:
    stub.create("orders", 1)
    fill(stub, 300)
    stub.order.attempts[PARTITION] = 2
    stub.queue.faults["PUT"].append(QueueFault.UNAVAILABLE)
    seen: list[tuple[int, int]] = []

    def say(message: OrderedMessage) -> Verdict:
        seen.append((message.offset, stub.order.committed.get(PARTITION, 0)))
        return Verdict.SUCCESS

    listen(Ear(stub, say), commit_ms=60_000)
    stub.wait_for(lambda: len(seen) == 300)
    assert seen[:256] == [(offset, offset) for offset in range(256)]
    assert {committed for _, committed in seen[256:]} == {255}, "then it commits now and then"


@pytest.mark.promise("LOCK-13")
def test_order_08_in_a_strict_topic_a_message_is_repeated_in_place_for_ever(stub: StubService, listen: Listen) -> None:
    stub.create("orders", 1, strict=True)
    fill(stub, 2)
    ear = Ear(stub, lambda message: Verdict.SUCCESS if message.attempt == 10 else Verdict.SUSPEND)
    listen(ear, on_failure="retry_topic")
    stub.wait_for(lambda: len(ear.heard) == 20)
    done(stub, 2)
    assert ear.offsets() == [0] * 10 + [1] * 10
    assert stub.order.aside == []


def test_order_08_best_tried_order_sends_a_failure_to_the_retry_topic_and_goes_on(
    stub: StubService, listen: Listen
) -> None:
    stub.create("orders", 1)
    fill(stub, 3)
    ear = Ear(stub, lambda message: Verdict.SUSPEND if message.offset == 0 else Verdict.SUCCESS)
    listen(ear, on_failure="retry_topic")
    done(stub, 3)
    assert ear.offsets() == [0, 1, 2]
    assert [one[:3] for one in stub.order.aside] == [(PARTITION, 0, "retry")]
    stub.wait_for(lambda: bool(stub.queue.calls_of("pop")))
    assert stub.queue.calls_of("pop")[0].request["retry"] == "only"


@pytest.mark.promise("LOCK-16")
@pytest.mark.parametrize("on_failure", ["dead_letter", "retry_topic", "in_place"])
def test_retry_03_what_is_in_the_groups_retries_is_heard_whatever_becomes_of_failures(
    stub: StubService, listen: Listen, on_failure: str
) -> None:
    """A dead letter that was sent back there, or what another client let go of."""
    stub.create("orders", 1)
    fill(stub, 1)
    with stub.changed:
        stub.queue.twin.create_topic("orders")
        stub.queue.twin.send("orders", b"retried")
    ear = Ear(stub)
    listen(ear, on_failure=on_failure)
    stub.wait_for(lambda: sorted(message.body for message in ear.heard) == [b"0", b"retried"])
    assert {call.request["retry"] for call in stub.queue.calls_of("pop")} == {"only"}


def test_order_07_a_batch_fails_as_a_whole(stub: StubService, listen: Listen) -> None:
    stub.create("orders", 1)
    fill(stub, 5)
    heard: list[list[tuple[int, int]]] = []

    def listener(messages: list[OrderedMessage]) -> Verdict:
        heard.append([(message.offset, message.attempt) for message in messages])
        return Verdict.SUSPEND if len(heard) == 1 else Verdict.SUCCESS

    listen(listener, batch_messages=3)
    done(stub, 5)
    assert heard == [[(0, 1), (1, 1), (2, 1)], [(0, 2), (1, 2), (2, 2)], [(3, 1), (4, 1)]]


def test_cons_03_other_tags_count_as_consumed(stub: StubService, listen: Listen) -> None:
    stub.create("orders", 1)
    fill(stub, 2, tag="a")
    fill(stub, 3, tag="b")
    fill(stub, 1, tag="a")
    fill(stub, 1, tag="b")
    ear = Ear(stub)
    listen(ear, tags="a")
    done(stub, 7)
    assert ear.offsets() == [0, 1, 5]


def test_cons_09_messages_that_the_filter_is_not_true_for_count_as_consumed(stub: StubService, listen: Listen) -> None:
    stub.create("orders", 1)
    for tag in "abca":
        fill(stub, 1, tag=tag)
    ear = Ear(stub)
    listen(ear, filter="tag <= 'b'")
    done(stub, 4)
    assert ear.offsets() == [0, 1, 3]


def test_messages_that_retention_has_taken_are_passed_over(stub: StubService, listen: Listen) -> None:
    topic = stub.create("orders", 1)
    fill(stub, 10)
    topic.min_offsets[PARTITION] = 6
    ear = Ear(stub)
    listen(ear)
    done(stub, 10)
    assert ear.offsets() == [6, 7, 8, 9]


def test_what_is_produced_later_is_heard_without_delay(stub: StubService, listen: Listen) -> None:
    stub.create("orders", 1)
    ear = Ear(stub)
    listen(ear)
    stub.wait_for(lambda: any(path.startswith("/v1/topics/orders/partitions") for path in stub.gets))
    fill(stub, 1)
    done(stub, 1)
    message = ear.heard[0]
    assert (message.topic, message.partition, message.text) == ("orders", PARTITION, "0")


def test_cons_01_a_shared_group_is_not_consumed_in_order(stub: StubService, listen: Listen) -> None:
    stub.create("orders", 1)
    fill(stub, 1)
    stub.order.strategies["ledger"] = "shared"
    ear = Ear(stub)
    with pytest.raises(Conflict) as refused:
        listen(ear, start=False).run()
    assert refused.value.code == "group_not_exclusive"
    assert ear.heard == [] and stub.queue.calls_of("pop") == []


def test_cons_01_a_group_that_does_not_exist_is_made_exclusive(stub: StubService, listen: Listen) -> None:
    stub.create("orders", 1)
    fill(stub, 1)
    del stub.order.strategies["ledger"]
    listen(Ear(stub))
    done(stub, 1)
    assert stub.order.strategies["ledger"] == "exclusive"


def test_cons_01_nothing_is_popped_before_the_group_is_known_to_be_exclusive(stub: StubService, listen: Listen) -> None:
    """A pop that came first would make it a shared group, where groups are made by use."""
    stub.create("orders", 1)
    with stub.changed:
        stub.queue.faults["heartbeat"].extend([QueueFault.UNAVAILABLE] * 10_000)
    listen(Ear(stub))
    stub.wait_for(lambda: len(stub.queue.calls_of("heartbeat")) > 20)
    assert stub.queue.calls_of("pop") == []
    with stub.changed:
        stub.queue.faults["heartbeat"].clear()
    stub.wait_for(lambda: bool(stub.queue.calls_of("pop")))


def test_retry_03_retried_messages_are_heard_after_the_group_was_deleted_and_made_again(
    stub: StubService, listen: Listen
) -> None:
    stub.create("orders", 1)
    stub.queue.twin.create_topic("orders")
    ear = Ear(stub)
    consumer = listen(ear)
    stub.wait_for(lambda: stub.queue.pops_open == 1)
    with stub.changed:
        # The pop learns of the deletion before the heartbeat makes the group again.
        stub.queue.faults["heartbeat"].extend([QueueFault.UNAVAILABLE] * 10_000)
        del stub.order.strategies["ledger"]
        stub.queue.twin.delete_group("ledger")
        stub.changed.notify_all()
    stub.queue.wait_for(lambda: consumer._retries.stats().failed_pops >= 2)
    with stub.changed:
        assert "ledger" not in stub.queue.twin.tables.groups.groups
        stub.queue.faults["heartbeat"].clear()
    stub.wait_for(lambda: stub.order.strategies.get("ledger") == "exclusive")
    with stub.changed:
        stub.queue.twin.send("orders", b"retried")
    stub.wait_for(lambda: [message.body for message in ear.heard] == [b"retried"])
    assert consumer.error is None


def test_retry_03_a_consumer_whose_retried_messages_are_refused_for_good_ends_and_says_why(
    stub: StubService, listen: Listen
) -> None:
    """It looked alive, while nobody popped them any more."""
    stub.create("orders", 1)
    stub.queue.faults["pop"].append(QueueFault.FORBIDDEN)
    with pytest.raises(Forbidden):
        listen(Ear(stub), start=False).run()


def test_a_refusal_for_good_ends_the_consumer_and_run_says_why(stub: StubService, listen: Listen) -> None:
    stub.create("orders", 1)
    stub.queue.faults["heartbeat"].append(QueueFault.FORBIDDEN)
    with pytest.raises(Forbidden):
        listen(Ear(stub), start=False).run()


def test_stop_ends_run_also_from_a_listener(stub: StubService, listen: Listen) -> None:
    stub.create("orders", 1)
    fill(stub, 3)
    consumer: OrderlyConsumer

    def say(message: OrderedMessage) -> Verdict:
        if message.offset == 1:
            with pytest.raises(Refused) as refused:
                consumer.close()
            assert refused.value.code == "close_in_listener"
            consumer.stop()
        return Verdict.SUCCESS

    consumer = listen(Ear(stub, say), start=False)
    consumer.run()
    assert stub.order.committed[PARTITION] >= 2
    with pytest.raises(Refused):
        consumer.start()


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"concurrency": 0}, "concurrency"),
        ({"batch_messages": 0}, "batch_messages"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"suspend_ms": 9}, "suspend_ms"),
        ({"turn_ms": 60_001}, "turn_ms"),
        ({"commit_ms": 0}, "commit_ms"),
        ({"on_failure": "ignore"}, "on_failure"),
    ],
)
def test_settings_out_of_bounds_are_refused(stub: StubService, settings: dict[str, Any], field: str) -> None:
    with pytest.raises(Refused) as refused:
        OrderlyConsumer(stub.url, "ledger", "orders", print, **settings)
    assert refused.value.field == field


def test_the_admin_may_not_commit_for_whoever_holds_the_lock(stub: StubService, listen: Listen) -> None:
    stub.create("orders", 1)
    fill(stub, 1)
    listen(Ear(stub))
    done(stub, 1)
    with Admin(stub.url, patience=QUICK) as admin, pytest.raises(Conflict) as refused:
        admin.commit_offsets("ledger", "orders", {PARTITION: 0}, client_id="somebody-else")
    assert refused.value.code == "not_lock_holder"
