"""The topic of committed offsets, as what watches lag reads it (SPEC KAFKA-30)."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaError
from confluent_kafka import TopicPartition as Place

from deltamq import Admin
from deltamq.api.kafka.messages.cluster_messages import (
    AlterConfigsRequest,
    ConfigResource,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    DescribeLogDirsRequest,
    DescribeTopicPartitionsRequest,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
    MetadataRequest,
    MetadataRequestTopic,
    WantedTopic,
)
from deltamq.api.kafka.messages.errors import ErrorCode
from deltamq.api.kafka.messages.group_messages import OffsetDeleteRequest, OffsetDeleteTopic
from deltamq.api.kafka.messages.log_messages import (
    DeleteRecordsRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    ProduceRequest,
    WantedEpoch,
    WantedEpochs,
)
from deltamq.mq.names import CONSUMER_OFFSETS
from deltamq.tables.log.rewrite import delete_before
from tests.api.kafka.access.calls import ANYTHING, errors_in
from tests.api.kafka.door import kafka_running
from tests.api.kafka.groups.test_commit_metadata import KINDS, _commit, _fill, _url
from tests.api.kafka.raw_client import RawClient
from tests.api.running import until

TIMEOUT_S = 30
#: An offset that a record says has none.
GONE = None


class Commit(NamedTuple):
    """A record: where it is, and what it says."""

    place: tuple[int, int]
    group: str
    topic: str
    partition: int
    #: Offset and metadata text; None where the group has no offset any more.
    at: tuple[int, str] | None


def commits(address: str, settings: dict[str, object] | None = None) -> list[Commit]:
    """Return all records of the topic, by their places."""
    settings = settings or {"bootstrap.servers": address}
    consumer = Consumer({**settings, "group.id": "unused", "enable.partition.eof": True, "enable.auto.commit": False})
    partitions = consumer.list_topics(CONSUMER_OFFSETS, TIMEOUT_S).topics[CONSUMER_OFFSETS].partitions
    consumer.assign([Place(CONSUMER_OFFSETS, index, 0) for index in partitions])
    found: list[Commit] = []
    ends: set[int] = set()
    while ends != set(partitions):
        message = consumer.poll(TIMEOUT_S)
        assert message is not None, "it has no end"
        if message.error() is not None:
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            ends.add(message.partition())
        else:
            ends.discard(message.partition())
            found.append(_decoded(message))
    consumer.close()
    return sorted(found, key=lambda one: one.place)


def _decoded(message: Any) -> Commit:
    """Return a record as Kafka's definitions of key (version 1) and value (version 3) say."""
    key, value, place = message.key(), message.value(), (message.partition(), message.offset())
    group, at = _text(key, 2)
    topic, at = _text(key, at)
    assert key[:2] == b"\0\1" and len(key) == at + 4
    (partition,) = struct.unpack_from(">i", key, at)
    if value is None:
        return Commit(place, group, topic, partition, None)
    version, offset, epoch = struct.unpack_from(">hqi", value)
    text, at = _text(value, 14)
    (time_ms,) = struct.unpack_from(">q", value, at)
    assert (version, epoch, len(value)) == (3, -1, at + 8)
    assert message.timestamp() == (1, time_ms)
    return Commit(place, group, topic, partition, (offset, text))


def _text(data: bytes, at: int) -> tuple[str, int]:
    (size,) = struct.unpack_from(">h", data, at)
    return data[at + 2 : at + 2 + size].decode(), at + 2 + size


def newest(address: str, group: str) -> dict[int, tuple[int, str] | None]:
    """Return what a reader of the topic knows of a group in the end, by partition, of one topic."""
    return {one.partition: one.at for one in commits(address) if one.group == group}


@KINDS
def test_kafka_30_commits_of_every_kind_are_records_as_kafka_writes_them(kafka, topic, group, kind) -> None:
    names = _fill(kafka, topic, kind)
    with RawClient(kafka.port) as raw:
        assert _commit(raw, group, topic, (0, 3, "by Kafka"), (1, 7, None)) == [(0, 0), (1, 0)]
    path = f"/v1/groups/{group}/topics/{topic}/offsets"
    assert kafka.api.call("PUT", path, {"offsets": {names[0]: 5}, "metadata": {names[0]: "über REST"}}).status == 200
    with Admin(_url(kafka)) as admin:
        admin.commit_offsets(group, topic, {names[1]: 9})
    mine = [one for one in commits(kafka.address) if one.group == group]
    assert {one.topic for one in mine} == {topic}
    by_partition = {index: [one.at for one in mine if one.partition == index] for index in (0, 1)}
    assert by_partition == {0: [(3, "by Kafka"), (5, "über REST")], 1: [(7, ""), (9, "")]}
    for index in (0, 1):  # what is about one partition of a topic is in one partition, in order
        places = [one.place for one in mine if one.partition == index]
        assert len({partition for partition, _ in places}) == 1 and places == sorted(places)


