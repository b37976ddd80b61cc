"""Resets in static topics are by logical queue: older segments are consumed, newer ones are not (STATIC-16, 20)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from deltamq.jobs.export.reset import reset_offsets, target_of
from deltamq.mq.errors import Unprocessable
from deltamq.mq.meta.group import decide_put_group
from deltamq.mq.meta.group_settings import GroupRequest
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.static.queue_names import queue_name
from deltamq.tables.log.warehouse import Warehouse
from tests.static_tables import StaticTables

Q0, Q1 = queue_name(0), queue_name(1)


@pytest.fixture
def orders(tmp_path: Path) -> Iterator[StaticTables]:
    """Queue 0 has five messages on A and three behind a hole on B; queue 1 has two."""
    warehouse = Warehouse.open(str(tmp_path))
    made = StaticTables(warehouse)
    made.send(0, 5)
    made.send(1, 2)
    made.remap(["B"], "available", [0])
    made.send(0, 3)
    made.meta.submit_groups(lambda m: decide_put_group(m.groups, "billing", GroupRequest(), 0))
    yield made
    warehouse.close()


def _lanes(orders: StaticTables) -> dict[str, int]:
    topic = orders.topic
    resets = orders.meta.meta.groups.resets
    lanes = {name: resets.get(LaneKey(topic.id, "billing", False, name)) for name in topic.route.partitions}
    return {name: one.offset for name, one in lanes.items() if one is not None}


@pytest.mark.parametrize(
    ("to", "lanes", "told", "messages"),
    [
        (2, {"orders@A": 2, "orders#2@B": 0}, 2, 6),
        (5, {"orders@A": 5, "orders#2@B": 0}, 10_000, 3),
        (7_000, {"orders@A": 5, "orders#2@B": 0}, 10_000, 3),
        (10_002, {"orders@A": 5, "orders#2@B": 2}, 10_002, 1),
    ],
)
def test_static_16_an_offset_of_a_queue_becomes_offsets_of_its_segments(
    orders: StaticTables, to: int, lanes: dict[str, int], told: int, messages: int
) -> None:
    done = reset_offsets(orders.warehouse, "billing", "orders", {Q0: to})
    assert (_lanes(orders), done.offsets, done.messages) == (lanes, {Q0: told}, messages)


def test_static_20_a_reset_to_an_end_is_told_by_queue(orders: StaticTables) -> None:
    first = reset_offsets(orders.warehouse, "billing", "orders", target_of("first"))
    assert (first.offsets, first.messages) == ({Q0: 0, Q1: 0}, 10)
    last = reset_offsets(orders.warehouse, "billing", "orders", target_of("last"))
    assert (last.offsets, last.messages) == ({Q0: 10_003, Q1: 2}, 0)
    assert _lanes(orders) == {"orders@A": 5, "orders#1@B": 2, "orders#2@B": 3}


def test_static_22_segments_cannot_be_named(orders: StaticTables) -> None:
    with pytest.raises(Unprocessable, match=Q0) as caught:
        reset_offsets(orders.warehouse, "billing", "orders", {"orders@A": 1})
    assert caught.value.code == "physical_partition"
    with pytest.raises(Unprocessable, match="10003"):
        reset_offsets(orders.warehouse, "billing", "orders", {Q0: 10_004})
