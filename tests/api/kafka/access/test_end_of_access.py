"""When the access of a client of Kafka ends, and its session (SPEC KAFKA-11)."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import msgspec
import pytest
from confluent_kafka import Producer

from deltamq.api.kafka.messages.cluster_messages import ApiVersionsRequest
from deltamq.api.kafka.messages.codec import Message
from deltamq.api.kafka.messages.errors import ErrorCode
from deltamq.api.kafka.messages.group_messages import JoinGroupRequest
from deltamq.api.kafka.messages.user_messages import SaslHandshakeRequest
from tests.api.kafka.access.callers import MECHANISMS, TIMEOUT_S, everything, send
from tests.api.kafka.access.calls import ANYTHING, errors_in, waiting_fetch
from tests.api.kafka.raw_client import RawClient
from tests.api.running import until


@pytest.mark.promise("PORT-4")
@pytest.mark.parametrize("how", ["key", "rule", "principal", "disabled", "time"])
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
        client.send(waiting_fetch(topic))
        frame = other.send(waiting_fetch(topic))
        until(lambda: any(one.has_waiters for one in door.admin.service.partitions.awaited))
        if how == "key":
            assert door.admin.call("DELETE", f"/v1/auth/keys/{caller.key_id}").status == 204
        elif how == "rule":
            assert door.admin.call("DELETE", f"/v1/auth/acls/{rule}").status == 204
        elif how == "principal":
            assert door.admin.call("DELETE", f"/v1/auth/principals/{topic}").status == 204
        elif how == "disabled":
            assert door.admin.call("POST", f"/v1/auth/principals/{topic}/disable").status == 200
        assert client.is_closed(10 if how == "time" else 5)
        if how == "rule":  # it may still ask, and is refused
            assert errors_in(idle.ask(waiting_fetch(topic))) == {29} | {0}
        else:
            assert idle.is_closed(5)
        door.admin.send(topic, "for the others")
        assert other.receive(frame).topics[0].partitions[0].records


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_sec_19_a_client_of_a_disabled_principal_is_told_so_and_comes_back_when_it_is_enabled(
    door, topic, mechanism
) -> None:
    door.admin.put_topic(topic, partitions=1)
    caller = door.caller(topic, *everything(topic))
    switch = f"/v1/auth/principals/{topic}"
    assert door.admin.call("POST", f"{switch}/disable").status == 200
    errors: list[str] = []
    refused = Producer(caller.settings(mechanism, error_cb=lambda error: errors.append(error.str())))
    refused.produce(topic, "never")
    until(lambda: refused.poll(0.05) is not None and any(f"{topic} is disabled" in one for one in errors))
    refused.purge()
    assert door.admin.call("POST", f"{switch}/enable").status == 200
    send(caller.settings(mechanism), topic, "again")
    assert sum(door.admin.stored(topic).values()) == 1


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
    asked = ANYTHING[JoinGroupRequest](topic)
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
        assert "already authenticated" in answer.error_message
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
    producer = Producer({**settings, "linger.ms": 100})
    while time.time() < ends + 2:
        producer.produce(topic, "one", on_delivery=lambda error, _: error and errors.append(error))
        producer.poll(0.05)
    assert producer.flush(TIMEOUT_S) == 0
    assert (errors, handed) == ([], keys)
