"""Where messages go while partitions may not be written to (SPEC ROUTE-9, SEND-2, STATIC-22)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamq.mq.errors import Unavailable
from deltamq.mq.meta.access import Access, AccessEvent, AccessState, BrokerAccessPut, PartitionAccessPut
from deltamq.mq.meta.fold import Meta
from deltamq.mq.meta.topic_settings import TopicRequest
from deltamq.mq.meta.topics import decide_put_topic
from deltamq.mq.partitioners import logical_partition
from deltamq.mq.routing import spread
from deltamq.tables.queue.placement import Placement
from tests.static_topics import StaticWorld

CLOSED = Access(writable=False, reason="disk")


def world(strategy: str, closed: Sequence[AccessEvent], partitions: int = 4) -> tuple[Meta, Placement]:
    """A topic at the brokers A and B, and its placement."""
    request = TopicRequest(partitions=partitions, order_strategy=strategy)  # type: ignore[arg-type]
    meta = Meta().apply_all(decide_put_topic(Meta().topics, "orders", request, ["A", "B"], "id-1", 1))
    meta = meta.apply_all(closed)
    return meta, Placement.of(meta.topics.topic("orders"), meta)


def closed_at(placement: Placement) -> list[str]:
    return [placement.partitions[number] for number in placement.closed]


def test_route_09_without_access_the_placement_is_the_routes() -> None:
    _, placement = world("best_tried", [])
    assert not placement.closed and not placement.avoided and placement.whole is None
    _, unreadable = world("best_tried", [BrokerAccessPut(broker="A", access=Access(readable=False))])
    assert not unreadable.closed and (unreadable.table == placement.table).all()


def test_send_02_keys_of_closed_partitions_are_spread_over_the_others_and_no_other_key_moves() -> None:
    _, before = world("best_tried", [])
    _, after = world("best_tried", [BrokerAccessPut(broker="A", access=CLOSED)])
    assert closed_at(after) == ["orders@A", "orders#1@A"]
    moved = np.isin(before.table, list(after.closed))
    assert (before.table[~moved] == after.table[~moved]).all()
    counts = np.bincount(after.table[moved], minlength=4)
    assert counts[[0, 2]].sum() == 0 and abs(int(counts[1]) - int(counts[3])) <= 1
    assert after.targets == (1, 3)


def test_send_02_keys_of_a_strict_topic_stay() -> None:
    _, before = world("strict", [])
    _, after = world("strict", [PartitionAccessPut(topic_id="id-1", partition="orders@B", access=CLOSED)])
    assert (before.table == after.table).all() and closed_at(after) == ["orders@B"] and 1 not in after.targets


def test_route_09_with_everything_closed_all_targets_stay_and_are_refused() -> None:
    _, placement = world("best_tried", [BrokerAccessPut(broker=one, access=CLOSED) for one in "AB"])
    assert placement.avoided == {0, 1, 2, 3} and placement.targets == (0, 1, 2, 3)


@given(st.sets(st.integers(0, 5), max_size=5), st.integers(0, 2**30), st.integers(1, 20_000))
def test_route_09_messages_without_a_key_avoid_closed_partitions(closed: set[int], draw: int, count: int) -> None:
    names = world("strict", [], 6)[1].partitions
    events = [PartitionAccessPut(topic_id="id-1", partition=names[one], access=CLOSED) for one in sorted(closed)]
    for strategy in ("strict", "best_tried"):
        _, placement = world(strategy, events, 6)
        slices = spread(count, placement, draw)
        assert sum(high - low for _, low, high in slices) == count
        assert closed.isdisjoint(at for at, _, _ in slices)


def test_route_09_access_that_has_ended_closes_nothing() -> None:
    ends = Access(writable=False, until_ms=100)
    meta, _ = world("best_tried", [BrokerAccessPut(broker="A", access=ends)])
    topic = meta.topics.topic("orders")
    assert Placement.of(topic, meta, meta.access.at(99)).closed
    assert not Placement.of(topic, meta, meta.access.at(100)).closed
    assert not Placement.of(topic, meta, AccessState()).closed


def test_send_05_what_may_have_been_sent_back_before_never_goes_elsewhere() -> None:
    key = "k"
    _, usual = world("best_tried", [])
    home = usual.home_of("orders", "gone@A", key, 1)
    assert home == usual.partitions[int(usual.table[logical_partition(key)])]
    events = [PartitionAccessPut(topic_id="id-1", partition=home, access=CLOSED)]
    _, placement = world("best_tried", events)
    for partition in ("gone@A", home):
        with pytest.raises(Unavailable) as refused:
            placement.home_of("orders", partition, key, 1)
        assert refused.value.code == "not_writable"
    other = next(name for name in placement.partitions if name != home)
    assert placement.home_of("orders", other, key, 1) == other


def test_static_22_keys_of_a_closed_queue_stay() -> None:
    static = StaticWorld(("A", "B"))
    static.put(4)
    before = Placement.of(static.topic, static.meta)
    static.apply([BrokerAccessPut(broker="A", access=CLOSED)])
    after = Placement.of(static.topic, static.meta)
    assert (before.table == after.table).all() and before.names == after.names
    assert {after.partitions[at].rpartition("@")[2] for at in after.targets} == {"B"}
    assert after.avoided == after.closed.keys() and len(after.avoided) == 2
