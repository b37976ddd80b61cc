"""Kafka's clients with TLS, authentication, access rules and quotas (SPEC KAFKA-11)."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from api.auth import Gate
from api.kafka.access import Session
from api.kafka.access.needs import NEEDS
from api.kafka.messages import (
    ApiVersionsRequest,
    CreatePartitionsRequest,
    CreateTopic,
    CreateTopicsRequest,
    DeleteGroupsRequest,
    DeleteTopicsRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeGroupsRequest,
    ErrorCode,
    FetchPartition,
    FetchRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    InitProducerIdRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
    Message,
    MetadataRequest,
    NewPartitions,
    OffsetCommitRequest,
    OffsetFetchRequest,
    ProducePartition,
    ProduceRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
    SyncGroupRequest,
)
from api.kafka.messages.apis import APIS
from api.kafka.messages.cluster_messages import ConfigResource, MetadataRequestTopic
from api.kafka.messages.group_messages import CommitPartition, CommitTopic, GroupProtocol, OffsetFetchTopic
from api.kafka.messages.log_messages import FetchTopic, ListOffsetsTopic, ProduceTopic
from mq.auth.state import AuthState, KeyPut
from tables.config_sections import Secret, TlsClientAuth
from tests.api.guarded import SECRET, Guarded, guarded
from tests.api.kafka.door import free_port, kafka_running
from tests.api.kafka.raw_client import RawClient
from tests.api.running import until
from tests.certificates import Authority
from tests.identity_provider import provider

TIMEOUT_S = 30
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")


@dataclass
class Door:
    """A guarded service with a Kafka port, as its administrator sees it, and callers of their own."""

    admin: Guarded
    port: int
    ca: str

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def caller(self, name: str, *rules: tuple[str, ...]) -> Caller:
        """A new principal with these rules, each a resource, a pattern, and verbs."""
        self.admin.put_principal(name)
        for resource, pattern, *verbs in rules:
            self.admin.rule(name, resource, pattern, *verbs)
        return self.known(name)

    def known(self, name: str, **more: object) -> Caller:
        """A principal that is there, with a new key."""
        made = self.admin.key(name, **more)
        return Caller(self, name, made["key_id"], made["key"])

    def raw(self) -> RawClient:
        return RawClient(self.port, self.ca)


@dataclass
class Caller:
    """A principal with one of its keys."""

    door: Door
    name: str
    key_id: str
    key: str

    def settings(self, mechanism: str = "SCRAM-SHA-256", user: str | None = None, **more: object) -> dict[str, object]:
        """Return the settings of a client of librdkafka."""
        found: dict[str, object] = {
            "bootstrap.servers": self.door.address,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": self.door.ca,
            "sasl.mechanism": mechanism,
        }
        if mechanism == "OAUTHBEARER":
            found["oauth_cb"] = lambda _: (self.key, time.time() + 3_600)
        else:
            found |= {"sasl.username": user or self.name, "sasl.password": self.key}
        return found | more

    def raw(self) -> RawClient:
        """A connection that has authenticated."""
        client = self.door.raw()
        assert client.plain(self.name, self.key).error_code == 0
        return client


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Door]:
    port, pair = free_port(), authority.server()
    folder = tmp_path_factory.mktemp("guarded")
    with guarded(folder, ca=authority.ca, kafka_port=port, tls_cert=pair.cert, tls_key=pair.key) as admin:
        yield Door(admin, port, authority.ca)


def everything(name: str) -> tuple[tuple[str, ...], ...]:
    """Rules for a producer and consumer of the topic and the group of this name."""
    return ("topic", name, "publish", "subscribe"), ("group", name, "subscribe")


def send(settings: dict[str, object], topic: str, *bodies: str) -> None:
    """Send with librdkafka; raise what the broker says."""
    errors: list[KafkaError] = []
    producer = Producer({"message.timeout.ms": 10_000, **settings})
    for body in bodies:
        producer.produce(topic, body, on_delivery=lambda error, _: error and errors.append(error))
    assert producer.flush(TIMEOUT_S) == 0
    if errors:
        raise KafkaException(errors[0])


def consume(settings: dict[str, object], topic: str, group: str, count: int) -> list[bytes]:
    """Read and commit as a member of a group."""
    more = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer({**settings, **more})
    try:
        consumer.subscribe([topic])
        found: list[bytes] = []
        deadline = time.monotonic() + TIMEOUT_S
        while len(found) < count and time.monotonic() < deadline:
            found += [one.value() for one in consumer.consume(count, 0.1) if one.error() is None]
        consumer.commit(asynchronous=False)
        return found
    finally:
        consumer.close()


# Who it is ------------------------------------------------------------------------------------------------------------


@pytest.mark.promise("KAFKA-4")
@pytest.mark.parametrize("by_key_id", [False, True])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_11_librdkafka_sends_and_reads_by_every_mechanism(door, topic, mechanism, by_key_id) -> None:
    if mechanism == "OAUTHBEARER" and by_key_id:
        pytest.skip("a bearer token names no user")
    door.admin.put_topic(topic, partitions=1)
    caller = door.caller(topic, *everything(topic))
    settings = caller.settings(mechanism, caller.key_id if by_key_id else None)
    send(settings, topic, "one", "two")
    assert consume(settings, topic, topic, 2) == [b"one", b"two"]
    path = f"/v1/groups/{topic}/topics/{topic}/offsets"
    assert door.admin.call("GET", path).json["offsets"] == {f"{topic}@broker-a": 2}


class _Token(AbstractTokenProvider):
    def __init__(self, key: str) -> None:
        self._key = key

    async def token(self) -> str:
        return self._key


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_11_aiokafka_sends_and_reads_by_every_mechanism(door, topic, mechanism) -> None:
    door.admin.put_topic(topic, partitions=1)
    caller = door.caller(topic, *everything(topic))

    async def play() -> list[bytes]:
        settings = {
            "bootstrap_servers": door.address,
            "security_protocol": "SASL_SSL",
            "ssl_context": ssl.create_default_context(cafile=door.ca),
            "sasl_mechanism": mechanism,
        }
        if mechanism == "OAUTHBEARER":
            settings["sasl_oauth_token_provider"] = _Token(caller.key)
        else:
            settings |= {"sasl_plain_username": caller.name, "sasl_plain_password": caller.key}
        producer = AIOKafkaProducer(**settings)
        await producer.start()
        await producer.send_and_wait(topic, b"one")
        await producer.stop()
        consumer = AIOKafkaConsumer(topic, group_id=topic, auto_offset_reset="earliest", **settings)
        await consumer.start()
        found = [(await asyncio.wait_for(consumer.getone(), TIMEOUT_S)).value]
        await consumer.stop()
        return found

    assert asyncio.run(play()) == [b"one"]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_11_who_has_not_the_key_is_refused_and_is_not_told_whether_the_user_exists(door, mechanism) -> None:
    name = f"careful-{mechanism}"
    caller, other = door.caller(name), door.caller(f"other-{name}")

    def refusal(user: str, key: str) -> tuple[int, str]:
        with door.raw() as client:
            if mechanism == "PLAIN":
                answer = client.plain(user, key)
            elif mechanism == "OAUTHBEARER":
                answer = client.bearer(key)
            else:
                answer = client.scram(user, key, "sha" + mechanism[-3:])
            assert answer.error_code == 0 or client.is_closed(5)
            return answer.error_code, answer.error_message

    assert refusal(caller.name, caller.key)[0] == refusal(caller.key_id, caller.key)[0] == 0
    wrong = caller.key[:-1] + ("A" if caller.key[-1] != "A" else "B")
    if mechanism == "OAUTHBEARER":
        refused = {refusal("", key) for key in (wrong, "mqk_0011223344556677_" + "a" * 43, "", "a b")}
    else:
        asked = [(name, wrong), ("nobody", wrong), (other.name, caller.key), (other.key_id, caller.key), (name, "x")]
        refused = {refusal(*one) for one in asked}
    assert {code for code, _ in refused} == {ErrorCode.SASL_AUTHENTICATION_FAILED}
    assert len({text for _, text in refused}) <= 2, "a key that is none, and one that is not this user's"
    assert not any(caller.key in text for _, text in refused)


def test_kafka_11_the_client_says_why_it_was_refused(door) -> None:
    caller = door.caller("mistaken")
    reasons = []
    settings = caller.settings("SCRAM-SHA-512") | {"sasl.password": "wrong"}
    client = AdminClient({**settings, "error_cb": reasons.append})
    until(lambda: client.poll(0.1) or any(one.code() == KafkaError._AUTHENTICATION for one in reasons))
    assert "the user or the key is wrong" in str(reasons)


def test_kafka_11_a_key_of_an_earlier_release_is_good_for_all_but_scram(door, topic) -> None:
    door.admin.put_topic(topic, partitions=1)
    caller = door.caller(topic, *everything(topic))
    service = door.admin.service

    def as_before(meta):
        key = meta.auth.keys[caller.key_id]
        return (KeyPut(made=replace(key, scram=msgspec.UNSET)),)

    asyncio.run_coroutine_threadsafe(service.meta.submit_any(as_before), service.loop).result(TIMEOUT_S)
    with door.raw() as client:
        answer = client.scram(caller.name, caller.key)
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert "made before this service knew SCRAM: make a new key" in answer.error_message
    for mechanism in ("PLAIN", "OAUTHBEARER"):
        send(caller.settings(mechanism), topic, "one")
    later = door.known(topic)
    send(later.settings("SCRAM-SHA-256"), topic, "one")  # by its principal's name, though the first key is no help


def test_kafka_11_nothing_is_answered_before_the_client_is_known(door) -> None:
    filled = (
        MetadataRequest(topics=None),
        ListGroupsRequest(),
        InitProducerIdRequest(None, 1),
        ProduceRequest(None, 1, 1_000, []),
    )
    for request in filled:
        with door.raw() as client:
            assert client.ask(ApiVersionsRequest()).error_code == 0
            client.send(request)
            assert client.is_closed(5)
    with door.raw() as client:  # out of turn
        answer = client.ask(SaslAuthenticateRequest(b"\0a\0b"))
        assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert client.is_closed(5)
    with door.raw() as client:  # too large for who it is
        client.socket.sendall((65_537).to_bytes(4, "big") + b"\x00\x24\x00\x02")
        assert client.is_closed(5)
    with door.raw() as client:
        answer = client.ask(SaslHandshakeRequest("GSSAPI"))
        assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert answer.mechanisms == ["SCRAM-SHA-512", "SCRAM-SHA-256", "OAUTHBEARER", "PLAIN"]


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\0",
        b"\xff\xfe",
        b"a\0b\0c\0d",
        b"n,,",
        b"n,,n=a",
        b"p=tls-unique,,n=a,r=b",
        b"n,,n=a,r=b,r=c",
        b"n,,\1auth=x",
    ],
)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_11_what_is_no_message_of_the_mechanism_is_refused(door, mechanism, sent) -> None:
    with door.raw() as client:
        client.ask(SaslHandshakeRequest(mechanism))
        answer = client.ask(SaslAuthenticateRequest(sent))
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert client.is_closed(5)


@pytest.mark.parametrize("last", [b"", b"c=biws", b"c=biws,r=x,p=eA==", b"c=!,r=x,p=!", b"c=biws,r=\xc3\xa4,p=x"])
def test_kafka_11_a_proof_that_is_none_is_refused(door, last) -> None:
    caller = door.caller("prover")
    with door.raw() as client:
        client.ask(SaslHandshakeRequest("SCRAM-SHA-256"))
        first = client.ask(SaslAuthenticateRequest(f"n,,n={caller.name},r=abc".encode()))
        assert first.error_code == 0 and bytes(first.auth_bytes).startswith(b"r=abc")
        assert client.ask(SaslAuthenticateRequest(last)).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    door.admin.call("DELETE", "/v1/auth/principals/prover")


def test_kafka_11_a_service_without_authentication_asks_nobody(tmp_path) -> None:
    with kafka_running(tmp_path) as kafka, RawClient(kafka.port) as client:
        assert client.ask(SaslHandshakeRequest("PLAIN")).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert client.ask(MetadataRequest(topics=None)).topics == []


# What it may ----------------------------------------------------------------------------------------------------------

_ANYTHING: dict[type[Message], Callable[[str], Message]] = {
    ProduceRequest: lambda name: ProduceRequest(None, 1, 1_000, [ProduceTopic(name, [ProducePartition(0, b"")])]),
    FetchRequest: lambda name: FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1_000,
        topics=[FetchTopic(name, [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000)])],
    ),
    ListOffsetsRequest: lambda name: ListOffsetsRequest(
        topics=[ListOffsetsTopic(name, [ListOffsetsPartition(index=0, timestamp=-1)])]
    ),
    MetadataRequest: lambda name: MetadataRequest([MetadataRequestTopic(name)], False),
    DescribeClusterRequest: lambda name: DescribeClusterRequest(),
    InitProducerIdRequest: lambda name: InitProducerIdRequest(None, 1_000),
    CreateTopicsRequest: lambda name: CreateTopicsRequest([CreateTopic(name, 1, 1, [], [])], 1_000, True),
    DeleteTopicsRequest: lambda name: DeleteTopicsRequest([name], 1_000),
    CreatePartitionsRequest: lambda name: CreatePartitionsRequest([NewPartitions(name, 9, None)], 1_000, True),
    DescribeConfigsRequest: lambda name: DescribeConfigsRequest([ConfigResource(2, name, None)]),
    FindCoordinatorRequest: lambda name: FindCoordinatorRequest(name),
    JoinGroupRequest: lambda name: JoinGroupRequest(
        group_id=name,
        session_timeout_ms=6_000,
        rebalance_timeout_ms=6_000,
        member_id="",
        protocol_type="consumer",
        protocols=[GroupProtocol("range", b"")],
    ),
    SyncGroupRequest: lambda name: SyncGroupRequest(group_id=name, generation_id=1, member_id="m", assignments=[]),
    HeartbeatRequest: lambda name: HeartbeatRequest(name, 1, "m"),
    LeaveGroupRequest: lambda name: LeaveGroupRequest(name, "m"),
    OffsetCommitRequest: lambda name: OffsetCommitRequest(
        group_id=name,
        generation_id=-1,
        member_id="",
        topics=[CommitTopic(name, [CommitPartition(index=0, offset=0)])],
    ),
    OffsetFetchRequest: lambda name: OffsetFetchRequest(name, [OffsetFetchTopic(name, [0])]),
    ListGroupsRequest: lambda name: ListGroupsRequest(),
    DescribeGroupsRequest: lambda name: DescribeGroupsRequest([name]),
    DeleteGroupsRequest: lambda name: DeleteGroupsRequest([name]),
}
_REFUSED = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
}


def errors_in(answer: object) -> set[int]:
    """Return all error codes of an answer, also of its parts."""
    if isinstance(answer, list):
        return set().union(*map(errors_in, answer)) if answer else set()
    if not isinstance(answer, Message):
        return set()
    found = {answer.error_code} if hasattr(answer, "error_code") else set()
    return found.union(*(errors_in(getattr(answer, name)) for name in answer.__struct_fields__))


def test_kafka_11_every_call_says_what_it_needs() -> None:
    assert set(NEEDS) == {api.request for api in APIS.values()}
    assert set(_ANYTHING) == {call for call, needs in NEEDS.items() if needs != "open"}


@pytest.mark.parametrize("call", _ANYTHING, ids=lambda one: one.__name__)
def test_kafka_11_a_principal_without_a_grant_is_refused_by_every_call(door, call) -> None:
    if "nobody" not in door.admin.service.meta.now.auth.principals:
        door.admin.put_topic("secret")
        door.caller("nobody")
        door.admin.send("secret", "hidden")
    nobody = Caller(door, "nobody", "", door.admin.key("nobody")["key"])
    with nobody.raw() as client:
        answer = client.ask(_ANYTHING[call]("secret"))
        codes = errors_in(answer) - {0}
        assert codes and codes <= _REFUSED, answer
        kind = NEEDS[call].split(" ")[0]
        wanted = {"topic": 29, "group": 30, "any": 31}[kind]
        assert codes == {wanted}, answer
        unknown = errors_in(client.ask(_ANYTHING[call]("no-such"))) - {0}
        assert unknown == codes, "it does not tell whether there is such a topic or group"
    for one in door.admin.service.meta.now.auth.keys_of("nobody"):
        door.admin.call("DELETE", f"/v1/auth/keys/{one.id}")


@pytest.mark.parametrize("call", _ANYTHING, ids=lambda one: one.__name__)
def test_kafka_11_what_the_table_says_is_enough_for_a_call(door, call, topic) -> None:
    door.admin.put_topic(topic, partitions=1)
    needs = [one.split(" ") for one in NEEDS[call].split(", ") if " " in one] or [["topic", "describe"]]
    caller = door.caller(topic, *((resource, topic, verb) for resource, verb in needs))
    with caller.raw() as client:
        codes = errors_in(client.ask(_ANYTHING[call](topic)))
        assert codes.isdisjoint(_REFUSED)


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


# When it ends ---------------------------------------------------------------------------------------------------------


def _waiting_fetch(name: str) -> Message:
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000)
    return FetchRequest(max_wait_ms=30_000, min_bytes=1, max_bytes=1_000, topics=[FetchTopic(name, [wanted])])


@pytest.mark.promise("KAFKA-4")
@pytest.mark.parametrize("how", ["key", "rule", "principal", "time"])
def test_kafka_11_a_connection_ends_with_its_access_also_while_it_waits(door, topic, how) -> None:
    door.admin.put_topic(topic, partitions=1)
    door.admin.put_principal(topic)
    rule = door.admin.rule(topic, "topic", topic, "subscribe")
    ends = datetime.fromtimestamp(time.time() + 4, UTC).isoformat()
    caller = door.known(topic, **({"until": ends} if how == "time" else {}))
    door.admin.put_principal(f"{topic}-bystander")
    door.admin.rule(f"{topic}-bystander", "topic", topic, "subscribe")
    bystander = door.known(f"{topic}-bystander")
    with caller.raw() as client, caller.raw() as idle, bystander.raw() as other:
        client.send(_waiting_fetch(topic))
        frame = other.send(_waiting_fetch(topic))
        until(lambda: any(one.has_waiters for one in door.admin.service.partitions.awaited))
        if how == "key":
            assert door.admin.call("DELETE", f"/v1/auth/keys/{caller.key_id}").status == 204
        elif how == "rule":
            assert door.admin.call("DELETE", f"/v1/auth/acls/{rule}").status == 204
        elif how == "principal":
            assert door.admin.call("DELETE", f"/v1/auth/principals/{topic}").status == 204
        assert client.is_closed(10 if how == "time" else 5)
        if how == "rule":  # it may still ask, and is refused
            assert errors_in(idle.ask(_waiting_fetch(topic))) == {29} | {0}
        else:
            assert idle.is_closed(5)
        door.admin.send(topic, "for the others")
        assert other.receive(frame).topics[0].partitions[0].records


def test_kafka_11_a_member_that_waits_for_others_goes_with_its_access(door, topic) -> None:
    door.admin.put_principal(topic)
    rule = door.admin.rule(topic, "group", topic, "subscribe")
    caller = door.known(topic)
    with caller.raw() as first, caller.raw() as second:
        assert first.ask(_joining(first, topic)).error_code == ErrorCode.NONE
        second.send(_joining(second, topic))
        door.admin.call("DELETE", f"/v1/auth/acls/{rule}")
        assert second.is_closed(5), "it waits for the first to join again"


def _joining(client: RawClient, topic: str) -> Message:
    """Return the call by which a client becomes a member, with the id that it is given first."""
    asked = _ANYTHING[JoinGroupRequest](topic)
    assert isinstance(asked, JoinGroupRequest)
    return msgspec.structs.replace(asked, member_id=client.ask(asked).member_id)


def test_kafka_11_a_session_lasts_as_long_as_its_credential_and_is_renewed_before(door) -> None:
    door.admin.put_principal("renewed")
    other = door.caller("another")
    ends = datetime.fromtimestamp(time.time() + 5, UTC).isoformat()
    first, second = door.known("renewed", until=ends), door.known("renewed")
    with door.raw() as client:
        answer = client.bearer(first.key)
        assert 0 < answer.session_lifetime_ms <= 5_000
        assert client.ask(SaslHandshakeRequest("PLAIN")).error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert client.bearer(second.key).session_lifetime_ms == 0
        time_over = datetime.fromisoformat(ends).timestamp()
        until(lambda: time.time() > time_over + 1.5)
        assert client.ask(ApiVersionsRequest()).error_code == 0, "the first key's end is not the connection's"
        answer = client.bearer(other.key)
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert "stays its principal's" in answer.error_message
        assert client.is_closed(5)


def test_kafka_11_librdkafka_renews_its_session_without_a_failed_send(door, topic) -> None:
    door.admin.put_topic(topic, partitions=1)
    door.admin.put_principal(topic)
    for rule in everything(topic):
        door.admin.rule(topic, *rule)
    ends = time.time() + 6
    keys = [door.known(topic, until=datetime.fromtimestamp(ends, UTC).isoformat()).key, door.known(topic).key]
    handed: list[str] = []

    def token(_: str) -> tuple[str, float]:
        handed.append(keys[min(len(handed), 1)])
        return handed[-1], ends if len(handed) == 1 else ends + 3_600

    errors: list[object] = []
    settings = door.caller(f"{topic}-x").settings("OAUTHBEARER", oauth_cb=token, error_cb=errors.append)
    producer = Producer(settings)
    while time.time() < ends + 2:
        producer.produce(topic, "one", on_delivery=lambda error, _: error and errors.append(error))
        producer.poll(0.05)
    assert producer.flush(TIMEOUT_S) == 0
    assert (errors, handed) == ([], keys)


# How much -------------------------------------------------------------------------------------------------------------


def test_kafka_11_a_quota_slows_its_principal_down_and_says_so(door, topic) -> None:
    door.admin.put_topic(topic, partitions=1)
    slow = door.caller(topic, ("topic", topic, "publish", "subscribe"))
    quick = door.caller(f"{topic}-quick", ("topic", topic, "subscribe"))
    quota = {"requests_per_s": 2}
    assert door.admin.call("PUT", f"/v1/auth/quotas/{topic}", quota).status == 200
    with slow.raw() as client, quick.raw() as other:
        began = time.monotonic()
        answers = [client.ask(_ANYTHING[FetchRequest](topic)) for _ in range(6)]
        assert time.monotonic() - began > 1.0, "two at once, and two a second"
        assert max(one.throttle_ms for one in answers) > 100
        began = time.monotonic()
        assert {other.ask(_ANYTHING[FetchRequest](topic)).throttle_ms for _ in range(20)} == {0}
        assert time.monotonic() - began < 5
    quota = {"bytes_in_per_s": 20_000}
    assert door.admin.call("PUT", f"/v1/auth/quotas/{topic}", quota).status == 200
    began = time.monotonic()
    send(slow.settings(**{"batch.size": 1_000, "message.timeout.ms": 30_000}), topic, *["x" * 1_000] * 60)
    assert time.monotonic() - began > 1.5, "60 KB, of which a second's worth goes at once"


def test_kafka_11_bytes_of_answers_count(door, topic) -> None:
    door.admin.put_topic(topic, partitions=1)
    door.admin.send(topic, *["x" * 10_000] * 4)
    slow = door.caller(topic, ("topic", topic, "subscribe"))
    assert door.admin.call("PUT", f"/v1/auth/quotas/{topic}", {"bytes_out_per_s": 10_000}).status == 200
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=100_000)
    fetch = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=100_000, topics=[FetchTopic(topic, [wanted])])
    with slow.raw() as client:
        began = time.monotonic()
        first, second = client.ask(fetch), client.ask(fetch)
        assert first.throttle_ms > 2_000 and second.topics
        assert time.monotonic() - began > 2


# TLS and several processes --------------------------------------------------------------------------------------------


def test_kafka_11_without_tls_a_client_is_not_spoken_to(door) -> None:
    with RawClient(door.port) as client:
        client.send(ApiVersionsRequest())
        assert client.is_closed(5)


def test_kafka_11_a_slow_handshake_holds_nobody_else(door) -> None:
    with socket.create_connection(("127.0.0.1", door.port)) as silent, door.raw() as client:
        assert client.ask(ApiVersionsRequest()).error_code == 0
        silent.close()


def test_kafka_11_certificates_of_clients_may_be_asked_for_and_the_services_own_replaced(tmp_path, topic) -> None:
    authority, other = Authority(tmp_path / "one"), Authority(tmp_path / "two")
    pair, client = authority.server(), authority.client("billing")
    port = free_port()
    with guarded(
        tmp_path / "warehouse",
        ca=authority.ca,
        kafka_port=port,
        tls_cert=pair.cert,
        tls_key=pair.key,
        tls_client_ca=authority.ca,
        tls_client_auth=TlsClientAuth.OPTIONAL,
    ) as admin:
        door = Door(admin, port, authority.ca)
        admin.put_topic(topic, partitions=1)
        caller = door.caller(topic, *everything(topic))
        shown = {"ssl.certificate.location": client.cert, "ssl.key.location": client.key}
        send(caller.settings(**shown), topic, "one")
        stranger = other.client("billing")
        wrong = {"ssl.certificate.location": stranger.cert, "ssl.key.location": stranger.key}
        with pytest.raises(KafkaException):
            send(caller.settings(**wrong, **{"message.timeout.ms": 1_000, "log_level": 0}), topic, "two")
        replaced = authority.server("again")
        for now, then in ((pair.cert, replaced.cert), (pair.key, replaced.key)):
            shutil.copyfile(then, now)
        serial = ssl.PEM_cert_to_DER_cert(Path(replaced.cert).read_text())

        def shown_now() -> bytes | None:
            with door.raw() as raw:
                return raw.socket.getpeercert(True)

        until(lambda: shown_now() == serial)
        send(caller.settings(**shown), topic, "three")
        assert admin.stored(topic) == {f"{topic}@broker-a": 2}


@pytest.mark.promise("KAFKA-4")
def test_kafka_11_what_one_process_stores_for_another_is_by_its_caller(tmp_path, topic) -> None:
    ports = [free_port(), free_port()]
    secret = Secret(SECRET)
    with (
        guarded(tmp_path / "w", brokers=("broker-a",), cluster_secret=secret, kafka_port=ports[0]) as a,
        guarded(tmp_path / "w", token=a.token, brokers=("broker-b",), cluster_secret=secret, kafka_port=ports[1]) as b,
    ):
        until(lambda: all(one.service.meta.now.brokers.available == ("broker-a", "broker-b") for one in (a, b)))
        until(lambda: b.service.hosting.hosts("broker-b"))
        a.put_topic(topic, partitions=2)
        a.put_principal(topic)
        for rule in everything(topic):
            a.rule(topic, *rule)
        made = a.key(topic)
        settings = {
            "bootstrap.servers": ",".join(f"127.0.0.1:{port}" for port in ports),
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": topic,
            "sasl.password": made["key"],
            "partitioner": "random",
            "sticky.partitioning.linger.ms": 0,
        }
        send(settings, topic, *(f"m{number}" for number in range(40)))
        assert len(consume(settings, topic, topic, 40)) == 40
        ends = a.stored(topic)
        assert len(ends) == 2 and all(ends.values())
        for one in (a, b):
            offsets = one.call("GET", f"/v1/groups/{topic}/topics/{topic}/offsets").json["offsets"]
            assert offsets == ends
        # Only a process can name a principal: what says so itself is no key, proved or not.
        path = f"/v1/groups/{topic}/topics/{topic}/offsets"
        for more in ({}, {"Mq_Forwarded": a.service.hosting.id, "Mq_Proof": "1.00"}):
            forged = b.by(None).call("PUT", path, {"offsets": ends}, Mq_Caller=topic, **more)
            assert forged.status in (401, 403), forged


def test_kafka_11_keys_go_in_the_clear_on_the_machine_alone() -> None:
    gate = Gate(AuthState, lambda: 1)
    here, elsewhere = (Session(gate, lambda: 1, is_private=one) for one in (True, False))
    answers = [one.handshake(SaslHandshakeRequest("PLAIN")) for one in (here, elsewhere)]
    assert [one.error_code for one in answers] == [0, ErrorCode.UNSUPPORTED_SASL_MECHANISM]
    assert answers[1].mechanisms == ["SCRAM-SHA-512", "SCRAM-SHA-256"]


def test_kafka_11_many_connect_at_once(door, topic) -> None:
    """Each of some threads connects and authenticates again and again, as clients do after a restart."""
    door.admin.put_topic(topic, partitions=1)
    caller = door.caller(topic, *everything(topic))
    failed: list[BaseException] = []

    def connect() -> None:
        try:
            for _ in range(10):
                with door.raw() as client:
                    assert client.scram(caller.name, caller.key).error_code == 0
                    assert client.ask(_ANYTHING[MetadataRequest](topic)).topics[0].error_code == 0
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=connect) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed


def test_kafka_11_who_may_not_reset_a_group_cannot_put_it_back(door, topic) -> None:
    door.admin.put_topic(topic, partitions=1)
    door.admin.send(topic, "a", "b")
    caller = door.caller(topic, *everything(topic))

    def commit(offset: int) -> set[int]:
        with caller.raw() as client:
            partition = CommitPartition(index=0, offset=offset)
            request = OffsetCommitRequest(
                group_id=topic, generation_id=-1, member_id="", topics=[CommitTopic(topic, [partition])]
            )
            return errors_in(client.ask(request))

    assert commit(2) == {0}
    assert commit(1) == {ErrorCode.GROUP_AUTHORIZATION_FAILED}
    path = f"/v1/groups/{topic}/topics/{topic}/offsets"
    assert door.admin.call("GET", path).json["offsets"] == {f"{topic}@broker-a": 2}
    door.admin.rule(topic, "group", topic, "reset")
    assert commit(1) == {0}
    assert door.admin.call("GET", path).json["offsets"] == {f"{topic}@broker-a": 1}


# Tokens of an identity provider ---------------------------------------------------------------------------------------


def test_kafka_11_a_token_of_the_identity_provider_is_a_bearer_and_its_groups_count(tmp_path, topic) -> None:
    port = free_port()
    with (
        provider() as idp,
        guarded(tmp_path, kafka_port=port, oidc=idp.settings(groups_claim="groups")) as admin,
    ):
        admin.put_topic(topic, partitions=1)
        admin.put_principal("ada")
        admin.put_principal("group:analysts")
        admin.rule("group:analysts", "topic", topic, "publish", "subscribe")
        admin.rule("group:analysts", "group", topic, "subscribe")
        token = idp.token(sub="ada", groups=["analysts"])
        settings: dict[str, object] = {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": lambda _: (token, time.time() + 300),
        }
        send(settings, topic, "one")
        assert consume(settings, topic, topic, 1) == [b"one"]
        with RawClient(port) as client, RawClient(port) as other:
            answer = client.bearer(token)
            assert answer.error_code == 0 and 0 < answer.session_lifetime_ms <= 3_600_000
            assert other.bearer(idp.token(sub="eve", groups=["analysts"])).error_code == 58, "nobody here"
        with RawClient(port) as client:
            assert client.bearer(token).error_code == 0
            assert admin.call("DELETE", "/v1/auth/principals/ada").status == 204
            assert client.is_closed(5), "however long its token lives"
