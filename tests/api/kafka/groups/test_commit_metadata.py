"""The metadata texts of committed offsets: Kafka's clients, REST and the SDK (SPEC KAFKA-13)."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Place

from deltamq import Admin
from deltamq.api.kafka.messages.errors import ErrorCode
from deltamq.api.kafka.messages.group_messages import (
    CommitPartition,
    CommitTopic,
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetFetchTopic,
)
from deltamq.mq.errors import Unprocessable
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.queue.recovery import recover
from tests.api.kafka.door import KafkaApi, kafka_running
from tests.api.kafka.raw_client import RawClient
from tests.api.running import PROBLEM

TIMEOUT_S = 60
KINDS = pytest.mark.parametrize("kind", ["plain", "static"])


def _url(kafka: KafkaApi) -> str:
    return f"http://127.0.0.1:{kafka.api.port}"


def _fill(kafka: KafkaApi, topic: str, kind: str = "plain") -> list[str]:
    """Make a topic of two partitions with ten messages each; return what REST calls them."""
    if kind == "static":
        assert kafka.api.call("PUT", f"/v1/topics/{topic}", {"static": True, "total_queues": 2}).status == 201
        names = [f"{queue}@__logical_queue_broker__" for queue in range(2)]
    else:
        kafka.api.put_topic(topic, partitions=2)
        with Admin(_url(kafka)) as admin:
            names = [one.partition for one in admin.get_topic(topic).partitions]
    for name in names:
        assert kafka.api.send(topic, *({"body": f"{n}", "partition": name} for n in range(10))).status == 200
    return names


def _commit(raw: RawClient, group: str, topic: str, *asked: tuple[int, int, str | None]) -> list[tuple[int, int]]:
    """Commit `(partition, offset, text)` as somebody without a membership; return partitions with their codes."""
    (found,) = raw.ask(_request(group, topic, *asked)).topics
    return sorted((one.index, one.error_code) for one in found.partitions)


def _fetch(raw: RawClient, group: str, topic: str, version: int | None = None) -> list[tuple[int, str]]:
    (found,) = raw.ask(OffsetFetchRequest(group, [OffsetFetchTopic(name=topic, partitions=[0, 1])]), version).topics
    return [(one.offset, one.metadata) for one in sorted(found.partitions, key=lambda one: one.index)]


@KINDS
def test_kafka_13_the_text_of_a_commit_comes_back_until_the_next_commit(kafka, topic, group, kind) -> None:
    names = _fill(kafka, topic, kind)
    done = [(0, ErrorCode.NONE), (1, ErrorCode.NONE)]
    with RawClient(kafka.port) as raw:
        assert _commit(raw, group, topic, (0, 3, "one"), (1, 5, "")) == done
        for version in (1, None):
            assert _fetch(raw, group, topic, version) == [(3, "one"), (5, "")]
        assert _commit(raw, group, topic, (0, 3, "two \N{EURO SIGN}"), (1, 5, "late")) == done
        assert _fetch(raw, group, topic) == [(3, "two \N{EURO SIGN}"), (5, "late")], "the same offset, another text"
        path = f"/v1/groups/{group}/topics/{topic}/offsets"
        back = kafka.api.call("PUT", path, {"offsets": {names[0]: 2}, "metadata": {names[0]: "back"}})
        assert back.json["offsets"] == {names[0]: 3}
        assert _fetch(raw, group, topic)[0] == (3, "two \N{EURO SIGN}"), "an earlier commit is ignored with its text"
        assert _commit(raw, group, topic, (0, 3, None), (1, 6, None)) == done
        assert _fetch(raw, group, topic) == [(3, ""), (6, "")], "a commit without a text clears it"
        assert _commit(raw, group, topic, (0, 10, "end"), (1, 99, "beyond")) == done
        assert _fetch(raw, group, topic) == [(10, "end"), (99, "beyond")]


def _request(group: str, topic: str, *asked: tuple[int, int, str | None]) -> OffsetCommitRequest:
    partitions = [CommitPartition(index=index, offset=offset, metadata=text) for index, offset, text in asked]
    return OffsetCommitRequest(
        group_id=group, generation_id=-1, member_id="", topics=[CommitTopic(name=topic, partitions=partitions)]
    )


@KINDS
def test_kafka_13_of_commits_sent_at_once_the_last_text_counts(kafka, topic, group, kind) -> None:
    _fill(kafka, topic, kind)
    with RawClient(kafka.port) as raw:
        for last in ("", "a", "z"):
            texts = [*(f"text {number}" for number in range(20, 0, -1)), last]
            sent = [raw.send(_request(group, topic, (0, 5, text), (1, 5, "same"))) for text in texts]
            for frame in sent:
                (answer,) = raw.receive(frame).topics
                assert [one.error_code for one in answer.partitions] == [ErrorCode.NONE, ErrorCode.NONE]
            assert _fetch(raw, group, topic) == [(5, last), (5, "same")]


@KINDS
def test_kafka_13_a_reset_clears_the_text_but_one_that_is_a_commit_has_its_own(kafka, topic, group, kind) -> None:
    names = _fill(kafka, topic, kind)
    with RawClient(kafka.port) as raw:
        _commit(raw, group, topic, (0, 6, "before"), (1, 6, "before"))
        reset = kafka.api.call("POST", f"/v1/groups/{group}/topics/{topic}/offsets/reset", {"to": {names[0]: 6}})
        assert reset.status == 200
        assert _fetch(raw, group, topic) == [(6, ""), (6, "before")]
        assert _commit(raw, group, topic, (0, 4, "back"), (1, 4, None)) == [(0, ErrorCode.NONE), (1, ErrorCode.NONE)]
        assert _fetch(raw, group, topic) == [(4, "back"), (4, "")]


@KINDS
def test_kafka_13_too_large_a_text_refuses_its_partition_alone(kafka, topic, group, kind) -> None:
    _fill(kafka, topic, kind)
    large, codes = "x" * 4_097, [(0, ErrorCode.OFFSET_METADATA_TOO_LARGE), (1, ErrorCode.NONE)]
    assert ErrorCode.OFFSET_METADATA_TOO_LARGE == 12
    with RawClient(kafka.port) as raw:
        _commit(raw, group, topic, (0, 3, "kept"), (1, 3, "old"))
        assert _commit(raw, group, topic, (0, 5, large), (1, 5, large[1:])) == codes
        assert _fetch(raw, group, topic) == [(3, "kept"), (5, large[1:])]
        assert _commit(raw, group, topic, (0, 1, large), (1, 1, None)) == codes, "nor does it reset anything"
        assert _fetch(raw, group, topic) == [(3, "kept"), (1, "")]


def test_kafka_13_librdkafka_commits_texts_and_reads_them(kafka, topic, group) -> None:
    _fill(kafka, topic)
    consumer = Consumer({"bootstrap.servers": kafka.address, "group.id": group, "enable.auto.commit": False})
    places = [Place(topic, 0), Place(topic, 1)]

    def committed() -> list[tuple[int, str | None]]:
        return [(one.offset, one.metadata or None) for one in consumer.committed(places, TIMEOUT_S)]

    consumer.commit(offsets=[Place(topic, 0, 4, metadata="four"), Place(topic, 1, 2)], asynchronous=False)
    assert committed() == [(4, "four"), (2, None)]
    consumer.commit(offsets=[Place(topic, 0, 4, metadata="again"), Place(topic, 1, 2, metadata="two")])
    consumer.commit(offsets=[Place(topic, 0, 4, metadata="last")], asynchronous=False)
    assert committed() == [(4, "last"), (2, "two")]
    consumer.close()
    member = Consumer({"bootstrap.servers": kafka.address, "group.id": group, "enable.auto.commit": False})
    member.subscribe([topic])
    assert member.consume(1, TIMEOUT_S), "it is a member"
    member.commit(offsets=[Place(topic, 0, 9, metadata="a member's")], asynchronous=False)
    assert [(one.offset, one.metadata) for one in member.committed(places[:1], TIMEOUT_S)] == [(9, "a member's")]
    member.close()


@KINDS
def test_kafka_13_texts_outlive_the_process(tmp_path: Path, kind: str) -> None:
    """A process that is killed leaves the tables, and nothing else: they have the text before the commit's answer."""
    with kafka_running(tmp_path) as kafka:
        _fill(kafka, "orders", kind)
        with RawClient(kafka.port) as raw:
            for text in ("one", "two", "three"):
                _commit(raw, "billing", "orders", (0, 4, text), (1, 4, text))
            _commit(raw, "billing", "orders", (1, 4, ""))
        other = Warehouse.open(str(tmp_path))
        brokers = [*kafka.api.service.meta.now.brokers.available]
        known = recover(other, "deltamq", brokers).committed
        assert sorted(one.metadata for lane, one in known.items() if one.offset == 4) == ["", "three"]
        other.close()
    with kafka_running(tmp_path) as kafka, RawClient(kafka.port) as raw:
        assert _fetch(raw, "billing", "orders") == [(4, "three"), (4, "")]
        _commit(raw, "billing", "orders", (0, 4, "four"))
        assert _fetch(raw, "billing", "orders") == [(4, "four"), (4, "")]


