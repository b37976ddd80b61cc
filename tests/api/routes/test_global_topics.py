"""Global topics over two clusters with a warehouse each: made, sent to, read, moved (SPEC STATIC-19)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.two_clusters import GlobalTopic, TwoClusters, name_of


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoClusters]:
    folder = tmp_path_factory.mktemp("clusters")
    with TwoClusters.running(folder) as running:
        yield running


def made(clusters: TwoClusters, name: str, queues: int = 4) -> GlobalTopic:
    topic = GlobalTopic(clusters.east, name)
    reply = topic.create(queues)
    assert reply.status == 201, reply
    return topic


def test_static_19_both_clusters_show_a_global_topic_and_where_its_queues_are(clusters: TwoClusters) -> None:
    topic = made(clusters, "shown")
    for api in (clusters.east, clusters.west):
        view = topic.at(api).ask("GET").json
        assert view["scope"] == "global" and view["home"] == "east" and view["clusters"] == ["east", "west"]
        assert [one["partition"] for one in view["logical_queues"]] == [name_of(queue) for queue in range(4)]
        assert topic.at(api).clusters() == {0: "east", 1: "west", 2: "east", 3: "west"}
        assert topic.at(api).ask("POST", "/check").json["complete"] is True
    again = topic.create(4)
    assert again.status == 200, "creating it again changes nothing"


@pytest.mark.parametrize("queue", [0, 1])
def test_static_19_sends_and_fetches_reach_a_queue_through_either_cluster(clusters: TwoClusters, queue: int) -> None:
    topic = made(clusters, f"either-{queue}")
    west = topic.at(clusters.west)
    assert topic.send_to(queue, "a", "b") == [0, 1]
    assert west.send_to(queue, "c") == [2]
    for one in (topic, west):
        shown = one.ask("GET").json["logical_queues"][queue]
        assert (shown["min_offset"], shown["max_offset"], shown["messages"]) == (0, 3, 3)
    expected = [(0, "a"), (1, "b"), (2, "c")]
    assert topic.read(queue) == expected == west.read(queue)


def test_static_19_a_key_goes_to_its_queue_whichever_cluster_is_asked(clusters: TwoClusters) -> None:
    made(clusters, "keyed")
    for key in ("k1", "k2", "k3", "k4", "k5", "k6"):
        places = set()
        for api in (clusters.east, clusters.west):
            (placed,) = api.send("keyed", {"body": "x", "key": key}).json["ranges"]
            places.add(placed["partition"])
        assert len(places) == 1, "one queue"


@pytest.mark.parametrize("mode", ["strict", "available"])
def test_static_19_a_queue_moves_between_clusters_and_back_and_its_offsets_only_grow(
    clusters: TwoClusters, mode: str
) -> None:
    topic = made(clusters, f"moving-{mode}", 2)
    west = topic.at(clusters.west)
    sent = [*zip(topic.send_to(0, "a", "b"), ("a", "b"), strict=True)]
    for target, body in (("west", "c"), ("east", "d"), ("west", "e")):
        reply = west.remap(target, mode=mode)
        assert reply.status == 200, reply
        assert topic.clusters() == {0: target, 1: target} == west.clusters()
        sent += [*zip(west.send_to(0, body), [body], strict=True), *zip(topic.send_to(0, body), [body], strict=True)]
    assert topic.read(0) == sent == west.read(0)
    offsets = [offset for offset, _ in sent]
    assert offsets == sorted(set(offsets))
    if mode == "strict":
        assert offsets == list(range(len(offsets))), "no hole"
    assert topic.ask("POST", "/check").json["complete"] is True


def test_static_21_a_request_is_recognised_in_the_cluster_that_its_queue_left(clusters: TwoClusters) -> None:
    topic = made(clusters, "repeated", 2)
    producer = {"id": "p", "seq": 7}
    first = topic.send_to(0, "once", producer=producer)
    assert topic.remap("west").status == 200
    assert topic.at(clusters.west).send_to(0, "once", producer=producer) == first
    assert topic.send_to(0, "twice", producer={"id": "p", "seq": 8}) == [1]
    assert topic.send_to(0, "once", producer=producer) == first
    assert topic.read(0) == [(0, "once"), (1, "twice")]


def test_static_22_a_clusters_own_queue_names_are_refused_and_unknown_ones_not_found(clusters: TwoClusters) -> None:
    topic = made(clusters, "named")
    for call in (
        lambda name: clusters.east.send("named", {"body": "x", "partition": name}),
        lambda name: clusters.east.fetch("named", name),
    ):
        own, unknown = call("0@__logical_queue_broker__"), call(name_of(4))
        assert (own.status, own.json["code"], own.json["partition"]) == (422, "physical_partition", name_of(0))
        assert (unknown.status, unknown.json["code"]) == (404, "partition_not_found")
    assert topic.read(0) == []


def test_static_19_what_works_in_one_cluster_alone_is_refused(clusters: TwoClusters) -> None:
    topic = made(clusters, "refused")
    east = clusters.east
    assert east.call("PUT", "/v1/groups/g", {}).status in (200, 201)
    calls = [
        east.send("refused", {"body": "x", "delay_ms": 1000}),
        east.call("POST", "/v1/groups/g/clients/c/heartbeat", {"topics": {"refused": {}}}),
    ]
    for reply in calls:
        assert (reply.status, reply.json["code"]) == (422, "global_unsupported"), reply
    assert topic.ask("PUT", "", {"static": True, "total_queues": 5}).json["code"] == "global_topic_fixed"


def test_static_19_a_topic_of_the_name_in_another_cluster_refuses_the_creation(clusters: TwoClusters) -> None:
    clusters.west.put_topic("taken", partitions=1)
    topic = GlobalTopic(clusters.east, "taken")
    reply = topic.create(2)
    assert (reply.status, reply.json["code"], reply.json["cluster"]) == (409, "topic_exists", "west")
    assert topic.ask("GET").status == 404, "nothing was made"


def test_static_18_deleting_a_global_topic_deletes_it_in_all_clusters(clusters: TwoClusters) -> None:
    topic = made(clusters, "deleted")
    west = topic.at(clusters.west)
    assert west.ask("DELETE").json["code"] == "global_home"
    assert topic.ask("DELETE").status == 204
    assert topic.ask("GET").status == 404 == west.ask("GET").status


def test_static_19_when_a_cluster_is_away_its_queues_fail_clearly_and_others_go_on(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        clusters = stack.enter_context(TwoClusters.running(tmp_path))
        topic = made(clusters, "orders")
        west = topic.at(clusters.west)
        assert west.remap("west", queues=[0]).status == 200
        topic.send_to(0, "before")
        assert topic.send_to(1, "before") == [0]
        clusters.stop("west")
        for queue in (0, 1):
            sent = clusters.east.send("orders", {"body": "x", "partition": name_of(queue)})
            read = topic.fetch(queue)
            for reply in (sent, read):
                assert (reply.status, reply.json["code"], reply.json["cluster"]) == (503, "queue_unserved", "west")
        assert topic.send_to(2, "here") == [0] and topic.read(2) == [(0, "here")]
        (placed,) = clusters.east.send("orders", "anywhere").json["ranges"]
        assert placed["partition"] == name_of(2), "messages without a key go to the queues that are here"
        deleted = topic.ask("DELETE")
        assert (deleted.status, deleted.json["code"]) == (503, "queue_unserved")
        moved = topic.remap("east")
        assert (moved.status, moved.json["code"]) == (503, "queue_unserved")
        assert topic.clusters() == {0: "west", 1: "west", 2: "east", 3: "west"}, "nothing was changed"
        states = [(one["state"], one["max_offset"]) for one in topic.ask("GET").json["logical_queues"]]
        assert states == [("queue_unserved", None), ("queue_unserved", None), ("serving", 2), ("queue_unserved", None)]
        check = topic.ask("POST", "/check").json
        assert check["complete"] is False and "west" in check["faults"][0]["detail"]
        clusters.start("west")
        west = topic.at(clusters.west)
        assert west.read(0) == [(0, "before")] == topic.read(0)
        clusters.stop("east")
        assert west.send_to(1, "alone") == [1] and west.read(1) == [(0, "before"), (1, "alone")]
        reply = clusters.west.send("orders", {"body": "x", "partition": name_of(2)})
        assert (reply.status, reply.json["code"], reply.json["cluster"]) == (503, "queue_unserved", "east")
        assert west.remap("west").json["cluster"] == "east", "the home decides"


def test_static_21_what_an_away_cluster_may_remember_is_not_stored_anew(tmp_path: Path) -> None:
    with TwoClusters.running(tmp_path) as clusters:
        topic = made(clusters, "orders", 2)
        asked: dict[str, object] = {"id": "asked", "seq": 0}
        assert topic.send_to(1, "old", producer=asked) == [0]
        assert topic.remap("east").status == 200
        assert topic.send_to(1, "new", producer={**asked, "seq": 1}) == [1]
        clusters.stop("west")
        unknown = {"producer": {"id": "unknown", "seq": 0}}
        reply = clusters.east.send("orders", {"body": "x", "partition": name_of(1)}, **unknown)
        assert (reply.status, reply.json["code"], reply.json["cluster"]) == (503, "queue_unserved", "west")
        assert topic.send_to(1, "newer", producer={**asked, "seq": 2}) == [2], "west told what it knows of this one"
        assert topic.send_to(1, "plain") == [3]
        assert topic.fetch(1, 0).json["cluster"] == "west", "a read never skips what lies there"
        assert topic.read(1, 1) == [(1, "new"), (2, "newer"), (3, "plain")]
        clusters.start("west")
        assert topic.send_to(1, "x", **unknown) == [4]
        assert topic.send_to(1, "old", producer=asked) == [0]


def test_static_8_each_cluster_moves_its_part_of_a_global_topic_between_its_own_brokers(clusters: TwoClusters) -> None:
    topic = made(clusters, "within", 2)
    topic.send_to(0, "a")
    for brokers, body in ((["broker-b"], "b"), (["broker-a"], "c")):
        moved = topic.ask("POST", "/remap", {"brokers": brokers, "mode": "strict"})
        assert moved.status == 200 and moved.json["moved"], moved
        topic.at(clusters.west).send_to(0, body)
    assert topic.at(clusters.west).read(0) == [(0, "a"), (1, "b"), (2, "c")]
    assert topic.ask("POST", "/check").json["complete"] is True
