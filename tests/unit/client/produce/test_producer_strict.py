"""A producer of a strict topic while it is expanded: no message of a key overtakes another (SPEC SEND-2, ROUTE-6)."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pyarrow as pa

from deltamq.mq.client.messages.message import Message
from deltamq.mq.client.produce.producer import Producer
from tests.unit.client.stub_service import StubService
from tests.unit.client.stub_topics import Fault

MakeProducer = Callable[..., Producer]


def test_route_06_in_a_strict_topic_the_service_routes_by_key(stub: StubService, producer: Producer) -> None:
    stub.create("orders", 2, strict=True)
    producer.send("orders", b"0", key="k")
    producer.send_batch("orders", [Message(b"1", "k"), Message(b"2", "k")])
    producer.send_arrow("orders", pa.table({"body": [b"3"], "key": ["k"]}))
    producer.send_table("orders", pa.table({"body": [b"4"], "key": ["k"]}), progress=False)
    assert [post.partition for post in stub.posts] == [None] * 4
    placed = stub.topics["orders"].route.partitions[stub.topics["orders"].route.partition_of("k")]
    assert stub.bodies("orders", placed) == [b"0", b"1", b"2", b"3", b"4"]


def test_route_07_a_partition_that_the_caller_names_is_named_in_a_strict_topic_too(
    stub: StubService, producer: Producer
) -> None:
    stub.create("orders", 2, strict=True)
    assert producer.send("orders", b"0", key="k", partition="orders@broker-b").partition == "orders@broker-b"
    assert producer.send("orders", b"1", key="k", partition="orders@broker-a").partition == "orders@broker-a"
    producer.send("orders", b"2")
    assert [post.partition for post in stub.posts][:2] == ["orders@broker-b", "orders@broker-a"]
    assert stub.posts[2].partition is not None, "a message without a key has nothing to overtake"


def test_send_02_a_named_message_and_a_routed_one_are_not_of_one_request(
    stub: StubService, make_producer: MakeProducer
) -> None:
    stub.create("orders", 1, strict=True)
    producer = make_producer(linger_ms=20)
    futures = [
        producer.send_soon("orders", b"%d" % at, key="k", partition="orders@broker-a" if at % 2 else None)
        for at in range(4)
    ]
    assert [future.result(10).offset for future in futures] == [0, 1, 2, 3]
    assert {post.partition for post in stub.posts} == {None, "orders@broker-a"}


def test_route_06_after_an_expansion_new_executors_wait_for_what_was_queued_by_the_old_route(
    stub: StubService, make_producer: MakeProducer
) -> None:
    topic = stub.create("orders", 1, strict=True)
    keys = [f"k{at}" for at in range(40)]
    producer = make_producer(route_age_s_max=0.05, batch_messages_max=8)
    gate = threading.Event()
    stub.on_post = lambda post: gate.wait(4) and None
    futures = [producer.send_soon("orders", b"0", key=key) for key in keys]
    stub.wait_for(lambda: len(stub.posts) == 1)
    stub.expand("orders", 2)
    stub.queue.wait_for(lambda: producer.partitions("orders") == topic.route.partitions)
    futures += [producer.send_soon("orders", b"1", key=key) for key in keys]
    assert len(stub.posts) == 1, "the first request by the old route is still under way"
    gate.set()
    for future in futures:
        future.result(10)
    stored = [row for partition in topic.route.partitions for row in topic.log(partition)]
    for key in keys:
        mine = sorted((row["append_time"], row["body"]) for row in stored if row["key"] == key)
        assert [body for _, body in mine] == [b"0", b"1"]


def test_send_02_a_strict_topic_is_retried_by_the_same_request_wherever_it_goes(
    stub: StubService, producer: Producer
) -> None:
    stub.create("orders", 2, strict=True)
    stub.faults.extend([Fault.DROP_AFTER, Fault.UNAVAILABLE, Fault.FENCED])
    assert producer.send("orders", b"0", key="k").duplicate
    assert len({post.body for post in stub.posts}) == 1


def test_send_03_a_selector_keeps_what_the_message_has(stub: StubService, producer: Producer) -> None:
    stub.create("orders", 2)
    message = Message(b"0", "k", delay_ms=5_000, message_id="m-1")
    chosen = producer.send_soon("orders", message, selector=lambda partitions, message, _: partitions[1]).result(10)
    assert chosen.partition == "orders@broker-b"
    (stored,) = stub.topics["orders"].log("orders@broker-b")
    assert (stored["delay_ms"], stored["message_id"]) == (5_000, "m-1")