@KINDS
def test_kafka_13_rest_and_the_sdk_have_the_same_texts(kafka, topic, group, kind) -> None:
    first, second = _fill(kafka, topic, kind)
    with Admin(_url(kafka)) as admin, RawClient(kafka.port) as raw:
        admin.commit_offsets(group, topic, {first: 3, second: 4}, metadata={first: "by hand"})
        assert _fetch(raw, group, topic) == [(3, "by hand"), (4, "")]
        _commit(raw, group, topic, (1, 7, "by Kafka"))
        (shown,) = admin.get_group(group).topics
        assert {one.partition: one.metadata for one in shown.partitions if not one.retry} == {
            first: "by hand",
            second: "by Kafka",
        }
        with pytest.raises(Unprocessable) as refused:
            admin.commit_offsets(group, topic, {first: 5, second: 9}, metadata={second: "x" * 4_097})
        assert (refused.value.code, refused.value.field) == ("commit_metadata_too_large", f"metadata.{second}")
        path = f"/v1/groups/{group}/topics/{topic}/offsets"
        other = kafka.api.call("PUT", path, {"offsets": {first: 5}, "metadata": {second: "whose"}})
        assert (other.status, other.json["field"], other.headers["content-type"]) == (
            422,
            f"metadata.{second}",
            PROBLEM,
        )
        assert _fetch(raw, group, topic) == [(3, "by hand"), (7, "by Kafka")], "what is refused stores nothing"
        views = kafka.api.call("GET", path).json["partitions"]
        assert [one["metadata"] for one in views if not one["retry"]] == ["by hand", "by Kafka"]
