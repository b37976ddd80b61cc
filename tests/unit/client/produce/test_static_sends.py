"""Sends to static topics: by logical queue, to the host of its leader, and while queues move (STATIC-2, 10, 22)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from deltamq.mq.client.messages.message import Message
from deltamq.mq.client.produce.producer import Producer
from deltamq.mq.errors import NotFound, Unknown
from deltamq.mq.partitioners import logical_partition
from tests.unit.client.stub_service import StubService
from tests.unit.client.stub_static import StubStatic

MakeProducer = Callable[..., Producer]

A, B = "broker-a", "broker-b"
FIRST, SECOND = "0@__logical_queue_broker__", "1@__logical_queue_broker__"
#: A key of each queue.
KEYS = {
    name: next(f"k{n}" for n in range(100) if (logical_partition(f"k{n}") < 512) == (name == FIRST))
    for name in (FIRST, SECOND)
}


@pytest.fixture
def static(stub: StubService) -> StubStatic:
    return stub.create_static(2)


def begin_remap(static: StubStatic, *brokers: str) -> None:
    """Begin to move queues to these brokers; the offsets there are not decided until a seal."""
    static.world.remap(brokers, "available")


@pytest.mark.parametrize("name", [FIRST, SECOND])
def test_static_02_keys_selectors_and_names_choose_a_logical_queue(
    static: StubStatic, producer: Producer, name: str
) -> None:
    offered: list[tuple[str, ...]] = []

    def select(partitions: tuple[str, ...], message: Message, argument: Any) -> str:
        offered.append(partitions)
        return str(argument)

    sends = [
        producer.send("orders", b"0", key=KEYS[name]),
        producer.send("orders", b"1", partition=name),
        producer.send("orders", b"2", selector=select, selector_argument=name),
    ]
    assert [(sent.partition, sent.offset) for sent in sends] == [(name, 0), (name, 1), (name, 2)]
    assert offered == [(FIRST, SECOND)] and producer.partitions("orders") == (FIRST, SECOND)


def test_static_22_a_physical_partition_is_none_of_the_topic_for_clients(
    static: StubStatic, producer: Producer
) -> None:
    with pytest.raises(NotFound) as caught:
        producer.send("orders", b"x", partition="orders@broker-a")
    assert f"it has {FIRST}, {SECOND}" in caught.value.detail


def test_static_10_messages_whose_offsets_are_not_decided_have_none(static: StubStatic, producer: Producer) -> None:
    assert producer.send("orders", b"0", key=KEYS[FIRST]).offset == 0
    begin_remap(static, B)
    assert producer.send("orders", b"1", key=KEYS[FIRST]).offset == -1
    batch = producer.send_batch("orders", [Message(b"x", key=key) for key in (KEYS[FIRST], KEYS[SECOND]) * 3])
    assert [sent.offset for sent in batch if sent.partition == FIRST] == [-1, -1, -1]
    assert [sent.offset for sent in batch if sent.partition == SECOND] == [0, 1, 2]
    table = pa.table({"body": [b"x"] * 3, "key": [KEYS[FIRST]] * 3})
    assert {sent.offset for sent in producer.send_arrow("orders", table)} == {-1}
    static.world.seal()
    assert producer.send("orders", b"9", key=KEYS[FIRST]).offset == 10_007


def test_static_10_calls_that_share_a_request_all_learn_that_nothing_is_decided(
    stub: StubService, static: StubStatic, producer: Producer
) -> None:
    producer.send("orders", b"0", key=KEYS[FIRST])
    begin_remap(static, B)
    with stub.changed:
        # The first request waits for the lock of the stub; the others gather into the next one.
        futures = [producer.send_soon("orders", b"x", key=KEYS[FIRST]) for _ in range(9)]
    assert [future.result(10).offset for future in futures] == [-1] * 9


def test_static_08_sends_go_on_while_queues_move_and_keys_keep_their_order(
    stub: StubService, static: StubStatic, make_producer: MakeProducer
) -> None:
    producer = make_producer(route_age_s_max=0.001)
    futures = []
    for turn in range(40):
        with stub.changed:
            static.remap({"brokers": [A, B][turn % 2 :][:1], "mode": "strict" if turn % 3 else "available"})
        futures += [producer.send_soon("orders", f"{turn}".encode(), key=key) for key in KEYS.values()]
    for name in KEYS:
        queue = static.queue(name)
        assert queue is not None
        assert all(future.result(10) for future in futures)
        bodies = [int(row["body"]) for one in queue.segments for row in static.rows.get(one.partition, [])]
        assert bodies == list(range(40))
    for at in range(len(KEYS)):
        # A request between the beginning of an available remapping and its seal learns of no offset (STATIC-10).
        decided = [offset for future in futures[at :: len(KEYS)] if (offset := future.result(10).offset) >= 0]
        assert len(decided) > 1 and decided == sorted(set(decided))


def test_static_13_sends_go_to_the_host_of_the_leader_and_follow_it(
    stub: StubService, static: StubStatic, make_producer: MakeProducer
) -> None:
    with StubService() as other:
        stub.beside(other)
        producer = make_producer(route_age_s_min=0.0)

        def sends_reach(host: StubService, name: str) -> None:
            """Send until a request of this queue reaches the host; the clients learn of it in the background."""
            posts = len(host.posts)
            while len(host.posts) == posts:
                producer.send("orders", b"x", key=KEYS[name])

        sends_reach(stub, FIRST)
        sends_reach(other, SECOND)
        # The answers without offsets tell that the queue is moving.
        begin_remap(static, B)
        sends_reach(other, FIRST)
        static.world.seal()
        sends_reach(other, FIRST)


def test_static_22_messages_without_a_key_pass_over_a_queue_that_cannot_be_had(
    static: StubStatic, producer: Producer
) -> None:
    static.lose_mapping(A)
    assert {producer.send("orders", b"x").partition for _ in range(20)} == {SECOND}
    assert producer.send_batch("orders", [b"x"] * 20).per_partition() == {SECOND: 20}


def test_static_22_a_keyed_send_to_a_queue_that_cannot_be_had_fails_and_goes_nowhere_else(
    static: StubStatic, make_producer: MakeProducer
) -> None:
    static.lose_mapping(A)
    producer = make_producer(retries=2)
    with pytest.raises(Unknown) as caught:
        producer.send("orders", b"x", key=KEYS[FIRST])
    assert "queue_unserved" in caught.value.detail
    assert not any(static.rows.values())


def test_static_02_a_long_table_is_sent_to_logical_queues(static: StubStatic, producer: Producer) -> None:
    static.append(FIRST, [{"body": b"0"}])
    static.remap({"brokers": [B], "mode": "available"})
    table = pa.table({"body": [b"%d" % n for n in range(50)], "key": [f"k{n}" for n in range(50)]})
    sent = producer.send_table("orders", table, progress=False)
    assert sent.count == 50
    assert min(one.offset for one in sent if one.partition == FIRST) == 10_000
    assert min(one.offset for one in sent if one.partition == SECOND) == 0
