"""Unmodified Kafka clients against a service (SPEC KAFKA)."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading

import google_crc32c
import numpy as np
import pyarrow as pa
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    NewPartitions,
    NewTopic,
)

from deltamq.api.kafka.messages.apis import Frame
from deltamq.api.kafka.messages.errors import ErrorCode
from deltamq.api.kafka.messages.log_messages import (
    InitProducerIdRequest,
    OffsetForLeaderEpochRequest,
    ProducePartition,
    ProduceRequest,
    ProduceTopic,
    WantedEpoch,
    WantedEpochs,
)
from deltamq.api.kafka.records.columns import Records
from deltamq.api.kafka.records.encode import encode_records
from deltamq.api.ports import Ports
from deltamq.api.sending.request_appender import INLINE_BYTES
from deltamq.api.wire.cloud_events import BATCHED, STRUCTURED
from deltamq.tables.delta.stamped import RowsPart
from deltamq.tables.log.fences import ROUTE_FENCE
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import PartitionRef, Space
from tests.api.kafka.door import KafkaApi, kafka_running
from tests.api.kafka.raw_client import RawClient
from tests.api.running import config_for, running, until
from tests.faulty_store import faulty_disk
from tests.free_ports import free_port

TIMEOUT_S = 30
HEADERS = [("trace", b"1"), ("trace", b"\xff"), ("empty", b""), ("none", None)]


@pytest.fixture
def admin(kafka) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka.address})


def _done(futures) -> dict[str, object]:
    return {name: future.result(TIMEOUT_S) for name, future in futures.items()}


def _refused(futures) -> int:
    (future,) = futures.values()
    with pytest.raises(KafkaException) as error:
        future.result(TIMEOUT_S)
    return error.value.args[0].code()


def _send(kafka: KafkaApi, topic: str, messages, **settings) -> list[tuple[int, int]]:
    """Send with librdkafka, and return where the messages are, in order of their acknowledgements."""
    places, errors = [], []

    def told(error, message) -> None:
        if error is not None:
            errors.append(error)
        else:
            places.append((message.partition(), message.offset()))

    producer = Producer({"bootstrap.servers": kafka.address, "linger.ms": 5, **settings})
    for message in messages:
        producer.produce(topic, on_delivery=told, **message)
    assert producer.flush(TIMEOUT_S) == 0
    if errors:
        raise KafkaException(errors[0])
    return places


def _reader(kafka: KafkaApi, **settings: object) -> dict[str, object]:
    """Return the settings of a consumer that commits nothing."""
    return {"bootstrap.servers": kafka.address, "group.id": "unused", "enable.auto.commit": False, **settings}


def _read(kafka: KafkaApi, topic: str, count: int, partitions: int = 1, **settings):
    """Read messages from the beginning of each partition."""
    consumer = Consumer(_reader(kafka, **settings))
    try:
        consumer.assign([Place(topic, index, 0) for index in range(partitions)])
        found = []
        until_empty = iter(range(10 * TIMEOUT_S))
        while len(found) < count and next(until_empty, None) is not None:
            found += [message for message in consumer.consume(count, 0.1) if message.error() is None]
        assert len(found) == count
        return found
    finally:
        consumer.close()


def test_cons_15_an_event_of_rest_is_one_for_kafka_and_the_other_way_round(kafka, topic) -> None:
    attributes = {"specversion": "1.0", "id": "7", "source": "/shops", "type": "sold", "subject": "k"}
    event = json.dumps({**attributes, "datacontenttype": "application/json", "data": {"n": 1}})
    kafka.api.put_topic(topic, partitions=1)
    assert kafka.api.produce(topic, event, STRUCTURED).status == 200
    (message,) = _read(kafka, topic, 1)
    headers = {f"ce_{name}": value.encode() for name, value in attributes.items()} | {
        "content-type": b"application/json"
    }
    assert (dict(message.headers()), message.key(), message.value()) == (headers, b"k", b'{"n": 1}')
    _send(kafka, topic, [{"value": message.value(), "headers": message.headers()}])
    first, second = kafka.api.fetch(topic, f"{topic}@broker-a", accept=BATCHED).json
    assert {**second, "mqoffset": "0"} == first


def test_kafka_05_topics_are_made_grown_shown_and_deleted(kafka, admin, topic) -> None:
    config = {"retention.ms": "60000", "cleanup.policy": "delete"}
    _done(admin.create_topics([NewTopic(topic, 3, 1, config=config)]))
    assert _refused(admin.create_topics([NewTopic(topic, 3)])) == KafkaError.TOPIC_ALREADY_EXISTS
    names = list(kafka.api.partitions(topic))
    assert len(names) == 3
    _done(admin.create_partitions([NewPartitions(topic, 5)]))
    assert list(kafka.api.partitions(topic))[:3] == names  # an index names the same partition for ever
    shown = admin.list_topics(timeout=TIMEOUT_S)
    assert sorted(shown.topics[topic].partitions) == [0, 1, 2, 3, 4]
    assert [f"{one.host}:{one.port}" for one in shown.brokers.values()] == [kafka.address]
    (found,) = _done(admin.describe_configs([ConfigResource("topic", topic)])).values()
    assert found["retention.ms"].value == "60000"
    assert _refused(admin.create_partitions([NewPartitions(topic, 2)])) == KafkaError.INVALID_PARTITIONS
    _done(admin.delete_topics([topic]))
    assert topic not in admin.list_topics(timeout=TIMEOUT_S).topics
    assert _refused(admin.delete_topics([topic])) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_kafka_05_what_can_be_no_topic_is_refused(admin, topic) -> None:
    assert _refused(admin.create_topics([NewTopic("sys/meta", 1)])) == KafkaError.TOPIC_EXCEPTION
    assert _refused(admin.create_topics([NewTopic(topic, 5_000)])) == KafkaError.INVALID_PARTITIONS


def test_kafka_03_a_partition_has_one_leader_epoch_that_ends_where_it_ends(kafka, topic) -> None:
    kafka.api.put_topic(topic, partitions=1)
    _send(kafka, topic, [{"value": b"1"}, {"value": b"2"}])
    wanted = [
        WantedEpoch(index=0, leader_epoch=0),
        WantedEpoch(index=0, leader_epoch=1),
        WantedEpoch(index=0, current_leader_epoch=1, leader_epoch=0),
        WantedEpoch(index=5, leader_epoch=0),
    ]
    with RawClient(kafka.port) as raw:
        (found,) = raw.ask(OffsetForLeaderEpochRequest(topics=[WantedEpochs(topic, wanted)])).topics
    assert [(one.error_code, one.leader_epoch, one.end_offset) for one in found.partitions] == [
        (ErrorCode.NONE, 0, 2),
        (ErrorCode.NONE, -1, -1),
        (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1),
    ]


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("idempotent", [True, False])
def test_kafka_03_librdkafka_writes_and_reads_every_compression(kafka, topic, compression, idempotent) -> None:
    kafka.api.put_topic(topic, partitions=1)
    sent = [{"key": f"k{i}", "value": f"body {i} " * 20, "timestamp": 1_700_000_000_000 + i} for i in range(500)]
    settings = {"compression.type": compression, "enable.idempotence": idempotent}
    assert _send(kafka, topic, sent, **settings) == [(0, i) for i in range(500)]
    found = _read(kafka, topic, 500)
    assert [(m.key(), m.value(), m.timestamp()[1]) for m in found] == [
        (one["key"].encode(), one["value"].encode(), one["timestamp"]) for one in sent
    ]
    assert list(kafka.api.stored(topic).values()) == [500]


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_kafka_03_each_kind_of_acknowledgement(kafka, topic, acks) -> None:
    kafka.api.put_topic(topic, partitions=1)
    _send(kafka, topic, [{"value": "one"}, {"value": "two"}], acks=acks)
    until(lambda: list(kafka.api.stored(topic).values()) == [2])
    assert [m.value() for m in _read(kafka, topic, 2)] == [b"one", b"two"]


def test_kafka_03_what_a_client_sent_before_it_went_is_stored(kafka, topic) -> None:
    """Also behind a batch that is checked on a thread."""
    kafka.api.put_topic(topic, partitions=1)
    with RawClient(kafka.port) as client:
        for value in (b"x" * (INLINE_BYTES + 1), b"behind it"):
            batch = encode_records(_records([value]), base_offset=0)
            client.send(
                ProduceRequest(None, 0, 20_000, [ProduceTopic(name=topic, partitions=[ProducePartition(0, batch)])])
            )
    until(lambda: list(kafka.api.stored(topic).values()) == [2])
    assert _read(kafka, topic, 2)[1].value() == b"behind it"


def test_kafka_04_nulls_and_headers_come_back_and_rest_reads_them(kafka, topic) -> None:
    kafka.api.put_topic(topic, partitions=1)
    _send(
        kafka,
        topic,
        [
            {"key": "gone", "value": None},
            {"key": b"\xff\x00", "value": b"\xfe", "headers": HEADERS},
            {"key": "k", "value": "v", "headers": [("a", b"1")]},
            {"value": ""},
        ],
    )
    found = [(m.key(), m.value(), m.headers()) for m in _read(kafka, topic, 4)]
    assert found == [
        (b"gone", None, None),
        (b"\xff\x00", b"\xfe", HEADERS),
        (b"k", b"v", [("a", b"1")]),
        (None, b"", None),
    ]
    (partition,) = kafka.api.stored(topic)
    shown = kafka.api.fetch(topic, partition).json["messages"]
    assert [(m.get("key"), m.get("body")) for m in shown] == [("gone", ""), ("/wA=", None), ("k", "v"), (None, "")]
    assert shown[2]["headers"] == {"a": "1"}
    assert shown[0]["headers"] == {"mq-null-body": "true"}


def test_kafka_04_what_rest_writes_kafka_clients_read(kafka, topic) -> None:
    kafka.api.put_topic(topic, partitions=1)
    kafka.api.send(
        topic,
        {"body": "{}", "key": "k", "headers": {"a": "1"}, "tag": "t", "born_time": "2024-01-01T00:00:00.123Z"},
        {"body_base64": "/w=="},
    )
    one, two = _read(kafka, topic, 2)
    assert (one.key(), one.value(), one.headers(), one.timestamp()[1]) == (b"k", b"{}", [("a", b"1")], 1704067200123)
    assert (two.key(), two.value()) == (None, b"\xff")


def test_kafka_03_offsets_are_found_by_time_and_at_both_ends(kafka, topic) -> None:
    kafka.api.put_topic(topic, partitions=1)
    _send(kafka, topic, [{"value": str(i)} for i in range(3)])
    consumer = Consumer(_reader(kafka))
    assert consumer.get_watermark_offsets(Place(topic, 0), TIMEOUT_S) == (0, 3)
    (first,) = consumer.offsets_for_times([Place(topic, 0, 1_000)], TIMEOUT_S)
    assert first.offset == 0
    (none,) = consumer.offsets_for_times([Place(topic, 0, 4_000_000_000_000)], TIMEOUT_S)
    assert none.offset == -1
    consumer.close()


def test_kafka_03_a_topic_is_made_by_its_first_producer_and_not_by_a_consumer(kafka, topic) -> None:
    consumer = Consumer(_reader(kafka))
    assert consumer.list_topics(topic, TIMEOUT_S).topics[topic].error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    consumer.close()
    _send(kafka, topic, [{"value": "v"}])
    assert sum(kafka.api.stored(topic).values()) == 1


def test_kafka_03_a_reader_that_waits_is_woken_by_a_commit(kafka, topic) -> None:
    kafka.api.put_topic(topic, partitions=1)
    consumer = Consumer(_reader(kafka, **{"fetch.wait.max.ms": 20_000}))
    consumer.assign([Place(topic, 0, 0)])
    assert consumer.poll(0.2) is None
    kafka.api.send(topic, "woken")  # through REST
    message = consumer.poll(TIMEOUT_S / 2)
    assert message is not None and message.value() == b"woken"
    assert kafka.api.call("DELETE", f"/v1/topics/{topic}").status == 204  # or closing would wait for the next poll
    consumer.close()


def test_kafka_03_an_offset_out_of_range_is_told(kafka, topic) -> None:
    kafka.api.put_topic(topic, partitions=1)
    _send(kafka, topic, [{"value": "v"}])
    consumer = Consumer(_reader(kafka, **{"auto.offset.reset": "error"}))
    consumer.assign([Place(topic, 0, 99)])
    message = consumer.poll(TIMEOUT_S)
    assert message.error().code() == KafkaError._AUTO_OFFSET_RESET
    consumer.close()


def test_kafka_07_keys_of_strict_topics_and_transactions_are_refused(kafka, topic) -> None:
    kafka.api.put_topic(topic, partitions=1, order_strategy="strict")
    with pytest.raises(KafkaException) as error:
        _send(kafka, topic, [{"key": "k", "value": "v"}])
    assert error.value.args[0].code() == KafkaError.POLICY_VIOLATION
    assert _send(kafka, topic, [{"value": "without a key"}]) == [(0, 0)]
    producer = Producer({"bootstrap.servers": kafka.address, "transactional.id": "t"})
    with pytest.raises(KafkaException):
        producer.init_transactions(TIMEOUT_S / 10)


def test_kafka_15_a_record_without_a_key_is_refused_by_a_compacted_topic(kafka, topic, admin) -> None:
    admin.create_topics([NewTopic(topic, 1, config={"cleanup.policy": "compact,delete"})])[topic].result(TIMEOUT_S)
    with pytest.raises(KafkaException) as error:
        _send(kafka, topic, [{"key": "k", "value": "v"}, {"value": "without a key"}])
    assert error.value.args[0].code() == KafkaError.INVALID_RECORD
    large = [{"value": b"v" * 700_000}]
    with pytest.raises(KafkaException) as error:
        _send(kafka, topic, large)
    assert error.value.args[0].code() == KafkaError.INVALID_RECORD
    assert _send(kafka, topic, [{"key": "k", "value": None}, {"key": "", "value": "v"}]) == [(0, 0), (0, 1)]


def test_kafka_07_global_topics_are_not_shown_and_refused(kafka, topic, admin) -> None:
    wanted = {"static": True, "total_queues": 2, "scope": "global", "clusters": ["deltamq"]}
    assert kafka.api.call("PUT", f"/v1/topics/{topic}", wanted).status == 201
    assert topic not in admin.list_topics(timeout=TIMEOUT_S).topics
    with pytest.raises(KafkaException):
        _send(kafka, topic, [{"value": "v"}], **{"message.timeout.ms": 2_000})


def test_kafka_03_aiokafka_writes_and_reads(kafka, topic) -> None:
    kafka.api.put_topic(topic, partitions=2)

    async def play():
        producer = AIOKafkaProducer(bootstrap_servers=kafka.address, enable_idempotence=True, compression_type="gzip")
        async with producer:
            sent = [await producer.send(topic, f"v{i}".encode(), key=b"k", partition=i % 2) for i in range(200)]
            places = [await one for one in sent]
        consumer = AIOKafkaConsumer(bootstrap_servers=kafka.address, auto_offset_reset="earliest")
        async with consumer:
            consumer.assign([TopicPartition(topic, 0), TopicPartition(topic, 1)])
            found = [await asyncio.wait_for(consumer.getone(), TIMEOUT_S) for _ in range(200)]
        return places, found

    places, found = asyncio.run(play())
    assert sorted((p.partition, p.offset) for p in places) == sorted((i % 2, i // 2) for i in range(200))
    by_place = {(m.partition, m.offset): m.value for m in found}
    assert by_place == {(i % 2, i // 2): f"v{i}".encode() for i in range(200)}


def test_kafka_03_everything_is_there_after_a_restart(tmp_path, topic) -> None:
    with kafka_running(tmp_path) as kafka:
        kafka.api.put_topic(topic, partitions=1)
        _send(kafka, topic, [{"key": "k", "value": f"v{i}"} for i in range(50)])
    with kafka_running(tmp_path) as kafka:
        assert _send(kafka, topic, [{"value": "later"}]) == [(0, 50)]
        assert [m.value() for m in _read(kafka, topic, 51)] == [*(b"v%d" % i for i in range(50)), b"later"]


@pytest.mark.promise("PORT-1")
def test_kafka_03_repeats_are_answered_while_partitions_commit_at_once(kafka, topic) -> None:
    """The event loop makes such commits itself, and one of repeats alone has nothing to store."""
    kafka.api.put_topic(topic, partitions=4)
    with RawClient(kafka.port) as client:
        producer = client.ask(InitProducerIdRequest(None, 1_000)).producer_id
        parts = [
            ProducePartition(
                index, encode_records(_records([b"v%d" % index]), base_offset=0, producer=(producer, 0, 0))
            )
            for index in range(4)
        ]
        request = ProduceRequest(None, -1, 1_000, [ProduceTopic(name=topic, partitions=parts)])
        answers = [client.ask(request) for _ in range(20)]
    offsets = [[(one.error_code, one.base_offset) for one in answer.topics[0].partitions] for answer in answers]
    assert offsets == [[(ErrorCode.NONE, 0)] * 4] * 20
    assert sum(kafka.api.stored(topic).values()) == 4


@pytest.mark.promise("PORT-1")
def test_kafka_03_batches_under_way_keep_their_order_at_a_fence(tmp_path, topic) -> None:
    port, store, held = free_port(), faulty_disk(tmp_path), threading.Event()
    with running(config_for(tmp_path, kafka_port=port), Ports(store=store)) as api, RawClient(port) as client:
        api.put_topic(topic, partitions=1, order_strategy="strict")
        producer = client.ask(InitProducerIdRequest(None, 1_000)).producer_id
        _append_of_another_process(tmp_path, topic)
        log = api.hosted(topic, f"{topic}@broker-a").open()

        def hold(key: str) -> None:
            if key.startswith("sys/meta") and log.fences.get(ROUTE_FENCE):
                assert held.wait(TIMEOUT_S)

        def sent(number: int) -> Frame:
            batch = encode_records(_records([b"v%d" % number]), base_offset=0, producer=(producer, 0, number))
            return client.send(
                ProduceRequest(None, -1, 20_000, [ProduceTopic(name=topic, partitions=[ProducePartition(0, batch)])])
            )

        frames = [sent(0)]
        until(lambda: log.end_offset == 2)
        store.before["put_if_absent"] = hold
        growing = threading.Thread(target=api.put_topic, args=(topic,), kwargs={"partitions": 2})
        growing.start()
        until(lambda: log.fences.get(ROUTE_FENCE))
        tries = len(store.calls)
        frames += [sent(1), sent(2)]
        # A writer that has met another looks for its commits at each try: the fence has refused both together, or the
        # first while the second comes.
        until(lambda: any(name == "exists" and topic in key for name, key in store.calls[tries:]))
        held.set()
        frames += [sent(3), sent(4)]
        answers = [client.receive(frame).topics[0].partitions[0] for frame in frames]
        growing.join(TIMEOUT_S)
    assert [(one.error_code, one.base_offset) for one in answers] == [(0, at) for at in range(1, 6)]


def _append_of_another_process(folder, topic) -> None:
    other = Warehouse.open(str(folder))
    log = other.open_partition(PartitionRef(Space.TOPICS, topic, f"{topic}@broker-a"))
    log.append_rows(pa.RecordBatch.from_pydict({"body": [b"theirs"]}), [RowsPart(1)])
    other.close()


def _records(values: list[bytes]) -> Records:
    times = np.full(len(values), 1_700_000_000_000)
    return Records(key=pa.nulls(len(values), pa.binary()), value=pa.array(values), headers=None, time_ms=times)


# Bad input.


def _batch(count: int, *, lies: bool) -> bytes:
    """Return a batch whose last record is longer than the batch, if it lies; its checksum is right all the same."""
    body = np.frombuffer(b"record" * count, dtype=np.uint8)
    values = pa.FixedSizeBinaryArray.from_buffers(pa.binary(6), count, [None, pa.py_buffer(body)]).cast(pa.binary())
    records = Records(
        key=pa.nulls(count, pa.binary()), value=values, headers=None, time_ms=np.full(count, 1_700_000_000_000)
    )
    data = bytearray(encode_records(records, base_offset=0))
    if lies:
        data[-9] = 0x7E  # the length of the last value
        data[17:21] = google_crc32c.value(bytes(data[21:])).to_bytes(4, "big")
    return bytes(data)


def _produce_frame(correlation_id: int, topic: str, records: bytes) -> bytes:
    """Return a request, in version 3, that writes one batch into partition 0."""
    name = topic.encode()
    body = struct.pack(">hhihhhii", 0, 3, correlation_id, -1, -1, -1, 30_000, 1)
    body += struct.pack(">h", len(name)) + name + struct.pack(">iii", 1, 0, len(records)) + records
    return struct.pack(">i", len(body)) + body


@pytest.mark.parametrize("count", [1, 40])
def test_kafka_02_a_batch_that_lies_is_refused_alone_among_those_of_one_commit(kafka, admin, topic, count) -> None:
    _done(admin.create_topics([NewTopic(topic, 1)]))
    lies = [number % 3 == 1 for number in range(24)]
    frames = [_produce_frame(at, topic, _batch(count, lies=lie)) for at, lie in enumerate(lies)]
    told = []
    with kafka.connect() as connection, connection.makefile("rb") as answers:
        connection.sendall(b"".join(frames))
        for at in range(len(lies)):
            answer = answers.read(int.from_bytes(answers.read(4), "big"))
            assert int.from_bytes(answer[:4], "big") == at
            told.append(struct.unpack_from(">hq", answer, 4 + 4 + 2 + len(topic) + 4 + 4))
    stored = iter(range(0, len(lies) * count, count))
    wanted = [(ErrorCode.CORRUPT_MESSAGE, -1) if lie else (ErrorCode.NONE, next(stored)) for lie in lies]
    assert told == wanted
    assert len(_read(kafka, topic, lies.count(False) * count)) == lies.count(False) * count


def _ended(connection: socket.socket) -> bool:
    """Return whether the service closes the connection."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize(
    "sent",
    [
        struct.pack(">ihhih", 0x7FFF_FFFF, 0, 8, 1, -1),  # a frame of 2 GiB
        struct.pack(">ihhih", 2 << 20, 3, 1, 1, -1),  # a frame that is too large for what it asks
        struct.pack(">ihhih", -1, 3, 1, 1, -1),
        struct.pack(">ihhih", 0, 3, 1, 1, -1),
        struct.pack(">ihhih", 10, 999, 1, 1, -1),  # no such call
        struct.pack(">ihhih", 10, 3, 99, 1, -1),  # no such version
        struct.pack(">ihhihi", 14, 3, 1, 1, -1, 0x7FFF_FFFF),  # an array that is not there
        b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(600),  # TLS
    ],
)
def test_kafka_06_what_is_no_request_closes_its_connection_and_nothing_else(kafka, admin, sent) -> None:
    with kafka.connect() as connection:
        connection.sendall(sent)
        assert _ended(connection)
    assert admin.list_topics(timeout=TIMEOUT_S).brokers


