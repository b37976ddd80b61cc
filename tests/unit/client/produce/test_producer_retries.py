"""Whatever goes wrong, a message is stored once, and an error says what is known (SEND-2, SEND-4, SEND-5)."""

from __future__ import annotations

import itertools
import random
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable

import pyarrow as pa
import pytest

from deltamq.mq.client.produce.producer import Producer
from deltamq.mq.errors import Conflict, Overloaded, Refused, Unavailable, Unknown
from tests.unit.client.stub_service import StubService
from tests.unit.client.stub_topics import Fault

MakeProducer = Callable[..., Producer]

#: Faults after which the same request is sent again; the stub answers as the service documents it.
RETRIED = [
    Fault.DROP_BEFORE,
    Fault.DROP_AFTER,
    Fault.HALF_ANSWER,
    Fault.GARBAGE,
    Fault.BUSY,
    Fault.UNAVAILABLE,
    Fault.UNAVAILABLE_AFTER,
    Fault.INTERNAL_AFTER,
    Fault.FENCED,
    Fault.HTML_502,
]
MAY_HAVE_STORED = [fault for fault in RETRIED if fault not in (Fault.BUSY, Fault.FENCED)]


def assert_sequences_mean_one_request(stub: StubService) -> None:
    """No producer sequence was ever used for two different requests."""
    bodies: dict[tuple[str, int], set[bytes]] = defaultdict(set)
    for post in stub.posts:
        bodies[post.producer_id, post.seq].add(post.body)
    assert {len(seen) for seen in bodies.values()} == {1}


@pytest.mark.parametrize("fault", RETRIED, ids=lambda fault: fault.name)
def test_send_05_a_repeated_request_is_stored_once(stub: StubService, producer: Producer, fault: Fault) -> None:
    stub.create("orders", 1)
    stub.faults.extend([fault, fault])
    assert producer.send("orders", b"x").offset == 0
    assert stub.bodies("orders") == [b"x"]
    assert len(stub.posts) == 3
    assert len({(post.producer_id, post.seq, post.body) for post in stub.posts}) == 1
    assert producer.stats().retries == 2


def test_send_05_an_answer_that_ends_at_any_byte_repeats_nothing(
    stub: StubService, make_producer: MakeProducer
) -> None:
    stub.create("orders", 1)
    producer = make_producer(retries=1_000, wait_ms_max=1)
    producer.send("orders", b"0")
    stub.cuts.extend(range(1, 180, 2))
    sent = producer.send("orders", b"1")
    assert (sent.offset, sent.duplicate) == (1, True)
    assert stub.bodies("orders") == [b"0", b"1"]
    assert not stub.cuts


def test_send_05_a_request_without_an_answer_is_repeated_after_its_timeout(
    stub: StubService, make_producer: MakeProducer
) -> None:
    stub.create("orders", 1)
    stub.faults.append(Fault.HANG_AFTER)
    sent = make_producer(request_timeout_s=0.2).send("orders", b"x")
    assert (sent.offset, sent.duplicate) == (0, True)
    assert stub.bodies("orders") == [b"x"]


@pytest.mark.parametrize("seed", range(2))
def test_send_05_order_and_once_hold_under_any_mix_of_faults(
    stub: StubService, make_producer: MakeProducer, seed: int
) -> None:
    stub.create("orders", 3)
    draw = random.Random(seed)
    stub.faults.extend(draw.choice([*RETRIED, Fault.NONE, Fault.NONE]) for _ in range(120))
    producer = make_producer(retries=1_000, batch_messages_max=40)
    futures = [producer.send_soon("orders", str(n).encode(), key=f"k{n % 10}") for n in range(600)]
    places = [future.result(timeout=30) for future in futures]
    for n, place in enumerate(places):
        assert stub.topics["orders"].log(place.partition)[place.offset]["body"] == str(n).encode()
    assert len(stub.bodies("orders")) == 600
    by_key: dict[str, list[int]] = defaultdict(list)
    for partition in stub.topics["orders"].route.partitions:
        for row in stub.topics["orders"].log(partition):
            by_key[row["key"]].append(int(row["body"]))
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
    assert_sequences_mean_one_request(stub)


def test_send_05_sequences_count_from_0_for_each_partition(stub: StubService, producer: Producer) -> None:
    stub.create("orders", 2)
    for n in range(6):
        producer.send("orders", b"x", partition=stub.topics["orders"].route.partitions[n % 2])
    seqs: dict[str, list[int]] = defaultdict(list)
    for post in stub.posts:
        seqs[post.producer_id].append(post.seq)
    assert sorted(seqs.values()) == [[0, 1, 2], [0, 1, 2]]


def test_producer_ids_come_from_the_caller(stub: StubService, make_producer: MakeProducer) -> None:
    stub.create("orders", 2)
    numbers = itertools.count()
    producer = make_producer(new_id=lambda: f"mine-{next(numbers)}")
    producer.send("orders", b"x")
    assert stub.posts[0].producer_id.startswith("mine-")


