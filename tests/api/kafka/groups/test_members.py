"""Groups of unmodified Kafka consumers (SPEC KAFKA-9)."""

from __future__ import annotations

import asyncio
import time
from urllib.parse import quote

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    KafkaError,
    KafkaException,
    Producer,
)
from confluent_kafka import ConsumerGroupState as State
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient

from deltamq.api.kafka.messages.errors import ErrorCode
from deltamq.api.kafka.messages.group_messages import (
    DescribeGroupsRequest,
    GroupProtocol,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeavingMember,
    OffsetDeleteRequest,
    OffsetDeleteTopic,
    PlannedAssignment,
    SyncGroupRequest,
    subscription_of,
)
from tests.api.kafka.door import KafkaApi
from tests.api.kafka.raw_client import RawClient
from tests.api.running import until

TIMEOUT_S = 60


def _fill(kafka: KafkaApi, topic: str, count: int, partitions: int = 4, start: int = 0) -> set[bytes]:
    kafka.api.put_topic(topic, partitions=partitions)
    producer = Producer({"bootstrap.servers": kafka.address})
    bodies = {b"message %d" % number for number in range(start, start + count)}
    for number, body in enumerate(sorted(bodies)):
        producer.produce(topic, value=body, partition=number % partitions)
    assert producer.flush(TIMEOUT_S) == 0
    return bodies


def _fill_two(kafka: KafkaApi, topic: str, kind: str) -> None:
    """Make a plain or a static topic of two partitions with ten messages each."""
    if kind == "plain":
        _fill(kafka, topic, 20, partitions=2)
        return
    assert kafka.api.call("PUT", f"/v1/topics/{topic}", {"static": True, "total_queues": 2}).status == 201
    for queue in range(2):
        sent = [{"body": f"{n}", "partition": f"{queue}@__logical_queue_broker__"} for n in range(10)]
        assert kafka.api.send(topic, *sent).status == 200


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


def test_kafka_09_a_members_commit_moves_forward_only(kafka, topic, group) -> None:
    _fill(kafka, topic, 10, partitions=1)
    consumer = _member(kafka, group, topic)
    _play([consumer], lambda got: len(got) == 10)
    consumer.commit(offsets=[Place(topic, 0, 3)], asynchronous=False)
    (found,) = consumer.committed([Place(topic, 0)], TIMEOUT_S)
    assert found.offset == 10
    consumer.close()


@pytest.mark.parametrize("kind", ["plain", "static"])
def test_kafka_09_an_earlier_commit_to_a_group_without_members_resets_it(kafka, topic, group, kind) -> None:
    _fill_two(kafka, topic, kind)
    member = _member(kafka, group, topic)
    _play([member], lambda got: len(got) == 20)
    admin = AdminClient({"bootstrap.servers": kafka.address})
    to = ConsumerGroupTopicPartitions(group, [Place(topic, 0, 4), Place(topic, 1, 10)])
    refused = admin.alter_consumer_group_offsets([to])[group].result(TIMEOUT_S).topic_partitions
    assert {one.error.code() for one in refused} == {KafkaError.UNKNOWN_MEMBER_ID}, "it has a member"
    path = f"/v1/groups/{group}/topics/{topic}/offsets"
    before = kafka.api.call("GET", path).json
    assert list(before["offsets"].values()) == [10, 10]
    member.close()
    until(lambda: admin.describe_consumer_groups([group])[group].result(TIMEOUT_S).state is State.EMPTY)
    found = admin.alter_consumer_group_offsets([to])[group].result(TIMEOUT_S).topic_partitions
    assert [one.error for one in found] == [None, None]
    after = kafka.api.call("GET", path).json
    assert list(after["offsets"].values()) == [4, 10]
    assert max(after["epochs"].values()) > max(before["epochs"].values())
    again = _member(kafka, group, topic)
    assert len(_play([again], lambda got: len(got) >= 6)) == 6
    again.close()
    listed = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(TIMEOUT_S)
    assert sorted((one.partition, one.offset) for one in listed.topic_partitions) == [(0, 10), (1, 10)]


