"""Decisions about a topic's partitioner: set when it is made, and kept (SPEC KAFKA-12)."""

from __future__ import annotations

import pytest

from deltamq.mq.errors import Conflict, DeltaMQError, Unprocessable
from deltamq.mq.meta.fold import Meta
from deltamq.mq.meta.global_topics import decide_create_global
from deltamq.mq.meta.moved_keys import moves_of
from deltamq.mq.meta.static_topics import StaticRequest, decide_put_static
from deltamq.mq.meta.topic_settings import TopicRequest, TopicSettings
from deltamq.mq.meta.topics import MetaState, decide_put_topic
from tests.static_topics import StaticWorld

AB = ("A", "B")


def put(state: MetaState, **request: object) -> MetaState:
    asked = TopicRequest(**request)  # type: ignore[arg-type]
    return state.apply_all(decide_put_topic(state, "orders", asked, AB, "id-1", 5))


def refused(state: MetaState, **request: object) -> tuple[str, str | None]:
    with pytest.raises(DeltaMQError) as caught:
        put(state, **request)
    return caught.value.code, caught.value.field


def test_kafka_12_a_topic_has_the_partitioner_that_it_was_made_with() -> None:
    assert put(MetaState()).topic("orders").settings.partitioner == TopicSettings().partitioner == "lp"
    state = put(MetaState(), partitioner="kafka", partitions=3)
    assert state.topic("orders").settings.partitioner == "kafka"
    assert put(state, retention_ms=5_000).topic("orders").settings.partitioner == "kafka"
    assert put(state, partitioner="kafka") == state


@pytest.mark.parametrize(("made", "wanted"), [("lp", "kafka"), ("kafka", "lp")])
def test_kafka_12_it_never_changes(made: str, wanted: str) -> None:
    state = put(MetaState(), partitioner=made)
    assert refused(state, partitioner=wanted) == ("partitioner_fixed", "partitioner")
    assert refused(state, partitioner=wanted, partitions=8) == ("partitioner_fixed", "partitioner")


def test_kafka_12_a_strict_topic_does_not_grow_and_another_does_without_moves() -> None:
    strict = put(MetaState(), partitioner="kafka", order_strategy="strict", partitions=2)
    assert refused(strict, partitions=3) == ("partitions_cannot_grow", "partitions")
    assert refused(strict, routes=("orders@A", "orders@B", "orders#1@A")) == ("partitions_cannot_grow", "routes")
    assert refused(put(MetaState(), partitioner="kafka"), partitions=3, order_strategy="strict") == (
        "partitions_cannot_grow",
        "partitions",
    )
    assert put(strict, partitions=2, retention_ms=9_000).topic("orders").settings.retention_ms == 9_000
    free = put(MetaState(), partitioner="kafka", partitions=2)
    events = decide_put_topic(free, "orders", TopicRequest(partitions=5), AB, "id-1", 5)
    assert moves_of(free, events) == []
    assert len(free.apply_all(events).topic("orders").route.partitions) == 5
    assert refused(strict, partitions=1)[0] == "partitions_cannot_shrink"


def test_kafka_12_static_and_global_topics_are_refused() -> None:
    request = StaticRequest(total_queues=2, settings=TopicRequest(partitioner="kafka"))
    with pytest.raises(Unprocessable) as caught:
        decide_put_static(Meta(), "orders", request, AB, "id-1", 5)
    assert (caught.value.code, caught.value.field) == ("partitioner_not_static", "partitioner")
    with pytest.raises(Unprocessable) as caught:
        decide_create_global(Meta(), "orders", request, ["a", "b"], AB, here="a", new_id="id-1", now_ms=5)
    assert caught.value.code == "partitioner_not_static"
    named = StaticRequest(total_queues=2, settings=TopicRequest(partitioner="lp"))
    assert decide_put_static(StaticWorld(AB).meta, "orders", named, AB, "id-1", 5)


def test_kafka_12_a_plain_kafka_topic_never_becomes_static() -> None:
    meta = Meta().apply_all(decide_put_topic(MetaState(), "orders", TopicRequest(partitioner="kafka"), AB, "id-1", 5))
    with pytest.raises(Conflict) as caught:
        decide_put_static(meta, "orders", StaticRequest(total_queues=2), AB, "id-2", 5)
    assert caught.value.code == "topic_not_static"
