"""Topics that come, go and are expanded under a producer (ROUTE-6, ROUTE-7, SEND-2)."""

from __future__ import annotations

import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from deltamq.mq.client.produce.producer import Producer
from deltamq.mq.errors import NotFound
from deltamq.mq.routing import expand
from tests.unit.client.stub_service import StubService
from tests.unit.client.stub_topics import BROKERS, Post

MakeProducer = Callable[..., Producer]


def test_a_topic_that_a_send_creates_keeps_the_order_of_its_first_messages(
    stub: StubService, producer: Producer
) -> None:
    gate = threading.Event()
    stub.on_post = lambda post: gate.wait(30)
    futures = [producer.send_soon("fresh", str(n).encode(), key=f"k{n % 5}") for n in range(50)]
    stub.wait_for(lambda: len(stub.posts) == 1)
    gate.set()
    futures += [producer.send_soon("fresh", str(n).encode(), key=f"k{n % 5}") for n in range(50, 500)]
    for n, future in enumerate(futures):
        sent = future.result(timeout=10)
        assert stub.topics["fresh"].log(sent.partition)[sent.offset]["body"] == str(n).encode()
    by_key: dict[str, list[int]] = defaultdict(list)
    for partition in stub.topics["fresh"].route.partitions:
        for row in stub.topics["fresh"].log(partition):
            by_key[row["key"]].append(int(row["body"]))
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
    producer.send("fresh", b"x")
    assert stub.posts[-1].partition is not None


def test_bulk_into_a_topic_that_does_not_exist_yet(stub: StubService, producer: Producer) -> None:
    table = pa.table({"key": [f"k{n}" for n in range(500)], "body": [str(n).encode() for n in range(500)]})
    sent = producer.send_arrow("fresh", table)
    assert sorted(int(body) for body in stub.bodies("fresh")) == list(range(500))
    for n, place in enumerate(sent.places()):
        assert stub.topics["fresh"].log(place.partition)[place.offset]["body"] == str(n).encode()


def test_an_unknown_topic_that_no_send_creates_is_told(stub: StubService, producer: Producer) -> None:
    stub.auto_create = False
    for _ in range(2):
        with pytest.raises(NotFound) as caught:
            producer.send("nowhere", b"x")
        assert caught.value.code == "topic_not_found"
    with pytest.raises(NotFound):
        producer.send("nowhere", b"x", partition="nowhere@broker-a")
    with pytest.raises(NotFound):
        producer.partitions("nowhere")
    stub.create("nowhere", 2)
    assert producer.send("nowhere", b"x").offset == 0


def test_a_topic_made_anew_gets_its_new_route_in_order(stub: StubService, producer: Producer) -> None:
    stub.create("orders", 4)
    for n in range(20):
        producer.send("orders", b"old", key=f"k{n}")
    stub.create("orders", 1)
    gate = threading.Event()
    stub.on_post = lambda post: gate.wait(30)
    futures = [producer.send_soon("orders", str(n).encode(), key=f"k{n % 20}") for n in range(200)]
    gate.set()
    assert {future.result(timeout=10).partition for future in futures} == {"orders@broker-a"}
    by_key: dict[str, list[int]] = defaultdict(list)
    for row in stub.topics["orders"].log("orders@broker-a"):
        by_key[row["key"]].append(int(row["body"]))
    assert len(stub.bodies("orders")) == 200
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
    # The answers show that the route has changed; it is fetched in the background.
    stub.queue.wait_for(lambda: producer.partitions("orders") == ("orders@broker-a",))


def test_nothing_overtakes_what_the_service_still_has_to_route(stub: StubService, make_producer: MakeProducer) -> None:
    producer = make_producer(batch_messages_max=3)
    overtaken = threading.Event()
    gate = threading.Event()

    def hold(post: Post) -> None:
        if len(stub.posts) == 1:
            gate.wait(30)
        elif post.producer_id == stub.posts[0].producer_id:
            # The second unrouted request: what is routed meanwhile must wait for it.
            switched.wait(30)
            overtaken.wait(0.2)
        else:
            overtaken.set()

    switched = threading.Event()
    stub.on_post = hold
    first = [producer.send_soon("fresh", str(n).encode(), key="k") for n in range(6)]
    stub.wait_for(lambda: len(stub.posts) == 1)
    gate.set()
    first[0].result(timeout=30)
    stub.wait_for(lambda: len(stub.posts) == 2)
    rest = [producer.send_soon("fresh", str(n).encode(), key="k") for n in range(6, 9)]
    switched.set()
    home = {future.result(timeout=30).partition for future in [*first, *rest]}
    assert [body for partition in home for body in stub.bodies("fresh", partition)] == [
        str(n).encode() for n in range(9)
    ]
    assert stub.posts[-1].producer_id != stub.posts[0].producer_id


