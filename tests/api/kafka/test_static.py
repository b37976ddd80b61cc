"""Kafka's clients and static topics: partition i is logical queue i, also while queues move (SPEC KAFKA-10)."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient, NewPartitions, OffsetSpec

from deltamq.api.kafka.messages.errors import ErrorCode
from deltamq.api.kafka.messages.log_messages import (
    InitProducerIdRequest,
    ProducePartition,
    ProduceRequest,
    ProduceTopic,
)
from deltamq.api.kafka.records.columns import Records
from deltamq.api.kafka.records.encode import encode_records
from deltamq.api.ports import Ports
from deltamq.mq.meta.static_topics import decide_remap
from tests.api.kafka.groups.test_offsets_topic import commits
from tests.api.kafka.raw_client import RawClient
from tests.api.running import Api, config_for, running, until
from tests.api.static_calls import StaticTopic, name_of
from tests.faulty_store import faulty_disk
from tests.free_ports import free_port

TIMEOUT_S = 30
QUEUES = 4
A, B = "broker-a", "broker-b"
LONG_AGO_MS = 1_000


@dataclass
class Two:
    """Two services with Kafka doors: `a` serves broker-a, `b` broker-b."""

    apis: tuple[Api, Api]
    ports: tuple[int, int]

    @property
    def servers(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> Iterator[Two]:
    folder, ports = tmp_path_factory.mktemp("two"), (free_port(), free_port())
    with contextlib.ExitStack() as stack:
        apis = [
            stack.enter_context(
                running(config_for(folder, brokers=(broker,), kafka_port=port), Ports(store=faulty_disk(folder)))
            )
            for broker, port in zip((A, B), ports, strict=True)
        ]
        until(lambda: all(api.service.meta.now.brokers.available == (A, B) for api in apis))
        yield Two((apis[0], apis[1]), ports)


@pytest.fixture
def pair(two, topic) -> list[StaticTopic]:
    found = [StaticTopic(api, topic) for api in two.apis]
    assert found[0].put(QUEUES, brokers=[A, B]).status == 201
    until(lambda: topic in two.apis[1].service.meta.now.topics.topics)
    return found


class Sender(threading.Thread):
    """An idempotent librdkafka producer that sends to all queues in turn until it is ended."""

    def __init__(self, servers: str, topic: str, name: str) -> None:
        super().__init__(daemon=True)
        self.failed: list[object] = []
        settings = {
            "log_level": 0,
            "enable.idempotence": True,
            "linger.ms": 1,
            "retry.backoff.ms": 20,
            "message.timeout.ms": 60_000,
        }
        self._producer = Producer({"bootstrap.servers": servers, "error_cb": self.failed.append, **settings})
        self._topic, self._name, self._ending = topic, name, threading.Event()
        self.places: dict[str, tuple[int, int]] = {}
        self.errors: list[object] = []
        self.start()

    def run(self) -> None:
        number = 0
        while not self._ending.is_set():
            body = f"{self._name} {number}"
            self._producer.produce(self._topic, body, partition=number % QUEUES, on_delivery=self._told(body))
            self._producer.poll(0.002)
            number += 1
        assert self._producer.flush(60) == 0

    def _told(self, body: str):
        def told(error, message) -> None:
            if error is not None:
                self.errors.append((body, error))
            else:
                self.places[body] = message.partition(), message.offset()

        return told

    def end(self) -> dict[str, tuple[int, int]]:
        self._ending.set()
        self.join(90)
        assert not self.is_alive() and not self.errors, self.errors[:5]
        return self.places


def read(servers: str, topic: str, count: int) -> dict[int, list[tuple[int, str]]]:
    """Read all queues from their beginnings."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "unused", "enable.auto.commit": False})
    try:
        consumer.assign([Place(topic, index, 0) for index in range(QUEUES)])
        found: dict[int, list[tuple[int, str]]] = {index: [] for index in range(QUEUES)}
        deadline = time.monotonic() + TIMEOUT_S
        while sum(map(len, found.values())) < count and time.monotonic() < deadline:
            for one in consumer.consume(1_000, 0.1):
                assert one.error() is None, one.error()
                found[one.partition()].append((one.offset(), one.value().decode()))
        return found
    finally:
        consumer.close()


