"""Quotas of users and clients, which Kafka's clients set and ask for (SPEC KAFKA-28)."""

from __future__ import annotations

import time
from pathlib import Path

from confluent_kafka import Producer

from deltamq.api.kafka.messages.errors import ErrorCode
from deltamq.api.kafka.messages.group_messages import HeartbeatRequest
from deltamq.api.kafka.messages.log_messages import FetchPartition, FetchRequest, FetchTopic
from deltamq.api.kafka.messages.user_messages import (
    AlterClientQuotasRequest,
    AlteringQuota,
    DescribeClientQuotasRequest,
    QuotaChange,
    QuotaEntity,
    QuotaFilter,
)
from deltamq.mq.auth.principals import CLUSTER
from tests.api.kafka.access.callers import TIMEOUT_S
from tests.api.kafka.access.calls import ANYTHING
from tests.api.kafka.raw_client import RawClient
from tests.api.running import config_for, running, until
from tests.free_ports import free_port

PRODUCER, CONSUMER = "producer_byte_rate", "consumer_byte_rate"
ID, USER = "client-id", "user"


def entry(names: dict[str, str | None], **rates: float | None) -> AlteringQuota:
    """Bounds of an entity; None removes one."""
    changes = [QuotaChange(key, rate or 0.0, rate is None) for key, rate in rates.items()]
    return AlteringQuota([QuotaEntity(*one) for one in names.items()], changes)


def alter(raw: RawClient, *entries: AlteringQuota, validate_only: bool = False) -> list[int]:
    answer = raw.ask(AlterClientQuotasRequest(list(entries), validate_only))
    return [one.error_code for one in answer.entries]


def described(raw: RawClient, *filters: tuple[str, int, str | None], strict: bool = False) -> list[object]:
    answer = raw.ask(DescribeClientQuotasRequest([QuotaFilter(*one) for one in filters], strict))
    assert answer.error_code == ErrorCode.NONE, answer.error_message
    found = [
        ({it.entity_type: it.entity_name for it in one.entity}, {it.key: it.value for it in one.values})
        for one in answer.entries
    ]
    return sorted(found, key=str)


def test_kafka_28_a_quota_slows_the_clients_that_it_names_down_and_says_so(door, topic) -> None:
    door.admin.put_topic(topic, partitions=1)
    door.admin.send(topic, *["x" * 10_000] * 4)
    caller = door.caller(topic, ("topic", topic, "subscribe"), ("group", topic, "subscribe"))
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=100_000)
    fetch = FetchRequest(
        max_wait_ms=0, min_bytes=1, max_bytes=100_000, topics=[FetchTopic(name=topic, partitions=[wanted])]
    )
    with door.caller(f"{topic}-admin", ("cluster", CLUSTER, "admin")).raw() as admin:
        assert alter(admin, entry({ID: topic}, **{CONSUMER: 10_000})) == [0]
        with caller.raw(topic) as slow, caller.raw(topic) as beside, caller.raw("another") as quick:
            for one in (slow, beside, quick):
                one.ask(ANYTHING[HeartbeatRequest](topic))
            assert slow.ask(fetch).throttle_ms > 2_000
            began = time.monotonic()
            assert quick.ask(fetch).throttle_ms == 0
            assert beside.ask(ANYTHING[HeartbeatRequest](topic)).throttle_ms == 0, "only what is fetched is bounded"
            assert beside.ask(fetch).topics and time.monotonic() - began > 2, "it shares the quota"
            assert alter(admin, entry({ID: topic}, **{CONSUMER: None})) == [0]
            assert quick.ask(fetch).throttle_ms == 0
        assert described(admin, (ID, 0, topic)) == []