def test_kafka_09_who_has_not_committed_has_no_offset(kafka, topic, group) -> None:
    _fill(kafka, topic, 10, partitions=1)
    consumer = Consumer({"bootstrap.servers": kafka.address, "group.id": group})
    (none,) = consumer.committed([Place(topic, 0)], TIMEOUT_S)
    assert none.offset < 0
    for offset in (8, 3):
        consumer.commit(offsets=[Place(topic, 0, offset)], asynchronous=False)
    (found,) = consumer.committed([Place(topic, 0)], TIMEOUT_S)
    assert found.offset == 3
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
    for filters in ({}, {"states": {State.STABLE}}, {"types": {ConsumerGroupType.CLASSIC}}):
        (listed,) = (
            one for one in admin.list_consumer_groups(**filters).result(TIMEOUT_S).valid if one.group_id == group
        )
        assert (listed.state, listed.type) == (State.STABLE, ConsumerGroupType.CLASSIC)
    assert group not in {
        one.group_id for one in admin.list_consumer_groups(states={State.EMPTY}).result(TIMEOUT_S).valid
    }
    operations = admin.describe_consumer_groups([group], include_authorized_operations=True)[group]
    assert {one.name for one in operations.result(TIMEOUT_S).authorized_operations} == {"READ", "DELETE", "DESCRIBE"}
    with pytest.raises(KafkaException) as error:
        admin.delete_consumer_groups([group])[group].result(TIMEOUT_S)
    assert error.value.args[0].code() == KafkaError.NON_EMPTY_GROUP
    member.close()
    until(lambda: described().state is State.EMPTY)
    admin.delete_consumer_groups([group])[group].result(TIMEOUT_S)
    assert kafka.api.call("GET", f"/v1/groups/{group}").status == 404


@pytest.mark.parametrize("kind", ["plain", "static"])
def test_kafka_09_deleted_offsets_are_gone_and_the_group_begins_anew(kafka, topic, group, kind) -> None:
    _fill_two(kafka, topic, kind)
    member = _member(kafka, group, topic)
    _play([member], lambda got: len(got) == 20)
    asked = OffsetDeleteRequest(group, [OffsetDeleteTopic(topic, [0, 7]), OffsetDeleteTopic(f"{topic}.none", [0])])
    with RawClient(kafka.port) as raw:
        (reads, _) = raw.ask(asked).topics
        assert {one.error_code for one in reads.partitions} == {ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}
        member.close()
        found = raw.ask(asked)
        assert found.error_code == ErrorCode.NONE
        codes = [[(one.index, one.error_code) for one in named.partitions] for named in found.topics]
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert codes == [[(0, ErrorCode.NONE), (7, unknown)], [(0, unknown)]]
        assert raw.ask(OffsetDeleteRequest("nobody", [])).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    admin = AdminClient({"bootstrap.servers": kafka.address})
    listed = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(TIMEOUT_S)
    assert [(one.partition, one.offset) for one in listed.topic_partitions] == [(1, 10)]
    again = _member(kafka, group, topic)
    assert len(_play([again], lambda got: len(got) >= 10)) == 10
    again.close()
    listed = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(TIMEOUT_S)
    assert sorted((one.partition, one.offset) for one in listed.topic_partitions) == [(0, 10), (1, 10)]


def test_kafka_09_a_subscription_is_read_or_it_is_none() -> None:
    names = b"\0\3\0\0\0\2\0\1a\0\2bc"
    assert subscription_of(names + b"what the version has more") == {"a", "bc"}
    for cut in range(len(names)):
        assert subscription_of(names[:cut]) is None
    assert subscription_of(b"\0\3\0\0\0\1\0\1\xff") is None


def test_kafka_09_groups_that_are_not_shared_take_no_kafka_consumers(kafka, topic, group) -> None:
    _fill(kafka, topic, 1, partitions=1)
    assert kafka.api.call("PUT", f"/v1/groups/{group}", {"consume_strategy": "exclusive"}).status == 201
    member = _member(kafka, group, topic)
    until(lambda: (one := member.poll(0.1)) is not None and one.error().code() == KafkaError.INVALID_GROUP_ID)
    member.close()


@pytest.mark.parametrize("name", ["my app: größe #1?&=+%", "x" * 255])
def test_kafka_17_a_group_is_called_what_its_consumers_call_it(kafka, topic, name) -> None:
    """Over REST it has the same name."""
    _fill(kafka, topic, 10, partitions=1)
    member = _member(kafka, name, topic)
    _play([member], lambda got: len(got) == 10)
    member.close()
    group = f"/v1/groups/{quote(name, safe='')}"
    assert list(kafka.api.call("GET", f"{group}/topics/{topic}/offsets").json["offsets"].values()) == [10]
    assert kafka.api.send(topic, "a", "b").status == 200
    first, second = kafka.api.call("POST", f"{group}/topics/{topic}/pop", {"wait_ms": 1_000}).json["messages"]
    assert kafka.api.call("POST", f"{group}/ack", {"handles": [first["handle"]]}).json["acked"] == 1
    dead = kafka.api.call("POST", f"{group}/dead", {"handles": [second["handle"]], "reason": "broken"})
    assert dead.status == 200, dead
    admin = AdminClient({"bootstrap.servers": kafka.address})
    assert name in {one.group_id for one in admin.list_consumer_groups().result(TIMEOUT_S).valid}
    admin.delete_consumer_groups([name])[name].result(TIMEOUT_S)
    assert kafka.api.call("GET", group).status == 404


