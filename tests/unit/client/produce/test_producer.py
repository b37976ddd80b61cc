"""Sending: one executor a partition, batches by themselves, selectors, limits, the end (SEND-1, SEND-3, SEND-6)."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable

import pyarrow as pa
import pytest

from deltamq.mq.client.messages.message import Message, PartlySent
from deltamq.mq.client.produce.producer import Producer
from deltamq.mq.errors import (
    NotFound,
    OffsetMismatch,
    Overloaded,
    Refused,
    TooLarge,
    Unavailable,
)
from tests.unit.client.stub_service import StubService
from tests.unit.client.stub_topics import Fault, Post

MakeProducer = Callable[..., Producer]


def test_a_send_says_where_the_message_is(stub: StubService, producer: Producer) -> None:
    stub.create("orders", 2)
    first = producer.send("orders", b"one", key="k")
    second = producer.send("orders", "two", key="k", tag="T", headers={"h": "v"}, message_id="m-1")
    assert (first.offset, second.offset) == (0, 1)
    assert first.partition == second.partition
    stored = stub.topics["orders"].log(first.partition)
    assert [row["body"] for row in stored] == [b"one", b"two"]
    assert (stored[1]["tag"], stored[1]["headers"], stored[1]["message_id"]) == ("T", {"h": "v"}, "m-1")


def test_route_05_the_client_routes_as_the_service_would(stub: StubService, producer: Producer) -> None:
    topic = stub.create("orders", 4)
    executors: dict[str, set[str]] = defaultdict(set)
    for key in ("a", "b", "c", "ключ", ""):
        sent = producer.send("orders", b"x", key=key)
        assert sent.partition == topic.route.partitions[topic.route.partition_of(key)]
        executors[stub.posts[-1].producer_id].add(sent.partition)
    assert all(len(partitions) == 1 for partitions in executors.values()), "an executor for each partition"


def test_route_05_messages_without_a_key_are_spread(stub: StubService, producer: Producer) -> None:
    stub.create("orders", 2)
    counts = [producer.send("orders", b"x").partition for _ in range(200)]
    assert 50 < counts.count("orders@broker-a") < 150


def test_route_05_messages_without_a_key_that_wait_together_share_a_request(
    stub: StubService, make_producer: MakeProducer
) -> None:
    stub.create("orders", 4)
    producer = make_producer(linger_ms=60_000, batch_messages_max=300)  # which is sent when it is full
    producer.partitions("orders")
    futures = [producer.send_soon("orders", b"x") for _ in range(300)]
    assert len({future.result().partition for future in futures}) == 1 and len(stub.posts) == 1


def test_route_07_a_named_partition_wins_over_the_key(stub: StubService, producer: Producer) -> None:
    stub.create("orders", 4)
    for partition in stub.topics["orders"].route.partitions:
        assert producer.send("orders", b"x", key="k", partition=partition).partition == partition
    with pytest.raises(NotFound) as caught:
        producer.send("orders", b"x", partition="orders#9@broker-a")
    assert caught.value.code == "partition_not_found"


def test_send_01_what_arrives_during_a_request_is_the_next_batch_in_order(
    stub: StubService, make_producer: MakeProducer
) -> None:
    stub.create("orders", 1)
    producer = make_producer()
    gate = threading.Event()
    stub.on_post = lambda post: gate.wait(30)
    futures = [producer.send_soon("orders", b"0")]
    stub.wait_for(lambda: len(stub.posts) == 1)
    futures += [producer.send_soon("orders", str(n).encode()) for n in range(1, 500)]
    gate.set()
    assert [f.result().offset for f in futures] == list(range(500))
    assert [post.count for post in stub.posts] == [1, 499]
    assert [post.seq for post in stub.posts] == [0, 1]


def test_send_01_executors_of_different_partitions_run_in_parallel(stub: StubService, producer: Producer) -> None:
    stub.create("orders", 2)
    both = threading.Barrier(2)
    stub.on_post = lambda post: both.wait(30)
    partitions = stub.topics["orders"].route.partitions
    futures = [producer.send_soon("orders", b"x", partition=partition) for partition in partitions]
    assert {f.result().partition for f in futures} == set(partitions)
    assert len({post.producer_id for post in stub.posts}) == 2


def test_send_01_one_request_of_a_partition_at_a_time(stub: StubService, producer: Producer) -> None:
    stub.create("orders", 1)
    at_once: list[int] = []
    running = [0]
    lock = threading.Lock()

    def count(post: Post) -> None:
        with lock:
            running[0] += 1
            at_once.append(running[0])
        threading.Event().wait(0.002)
        with lock:
            running[0] -= 1

    stub.on_post = count
    threads = [threading.Thread(target=producer.send, args=("orders", b"x")) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(at_once) == 1
    assert len(stub.bodies("orders")) == 20


def test_send_01_many_threads_keep_each_threads_order(stub: StubService, producer: Producer) -> None:
    stub.create("orders", 3)

    def run(thread: int) -> None:
        for n in range(40):
            if n % 10 == 0:
                producer.send("orders", f"{thread}:{n}", key=f"k{thread}")
            else:
                producer.send_soon("orders", f"{thread}:{n}", key=f"k{thread}")

    threads = [threading.Thread(target=run, args=(thread,)) for thread in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert producer.flush(10)
    seen: dict[str, list[int]] = {}
    for body in stub.bodies("orders"):
        thread, _, n = body.decode().partition(":")
        seen.setdefault(thread, []).append(int(n))
    assert seen == {str(thread): list(range(40)) for thread in range(8)}


def test_linger_gathers_a_batch_and_a_full_batch_does_not_wait(stub: StubService, make_producer: MakeProducer) -> None:
    stub.create("orders", 1)
    producer = make_producer(linger_ms=10_000, batch_messages_max=5)
    futures = [producer.send_soon("orders", b"x") for _ in range(5)]
    assert [f.result(timeout=30).offset for f in futures] == [0, 1, 2, 3, 4]
    assert [post.count for post in stub.posts] == [5]


def test_a_waiting_send_does_not_linger(stub: StubService, make_producer: MakeProducer) -> None:
    stub.create("orders", 1)
    # It would time out before it has lingered.
    make_producer(linger_ms=30_000, timeout_s=25).send("orders", b"x")


def test_batches_respect_their_bounds(stub: StubService, make_producer: MakeProducer) -> None:
    stub.create("orders", 1)
    producer = make_producer(batch_messages_max=10, batch_bytes_max=20_000)
    sent = producer.send_batch("orders", [b"x"] * 25)
    assert [s.offset for s in sent] == list(range(25))
    assert max(post.count for post in stub.posts) <= 10
    stub.posts.clear()
    producer.send_batch("orders", [b"y" * 9_000] * 6)
    assert max(post.count for post in stub.posts) <= 2


# Batches -------------------------------------------------------------------------------------------------------


def test_send_06_a_batch_makes_one_request_for_each_partition(stub: StubService, producer: Producer) -> None:
    stub.create("orders", 4)
    messages = [Message(str(n).encode(), key=f"k{n}") for n in range(300)]
    sent = producer.send_batch("orders", messages)
    assert sent.count == 300
    assert len(stub.posts) == 4
    places = sent.places()
    assert len(places) == 300
    for n, place in enumerate(places):
        assert stub.topics["orders"].log(place.partition)[place.offset]["body"] == str(n).encode()
    assert sum(sent.per_partition().values()) == 300


def test_an_empty_batch_is_nothing(stub: StubService, producer: Producer) -> None:
    stub.create("orders", 1)
    assert producer.send_batch("orders", []).count == 0
    assert producer.send_arrow("orders", pa.table({"body": pa.array([], pa.binary())})).count == 0
    assert stub.posts == []


def test_arrow_rows_arrive_by_key_in_order(stub: StubService, make_producer: MakeProducer) -> None:
    stub.create("orders", 4)
    producer = make_producer(buffer_bytes_max=5 * 2**20, batch_bytes_max=20_000)
    keys = [f"k{n % 11}" for n in range(5_000)]
    table = pa.table({"key": keys, "body": [str(n).encode() for n in range(5_000)]})
    sent = producer.send_arrow("orders", pa.concat_tables([table.slice(0, 7), table.slice(7)]))
    assert sent.count == 5_000
    for n, place in enumerate(sent.places()):
        row = stub.topics["orders"].log(place.partition)[place.offset]
        assert (row["body"], row["key"]) == (str(n).encode(), keys[n])
    by_key: dict[str, list[int]] = {}
    for partition in stub.topics["orders"].route.partitions:
        for row in stub.topics["orders"].log(partition):
            by_key.setdefault(row["key"], []).append(int(row["body"]))
    assert all(numbers == sorted(numbers) for numbers in by_key.values())


def test_arrow_rows_for_a_named_partition(stub: StubService, producer: Producer) -> None:
    stub.create("orders", 2)
    sent = producer.send_arrow("orders", pa.record_batch({"body": [b"a", b"b"]}), partition="orders@broker-b")
    assert [(r.partition, r.base_offset, r.count) for r in sent.ranges] == [("orders@broker-b", 0, 2)]
    with pytest.raises(NotFound):
        producer.send_arrow("orders", pa.record_batch({"body": [b"a"]}), partition="orders@nowhere")


def test_a_batch_stored_in_part_says_which_part(stub: StubService, make_producer: MakeProducer) -> None:
    stub.create("orders", 2)
    producer = make_producer(retries=0)
    route = stub.topics["orders"].route
    bad = route.partitions[1]
    stub.refuses = lambda message: route.partition_of(message["key"]) == 1
    with pytest.raises(PartlySent) as caught:
        producer.send_batch("orders", [Message(str(n).encode(), key=f"k{n}") for n in range(100)])
    stored = {int(stub.topics["orders"].log(s.partition)[s.offset]["body"]) for s in caught.value.sent}
    failed = {int(i) for failure in caught.value.failures for i in failure.indexes}
    assert stored | failed == set(range(100))
    assert not stored & failed
    assert {len(stub.bodies("orders", bad)), len(failed)} == {0, 100 - len(stored)}


def test_a_bad_message_does_not_fail_its_neighbours(stub: StubService, producer: Producer) -> None:
    stub.create("orders", 1)
    gate = threading.Event()
    stub.on_post = lambda post: gate.wait(30)
    stub.refuses = lambda message: message["body"] == b"bad"
    first = producer.send_soon("orders", b"first")
    stub.wait_for(lambda: len(stub.posts) == 1)
    futures = [producer.send_soon("orders", body) for body in (b"a", b"b", b"bad", b"c", b"d")]
    gate.set()
    assert first.result().offset == 0
    with pytest.raises(Refused) as caught:
        futures[2].result()
    assert caught.value.code == "invalid_value"
    assert [f.result().offset for n, f in enumerate(futures) if n != 2] == [1, 2, 3, 4]
    assert stub.bodies("orders") == [b"first", b"a", b"b", b"c", b"d"]


def test_text_that_cannot_be_encoded_fails_only_itself(stub: StubService, producer: Producer) -> None:
    stub.create("orders", 1)
    gate = threading.Event()
    stub.on_post = lambda post: gate.wait(30)
    first = producer.send_soon("orders", b"first")
    stub.wait_for(lambda: len(stub.posts) == 1)
    good, bad = producer.send_soon("orders", b"good"), producer.send_soon("orders", b"x", tag="\ud800")
    gate.set()
    assert (first.result().offset, good.result().offset) == (0, 1)
    with pytest.raises(Refused) as caught:
        bad.result()
    assert caught.value.code == "invalid_message"


# Selectors -----------------------------------------------------------------------------------------------------


def test_send_03_a_selector_chooses_the_partition(stub: StubService, producer: Producer) -> None:
    stub.create("orders", 4)
    partitions = stub.topics["orders"].route.partitions

    def pick(offered: tuple[str, ...], message: Message, argument: object) -> str:
        assert offered == partitions
        assert message.body == b"x"
        assert isinstance(argument, int)
        return offered[argument]

    assert producer.send("orders", b"x", selector=pick, selector_argument=2).partition == partitions[2]
    assert producer.send_soon("orders", b"x", selector=pick, selector_argument=3).result().partition == partitions[3]
    producer.send_oneway("orders", b"x", selector=pick, selector_argument=1)
    assert producer.flush()
    assert stub.bodies("orders", partitions[1]) == [b"x"]


@pytest.mark.parametrize(
    "selector",
    [lambda p, m, a: None, lambda p, m, a: 1 / 0, lambda p, m, a: "orders@nowhere", lambda p, m, a: 0],
    ids=["nothing", "raises", "no partition of the topic", "an index"],
)
def test_send_03_a_selector_that_fails_fails_the_send_before_anything_is_sent(
    stub: StubService, producer: Producer, selector: Callable[..., str]
) -> None:
    stub.create("orders", 2)
    for send in (producer.send, producer.send_soon, producer.send_oneway):
        with pytest.raises(Refused) as caught:
            send("orders", b"x", selector=selector)
        assert caught.value.code == "selector_failed"
    assert stub.posts == []
    assert producer.stats().unresolved == 0


@pytest.mark.threads
def test_send_03_a_selectors_time_counts_against_the_timeout(stub: StubService, make_producer: MakeProducer) -> None:
    stub.create("orders", 2)

    def slow(partitions: tuple[str, ...], message: Message, argument: object) -> str:
        threading.Event().wait(0.3)
        return partitions[0]

    with pytest.raises(Unavailable) as caught:
        make_producer(timeout_s=0.2).send("orders", b"x", selector=slow)
    assert caught.value.code == "not_sent"
    assert stub.posts == []


# Limits --------------------------------------------------------------------------------------------------------


def test_send_06_an_oversized_message_is_refused_before_it_is_sent(
    stub: StubService, make_producer: MakeProducer
) -> None:
    stub.create("orders", 1)
    producer = make_producer(message_bytes_max=1_000)
    big = b"x" * 1_001
    for send in (producer.send, producer.send_soon, producer.send_oneway):
        with pytest.raises(TooLarge):
            send("orders", big)
    with pytest.raises(TooLarge) as caught:
        producer.send_batch("orders", [b"small", big])
    assert caught.value.__notes__ == ["message 1 of the batch"]
    with pytest.raises(TooLarge):
        producer.send_arrow("orders", pa.table({"body": [b"small", big]}))
    assert (stub.posts, stub.gets) == ([], [])
    assert producer.send("orders", b"x" * 1_000).offset == 0


@pytest.mark.parametrize("topic", ["", "a b", "%RETRY%g_t", "rmq_sys_x", "x" * 250])
def test_model_05_names_that_no_client_may_produce_to_are_refused_here(
    stub: StubService, producer: Producer, topic: str
) -> None:
    with pytest.raises(Refused):
        producer.send(topic, b"x")
    assert stub.gets == []


def test_a_full_buffer_raises_when_told_to_and_leaves_no_trace(stub: StubService, make_producer: MakeProducer) -> None:
    stub.create("orders", 1)
    producer = make_producer(buffer_bytes_max=10_000, message_bytes_max=8_000, when_full="raise")
    stub.faults.append(Fault.HANG_BEFORE)
    producer.send_soon("orders", b"x" * 8_000)
    with pytest.raises(Overloaded) as caught:
        producer.send_soon("orders", b"x" * 8_000)
    assert caught.value.code == "buffer_full"
    assert producer.stats().unresolved == 1


def test_a_full_buffer_waits_until_there_is_room(stub: StubService, make_producer: MakeProducer) -> None:
    stub.create("orders", 1)
    producer = make_producer(buffer_bytes_max=20_000, message_bytes_max=8_000)
    futures = [producer.send_soon("orders", bytes([n]) * 8_000) for n in range(30)]
    assert [f.result().offset for f in futures] == list(range(30))
    assert producer.stats().unresolved == 0


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("batch_messages_max", 0),
        ("batch_bytes_max", 10**12),
        ("buffer_bytes_max", 10),
        ("requests_in_flight_max", 0),
        ("linger_ms", -1),
        ("when_full", "drop"),
        ("timeout_s", 0),
    ],
)
def test_settings_out_of_their_bounds_are_refused(make_producer: MakeProducer, setting: str, value: object) -> None:
    with pytest.raises(Refused) as caught:
        make_producer(**{setting: value})
    assert caught.value.field == setting


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://[::1", "no url at all"])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(Refused) as caught:
        Producer(url)
    assert caught.value.field == "url"


# Compare and append --------------------------------------------------------------------------------------------


def test_an_expected_offset_is_compared_by_the_service(stub: StubService, producer: Producer) -> None:
    partition = stub.create("orders", 1).route.partitions[0]
    with pytest.raises(Refused) as refused:
        producer.send("orders", b"x", expected_offset=0)
    assert refused.value.field == "expected_offset"
    assert producer.send("orders", b"x", partition=partition, expected_offset=0).offset == 0
    assert producer.send("orders", b"x" * 100_000, partition=partition, expected_offset=1).offset == 1
    with pytest.raises(OffsetMismatch) as missed:
        producer.send("orders", b"x", partition=partition, expected_offset=7)
    assert missed.value.extra["end_offset"] == 2


def test_a_send_with_an_expected_offset_shares_its_request_with_nothing(stub: StubService, producer: Producer) -> None:
    partition = stub.create("orders", 1).route.partitions[0]
    gate = threading.Event()
    stub.on_post = lambda post: gate.wait(30)
    first = producer.send_soon("orders", b"0")
    stub.wait_for(lambda: len(stub.posts) == 1)
    futures = [producer.send_soon("orders", b"1"), producer.send_soon("orders", b"2")]
    thread = threading.Thread(
        target=producer.send, args=("orders", b"3"), kwargs={"partition": partition, "expected_offset": 3}
    )
    thread.start()
    stub.wait_for(lambda: producer.stats().unresolved == 4)
    futures.append(producer.send_soon("orders", b"4"))
    gate.set()
    thread.join(30)
    assert [first.result().offset, *(f.result().offset for f in futures)] == [0, 1, 2, 4]
    assert [post.count for post in stub.posts] == [1, 2, 1, 1]
