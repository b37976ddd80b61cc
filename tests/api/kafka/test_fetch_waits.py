"""Fetches that ask for more bytes than there are: they wait, and read again once that is worth it (SPEC KAFKA-3)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from deltamq.api.kafka.messages.errors import ErrorCode
from deltamq.api.kafka.messages.log_messages import FetchedPartition, FetchPartition, FetchRequest, FetchTopic
from deltamq.api.kafka.records.batch import batches_of
from deltamq.api.kafka.records.decode import decode_batches
from deltamq.api.log.partition import Partition
from deltamq.api.reading.readers import PartitionReader
from deltamq.mq.limits import KIB, MIB
from tests.api.kafka.door import KafkaApi
from tests.api.kafka.raw_client import RawClient
from tests.api.running import until
from tests.api.static_calls import StaticTopic

WAIT_MS = 600


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch, topic: str) -> Iterator[list[None]]:
    """One element for each time that a fetch read the topic; queues are read through their partitions, too."""
    found: list[None] = []
    look = PartitionReader.look

    async def counted(reader: PartitionReader, partition: Partition, *args: Any) -> Any:
        if partition.ref.topic == topic:  # clients of earlier tests may read yet
            found.append(None)
        return await look(reader, partition, *args)

    monkeypatch.setattr(PartitionReader, "look", counted)
    yield found


def _request(
    topic: str, *, wait_ms: int = WAIT_MS, bytes_min: int = KIB, bytes_max: int = MIB, partition_max: int = MIB
) -> FetchRequest:
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=partition_max)
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=bytes_min,
        max_bytes=bytes_max,
        topics=[FetchTopic(name=topic, partitions=[wanted])],
    )


def _values(found: FetchedPartition) -> list[str]:
    batches = list(batches_of(bytes(found.records or b"")))
    return [value.decode() for value in decode_batches(batches).value.to_pylist()] if batches else []


@pytest.fixture(params=["plain", "static"])
def filled(request: pytest.FixtureRequest, kafka: KafkaApi, topic: str) -> str:
    """A topic with one partition that has two messages."""
    if request.param == "plain":
        kafka.api.put_topic(topic, partitions=1)
    else:
        assert StaticTopic(kafka.api, topic).put(1).status == 201
    assert kafka.api.send(topic, "one", "two").status == 200
    return topic


def test_kafka_03_a_fetch_that_finds_too_little_waits_and_does_not_read_on_and_on(kafka, filled, reads) -> None:
    with RawClient(kafka.port) as client:
        begun = time.monotonic()
        found = client.ask(_request(filled)).topics[0].partitions[0]
        assert time.monotonic() - begun >= WAIT_MS / 1000
    assert _values(found) == ["one", "two"]
    assert len(reads) <= 2, "once at its beginning, once at its end"


def test_kafka_03_a_partition_that_has_more_than_it_may_give_is_not_read_again_for_it(kafka, filled, reads) -> None:
    assert kafka.api.send(filled, *("x" * 200 for _ in range(20))).status == 200
    with RawClient(kafka.port) as client:
        found = client.ask(_request(filled, partition_max=300)).topics[0].partitions[0]
    assert 0 < len(_values(found)) < 22
    assert len(reads) <= 2


def test_kafka_14_the_smallest_limits_get_more_than_a_record(kafka, filled) -> None:
    assert kafka.api.send(filled, *("x" * 50 for _ in range(40))).status == 200
    with RawClient(kafka.port) as client:
        found = client.ask(_request(filled, partition_max=1, bytes_max=1)).topics[0].partitions[0]
    assert 2 < len(_values(found)) < 42
    assert 256 < len(found.records) < 2_048


def test_kafka_03_a_fetch_is_answered_at_once_when_it_may_not_have_what_it_asks_for(kafka, filled) -> None:
    assert kafka.api.send(filled, *("x" * 200 for _ in range(20))).status == 200
    with RawClient(kafka.port) as client:
        begun = time.monotonic()
        request = _request(filled, wait_ms=20_000, bytes_min=MIB, bytes_max=KIB)
        assert _values(client.ask(request).topics[0].partitions[0])
        assert time.monotonic() - begun < 10


def test_kafka_03_a_fetch_that_waits_is_answered_when_enough_has_come(kafka, filled, reads) -> None:
    answers: list[FetchedPartition] = []

    def fetch() -> None:
        with RawClient(kafka.port) as client:
            answers.append(client.ask(_request(filled, wait_ms=20_000)).topics[0].partitions[0])

    begun = time.monotonic()
    thread = threading.Thread(target=fetch)
    thread.start()
    until(lambda: reads)
    bodies = [f"{number:03}".ljust(60, ".") for number in range(40)]
    for body in bodies:
        assert kafka.api.send(filled, body).status == 200
    thread.join(15)
    assert time.monotonic() - begun < 15
    values = _values(answers[0])
    assert values == ["one", "two", *bodies][: len(values)]
    assert len(values) > 10
    assert len(reads) < 10, "a commit alone does not have everything read again"


def test_kafka_03_messages_are_counted_once_however_often_a_fetch_read_them(kafka, filled, reads) -> None:
    def counted() -> int:
        lines = kafka.api.call("GET", "/metrics").body.decode().splitlines()
        mark = f'deltamq_fetched_messages_total{{topic="{filled}"}} '
        return sum(int(float(line.removeprefix(mark))) for line in lines if line.startswith(mark))

    with RawClient(kafka.port) as client:
        client.ask(_request(filled))
    assert counted() == 2


def test_rely_08_the_fetches_of_one_connection_wait_one_after_the_other_and_take_one_place(kafka, filled) -> None:
    """As in Kafka: connections with many fetches each would take the places of all other answers."""
    answers = kafka.api.service.answers
    with RawClient(kafka.port) as client:
        frames = [client.send(_request(filled, wait_ms=20_000)) for _ in range(5)]
        until(lambda: answers.requests == 1)
        with RawClient(kafka.port) as other:
            assert _values(other.ask(_request(filled, wait_ms=0)).topics[0].partitions[0]) == ["one", "two"]
        until(lambda: answers.requests == 1)
        begun = time.monotonic()
        assert kafka.api.send(filled, "x" * 2 * KIB).status == 200
        found = [_values(client.receive(frame).topics[0].partitions[0]) for frame in frames]
    assert found == [["one", "two", "x" * 2 * KIB]] * 5
    assert time.monotonic() - begun < 15, "one large message is enough, though those before it were small"
    until(lambda: not answers.requests)


@pytest.mark.parametrize(("session", "epoch"), [(0, -1), (0, 0), (-1, -1), (77, -1), (77, 0)])
def test_kafka_14_a_fetch_of_no_session_is_whole_whatever_its_id(kafka, filled, session, epoch) -> None:
    request = _request(filled, wait_ms=0)
    request.session_id, request.session_epoch = session, epoch
    with RawClient(kafka.port) as client:
        assert _values(client.ask(request).topics[0].partitions[0]) == ["one", "two"]
        request.session_id, request.session_epoch = 77, 3
        assert client.ask(request).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND, "there are no sessions to go on"


def test_kafka_14_a_partition_with_an_error_has_no_records_and_not_none(kafka, filled) -> None:
    request = _request(filled, wait_ms=0)
    request.topics[0].partitions[0].fetch_offset = 99
    request.topics.append(
        FetchTopic(name="nowhere", partitions=[FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=KIB)])
    )
    with RawClient(kafka.port) as client:
        found = [one.partitions[0] for one in client.ask(request).topics]
    assert [(one.error_code, bytes(one.records or b"?")) for one in found] == [
        (ErrorCode.OFFSET_OUT_OF_RANGE, b"?"),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, b"?"),
    ]
    assert None not in [one.records for one in found]