def test_route_06_what_is_queued_by_the_old_route_goes_to_the_new_partition_and_is_not_overtaken(
    stub: StubService, make_producer: MakeProducer
) -> None:
    old = stub.create("orders", 2).route
    new = expand(old, "orders", 4, BROKERS)
    moved = next(k for k in map(str, range(999)) if new.partition_of(k) >= 2)
    home = new.partitions[new.partition_of(moved)]
    producer = make_producer(batch_messages_max=3)
    gate, overtaken, switched = threading.Event(), threading.Event(), threading.Event()

    def hold(post: Post) -> None:
        if post.producer_id != stub.posts[0].producer_id:
            overtaken.set()
        elif len(stub.posts) == 1:
            gate.wait(30)
        elif len(stub.posts) == 2:
            switched.wait(30)
            overtaken.wait(0.2)

    stub.on_post = hold
    first = [producer.send_soon("orders", b"0", key=moved)]
    stub.wait_for(lambda: len(stub.posts) == 1)
    first += [producer.send_soon("orders", str(n).encode(), key=moved) for n in range(1, 6)]
    stub.expand("orders", 4)
    gate.set()
    assert first[0].result(timeout=30).partition == home
    # The route's age is half a minute: the answer has told that it is old.
    stub.queue.wait_for(lambda: producer.partitions("orders") == new.partitions)
    rest = [producer.send_soon("orders", str(n).encode(), key=moved) for n in range(6, 9)]
    switched.set()
    assert {future.result(timeout=30).partition for future in [*first, *rest]} == {home}
    assert stub.bodies("orders", home) == [str(n).encode() for n in range(9)]
    assert stub.posts[-1].producer_id != stub.posts[0].producer_id


def test_what_waits_in_a_delay_partition_does_not_make_the_route_old(stub: StubService, producer: Producer) -> None:
    """What is elsewhere otherwise does, as soon as the route is a second old."""
    ids: dict[str, str] = {}
    for topic in ("delayed", "moved"):
        stub.create(topic, 2)
        producer.send(topic, b"0", key="k")
        ids[topic] = stub.posts[-1].producer_id
    asked = {topic: stub.gets.count(f"/v1/topics/{topic}") for topic in ids}
    deadline = time.monotonic() + 30
    for seq in itertools.count(1):
        for topic, producer_id in ids.items():
            elsewhere = {
                "partition": f"{topic}#9@broker-a",
                "base_offset": 0,
                "count": 1,
                "delayed": topic == "delayed",
            }
            stub.answers[producer_id, seq] = {"ranges": [elsewhere], "duplicate": False, "durable": True}
            assert producer.send(topic, b"0", key="k").partition == elsewhere["partition"]
        if stub.gets.count("/v1/topics/moved") > asked["moved"]:
            break
        assert time.monotonic() < deadline, "nobody asks for the route"
        time.sleep(0.01)
    producer.close()
    assert stub.gets.count("/v1/topics/delayed") == asked["delayed"]


def test_route_07_a_named_partition_that_is_gone_is_told(stub: StubService, producer: Producer) -> None:
    gone = stub.create("orders", 4).route.partitions[3]
    producer.send("orders", b"x", partition=gone)
    stub.create("orders", 1)
    with pytest.raises(NotFound) as caught:
        producer.send("orders", b"y", partition=gone)
    assert caught.value.code == "partition_not_found"
    assert producer.send("orders", b"z", key="k").partition == "orders@broker-a"


def test_rows_whose_partition_goes_away_before_their_turn_are_split_anew(
    stub: StubService, make_producer: MakeProducer
) -> None:
    route = stub.create("orders", 4).route
    producer = make_producer(
        buffer_bytes_max=160_000, message_bytes_max=10_000, timeout_s=60, request_timeout_s=60, retries=100
    )
    key_of = {route.partition_of(str(n)): str(n) for n in range(99)}
    # Three pieces of just under half the buffer: two are sent and held, the third waits for room.
    keys = [key_of[0]] * 70 + [key_of[1]] * 70 + [key_of[0]] * 70
    table = pa.table({"key": keys, "body": [f"{n:01000}" for n in range(210)]})
    gate = threading.Event()

    def hold(post: Post) -> None:
        if post.count > 1:
            assert gate.wait(60), "the test has failed before it opened the gate"

    stub.on_post = hold
    with ThreadPoolExecutor(1) as pool:
        try:
            sending = pool.submit(producer.send_arrow, "orders", table)
            stub.wait_for(lambda: len(stub.posts) >= 2)
            stub.create("orders", 1)
            assert producer.send("orders", b"0", key=key_of[2]).partition == "orders@broker-a"
        finally:
            gate.set()
        assert sending.result(60).count == 210
    stored = [int(body) for body in stub.bodies("orders")]
    assert sorted(stored) == sorted([0, *range(210)])
    assert [n for n in stored[1:] if not 70 <= n < 140] == [*range(70), *range(140, 210)]


def test_a_topic_deleted_under_a_producer_is_told_where_no_send_creates_it(
    stub: StubService, producer: Producer
) -> None:
    stub.create("orders", 2)
    producer.send("orders", b"x", key="k")
    stub.auto_create = False
    del stub.topics["orders"]
    for _ in range(2):
        with pytest.raises(NotFound) as caught:
            producer.send("orders", b"x", key="k")
        assert caught.value.code == "topic_not_found"
    stub.create("orders", 2)
    assert producer.send("orders", b"x", key="k").offset == 0


def test_route_06_an_expansion_is_found_within_the_routes_age(stub: StubService, make_producer: MakeProducer) -> None:
    stub.create("orders", 2)
    producer = make_producer(route_age_s_max=0.01)
    producer.send("orders", b"x")
    stub.expand("orders", 4)
    while len(producer.partitions("orders")) < 4:
        producer.send("orders", b"x")
    seen = {producer.send("orders", b"x", key=f"k{n}").partition for n in range(100)}
    assert seen == set(stub.topics["orders"].route.partitions)


def test_route_07_a_partition_newer_than_the_known_route_can_be_named(stub: StubService, producer: Producer) -> None:
    stub.create("orders", 2)
    producer.send("orders", b"x")
    stub.expand("orders", 4)
    newest = stub.topics["orders"].route.partitions[3]
    assert producer.send("orders", b"x", partition=newest).partition == newest
