"""Names in a catalog: valid, and one to one (SPEC SPARK-11)."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from deltamq.jobs.read.identifiers import dead_letters_name, partition_name, quoted, topic_name

_NAME = st.from_regex(r"[A-Za-z0-9._%|\-]{1,127}", fullmatch=True)
_BROKER = st.from_regex(r"[A-Za-z0-9._\-]{1,20}", fullmatch=True)
_PLACE = st.tuples(_NAME, _NAME, _BROKER, st.integers(0, 3))


def _all_names(place: tuple[str, str, str, int]) -> tuple[str, ...]:
    topic, own, broker, generation = place
    name = f"{own}@{broker}"
    return topic_name(topic), partition_name(topic, name, generation), dead_letters_name(topic, name, generation)


def test_spark_11_names_that_people_choose_can_be_read() -> None:
    assert topic_name("orders") == "topic_orders"
    assert topic_name("order_events.v2") == "topic_order__events_2ev2"
    assert topic_name("Orders") == "topic__4frders"
    assert partition_name("orders", "orders@broker-a", 0) == "partition_orders_at_broker_2da"
    assert partition_name("orders", "orders#1@broker-a", 2) == "partition_orders_of_orders_231_at_broker_2da_g2"
    assert dead_letters_name("billing", "%DLQ%billing@broker-a", 1) == "dlq_billing_at_broker_2da_g1"
    assert quoted("cat", "a`b") == "`cat`.`a``b`"


@given(_PLACE)
def test_spark_11_every_name_is_an_identifier_of_bounded_length(place: tuple[str, str, str, int]) -> None:
    for name in _all_names(place):
        assert re.fullmatch(r"[a-z][a-z0-9_]{0,119}", name)


@given(st.sets(st.from_regex(r"[aA_.4-]{1,4}", fullmatch=True), min_size=2, max_size=60))
def test_spark_11_no_two_topics_share_a_name(topics: set[str]) -> None:
    assert len({topic_name(topic) for topic in topics}) == len(topics)


_TIGHT = st.tuples(
    st.from_regex(r"[a_ofto]{1,5}", fullmatch=True),
    st.from_regex(r"[a_ofto]{1,5}", fullmatch=True),
    st.from_regex(r"[a_gto1]{1,5}", fullmatch=True),
    st.integers(0, 2),
)


@given(st.sets(_TIGHT, min_size=2, max_size=60))
def test_spark_11_no_two_partitions_share_a_name_though_names_hold_what_separates_them(
    places: set[tuple[str, str, str, int]],
) -> None:
    names = {partition_name(topic, f"{own}@{broker}", life) for topic, own, broker, life in places}
    assert len(names) == len(places)


def test_spark_11_long_names_that_differ_at_their_end_do_not_collide() -> None:
    found = {topic_name("t" * 126 + end) for end in "ab"} | {topic_name("T" * 126 + end) for end in "ab"}
    assert len(found) == 4
