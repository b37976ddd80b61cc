"""Ordered consumers of static topics: queues in order over segments, at the host of the leader (STATIC-2, 13)."""

from __future__ import annotations

import pytest

from deltamq.mq.client.messages.received import OrderedMessage
from deltamq.mq.client.orderly.calls import OrderlyCalls
from deltamq.mq.client.shells.shell import run_now
from deltamq.mq.client.shells.threads import ThreadShell
from deltamq.mq.order.orderly import Verdict
from tests.unit.client.orderly.orderly_consumers import Ear, Listen, listen
from tests.unit.client.stub_service import StubService
from tests.unit.client.stub_static import StubStatic

__all__ = ["listen"]

A, B = "broker-a", "broker-b"
FIRST, SECOND = "0@__logical_queue_broker__", "1@__logical_queue_broker__"


@pytest.fixture
def static(stub: StubService) -> StubStatic:
    return stub.create_static(2)


def append(stub: StubService, static: StubStatic, name: str, count: int = 1) -> None:
    with stub.changed:
        static.append(name, [{"body": b"x"}] * count)
        stub.changed.notify_all()


def remap(stub: StubService, static: StubStatic, broker: str, mode: str = "strict") -> None:
    with stub.changed:
        static.remap({"brokers": [broker], "mode": mode})
        stub.changed.notify_all()


def test_static_13_a_queue_is_heard_in_order_over_segments_and_holes(
    stub: StubService, static: StubStatic, listen: Listen
) -> None:
    moves = iter([(B, "available"), (A, "strict"), (B, "available")])

    def say(message: OrderedMessage) -> Verdict:
        # Each third message moves the queue behind what was sent, and more messages follow there.
        if message.partition == FIRST and len(ear.offsets(FIRST)) % 3 == 0 and (move := next(moves, None)):
            remap(stub, static, *move)
            append(stub, static, FIRST, 3)
        return Verdict.SUCCESS

    ear = Ear(stub, say)
    append(stub, static, FIRST, 3)
    append(stub, static, SECOND, 2)
    listen(ear)
    expected = [0, 1, 2, 10_000, 10_001, 10_002, 10_003, 10_004, 10_005, 20_000, 20_001, 20_002]
    stub.wait_for(lambda: stub.order.committed.get(FIRST) == 20_003)
    assert ear.offsets(FIRST) == expected
    assert ear.offsets(SECOND) == [0, 1]
    assert ear.most_in_one == 1
    assert {name for _, name, _ in stub.order.commits} <= {FIRST, SECOND}, "commits name logical queues"


def test_order_04_the_lock_of_a_moved_queue_is_claimed_at_the_host_of_its_new_leader(
    stub: StubService, static: StubStatic, listen: Listen
) -> None:
    with StubService() as other:
        stub.beside(other)
        ear = Ear(stub)
        consumer = listen(ear)

        def asked(host: StubService) -> bool:
            return any("/partitions/0%40__logical_queue_broker__/" in path for path in host.gets)

        append(stub, static, FIRST, 2)
        stub.wait_for(lambda: stub.order.committed.get(FIRST) == 2)
        assert not asked(other)
        remap(stub, static, B, "available")
        stub.order.take_over()  # the new leader's host does not know the lock
        append(stub, static, FIRST)
        stub.wait_for(lambda: stub.order.committed.get(FIRST) == 10_001)
        assert ear.offsets(FIRST) == [0, 1, 10_000], "the work in progress went on"
        assert consumer.stats().expired == 0, "no partition was lost"
        append(stub, static, FIRST)
        stub.wait_for(lambda: stub.order.committed.get(FIRST) == 10_002 and asked(other))


def test_static_02_locks_of_queues_are_asked_for_at_the_brokers_of_their_leaders(
    stub: StubService, static: StubStatic
) -> None:
    calls = OrderlyCalls(stub.url, "ledger", "client-1", shell=ThreadShell())
    assert calls.broker("orders", FIRST) == "", "not known yet: any host forwards"
    assert calls.broker("orders", "orders@broker-b") == B
    run_now(calls.view("orders"))
    assert (calls.broker("orders", FIRST), calls.broker("orders", SECOND)) == (A, B)
    static.remap({"brokers": [B], "mode": "strict"})
    run_now(calls.view("orders"))
    assert calls.broker("orders", FIRST) == B
    run_now(OrderlyCalls.close.core(calls))
