"""The principal of a Kafka client: by key, and by token (SPEC KAFKA-11)."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
import threading
import time

import msgspec
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient
from msgspec.structs import replace

from deltamq.api.auth.gate import Gate
from deltamq.api.kafka.access.session import Session
from deltamq.api.kafka.messages.cluster_messages import ApiVersionsRequest, MetadataRequest
from deltamq.api.kafka.messages.errors import ErrorCode
from deltamq.api.kafka.messages.group_messages import ListGroupsRequest
from deltamq.api.kafka.messages.log_messages import InitProducerIdRequest, ProduceRequest
from deltamq.api.kafka.messages.user_messages import SaslAuthenticateRequest, SaslHandshakeRequest
from deltamq.mq.auth.state import AuthState, KeyPut
from deltamq.mq.names import CONSUMER_OFFSETS
from tests.api.guarded import guarded
from tests.api.kafka.access.callers import MECHANISMS, TIMEOUT_S, consume, everything, send
from tests.api.kafka.access.calls import ANYTHING
from tests.api.kafka.door import kafka_running
from tests.api.kafka.raw_client import RawClient
from tests.api.running import until
from tests.free_ports import free_port
from tests.identity_provider import provider


@pytest.mark.promise("PORT-4")
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


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed (apt-get install kcat)")
def test_kafka_11_an_older_librdkafka_finds_the_handshake(door, topic) -> None:
    """That of Debian 12 shows a key only to a service that offers version 0, and then takes version 1."""
    door.admin.put_topic(topic, partitions=1)
    caller = door.caller(topic, *everything(topic))
    options = (f"{name}={value}" for name, value in caller.settings("PLAIN").items())
    command = ["kcat", *(part for one in options for part in ("-X", one)), "-t", topic, "-P"]
    done = subprocess.run(command, input="one\n", capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    assert sum(door.admin.stored(topic).values()) == 1


def test_kafka_11_a_handshake_of_version_0_is_refused(door) -> None:
    with door.raw() as client:
        answer = client.ask(SaslHandshakeRequest("PLAIN"), 0)
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION, "what follows it would have no frames"


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
        assert [one.name for one in client.ask(MetadataRequest(topics=None)).topics] == [CONSUMER_OFFSETS]


def test_kafka_11_keys_go_in_the_clear_on_the_machine_alone() -> None:
    gate = Gate(AuthState, lambda: 1)
    here, elsewhere = (Session(gate, lambda: 1, is_private=one) for one in (True, False))
    answers = [one.handshake(SaslHandshakeRequest("PLAIN"), 1) for one in (here, elsewhere)]
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
                    assert client.ask(ANYTHING[MetadataRequest](topic)).topics[0].error_code == 0
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=connect) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed


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