def test_kafka_28_what_kafka_refuses_is_refused_with_its_codes_entity_by_entity(door, topic) -> None:
    door.admin.put_principal(topic)
    with door.caller(f"{topic}-admin", ("cluster", CLUSTER, "admin")).raw() as raw:
        refused = ErrorCode.INVALID_REQUEST
        for rate in (0.0, -1.0, 1.5, float("nan"), float("inf"), 1e19):
            assert alter(raw, entry({ID: topic}, **{PRODUCER: rate})) == [refused]
        for key in ("request_percentage", "controller_mutation_rate", "foo"):
            answer = raw.ask(AlterClientQuotasRequest([entry({ID: topic}, **{key: 1.0})], False))
            assert answer.entries[0].error_code == refused
            assert f"{key} is not enforced here" in answer.entries[0].error_message
            assert alter(raw, entry({ID: topic}, **{key: None})) == [0], "there is nothing to remove"
        assert alter(raw, entry({"ip": "1.2.3.4"}, connection_creation_rate=1.0)) == [refused]
        for names in ({}, {"foo": "x"}, {"": "x"}, {ID: ""}, {ID: "x" * 256}, {ID: "a\nb"}):
            assert alter(raw, entry(names, **{PRODUCER: 5.0})) == [refused]
        twice = AlteringQuota([QuotaEntity(ID, "a"), QuotaEntity(ID, "b")], [QuotaChange(PRODUCER, 1.0, False)])
        assert alter(raw, twice) == [refused]
        keys = [QuotaChange(PRODUCER, 1.0, False), QuotaChange(PRODUCER, 1.0, True)]
        assert alter(raw, AlteringQuota([QuotaEntity(ID, topic)], keys)) == [refused]
        good, bad = entry({ID: topic}, **{PRODUCER: 5.0}), entry({ID: f"{topic}-2"}, **{PRODUCER: 5.0, "foo": 1.0})
        assert alter(raw, good, good) == [refused]
        for names in ({USER: "nobody"}, {USER: "nobody", ID: "x"}):
            assert alter(raw, entry(names, **{PRODUCER: 5.0})) == [ErrorCode.RESOURCE_NOT_FOUND]
        assert alter(raw, good, entry({USER: topic}, **{PRODUCER: 5.0}), validate_only=True) == [0, 0]
        assert described(raw, (ID, 2, None)) == [] and alter(raw, bad, good) == [refused, 0]
        assert described(raw) == [({ID: topic}, {PRODUCER: 5.0})]
        assert alter(raw, entry({ID: topic}, **{PRODUCER: None})) == [0]

        def code(*filters: tuple[str, int, str | None]) -> int:
            answer = raw.ask(DescribeClientQuotasRequest([QuotaFilter(*one) for one in filters], False))
            assert (answer.entries is None) == bool(answer.error_code)
            return int(answer.error_code)

        for wrong in ((ID, 0, None), (ID, 1, "x"), (ID, 2, "x"), (ID, 3, None), ("", 2, None)):
            assert code(wrong) == refused
        assert code((ID, 2, None), (ID, 0, "x")) == code(("ip", 2, None), (ID, 2, None)) == refused
        assert code(("foo", 2, None)) == ErrorCode.UNSUPPORTED_VERSION and code(("ip", 2, None)) == 0
    with door.caller(f"{topic}-poor", ("cluster", CLUSTER, "metrics")).raw() as raw:
        assert alter(raw, good) == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED]
        assert raw.ask(DescribeClientQuotasRequest([], False)).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_kafka_28_quotas_are_found_by_their_entities(door, topic) -> None:
    door.admin.put_principal(topic)
    door.admin.call("PUT", f"/v1/auth/quotas/{topic}", {"requests_per_s": 7, "bytes_out_per_s": 9_000})
    entities: list[dict[str, str | None]] = [{ID: "c"}, {ID: None}, {USER: None}, {USER: topic, ID: "c"}]
    entities += [{USER: topic, ID: None}, {USER: None, ID: None}]
    with door.caller(f"{topic}-admin", ("cluster", CLUSTER, "admin")).raw() as raw:
        assert alter(raw, *(entry(one, **{PRODUCER: 1e9}) for one in entities)) == [0] * 6
        bound = {PRODUCER: 1e9}
        mine = ({USER: topic}, {CONSUMER: 9_000.0})

        def shown(*of: dict[str, str | None]) -> list[object]:
            return sorted(((one, bound) for one in of), key=str)

        c, any_c, any_user, pair, any_of_mine, anybody = entities
        assert described(raw) == sorted([*shown(*entities), mine], key=str)
        assert described(raw, strict=True) == []
        assert described(raw, (ID, 0, "c")) == shown(c, pair)
        assert described(raw, (ID, 0, "c"), strict=True) == shown(c)
        assert described(raw, (ID, 1, None)) == shown(any_c, any_of_mine, anybody)
        assert described(raw, (USER, 2, None), strict=True) == sorted([*shown(any_user), mine], key=str)
        assert described(raw, (USER, 0, topic), (ID, 2, None)) == shown(pair, any_of_mine)
        # a user's own is the principal's
        assert alter(raw, entry({USER: topic}, **{PRODUCER: 8_000.0, CONSUMER: None})) == [0]
        every = door.admin.call("GET", "/v1/auth/quotas").json["quotas"]
        (found,) = (one for one in every if one["principal"] == topic)
        assert (found["requests_per_s"], found["bytes_in_per_s"], found["bytes_out_per_s"]) == (7, 8_000, None)
        assert alter(raw, *(entry(one, **{PRODUCER: None}) for one in entities)) == [0] * 6
        assert alter(raw, entry({USER: topic}, **{PRODUCER: None})) == [0]
        assert described(raw) == []


