"""Calls of administration answer as Kafka does (SPEC KAFKA-20)."""

from __future__ import annotations

import uuid
from base64 import urlsafe_b64decode
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from deltamq.api.kafka.messages.cluster_messages import (
    Assignment,
    CreatePartitionsRequest,
    CreateTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeletingTopic,
    DescribableLogs,
    DescribeClusterRequest,
    DescribeLogDirsRequest,
    LogDir,
    MetadataRequest,
    MetadataRequestTopic,
    NewAssignment,
)
from deltamq.api.kafka.messages.cluster_messages import NewPartitions as NewPartitionsOf
from deltamq.api.kafka.messages.codec import NO_TOPIC_ID
from deltamq.api.kafka.messages.errors import ErrorCode
from tests.api.kafka.door import KafkaApi, kafka_running
from tests.api.kafka.raw_client import RawClient
from tests.api.running import until

TIMEOUT_S = 30
#: No node has this number: they are made of addresses.
NOBODY = -5


@pytest.fixture
def raw(kafka: KafkaApi) -> Iterator[RawClient]:
    with RawClient(kafka.port) as client:
        yield client


def _node(raw: RawClient) -> int:
    (node,) = raw.ask(MetadataRequest([], False)).brokers
    found: int = node.node_id
    return found


def test_kafka_20_assignments_that_name_nodes_which_exist_are_taken(
    kafka: KafkaApi, raw: RawClient, topic: str
) -> None:
    here, admin = _node(raw), AdminClient({"bootstrap.servers": kafka.address})
    (made,) = admin.create_topics([NewTopic(topic, 3, replica_assignment=[[here], [here], [here]])]).values()
    made.result(TIMEOUT_S)
    assert len(kafka.api.partitions(topic)) == 3
    (grown,) = admin.create_partitions([NewPartitions(topic, 4, replica_assignment=[[here]])]).values()
    grown.result(TIMEOUT_S)
    assert len(kafka.api.partitions(topic)) == 4


