"""The ordered consumer's rights: handover, locks and authorizations that end, answers that get lost, the end."""

from __future__ import annotations

import threading

import pytest

from deltamq.mq.client.messages.received import OrderedMessage
from deltamq.mq.order.orderly import Verdict
from tests.unit.client.orderly.orderly_consumers import PARTITION, Ear, Listen, fill, listen
from tests.unit.client.stub_queue import QueueFault
from tests.unit.client.stub_service import StubService

__all__ = ["listen"]

OTHER = "orders@broker-b"


class Gate:
    """A listener that stops at one offset until the test lets it go on."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.reached = threading.Event()
        self.open = threading.Event()

    def __call__(self, message: OrderedMessage) -> Verdict:
        if message.offset == self.at:
            self.reached.set()
            assert self.open.wait(20)
        return Verdict.SUCCESS


def owned(stub: StubService, partition: str, client: str) -> None:
    stub.wait_for(lambda: stub.order.owner("ledger", partition) == client)


def taken(stub: StubService, partition: str, client: str) -> None:
    stub.wait_for(lambda: ("take", client, partition) in stub.order.lock_events)


def test_order_05_a_handover_repeats_no_message_and_waits_for_the_one_that_is_heard(
    stub: StubService, listen: Listen
) -> None:
    stub.create("orders", 2)
    fill(stub, 10)
    fill(stub, 10, OTHER)
    gate = Gate(at=4)
    one, other = Ear(stub, gate), Ear(stub)
    listen(one, client_id="one")
    stub.wait_for(lambda: one.offsets()[-1:] == one.offsets(OTHER)[-1:] == [4])
    listen(other, client_id="two")
    stub.wait_for(lambda: is_of(stub, PARTITION, "two") or is_of(stub, OTHER, "two"))
    moved = PARTITION if is_of(stub, PARTITION, "two") else OTHER
    stub.wait_for(lambda: any(call.request["client_id"] == "two" for call in stub.queue.calls_of("locks")))
    stub.wait_for(lambda: stub.order.knows_its_allocation("ledger", "one"))
    assert other.heard == [], "the one that hears a message has the lock still"
    gate.open.set()
    stub.wait_for(lambda: stub.order.committed.get(PARTITION, 0) == stub.order.committed.get(OTHER, 0) == 10)
    assert one.offsets(moved) + other.offsets(moved) == list(range(10))
    assert one.offsets(moved) == [0, 1, 2, 3, 4], "what was begun is finished, and nothing more is begun"
    names = [event for event in stub.order.lock_events if event[2] == moved and event[0] != "renew"]
    assert names[:3] == [("take", "one", moved), ("release", "one", moved), ("take", "two", moved)]
    last_of_one = max(offset for client, name, offset in stub.order.commits if (client, name) == ("one", moved))
    assert last_of_one == other.offsets(moved)[0], "it committed before it let go"


def is_of(stub: StubService, partition: str, client: str) -> bool:
    return stub.order.owner("ledger", partition) == client


def test_order_05_closing_hands_everything_over_at_once(stub: StubService, listen: Listen) -> None:
    stub.create("orders", 1)
    fill(stub, 5)
    one = listen(Ear(stub), client_id="one")
    taken(stub, PARTITION, "one")
    other = Ear(stub)
    listen(other, client_id="two")
    stub.wait_for(lambda: stub.order.committed.get(PARTITION, 0) == 5)
    assert one.close()
    taken(stub, PARTITION, "two")
    fill(stub, 1)
    stub.wait_for(lambda: stub.order.committed[PARTITION] == 6)
    assert other.offsets() == [5]
    assert one.close(), "closing twice is harmless"


def test_order_05_a_suspended_partition_is_handed_over_without_waiting_for_its_time(
    stub: StubService, listen: Listen
) -> None:
    stub.create("orders", 1)
    fill(stub, 1)
    ear = Ear(stub, lambda _: Verdict.SUSPEND)
    consumer = listen(ear, suspend_ms=30_000)
    stub.wait_for(lambda: len(ear.heard) == 1)
    assert consumer.close(timeout_s=5)
    assert stub.order.lock_events[-1][0] == "release"
    assert (stub.order.committed[PARTITION], stub.order.attempts[PARTITION]) == (0, 1), (
        "not done, and it has failed once"
    )


def test_closing_tells_what_it_could_not_finish(stub: StubService, listen: Listen) -> None:
    stub.create("orders", 1)
    fill(stub, 1)
    gate = Gate(at=0)
    consumer = listen(Ear(stub, gate))
    assert gate.reached.wait(10)
    closed = consumer.close(timeout_s=0.3)
    assert (closed.unfinished, closed.unreleased) == (1, 1) and not closed
    gate.open.set()
    assert PARTITION not in stub.order.committed


@pytest.mark.promise("LOCK-10")
def test_order_10_a_result_that_comes_after_the_lock_was_lost_is_not_committed(
    stub: StubService, listen: Listen
) -> None:
    stub.create("orders", 1)
    fill(stub, 3)
    gate = Gate(at=1)
    one = Ear(stub, gate)
    listen(one, client_id="one", commit_ms=1)
    assert gate.reached.wait(10)
    stub.wait_for(lambda: stub.order.committed.get(PARTITION) == 1)
    stub.order.call_offline("one")
    other = Ear(stub)
    listen(other, client_id="two")
    stub.wait_for(lambda: bool(other.heard) or stub.order.owner("ledger", PARTITION) == "one")
    gate.open.set()
    stub.wait_for(lambda: stub.order.committed[PARTITION] == 3)
    at_one = [offset for client, _, offset in stub.order.commits if client == "one"]
    assert at_one[:1] == [1]
    assert sorted({*one.offsets(), *other.offsets()}) == [0, 1, 2]


def test_order_03_who_is_cut_off_stops_before_its_authorization_is_over(stub: StubService, listen: Listen) -> None:
    stub.create("orders", 1)
    stub.order.authorized_ms = 2_000  # one of them is the margin
    fill(stub, 1)
    ear = Ear(stub)
    consumer = listen(ear)
    stub.wait_for(lambda: stub.order.committed.get(PARTITION) == 1)
    with stub.changed:
        stub.queue.faults["heartbeat"].extend([QueueFault.UNAVAILABLE] * 10_000)
    stub.wait_for(lambda: consumer.partitions() == (), timeout_s=10)
    assert consumer.stats().expired == 1, "it was lost, not handed over"
    fill(stub, 1)
    with stub.changed:
        asked = len(stub.queue.calls_of("locks"))
    stub.wait_for(lambda: len(stub.queue.calls_of("heartbeat")) > 20)
    assert ear.offsets() == [0]
    assert len(stub.queue.calls_of("locks")) == asked, "without authorization no lock is asked for"
    with stub.changed:
        stub.queue.faults["heartbeat"].clear()
    stub.wait_for(lambda: stub.order.committed[PARTITION] == 2)
    assert ear.offsets() == [0, 1]


def test_order_04_after_a_takeover_of_its_broker_the_holder_claims_its_lock_and_goes_on(
    stub: StubService, listen: Listen
) -> None:
    stub.create("orders", 1)
    fill(stub, 3)
    gate = Gate(at=1)
    ear = Ear(stub, gate)
    listen(ear)
    assert gate.reached.wait(10)
    stub.order.take_over()
    gate.open.set()
    stub.wait_for(lambda: stub.order.committed.get(PARTITION) == 3)
    assert ear.offsets() == [0, 1, 2], "what was under way outlived its broker"


def test_order_04_a_lock_that_was_given_in_a_lost_answer_is_given_back_and_asked_for_anew(
    stub: StubService, listen: Listen
) -> None:
    stub.create("orders", 1)
    fill(stub, 2)
    stub.queue.faults["locks"].append(QueueFault.DROP_AFTER)
    ear = Ear(stub)
    listen(ear)
    stub.wait_for(lambda: stub.order.committed.get(PARTITION) == 2)
    assert [kind for kind, _, _ in stub.order.lock_events][:3] == ["take", "release", "take"]
    assert ear.offsets() == [0, 1]


def test_order_05_a_release_is_repeated_until_it_is_answered(stub: StubService, listen: Listen) -> None:
    stub.create("orders", 1)
    fill(stub, 1)
    consumer = listen(Ear(stub))
    stub.wait_for(lambda: stub.order.committed.get(PARTITION) == 1)
    with stub.changed:
        stub.queue.faults["DELETE"].extend([QueueFault.UNAVAILABLE, QueueFault.DROP_BEFORE, QueueFault.DROP_AFTER])
    assert consumer.close()
    assert len(stub.queue.calls_of("DELETE")) == 4
    assert [kind for kind, _, _ in stub.order.lock_events].count("release") == 1


def test_order_05_the_last_commit_is_repeated_before_the_release(stub: StubService, listen: Listen) -> None:
    stub.create("orders", 1)
    fill(stub, 3)
    ear = Ear(stub)
    consumer = listen(ear, commit_ms=60_000)
    stub.wait_for(lambda: len(ear.heard) == 3)
    with stub.changed:
        stub.queue.faults["PUT"].extend([QueueFault.UNAVAILABLE, QueueFault.DROP_AFTER])
    assert consumer.close()
    assert stub.order.committed[PARTITION] == 3


def test_order_02_a_client_that_was_called_offline_joins_anew(stub: StubService, listen: Listen) -> None:
    stub.create("orders", 1)
    fill(stub, 1)
    ear = Ear(stub)
    listen(ear, client_id="one")
    stub.wait_for(lambda: stub.order.committed.get(PARTITION) == 1)
    stub.order.call_offline("one")
    owned(stub, PARTITION, "one")
    fill(stub, 1)
    stub.wait_for(lambda: stub.order.committed[PARTITION] == 2)
    assert ear.offsets() == [0, 1]
