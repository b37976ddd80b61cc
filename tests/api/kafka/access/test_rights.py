"""What a client of Kafka may do (SPEC KAFKA-11)."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from deltamq.api.kafka.messages.apis import APIS
from deltamq.api.kafka.messages.cluster_messages import (
    DescribeConfigsRequest,
    DescribeLogDirsRequest,
    MetadataRequest,
    MetadataRequestTopic,
)
from deltamq.api.kafka.messages.errors import ErrorCode
from deltamq.api.kafka.messages.group_messages import (
    CommitPartition,
    CommitTopic,
    DescribeGroupsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
)
from deltamq.api.kafka.messages.log_messages import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from deltamq.mq.auth.principals import CLUSTER
from deltamq.mq.names import CONSUMER_OFFSETS
from tests.api.kafka.access.callers import TIMEOUT_S, Caller, everything, send
from tests.api.kafka.access.calls import ANYTHING, REFUSED, errors_in
from tests.api.kafka.groups.test_offsets_topic import commits
from tests.api.running import until

#: The end of the first partition.
_END = ListOffsetsPartition(index=0, timestamp=-1)
_NEEDS = {api.request: api.needs for api in APIS.values()}


def test_kafka_11_every_call_says_what_it_needs() -> None:
    assert set(ANYTHING) == {call for call, needs in _NEEDS.items() if needs != "open"}


@pytest.mark.parametrize("call", ANYTHING, ids=lambda one: one.__name__)
def test_kafka_11_a_principal_without_a_grant_is_refused_by_every_call(door, call) -> None:
    if "nobody" not in door.admin.service.meta.now.auth.principals:
        door.admin.put_topic("secret")
        door.caller("nobody")
        door.admin.send("secret", "hidden")
    nobody = Caller(door, "nobody", "", door.admin.key("nobody")["key"])
    with nobody.raw() as client:
        answer = client.ask(ANYTHING[call]("secret"))
        codes = errors_in(answer) - {0}
        assert codes and codes <= REFUSED, answer
        kind = _NEEDS[call].split(" ")[0]
        wanted = {"topic": 29, "group": 30, "any": 31, "cluster": 31}[kind]
        assert codes == {wanted}, answer
        unknown = errors_in(client.ask(ANYTHING[call]("no-such"))) - {0}
        assert unknown == codes, "it does not tell whether there is such a topic or group"
    for one in door.admin.service.meta.now.auth.keys_of("nobody"):
        door.admin.call("DELETE", f"/v1/auth/keys/{one.id}")


@pytest.mark.parametrize("call", ANYTHING, ids=lambda one: one.__name__)
def test_kafka_11_what_the_table_says_is_enough_for_a_call(door, call, topic) -> None:
    door.admin.put_topic(topic, partitions=1)
    needs = [one.split(" ") for one in _NEEDS[call].split(", ") if " " in one] or [["topic", "describe"]]
    rules = [(resource, CLUSTER if resource == "cluster" else topic, verb) for resource, verb in needs]
    caller = door.caller(topic, *rules)
    with caller.raw() as client:
        codes = errors_in(client.ask(ANYTHING[call](topic)))
        assert codes.isdisjoint(REFUSED)


def test_kafka_11_lists_show_what_may_be_described(door, topic) -> None:
    for name in (f"{topic}.mine", f"{topic}.other"):
        door.admin.put_topic(name, partitions=1)
        assert door.admin.call("PUT", f"/v1/groups/{name}", {}).status in (200, 201)
        path = f"/v1/groups/{topic}.mine/topics/{name}/offsets"
        assert door.admin.call("PUT", path, {"offsets": {f"{name}@broker-a": 0}}).status == 200
    caller = door.caller(topic, ("topic", f"{topic}.mine", "describe"), ("group", f"{topic}.mine", "describe"))
    client = AdminClient(caller.settings())
    assert set(client.list_topics(timeout=TIMEOUT_S).topics) == {f"{topic}.mine"}
    groups = client.list_consumer_groups().result(TIMEOUT_S).valid
    assert [one.group_id for one in groups] == [f"{topic}.mine"]
    with caller.raw() as raw:
        found = raw.ask(OffsetFetchRequest(f"{topic}.mine", None))
        assert [one.name for one in found.topics] == [f"{topic}.mine"]


def test_kafka_11_librdkafka_is_told_what_it_may_not(door, topic) -> None:
    door.admin.put_topic(topic, partitions=1)
    door.admin.put_topic(f"{topic}.closed", partitions=1)
    caller = door.caller(topic, ("topic", topic, "publish"), ("topic", f"{topic}.closed", "describe"))
    settings = caller.settings()
    send(settings, topic, "one")
    with pytest.raises(KafkaException) as error:
        send(settings, f"{topic}.closed", "one")
    assert error.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    admin = AdminClient(settings)
    (made,) = admin.create_topics([NewTopic(f"{topic}.new", 1)]).values()
    with pytest.raises(KafkaException) as error:
        made.result(TIMEOUT_S)
    assert error.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    consumer = Consumer({**settings, "group.id": topic})
    consumer.subscribe([topic])
    told: list[int] = []
    until(lambda: (one := consumer.poll(0.1)) is not None and (told.append(one.error().code()) or True))
    consumer.close()
    assert told == [KafkaError.GROUP_AUTHORIZATION_FAILED]


def test_kafka_11_a_topic_is_made_by_its_first_producer_if_that_may_make_it(door, topic) -> None:
    maker = door.caller(topic, ("topic", f"{topic}*", "publish", "create"))
    send(maker.settings(), f"{topic}.a", "one")
    assert door.admin.partitions(f"{topic}.a")
    other = door.caller(f"{topic}-other", ("topic", f"{topic}*", "publish"))
    with pytest.raises(KafkaException) as error:
        send(other.settings(**{"message.timeout.ms": 3_000}), f"{topic}.b", "one")
    assert error.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert not door.admin.partitions(f"{topic}.b")


def test_kafka_17_groups_say_what_the_caller_may_do(door, topic) -> None:
    assert door.admin.call("PUT", f"/v1/groups/{topic}", {}).status == 201
    read, delete, describe = 1 << 3, 1 << 6, 1 << 8
    for verbs, bits in ((["describe"], describe), (["subscribe", "delete"], read | delete | describe)):
        with door.caller(topic, *(("group", topic, verb) for verb in verbs)).raw() as raw:
            (told,) = raw.ask(DescribeGroupsRequest([topic], include_operations=True)).groups
            assert (told.error_code, told.operations) == (0, bits)
            (untold,) = raw.ask(DescribeGroupsRequest([topic])).groups
            assert untold.operations == -(2**31)


def test_kafka_20_topics_say_what_the_caller_may_do(door, topic) -> None:
    door.admin.put_topic(topic, partitions=1)
    read, write, describe = 1 << 3, 1 << 4, 1 << 8 | 1 << 10
    for verbs, bits in ((["describe"], describe), (["subscribe", "publish"], read | write | describe)):
        with door.caller(topic, *(("topic", topic, verb) for verb in verbs)).raw() as raw:
            told = raw.ask(MetadataRequest([MetadataRequestTopic(name=topic)], False, True, True), 10)
            assert (told.operations, [one.operations for one in told.topics]) == (0, [bits])
            assert [one.name for one in raw.ask(DescribeLogDirsRequest(None)).results[0].topics] == [topic]


def test_kafka_11_who_may_not_reset_a_group_cannot_put_it_back(door, topic) -> None:
    door.admin.put_topic(topic, partitions=1)
    door.admin.send(topic, "a", "b")
    caller = door.caller(topic, *everything(topic))

    def commit(offset: int) -> set[int]:
        with caller.raw() as client:
            partition = CommitPartition(index=0, offset=offset)
            request = OffsetCommitRequest(
                group_id=topic, generation_id=-1, member_id="", topics=[CommitTopic(name=topic, partitions=[partition])]
            )
            return errors_in(client.ask(request))

    assert commit(2) == {0}
    assert commit(1) == {ErrorCode.GROUP_AUTHORIZATION_FAILED}
    path = f"/v1/groups/{topic}/topics/{topic}/offsets"
    assert door.admin.call("GET", path).json["offsets"] == {f"{topic}@broker-a": 2}
    door.admin.rule(topic, "group", topic, "reset")
    assert commit(1) == {0}
    assert door.admin.call("GET", path).json["offsets"] == {f"{topic}@broker-a": 1}


def test_kafka_30_who_sees_all_topics_and_groups_sees_their_offsets(door, topic) -> None:
    door.admin.put_topic(topic, partitions=1)
    assert door.admin.call("PUT", f"/v1/groups/{topic}", {}).status == 201
    assert door.admin.call("PUT", f"/v1/groups/{topic}/topics/{topic}/offsets", {"offsets": {f"{topic}@broker-a": 0}})
    reads = [("topic", "*", "subscribe"), ("group", "*", "describe")]
    for name, rules in (("some", [("topic", "*", "subscribe"), ("group", topic, "describe")]), ("none", reads[1:])):
        caller = door.caller(f"{topic}.{name}", *rules)
        assert CONSUMER_OFFSETS not in AdminClient(caller.settings()).list_topics(timeout=TIMEOUT_S).topics
        with caller.raw() as raw:
            for call in (MetadataRequest, FetchRequest, ListOffsetsRequest, DescribeConfigsRequest):
                codes = errors_in(raw.ask(ANYTHING[call](CONSUMER_OFFSETS))) - {0}
                assert codes == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}, call
    watcher = door.caller(f"{topic}.all", *reads)
    assert CONSUMER_OFFSETS in AdminClient(watcher.settings()).list_topics(timeout=TIMEOUT_S).topics
    assert topic in {one.group for one in commits("", watcher.settings())}


def test_kafka_30_a_reader_of_all_offsets_loses_it_with_its_rights(door, topic) -> None:
    watcher = door.caller(topic, ("topic", "*", "subscribe"))
    rule = door.admin.rule(topic, "group", "*", "describe")
    with watcher.raw() as raw:
        (topics,) = raw.ask(ListOffsetsRequest(topics=[ListOffsetsTopic(CONSUMER_OFFSETS, [_END])])).topics
        (end,) = topics.partitions
        wanted = FetchPartition(partition=0, fetch_offset=end.offset, partition_max_bytes=1_000)
        topics = [FetchTopic(name=CONSUMER_OFFSETS, partitions=[wanted])]
        raw.send(FetchRequest(max_wait_ms=60_000, min_bytes=1, max_bytes=1_000, topics=topics))
        assert door.admin.call("DELETE", f"/v1/auth/acls/{rule}").status == 204
        assert raw.socket.recv(1) == b"", "the connection is closed while the fetch waits"
