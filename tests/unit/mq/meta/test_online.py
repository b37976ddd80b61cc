"""Online states and allocations of exclusive clients (SPEC ORDER-1, ORDER-2, ORDER-5)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from deltamq.mq.errors import Corrupt
from deltamq.mq.meta.fold import event_from_json, event_to_json
from deltamq.mq.meta.online import (
    Allocated,
    ClientGone,
    ClientPut,
    Member,
    OnlineEvent,
    OnlineState,
    Subscription,
    TopicPartitions,
    decide_heartbeat,
    decide_scan,
)

ORDERS = TopicPartitions("id-1", ("orders@A", "orders@B"))
EXPANDED = TopicPartitions("id-1", ("orders@A", "orders@B", "orders#1@A", "orders#2@B"))
AGAIN = TopicPartitions("id-2", ("orders@A", "orders@B"))
TOPICS = {"orders": ORDERS}


def heartbeat(state: OnlineState, client: str, *, online: bool = True, **other: Any) -> tuple[OnlineEvent, ...]:
    return decide_heartbeat(
        state,
        "billing",
        client,
        subscriptions=other.pop("subscriptions", {"orders": Subscription(order=True, tags="*")}),
        online=online,
        topics=other.pop("topics", TOPICS),
        strategy="sticky",
        now_ms=5,
    )


def scan(state: OnlineState, *over: str, topics: dict[str, TopicPartitions] | None = None) -> tuple[OnlineEvent, ...]:
    gone = {member for member in state.members() if member.client in over}
    topics = TOPICS if topics is None else topics
    return decide_scan(state, over=gone, strategies={"billing": "sticky"}, topics=topics)


def online(*clients: str) -> OnlineState:
    state = OnlineState()
    for client in clients:
        state = state.apply_all(heartbeat(state, client))
    return state


def owned(state: OnlineState) -> dict[str, str]:
    allocation = state.group("billing").topics.get("orders")
    return {} if allocation is None else dict(allocation.owner)


def test_order_02_a_heartbeat_that_changes_nothing_makes_no_event() -> None:
    state = online("a", "b")
    assert heartbeat(state, "a") == heartbeat(state, "b") == ()
    assert heartbeat(state, "nobody", online=False) == ()
    assert scan(state) == ()


def test_order_02_a_client_that_comes_gets_its_share_at_once() -> None:
    state = online("a")
    assert set(owned(state).values()) == {"a"}
    events = heartbeat(state, "b")
    assert [event.kind for event in events] == ["client_put", "allocated"]
    assert sorted(owned(state.apply_all(events)).values()) == ["a", "b"]


def test_order_02_online_false_hands_over_at_once_and_the_client_is_known_until_it_is_gone() -> None:
    state = online("a", "b")
    leaving = state.apply_all(heartbeat(state, "a", online=False))
    assert set(owned(leaving).values()) == {"b"}
    assert leaving.group("billing").allocation("a") == {}
    assert heartbeat(leaving, "a", online=False) == ()
    (mine,) = (partition for partition, owner in owned(state).items() if owner == "a")
    assert leaving.seat("billing", "orders", mine).earlier == {"a"}, "it may be finishing under its lock"
    gone = leaving.apply_all(scan(leaving, "a"))
    assert gone.seat("billing", "orders", mine).earlier == frozenset()
    assert gone.members() == {Member("billing", "b", state.group("billing").clients["b"].joined)}


def test_order_02_the_last_client_that_leaves_is_remembered_for_who_comes_next() -> None:
    state = online("a")
    state = state.apply_all(heartbeat(state, "a", online=False))
    assert owned(state) == {}
    state = state.apply_all(heartbeat(state, "b"))
    assert state.seat("billing", "orders", "orders@A").earlier == {"a"}
    state = state.apply_all(scan(state, "a", "b"))
    assert state.groups == {}


def test_order_02_a_client_that_comes_back_before_it_is_gone_goes_on_with_its_stay() -> None:
    state = online("a", "b")
    left = state.apply_all(heartbeat(state, "a", online=False))
    back = left.apply_all(heartbeat(left, "a"))
    assert back.group("billing").clients == state.group("billing").clients
    after_gone = left.apply_all(scan(left, "a"))
    again = after_gone.apply_all(heartbeat(after_gone, "a"))
    assert again.group("billing").clients["a"].joined > state.group("billing").clients["a"].joined


def test_order_03_only_the_stay_whose_authorization_is_over_is_ended() -> None:
    state = online("a", "b")
    old = Member("billing", "a", state.group("billing").clients["a"].joined)
    state = state.apply_all(scan(state, "a"))
    state = state.apply_all(heartbeat(state, "a"))
    assert decide_scan(state, over={old}, strategies={"billing": "sticky"}, topics=TOPICS) == ()


def test_order_02_the_scan_allocates_what_an_expansion_added() -> None:
    state = online("a", "b")
    events = scan(state, topics={"orders": EXPANDED})
    assert [event.kind for event in events] == ["allocated"]
    after = owned(state.apply_all(events))
    assert {partition: after[partition] for partition in ORDERS.partitions} == owned(state)
    assert sorted(after.values()) == ["a", "a", "b", "b"]


def test_order_02_a_topic_that_was_deleted_or_made_again_has_nothing_of_its_earlier_life() -> None:
    state = online("a", "b")
    assert owned(state.apply_all(scan(state, topics={}))) == {}
    again = state.apply_all(scan(state, topics={"orders": AGAIN}))
    assert again.group("billing").topics["orders"].topic_id == "id-2"
    assert again.seat("billing", "orders", "orders@A").earlier == frozenset()


def test_order_02_nobody_is_online_in_a_group_that_is_not_exclusive_any_more() -> None:
    state = online("a", "b")
    events = decide_scan(state, over=(), strategies={}, topics=TOPICS)
    assert state.apply_all(events).groups == {}


def test_order_01_a_client_gets_only_what_it_asked_for() -> None:
    topics = {"orders": ORDERS, "bills": TopicPartitions("id-9", ("bills@A",))}
    state = OnlineState()
    state = state.apply_all(heartbeat(state, "a", topics=topics))
    wanted = {"bills": Subscription(order=False, tags="*"), "none": Subscription(order=False, tags="*")}
    state = state.apply_all(heartbeat(state, "b", topics=topics, subscriptions=wanted))
    assert state.group("billing").allocation("b") == {"bills": ("bills@A",), "none": ()}
    assert set(owned(state).values()) == {"a"}


def test_meta_02_an_event_that_contradicts_those_before_it_is_corrupt() -> None:
    state = online("a")
    client = state.group("billing").clients["a"]
    for event in (
        ClientPut(group="billing", client=replace(client, joined=7)),
        ClientGone(group="billing", id="a", joined=1),
        Allocated(group="billing", topic="orders", topic_id="id-1", epoch=1, owners={"a": ("orders@A",)}),
    ):
        with pytest.raises(Corrupt):
            OnlineState().apply_all([event])


def test_meta_04_a_damaged_event_is_corrupt() -> None:
    with pytest.raises(Corrupt, match="client_put"):
        event_from_json("client_put", b'{"group": "billing", "client": {"id": 7}}')


def stored(event: OnlineEvent) -> OnlineEvent:
    """The event after it was in the log."""
    read = event_from_json(event.kind, event_to_json(event))
    assert read == event
    return event


steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["come", "leave", "gone"]), st.sampled_from("abcd")),
        st.tuples(st.just("topics"), st.sampled_from([ORDERS, EXPANDED, AGAIN, None])),
    ),
    max_size=25,
)


@given(steps=steps)
def test_order_02_whatever_happens_the_allocation_fits_who_is_online(steps: list[tuple[str, Any]]) -> None:
    """Even, complete, of the present route; and nobody who may still hold a partition is forgotten."""
    state, there = OnlineState(), TOPICS
    had: dict[str, set[str]] = {}
    for step, what in steps:
        if step == "topics":
            there = {} if what is None else {"orders": what}
            before = state.group("billing").topics.get("orders")
            if what is None or (before is not None and before.topic_id != what.topic_id):
                had = {}
            events = scan(state, topics=there)
        elif step == "gone":
            events = scan(state, what, topics=there)
        else:
            events = heartbeat(state, what, online=step == "come", topics=there)
        state = state.apply_all(stored(event) for event in events)
        group = state.group("billing")
        active = group.subscribers("orders")
        owner = owned(state)
        wanted = there["orders"].partitions if there and active else ()
        assert sorted(owner) == sorted(wanted)
        sizes = [list(owner.values()).count(client) for client in active]
        assert not sizes or max(sizes) - min(sizes) <= 1
        for partition, client in owner.items():
            had.setdefault(partition, set()).add(client)
        for partition, clients in had.items():
            clients &= set(group.clients)
            seat = state.seat("billing", "orders", partition)
            assert clients - {owner.get(partition)} == seat.earlier