# What an error says --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", MAY_HAVE_STORED, ids=lambda fault: fault.name)
def test_send_05_a_deadline_with_an_unresolved_request_is_unknown_never_a_failure(
    stub: StubService, make_producer: MakeProducer, fault: Fault
) -> None:
    stub.create("orders", 1)
    stub.faults.extend([fault] * 1_000)
    producer = make_producer(timeout_s=0.3, retries=10_000)
    with pytest.raises(Unknown):
        producer.send("orders", b"x")
    assert producer.stats().unknown == 1
    assert len(stub.bodies("orders")) <= 1


@pytest.mark.parametrize("fault", MAY_HAVE_STORED, ids=lambda fault: fault.name)
def test_send_05_used_up_retries_with_an_unresolved_request_are_unknown(
    stub: StubService, make_producer: MakeProducer, fault: Fault
) -> None:
    stub.create("orders", 1)
    stub.faults.extend([fault, Fault.BUSY])
    with pytest.raises(Unknown):
        make_producer(retries=1).send("orders", b"x")


def test_a_queue_that_stays_full_is_a_refusal_and_nothing_is_stored(
    stub: StubService, make_producer: MakeProducer
) -> None:
    stub.create("orders", 1)
    stub.faults.extend([Fault.BUSY] * 4)
    with pytest.raises(Overloaded) as caught:
        make_producer(retries=3).send("orders", b"x")
    assert caught.value.code == "queue_full"
    assert stub.bodies("orders") == []
    assert len(stub.posts) == 4


def test_a_refusal_is_told_at_once(stub: StubService, producer: Producer) -> None:
    stub.create("orders", 1)
    stub.faults.append(Fault.REFUSE)
    with pytest.raises(Refused) as caught:
        producer.send("orders", b"x")
    assert type(caught.value) is Refused
    assert len(stub.posts) == 1


def test_a_service_that_is_not_there_has_certainly_stored_nothing() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        with Producer(url, timeout_s=0.3, first_wait_ms=1) as producer:
            with pytest.raises(Unavailable) as caught:
                producer.send("orders", b"x")
            assert caught.value.code == "not_sent"
            assert producer.stats().unresolved == 0


def test_a_service_that_goes_away_before_a_send_has_certainly_stored_nothing() -> None:
    with StubService() as stub:
        stub.create("orders", 1)
        producer = Producer(stub.url, timeout_s=0.5, first_wait_ms=1, retries=3)
        producer.send("orders", b"x")
    with pytest.raises(Unavailable) as caught:
        producer.send("orders", b"y")
    assert caught.value.code == "connect_failed"
    assert producer.close()


def test_a_message_that_times_out_in_the_queue_was_not_sent(stub: StubService, make_producer: MakeProducer) -> None:
    stub.create("orders", 1)
    producer = make_producer(timeout_s=60, request_timeout_s=60)
    stub.faults.append(Fault.HANG_BEFORE)
    producer.send_soon("orders", b"in flight")
    stub.wait_for(lambda: len(stub.posts) == 1)
    began = time.monotonic()
    with pytest.raises(Unavailable) as caught:
        producer.send("orders", b"queued", timeout_s=0.1)
    assert caught.value.code == "not_sent"
    assert time.monotonic() - began < 30, "it does not wait for what is in flight"
    assert producer.stats().unresolved == 1


def test_a_waiting_send_in_flight_with_others_is_unknown_at_its_own_deadline(
    stub: StubService, make_producer: MakeProducer
) -> None:
    stub.create("orders", 1)
    producer = make_producer(request_timeout_s=5)
    gate = threading.Event()
    stub.on_post = lambda post: gate.wait(30)
    producer.send_soon("orders", b"0")
    stub.wait_for(lambda: len(stub.posts) == 1)
    patient = producer.send_soon("orders", b"1")
    caught: list[BaseException] = []

    def impatient() -> None:
        try:
            producer.send("orders", b"2", timeout_s=0.5)
        except Unknown as error:
            caught.append(error)

    thread = threading.Thread(target=impatient)
    thread.start()
    stub.wait_for(lambda: producer.stats().unresolved == 3)
    stub.faults.append(Fault.HANG_AFTER)
    stub.on_post = lambda post: None
    gate.set()
    thread.join(30)
    assert len(caught) == 1
    assert not patient.done()


def test_send_05_a_late_copy_of_a_request_given_up_does_not_overtake(
    stub: StubService, make_producer: MakeProducer
) -> None:
    stub.create("orders", 1)
    producer = make_producer(retries=0)
    stub.faults.append(Fault.DROP_BEFORE)
    with pytest.raises(Unknown):
        producer.send("orders", b"given up")
    assert producer.send("orders", b"next").offset == 0
    late, following = stub.posts
    assert (late.producer_id, late.seq + 1) == (following.producer_id, following.seq)
    assert stub.store(late, [{"body": b"given up"}]) is None
    assert stub.bodies("orders") == [b"next"]


# Waiting -------------------------------------------------------------------------------------------------------


