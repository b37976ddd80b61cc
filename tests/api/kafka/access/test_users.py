"""Users of Kafka's calls are the principals of the service, which these calls show and do not change (KAFKA-22)."""

from __future__ import annotations

from deltamq.api.kafka.messages.errors import ErrorCode
from deltamq.api.kafka.messages.user_messages import (
    AlterClientQuotasRequest,
    AlteringQuota,
    AlterUserScramCredentialsRequest,
    CredentialDeletion,
    CredentialUpsertion,
    DescribeClientQuotasRequest,
    DescribeUserScramCredentialsRequest,
    QuotaChange,
    QuotaEntity,
    QuotaFilter,
    UserName,
)
from deltamq.mq.auth.keys import SCRAM_ITERATIONS
from deltamq.mq.auth.principals import CLUSTER

BOTH = [(1, SCRAM_ITERATIONS), (2, SCRAM_ITERATIONS)]


def test_kafka_22_administrators_see_who_can_prove_a_key_and_give_nobody_a_password(door, topic) -> None:
    keyed = door.caller(f"{topic}-keyed")
    with door.caller(topic, ("cluster", CLUSTER, "admin")).raw() as raw:

        def described(*names: str) -> dict[str, tuple[int, list[tuple[int, int]]]]:
            answer = raw.ask(DescribeUserScramCredentialsRequest([UserName(name) for name in names] or None))
            assert answer.error_code == ErrorCode.NONE
            found = {one.user: one for one in answer.results}
            return {name: (one.error_code, [tuple(_pair(it)) for it in one.credentials]) for name, one in found.items()}

        name = f"{topic}-keyed"
        assert described(name, "nobody-known") == {name: (0, BOTH), "nobody-known": (ErrorCode.RESOURCE_NOT_FOUND, [])}
        assert described(name, name) == {name: (ErrorCode.DUPLICATE_RESOURCE, [])}
        assert described()[name] == (0, BOTH)
        salted = CredentialUpsertion(name, 2, 15_000, b"salt", b"salted")
        answer = raw.ask(AlterUserScramCredentialsRequest([CredentialDeletion("other", 1)], [salted]))
        assert [(one.user, one.error_code) for one in answer.results] == [("other", 44), (name, 44)]
        assert all("deltamq auth key" in one.error_message for one in answer.results)
        door.admin.call("DELETE", f"/v1/auth/keys/{keyed.key_id}")
        assert described(name) == {name: (ErrorCode.RESOURCE_NOT_FOUND, [])}


def _pair(credential) -> tuple[int, int]:
    return credential.mechanism, credential.iterations


def test_kafka_22_quotas_of_users_and_clients_are_none_and_stay_so(door, topic) -> None:
    with door.caller(topic, ("cluster", CLUSTER, "admin")).raw() as raw:
        entity = [QuotaEntity("client-id", "c"), QuotaEntity("user", None)]
        wanted = AlteringQuota(entity, [QuotaChange("producer_byte_rate", 1_000.5, False)])
        (done,) = raw.ask(AlterClientQuotasRequest([wanted], False)).entries
        assert (done.error_code, done.entity) == (ErrorCode.POLICY_VIOLATION, entity)
        assert "deltamq auth quota" in done.error_message
        shown = raw.ask(DescribeClientQuotasRequest([QuotaFilter("client-id", 2, None)], False))
        assert (shown.error_code, shown.entries) == (ErrorCode.NONE, [])
