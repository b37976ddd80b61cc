"""Which broker leads which queue: spreading, and the fewest moves of a remapping (SPEC STATIC-7, 8, 23)."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from deltamq.mq.static.mappings import plan_remap, spread_queues

BROKERS = st.lists(st.sampled_from("abcde"), min_size=1, max_size=5, unique=True)


def test_static_7_new_queues_go_to_the_brokers_that_lead_the_fewest() -> None:
    assert spread_queues({}, 5, ["a", "b"]) == {0: "a", 1: "b", 2: "a", 3: "b", 4: "a"}
    assert spread_queues({0: "a", 1: "a"}, 5, ["a", "b"]) == {2: "b", 3: "b", 4: "a"}


@given(st.lists(st.sampled_from("abcde"), min_size=1, max_size=40), BROKERS)
def test_static_8_a_remapping_is_even_moves_the_fewest_and_no_broker_gains_and_loses(
    before: list[str], brokers: list[str]
) -> None:
    leaders = dict(enumerate(before))
    moved = plan_remap(leaders, brokers)
    after = {**leaders, **moved}
    count = Counter(after.values())
    assert set(after.values()) <= set(brokers)
    assert max(count.values()) - min(count[broker] for broker in brokers) <= 1
    had = Counter(before)
    gained, lost = set(moved.values()), {leaders[index] for index in moved}
    assert gained.isdisjoint(lost)
    fewest = sum(had.values()) - sum(min(had[broker], count[broker]) for broker in brokers)
    assert len(moved) == fewest
    assert plan_remap(after, brokers) == {}, "the same brokers again: nothing moves"


def test_static_8_the_lowest_queues_stay_and_odd_ones_go_where_most_were() -> None:
    leaders = {0: "a", 1: "a", 2: "a", 3: "a", 4: "b", 5: "b", 6: "b"}
    assert plan_remap(leaders, ["b", "c"]) == {0: "b", 1: "c", 2: "c", 3: "c"}
    assert plan_remap({0: "b", 1: "b", 2: "b"}, ["a", "b"]) == {2: "a"}


def test_static_23_one_queue_alone_may_be_remapped() -> None:
    leaders = dict.fromkeys(range(4), "a")
    assert plan_remap(leaders, ["b"], [2]) == {2: "b"}
    assert plan_remap(leaders, ["a"], [2]) == {}
    assert plan_remap(leaders, ["b", "c"], [3, 1]) == {1: "b", 3: "c"}