@KINDS
def test_kafka_30_resets_and_ends_are_records_too(kafka, topic, group, kind) -> None:
    names = _fill(kafka, topic, kind)
    with RawClient(kafka.port) as raw:
        assert _commit(raw, group, topic, (0, 8, "text"), (1, 9, None)) == [(0, 0), (1, 0)]
        path = f"/v1/groups/{group}/topics/{topic}/offsets/reset"
        assert kafka.api.call("POST", path, {"to": {names[0]: 2}}).status == 200
        until(lambda: newest(kafka.address, group) == {0: (2, ""), 1: (9, "")})
        assert _commit(raw, group, topic, (0, 1, None)) == [(0, 0)]  # an earlier one is a reset, too
        until(lambda: newest(kafka.address, group) == {0: (1, ""), 1: (9, "")})
        raw.ask(OffsetDeleteRequest(group, [OffsetDeleteTopic(topic, [1])]))
        until(lambda: newest(kafka.address, group) == {0: (1, ""), 1: GONE})
    assert kafka.api.call("DELETE", f"/v1/groups/{group}").status == 204
    until(lambda: newest(kafka.address, group) == {0: GONE, 1: GONE})
    with RawClient(kafka.port) as raw:  # the group's next life
        assert _commit(raw, group, topic, (0, 4, None)) == [(0, 0)]
    assert newest(kafka.address, group)[0] == (4, "")


def test_kafka_30_what_kafkas_clients_have_no_words_for_leaves_gaps(kafka, topic, group) -> None:
    names = _fill(kafka, topic)
    other = f"{topic}.other"
    _fill(kafka, other)
    assert kafka.api.call("PUT", f"/v1/groups/{group}", {"consume_strategy": "broadcast"}).status == 201
    path = f"/v1/groups/{group}@client/topics/{topic}/offsets"
    assert kafka.api.call("PUT", path, {"offsets": {names[0]: 5}}).status == 200
    with RawClient(kafka.port) as raw:
        assert _commit(raw, f"{group}.2", other, (0, 3, None), (1, 3, None)) == [(0, 0), (1, 0)]
        before = _bounds(raw)
        assert kafka.api.call("DELETE", f"/v1/topics/{other}").status == 204
        found = commits(kafka.address)  # it comes to an end
        assert not {group, f"{group}@client", f"{group}.2"} & {one.group for one in found}
        assert _bounds(raw) >= before


def _bounds(raw: RawClient) -> list[tuple[int, int]]:
    """Return the first offset and the end of each partition."""
    (shown,) = raw.ask(MetadataRequest([MetadataRequestTopic(name=CONSUMER_OFFSETS)])).topics
    indexes, found = range(len(shown.partitions)), []
    for name in (-2, -1):
        wanted = [ListOffsetsPartition(index=index, timestamp=name) for index in indexes]
        (listed,) = raw.ask(ListOffsetsRequest(topics=[ListOffsetsTopic(CONSUMER_OFFSETS, wanted)])).topics
        assert {one.error_code for one in listed.partitions} == {0}
        found.append([one.offset for one in sorted(listed.partitions, key=lambda one: one.index)])
    return list(zip(*found, strict=True))


def test_kafka_30_it_is_shown_as_internal_and_compacted(kafka, topic, group) -> None:
    _fill(kafka, topic)
    with RawClient(kafka.port) as raw:
        assert _commit(raw, group, topic, (0, 3, None), (1, 3, None)) == [(0, 0), (1, 0)]
        everything = raw.ask(MetadataRequest(None)).topics
        (shown,) = [one for one in everything if one.is_internal]
        assert (shown.name, shown.error_code, len(shown.partitions)) == (CONSUMER_OFFSETS, 0, 2)
        (by_id,) = raw.ask(MetadataRequest([MetadataRequestTopic(name=None, topic_id=shown.topic_id)])).topics
        assert (by_id.name, by_id.partitions) == (CONSUMER_OFFSETS, shown.partitions)
        (described,) = raw.ask(DescribeTopicPartitionsRequest([WantedTopic(CONSUMER_OFFSETS)])).topics
        assert (described.topic_id, described.is_internal) == (shown.topic_id, True)
        (configs,) = raw.ask(DescribeConfigsRequest([ConfigResource(2, CONSUMER_OFFSETS, None)])).results
        assert {one.name: one.value for one in configs.configs}["cleanup.policy"] == "compact"
        assert CONSUMER_OFFSETS in {one.name for one in raw.ask(ListConfigResourcesRequest([2])).resources}
        (folder,) = raw.ask(DescribeLogDirsRequest(None)).results
        (sized,) = [one for one in folder.topics if one.name == CONSUMER_OFFSETS]
        assert len(sized.partitions) == 2 and all(one.size > 0 for one in sized.partitions)
        ends = [end for _, end in _bounds(raw)]
        epochs = [WantedEpochs(CONSUMER_OFFSETS, [WantedEpoch(index=index, leader_epoch=0) for index in (0, 1)])]
        (told,) = raw.ask(OffsetForLeaderEpochRequest(topics=epochs)).topics
        assert [one.end_offset for one in told.partitions] == ends
    consumer = Consumer({"bootstrap.servers": kafka.address, "group.id": "unused"})
    (by_time,) = consumer.offsets_for_times([Place(CONSUMER_OFFSETS, 0, 1)], TIMEOUT_S)
    assert by_time.offset == 0
    consumer.close()


