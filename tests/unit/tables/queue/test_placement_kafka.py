"""The placement of topics whose keys go by Kafka's hash (SPEC KAFKA-12, ROUTE-9, SEND-2)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamq.mq.errors import Unavailable
from deltamq.mq.meta.access import Access, AccessEvent, PartitionAccessPut
from deltamq.mq.meta.fold import Meta
from deltamq.mq.meta.moved_keys import moves_of
from deltamq.mq.meta.topic_settings import TopicRequest
from deltamq.mq.meta.topics import decide_put_topic
from deltamq.mq.partitioners import kafka_hash
from deltamq.mq.routing import spread
from deltamq.tables.key_column import slots_of_keys
from deltamq.tables.queue.placement import Placement

KEYS = ["", "é", "订单-42", *(f"key-{number}" for number in range(3_000))]


def world(
    closed: Sequence[int] = (),
    *,
    partitions: int = 4,
    strategy: str = "best_tried",
    routes: Sequence[str] | None = None,
) -> Placement:
    """The placement of a topic, of which these partitions are closed."""
    request = TopicRequest(
        partitions=None if routes else partitions,
        routes=None if routes is None else tuple(routes),
        order_strategy=strategy,  # type: ignore[arg-type]
        partitioner="kafka",
    )
    meta = Meta().apply_all(decide_put_topic(Meta().topics, "orders", request, ["A", "B"], "id-1", 1))
    names = meta.topics.topic("orders").route.partitions
    shut = Access(writable=False, reason="disk")
    events: list[AccessEvent] = [PartitionAccessPut(topic_id="id-1", partition=names[at], access=shut) for at in closed]
    meta = meta.apply_all(events)
    return Placement.of(meta.topics.topic("orders"), meta)


def targets(placement: Placement) -> list[int]:
    """Where each of `KEYS` goes."""
    return [int(at) for at in placement.table[slots_of_keys(pa.array(KEYS, pa.string()), placement)]]


@pytest.mark.parametrize("partitions", [1, 2, 3, 7, 1024])
def test_kafka_12_a_key_goes_where_kafkas_clients_send_it(partitions: int) -> None:
    assert targets(world(partitions=partitions)) == [kafka_hash(key) % partitions for key in KEYS]


def test_kafka_12_in_a_route_by_hand_the_index_is_the_place() -> None:
    routes = ["z@B", "orders@A", "a@B"]
    placement = world(routes=routes)
    names = [placement.partitions[at] for at in targets(placement)]
    assert names == [routes[kafka_hash(key) % 3] for key in KEYS]


def test_kafka_12_keys_of_closed_partitions_are_spread_evenly_and_no_other_key_moves() -> None:
    before, placement = targets(world(partitions=5)), world([1, 3], partitions=5)
    after = targets(placement)
    assert set(after) == {0, 2, 4} == set(placement.targets)
    for closed in (1, 3):
        gone = np.bincount([now for was, now in zip(before, after, strict=True) if was == closed], minlength=5)
        assert min(gone[[0, 2, 4]]) > 0.7 * max(gone)
    assert [was for was in before if was not in (1, 3)] == [
        now for was, now in zip(before, after, strict=True) if was not in (1, 3)
    ]


def test_kafka_12_the_table_stays_small_with_many_partitions_and_a_closed_one() -> None:
    placement = world([7], partitions=1024)
    assert len(placement.table) == 1024 * 64
    counts = np.bincount(placement.table, minlength=1024)
    assert counts[7] == 0 and counts.max() == 65 and (counts == 65).sum() == 64


def test_kafka_12_keys_of_a_strict_topic_stay_and_are_refused() -> None:
    before, placement = world(strategy="strict"), world([2], strategy="strict")
    assert targets(before) == targets(placement) and placement.avoided == {2}
    key = next(key for key in KEYS if kafka_hash(key) % 4 == 2)
    with pytest.raises(Unavailable) as refused:
        placement.home_of("orders", "gone@A", key, 1)
    assert refused.value.code == "not_writable"


def test_kafka_12_what_comes_back_goes_by_its_key_if_its_partition_is_gone() -> None:
    placement = world()
    for key in KEYS[:100]:
        assert placement.home_of("orders", "gone@A", key, 1) == placement.partitions[kafka_hash(key) % 4]
        assert placement.home_of("orders", "orders@B", key, 1) == "orders@B"


@given(st.sets(st.integers(0, 5), max_size=5), st.integers(0, 2**30), st.integers(1, 20_000))
def test_kafka_12_messages_without_a_key_avoid_closed_partitions(closed: set[int], draw: int, count: int) -> None:
    slices = spread(count, world(sorted(closed), partitions=6), draw)
    assert sum(high - low for _, low, high in slices) == count
    assert closed.isdisjoint(at for at, _, _ in slices)


def test_kafka_12_a_topic_that_grows_waits_for_nothing() -> None:
    meta = Meta()
    for count in (2, 5):
        request = TopicRequest(partitions=count, partitioner="kafka")
        events = decide_put_topic(meta.topics, "orders", request, ["A", "B"], "id-1", 1)
        meta = meta.apply_all([*moves_of(meta.topics, events), *events])
    topic = meta.topics.topic("orders")
    placement, moved = Placement.of(topic, meta), meta.moved_keys("id-1")
    assert targets(placement) == [kafka_hash(key) % 5 for key in KEYS]
    assert not moved.moves and not placement.ends and not placement.ahead
    assert all(moved.blocked(name, {}) is None for name in topic.route.partitions)