def test_retry_after_is_honoured(stub: StubService, producer: Producer) -> None:
    stub.create("orders", 1)
    stub.faults.append(Fault.BUSY_SECOND)
    producer.send("orders", b"x")
    first, second = stub.posts
    assert 1.0 <= second.at - first.at < 30


def test_waits_between_attempts_grow(stub: StubService, make_producer: MakeProducer) -> None:
    stub.create("orders", 1)
    stub.faults.extend([Fault.BUSY] * 5)
    make_producer(first_wait_ms=10, wait_ms_max=10_000).send("orders", b"x")
    pauses = [b.at - a.at for a, b in itertools.pairwise(stub.posts)]
    for number, pause in enumerate(pauses):
        assert pause >= 0.01 * 2**number / 2


# Order strategies ----------------------------------------------------------------------------------------------


def test_send_02_best_tried_fails_after_its_retries_and_goes_on(stub: StubService, make_producer: MakeProducer) -> None:
    stub.create("orders", 1)
    producer = make_producer(retries=2)
    stub.faults.extend([Fault.UNAVAILABLE] * 3)
    gate = threading.Event()
    stub.on_post = lambda post: gate.wait(30)
    first = producer.send_soon("orders", b"first", key="k")
    stub.wait_for(lambda: len(stub.posts) == 1)
    second = producer.send_soon("orders", b"second", key="k")
    gate.set()
    with pytest.raises(Unknown):
        first.result()
    assert second.result().offset == 0


def test_send_02_strict_is_retried_in_place_however_often(stub: StubService, make_producer: MakeProducer) -> None:
    stub.create("orders", 2, strict=True)
    stub.faults.extend([Fault.UNAVAILABLE, Fault.BUSY, Fault.DROP_BEFORE] * 10)
    producer = make_producer(retries=1)
    assert producer.send("orders", b"x", key="k").offset == 0
    assert len(stub.posts) == 31
    assert len({post.partition for post in stub.posts}) == 1


def test_send_02_strict_stops_at_the_deadline_and_says_so_until_resumed(
    stub: StubService, make_producer: MakeProducer
) -> None:
    stub.create("orders", 1, strict=True)
    producer = make_producer(timeout_s=0.5)
    stub.faults.extend([Fault.UNAVAILABLE] * 10_000)
    first = producer.send_soon("orders", b"1", key="k")
    stub.wait_for(lambda: len(stub.posts) >= 1)
    behind = producer.send_soon("orders", b"2", key="k")
    with pytest.raises(Unknown):
        first.result()
    with pytest.raises(Conflict) as caught:
        behind.result()
    assert caught.value.code == "executor_stopped"
    for send in (producer.send, producer.send_soon):
        with pytest.raises(Conflict) as caught:
            send("orders", b"3", key="k")
        assert caught.value.code == "executor_stopped"
    with pytest.raises(Conflict):
        producer.send_arrow("orders", pa.table({"body": [b"x"], "key": ["k"]}))
    assert stub.bodies("orders") == []
    assert producer.stats().unresolved == 0
    stub.faults.clear()  # from here on, what was on its way at the deadline may still arrive: its outcome is unknown
    producer.resume("orders")
    producer.send("orders", b"4", key="k")
    assert b"4" in stub.bodies("orders")


def test_send_02_strict_does_not_stop_for_a_message_that_is_wrong(stub: StubService, producer: Producer) -> None:
    stub.create("orders", 1, strict=True)
    stub.refuses = lambda message: message["body"] == b"bad"
    with pytest.raises(Refused):
        producer.send("orders", b"bad", key="k")
    assert producer.send("orders", b"good", key="k").offset == 0


def test_send_04_a_keyless_message_moves_to_a_healthy_broker_between_tries(
    stub: StubService, make_producer: MakeProducer
) -> None:
    stub.create("orders", 2)
    producer = make_producer()
    stub.faults.append(Fault.BUSY)
    sent = producer.send("orders", b"x")
    first, second = stub.posts
    assert first.partition != second.partition == sent.partition
    assert stub.bodies("orders") == [b"x"]
    for _ in range(30):
        assert producer.send("orders", b"y").partition == sent.partition


def test_send_04_a_keyed_message_never_moves(stub: StubService, producer: Producer) -> None:
    stub.create("orders", 2)
    stub.faults.extend([Fault.BUSY] * 5)
    producer.send("orders", b"x", key="k")
    assert len({post.partition for post in stub.posts}) == 1
    stub.faults.extend([Fault.BUSY] * 3)
    producer.send("orders", b"x", partition="orders@broker-b")
    assert {post.partition for post in stub.posts[-4:]} == {"orders@broker-b"}


def test_send_05_a_keyless_message_that_may_be_stored_does_not_move(stub: StubService, producer: Producer) -> None:
    stub.create("orders", 2)
    stub.faults.extend([Fault.DROP_AFTER, Fault.BUSY, Fault.BUSY])
    producer.send("orders", b"x")
    assert len({(post.partition, post.seq, post.body) for post in stub.posts}) == 1
    assert stub.bodies("orders") == [b"x"]
