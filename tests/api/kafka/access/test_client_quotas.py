"""Users of Kafka's calls are the principals of the service, which these calls show and do not change (KAFKA-22)."""

from __future__ import annotations

from deltamq.api.kafka.messages.errors import ErrorCode
from deltamq.api.kafka.messages.user_messages import (
    AlterClientQuotasRequest,
    AlteringQuota,
    DescribeClientQuotasRequest,
    QuotaChange,
    QuotaEntity,
    QuotaFilter,
)
from deltamq.mq.auth.principals import CLUSTER


def test_kafka_22_quotas_of_users_and_clients_are_none_and_stay_so(door, topic) -> None:
    with door.caller(topic, ("cluster", CLUSTER, "admin")).raw() as raw:
        entity = [QuotaEntity("client-id", "c"), QuotaEntity("user", None)]
        wanted = AlteringQuota(entity, [QuotaChange("producer_byte_rate", 1_000.5, False)])
        (done,) = raw.ask(AlterClientQuotasRequest([wanted], False)).entries
        assert (done.error_code, done.entity) == (ErrorCode.POLICY_VIOLATION, entity)
        assert "deltamq auth quota" in done.error_message
        shown = raw.ask(DescribeClientQuotasRequest([QuotaFilter("client-id", 2, None)], False))
        assert (shown.error_code, shown.entries) == (ErrorCode.NONE, [])
