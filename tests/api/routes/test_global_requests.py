"""Requests to global topics that concern several clusters, or that a queue's past decides (SPEC STATIC-15, 19)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.api.running import ARROW, Api, Reply, arrow_stream
from tests.api.two_clusters import GlobalTopic, TwoClusters, name_of


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoClusters]:
    with TwoClusters.running(tmp_path_factory.mktemp("clusters")) as running:
        yield running


def made(clusters: TwoClusters, name: str, queues: int = 4) -> GlobalTopic:
    topic = GlobalTopic(clusters.east, name)
    reply = topic.create(queues)
    assert reply.status == 201, reply
    return topic


def placed(reply: Reply, count: int) -> dict[int, tuple[str, int]]:
    """Where each message of a request is, by its place in the request."""
    assert reply.status == 200, reply
    found = {}
    for one in reply.json["ranges"]:
        for nth, at in enumerate(one.get("indexes", range(count))):
            found[at] = (one["partition"], one["base_offset"] + nth)
    assert sorted(found) == list(range(count))
    return found


def stored(topic: GlobalTopic, queues: int) -> dict[tuple[str, int], str]:
    return {(name_of(queue), at): body for queue in range(queues) for at, body in topic.read(queue)}


# Several clusters in one request --------------------------------------------------------------------------------------


@pytest.mark.parametrize("idempotent", [False, True])
@pytest.mark.parametrize("asked", ["east", "west"])
def test_static_19_one_request_goes_to_queues_of_several_clusters(
    clusters: TwoClusters, asked: str, idempotent: bool
) -> None:
    topic = made(clusters, f"several-{asked}-{idempotent}")
    messages = [{"body": f"m{at}", "partition": name_of(at % 4)} for at in range(6)]
    messages += [{"body": f"m{at}", "key": f"k{at}"} for at in range(6, 14)]
    messages += [{"body": "m14"}, {"body": "m15"}]
    more = {"producer": {"id": "p", "seq": 0}} if idempotent else {}
    api = clusters.api[asked]
    reply = api.send(topic.name, *messages, query="?ids=true", **more)
    places = placed(reply, 16)
    found = stored(topic, 4)
    assert {places[at]: f"m{at}" for at in places} == found, "each message once, where the answer says"
    assert len(set(reply.json["message_ids"])) == 16 and all(reply.json["message_ids"])
    for at in range(6):
        assert places[at][0] == name_of(at % 4)
    if idempotent:
        again = api.send(topic.name, *messages, query="?ids=true", **more)
        assert placed(again, 16) == places and again.json["duplicate"] is True
        assert again.json["message_ids"] == reply.json["message_ids"]
        assert stored(topic, 4) == found


def test_static_19_an_arrow_request_goes_to_queues_of_several_clusters(clusters: TwoClusters) -> None:
    topic = made(clusters, "several-arrow")
    keys = [f"k{at}" for at in range(40)]
    body = arrow_stream(body=pa.array([f"m{at}".encode() for at in range(40)]), key=pa.array(keys))
    places = placed(clusters.west.produce(topic.name, body, ARROW), 40)
    assert {places[at]: f"m{at}" for at in places} == stored(topic, 4)
    assert len({name for name, _ in places.values()}) == 4, "keys of all queues"


@pytest.mark.parametrize("asked", ["east", "west"])
def test_static_21_a_request_of_several_clusters_is_recognised_after_its_queues_have_moved(
    clusters: TwoClusters, asked: str
) -> None:
    topic = made(clusters, f"moved-{asked}", 2)
    messages: list[Any] = [{"body": f"m{at}", "partition": name_of(at % 2)} for at in range(5)]
    producer = {"id": "p", "seq": 3}
    first = placed(topic.api.send(topic.name, *messages, producer=producer), 5)
    for target in ("west", "east"):
        assert topic.remap(target).status == 200
        again = clusters.api[asked].send(topic.name, *messages, producer=producer)
        assert placed(again, 5) == first and again.json["duplicate"] is True
    assert {first[at]: f"m{at}" for at in first} == stored(topic, 2)


def test_static_19_what_is_stored_of_a_request_is_told_when_a_cluster_is_away(tmp_path: Path) -> None:
    with TwoClusters.running(tmp_path) as clusters:
        topic = made(clusters, "orders", 2)
        clusters.stop("west")
        messages: list[Any] = [{"body": f"m{at}", "partition": name_of(at % 2)} for at in range(4)]
        producer = {"id": "p", "seq": 0}
        reply = clusters.east.send("orders", *messages, producer=producer)
        assert (reply.status, reply.json["code"], reply.json["cluster"]) == (503, "queue_unserved", "west")
        (told,) = reply.json["stored"]
        assert (told["partition"], told["base_offset"], told["indexes"]) == (name_of(0), 0, [0, 2])
        assert topic.read(0) == [(0, "m0"), (1, "m2")], "the part of each queue is stored whole, or not at all"
        clusters.start("west")
        again = clusters.east.send("orders", *messages, producer=producer)
        assert placed(again, 4) == {0: (name_of(0), 0), 1: (name_of(1), 0), 2: (name_of(0), 1), 3: (name_of(1), 1)}
        assert [one.get("duplicate") for one in again.json["ranges"]].count(True) == 1
        assert topic.read(0) == [(0, "m0"), (1, "m2")] and topic.read(1) == [(0, "m1"), (1, "m3")]


# expected_offset ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["strict", "available"])
def test_static_19_an_expected_offset_is_global_through_either_cluster(clusters: TwoClusters, mode: str) -> None:
    topic = made(clusters, f"expected-{mode}", 2)
    offsets: list[int] = []
    for target in ("east", "west", "east"):
        assert topic.remap(target, mode=mode).status == 200
        for one in (topic, topic.at(clusters.west)):
            end = topic.fetch(0, offsets[-1] + 1 if offsets else 0).json["max_offset"]
            for wrong in {0, end - 1, end + 1} - {end, -1}:
                message: dict[str, object] = {"body": "x", "partition": name_of(0)}
                reply = one.api.send(topic.name, message, expected_offset=wrong)
                assert (reply.status, reply.json["code"], reply.json["end_offset"]) == (412, "offset_mismatch", end)
                assert name_of(0) in reply.json["detail"]
            assert one.send_to(0, "x", expected_offset=end) == [end]
            offsets.append(end)
    assert [offset for offset, _ in topic.read(0)] == offsets == sorted(set(offsets))


# By time --------------------------------------------------------------------------------------------------------------


def by_time(api: Api, topic: str, when: datetime) -> dict[int, int]:
    reply = api.call("GET", f"/v1/topics/{topic}/offsets?time={when.isoformat().replace('+00:00', 'Z')}")
    assert reply.status == 200, reply
    names = [name_of(queue) for queue in range(len(reply.json["offsets"]))]
    assert [one["partition"] for one in reply.json["offsets"]] == names
    assert all(set(one) == {"partition", "offset"} for one in reply.json["offsets"])
    return {queue: one["offset"] for queue, one in enumerate(reply.json["offsets"])}


@pytest.mark.parametrize("mode", ["strict", "available"])
def test_static_15_a_search_by_time_finds_global_offsets_of_all_clusters(clusters: TwoClusters, mode: str) -> None:
    topic = made(clusters, f"timed-{mode}", 2)
    for target in ("east", "west", "east"):
        assert topic.remap(target, mode=mode).status == 200
        topic.send_to(0, "x", "y")
    appended = {}
    offset = 0
    while len(appended) < 6:
        answer = topic.fetch(0, offset).json
        appended |= {one["offset"]: datetime.fromisoformat(one["append_time"]) for one in answer["messages"]}
        offset = answer["next_offset"]
    end = max(appended) + 1
    for api in (clusters.east, clusters.west):
        for when in {*appended.values(), min(appended.values()) - timedelta(days=1)}:
            expected = min(offset for offset, time in appended.items() if time >= when)
            assert by_time(api, topic.name, when)[0] == expected
        assert by_time(api, topic.name, datetime(2100, 1, 1, tzinfo=UTC))[0] == end
        assert by_time(api, topic.name, datetime(2100, 1, 1, tzinfo=UTC))[1] == topic.fetch(1).json["max_offset"]


def test_static_19_a_search_by_time_needs_the_clusters_that_hold_messages(tmp_path: Path) -> None:
    with TwoClusters.running(tmp_path) as clusters:
        topic = made(clusters, "orders", 2)
        clusters.stop("west")
        reply = clusters.east.call("GET", "/v1/topics/orders/offsets?time=2100-01-01T00:00:00Z")
        assert (reply.status, reply.json["code"], reply.json["cluster"]) == (503, "queue_unserved", "west")
        assert topic.ask("GET").status == 200
