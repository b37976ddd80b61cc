"""Calls about replicas, of which each partition has one, and lists that page through what there is (SPEC KAFKA-22)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from deltamq.api.kafka.messages.cluster_messages import (
    METADATA_TOPIC,
    DescribeLogDirsRequest,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    ListConfigResourcesRequest,
    MetadataRequest,
    MetadataRequestTopic,
    PartitionCursor,
    QuorumPartition,
    QuorumTopic,
    WantedTopic,
)
from deltamq.api.kafka.messages.errors import ErrorCode
from deltamq.api.kafka.messages.log_messages import (
    AlterPartitionReassignmentsRequest,
    AlterReplicaLogDirsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    MovingLogDir,
    NamedPartitions,
    ReassigningPartition,
    ReassigningTopic,
)
from tests.api.kafka.door import KafkaApi, kafka_running
from tests.api.kafka.raw_client import RawClient
from tests.api.running import until

TIMEOUT_MS = 1_000
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.fixture
def raw(kafka: KafkaApi) -> Iterator[RawClient]:
    with RawClient(kafka.port) as client:
        yield client


def _node(raw: RawClient) -> int:
    return int(raw.ask(MetadataRequest([])).controller_id)


def test_kafka_22_every_partition_has_the_leader_that_it_should_have(
    kafka: KafkaApi, raw: RawClient, topic: str
) -> None:
    kafka.api.put_topic(topic, partitions=2)

    def elected(kind: int, *named: NamedPartitions) -> list[list[int]]:
        answer = raw.ask(ElectLeadersRequest(election_type=kind, topics=list(named), timeout_ms=TIMEOUT_MS))
        assert answer.error_code == ErrorCode.NONE
        return [[one.error_code for one in found.partitions] for found in answer.topics]

    for kind in (0, 1):
        found = elected(kind, NamedPartitions(topic, [0, 1, 2]), NamedPartitions(f"{topic}.not", [0]))
        assert found == [[ErrorCode.ELECTION_NOT_NEEDED] * 2 + [UNKNOWN], [UNKNOWN]]
    assert raw.ask(ElectLeadersRequest(topics=None, timeout_ms=TIMEOUT_MS)).topics == []
    wrong = ElectLeadersRequest(election_type=2, topics=[], timeout_ms=TIMEOUT_MS)
    assert raw.ask(wrong).error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("index", "nodes", "may_grow", "error"),
    [
        (0, ["here"], True, ErrorCode.NONE),
        (0, ["here", "here"], True, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (0, [], True, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (0, [1], True, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (0, None, True, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        (1, ["here"], True, UNKNOWN),
    ],
)
def test_kafka_22_a_partition_goes_nowhere_but_to_nodes_that_exist(
    kafka: KafkaApi, raw: RawClient, topic: str, index: int, nodes: list[int | str] | None, may_grow: bool, error: int
) -> None:
    kafka.api.put_topic(topic, partitions=1)
    here = _node(raw)
    replicas = None if nodes is None else [here if one == "here" else int(one) for one in nodes]
    wanted = [ReassigningTopic(topic, [ReassigningPartition(index, replicas)])]
    answer = raw.ask(AlterPartitionReassignmentsRequest(timeout_ms=TIMEOUT_MS, topics=wanted))
    (done,) = answer.topics[0].partitions
    assert (answer.error_code, done.error_code, bool(done.error_message)) == (0, error, bool(error))
    under_way = raw.ask(ListPartitionReassignmentsRequest(TIMEOUT_MS, [NamedPartitions(topic, [0])]))
    assert (under_way.error_code, under_way.topics) == (0, [])


def test_kafka_22_a_log_moves_to_no_other_folder(kafka: KafkaApi, raw: RawClient, topic: str) -> None:
    kafka.api.put_topic(topic, partitions=1)
    (here,) = raw.ask(DescribeLogDirsRequest(None)).results

    def moved(folder: str) -> list[int]:
        answer = raw.ask(AlterReplicaLogDirsRequest([MovingLogDir(folder, [NamedPartitions(topic, [0, 1])])]))
        return [one.error_code for one in answer.topics[0].partitions]

    assert moved(here.log_dir) == [ErrorCode.NONE, UNKNOWN]
    assert moved("/elsewhere") == [ErrorCode.LOG_DIR_NOT_FOUND] * 2


def _pages(raw: RawClient, names: list[str], most: int) -> list[DescribeTopicPartitionsResponse]:
    pages, cursor = [], None
    while not pages or cursor is not None:
        pages.append(raw.ask(DescribeTopicPartitionsRequest([WantedTopic(name) for name in names], most, cursor)))
        cursor = pages[-1].cursor
    return pages


def test_kafka_22_partitions_are_described_page_by_page(kafka: KafkaApi, raw: RawClient, topic: str) -> None:
    names = [f"{topic}.{letter}" for letter in "abc"]
    for name, count in zip(names, (3, 1, 2), strict=True):
        kafka.api.put_topic(name, partitions=count)
    wanted = [(names[0], 0), (names[0], 1), (names[0], 2), (names[1], 0), (names[2], 0), (names[2], 1)]
    known = {one.name: one for one in raw.ask(MetadataRequest([MetadataRequestTopic(name=n) for n in names])).topics}
    for most in (1, 2, 3, 6, 2_000):
        pages = _pages(raw, names[::-1], most)
        found = [(one.name, part.index) for page in pages for one in page.topics for part in one.partitions]
        assert found == wanted
        assert len(pages) == -(-len(wanted) // most)
        for one in (one for page in pages for one in page.topics):
            assert (one.error_code, one.topic_id) == (ErrorCode.NONE, known[one.name].topic_id)
            leaders = {part.index: part.leader_id for part in known[one.name].partitions}
            assert all(part.leader_id == leaders[part.index] and part.in_sync for part in one.partitions)
    every = {one.name for page in _pages(raw, [], 2_000) for one in page.topics}
    assert set(names) <= every
    answer = raw.ask(DescribeTopicPartitionsRequest([WantedTopic(name) for name in ("a b", f"{topic}.not")]))
    assert [one.error_code for one in answer.topics] == [ErrorCode.INVALID_TOPIC, UNKNOWN]
    late = raw.ask(DescribeTopicPartitionsRequest([WantedTopic(names[0])], 5, PartitionCursor(names[0], 9)))
    assert ([one.partitions for one in late.topics], late.cursor) == ([[]], None)


def test_kafka_22_resources_with_settings_are_listed(kafka: KafkaApi, raw: RawClient, topic: str) -> None:
    kafka.api.put_topic(topic, partitions=1)
    topics, nodes, loggers, metrics = 2, 4, 8, 16

    def listed(*kinds: int, version: int = 1) -> set[tuple[str, int]]:
        answer = raw.ask(ListConfigResourcesRequest(list(kinds)), version)
        assert answer.error_code == ErrorCode.NONE
        return {(one.name, one.resource_type) for one in answer.resources}

    here = str(_node(raw))
    assert {(topic, topics), (here, nodes), (here, loggers)} <= listed()
    assert listed(nodes) == {(here, nodes)}
    assert listed(metrics) == listed(version=0) == set()
    assert raw.ask(ListConfigResourcesRequest([3]), 1).error_code == ErrorCode.UNSUPPORTED_VERSION


def _quorum(raw: RawClient, name: str = METADATA_TOPIC, index: int = 0, version: int = 2) -> DescribeQuorumResponse:
    asked = DescribeQuorumRequest([QuorumTopic(name, [QuorumPartition(index)])])
    found = raw.ask(asked, version)
    assert isinstance(found, DescribeQuorumResponse) and found.error_code == ErrorCode.NONE
    return found


def test_kafka_22_the_quorum_is_the_process_that_decides_about_metadata(tmp_path: Path, topic: str) -> None:
    with (
        kafka_running(tmp_path, brokers=("broker-a",)) as first,
        kafka_running(tmp_path, brokers=("broker-b",)) as second,
        RawClient(first.port) as one,
        RawClient(second.port) as other,
    ):
        until(lambda: len(one.ask(MetadataRequest([])).brokers) == 2)
        ids = {client: _node(client) for client in (one, other)}
        for client in (one, other):
            found = _quorum(client)
            (shown,) = found.topics[0].partitions
            assert (found.topics[0].name, shown.index, shown.error_code) == (METADATA_TOPIC, 0, ErrorCode.NONE)
            assert shown.leader_id == ids[one] and shown.leader_epoch > 0
            assert [voter.replica_id for voter in shown.voters] == [ids[one]]
            assert [node.replica_id for node in shown.observers] == [ids[other]]
            ports = {node.node_id: [(it.host, it.port) for it in node.listeners] for node in found.nodes}
            assert ports == {ids[one]: [("127.0.0.1", first.port)], ids[other]: [("127.0.0.1", second.port)]}
            for version in (0, 1):
                (same,) = _quorum(client, version=version).topics[0].partitions
                assert (same.leader_id, same.leader_epoch) == (shown.leader_id, shown.leader_epoch)
        before = _quorum(one).topics[0].partitions[0].high_watermark
        first.api.put_topic(topic, partitions=1)
        assert _quorum(one).topics[0].partitions[0].high_watermark > before > 0
        for name, index in ((METADATA_TOPIC, 1), (topic, 0)):
            (wrong,) = _quorum(one, name, index).topics[0].partitions
            assert (wrong.error_code, wrong.leader_id, wrong.voters) == (UNKNOWN, -1, [])
