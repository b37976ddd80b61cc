"""Static topics as typed values: create and grow, remap, check, repair; and topics with what is not available."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.client.admin.topic_view import fetch_view
from deltamq.mq.client.http.retries import Patience
from deltamq.mq.client.shells.shell import run_now
from deltamq.mq.errors import Conflict, Corrupt, Unavailable, Unprocessable
from tests.unit.client.on_loop import InShell
from tests.unit.client.stub_service import StubService
from tests.unit.client.stub_static import StubStatic

A, B = "broker-a", "broker-b"
FIRST, SECOND = "0@__logical_queue_broker__", "1@__logical_queue_broker__"


@pytest.fixture
def admin(stub: StubService, in_shell: InShell) -> Iterator[Admin]:
    with in_shell(Admin, stub.url, patience=Patience(first_wait_ms=1, timeout_s=5)) as admin:
        yield admin


@pytest.fixture
def static(stub: StubService) -> StubStatic:
    return stub.create_static(2)


def test_static_07_a_static_topic_is_created_and_grows(admin: Admin) -> None:
    created, new = admin.put_static_topic("orders", 4, order_strategy="strict")
    assert new and created.static and created.order_strategy == "strict"
    assert [one.broker for one in created.queues] == [A, B, A, B]
    assert list(created.named) == [f"{queue}@__logical_queue_broker__" for queue in range(4)]
    grown = admin.create_static_topic("orders", 5, brokers=[B])
    assert (grown.total_queues, grown.queues[4].broker) == (5, B)
    with pytest.raises(Conflict) as caught:
        admin.create_static_topic("orders", 2)
    assert caught.value.code == "queues_cannot_shrink"


def test_static_02_clients_name_queues_and_see_logical_offsets(admin: Admin, static: StubStatic) -> None:
    static.append(FIRST, [{"body": b"1"}, {"body": b"2"}])
    admin.remap("orders", [B], mode="available")
    info = admin.get_topic("orders")
    assert (info.static, info.total_queues, info.messages) == (True, 2, 2)
    assert list(info.named) == [FIRST, SECOND]
    first = info.queues[0]
    assert (first.min_offset, first.max_offset, first.messages, first.holes) == (0, 10_000, 2, 9_998)
    assert info.max_offsets() == {FIRST: 10_000, SECOND: 0}
    assert info.min_offsets([SECOND]) == {SECOND: 0}
    assert [(one.gen, one.broker, one.is_sealed, one.logic_offset) for one in first.segments] == [
        (0, A, True, 0),
        (1, B, False, 10_000),
    ]


def test_static_23_a_plan_moves_nothing(admin: Admin, static: StubStatic) -> None:
    before = static.world.meta
    planned = admin.remap("orders", [B], plan=True)
    assert static.world.meta is before
    assert (planned.plan, planned.mode, planned.seal_ms) == (True, "strict", None)
    assert [(one.queue, one.source, one.target, one.end_offset) for one in planned.moved] == [(0, A, B, None)]


def test_static_08_a_remapping_tells_where_each_queue_was_sealed(admin: Admin, static: StubStatic) -> None:
    static.append(FIRST, [{"body": b"1"}] * 3)
    done = admin.remap("orders", [B], queues=[0])
    (moved,) = done.moved
    assert (moved.source, moved.target, moved.end_offset, moved.logic_offset) == (A, B, 3, 3)
    assert moved.new_partition == "orders#2@broker-b"
    assert static.remaps == [{"brokers": [B], "mode": "strict", "queues": [0]}]
    assert admin.remap("orders", [B], queues=[0]).moved == (), "it is where it belongs"


def test_static_10_a_queue_that_is_not_sealed_has_an_undecided_leader(admin: Admin, static: StubStatic) -> None:
    static.seals = False
    (moved,) = admin.remap("orders", [B], mode="available").moved
    assert (moved.end_offset, moved.logic_offset) == (None, None)
    leader = admin.get_topic("orders").queues[0].leader
    assert leader is not None and (leader.is_decided, leader.is_sealed) == (False, False)


def test_static_05_a_check_names_what_is_missing_and_a_repair_mends_it(admin: Admin, static: StubStatic) -> None:
    admin.remap("orders", [B])
    assert admin.check_topic("orders").complete
    static.lose_mapping(A)
    check = admin.check_topic("orders")
    assert not check.complete
    assert ("missing", A) in {(one.kind, one.broker) for one in check.faults}
    assert [(one.broker, one.hosted) for one in check.mappings] == [(B, 2)]
    with pytest.raises(Conflict) as caught:
        admin.remap("orders", [A])
    assert caught.value.code == "mapping_incomplete"
    planned = admin.repair_topic("orders", plan=True)
    assert (planned.plan, planned.faults) == (True, check.faults)
    assert not admin.check_topic("orders").complete, "a plan writes nothing"


def test_static_11_a_repair_writes_the_mappings_anew(admin: Admin, static: StubStatic) -> None:
    admin.remap("orders", [B], queues=[0])
    static.lose_mapping(A)
    done = admin.repair_topic("orders")
    assert done.repaired == (A, B)
    assert admin.check_topic("orders").complete
    assert admin.repair_topic("orders").faults == ()


def test_static_05_a_queue_of_which_no_copy_survives_is_told(admin: Admin, static: StubStatic) -> None:
    static.lose_mapping(B)
    with pytest.raises(Conflict) as caught:
        admin.repair_topic("orders")
    assert caught.value.code == "mapping_lost"


@pytest.mark.parametrize(
    ("brokers", "queues", "kind", "code"),
    [(["broker-x"], None, Unprocessable, "unknown_broker"), ([A], [7], Unprocessable, "unknown_queue")],
)
def test_static_23_what_is_not_there_is_told(
    admin: Admin, static: StubStatic, brokers: list[str], queues: list[int] | None, kind: type, code: str
) -> None:
    with pytest.raises(kind) as caught:
        admin.remap("orders", brokers, queues=queues)
    assert caught.value.code == code


def test_static_07_a_plain_topic_has_no_logical_queues(stub: StubService, admin: Admin) -> None:
    stub.create("orders", 2)
    assert admin.get_topic("orders").static is False
    for call in (lambda: admin.remap("orders", [A]), lambda: admin.check_topic("orders")):
        with pytest.raises(Conflict) as caught:
            call()
        assert caught.value.code == "topic_not_static"


@pytest.mark.threads
def test_static_22_a_queue_that_cannot_be_had_keeps_its_place(
    stub: StubService, admin: Admin, static: StubStatic
) -> None:
    static.lose_mapping(A)
    info = admin.get_topic("orders")
    assert list(info.named) == [FIRST, SECOND]
    assert (info.queues[0].leader, info.queues[0].broker) == (None, None)
    with pytest.raises(Unavailable) as caught:
        info.min_offsets()
    assert caught.value.code == "queue_unserved"
    assert info.max_offsets([SECOND]) == {SECOND: 0}
    view = run_now(fetch_view(admin.hosts, "orders", 5.0))
    assert (view.partitions, view.brokers, view.places.targets) == ((FIRST, SECOND), ("", B), (1,))
    static.lose_mapping(B)
    nothing = run_now(fetch_view(admin.hosts, "orders", 5.0))
    assert nothing.places.targets == (0, 1), "the service refuses them"


def test_a_topic_with_a_damaged_partition_is_shown(stub: StubService, admin: Admin) -> None:
    topic = stub.create("orders", 2)
    topic.log("orders@broker-b").append({"offset": 0, "body": b"x"})
    stub.damaged.add("orders@broker-a")
    info = admin.get_topic("orders")
    assert [(one.state, one.max_offset) for one in info.partitions] == [("corrupt", None), ("serving", 1)]
    assert info.messages == 1
    assert info.max_offsets(["orders@broker-b"]) == {"orders@broker-b": 1}
    with pytest.raises(Corrupt) as caught:
        info.min_offsets()
    assert "orders@broker-a is damaged (corrupt)" in caught.value.detail


@pytest.mark.threads
def test_static_13_a_view_knows_the_leaders_and_where_older_segments_lie(admin: Admin, static: StubStatic) -> None:
    admin.remap("orders", [B])
    view = run_now(fetch_view(admin.hosts, "orders", 5.0))
    assert (view.partitions, view.brokers, view.is_static) == ((FIRST, SECOND), (B, B), True)
    assert view.stored_at == {A, B}
    assert [view.partitions[view.table[lp]] for lp in (0, 511, 512, 1023)] == [FIRST, FIRST, SECOND, SECOND]