def test_kafka_10_partition_i_is_logical_queue_i(two, pair, topic) -> None:
    admin = AdminClient({"bootstrap.servers": two.servers})
    shown = admin.list_topics(topic, timeout=TIMEOUT_S)
    nodes = {node: one.port for node, one in shown.brokers.items()}
    leaders = [nodes[shown.topics[topic].partitions[index].leader] for index in range(QUEUES)]
    of_queue = dict(zip((A, B), two.ports, strict=True))
    assert leaders == [of_queue[pair[0].chains()[index].leader.broker] for index in range(QUEUES)]
    pair[0].send_to(2, "from REST")
    producer = Producer({"bootstrap.servers": two.servers})
    told: list[tuple[int, int]] = []
    for index in (2, 1):
        producer.produce(
            topic, f"to {index}", partition=index, on_delivery=lambda _, m: told.append((m.partition(), m.offset()))
        )
        assert producer.flush(TIMEOUT_S) == 0
    assert told == [(2, 1), (1, 0)]
    expected = {0: [], 1: [(0, "to 1")], 2: [(0, "from REST"), (1, "to 2")], 3: []}
    assert read(two.servers, topic, 3) == expected
    assert pair[1].stored() == expected
    (refused,) = admin.create_partitions([NewPartitions(topic, 9)]).values()
    with pytest.raises(KafkaException) as error:
        refused.result(TIMEOUT_S)
    assert error.value.args[0].code() == ErrorCode.POLICY_VIOLATION


@pytest.mark.promise("PORT-5")
@pytest.mark.parametrize("mode", ["strict", pytest.param("available", marks=pytest.mark.long)])
def test_kafka_10_while_queues_move_all_is_stored_once_in_order_and_where_it_was_told(two, pair, topic, mode) -> None:
    senders = [Sender(two.servers, topic, name) for name in ("p", "q")]
    for at, brokers in enumerate([(B,), (A,), (A, B)]):
        counts = [len(one.places) for one in senders]
        until(lambda c=counts: all(len(s.places) >= n + 40 for s, n in zip(senders, c, strict=True)), 60)
        assert pair[at % 2].remapped(*brokers, mode=mode)
    counts = [len(one.places) for one in senders]
    until(lambda: all(len(s.places) >= n + 40 for s, n in zip(senders, counts, strict=True)), 60)
    sent = {body: place for one in senders for body, place in one.end().items()}
    stored = pair[0].stored()
    assert {body: (queue, offset) for queue, rows in stored.items() for offset, body in rows} == sent
    assert sum(map(len, stored.values())) == len(sent), "nothing twice"
    assert read(two.servers, topic, len(sent)) == stored, "read over segments and holes"
    for rows in stored.values():
        assert [offset for offset, _ in rows] == sorted(offset for offset, _ in rows)
        for name in ("p", "q"):
            numbers = [int(body[2:]) for _, body in rows if body.startswith(name)]
            assert numbers == sorted(numbers)


def _batch(producer: int, base: int, *bodies: str) -> bytes:
    records = Records(
        key=pa.nulls(len(bodies), pa.binary()),
        value=pa.array([body.encode() for body in bodies], pa.binary()),
        headers=None,
        time_ms=np.full(len(bodies), 1_700_000_000_000, dtype=np.int64),
    )
    return encode_records(records, base_offset=0, producer=(producer, 0 if producer >= 0 else -1, base))


def _sent(client: RawClient, topic: str, batch: bytes, queue: int = 0, timeout_ms: int = 20_000) -> tuple[int, int]:
    asked = ProduceRequest(
        None, -1, timeout_ms, [ProduceTopic(name=topic, partitions=[ProducePartition(queue, batch)])]
    )
    (one,) = client.ask(asked).topics[0].partitions
    return one.error_code, one.base_offset


