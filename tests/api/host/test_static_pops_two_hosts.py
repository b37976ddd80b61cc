"""Pops of a logical queue whose segments two processes serve (SPEC STATIC-20)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest

from deltamq.mq.limits import LOGICAL_PARTITIONS
from deltamq.mq.meta.brokers import decide_takeover
from deltamq.mq.partitioners import logical_partition
from tests.api.queue_calls import Consumer
from tests.api.running import ARROW, Api, config_for, running, until
from tests.api.static_pops import Static, queue_name

A, B = "broker-a", "broker-b"
QUEUE = queue_name(0)


class Two(NamedTuple):
    """`a` serves broker-a, `b` broker-b."""

    a: Api
    b: Api

    def settle(self, topic: str) -> None:
        """Return when both know the same of a topic, sealed."""

        def same() -> bool:
            ones = [api.service.meta.now for api in self]
            topics = [one.topics.topics.get(topic) for one in ones]
            first = topics[0]
            return first is not None and all(
                one is not None
                and one.route == first.route
                and metas.mappings(first.id) == ones[0].mappings(first.id)
                and not metas.moved_keys(first.id).waiting
                for one, metas in zip(topics, ones, strict=True)
            )

        until(same)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    warehouse = tmp_path_factory.mktemp("two") / "warehouse"
    with (
        running(config_for(warehouse, brokers=(A,))) as a,
        running(config_for(warehouse, brokers=(B,))) as b,
    ):
        until(lambda: all(api.service.meta.now.brokers.available == (A, B) for api in (a, b)))
        until(lambda: b.service.hosting.hosts(B) and a.service.hosting.hosts(A))
        yield Two(a, b)


def made(two: Two, topic: str, *bodies: str, mode: Any = "strict") -> Static:
    """A topic with one queue; each body is in a segment of its own, in turn at broker-a and broker-b."""
    static = Static(two.a, topic).put(1, (A,))
    for number, body in enumerate(bodies):
        if number:
            static.remap(B if number % 2 else A, mode=mode)
        static.send(0, body)
    two.settle(topic)
    return static


def taken(consumer: Consumer, count: int, **ask: Any) -> list[dict[str, Any]]:
    """What pops of the queue bring until there are `count` messages; each is acknowledged with the next pop."""
    found: list[dict[str, Any]] = []
    handles: list[str] = []
    while len(found) < count:
        popped = consumer.pop(ack=handles, partition=QUEUE, wait_ms=5_000, **ask)
        assert popped.messages and popped.failed == {}, found
        found += popped.messages
        handles = popped.handles
    assert consumer.ack(handles) == {}
    return found


@pytest.mark.parametrize("asked", [0, 1])
@pytest.mark.parametrize("count", [2, 3, 4])
def test_static_20_a_pop_of_a_queue_reaches_closed_segments_at_other_processes(
    two: Two, topic: str, asked: int, count: int
) -> None:
    made(two, topic, *map(str, range(count)), mode="available")
    found = taken(Consumer(two[asked], "g", topic), count)
    assert sorted(message["body"] for message in found) == [str(number) for number in range(count)]
    assert {message["partition"] for message in found} == {QUEUE}
    assert [m["offset"] for m in sorted(found, key=lambda one: one["body"])] == [n * 10_000 for n in range(count)]


@pytest.mark.parametrize("asked", [0, 1])
@pytest.mark.parametrize("order", [True, "key"])
def test_static_20_the_order_of_a_queue_holds_over_processes(two: Two, topic: str, asked: int, order: Any) -> None:
    made(two, topic, *map(str, range(5)))
    assert two[asked].call("PUT", f"/v1/groups/{topic}", {"order": order}).status == 201
    found = taken(Consumer(two[asked], topic, topic), 5)
    assert [message["body"] for message in found] == [str(number) for number in range(5)]
    assert [message["offset"] for message in found] == list(range(5))


def test_static_20_without_a_partition_each_process_gives_its_segments_in_order(two: Two, topic: str) -> None:
    static = Static(two.a, topic).put(2, (A, B))
    for body, broker in (("0", B), ("1", A)):
        static.send(0, body)
        static.remap(broker, queues=[0])
    static.send(0, "2")
    two.settle(topic)
    assert two.a.call("PUT", f"/v1/groups/{topic}", {"order": True}).status == 201
    a, b = Consumer(two.a, topic, topic), Consumer(two.b, topic, topic)
    assert b.pop().bodies == [], "the first segment is not consumed"
    for consumer, body in ((a, "0"), (b, "1"), (a, "2")):
        popped = consumer.pop(wait_ms=5_000)
        assert popped.bodies == [body] and consumer.ack(popped.handles) == {}


@pytest.mark.parametrize("order", [True, "key"])
def test_static_20_a_key_that_was_sent_to_a_queue_by_its_name_keeps_its_order(two: Two, topic: str, order: Any) -> None:
    """The key leads to another queue, but its producer named this one; nothing else tells where its messages are."""
    static = Static(two.a, topic).put(2, (A, B))
    elsewhere = next(key for key in map(str, range(100)) if logical_partition(key) >= LOGICAL_PARTITIONS // 2)
    static.send(0, "0", key=elsewhere)
    static.remap(B, queues=[0])
    static.send(0, "1", key=elsewhere)
    two.settle(topic)
    assert two.a.call("PUT", f"/v1/groups/{topic}", {"order": order}).status == 201
    a, b = Consumer(two.a, topic, topic), Consumer(two.b, topic, topic)
    assert b.pop().bodies == [], "the first segment is not consumed"
    for consumer, body in ((a, "0"), (b, "1")):
        popped = consumer.pop(wait_ms=5_000)
        assert popped.bodies == [body] and consumer.ack(popped.handles) == {}


def test_static_20_acknowledgements_of_a_pop_over_stations_are_done_once(two: Two, topic: str) -> None:
    """Handles of both processes and a forged one, in a pop that goes on to a station, as JSON and as Arrow."""
    for accept in ("application/json", ARROW):
        name = f"{topic}.{len(accept)}"
        static = made(two, name, "0", "1")
        a, b = Consumer(two.a, "g", name), Consumer(two.b, "g", name)
        ours, theirs = a.pop(wait_ms=5_000), b.pop(wait_ms=5_000)
        assert (ours.bodies, theirs.bodies) == (["0"], ["1"])
        static.send(0, "2")
        static.remap(A)
        static.send(0, "3")
        two.settle(name)
        gone = ours.handles + theirs.handles
        reply = a.ask(accept, partition=QUEUE, ack=[*gone, "forged"], wait_ms=5_000, max_messages=1)
        assert reply.status == 200, reply
        if accept == ARROW:
            failed = json.loads(reply.table.schema.metadata[b"mq-failed-acks"])
            bodies = [body.decode() for body in reply.table.column("body").to_pylist()]
        else:
            failed, bodies = reply.json["failed_acks"], [one["body"] for one in reply.json["messages"]]
        assert [(one["handle"], one["code"]) for one in failed] == [("forged", "handle_invalid")]
        assert two.b.service.lanes.in_flight(b.lanes()[1]) == bodies.count("2")


def test_static_20_retried_messages_of_a_broker_that_led_before_are_reached(two: Two, topic: str) -> None:
    static = made(two, topic, "0")
    assert two.a.call("PUT", f"/v1/groups/{topic}", {"order": True}).status == 201
    a = Consumer(two.a, topic, topic)
    assert a.dead(a.pop(wait_ms=5_000).handles) == {}
    static.remap(B)
    two.settle(topic)
    sent = two.a.call("POST", f"/v1/groups/{topic}/dead-letters/replay", {"to": "retry"})
    assert sent.json["replayed"] == 1
    b = Consumer(two.b, topic, topic)
    found = b.pop(partition=QUEUE, wait_ms=10_000)
    assert found.bodies == ["0"], "the leader is at b, the retried message at a"
    assert found.messages[0]["origin"] == {"topic": topic, "partition": QUEUE, "offset": 0}


def test_static_20_a_pop_waits_where_the_leader_is(two: Two, topic: str) -> None:
    static = made(two, topic, "0", "1")
    consumer = Consumer(two.a, "g", topic)
    assert len(taken(consumer, 2)) == 2
    with ThreadPoolExecutor(1) as clients:
        waiting = clients.submit(consumer.pop, partition=QUEUE, wait_ms=20_000)
        until(lambda: two.b.service.lanes.waiting)
        static.send(0, "2")
        assert waiting.result(15).bodies == ["2"]


def test_static_20_who_serves_closed_segments_alone_sends_pops_on(two: Two, topic: str) -> None:
    made(two, topic, "0", "1")
    consumer = Consumer(two.a, "g", topic)
    bodies = []
    while len(bodies) < 2:
        found = consumer.pop(wait_ms=5_000)
        bodies += found.bodies
    assert bodies == ["0", "1"]


def test_static_20_a_takeover_of_the_old_leader_during_a_remapping_loses_nothing(two: Two, topic: str) -> None:
    """broker-a goes to process b between the two steps of a remapping, with messages in flight there."""
    static = Static(two.a, topic).put(1, (A,))
    static.send(0, "0", "1")
    assert two.a.call("PUT", f"/v1/groups/{topic}", {"order": True}).status == 201
    held = Consumer(two.a, topic, topic).pop(1, wait_ms=5_000)
    assert held.bodies == ["0"]
    static.remap(B, mode="available", seal=False)
    static.send(0, "2")
    life = two.a.service.hosting.id

    def dead(meta: Any) -> Any:
        return decide_takeover(meta.brokers, two.b.service.hosting.id, {life: meta.brokers.hosts[life].renewal})

    theirs = Static(two.b, topic)
    theirs.submit(dead)
    until(lambda: two.a.service.hosting.id != life and two.a.service.hosting.hosts(A))
    for one in (static, theirs):
        one.run(one.service.meta.refresh())
    # The process that took the broker over may have given it back before it came to the seal.
    theirs.seal()
    two.settle(topic)
    consumer = Consumer(two.b, topic, topic)
    assert consumer.ack(held.handles) == {}
    found = taken(consumer, 2)
    assert [(message["offset"], message["body"]) for message in found] == [(1, "1"), (10_000, "2")]
    assert consumer.pop(partition=QUEUE).bodies == []
