"""Decisions about topics and the fold of their events (SPEC ROUTE-1 to 3, MODEL-5, POP-12)."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamq.mq.errors import Conflict, Corrupt, DeltaMQError, NotFound, Refused, Unavailable, Unprocessable
from deltamq.mq.meta.fold import event_from_json, event_to_json
from deltamq.mq.meta.topic_settings import TopicRequest, TopicSettings
from deltamq.mq.meta.topics import (
    Event,
    MetaState,
    Topic,
    TopicDeleted,
    TopicPut,
    decide_delete_topic,
    decide_put_topic,
)
from deltamq.mq.routing import default_route, new_route

AB = ("A", "B")


def put(state: MetaState, name: str = "orders", *, id: str = "id-1", now_ms: int = 5, **request: object) -> MetaState:
    asked = TopicRequest(**request)
    return state.apply_all(decide_put_topic(state, name, asked, AB, id, now_ms))


def test_route_2_a_topic_without_wishes_has_the_default_route_and_settings() -> None:
    state = put(MetaState(), now_ms=1_700_000_000_000)
    assert state.topic("orders") == Topic(
        name="orders",
        id="id-1",
        route=default_route("orders", AB),
        settings=TopicSettings(),
        created_ms=1_700_000_000_000,
    )


def test_a_topic_is_created_as_asked() -> None:
    topic = put(MetaState(), partitions=3, order_strategy="strict", retention_ms=9_000).topic("orders")
    assert topic.route == new_route("orders", 3, AB)
    assert (topic.settings.order_strategy, topic.settings.retention_ms) == ("strict", 9_000)


def test_repeating_a_request_changes_nothing() -> None:
    state = put(MetaState(), partitions=3)
    again = TopicRequest(partitions=3)
    assert decide_put_topic(state, "orders", again, AB, "id-2", 99) == ()
    assert decide_put_topic(state, "orders", TopicRequest(), ("C",), "id-2", 99) == ()


def test_route_3_more_partitions_expand_the_route_and_keep_the_id() -> None:
    before = put(MetaState())
    after = put(before, id="id-2", now_ms=9, partitions=4)
    topic = after.topic("orders")
    assert topic.route.partitions == ("orders@A", "orders@B", "orders#1@A", "orders#2@B")
    assert (topic.id, topic.created_ms) == ("id-1", 5)
    assert (before.routes_epoch, after.routes_epoch, topic.route.epoch) == (1, 2, 2)


def test_route_3_fewer_partitions_are_refused() -> None:
    state = put(MetaState(), partitions=4)
    with pytest.raises(Conflict) as refused:
        put(state, partitions=3)
    assert refused.value.code == "partitions_cannot_shrink"


@pytest.mark.parametrize("partitions", [0, -1, 1025])
def test_route_4_impossible_counts_are_refused_for_new_and_old_topics(partitions: int) -> None:
    with pytest.raises(Unprocessable):
        put(MetaState(), partitions=partitions)
    with pytest.raises(Unprocessable):
        put(put(MetaState()), partitions=partitions)


def test_route_1_settings_change_without_a_new_route_epoch() -> None:
    before = put(MetaState())
    after = put(before, retention_ms=60_000)
    assert after.topic("orders").route == before.topic("orders").route
    assert after.routes_epoch == before.routes_epoch


def test_route_1_the_epoch_grows_with_every_change_of_any_route() -> None:
    state = put(put(MetaState(), "orders"), "refunds", id="id-2")
    assert [state.topic(name).route.epoch for name in ("orders", "refunds")] == [1, 2]
    state = state.apply_all(decide_delete_topic(state, "orders"))
    assert state.routes_epoch == 3
    assert put(state, "orders", id="id-3").topic("orders").route.epoch == 4


def test_pop_12_a_topic_made_again_is_another_topic() -> None:
    state = put(MetaState(), partitions=8, order_strategy="strict")
    state = state.apply_all(decide_delete_topic(state, "orders"))
    assert "orders" not in state.topics
    topic = put(state, id="id-2").topic("orders")
    assert topic.id == "id-2"
    assert topic.settings == TopicSettings()
    assert len(topic.route.partitions) == 2


@pytest.mark.parametrize("other", ["Orders", "ORDERS", "orderS"])
def test_names_that_differ_only_by_case_are_refused(other: str) -> None:
    with pytest.raises(Conflict) as refused:
        put(put(MetaState(), "orders"), other, id="id-2")
    assert (refused.value.code, refused.value.field) == ("topic_name_case", "topic")
    assert refused.value.extra == {"topic": "orders"}


@pytest.mark.parametrize("name", ["%RETRY%g_t", "%DLQ%g", "rmq_sys_x", "sys/meta"])
def test_model_5_system_names_are_refused(name: str) -> None:
    for decide in (put, decide_delete_topic):
        with pytest.raises(Refused) as refused:
            decide(MetaState(), name)
        assert refused.value.code == "system_name"


def test_model_5_illegal_names_are_refused() -> None:
    with pytest.raises(Refused) as refused:
        put(MetaState(), "../orders")
    assert refused.value.code == "invalid_topic_name"


def test_a_topic_cannot_be_made_without_a_broker() -> None:
    with pytest.raises(Unavailable):
        decide_put_topic(MetaState(), "orders", TopicRequest(), (), "id-1", 5)


def test_deleting_what_is_not_there_is_not_found() -> None:
    with pytest.raises(NotFound) as missing:
        decide_delete_topic(MetaState(), "orders")
    assert (missing.value.code, missing.value.field) == ("topic_not_found", "topic")


def test_a_state_is_not_changed_by_what_follows_it() -> None:
    one = put(MetaState())
    put(one, "refunds", id="id-2")
    one.apply_all(decide_delete_topic(one, "orders"))
    assert list(one.topics) == ["orders"]
    assert MetaState().topics == {}


@pytest.mark.parametrize("partitions", [1, 2, 1024])
def test_events_come_back_from_their_json_text(partitions: int) -> None:
    state = MetaState()
    (created,) = decide_put_topic(state, "orders", TopicRequest(partitions=partitions), AB, "id-1", 5)
    (deleted,) = decide_delete_topic(state.apply(created), "orders")
    for event in (created, deleted):
        assert event_from_json(event.kind, event_to_json(event)) == event
        assert event.key == "topic/orders"
    assert (created.kind, deleted.kind) == ("topic_put", "topic_deleted")


def test_an_event_of_a_newer_release_stops_us() -> None:
    with pytest.raises(Corrupt) as corrupt:
        event_from_json("topic_frozen", b"{}")
    assert corrupt.value.code == "meta_event_unknown"


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("topic_put", {}),
        ("topic_put", {"topic": {"name": "orders"}}),
        ("topic_put", []),
        ("topic_deleted", {"name": "orders", "id": 1, "epoch": 1}),
        ("topic_deleted", {"name": "orders", "id": "1"}),
        ("topic_deleted", None),
    ],
)
def test_a_damaged_event_is_corrupt(kind: str, value: object) -> None:
    with pytest.raises(Corrupt) as corrupt:
        event_from_json(kind, json.dumps(value).encode())
    assert corrupt.value.code == "meta_event_corrupt"


def test_events_of_another_life_contradict_the_log() -> None:
    state = put(MetaState())
    other = put(MetaState(), id="id-9").topic("orders")
    contradictions: list[Event] = [
        TopicPut(topic=other),
        TopicDeleted(name="orders", id="id-9", epoch=2),
        TopicDeleted(name="refunds", id="id-1", epoch=2),
    ]
    for event in contradictions:
        with pytest.raises(Corrupt):
            state.apply(event)


steps = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "A"]),
        st.sampled_from(["delete", 1, 2, 5, 9, 1024, "strict", "async"]),
    ),
    max_size=25,
)


def decide(state: MetaState, name: str, step: str | int, id: str) -> tuple[Event, ...]:
    if step == "delete":
        return decide_delete_topic(state, name)
    request = {
        "strict": TopicRequest(order_strategy="strict"),
        "async": TopicRequest(flush="async"),
    }.get(str(step)) or TopicRequest(partitions=int(step))
    return decide_put_topic(state, name, request, AB, id, 1)


@given(steps)
def test_folding_all_events_at_once_or_one_by_one_or_from_json_is_the_same(
    history: list[tuple[str, str | int]],
) -> None:
    state, log = MetaState(), list[Event]()
    for number, (name, step) in enumerate(history):
        try:
            events = decide(state, name, step, f"id-{number}")
        except DeltaMQError:
            continue
        epoch = state.routes_epoch
        for event in events:
            state = state.apply(event)
        log.extend(events)
        assert state.routes_epoch >= epoch
    assert MetaState().apply_all(log) == state
    assert MetaState().apply_all(event_from_json(event.kind, event_to_json(event)) for event in log) == state
    lowered = [name.lower() for name in state.topics]
    assert len(set(lowered)) == len(lowered)
