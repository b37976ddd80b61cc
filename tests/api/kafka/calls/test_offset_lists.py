"""Where partitions begin and end, what is where by time, and leader epochs (SPEC KAFKA-18, KAFKA-20)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient, OffsetSpec

from deltamq.api.kafka.messages.errors import ErrorCode
from deltamq.api.kafka.messages.log_messages import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ListedOffset,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    WantedEpoch,
    WantedEpochs,
)
from tests.api.kafka.door import KafkaApi
from tests.api.kafka.raw_client import RawClient

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = range(-1, -7, -1)
NEWEST = 11
BORN = ["2024-01-01T00:00:00.123Z", "2024-01-02T00:00:00.456Z"]
BORN_MS = [1704067200123, 1704153600456]


@pytest.fixture
def raw(kafka: KafkaApi) -> Iterator[RawClient]:
    with RawClient(kafka.port) as client:
        yield client


def _listed(raw: RawClient, topic: str, time: int, version: int = NEWEST, epoch: int = -1) -> ListedOffset:
    wanted = ListOffsetsPartition(index=0, timestamp=time, leader_epoch=epoch)
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(topic, [wanted])], timeout_ms=10_000)
    found: ListedOffset
    (found,) = raw.ask(request, version).topics[0].partitions
    return found


def _answer(found: ListedOffset) -> tuple[int, int, int, int]:
    return found.error_code, found.offset, found.timestamp, found.leader_epoch


def test_kafka_18_offsets_have_all_names_of_the_newest_version(kafka: KafkaApi, raw: RawClient, topic: str) -> None:
    kafka.api.put_topic(topic, partitions=1)
    assert _answer(_listed(raw, topic, MAX_TIMESTAMP)) == (ErrorCode.NONE, -1, -1, -1), "nothing is in it"
    kafka.api.send(topic, *({"body": "{}", "born_time": time} for time in BORN))
    answers = {name: _answer(_listed(raw, topic, name)) for name in range(LATEST, EARLIEST_PENDING - 1, -1)}
    assert answers == {
        LATEST: (ErrorCode.NONE, 2, -1, 0),
        EARLIEST: (ErrorCode.NONE, 0, -1, 0),
        MAX_TIMESTAMP: (ErrorCode.NONE, 1, BORN_MS[1], 0),
        EARLIEST_LOCAL: (ErrorCode.NONE, 0, -1, 0),
        LATEST_TIERED: (ErrorCode.NONE, -1, -1, -1),
        EARLIEST_PENDING: (ErrorCode.NONE, -1, -1, -1),
    }


@pytest.mark.parametrize(
    ("name", "since"), [(MAX_TIMESTAMP, 7), (EARLIEST_LOCAL, 8), (LATEST_TIERED, 9), (EARLIEST_PENDING, 11), (-7, 12)]
)
def test_kafka_18_a_version_refuses_names_that_it_does_not_have(
    kafka: KafkaApi, raw: RawClient, topic: str, name: int, since: int
) -> None:
    kafka.api.put_topic(topic, partitions=1)
    assert _listed(raw, topic, name, since - 1).error_code == ErrorCode.UNSUPPORTED_VERSION
    if since <= NEWEST:
        assert _listed(raw, topic, name, since).error_code == ErrorCode.NONE


def test_kafka_20_what_is_asked_twice_or_of_no_topic_is_refused_as_by_kafka(
    kafka: KafkaApi, raw: RawClient, topic: str
) -> None:
    kafka.api.put_topic(topic, partitions=1)

    def errors(name: str, *indexes: int, epoch: int = -1) -> list[int]:
        wanted = [ListOffsetsPartition(index=one, timestamp=LATEST, leader_epoch=epoch) for one in indexes]
        (found,) = raw.ask(ListOffsetsRequest(topics=[ListOffsetsTopic(name, wanted)])).topics
        return [one.error_code for one in found.partitions]

    assert errors(topic, 0, 0) == [ErrorCode.INVALID_REQUEST]
    for name in ("a b", "", "x" * 250, f"{topic}.not"):
        assert errors(name, 0) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert errors(topic, 1, epoch=5) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION], "before its epoch"


def test_kafka_20_an_offset_by_time_has_the_time_of_its_record(kafka: KafkaApi, raw: RawClient, topic: str) -> None:
    kafka.api.put_topic(topic, partitions=1)
    kafka.api.send(topic, *({"body": "{}", "born_time": time} for time in BORN))
    assert _answer(_listed(raw, topic, 1_000)) == (ErrorCode.NONE, 0, BORN_MS[0], 0)
    admin = AdminClient({"bootstrap.servers": kafka.address})
    (future,) = admin.list_offsets({Place(topic, 0): OffsetSpec.max_timestamp()}).values()
    assert (future.result(30).offset, future.result(30).timestamp) == (1, BORN_MS[1])


def test_kafka_21_offsets_by_time_go_by_the_times_of_records(kafka: KafkaApi, raw: RawClient, topic: str) -> None:
    kafka.api.put_topic(topic, partitions=1)
    for ms in (500, 300, 900, 900, 100):
        kafka.api.send(topic, {"body": "{}", "born_time": f"1970-01-01T00:00:00.{ms}Z"})
    found = {ms: _answer(_listed(raw, topic, ms))[1:3] for ms in (0, 400, 500, 501, 900, 901)}
    assert found == {0: (0, 500), 400: (0, 500), 500: (0, 500), 501: (2, 900), 900: (2, 900), 901: (-1, -1)}
    assert _answer(_listed(raw, topic, MAX_TIMESTAMP))[1:3] == (2, 900), "the first of those with the greatest time"


def test_kafka_20_leader_epochs_of_the_future_are_refused(kafka: KafkaApi, raw: RawClient, topic: str) -> None:
    kafka.api.put_topic(topic, partitions=1)
    for epoch, error in ((-1, ErrorCode.NONE), (0, ErrorCode.NONE), (1, ErrorCode.UNKNOWN_LEADER_EPOCH)):
        assert _listed(raw, topic, LATEST, epoch=epoch).error_code == error
        wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000, current_leader_epoch=epoch)
        topics = [FetchTopic(name=topic, partitions=[wanted])]
        fetch = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1_000, topics=topics)
        assert raw.ask(fetch).topics[0].partitions[0].error_code == error
        asked = WantedEpoch(index=0, current_leader_epoch=epoch, leader_epoch=0)
        ends = OffsetForLeaderEpochRequest(topics=[WantedEpochs(topic, [asked])])
        assert raw.ask(ends).topics[0].partitions[0].error_code == error
