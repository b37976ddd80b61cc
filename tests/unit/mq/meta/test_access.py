"""Access as a fold of events: what may be read and written to, and until when (SPEC ROUTE-9)."""

from __future__ import annotations

import pytest

from deltamq.mq.errors import NotFound, Unavailable, Unprocessable
from deltamq.mq.meta.access import OPEN, Access, AccessState, BrokerAccessPut, PartitionAccessPut
from deltamq.mq.meta.access_changes import (
    brokers_for_new,
    check_targets,
    decide_broker_access,
    decide_partition_access,
)
from deltamq.mq.meta.brokers import Host, decide_register
from deltamq.mq.meta.fold import AnyEvent, Meta, event_from_json, event_to_json
from deltamq.mq.meta.snapshot import MetaSnapshot
from deltamq.mq.meta.topic_settings import TopicRequest
from deltamq.mq.meta.topics import decide_delete_topic, decide_put_topic
from tests.static_topics import StaticWorld

CLOSED = Access(writable=False, reason="disk")
UNREADABLE = Access(readable=False, reason="restore")


def applied(meta: Meta, *events: AnyEvent) -> Meta:
    return meta.apply_all([event_from_json(event.kind, event_to_json(event)) for event in events])


@pytest.fixture
def meta() -> Meta:
    """Two brokers and the topic `orders`, a partition at each."""
    hosts = [Host(id=f"host-{one}", address="", brokers=(one,), renewal=0, load=0) for one in "AB"]
    meta = Meta()
    for host in hosts:
        meta = applied(meta, *decide_register(meta.brokers, host))
    events = decide_put_topic(meta.topics, "orders", TopicRequest(), ["A", "B"], "id-1", 1)
    return applied(meta, *events)


def test_route_09_a_broker_and_a_partition_are_closed_and_opened_again(meta: Meta) -> None:
    assert not meta.access and meta.access.of("id-1", "orders@A") is OPEN
    meta = applied(meta, *decide_broker_access(meta, "A", CLOSED, 10))
    meta = applied(meta, *decide_partition_access(meta, "orders", "orders@A", UNREADABLE, 10))
    both = meta.access.of("id-1", "orders@A")
    assert (both.readable, both.writable, both.reason) == (False, False, "restore; disk")
    assert meta.access.of("id-1", "orders@B").is_open and not meta.access.of_broker("A").writable
    assert decide_broker_access(meta, "A", CLOSED, 11) == ()
    meta = applied(meta, *decide_broker_access(meta, "A", OPEN, 12))
    assert meta.access.of("id-1", "orders@A") == UNREADABLE
    meta = applied(meta, *decide_partition_access(meta, "orders", "orders@A", OPEN, 12))
    assert not meta.access and decide_partition_access(meta, "orders", "orders@A", OPEN, 13) == ()


def test_route_09_access_ends_by_itself_at_its_time(meta: Meta) -> None:
    ends = Access(writable=False, until_ms=100)
    meta = applied(meta, *decide_broker_access(meta, "A", ends, 10), *decide_broker_access(meta, "B", CLOSED, 10))
    assert meta.access.at(99) is meta.access
    assert meta.access.at(100) == AccessState({"B": CLOSED})
    assert meta.access.at(100).ends_ms is None


def test_route_09_access_is_in_snapshots(meta: Meta) -> None:
    closed = applied(
        meta,
        BrokerAccessPut(broker="A", access=CLOSED),
        PartitionAccessPut(topic_id="id-1", partition="orders@B", access=Access(readable=False, until_ms=9)),
    )
    body = MetaSnapshot(meta=closed, previous=0, told={}).to_json()
    assert MetaSnapshot.from_json(body).meta == closed


def test_route_09_the_access_of_a_partition_ends_with_its_topic(meta: Meta) -> None:
    meta = applied(meta, *decide_partition_access(meta, "orders", "orders@A", CLOSED, 10))
    assert not applied(meta, *decide_delete_topic(meta.topics, "orders")).access


def test_route_09_what_is_not_there_or_over_is_refused(meta: Meta) -> None:
    with pytest.raises(NotFound, match="no broker C"):
        decide_broker_access(meta, "C", CLOSED, 1)
    with pytest.raises(NotFound, match="has no partition 'orders@C'"):
        decide_partition_access(meta, "orders", "orders@C", CLOSED, 1)
    with pytest.raises(Unprocessable) as passed:
        decide_broker_access(meta, "A", Access(writable=False, until_ms=5), 5)
    assert passed.value.code == "until_passed"


def test_route_09_new_partitions_do_not_go_to_a_closed_broker(meta: Meta) -> None:
    assert sorted(brokers_for_new(meta, "t", (), 1)) == ["A", "B"]
    meta = applied(meta, *decide_broker_access(meta, "A", Access(writable=False, until_ms=100), 10))
    assert brokers_for_new(meta, "t", ("A", "B"), 11) == ["B"] and len(brokers_for_new(meta, "t", (), 100)) == 2
    meta = applied(meta, *decide_broker_access(meta, "B", CLOSED, 10))
    assert brokers_for_new(meta, "t", ("A", "B"), 11) == ()
    with pytest.raises(Unavailable, match="disk") as refused:
        check_targets(meta, ["B"], 11)
    assert refused.value.code == "not_writable"


def test_static_23_closed_brokers_get_no_queues() -> None:
    world = StaticWorld(("A", "B"))
    world.apply(decide_broker_access(world.meta, "B", CLOSED, 1))
    with pytest.raises(Unavailable) as refused:
        world.put(2, brokers=("A", "B"))
    assert refused.value.code == "not_writable"
    world.put(2, brokers=("A",))
    with pytest.raises(Unavailable) as refused:
        world.remap(["B"])
    assert refused.value.code == "not_writable"
    with pytest.raises(Unavailable) as refused:
        world.put(4, brokers=("B",))
    assert refused.value.code == "not_writable"
    world.apply(decide_broker_access(world.meta, "B", OPEN, 2))
    assert world.remap(["B"])