def test_kafka_28_quotas_are_in_the_audit(door, topic) -> None:
    with door.caller(f"{topic}-admin", ("cluster", CLUSTER, "admin")).raw() as raw:
        assert alter(raw, entry({ID: topic}, **{PRODUCER: 1_000.0})) == [0]
        assert alter(raw, entry({ID: topic}, **{PRODUCER: None})) == [0]
    acts = door.admin.call("GET", f"/v1/audit?limit=1000&principal={topic}-admin").json["acts"]
    assert [(one["call"], one["resource"], one["name"], one["outcome"]) for one in acts] == [
        ("kafka AlterClientQuotas", "quota", f"client-id {topic}", "done")
    ] * 2
    key = f"quota/client-id {topic}"
    assert acts[0]["asked"] == {"bytes_in_per_s": 1_000} and acts[0]["before"][key] is None
    assert acts[0]["after"][key]["bytes_in_per_s"] == 1_000 and acts[1]["after"][key] is None


def test_kafka_28_without_authentication_clients_are_slowed_down_by_every_process_also_after_a_restart(
    tmp_path: Path,
) -> None:
    ports = free_port(), free_port()
    configs = [
        config_for(tmp_path, kafka_port=port, brokers=(f"broker-{name}",))
        for port, name in zip(ports, "ab", strict=True)
    ]

    def seconds(port: int, client_id: str) -> float:
        """How long it takes to send 60 KB in small batches."""
        settings = {"bootstrap.servers": f"127.0.0.1:{port}", "client.id": client_id, "batch.size": 1_000}
        producer, began = Producer(settings), time.monotonic()
        for _ in range(60):
            producer.produce("orders", "x" * 1_000)
        assert producer.flush(TIMEOUT_S) == 0
        return time.monotonic() - began

    with running(configs[0]) as api, running(configs[1]) as other, RawClient(ports[0]) as raw:
        api.put_topic("orders", partitions=1)
        assert alter(raw, entry({ID: "slow"}, **{PRODUCER: 20_000.0})) == [0]
        until(lambda: other.service.meta.now.auth.client_quotas)
        with RawClient(ports[1]) as second:
            assert described(second) == [({ID: "slow"}, {PRODUCER: 20_000.0})]
    with running(configs[0]), running(configs[1]):
        slow = seconds(ports[0], "slow")
        assert slow > 1.5
        assert seconds(ports[1], "quick") < slow