@pytest.mark.parametrize("name", ["a/b", "a@b", "a*", "%RETRY%a", "rmq_sys_a", "x" * 256])
def test_kafka_17_a_consumer_is_told_that_its_group_cannot_be_called_so(kafka, name) -> None:
    _taken_by_another_case(kafka, "Taken")
    with RawClient(kafka.port) as raw:
        for refused in (name, "taken"):
            asked = JoinGroupRequest(
                group_id=refused,
                session_timeout_ms=10_000,
                member_id="",
                protocol_type="consumer",
                protocols=[GroupProtocol("range", b"")],
            )
            assert raw.ask(asked, 3).error_code == ErrorCode.INVALID_GROUP_ID


def _taken_by_another_case(kafka: KafkaApi, name: str) -> None:
    assert kafka.api.call("PUT", f"/v1/groups/{name}", {}).status in (200, 201)


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
    members[1].subscribe([topic], on_revoke=lambda _, parts: revoked.append(parts))
    _play(members, lambda got: len(got) >= 40 and _spread(members, 4))
    admin = AdminClient({"bootstrap.servers": kafka.address})

    def described():
        return admin.describe_consumer_groups([group])[group].result(TIMEOUT_S)

    def parts_of(name: str) -> set[int]:
        (found,) = (one for one in described().members if one.group_instance_id == name)
        return {one.partition for one in found.assignment.topic_partitions}

    until(lambda: [one.poll(0.05) for one in members] and described().state is State.STABLE)
    had = parts_of("a")
    revoked.clear()
    members[0].close()  # a static member says no goodbye
    members[0] = _member(kafka, group, topic, **{"group.instance.id": "a", "session.timeout.ms": 20_000})
    until(lambda: [one.poll(0.05) for one in members] and members[0].assignment())
    assert {one.partition for one in members[0].assignment()} == had == parts_of("a")
    assert not revoked and described().state is State.STABLE
    for one in members:
        one.close()


def test_kafka_09_the_former_self_of_a_static_member_is_fenced(kafka, group) -> None:
    with RawClient(kafka.port) as client:

        def join(instance: str | None, member: str = "", version: int = 5):
            asked = JoinGroupRequest(
                group_id=group,
                session_timeout_ms=10_000,
                rebalance_timeout_ms=10_000,
                member_id=member,
                group_instance_id=instance,
                protocol_type="consumer",
                protocols=[GroupProtocol("range", b"")],
            )
            return client.ask(asked, version)

        first = join("one")
        sync = SyncGroupRequest(
            group_id=group,
            generation_id=first.generation_id,
            member_id=first.member_id,
            group_instance_id="one",
            protocol_type="consumer",
            protocol_name="range",
            assignments=[PlannedAssignment(first.member_id, b"all")],
        )
        assert client.ask(sync).assignment == b"all"
        again = join("one")
        assert (again.error_code, again.generation_id, again.leader) == (0, first.generation_id, first.member_id)
        beat = HeartbeatRequest(group, first.generation_id, first.member_id, "one")
        assert client.ask(beat).error_code == ErrorCode.FENCED_INSTANCE_ID
        assert client.ask(sync).error_code == ErrorCode.FENCED_INSTANCE_ID
        kept = HeartbeatRequest(group, first.generation_id, again.member_id, "one")
        assert client.ask(kept).error_code == 0
        given = join(None)
        assert given.error_code == ErrorCode.MEMBER_ID_REQUIRED and given.member_id
        assert join(None, "somebody else").error_code == ErrorCode.UNKNOWN_MEMBER_ID
        left = client.ask(LeaveGroupRequest(group, members=[LeavingMember("", "one")]))
        assert [one.error_code for one in left.members] == [0]
        (shown,) = client.ask(DescribeGroupsRequest([group])).groups
        assert shown.members == []
        joined = join(None, given.member_id)
        assert (joined.error_code, joined.member_id) == (0, given.member_id)
