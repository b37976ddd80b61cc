"""Offsets beyond a partition's end, which Kafka's clients commit when a topic was made anew (SPEC KAFKA-16)."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient

from tests.api.kafka.door import KafkaApi

TIMEOUT_S = 60
KINDS = pytest.mark.parametrize("kind", ["plain", "static"])


def _made(kafka: KafkaApi, topic: str, kind: str) -> str:
    """Make a topic of one partition with ten messages; return what REST calls it."""
    static = {"static": True, "total_queues": 1} if kind == "static" else {"partitions": 1}
    assert kafka.api.call("PUT", f"/v1/topics/{topic}", static).status == 201
    _send(kafka, topic, 0, 10)
    (name,) = ["0@__logical_queue_broker__"] if kind == "static" else kafka.api.partitions(topic)
    return name


def _send(kafka: KafkaApi, topic: str, start: int, stop: int) -> None:
    assert kafka.api.send(topic, *({"body": f"{number}"} for number in range(start, stop))).status == 200


def _member(kafka: KafkaApi, group: str, **settings: object) -> Consumer:
    base = {"bootstrap.servers": kafka.address, "group.id": group, "enable.auto.commit": False}
    return Consumer({**base, "auto.offset.reset": "earliest", "heartbeat.interval.ms": 200, **settings})


def _read(member: Consumer, count: int) -> list[str]:
    found: list[str] = []
    while len(found) < count:
        got = member.consume(count - len(found), TIMEOUT_S)
        assert got, f"{len(found)} messages of {count} came"
        found += [one.value().decode() for one in got if one.error() is None]
    return found


def _commit(consumer: Consumer, topic: str, offset: int, text: str = "") -> None:
    (done,) = consumer.commit(offsets=[Place(topic, 0, offset, text)], asynchronous=False)
    assert done.error is None


def _committed(consumer: Consumer, topic: str) -> tuple[int, str]:
    (found,) = consumer.committed([Place(topic, 0)], TIMEOUT_S)
    return found.offset, found.metadata or ""


@KINDS
def test_kafka_16_an_offset_beyond_the_end_is_taken_shown_and_hides_nothing(kafka, topic, group, kind) -> None:
    name = _made(kafka, topic, kind)
    outside = Consumer({"bootstrap.servers": kafka.address, "group.id": group})
    _commit(outside, topic, 99)
    assert _committed(outside, topic) == (99, "")
    assert kafka.api.call("GET", f"/v1/groups/{group}/topics/{topic}/offsets").json["offsets"] == {name: 99}
    _commit(outside, topic, 99, "from the topic before")
    _commit(outside, topic, 120, "still")
    assert _committed(outside, topic) == (120, "still")
    to = ConsumerGroupTopicPartitions(group, [Place(topic, 0, 50)])
    admin = AdminClient({"bootstrap.servers": kafka.address})
    (altered,) = admin.alter_consumer_group_offsets([to])[group].result(TIMEOUT_S).topic_partitions
    assert altered.error is None
    assert _committed(outside, topic) == (50, "")
    outside.close()
    member = _member(kafka, group)
    member.subscribe([topic])
    assert _read(member, 10) == [str(number) for number in range(10)], "Kafka's clients begin where they are told to"
    member.close()


@KINDS
def test_kafka_16_a_member_that_was_beyond_the_end_goes_on_where_it_is(kafka, topic, group, kind) -> None:
    _made(kafka, topic, kind)
    member = _member(kafka, group)
    member.subscribe([topic])
    _read(member, 10)
    _commit(member, topic, 20)
    _commit(member, topic, 20, "again")
    assert _committed(member, topic) == (20, "again")
    _commit(member, topic, 15)
    assert _committed(member, topic) == (15, ""), "beyond the end as well"
    _commit(member, topic, 3, "three")
    assert _committed(member, topic) == (3, "three")
    _commit(member, topic, 20)
    _send(kafka, topic, 10, 30)
    _commit(member, topic, 5)
    assert _committed(member, topic) == (5, ""), "the end has passed what nobody had consumed"
    _commit(member, topic, 4)
    assert _committed(member, topic) == (5, ""), "a member's commit never moves back otherwise"
    _commit(member, topic, 30)
    assert _committed(member, topic) == (30, "")
    member.close()


@KINDS
def test_kafka_16_who_pops_over_rest_goes_on_behind_the_offset_that_was_committed(kafka, topic, group, kind) -> None:
    _made(kafka, topic, kind)
    outside = Consumer({"bootstrap.servers": kafka.address, "group.id": group})
    _commit(outside, topic, 12)
    outside.close()
    _send(kafka, topic, 10, 14)
    popped = kafka.api.call("POST", f"/v1/groups/{group}/topics/{topic}/pop", {"max_messages": 10, "wait_ms": 5_000})
    assert [one["body"] for one in popped.json["messages"]] == ["12", "13"]
