"""Topics that clients call by their ids (SPEC KAFKA-18)."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from deltamq.api.kafka.messages.cluster_messages import (
    CreateTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeletingTopic,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataTopic,
)
from deltamq.api.kafka.messages.codec import NO_TOPIC_ID
from deltamq.api.kafka.messages.errors import ErrorCode
from deltamq.api.kafka.messages.log_messages import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    ProduceTopic,
)
from deltamq.api.kafka.records.batch import batches_of
from deltamq.api.kafka.records.decode import decode_batches
from deltamq.api.kafka.records.encode import encode_records
from tests.api.kafka.door import KafkaApi
from tests.api.kafka.raw_client import RawClient
from tests.api.kafka.test_door import _records

NEWEST_PRODUCE, NEWEST_FETCH, NEWEST_DELETE = 13, 18, 6


@pytest.fixture
def raw(kafka: KafkaApi) -> Iterator[RawClient]:
    with RawClient(kafka.port) as client:
        yield client


def _made(raw: RawClient, name: str) -> bytes:
    (made,) = raw.ask(CreateTopicsRequest([CreateTopic(name, 1, 1, [], [])], 10_000)).topics
    assert (made.error_code, made.num_partitions) == (ErrorCode.NONE, 1)
    found: bytes = made.topic_id
    return found


def _shown(raw: RawClient, wanted: MetadataRequestTopic, version: int | None = None) -> MetadataTopic:
    found: MetadataTopic
    (found,) = raw.ask(MetadataRequest([wanted], False), version).topics
    return found


def _sent(raw: RawClient, topic_id: bytes, value: bytes) -> ProducedPartition:
    batch = encode_records(_records([value]), base_offset=0)
    topic = ProduceTopic(topic_id=topic_id, partitions=[ProducePartition(0, batch)])
    (answer,) = raw.ask(ProduceRequest(None, -1, 10_000, [topic]), NEWEST_PRODUCE).topics
    assert answer.topic_id == topic_id
    found: ProducedPartition
    (found,) = answer.partitions
    return found


def _fetched(raw: RawClient, topic_id: bytes) -> FetchedPartition:
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=100_000)
    topic = FetchTopic(topic_id=topic_id, partitions=[wanted])
    request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=100_000, topics=[topic])
    (answer,) = raw.ask(request, NEWEST_FETCH).topics
    assert answer.topic_id == topic_id
    found: FetchedPartition
    (found,) = answer.partitions
    return found


def _deleted(raw: RawClient, wanted: DeletingTopic) -> tuple[int, str | None, bytes]:
    (one,) = raw.ask(DeleteTopicsRequest(topics=[wanted], timeout_ms=10_000), NEWEST_DELETE).topics
    return one.error_code, one.name, one.topic_id


def test_kafka_18_a_topics_id_is_that_of_its_life_in_every_call(kafka: KafkaApi, raw: RawClient, topic: str) -> None:
    first = _made(raw, topic)
    assert str(uuid.UUID(bytes=first)) == kafka.api.call("GET", f"/v1/topics/{topic}").json["id"]
    by_name, by_id = MetadataRequestTopic(name=topic), MetadataRequestTopic(name=None, topic_id=first)
    for wanted in (by_name, by_id):
        shown = _shown(raw, wanted)
        assert (shown.error_code, shown.name, shown.topic_id) == (ErrorCode.NONE, topic, first)
    assert _sent(raw, first, b"of the first life").error_code == ErrorCode.NONE
    records = decode_batches(list(batches_of(_fetched(raw, first).records)))
    assert records.value.to_pylist() == [b"of the first life"]
    assert _deleted(raw, DeletingTopic(topic_id=first)) == (ErrorCode.NONE, topic, first)

    second = _made(raw, topic)
    assert second != first
    gone = _shown(raw, by_id)
    assert (gone.error_code, gone.name, gone.topic_id) == (ErrorCode.UNKNOWN_TOPIC_ID, None, first)
    assert _sent(raw, first, b"of nobody").error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert _fetched(raw, first).error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert _deleted(raw, DeletingTopic(topic_id=first)) == (ErrorCode.UNKNOWN_TOPIC_ID, None, first)
    found = _fetched(raw, second)
    assert (found.error_code, found.high_watermark) == (ErrorCode.NONE, 0)


def test_kafka_18_a_request_that_is_queued_later_finds_its_topic_by_id_too(raw: RawClient, topic: str) -> None:
    made = _made(raw, topic)
    assert _sent(raw, made, b"x" * 300_000).error_code == ErrorCode.NONE
    assert _fetched(raw, made).high_watermark == 1


def test_kafka_18_no_id_is_the_id_of_no_topic(raw: RawClient, topic: str) -> None:
    made = _made(raw, topic)
    assert _sent(raw, NO_TOPIC_ID, b"of nobody").error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert _fetched(raw, NO_TOPIC_ID).error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert _shown(raw, MetadataRequestTopic(name=None)).error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert _deleted(raw, DeletingTopic()) == (ErrorCode.INVALID_REQUEST, None, NO_TOPIC_ID)
    both = DeletingTopic(name=topic, topic_id=made)
    assert _deleted(raw, both) == (ErrorCode.INVALID_REQUEST, topic, made)
    assert _shown(raw, MetadataRequestTopic(name=topic)).topic_id == made, "nothing was deleted"


def test_kafka_18_a_topic_that_is_called_by_its_id_is_not_made(raw: RawClient, topic: str) -> None:
    wanted = MetadataRequestTopic(name=topic, topic_id=uuid.uuid4().bytes)
    shown = _shown(raw, wanted)
    assert (shown.error_code, shown.topic_id) == (ErrorCode.UNKNOWN_TOPIC_ID, wanted.topic_id)
    assert _shown(raw, MetadataRequestTopic(name=topic)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
