"""Routes that are given by hand: created, expanded, refused (SPEC ROUTE-8)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamq.mq.errors import Conflict, DeltaMQError
from deltamq.mq.limits import LOGICAL_PARTITIONS
from deltamq.mq.meta.topic_settings import TopicRequest
from deltamq.mq.meta.topics import MetaState, decide_put_topic
from deltamq.mq.routing import expand, expand_by_hand, new_route, route_by_hand

BY_HAND = ("orders@A", "9f2c-uuid@B", "orders#x@A")


def put(state: MetaState, name: str, request: TopicRequest) -> MetaState:
    return state.apply_all(decide_put_topic(state, name, request, ["A", "B"], f"id-{name}", 1))


def code_of(state: MetaState, name: str, *routes: str) -> str:
    with pytest.raises(DeltaMQError) as refused:
        put(state, name, TopicRequest(routes=routes))
    return refused.value.code


def test_route_08_a_topic_is_created_with_exactly_these_partitions() -> None:
    state = put(MetaState(), "orders", TopicRequest(routes=BY_HAND))
    route = state.topic("orders").route
    assert route.partitions == BY_HAND
    assert route.owners == ((0, 342, 0), (342, 683, 1), (683, 1024, 2))
    assert put(state, "orders", TopicRequest(routes=BY_HAND)) == state


def test_route_08_adding_moves_as_few_keys_as_an_expansion_whatever_the_names_are() -> None:
    usual = expand(new_route("orders", 3, ["A", "B"]), "orders", 5, ["A", "B"])
    by_hand = expand_by_hand(route_by_hand(BY_HAND), (*BY_HAND, "x@B", "y@A"))
    assert by_hand.owners == usual.owners and by_hand.epoch == usual.epoch
    state = put(MetaState(), "orders", TopicRequest(routes=BY_HAND))
    grown = put(state, "orders", TopicRequest(partitions=5)).topic("orders").route
    assert grown.partitions[:3] == BY_HAND and grown.owners == usual.owners


@given(st.integers(1, 40), st.integers(0, 40))
def test_route_08_no_key_moves_between_present_partitions(before: int, added: int) -> None:
    names = [f"p{at}@A" for at in range(before + added)]
    old, new = route_by_hand(names[:before]), expand_by_hand(route_by_hand(names[:before]), names)
    moved = old.table != new.table
    assert (new.table[moved] >= before).all()
    sizes = np.bincount(new.table, minlength=before + added)
    assert sizes.sum() == LOGICAL_PARTITIONS and sizes.max() - sizes.min() <= 1


def test_route_08_nothing_is_removed_or_reordered() -> None:
    state = put(MetaState(), "orders", TopicRequest(routes=BY_HAND))
    assert code_of(state, "orders", "orders@A") == "partitions_cannot_shrink"
    assert code_of(state, "orders", *BY_HAND[:2], "new@A") == "partitions_cannot_shrink"
    assert code_of(state, "orders", BY_HAND[1], BY_HAND[0], BY_HAND[2]) == "routes_cannot_be_reordered"
    assert code_of(state, "orders", "new@A", *BY_HAND) == "routes_cannot_be_reordered"


@pytest.mark.parametrize(
    ("routes", "code"),
    [
        (("orders",), "invalid_partition_name"),
        (("@A",), "invalid_partition_name"),
        (("or ders@A",), "invalid_partition_name"),
        (("a/b@A",), "invalid_partition_name"),
        (("orders@A b",), "invalid_broker_name"),
        (("%RETRY%g%t@A",), "system_name"),
        (("orders@A", "orders@A"), "partition_named_twice"),
        (("orders@A", "Orders@A"), "partition_named_twice"),
        ((), "partitions_out_of_range"),
        (tuple(f"p{at}@A" for at in range(1025)), "partitions_out_of_range"),
    ],
)
def test_route_08_names_are_checked(routes: tuple[str, ...], code: str) -> None:
    assert code_of(MetaState(), "orders", *routes) == code


def test_route_08_a_partition_belongs_to_one_topic() -> None:
    state = put(MetaState(), "orders", TopicRequest(routes=("bills@A", "x@B")))
    assert code_of(state, "other", "x@B") == "partition_taken"
    with pytest.raises(Conflict) as refused:
        put(state, "bills", TopicRequest())
    assert (refused.value.code, refused.value.extra) == ("partition_taken", {"topic": "orders"})