def _metadata_frame(correlation_id: int) -> bytes:
    body = struct.pack(">hhihi", 3, 1, correlation_id, -1, 0)
    return len(body).to_bytes(4, "big") + body


def test_kafka_06_answers_come_in_the_order_of_their_requests(kafka) -> None:
    with kafka.connect() as connection, connection.makefile("rb") as stream:
        connection.sendall(b"".join(map(_metadata_frame, range(100))))
        for number in range(100):
            body = stream.read(int.from_bytes(stream.read(4), "big"))
            assert int.from_bytes(body[:4], "big") == number


def test_kafka_06_a_client_that_stops_in_the_middle_of_a_frame_is_cut_off(tmp_path) -> None:
    with kafka_running(tmp_path, request_ms=200) as kafka, kafka.connect() as connection:
        connection.sendall(_metadata_frame(1)[:10])
        assert _ended(connection)


def test_kafka_06_idle_connections_are_closed_and_their_number_is_bounded(tmp_path) -> None:
    with kafka_running(tmp_path, connections_max=5, kafka_idle_s=1) as kafka:
        taken = [kafka.connect() for _ in range(8)]
        assert sum(map(_ended, taken)) == 8  # three at once, five when they were idle
        for one in taken:
            one.close()
        with kafka.connect() as connection:
            connection.sendall(_metadata_frame(1))
            assert connection.recv(1)


def test_kafka_06_hundreds_of_idle_connections_do_no_harm(kafka, admin) -> None:
    taken = [kafka.connect() for _ in range(400)]
    try:
        assert admin.list_topics(timeout=TIMEOUT_S).brokers
    finally:
        for one in taken:
            one.close()


def test_kafka_06_a_service_that_stops_lets_no_reader_wait(tmp_path, topic) -> None:
    with kafka_running(tmp_path) as kafka:
        kafka.api.put_topic(topic, partitions=1)
        name = topic.encode()
        body = struct.pack(">hhihiiiibih", 1, 4, 7, -1, -1, 20_000, 1, 1 << 20, 0, 1, len(name)) + name
        body += struct.pack(">iiqi", 1, 0, 0, 1 << 20)
        connection = kafka.connect()
        connection.sendall(len(body).to_bytes(4, "big") + body)
        until(lambda: kafka.api.service.answers.requests == 1)
    with connection, connection.makefile("rb") as stream:
        answer = stream.read()
    assert int.from_bytes(answer[4:8], "big") == 7
