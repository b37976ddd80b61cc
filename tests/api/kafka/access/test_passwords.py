"""Users' passwords, which Kafka's clients set and remove (SPEC KAFKA-27)."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from deltamq.api.first_start import make_administrator
from deltamq.api.kafka.messages.errors import ErrorCode
from deltamq.api.kafka.messages.user_messages import (
    AlterUserScramCredentialsRequest,
    CredentialDeletion,
    CredentialUpsertion,
    DescribeUserScramCredentialsRequest,
    UserName,
)
from deltamq.mq.auth.principals import CLUSTER
from tests.api.auth.test_command_line import Run, done, run
from tests.api.kafka.access.callers import TIMEOUT_S, Caller, consume, everything, send
from tests.api.kafka.access.calls import waiting_fetch
from tests.api.running import config_for, running, until
from tests.free_ports import free_port

__all__ = ["run"]

SHA_256, SHA_512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512


@pytest.fixture(scope="module")
def admin(door) -> AdminClient:
    return AdminClient(door.caller("setter", ("cluster", CLUSTER, "admin")).settings())


def put(admin: AdminClient, user: str, password: str, mechanism: ScramMechanism = SHA_512, rounds: int = 8_192) -> None:
    altering = [UserScramCredentialUpsertion(user, ScramCredentialInfo(mechanism, rounds), password.encode())]
    for one in admin.alter_user_scram_credentials(altering).values():
        one.result(TIMEOUT_S)


def remove(admin: AdminClient, user: str, mechanism: ScramMechanism = SHA_512) -> None:
    for one in admin.alter_user_scram_credentials([UserScramCredentialDeletion(user, mechanism)]).values():
        one.result(TIMEOUT_S)


def by(door, user: str, password: str) -> Caller:
    return Caller(door, user, "", password)


def test_kafka_27_who_is_given_a_password_by_a_client_logs_in_with_it_on_the_kafka_port_alone(
    door, admin, topic
) -> None:
    door.admin.put_topic(topic, partitions=1)
    put(admin, topic, "first word")
    put(admin, topic, "other word", SHA_256)
    shown = door.admin.call("GET", f"/v1/auth/principals/{topic}").json
    assert [(one["mechanism"], one["iterations"]) for one in shown["passwords"]] == [
        ("SCRAM-SHA-256", 8_192),
        ("SCRAM-SHA-512", 8_192),
    ], "the principal was made"
    for rule in everything(topic):
        door.admin.rule(topic, *rule)
    send(by(door, topic, "first word").settings("SCRAM-SHA-512"), topic, "one")
    send(by(door, topic, "other word").settings("SCRAM-SHA-256"), topic, "two")
    assert consume(by(door, topic, "first word").settings("SCRAM-SHA-512"), topic, topic, 2) == [b"one", b"two"]
    for mechanism, word in (("SCRAM-SHA-256", "first word"), ("PLAIN", "first word"), ("SCRAM-SHA-512", "")):
        with pytest.raises(KafkaException):
            send(by(door, topic, word or "no").settings(mechanism, **{"message.timeout.ms": 1_500}), topic, "never")
    basic = b64encode(f"{topic}:first word".encode()).decode()
    for sent in ("Bearer first word", f"Basic {basic}"):
        assert door.admin.call("GET", "/v1/topics", Authorization=sent).status == 401
    put(admin, topic, "second word")
    send(by(door, topic, "second word").settings("SCRAM-SHA-512"), topic, "three")
    with pytest.raises(KafkaException):
        send(by(door, topic, "first word").settings("SCRAM-SHA-512", **{"message.timeout.ms": 1_500}), topic, "never")
    assert sum(door.admin.stored(topic).values()) == 3


def test_kafka_27_by_scram_a_principals_name_means_its_password_and_a_keys_id_its_key(door, admin, topic) -> None:
    door.admin.put_topic(topic, partitions=1)
    caller = door.caller(topic, *everything(topic))
    put(admin, topic, "word")
    send(caller.settings("SCRAM-SHA-512", caller.key_id), topic, "by its key")
    send(caller.settings("SCRAM-SHA-256"), topic, "by its key, as there is no password for this mechanism")
    send(caller.settings("PLAIN"), topic, "by its key")
    send(by(door, topic, "word").settings("SCRAM-SHA-512"), topic, "by its password")
    with pytest.raises(KafkaException):
        send(caller.settings("SCRAM-SHA-512", **{"message.timeout.ms": 1_500}), topic, "never")
    remove(admin, topic)
    send(caller.settings("SCRAM-SHA-512"), topic, "by its key again")


@pytest.mark.promise("PORT-4")
@pytest.mark.parametrize("how", ["replaced", "removed", "removed by REST", "disabled", "principal"])
def test_kafka_27_a_connection_ends_with_its_password_also_while_it_waits(door, admin, topic, how) -> None:
    door.admin.put_topic(topic, partitions=1)
    put(admin, topic, "word")
    door.admin.rule(topic, "topic", topic, "subscribe")
    with door.raw() as client, door.raw() as idle:
        for one in (client, idle):
            assert one.scram(topic, "word", "sha512").error_code == 0
        client.send(waiting_fetch(topic))
        until(lambda: any(one.has_waiters for one in door.admin.service.partitions.awaited))
        put(admin, topic, "of another mechanism", SHA_256)
        assert not idle.is_closed(1.5), "nothing of it has changed"
        match how:
            case "replaced":
                put(admin, topic, "word")  # with another salt
            case "removed":
                remove(admin, topic)
            case "removed by REST":
                path = f"/v1/auth/principals/{topic}/passwords/SCRAM-SHA-512"
                assert door.admin.call("DELETE", path).status == 204
                assert door.admin.call("DELETE", path).json["code"] == "password_not_found"
            case "disabled":
                assert door.admin.call("POST", f"/v1/auth/principals/{topic}/disable").status == 200
            case "principal":
                assert door.admin.call("DELETE", f"/v1/auth/principals/{topic}").status == 204
        assert client.is_closed(5) and idle.is_closed(5)


def test_kafka_27_what_kafka_refuses_is_refused_with_its_codes_user_by_user(door, topic) -> None:
    def up(name: str = topic, mechanism: int = 2, iterations: int = 4_096, salt: bytes = b"s", word: bytes = b"p"):
        return CredentialUpsertion(name, mechanism, iterations, salt, word)

    def down(name: str = topic, mechanism: int = 2):
        return CredentialDeletion(name, mechanism)

    with door.caller(f"{topic}-admin", ("cluster", CLUSTER, "admin")).raw() as raw:

        def altered(*changes: object) -> dict[str, int]:
            deletions = [one for one in changes if isinstance(one, CredentialDeletion)]
            upsertions = [one for one in changes if isinstance(one, CredentialUpsertion)]
            answer = raw.ask(AlterUserScramCredentialsRequest(deletions, upsertions))
            assert len({one.user for one in answer.results}) == len(answer.results)
            return {one.user: one.error_code for one in answer.results}

        def described(*names: str) -> dict[str, tuple[int, list[tuple[int, int]]]]:
            answer = raw.ask(DescribeUserScramCredentialsRequest([UserName(name) for name in names] or None))
            assert answer.error_code == ErrorCode.NONE
            return {
                one.user: (one.error_code, [(it.mechanism, it.iterations) for it in one.credentials])
                for one in answer.results
            }

        unacceptable = {topic: ErrorCode.UNACCEPTABLE_CREDENTIAL}
        for wrong in (up(iterations=4_095), up(iterations=16_385), up(salt=b""), up(word=b"")):
            assert altered(wrong) == unacceptable
        assert altered(up(""), down("")) == {"": ErrorCode.UNACCEPTABLE_CREDENTIAL}
        assert altered(up("no name")) == {"no name": ErrorCode.UNACCEPTABLE_CREDENTIAL}
        assert altered(up("group:all")) == {"group:all": ErrorCode.INVALID_REQUEST}
        for number in (0, 3, -1):
            assert altered(up(mechanism=number)) == {topic: ErrorCode.UNSUPPORTED_SASL_MECHANISM}
            assert altered(down(mechanism=number)) == {topic: ErrorCode.UNSUPPORTED_SASL_MECHANISM}
        for twice in ((up(), up()), (down(), up()), (down(), down())):
            assert altered(*twice) == {topic: ErrorCode.DUPLICATE_RESOURCE}
        assert altered(down()) == {topic: ErrorCode.RESOURCE_NOT_FOUND}
        assert altered(up(), up(mechanism=1, iterations=1)) == unacceptable
        assert door.admin.call("GET", f"/v1/auth/principals/{topic}").status == 404, "nothing of it was done"

        both = {topic: (0, [(1, 4_096), (2, 5_000)])}
        other = f"{topic}-other"
        assert altered(up(iterations=5_000), up(mechanism=1), up(""), down(other)) == {
            topic: 0,
            "": ErrorCode.UNACCEPTABLE_CREDENTIAL,
            other: ErrorCode.RESOURCE_NOT_FOUND,
        }
        assert described(topic, other) == both | {other: (ErrorCode.RESOURCE_NOT_FOUND, [])}
        assert described(topic, topic) == {topic: (ErrorCode.DUPLICATE_RESOURCE, [])}
        assert described()[topic] == both[topic] and f"{topic}-admin" not in described(), "keys are no passwords"
        assert altered(down(mechanism=1), up(iterations=6_000)) == {topic: 0}
        assert described(topic) == {topic: (0, [(2, 6_000)])}
    with door.caller(f"{topic}-poor", ("cluster", CLUSTER, "metrics")).raw() as raw:
        for answer in (
            raw.ask(DescribeUserScramCredentialsRequest(None)),
            raw.ask(AlterUserScramCredentialsRequest([], [up()])).results[0],
        ):
            assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_kafka_27_passwords_are_in_the_audit_without_what_proves_them(door, admin, topic) -> None:
    put(admin, topic, "word")
    stored = door.admin.service.meta.now.auth.password(topic, "SCRAM-SHA-512")
    with pytest.raises(KafkaException):
        remove(admin, topic, SHA_256)
    assert door.admin.call("DELETE", f"/v1/auth/principals/{topic}/passwords/SCRAM-SHA-512").status == 204
    acts = [one for one in door.admin.call("GET", "/v1/audit?limit=1000").json["acts"] if one["name"] == topic]
    made, refused, removed = acts[:3]
    assert (made["call"], made["principal"], made["outcome"]) == (
        "kafka AlterUserScramCredentials",
        "setter",
        "done",
    )
    assert made["asked"] == {"remove": [], "put": {"SCRAM-SHA-512": 8_192}}
    assert made["after"][f"auth/{topic}"]["passwords"] == {"SCRAM-SHA-512": 8_192}
    assert (refused["outcome"], refused["code"]) == ("refused", "password_not_found")
    assert removed["after"][f"auth/{topic}"]["passwords"] == {} and removed["principal"] == "admin"
    said = json.dumps(acts)
    assert all(secret not in said for secret in (stored.salt, stored.stored_key, stored.server_key))


def test_kafka_27_the_command_line_shows_and_removes_a_password(door, admin, topic, run: Run) -> None:
    put(admin, topic, "word")
    at = ("--url", f"https://127.0.0.1:{door.admin.port}", "--ca", door.ca)
    status, shown = run("auth", "principal", "show", topic, *at, token=door.admin.token)
    assert status == 0 and "SCRAM-SHA-512" in shown and "8192" in shown
    removed = done(run("auth", "password", "remove", topic, "SCRAM-SHA-512", *at, "--json"))
    assert removed == {"principal": topic, "mechanism": "SCRAM-SHA-512"}
    assert done(run("auth", "principal", "show", topic, *at, "--json"))["passwords"] == []
    assert run("auth", "password", "remove", topic, "SCRAM-SHA-512", *at)[0] == 1


def test_kafka_27_without_authentication_passwords_are_set_and_guard_nothing(tmp_path: Path) -> None:
    port = free_port()
    config = config_for(tmp_path, kafka_port=port)
    with running(config):
        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}"})
        put(admin, "ada", "word")
    with running(config) as api:
        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}"})
        (info,) = admin.describe_user_scram_credentials(["ada"])["ada"].result(TIMEOUT_S).scram_credential_infos
        assert (info.mechanism, info.iterations) == (SHA_512, 8_192), "after a restart, too"
        assert api.call("PUT", "/v1/topics/orders").status == 201, "it is open as before"
        make_administrator(config, "admin")
        until(lambda: api.call("GET", "/readyz").status == 503)
        assert api.service.meta.now.auth.passwords == {}, "whoever set them is not known"
