"""Groups of unmodified Kafka consumers (SPEC KAFKA-9)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import ConsumerGroupState as State
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient

from tests.api.kafka.door import KafkaApi, kafka_running
from tests.api.running import until

TIMEOUT_S = 60


@pytest.fixture(scope="module")
def kafka(tmp_path_factory) -> Iterator[KafkaApi]:
    with kafka_running(tmp_path_factory.mktemp("warehouse")) as found:
        yield found


@pytest.fixture
def group(topic) -> str:
    return f"group.of.{topic}"


def _fill(kafka: KafkaApi, topic: str, count: int, partitions: int = 4, start: int = 0) -> set[bytes]:
    kafka.api.put_topic(topic, partitions=partitions)
    producer = Producer({"bootstrap.servers": kafka.address})
    bodies = {b"message %d" % number for number in range(start, start + count)}
    for number, body in enumerate(sorted(bodies)):
        producer.produce(topic, value=body, partition=number % partitions)
    assert producer.flush(TIMEOUT_S) == 0
    return bodies


def _member(kafka: KafkaApi, group: str, topic: str, **settings) -> Consumer:
    base = {
        "bootstrap.servers": kafka.address,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "heartbeat.interval.ms": 200,
    }
    consumer = Consumer({**base, **settings})
    consumer.subscribe([topic])
    return consumer


def _play(members: list[Consumer], done) -> list[bytes]:
    """Let the members read in turns until `done(bodies)`; each commits what it has got."""
    found: list[bytes] = []
    deadline = time.monotonic() + TIMEOUT_S
    while not done(found):
        assert time.monotonic() < deadline, "the members did not come so far"
        for member in members:
            got = [one for one in member.consume(100, 0.05) if one.error() is None]
            found += [one.value() for one in got]
            if got:
                member.commit(asynchronous=False)
    return found


def _spread(members: list[Consumer], partitions: int) -> bool:
    parts = [{one.partition for one in member.assignment()} for member in members]
    return all(parts) and sum(map(len, parts)) == partitions == len(set().union(*parts))


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_kafka_09_members_share_the_partitions_and_commit_what_everybody_sees(kafka, topic, group, strategy) -> None:
    bodies = _fill(kafka, topic, 200)
    members = [_member(kafka, group, topic, **{"partition.assignment.strategy": strategy}) for _ in range(2)]
    found = _play(members, lambda got: len(got) >= 200 and _spread(members, 4))
    assert set(found) == bodies
    shown = kafka.api.call("GET", f"/v1/groups/{group}/topics/{topic}/offsets").json["offsets"]
    assert shown == kafka.api.stored(topic)
    for member in members:
        member.close()
    (again,) = [_member(kafka, group, topic)]
    more = _fill(kafka, topic, 20, start=1_000)
    assert set(_play([again], lambda got: len(got) >= 20)) == more  # it goes on where the others were
    again.close()


def test_kafka_09_a_member_that_leaves_gives_its_partitions_to_the_others(kafka, topic, group) -> None:
    _fill(kafka, topic, 40)
    members = [_member(kafka, group, topic) for _ in range(3)]
    _play(members, lambda _: _spread(members, 4))
    members.pop().close()
    _play(members, lambda _: _spread(members, 4))
    for member in members:
        member.close()


def test_kafka_09_offsets_that_rest_commits_are_where_kafka_consumers_begin(kafka, topic, group) -> None:
    _fill(kafka, topic, 10, partitions=1)
    (partition,) = kafka.api.stored(topic)
    path = f"/v1/groups/{group}/topics/{topic}/offsets"
    assert kafka.api.call("PUT", path, {"offsets": {partition: 7}}).status == 200
    member = _member(kafka, group, topic)
    assert len(_play([member], lambda got: len(got) >= 3)) == 3
    member.close()
    assert kafka.api.call("GET", path).json["offsets"] == {partition: 10}


def test_kafka_09_a_commit_moves_forward_only(kafka, topic, group) -> None:
    _fill(kafka, topic, 10, partitions=1)
    consumer = Consumer({"bootstrap.servers": kafka.address, "group.id": group})
    (none,) = consumer.committed([Place(topic, 0)], TIMEOUT_S)
    assert none.offset < 0
    for offset in (8, 3):
        consumer.commit(offsets=[Place(topic, 0, offset)], asynchronous=False)
    (found,) = consumer.committed([Place(topic, 0)], TIMEOUT_S)
    assert found.offset == 8
    with pytest.raises(KafkaException):
        consumer.commit(offsets=[Place(topic, 0, 99)], asynchronous=False)
    consumer.close()


def test_kafka_09_groups_are_listed_described_and_deleted(kafka, topic, group) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.address})
    _fill(kafka, topic, 10, partitions=2)
    member = _member(kafka, group, topic, **{"client.id": "worker"})
    _play([member], lambda got: len(got) >= 10)

    def described():
        return admin.describe_consumer_groups([group])[group].result(TIMEOUT_S)

    assert described().state is State.STABLE
    (shown,) = described().members
    assert shown.client_id == "worker" and len(shown.assignment.topic_partitions) == 2
    assert group in {one.group_id for one in admin.list_consumer_groups().result(TIMEOUT_S).valid}
    with pytest.raises(KafkaException) as error:
        admin.delete_consumer_groups([group])[group].result(TIMEOUT_S)
    assert error.value.args[0].code() == KafkaError.NON_EMPTY_GROUP
    member.close()
    until(lambda: described().state is State.EMPTY)
    admin.delete_consumer_groups([group])[group].result(TIMEOUT_S)
    assert kafka.api.call("GET", f"/v1/groups/{group}").status == 404


def test_kafka_09_groups_that_are_not_shared_take_no_kafka_consumers(kafka, topic, group) -> None:
    _fill(kafka, topic, 1, partitions=1)
    assert kafka.api.call("PUT", f"/v1/groups/{group}", {"consume_strategy": "exclusive"}).status == 201
    member = _member(kafka, group, topic)
    until(lambda: (one := member.poll(0.1)) is not None and one.error().code() == KafkaError.INVALID_GROUP_ID)
    member.close()


def test_kafka_09_aiokafka_is_a_member(kafka, topic, group) -> None:
    bodies = _fill(kafka, topic, 50)

    async def play() -> set[bytes]:
        consumer = AIOKafkaConsumer(
            topic, bootstrap_servers=kafka.address, group_id=group, auto_offset_reset="earliest"
        )
        async with consumer:
            return {(await asyncio.wait_for(consumer.getone(), TIMEOUT_S)).value for _ in range(50)}

    assert asyncio.run(play()) == bodies
    until(lambda: kafka.api.call("GET", f"/v1/groups/{group}/topics/{topic}/offsets").json["offsets"])


def test_kafka_09_a_static_member_that_comes_back_disturbs_nobody(kafka, topic, group) -> None:
    _fill(kafka, topic, 40)
    revoked: list[object] = []
    members = [
        _member(kafka, group, topic, **{"group.instance.id": name, "session.timeout.ms": 20_000}) for name in "ab"
    ]
    _play(members, lambda got: len(got) >= 40 and _spread(members, 4))
    members[1].subscribe([topic], on_revoke=lambda _, parts: revoked.append(parts))
    until(lambda: members[1].poll(0.05) is None and _spread(members, 4))
    admin = AdminClient({"bootstrap.servers": kafka.address})

    def described():
        return admin.describe_consumer_groups([group])[group].result(TIMEOUT_S)

    def parts_of(name: str) -> set[int]:
        (found,) = (one for one in described().members if one.group_instance_id == name)
        return {one.partition for one in found.assignment.topic_partitions}

    until(lambda: members[1].poll(0.05) is None and described().state is State.STABLE)
    had = parts_of("a")
    revoked.clear()
    members[0].close()  # a static member says no goodbye
    members[0] = _member(kafka, group, topic, **{"group.instance.id": "a", "session.timeout.ms": 20_000})
    until(lambda: [one.poll(0.05) for one in members] and members[0].assignment())
    assert {one.partition for one in members[0].assignment()} == had == parts_of("a")
    assert not revoked and described().state is State.STABLE
    fenced = _member(kafka, group, topic, **{"group.instance.id": "b", "session.timeout.ms": 20_000})
    told: list[int] = []

    def is_told() -> bool:
        fenced.poll(0.05)
        message = members[1].poll(0.05)
        if message is not None and message.error() is not None:
            told.append(message.error().code())
        return KafkaError.FENCED_INSTANCE_ID in told or KafkaError._FATAL in told

    until(is_told)
    for one in (*members, fenced):
        one.close()
