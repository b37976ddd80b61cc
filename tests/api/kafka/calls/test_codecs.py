"""Records go out in the compression that their topic's settings name, or as they came (SPEC KAFKA-24)."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient, NewTopic

from deltamq.api.kafka.messages.log_messages import FetchPartition, FetchRequest, FetchTopic
from deltamq.api.kafka.records.batch import BatchHeader, Compression, batches_of
from deltamq.api.kafka.records.decode import decode_batches, expanded_batch
from deltamq.mq.limits import MIB
from tests.api.kafka.door import KafkaApi
from tests.api.kafka.raw_client import RawClient

TIMEOUT_S = 30
SETTINGS = {
    "uncompressed": Compression.NONE,
    "producer": Compression.GZIP,  # as they came
    "gzip": Compression.GZIP,
    "snappy": Compression.SNAPPY,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}


@pytest.fixture
def raw(kafka: KafkaApi) -> Iterator[RawClient]:
    with RawClient(kafka.port) as client:
        yield client


def _batch(raw: RawClient, topic: str, offset: int) -> BatchHeader:
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=MIB)
    topics = [FetchTopic(name=topic, partitions=[wanted])]
    (found,) = raw.ask(FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=MIB, topics=topics)).topics[0].partitions
    return next(batches_of(bytes(found.records)))


@pytest.mark.parametrize("name", SETTINGS)
def test_kafka_24_records_go_out_in_the_compression_of_their_topic(
    kafka: KafkaApi, raw: RawClient, topic: str, name: str
) -> None:
    admin, codec = AdminClient({"bootstrap.servers": kafka.address}), SETTINGS[name]
    (made,) = admin.create_topics([NewTopic(topic, 1, config={"compression.type": name})]).values()
    made.result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": kafka.address, "compression.type": "gzip"})
    # more than a block of lz4 and of snappy, one that repeats itself and one that does not
    sent = [b"one", b"the same " * 20_000, random.Random(7).randbytes(200_000)]
    for value in sent:
        producer.produce(topic, value, partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    batch = _batch(raw, topic, 1)
    assert batch.compression is codec
    if codec is not Compression.GZIP:
        assert batch.base_offset == 1, "as they came, the others of a batch come with them"
    answered = sent[batch.base_offset :][: batch.count]
    assert decode_batches([expanded_batch(batch, MIB)]).value.to_pylist() == answered
    plain = sum(map(len, answered))
    assert (len(batch.records) < plain) == (codec is not Compression.NONE)
    consumer = Consumer({"bootstrap.servers": kafka.address, "group.id": "unused", "enable.auto.commit": False})
    consumer.assign([Place(topic, 0, 0)])
    read = [one.value() for one in consumer.consume(len(sent), TIMEOUT_S)]
    consumer.close()
    assert read == sent


def test_kafka_24_records_of_other_topics_go_out_as_the_newest_batch_came(
    kafka: KafkaApi, raw: RawClient, topic: str
) -> None:
    kafka.api.put_topic(topic, partitions=1)
    kafka.api.send(topic, "over REST")
    assert _batch(raw, topic, 0).compression is Compression.NONE
    for at, name in enumerate(("lz4", "zstd", "none", "snappy"), 1):
        producer = Producer({"bootstrap.servers": kafka.address, "compression.type": name})
        producer.produce(topic, b"the same " * 1_000, partition=0)
        assert producer.flush(TIMEOUT_S) == 0
        for offset in (at, 0):
            assert _batch(raw, topic, offset).compression is SETTINGS.get(name, Compression.NONE)
