"""Pops of global topics through either cluster; a queue's messages are popped where they lie (SPEC STATIC-19, 20)."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from deltamq import PopConsumer
from deltamq.mq.meta.global_topics import decide_move
from deltamq.tables.log.warehouse import Warehouse
from tests.api.running import Api, Reply, running, until
from tests.api.two_clusters import NAMES, GlobalTopic, TwoClusters, name_of
from tests.free_ports import free_port
from tests.queue_engines import revive_job

GROUP = "workers"
Json = dict[str, Any]


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoClusters]:
    with TwoClusters.running(tmp_path_factory.mktemp("clusters")) as running:
        yield running


def made(clusters: TwoClusters, name: str, **wanted: object) -> GlobalTopic:
    """A topic with queue 0 in east and queue 1 in west."""
    topic = GlobalTopic(clusters.east, name)
    reply = topic.create(2, **wanted)
    assert reply.status == 201, reply
    assert topic.clusters() == {0: "east", 1: "west"}
    return topic


def pop(api: Api, topic: str, group: str = GROUP, **more: object) -> Reply:
    return api.call("POST", f"/v1/groups/{group}/topics/{topic}/pop", {"max_messages": 100, **more})


def call(api: Api, what: str, handles: list[str], group: str = GROUP, **more: object) -> Reply:
    return api.call("POST", f"/v1/groups/{group}/{what}", {"handles": handles, **more})


def popped(api: Api, topic: str, count: int, group: str = GROUP, **more: object) -> list[Json]:
    """`count` messages, as pops through one cluster get them."""
    found: list[Json] = []
    end = time.monotonic() + 20
    while len(found) < count:
        assert time.monotonic() < end, found
        reply = pop(api, topic, group, wait_ms=1_000, **more)
        assert reply.status == 200, reply
        found += reply.json["messages"]
    return found


def places(messages: list[Json]) -> dict[str, tuple[str, int]]:
    return {one["body"]: (one["partition"], one["offset"]) for one in messages}


def left(api: Api, topic: str, group: str = GROUP) -> list[tuple[int | None, int]]:
    """Of each queue the lag, and how many messages clients hold, as one cluster shows them."""
    reply = api.call("GET", f"/v1/groups/{group}/topics/{topic}/offsets")
    assert reply.status == 200, reply
    return [(one["lag"], one["in_flight"]) for one in reply.json["partitions"]]


@pytest.mark.parametrize("asked", NAMES)
def test_static_19_pops_through_either_cluster_get_all_queues_and_are_acknowledged_through_either(
    clusters: TwoClusters, asked: str
) -> None:
    topic = made(clusters, f"both-{asked}")
    topic.send_to(0, "a", "b")
    topic.send_to(1, "c", "d")
    messages = popped(clusters.api[asked], topic.name, 4)
    assert places(messages) == {
        "a": (name_of(0), 0),
        "b": (name_of(0), 1),
        "c": (name_of(1), 0),
        "d": (name_of(1), 1),
    }
    handles = {one["body"]: one["handle"] for one in messages}
    assert [handles[body].partition("~")[0] for body in "abcd"] == ["east", "east", "west", "west"]
    for api in (clusters.east, clusters.west):
        assert pop(api, topic.name).json["messages"] == [], "they are hidden from all"
    first = call(clusters.east, "ack", [handles["a"], handles["c"]])
    assert (first.status, first.json) == (200, {"acked": 2, "failed": []})
    carried = pop(clusters.west, topic.name, ack=[handles["b"], handles["d"]])
    assert (carried.status, carried.json["messages"], carried.json.get("failed_acks", [])) == (200, [], [])
    for api in (clusters.east, clusters.west):
        assert left(api, topic.name) == [(0, 0), (0, 0)]


def test_static_19_a_pop_of_retried_messages_finds_the_group_in_the_cluster_to_which_it_is_sent_on(
    clusters: TwoClusters,
) -> None:
    """Where it is sent first it makes no group (CONS-1); in the other cluster that would refuse it for good."""
    topic = made(clusters, "retried-alone")
    refused = pop(clusters.east, topic.name, "retriers", retry="only")
    assert (refused.status, refused.json["code"]) == (404, "group_not_found")
    assert clusters.west.call("GET", "/v1/groups/retriers").status == 404
    assert clusters.east.call("PUT", "/v1/groups/retriers", {}).status == 201
    reply = pop(clusters.east, topic.name, "retriers", retry="only")
    assert (reply.status, reply.json["messages"]) == (200, [])


@pytest.mark.parametrize("asked", NAMES)
def test_static_19_a_named_queue_and_changed_times_work_through_either_cluster(
    clusters: TwoClusters, asked: str
) -> None:
    topic = made(clusters, f"named-{asked}")
    api = clusters.api[asked]
    topic.send_to(0, "a")
    topic.send_to(1, "b")
    for queue, body in ((1, "b"), (0, "a")):
        (message,) = popped(api, topic.name, 1, partition=name_of(queue))
        assert message["body"] == body
        longer = api.call(
            "POST", f"/v1/groups/{GROUP}/invisible", {"handle": message["handle"], "invisible_ms": 90_000}
        )
        assert longer.status == 200, longer
        renewed = longer.json["handle"]
        assert renewed.partition("~")[0] == NAMES[queue]
        old, new = (call(api, "ack", [handle]).json for handle in (message["handle"], renewed))
        assert (old["acked"], old["failed"][0]["code"]) == (0, "handle_expired")
        assert old["failed"][0]["handle"] == message["handle"]
        assert new == {"acked": 1, "failed": []}
    for name, code in (("0@__logical_queue_broker__", "physical_partition"), (name_of(2), "partition_not_found")):
        assert pop(api, topic.name, partition=name).json["code"] == code


def test_static_19_forged_handles_and_those_of_unknown_clusters_change_nothing(clusters: TwoClusters) -> None:
    topic = made(clusters, "forged")
    topic.send_to(1, "a")
    (message,) = popped(clusters.east, topic.name, 1)
    genuine = message["handle"].partition("~")[2]
    for api in (clusters.east, clusters.west):
        garbled = [f"west~{genuine[:-1]}!", "west~", f"west~east~{genuine[1:]}"]
        reply = call(api, "ack", garbled)
        assert (reply.status, reply.json["acked"]) == (200, 0), reply
        assert {one["handle"]: one["code"] for one in reply.json["failed"]} == dict.fromkeys(garbled, "handle_invalid")
    elsewhere = call(clusters.east, "ack", [f"east~{genuine}", f"north~{genuine}", genuine])
    assert [one["code"] for one in elsewhere.json["failed"]] == ["handle_invalid"] * 3, "east has another secret"
    assert left(clusters.west, topic.name)[1] == (1, 1)
    assert call(clusters.east, "ack", [message["handle"]]).json["acked"] == 1


@pytest.mark.parametrize("mode", ["strict", "available"])
def test_static_20_what_is_in_flight_when_its_queue_moves_is_acknowledged_where_it_was_popped(
    clusters: TwoClusters, mode: str
) -> None:
    topic = made(clusters, f"moves-{mode}")
    before = topic.send_to(0, "a", "b", "c")
    messages = popped(clusters.west, topic.name, 3)
    assert topic.remap("west", mode=mode).status == 200
    after = topic.send_to(0, "d")
    later = popped(clusters.east, topic.name, 1)
    assert places(messages + later) == {
        body: (name_of(0), offset) for body, offset in zip("abcd", before + after, strict=True)
    }
    assert [one["handle"].partition("~")[0] for one in messages + later] == ["east"] * 3 + ["west"]
    assert call(clusters.west, "ack", [one["handle"] for one in messages + later]).json["acked"] == 4
    assert left(clusters.east, topic.name) == [(0, 0), (0, 0)]
    assert pop(clusters.west, topic.name).json["messages"] == []


def test_static_19_dead_letters_and_nacks_go_to_the_cluster_that_gave_the_handle(clusters: TwoClusters) -> None:
    topic = made(clusters, "failing")
    topic.send_to(0, "a")
    topic.send_to(1, "b")
    messages = popped(clusters.east, topic.name, 2, group="failing")
    nacked = call(clusters.west, "nack", [one["handle"] for one in messages], "failing", delay_ms=60_000)
    assert (nacked.status, nacked.json) == (200, {"nacked": 2, "failed": []})
    for api in (clusters.east, clusters.west):
        assert left(api, topic.name, "failing") == [(0, 1), (0, 1)]


def test_static_19_when_a_cluster_is_away_pops_serve_the_others_messages_and_nothing_is_lost(tmp_path: Path) -> None:
    with TwoClusters.running(tmp_path) as clusters:
        topic = made(clusters, "orders")
        topic.send_to(0, "a")
        topic.send_to(1, "b", "c")
        messages = {one["body"]: one for one in popped(clusters.east, "orders", 3)}
        assert call(clusters.east, "ack", [messages["c"]["handle"]]).json["acked"] == 1
        topic.send_to(0, "d")
        topic.send_to(1, "e")
        clusters.stop("west")
        away = call(clusters.east, "ack", [messages["a"]["handle"], messages["b"]["handle"]])
        assert (away.status, away.json["code"], away.json["cluster"]) == (503, "queue_unserved", "west")
        carried = pop(clusters.east, "orders", ack=[messages["b"]["handle"]])
        assert carried.status == 200, carried
        assert [one["body"] for one in carried.json["messages"]] == ["d"]
        assert carried.json["failed_acks"] == [{"handle": messages["b"]["handle"], "code": "queue_unserved"}]
        for _ in range(4):
            reply = pop(clusters.east, "orders", wait_ms=200)
            assert (reply.status, reply.json["messages"]) == (200, []), "nothing of west's is made up or passed over"
        clusters.start("west")
        end = time.monotonic() + 20
        found: list[str] = []
        while found != ["e"]:
            assert time.monotonic() < end, found
            found += [one["body"] for one in pop(clusters.east, "orders", wait_ms=500).json["messages"]]
        view = left(clusters.west, "orders")
        assert view[1][1] >= 1, "what was popped of west, and not acknowledged, is delivered again later"


def test_static_20_a_waiting_pop_gets_what_arrives_in_the_other_cluster(clusters: TwoClusters) -> None:
    topic = made(clusters, "waits")
    assert pop(clusters.east, "waits").json["messages"] == []
    topic.send_to(0, "here")
    topic.send_to(1, "there")
    assert sorted(one["body"] for one in popped(clusters.east, "waits", 2)) == ["here", "there"]


def test_static_19_what_needs_an_order_between_clusters_is_refused(clusters: TwoClusters) -> None:
    made(clusters, "ordered")
    for order in (True, "key"):
        reply = pop(clusters.east, "ordered", order=order)
        assert (reply.status, reply.json["code"]) == (422, "global_unsupported"), reply
    made(clusters, "strictly", order_strategy="strict")
    reply = pop(clusters.east, "strictly")
    assert (reply.status, reply.json["code"]) == (422, "global_unsupported"), reply


@pytest.mark.parametrize("asked", NAMES)
def test_static_19_the_sdks_pop_consumer_hears_all_queues_through_either_cluster(
    clusters: TwoClusters, asked: str
) -> None:
    topic = made(clusters, f"sdk-{asked}")
    wanted = {f"{queue}-{at}" for queue in (0, 1) for at in range(10)}
    for queue in (0, 1):
        topic.send_to(queue, *(f"{queue}-{at}" for at in range(10)))
    heard: list[str] = []

    def hear(message: Any) -> None:
        heard.append(message.text)
        if len(heard) == len(wanted):
            consumer.stop()

    url = f"http://127.0.0.1:{clusters.api[asked].port}"
    consumer = PopConsumer(url, f"sdk-{asked}", topic.name, hear, concurrency=4)
    consumer.run()
    assert sorted(heard) == sorted(wanted)
    for api in (clusters.east, clusters.west):
        assert left(api, topic.name, f"sdk-{asked}") == [(0, 0), (0, 0)]


def test_static_10_a_pop_gets_no_message_that_has_no_global_offset_yet(clusters: TwoClusters) -> None:
    topic = made(clusters, "undecided")
    (before,) = topic.send_to(0, "a")
    service = clusters.east.service
    world = service.topics.state.topic("undecided").world
    assert world is not None
    begun = partial(
        decide_move,
        name="undecided",
        targets={0: "west"},
        starts={0: 0},
        epoch=world.epoch,
        now_ms=service.now_ms(),
        at_once=True,
    )
    asyncio.run_coroutine_threadsafe(service.meta.submit_any(begun), service.loop).result(30)
    assert topic.send_to(0, "b") == [-1], "the home has not recorded where the queue ended in east"
    (message,) = popped(clusters.west, "undecided", 1)
    assert (message["body"], message["offset"]) == ("a", before)
    for api in (clusters.east, clusters.west):
        assert pop(api, "undecided", wait_ms=100).json["messages"] == []
    assert topic.remap("west", mode="available").status == 200
    (later,) = popped(clusters.east, "undecided", 1, partition=name_of(0))
    assert (later["body"], later["partition"], later["offset"]) == ("b", name_of(0), 10_000)


def revived(clusters: TwoClusters) -> None:
    """Both clusters' revive jobs have run once, each in its own warehouse alone."""
    for name in NAMES:
        config = clusters.config(name)
        with contextlib.closing(Warehouse.open(config.warehouse.uri)) as warehouse:
            revive_job("local", warehouse, config).run(time.time_ns() // 1_000_000 + 2_000)


@pytest.mark.parametrize("asked", NAMES)
def test_static_20_each_cluster_revives_its_own_messages_and_either_one_delivers_them_again(
    clusters: TwoClusters, asked: str
) -> None:
    topic, group = made(clusters, f"again-{asked}"), f"again-{asked}"
    api, other = clusters.api[asked], clusters.api[NAMES[asked == "east"]]
    topic.send_to(0, "a")
    topic.send_to(1, "b")
    first = popped(api, topic.name, 2, group)
    assert call(other, "nack", [one["handle"] for one in first], group, delay_ms=0).json["failed"] == []
    assert topic.remap("east").status == 200
    revived(clusters)
    again = popped(other, topic.name, 2, group)
    assert {one["body"]: one["delivery_attempt"] for one in again} == {"a": 2, "b": 2}
    origins = {one["body"]: (one["origin"]["partition"], one["origin"]["offset"]) for one in again}
    assert origins == {"a": (name_of(0), 0), "b": (name_of(1), 0)}
    assert sorted(one["handle"].partition("~")[0] for one in again) == ["east", "west"]
    assert call(api, "ack", [one["handle"] for one in again], group).json["acked"] == 2
    # The job's clock was ahead: to the service the nacked leases end only now, a tenth of a second after they began
    until(lambda: left(other, topic.name, group) == [(0, 0), (0, 0)])


def test_retry_03_a_dead_letter_never_goes_to_a_queue_that_has_left_its_cluster(clusters: TwoClusters) -> None:
    topic, group = made(clusters, "dead"), "dying"
    east, west = clusters.east, clusters.west
    topic.send_to(0, "a", "b")
    assert call(west, "dead", [one["handle"] for one in popped(west, "dead", 2, group)], group, reason="no").json == {
        "dead": 2,
        "failed": [],
    }
    revived(clusters)
    letters = east.call("GET", f"/v1/groups/{group}/dead-letters").json["messages"]
    assert places([{**one, **one["origin"]} for one in letters]) == {"a": (name_of(0), 0), "b": (name_of(0), 1)}
    assert topic.remap("west").status == 200
    replay = f"/v1/groups/{group}/dead-letters/replay"
    first, second = ({one["partition"]: [one["offset"]]} for one in letters)
    refused = east.call("POST", replay, {"offsets": first})
    assert (refused.status, refused.json["replayed"]) == (200, 0)
    assert [one["code"] for one in refused.json["failed"]] == ["queue_unserved"]
    assert east.call("POST", replay, {"offsets": second, "to": "retry"}).json["replayed"] == 1
    (again,) = popped(west, "dead", 1, group)
    assert again["body"] == letters[1]["body"] and again["handle"].startswith("east~")
    assert topic.send_to(0, "c") == [2], "the queue has nothing of it"
    assert topic.remap("east").status == 200
    assert east.call("POST", replay, {"offsets": first}).json["replayed"] == 1
    assert topic.read(0) == [(0, "a"), (1, "b"), (2, "c"), (3, letters[0]["body"])]


def test_static_19_pops_and_acks_find_the_process_that_serves_a_queue_in_either_cluster(tmp_path: Path) -> None:
    """East has two processes, with one broker each, and every queue is in east."""
    clusters = TwoClusters(tmp_path)
    whole = clusters.config("east")
    first, second = (
        replace(whole, service=replace(whole.service, brokers=(broker,), port=port))
        for broker, port in (("broker-a", clusters.ports["east"]), ("broker-b", free_port()))
    )
    with running(first) as east, running(second) as beside, running(clusters.config("west")) as west:
        topic = GlobalTopic(east, "orders")
        assert topic.create(4).status == 201 and topic.remap("east").status == 200
        bodies = [f"{queue}-{at}" for queue in range(4) for at in range(3)]
        for body in bodies:
            topic.send_to(int(body[0]), body)
        for nth, (asked, other) in enumerate(((west, beside), (west, east))):
            messages = popped(asked, "orders", 12, f"g{nth}")
            assert places(messages) == {body: (name_of(int(body[0])), int(body[2])) for body in bodies}
            handles = [one["handle"] for one in messages]
            renewed = other.call("POST", f"/v1/groups/g{nth}/invisible", {"handle": handles[0], "invisible_ms": 90_000})
            assert renewed.status == 200 and renewed.json["handle"].startswith("east~"), renewed
            handles[0] = renewed.json["handle"]
            assert call(other, "ack", handles[:6], f"g{nth}").json == {"acked": 6, "failed": []}
            last = pop(other, "orders", f"g{nth}", ack=[*handles[6:], "east~1forged"])
            assert (last.status, last.json["messages"]) == (200, [])
            assert last.json["failed_acks"] == [{"handle": "east~1forged", "code": "handle_invalid"}]
            assert left(asked, "orders", f"g{nth}") == [(0, 0)] * 4
