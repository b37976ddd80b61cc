"""STATIC-21 is bounded: segments that were sealed before the duplicate window are not even opened."""

from __future__ import annotations

from pathlib import Path

from deltamq.api.ports import Ports
from tests.api.running import config_for, running
from tests.api.static_calls import StaticTopic
from tests.set_clock import AheadClock

A, B = "broker-a", "broker-b"
DAY_MS = 24 * 3_600_000


def opened(orders: StaticTopic) -> set[str]:
    """The partitions of the topic that the service has open."""
    return {one.name for one in orders.api.service.partitions if one.topic == orders.name and one.log is not None}


def test_static_21_only_segments_of_the_window_are_looked_at(tmp_path: Path) -> None:
    clock = AheadClock()
    config = config_for(tmp_path / "warehouse")
    with running(config, Ports(clock=clock)) as api:
        orders = StaticTopic(api, "orders")
        assert orders.put(1, brokers=[A], retention_ms=10 * DAY_MS).status == 201
        assert orders.send_to(0, "a", producer={"id": "p", "seq": 0}) == [0]
        assert orders.remapped(B)
        clock.ahead_ms += 2 * DAY_MS
        assert orders.send_to(0, "b", producer={"id": "p", "seq": 1}) == [1]
        assert orders.remapped(A)
        old, late, leader = [segment.partition for segment in orders.chains()[0].segments]
    with running(config, Ports(clock=clock)) as api:
        orders = StaticTopic(api, "orders")
        assert orders.send_to(0, "b", producer={"id": "p", "seq": 1}) == [1], "it is found where it was stored"
        assert orders.send_to(0, "c", producer={"id": "p", "seq": 2}) == [2]
        assert opened(orders) == {late, leader}
        assert orders.view["logical_queues"][0]["messages"] == 3
        assert opened(orders) == {old, late, leader}
