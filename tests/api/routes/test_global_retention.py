"""Stays of global topics whose messages retention has removed are forgotten in all clusters (SPEC STATIC-17, 19)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deltamq.api.ports import Ports
from deltamq.mq.errors import Unavailable
from deltamq.tables.log.stored_requests import REMEMBERED_MS
from tests.api.running import Api
from tests.api.static_queues import on_loop
from tests.api.two_clusters import NAMES, GlobalTopic, TwoClusters
from tests.set_clock import SetClock

DAY_MS = 86_400_000


class Aged:
    """A topic whose queue 0 was in east, west and east, all of it more than a day ago."""

    def __init__(self, folder: Path) -> None:
        self.clock = SetClock()
        self.clusters = TwoClusters(folder)
        for name in NAMES:
            self.start(name)
        self.topic = GlobalTopic(self.clusters.east, "orders")
        assert self.topic.create(2, retention_ms=1_000).status == 201
        for target, body in (("east", "a"), ("west", "b"), ("east", "c")):
            assert self.topic.remap(target).status == 200
            self.topic.send_to(0, body, body)

    def start(self, name: str) -> None:
        self.clusters.start(name, Ports(clock=self.clock))

    def remove(self, api: Api, below: int) -> None:
        """Remove messages of queue 0 in a cluster, as the job `retain` does."""
        queue: dict[str, Any] = api.call("GET", "/v1/topics/orders").json["logical_queues"][0]
        log = api.hosted("orders", queue["segments"][0]["partition"]).log
        assert log is not None
        log.delete_below(below)

    def drop(self) -> None:
        east = self.clusters.east
        on_loop(east, east.service.global_copies.drop_stays("orders"))

    def stays(self, api: Api, queue: int = 0) -> list[tuple[str, int]]:
        view = self.topic.at(api).ask("GET").json["logical_queues"][queue]
        return [(stay["cluster"], stay["logic_offset"]) for stay in view["stays"]]


@pytest.fixture
def aged(tmp_path: Path) -> Iterator[Aged]:
    made = Aged(tmp_path)
    made.clock.advance_ms(DAY_MS + 60_000)
    try:
        yield made
    finally:
        for name in list(made.clusters._running):
            made.clusters.stop(name)


def test_static_17_a_stay_is_forgotten_when_its_messages_are_gone_and_the_ones_before_it(aged: Aged) -> None:
    both = (aged.clusters.east, aged.clusters.west)
    whole = [("east", 0), ("west", 2), ("east", 4)]
    aged.drop()
    assert [aged.stays(api) for api in both] == [whole, whole], "its messages are stored"
    aged.remove(aged.clusters.west, 2)
    aged.drop()
    assert [aged.stays(api) for api in both] == [whole, whole], "an older one is stored"
    aged.remove(aged.clusters.east, 2)
    aged.drop()
    for api in both:
        topic = aged.topic.at(api)
        assert aged.stays(api) == [("east", 4)], "the newest one stays"
        assert aged.stays(api, 1) == [("east", 0)], "stays without messages are forgotten, too"
        small = topic.fetch(0).json
        assert (small["status"], small["next_offset"], small["min_offset"]) == ("offset_too_small", 4, 4)
        assert topic.read(0, 4) == [(4, "c"), (5, "c")]
    assert aged.topic.send_to(0, "d") == [6], "offsets go on"
    assert aged.topic.ask("POST", "/check").json["complete"] is True
    assert aged.topic.remap("west").status == 200
    assert aged.topic.send_to(0, "e") == [7] and aged.topic.read(0, 4)[-1] == (7, "e")


def test_static_21_a_stay_is_kept_as_long_as_its_requests_may_be_repeated(tmp_path: Path) -> None:
    made = Aged(tmp_path)
    try:
        made.clock.advance_ms(REMEMBERED_MS - 60_000)
        for api in (made.clusters.east, made.clusters.west):
            made.remove(api, 2)
        made.drop()
        assert len(made.stays(made.clusters.west)) == 3
    finally:
        for name in NAMES:
            made.clusters.stop(name)


def test_static_17_nothing_is_forgotten_that_a_cluster_cannot_confirm_and_a_copy_is_made_up_for(aged: Aged) -> None:
    east = aged.clusters.east
    aged.remove(east, 2)
    aged.clusters.stop("west")
    with pytest.raises(Unavailable):
        aged.drop()
    assert aged.stays(east) == [("east", 0), ("west", 2), ("east", 4)]
    aged.start("west")
    aged.drop()
    assert aged.stays(east) == [("west", 2), ("east", 4)] == aged.stays(aged.clusters.west)


def test_static_17_groups_count_what_is_left(aged: Aged) -> None:
    path = "/v1/groups/g/topics/orders/offsets"
    name = "0@__global_logical_queue_broker__"
    assert aged.clusters.west.call("PUT", path, {"offsets": {name: 3}}).status == 200
    for api in (aged.clusters.east, aged.clusters.west):
        aged.remove(api, 2)
    aged.drop()
    for api in (aged.clusters.east, aged.clusters.west):
        view = api.call("GET", path).json["partitions"][0]
        assert (view["committed_offset"], view["min_offset"], view["lag"]) == (4, 4, 2)
    aged.clusters.stop("west")
    assert aged.clusters.east.call("PUT", path, {"offsets": {name: 6}}).status == 200, "west is not needed any more"


def test_static_17_a_home_that_ends_before_it_hands_out_what_it_forgot_is_made_up_for(tmp_path: Path) -> None:
    """The home has recorded that it forgets a stay, and west has not heard of it: where a kill leaves both."""
    made = Aged(tmp_path)
    clusters = made.clusters
    try:
        topic = GlobalTopic(clusters.east, "once")
        assert topic.create(2, retention_ms=1_000).status == 201
        assert topic.remap("west").status == 200
        assert topic.send_to(0, "a") == [0]
        made.clock.advance_ms(DAY_MS + 60_000)
        clusters.stop("west")
        with pytest.raises(Unavailable):
            on_loop(clusters.east, clusters.east.service.global_copies.drop_stays("once"))
        for name in ("west", "east"):
            if name == "east":
                clusters.stop(name)
            made.start(name)

        def stays(api: Api) -> list[str]:
            view = topic.at(api).ask("GET").json["logical_queues"][0]
            return [stay["cluster"] for stay in view["stays"]]

        assert (stays(clusters.east), stays(clusters.west)) == (["west"], ["east", "west"])
        assert topic.at(clusters.east).read(0) == [(0, "a")], "west reads the home's copy, by which east asks"
        assert stays(clusters.west) == ["west"]
        whole = topic.at(clusters.east)
        assert whole.ask("POST", "/check").json["complete"] is True
        assert whole.send_to(0, "b") == [1] and topic.at(clusters.west).read(0) == [(0, "a"), (1, "b")]
    finally:
        for name in list(clusters._running):
            clusters.stop(name)
