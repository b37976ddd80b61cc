"""Decisions about global topics: copies of the home's in another cluster, queues that come and leave (STATIC-19)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from deltamq.mq.errors import Conflict
from deltamq.mq.meta.global_topics import (
    GlobalCopy,
    closed_ends,
    decide_adopt,
    decide_create_global,
    decide_held,
    decide_move,
    decide_settle,
)
from deltamq.mq.meta.static_topics import StaticRequest
from deltamq.mq.meta.topics import Topic
from deltamq.mq.static.global_queues import GlobalQueues
from tests.static_topics import TOPIC, StaticWorld

CLUSTERS = ("east", "west")


def created() -> StaticWorld:
    """East, the home of a topic with two queues: the first is there, the second in west."""
    east = StaticWorld()
    request = StaticRequest(total_queues=2)
    east.apply(
        decide_create_global(
            east.meta, TOPIC, request, CLUSTERS, east.brokers, here="east", new_id="id-1", now_ms=1_000
        )
    )
    return east


def world_of(cluster: StaticWorld) -> GlobalQueues:
    world = cluster.topic.world
    assert world is not None
    return world


def adopt(cluster: StaticWorld, topic: Topic, name: str = "west") -> int:
    """Let a cluster take over the topic's copy; returns the number of events."""
    assert topic.world is not None
    copy = GlobalCopy(world=topic.world.at(name), settings=topic.settings)
    cluster.now_ms += 10
    return len(
        cluster.apply(
            decide_adopt(cluster.meta, TOPIC, copy, cluster.brokers, new_id=f"id-{name}", now_ms=cluster.now_ms)
        )
    )


def test_static_19_a_copy_is_taken_over_once_and_survives_a_snapshot() -> None:
    east, west = created(), StaticWorld()
    assert adopt(west, east.topic) > 0
    assert world_of(west) == world_of(east).at("west") and world_of(west).away == {0}
    assert adopt(west, east.topic) == 0, "a copy that is as new changes nothing"
    west.restart()
    assert world_of(west) == world_of(east).at("west")


def test_static_19_a_queue_that_leaves_is_closed_and_its_end_is_known_after_the_seal() -> None:
    east, west = created(), StaticWorld()
    adopt(west, east.topic)
    west.send(1, 3)
    world = world_of(east)
    assert closed_ends(east.meta, east.topic) == {1: 0}
    moved = decide_move(east.meta, TOPIC, {1: "east"}, {1: 0}, epoch=world.epoch, now_ms=2_000, at_once=False)
    east.apply(moved)
    adopt(west, east.topic)
    assert world_of(west).away == {0, 1}
    assert 1 not in closed_ends(west.meta, west.topic), "not before the seal"
    west.seal()
    assert closed_ends(west.meta, west.topic) == {0: 0, 1: 3}
    epoch = world_of(east).epoch
    assert decide_settle(east.meta, TOPIC, {1: 3}, epoch=epoch - 1, now_ms=2_010) == (), "told by an older copy"
    east.apply(decide_settle(east.meta, TOPIC, {1: 3}, epoch=epoch, now_ms=2_010))
    assert world_of(east).taker(1) == "east" and world_of(east).shown(1, 0) == 3


def test_static_19_a_move_by_what_an_older_copy_told_is_refused() -> None:
    east = created()
    epoch = world_of(east).epoch
    east.apply(decide_held(east.meta, TOPIC, epoch, 2_000))
    with pytest.raises(Conflict) as found:
        decide_move(east.meta, TOPIC, {1: "east"}, {1: 0}, epoch=epoch, now_ms=2_010, at_once=False)
    assert found.value.code == "remap_in_progress"


def test_static_19_a_cluster_that_lost_its_part_does_not_begin_a_new_one() -> None:
    east, west = created(), StaticWorld()
    east.apply(decide_held(east.meta, TOPIC, world_of(east).epoch, 2_000))
    with pytest.raises(Conflict) as found:
        adopt(west, east.topic)
    assert found.value.code == "copy_lost" and TOPIC not in west.meta.topics.topics


def test_static_19_another_topic_of_the_name_is_not_taken_over() -> None:
    east, west = created(), StaticWorld()
    west.put(2)
    other = created()
    strange = replace(world_of(other), id="another")
    static = other.topic.static
    assert static is not None
    for topic in (east.topic, replace(other.topic, static=replace(static, world=strange))):
        before = west.meta
        with pytest.raises(Conflict) as found:
            adopt(west, topic)
        assert found.value.code == "topic_exists" and west.meta is before


def test_static_19_a_global_topic_keeps_its_queues_clusters_and_settings() -> None:
    east = created()
    assert not decide_create_global(
        east.meta, TOPIC, StaticRequest(total_queues=2), CLUSTERS, east.brokers, here="east", new_id="2", now_ms=2_000
    )
    for total, clusters in ((3, CLUSTERS), (2, ("east", "north"))):
        with pytest.raises(Conflict) as found:
            decide_create_global(
                east.meta,
                TOPIC,
                StaticRequest(total_queues=total),
                clusters,
                east.brokers,
                here="east",
                new_id="2",
                now_ms=2_000,
            )
        assert found.value.code == "global_topic_fixed"
    with pytest.raises(Conflict):
        east.put(3)