@pytest.mark.parametrize(
    "call",
    [
        *(ProduceRequest, CreatePartitionsRequest, DeleteTopicsRequest, DeleteRecordsRequest),
        *(AlterConfigsRequest, IncrementalAlterConfigsRequest),
    ],
)
def test_kafka_30_nobody_writes_to_it(kafka, call) -> None:
    with RawClient(kafka.port) as raw:
        assert errors_in(raw.ask(ANYTHING[call](CONSUMER_OFFSETS))) - {0} == {ErrorCode.INVALID_TOPIC}


def test_kafka_30_nobody_makes_a_topic_of_its_name(kafka) -> None:
    with RawClient(kafka.port) as raw:
        made = raw.ask(ANYTHING[CreateTopicsRequest](CONSUMER_OFFSETS))
        assert errors_in(made) == {ErrorCode.TOPIC_ALREADY_EXISTS}
    assert kafka.api.call("PUT", f"/v1/topics/{CONSUMER_OFFSETS}", {}).json["code"] == "system_name"
    assert kafka.api.call("GET", f"/v1/topics/{CONSUMER_OFFSETS}").status == 404, "it is Kafka's alone"


def test_kafka_30_a_group_commits_how_far_it_has_read_it(kafka, topic, group) -> None:
    _fill(kafka, topic)
    with RawClient(kafka.port) as raw:
        assert _commit(raw, f"{group}.watched", topic, (0, 3, None)) == [(0, 0)]
    settings = {"bootstrap.servers": kafka.address, "group.id": group, "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    consumer.subscribe([f"^{CONSUMER_OFFSETS}$"])
    until(lambda: (one := consumer.poll(0.1)) is not None and b".watched" in one.key())
    read = {one.partition: one.offset for one in consumer.commit(asynchronous=False) if one.offset >= 0}
    consumer.close()
    assert read and newest(kafka.address, group) == {index: (offset, "") for index, offset in read.items()}
    assert kafka.api.call("GET", f"/v1/groups/{group}").json["topics"] == []  # REST knows no such topic
    again = Consumer(settings)
    known = again.committed([Place(CONSUMER_OFFSETS, index) for index in read], TIMEOUT_S)
    assert {one.partition: one.offset for one in known} == read
    again.close()
    with RawClient(kafka.port) as raw:  # a reset, as of any topic
        assert _commit(raw, group, CONSUMER_OFFSETS, *((index, 0, None) for index in read))
        until(lambda: newest(kafka.address, group) == dict.fromkeys(read, (0, "")))


def test_kafka_30_id_and_offsets_outlive_a_restart(tmp_path) -> None:
    seen: list[tuple[bytes, list[Commit]]] = []
    for at in (3, 5):
        with kafka_running(tmp_path) as kafka:
            if at == 3:
                _fill(kafka, "orders")
            with RawClient(kafka.port) as raw:
                assert _commit(raw, "billing", "orders", (0, at, None), (1, at, None)) == [(0, 0), (1, 0)]
                (shown,) = raw.ask(MetadataRequest([MetadataRequestTopic(name=CONSUMER_OFFSETS)])).topics
            seen.append((shown.topic_id, commits(kafka.address)))
    (first, before), (second, after) = seen
    assert first == second
    assert [one for one in after if one.at == (3, "")] == before and len(after) == 4


def test_kafka_30_what_retention_took_of_a_log_is_before_its_start_and_no_loss(tmp_path) -> None:
    with kafka_running(tmp_path) as kafka:
        _fill(kafka, "orders")
        with RawClient(kafka.port) as raw:
            for offset in range(4):
                assert _commit(raw, "billing", "orders", (0, offset, None)) == [(0, 0)]
            assert _commit(raw, "watcher", CONSUMER_OFFSETS, (0, 1, None)) == [(0, 0)]
            log = kafka.api.service.topics.offsets.partitions[0].open()
            delete_before(log, 3, now_ms=kafka.api.service.now_ms(), row_group_rows=1_000)
            assert _bounds(raw)[0] == (3, 5)
            assert _commit(raw, "watcher", CONSUMER_OFFSETS, (0, 4, None)) == [(0, 0)]
        settings: dict[str, object] = {"bootstrap.servers": kafka.address, "auto.offset.reset": "earliest"}
        found = [(one.place[1], one.group) for one in commits("", settings)]
        assert found == [(3, "billing"), (4, "watcher"), (5, "watcher")]
    assert not list((tmp_path / "sys").glob("rmq_sys_LOST*"))
