"""Errors of groups' calls that pass: Kafka's consumers try again, and do not end (SPEC KAFKA-9)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Place

from deltamq.api.host.hosted_group import Groups
from deltamq.api.kafka.messages.errors import ErrorCode, group_code_of, offset_code_of
from deltamq.api.kafka.messages.group_messages import (
    CommitPartition,
    CommitTopic,
    GroupProtocol,
    JoinGroupRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetFetchTopic,
)
from deltamq.api.progress.group_progress import GroupCommits
from deltamq.api.queue.moved_progress import MovedProgress
from deltamq.mq.errors import Conflict, Corrupt, DeltaMQError, NotFound, Overloaded, StorageFull, Unavailable, Unknown
from tests.api.kafka.raw_client import RawClient

AWAY = Unavailable("broker-b is not served at the moment", code="broker_unavailable")


def _fails(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, times: int) -> None:
    """Have a call of the service fail so many times, as while a broker changes its process."""
    right: Callable[..., Any] = getattr(owner, name)
    left = [AWAY] * times

    def failing(*args: Any, **kwargs: Any) -> Any:
        if left:
            raise left.pop()
        return right(*args, **kwargs)

    monkeypatch.setattr(owner, name, failing)


@pytest.mark.parametrize(
    ("error", "code", "of_offset"),
    [
        (AWAY, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.UNSTABLE_OFFSET_COMMIT),
        (Overloaded("no room"), ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.UNSTABLE_OFFSET_COMMIT),
        (Unknown(), ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.UNSTABLE_OFFSET_COMMIT),
        (StorageFull(), ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.UNSTABLE_OFFSET_COMMIT),
        (Corrupt("damaged"), ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.KAFKA_STORAGE_ERROR),
        (NotFound("t"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (Conflict("no", code="illegal_generation"), ErrorCode.ILLEGAL_GENERATION, ErrorCode.ILLEGAL_GENERATION),
        (Conflict("reset", code="epoch_over"), ErrorCode.ILLEGAL_GENERATION, ErrorCode.ILLEGAL_GENERATION),
    ],
)
def test_kafka_09_what_passes_has_a_number_after_which_consumers_try_again(
    error: DeltaMQError, code: ErrorCode, of_offset: ErrorCode
) -> None:
    assert (group_code_of(error), offset_code_of(error)) == (code, of_offset)


def test_kafka_09_calls_of_a_group_say_that_they_may_be_tried_again(kafka, topic, monkeypatch) -> None:
    kafka.api.put_topic(topic, partitions=1)
    one = CommitTopic(name=topic, partitions=[CommitPartition(index=0, offset=0)])
    commit = OffsetCommitRequest(group_id="group", generation_id=-1, member_id="", topics=[one])
    fetches = [
        OffsetFetchRequest("group", topics=[OffsetFetchTopic(name=topic, partitions=[0])]),
        OffsetFetchRequest("group", None),
    ]
    join = JoinGroupRequest(
        group_id="group",
        session_timeout_ms=10_000,
        member_id="",
        protocol_type="consumer",
        protocols=[GroupProtocol("range", b"")],
    )
    with RawClient(kafka.port) as client:
        _fails(monkeypatch, GroupCommits, "in_partition", 1)
        for wanted in (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NONE):
            assert client.ask(commit).topics[0].partitions[0].error_code == wanted
        for fetch in fetches:
            _fails(monkeypatch, MovedProgress, "committed", 1)
            for wanted in (ErrorCode.UNSTABLE_OFFSET_COMMIT, ErrorCode.NONE):
                assert client.ask(fetch).topics[0].partitions[0].error_code == wanted
        given = client.ask(join)
        assert given.error_code == ErrorCode.MEMBER_ID_REQUIRED
        join.member_id = given.member_id
        _fails(monkeypatch, Groups, "for_use", 1)
        for wanted in (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NONE):
            assert client.ask(join).error_code == wanted


def test_kafka_09_a_consumer_commits_and_goes_on_when_its_broker_is_back(kafka, topic, monkeypatch) -> None:
    kafka.api.put_topic(topic, partitions=1)
    assert kafka.api.send(topic, "one", "two").status == 200
    _fails(monkeypatch, Groups, "for_use", 1)
    _fails(monkeypatch, MovedProgress, "committed", 1)
    _fails(monkeypatch, GroupCommits, "in_partition", 1)
    consumer = Consumer(
        {"bootstrap.servers": kafka.address, "group.id": topic, "auto.offset.reset": "earliest", "retry.backoff.ms": 20}
    )
    try:
        consumer.subscribe([topic])
        found = [one.value() for _ in range(2) if (one := consumer.poll(30)) is not None]
        assert found == [b"one", b"two"]
        consumer.commit(asynchronous=False)
        assert consumer.committed([Place(topic, 0)], 30)[0].offset == 2
    finally:
        consumer.close()
