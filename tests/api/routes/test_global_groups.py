"""Groups on global topics: progress in global offsets, each cluster holds its part (SPEC STATIC-15, 16, 19)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deltamq.mq.client.pull.consumer import PullConsumer
from deltamq.mq.client.pull.offsets import GroupOffsets
from tests.api.running import Api, Reply
from tests.api.two_clusters import NAMES, GlobalTopic, TwoClusters, name_of

GROUP = "g"


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoClusters]:
    with TwoClusters.running(tmp_path_factory.mktemp("clusters")) as running:
        yield running


def made(clusters: TwoClusters, name: str, queues: int = 2) -> GlobalTopic:
    topic = GlobalTopic(clusters.east, name)
    reply = topic.create(queues)
    assert reply.status == 201, reply
    return topic


def moved_about(clusters: TwoClusters, name: str, mode: str = "strict") -> tuple[GlobalTopic, list[int]]:
    """A topic whose queue 0 was in east, west and east again, with two messages each time; and their offsets."""
    topic = made(clusters, name)
    offsets: list[int] = []
    for target in ("east", "west", "east"):
        assert topic.remap(target, mode=mode).status == 200
        offsets += topic.send_to(0, "x", "y")
    return topic, offsets


def path(topic: str, rest: str = "") -> str:
    return f"/v1/groups/{GROUP}/topics/{topic}/offsets{rest}"


def commit(api: Api, topic: str, offsets: dict[int, int], **more: object) -> Reply:
    return api.call("PUT", path(topic), {"offsets": {name_of(queue): at for queue, at in offsets.items()}, **more})


def shown(api: Api, topic: str) -> dict[int, Any]:
    reply = api.call("GET", path(topic))
    assert reply.status == 200, reply
    assert [one["partition"] for one in reply.json["partitions"]] == [name_of(at) for at in (0, 1)]
    return dict(enumerate(reply.json["partitions"]))


@pytest.mark.parametrize("mode", ["strict", "available"])
def test_static_16_a_commit_through_either_cluster_is_told_by_both_in_global_offsets(
    clusters: TwoClusters, mode: str
) -> None:
    topic, offsets = moved_about(clusters, f"both-{mode}", mode)
    assert commit(clusters.west, topic.name, {0: 0, 1: 0}).status == 200
    for nth, offset in enumerate(offsets):
        reply = commit(clusters.api[NAMES[nth % 2]], topic.name, {0: offset + 1})
        assert reply.status == 200, reply
        following = [one for one in offsets if one > offset]
        told = [reply.json["offsets"][name_of(0)]]
        for api in (clusters.east, clusters.west):
            view = shown(api, topic.name)[0]
            told.append(view["committed_offset"])
            assert offset < min(told) <= max(told) <= (following or [offset + 1])[0], "the next message is the next one"
            assert view["lag"] == len(following), "lag counts messages"
            assert (view["min_offset"], view["end_offset"]) == (0, offsets[-1] + 1)
    lower = commit(clusters.east, topic.name, {0: 1})
    assert lower.status == 200 and shown(clusters.west, topic.name)[0]["lag"] == 0, "a higher offset stays"


def test_kafka_13_the_text_of_a_commit_is_in_the_cluster_of_its_offset(clusters: TwoClusters) -> None:
    topic, offsets = moved_about(clusters, "texts")
    for nth, offset in enumerate(offsets):
        more = {"metadata": {name_of(0): f"number {nth}"}}
        assert commit(clusters.api[NAMES[nth % 2]], topic.name, {0: offset + 1, 1: 0}, **more).status == 200
        for api in (clusters.east, clusters.west):
            views = shown(api, topic.name)
            assert (views[0]["metadata"], views[1]["metadata"]) == (f"number {nth}", None)
    assert commit(clusters.west, topic.name, {0: 1}, metadata={name_of(0): "back"}).status == 200
    assert shown(clusters.east, topic.name)[0]["metadata"] == f"number {len(offsets) - 1}", "it is earlier"
    assert commit(clusters.west, topic.name, {0: offsets[-1] + 1}).status == 200
    assert shown(clusters.east, topic.name)[0]["metadata"] is None
    large = commit(clusters.west, topic.name, {0: offsets[-1] + 1}, metadata={name_of(0): "x" * 4_097})
    assert (large.status, large.json["code"]) == (422, "commit_metadata_too_large")
    assert large.json["field"] == f"metadata.{name_of(0)}"
    other = commit(clusters.west, topic.name, {0: offsets[-1] + 1}, metadata={name_of(1): "whose"})
    assert (other.status, other.json["field"]) == (422, f"metadata.{name_of(1)}")


def test_static_16_progress_survives_a_remapping_and_a_restart_of_both(tmp_path: Path) -> None:
    with TwoClusters.running(tmp_path) as clusters:
        topic = made(clusters, "kept")
        topic.send_to(0, "a", "b", "c")
        assert commit(clusters.west, "kept", {0: 2}).status == 200
        assert topic.remap("west").status == 200
        topic.send_to(0, "d")
        for name in NAMES:
            clusters.stop(name)
        for name in NAMES:
            clusters.start(name)
        for api in (clusters.east, clusters.west):
            view = shown(api, "kept")[0]
            assert (view["committed_offset"], view["lag"]) == (2, None if view["lag"] is None else 2)
        assert commit(clusters.west, "kept", {0: 4}).status == 200
        assert [shown(api, "kept")[0]["lag"] for api in (clusters.east, clusters.west)] == [0, 0]


@pytest.mark.parametrize("asked", NAMES)
def test_static_20_a_reset_goes_to_all_clusters_and_begins_a_new_epoch(clusters: TwoClusters, asked: str) -> None:
    topic, offsets = moved_about(clusters, f"reset-{asked}")
    api = clusters.api[asked]
    assert commit(api, topic.name, {0: offsets[-1] + 1, 1: 0}).status == 200
    before = api.call("GET", path(topic.name)).json
    assert before["topic_id"] == topic.ask("GET").json["id"] or asked == "west"
    for at in (0, 1, 2, 3, 5, 6):
        reply = api.call("POST", path(topic.name, "/reset"), {"to": {name_of(0): at}})
        assert (reply.status, reply.json["offsets"]) == (200, {name_of(0): at}), reply
        for one in (clusters.east, clusters.west):
            view = shown(one, topic.name)[0]
            assert (view["committed_offset"], view["lag"]) == (at, 6 - at)
    late = commit(api, topic.name, {0: 6}, epochs=before["epochs"])
    assert (late.status, late.json["code"]) == (409, "epoch_over")
    now = api.call("GET", path(topic.name)).json
    assert commit(api, topic.name, {0: 6}, epochs=now["epochs"], topic_id=now["topic_id"]).status == 200
    for to, at in (("first", 0), ("last", 6), ("2000-01-01T00:00:00Z", 0), ("2100-01-01T00:00:00Z", 6)):
        reply = api.call("POST", path(topic.name, "/reset"), {"to": to})
        assert (reply.status, reply.json["offsets"][name_of(0)]) == (200, at), (to, reply)
        assert shown(clusters.west, topic.name)[0]["lag"] == 6 - at


@pytest.mark.parametrize("asked", NAMES)
def test_static_16_the_epochs_that_a_commit_tells_are_good_for_the_next(clusters: TwoClusters, asked: str) -> None:
    topic, _ = moved_about(clusters, f"epochs-{asked}")
    api = clusters.api[asked]
    epochs: dict[str, int] = {}
    for at in (1, 3, 5, 6):
        reply = commit(api, topic.name, {0: at}, epochs=epochs)
        assert reply.status == 200, reply
        epochs = reply.json["epochs"]
    assert epochs == {name_of(0): api.call("GET", path(topic.name)).json["epochs"][name_of(0)]}
    assert api.call("POST", path(topic.name, "/reset"), {"to": "first"}).status == 200
    assert commit(api, topic.name, {0: 6}, epochs=epochs).json["code"] == "epoch_over"


@pytest.mark.parametrize("asked", NAMES)
def test_static_19_the_sdks_pull_consumer_goes_on_where_its_group_is_after_remappings(
    clusters: TwoClusters, asked: str
) -> None:
    topic = made(clusters, f"sdk-{asked}")
    url = f"http://127.0.0.1:{clusters.api[asked].port}"
    for target in ("east", "west", "east"):
        assert topic.remap(target).status == 200
        for queue in (0, 1):
            topic.send_to(queue, f"{target}-{queue}-a", f"{target}-{queue}-b")
        with PullConsumer(url, topic.name, offsets=GroupOffsets("reader")) as consumer:
            found: list[str] = []
            while len(found) < 4:
                found += [message.text for message in consumer.poll(wait_ms=5_000)]
            consumer.commit()
        assert sorted(found) == sorted(f"{target}-{queue}-{which}" for queue in (0, 1) for which in "ab")
    for api in (clusters.east, clusters.west):
        assert api.call("GET", "/v1/groups/reader").status == 200


def test_static_16_offsets_and_names_that_are_wrong_are_refused_in_global_terms(clusters: TwoClusters) -> None:
    topic, offsets = moved_about(clusters, "wrong")
    for api in (clusters.east, clusters.west):
        reply = commit(api, topic.name, {0: 7})
        assert (reply.status, reply.json["code"], reply.json["end_offset"]) == (422, "offset_out_of_range", 6)
        assert reply.json["field"] == f"offsets.{name_of(0)}"
        for name in ("0@__logical_queue_broker__", name_of(2), "wrong@broker-a"):
            asked = api.call("PUT", path(topic.name), {"offsets": {name: 0}})
            assert (asked.status, asked.json["code"]) == (404, "partition_not_found")
        other = commit(api, topic.name, {0: 0}, topic_id="another")
        assert (other.status, other.json["code"]) == (409, "epoch_over")
    assert len(offsets) == 6


def test_static_19_exclusive_groups_and_locks_are_refused(clusters: TwoClusters) -> None:
    topic = made(clusters, "exclusive")
    east = clusters.east
    assert east.call("PUT", "/v1/groups/alone", {"consume_strategy": "exclusive"}).status == 201
    offsets = {"offsets": {name_of(0): 0}}
    for reply in (
        east.call("PUT", "/v1/groups/alone/topics/exclusive/offsets", offsets),
        east.call("PUT", path("exclusive"), {**offsets, "client_id": "c", "locks": {name_of(0): 1}}),
        topic.fetch(0, rest="&group=alone"),
    ):
        assert (reply.status, reply.json["code"]) == (422, "global_unsupported"), reply
    assert topic.fetch(0, rest=f"&group={GROUP}").status == 200


def test_static_19_when_a_cluster_is_away_progress_in_its_messages_waits_and_other_queues_go_on(tmp_path: Path) -> None:
    with TwoClusters.running(tmp_path) as clusters:
        topic = made(clusters, "orders")
        topic.send_to(0, "a")
        topic.send_to(1, "b")
        assert commit(clusters.east, "orders", {0: 0, 1: 0}).status == 200
        clusters.stop("west")
        assert commit(clusters.east, "orders", {0: 1}).status == 200
        calls = [
            commit(clusters.east, "orders", {1: 1}),
            clusters.east.call("GET", path("orders")),
            clusters.east.call("POST", path("orders", "/reset"), {"to": {name_of(1): 0}}),
        ]
        for reply in calls:
            assert (reply.status, reply.json["code"], reply.json["cluster"]) == (503, "queue_unserved", "west")
        clusters.start("west")
        assert commit(clusters.east, "orders", {1: 1}).status == 200
        assert [shown(clusters.west, "orders")[queue]["lag"] for queue in (0, 1)] == [0, 0]