@pytest.mark.parametrize("mode", ["strict", "available"])
def test_static_21_a_batch_is_recognised_after_its_queue_has_moved(two, pair, topic, mode) -> None:
    with RawClient(two.ports[0]) as first, RawClient(two.ports[1]) as second:
        producer = first.ask(InitProducerIdRequest(None, 1_000)).producer_id
        assert _sent(first, topic, _batch(producer, 0, "a", "b")) == (0, 0)
        assert _sent(first, topic, _batch(producer, 2, "c")) == (0, 2)
        assert pair[0].remapped(B, queues=[0], mode=mode)
        begin = 3 if mode == "strict" else 10_000
        for client in (second, first):
            assert _sent(client, topic, _batch(producer, 2, "c")) == (0, 2), "a repeat has its first place"
            assert _sent(client, topic, _batch(producer, 3, "d")) == (0, begin)
            assert _sent(client, topic, _batch(producer, 0, "a", "b")) == (0, 0)
        assert pair[0].remapped(A, queues=[0], mode=mode)
        after = begin + 1 if mode == "strict" else 20_000
        assert _sent(second, topic, _batch(producer, 5, "too far"))[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert _sent(second, topic, _batch(producer, 4, "e")) == (0, after)
        assert _sent(first, topic, _batch(producer, 3, "d")) == (0, begin)
    assert [body for _, body in pair[0].stored()[0]] == ["a", "b", "c", "d", "e"]


def test_static_10_a_producer_waits_for_the_logical_offset_and_is_told_when_it_has_none(two, pair, topic) -> None:
    first, second = pair
    first.send_to(0, "a", "b")
    old = first.chains()[0].leader.partition
    with RawClient(two.ports[1]) as client:
        answers: list[tuple[int, int]] = []
        with first.without_seals(old), second.without_seals(old):
            second.change(lambda meta: decide_remap(meta, topic, [B], "available", LONG_AGO_MS, [0]))
            assert _sent(client, topic, _batch(-1, -1, "c"), timeout_ms=1) == (0, -1), "stored, and no offset yet"
            waiting = threading.Thread(target=lambda: answers.append(_sent(client, topic, _batch(-1, -1, "d"))))
            waiting.start()
            until(lambda: len(second.stored()[0]) == 4)
            assert not answers
        waiting.join(TIMEOUT_S)
    assert answers == [(0, 10_001)]
    assert first.stored()[0] == [(0, "a"), (1, "b"), (10_000, "c"), (10_001, "d")]


def test_kafka_10_offsets_by_time_and_at_both_ends_are_logical(two, pair, topic) -> None:
    pair[0].send_to(0, "a", "b")
    until(lambda: time.time_ns() // 1_000_000 > pair[0].chains()[0].leader.start_ms + 5)
    between_ms = time.time_ns() // 1_000_000 + 2
    until(lambda: time.time_ns() // 1_000_000 > between_ms + 2)
    assert pair[0].remapped(B, queues=[0], mode="available")
    pair[1].send_to(0, "c")
    admin = AdminClient({"bootstrap.servers": two.servers})

    def listed(spec: OffsetSpec) -> int:
        (future,) = admin.list_offsets({Place(topic, 0): spec}).values()
        return future.result(TIMEOUT_S).offset

    assert listed(OffsetSpec.earliest()) == 0
    assert listed(OffsetSpec.latest()) == 10_001
    assert listed(OffsetSpec.for_timestamp(between_ms)) == 10_000
    assert listed(OffsetSpec.max_timestamp()) == 10_000


def test_kafka_21_in_a_queue_the_times_of_records_are_searched_over_all_segments(two, pair, topic) -> None:
    def sent(api: Api, *ms: int) -> None:
        producer = Producer({"bootstrap.servers": f"127.0.0.1:{two.ports[two.apis.index(api)]}"})
        for one in ms:
            producer.produce(topic, b"", partition=0, timestamp=one)
        assert producer.flush(TIMEOUT_S) == 0

    admin = AdminClient({"bootstrap.servers": two.servers})

    def listed(spec: OffsetSpec) -> tuple[int, int]:
        (future,) = admin.list_offsets({Place(topic, 0): spec}).values()
        return future.result(TIMEOUT_S).offset, future.result(TIMEOUT_S).timestamp

    sent(two.apis[0], 5_000, 9_000, 8_000)
    assert pair[0].remapped(B, queues=[0], mode="strict")
    sent(two.apis[1], 7_000, 9_000, 12_000, 1_000)
    asked = {ms: listed(OffsetSpec.for_timestamp(ms)) for ms in (1, 5_001, 9_001, 12_001)}
    assert asked == {1: (0, 5_000), 5_001: (1, 9_000), 9_001: (5, 12_000), 12_001: (-1, -1)}
    assert listed(OffsetSpec.max_timestamp()) == (5, 12_000)


def test_kafka_19_of_a_queue_all_segments_before_an_offset_are_emptied(two, pair, topic) -> None:
    pair[0].send_to(0, "a", "b")
    assert pair[0].remapped(B, queues=[0], mode="available")
    pair[1].send_to(0, "c", "d")
    admin = AdminClient({"bootstrap.servers": two.servers})
    (future,) = admin.delete_records([Place(topic, 0, 10_001)]).values()
    assert future.result(TIMEOUT_S).low_watermark == 10_001
    (earliest,) = admin.list_offsets({Place(topic, 0): OffsetSpec.earliest()}).values()
    assert earliest.result(TIMEOUT_S).offset >= 2
    sealed, leader = pair[0].chains()[0].segments
    logs = [two.apis[1].hosted(topic, one.partition).open() for one in (sealed, leader)]
    assert [(log.refresh() and None, log.min_offset, log.end_offset)[1:] for log in logs] == [(2, 2), (1, 2)]


def test_kafka_10_a_reader_that_waits_goes_on_in_the_next_segment(two, pair, topic) -> None:
    pair[0].send_to(0, "a")
    consumer = Consumer({"bootstrap.servers": two.servers, "group.id": "unused", "fetch.wait.max.ms": 20_000})
    consumer.assign([Place(topic, 0, 0)])
    first = consumer.poll(TIMEOUT_S)
    assert first is not None and first.value() == b"a"
    partition = pair[0].api.hosted(topic, pair[0].chains()[0].leader.partition)
    until(lambda: partition.has_waiters or pair[1].api.hosted(topic, partition.name).has_waiters)
    assert pair[0].remapped(B, queues=[0], mode="available")
    pair[1].send_to(0, "b")
    began = time.monotonic()
    message = consumer.poll(TIMEOUT_S)
    assert message is not None and (message.offset(), message.value()) == (10_000, b"b")
    assert time.monotonic() - began < 10, "it was woken"
    consumer.close()


def test_kafka_10_members_of_a_group_go_on_behind_a_remapping_and_rest_sees_what_they_commit(two, pair, topic) -> None:
    settings: dict[str, Any] = {
        "bootstrap.servers": two.servers,
        "group.id": topic,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }

    def consumed(count: int) -> list[str]:
        consumer = Consumer(settings)
        consumer.subscribe([topic])
        found: list[str] = []
        deadline = time.monotonic() + TIMEOUT_S
        while len(found) < count and time.monotonic() < deadline:
            found += [one.value().decode() for one in consumer.consume(count, 0.1) if one.error() is None]
        consumer.commit(asynchronous=False)
        consumer.close()
        return sorted(found)

    for queue in range(QUEUES):
        pair[0].send_to(queue, f"before {queue}")
    assert consumed(QUEUES) == [f"before {queue}" for queue in range(QUEUES)]
    assert pair[0].remapped(B, mode="available")
    for queue in range(QUEUES):
        pair[1].send_to(queue, f"after {queue}")
    assert consumed(QUEUES) == [f"after {queue}" for queue in range(QUEUES)], "and nothing again"
    ends = {name_of(queue): rows[-1][0] + 1 for queue, rows in pair[0].stored().items()}
    for api in two.apis:
        assert api.call("GET", f"/v1/groups/{topic}/topics/{topic}/offsets").json["offsets"] == ends
    admin = AdminClient({"bootstrap.servers": two.servers})
    (future,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(topic)]).values()
    told = {name_of(one.partition): one.offset for one in future.result(TIMEOUT_S).topic_partitions}
    assert told == ends


def test_kafka_30_of_a_queue_that_moved_the_logical_offsets_are_in_the_topic_of_offsets(two, pair, topic) -> None:
    pair[0].send_to(0, "a", "b")
    consumer = Consumer({"bootstrap.servers": two.servers, "group.id": topic, "enable.auto.commit": False})
    consumer.commit(offsets=[Place(topic, 0, 1)], asynchronous=False)
    assert pair[0].remapped(B, queues=[0], mode="available")
    pair[1].send_to(0, "c", "d")
    consumer.commit(offsets=[Place(topic, 0, 10_001)], asynchronous=False)
    consumer.close()
    found = [one for one in commits(two.servers) if one.group == topic]
    assert {one.partition for one in found} == {0}
    assert [one.at[0] for one in found if one.at] == [1, 2, 10_001], "first what is left in the segment before"


def test_kafka_13_the_text_of_a_queues_end_stays_when_the_queue_moves(two, pair, topic) -> None:
    pair[0].send_to(0, "a", "b")
    consumer = Consumer({"bootstrap.servers": two.servers, "group.id": topic, "enable.auto.commit": False})

    def committed() -> list[tuple[int, str | None]]:
        return [(one.offset, one.metadata or None) for one in consumer.committed([Place(topic, 0)], TIMEOUT_S)]

    consumer.commit(offsets=[Place(topic, 0, 2, metadata="the end")], asynchronous=False)
    assert pair[0].remapped(B, queues=[0])
    assert committed() == [(2, "the end")]
    for api in two.apis:
        view = api.call("GET", f"/v1/groups/{topic}/topics/{topic}/offsets").json["partitions"][0]
        # This client sends the byte that ends a text in C, too.
        assert (view["committed_offset"], view["metadata"]) == (2, "the end\0")
    consumer.commit(offsets=[Place(topic, 0, 2)], asynchronous=False)
    assert committed() == [(2, None)], "it is cleared in the segment that follows"
    consumer.commit(offsets=[Place(topic, 0, 2, metadata="the beginning")], asynchronous=False)
    assert committed() == [(2, "the beginning")]
    consumer.close()