@pytest.mark.parametrize(
    ("assigned", "error"),
    [
        ([(0, [NOBODY])], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([(0, [])], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([(1, None)], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([(0, None), (0, None)], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_kafka_20_other_assignments_are_refused(
    raw: RawClient, topic: str, assigned: list[tuple[int, list[int] | None]], error: ErrorCode
) -> None:
    here = _node(raw)
    assignments = [Assignment(index, [here] if nodes is None else nodes) for index, nodes in assigned]
    (made,) = raw.ask(CreateTopicsRequest([CreateTopic(topic, -1, -1, assignments, [])], 10_000)).topics
    assert made.error_code == error


def test_kafka_20_numbers_that_a_new_topic_cannot_have_are_refused(raw: RawClient, topic: str) -> None:
    here = _node(raw)

    def made(count: int, copies: int, *assigned: Assignment) -> int:
        (one,) = raw.ask(CreateTopicsRequest([CreateTopic(topic, count, copies, list(assigned), [])], 10_000)).topics
        found: int = one.error_code
        return found

    assert made(1, 0) == made(1, -2) == ErrorCode.INVALID_REPLICATION_FACTOR
    assert made(0, 1) == made(-2, 1) == ErrorCode.INVALID_PARTITIONS
    tried = raw.ask(CreateTopicsRequest([CreateTopic(topic, 0, 1, [], [])], 10_000, True)).topics
    assert [one.error_code for one in tried] == [ErrorCode.INVALID_PARTITIONS], "also if nothing is made"
    assert made(1, -1, Assignment(0, [here])) == made(-1, 1, Assignment(0, [here])) == ErrorCode.INVALID_REQUEST
    twice = CreateTopicsRequest([CreateTopic(topic, 1, 1, [], []) for _ in range(2)], 10_000)
    assert [one.error_code for one in raw.ask(twice).topics] == [ErrorCode.INVALID_REQUEST]
    assert made(1, 3) == ErrorCode.NONE, "the store keeps the copies"

    def grown(*more: NewPartitionsOf) -> list[int]:
        return [one.error_code for one in raw.ask(CreatePartitionsRequest(list(more), 10_000, False)).results]

    assert grown(NewPartitionsOf(topic, 3, [NewAssignment([here])])) == [ErrorCode.INVALID_REPLICA_ASSIGNMENT]
    assert grown(NewPartitionsOf(topic, 2, [NewAssignment([NOBODY])])) == [ErrorCode.INVALID_REPLICA_ASSIGNMENT]
    assert grown(*[NewPartitionsOf(topic, 2, None)] * 2) == [ErrorCode.INVALID_REQUEST]
    assert grown(NewPartitionsOf(topic, 2, None)) == [ErrorCode.NONE]


def test_kafka_23_who_deletes_a_topic_and_asks_then_hears_that_it_is_gone(raw: RawClient, topic: str) -> None:
    def asked() -> tuple[int, bytes]:
        (found,) = raw.ask(MetadataRequest([MetadataRequestTopic(name=topic)])).topics
        return found.error_code, found.topic_id

    error, first = asked()
    assert error == ErrorCode.NONE, "one that never was is made by the question"
    gone = DeleteTopicsRequest(topics=[DeletingTopic(name=topic)], names=[topic], timeout_ms=10_000)
    assert [one.error_code for one in raw.ask(gone).topics] == [ErrorCode.NONE]
    assert asked() == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NO_TOPIC_ID)
    until(lambda: asked()[0] == ErrorCode.NONE)
    assert asked()[1] != first, "who goes on asking gets a new one"


def test_kafka_23_a_topic_that_was_deleted_can_be_made_at_once(raw: RawClient, topic: str) -> None:
    gone = DeleteTopicsRequest(topics=[DeletingTopic(name=topic)], names=[topic], timeout_ms=10_000)
    for _ in range(2):
        assert raw.ask(CreateTopicsRequest([CreateTopic(topic, 1, 1, [], [])], 10_000)).topics[0].error_code == 0
        assert raw.ask(MetadataRequest([MetadataRequestTopic(name=topic)])).topics[0].error_code == 0
        assert raw.ask(gone).topics[0].error_code == 0


def test_kafka_20_the_clusters_id_is_that_of_the_warehouse(kafka: KafkaApi, raw: RawClient) -> None:
    told = raw.ask(MetadataRequest([], False)).cluster_id
    assert told == raw.ask(DescribeClusterRequest()).cluster_id
    assert AdminClient({"bootstrap.servers": kafka.address}).list_topics(timeout=TIMEOUT_S).cluster_id == told
    assert str(uuid.UUID(bytes=urlsafe_b64decode(f"{told}=="))) == kafka.api.service.meta.warehouse_id
    assert raw.ask(DescribeClusterRequest(endpoint_type=2)).error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE
    assert raw.ask(DescribeClusterRequest(endpoint_type=3)).error_code == ErrorCode.UNSUPPORTED_ENDPOINT_TYPE


def test_kafka_20_without_authentication_everything_may_be_done(kafka: KafkaApi, raw: RawClient, topic: str) -> None:
    kafka.api.put_topic(topic, partitions=1)
    told = raw.ask(MetadataRequest(None, False, False, True))
    (shown,) = [one for one in told.topics if one.name == topic]
    assert shown.operations == sum(1 << bit for bit in (3, 4, 5, 6, 7, 8, 10, 11))
    assert raw.ask(MetadataRequest([], False, True), 10).operations == sum(1 << bit for bit in (5, 7, 8, 10, 11, 12))
    unasked = raw.ask(MetadataRequest(None, False), 10)
    assert {one.operations for one in (unasked, *unasked.topics)} == {-(2**31)}


def _dir(raw: RawClient, topics: list[DescribableLogs] | None) -> LogDir:
    answer = raw.ask(DescribeLogDirsRequest(topics))
    assert answer.error_code == ErrorCode.NONE
    found: LogDir
    (found,) = answer.results
    return found


def test_kafka_20_log_dirs_say_how_large_partitions_are(kafka: KafkaApi, raw: RawClient, topic: str) -> None:
    kafka.api.put_topic(topic, partitions=2)
    kafka.api.send(topic, *"abc")
    sizes = [one["bytes"] for one in kafka.api.partitions(topic).values()]
    (one,) = _dir(raw, [DescribableLogs(topic, [0, 1, 2]), DescribableLogs(f"{topic}.not", [0])]).topics
    assert (one.name, [(part.index, part.size) for part in one.partitions]) == (topic, list(enumerate(sizes)))
    whole = _dir(raw, None)
    assert one in whole.topics and whole.log_dir == kafka.api.service.config.warehouse.uri


def test_kafka_20_topics_have_names_as_long_as_in_kafka(kafka: KafkaApi, raw: RawClient, topic: str) -> None:
    name = f"{topic:x<249}"
    producer = Producer({"bootstrap.servers": kafka.address})
    producer.produce(name, b"1")
    assert producer.flush(TIMEOUT_S) == 0
    consumer = Consumer({"bootstrap.servers": kafka.address, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([name])
    found = consumer.poll(TIMEOUT_S)
    assert found is not None and (found.topic(), found.value()) == (name, b"1")
    consumer.close()
    (longer,) = raw.ask(CreateTopicsRequest([CreateTopic(f"{name}x", 1, 1, [], [])], 10_000)).topics
    assert longer.error_code == ErrorCode.INVALID_TOPIC


def test_kafka_20_topics_without_a_number_have_the_partitions_of_the_setting(tmp_path: Path) -> None:
    with kafka_running(tmp_path, kafka_partitions=5) as kafka:
        producer = Producer({"bootstrap.servers": kafka.address})
        producer.produce("used", b"1")
        assert producer.flush(TIMEOUT_S) == 0
        admin = AdminClient({"bootstrap.servers": kafka.address})
        (made,) = admin.create_topics([NewTopic("made", -1)]).values()
        made.result(TIMEOUT_S)
        assert [len(kafka.api.partitions(name)) for name in ("used", "made")] == [5, 5]
