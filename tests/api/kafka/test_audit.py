"""What administrators do with Kafka's clients is in the audit, and so is what is refused (SPEC SEC-40, SEC-41)."""

from __future__ import annotations

from asyncio import run_coroutine_threadsafe
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, NewTopic

from deltamq.api.audit.audit import read_refusals
from tests.api.guarded import guarded
from tests.api.kafka.access.callers import TIMEOUT_S, Caller, Door, consume, everything, send
from tests.certificates import Authority
from tests.free_ports import free_port


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    authority = Authority(tmp_path_factory.mktemp("tls"))
    port, pair = free_port(), authority.server()
    folder = tmp_path_factory.mktemp("guarded")
    with guarded(folder, ca=authority.ca, kafka_port=port, tls_cert=pair.cert, tls_key=pair.key) as admin:
        yield Door(admin, port, authority.ca)


def acts(door: Door, principal: str) -> list[dict[str, Any]]:
    reply = door.admin.call("GET", f"/v1/audit?principal={principal}&limit=1000")
    found: list[dict[str, Any]] = reply.json["acts"]
    return found


def done(futures: dict[str, Any]) -> None:
    for one in futures.values():
        one.result(TIMEOUT_S)


def test_sec_40_kafkas_administrative_calls_are_in_the_audit(door: Door) -> None:
    caller = door.caller(
        "kafka-admin",
        ("topic", "kafka.*", "create", "alter", "delete", "describe"),
        ("group", "kafka.*", "delete", "describe"),
    )
    client = AdminClient(caller.settings())
    done(client.create_topics([NewTopic("kafka.made", 1)]))
    with pytest.raises(KafkaException):
        done(client.create_topics([NewTopic("kafka.made", 1)]))
    done(client.delete_records([TopicPartition("kafka.made", 0, 0)]))
    done(client.create_partitions([NewPartitions("kafka.made", 2)]))
    kept = ConfigEntry("retention.ms", "60000", incremental_operation=AlterConfigOpType.SET)
    for _ in range(2):  # the second changes nothing, and is no act
        asked = [ConfigResource("topic", "kafka.made", incremental_configs=[kept])]
        done(client.incremental_alter_configs(asked))
    done(client.delete_topics(["kafka.made"]))
    assert door.admin.call("PUT", "/v1/groups/kafka.group", {}).status == 201
    done(client.delete_consumer_groups(["kafka.group"]))
    found = [(one["call"], one["name"], one["outcome"]) for one in acts(door, "kafka-admin")]
    assert found == [
        ("kafka CreateTopics", "kafka.made", "done"),
        ("kafka CreateTopics", "kafka.made", "refused"),
        ("kafka DeleteRecords", "kafka.made", "done"),
        ("kafka CreatePartitions", "kafka.made", "done"),
        ("kafka IncrementalAlterConfigs", "kafka.made", "done"),
        ("kafka DeleteTopics", "kafka.made", "done"),
        ("kafka DeleteGroups", "kafka.group", "done"),
    ]
    assert all(one["address"].startswith("127.0.0.1:") for one in acts(door, "kafka-admin"))
    assert acts(door, "kafka-admin")[0]["after"]["topic/kafka.made"]["partitions"] == ["kafka.made@broker-a"]


def test_sec_40_offsets_that_are_put_back_are_an_act(door: Door) -> None:
    caller = door.caller("kafka-back", *everything("kafka.back"), ("group", "kafka.back", "reset"))
    door.admin.put_topic("kafka.back", partitions=1)
    send(caller.settings(), "kafka.back", "one", "two")
    assert len(consume(caller.settings(), "kafka.back", "kafka.back", 2)) == 2
    assert acts(door, "kafka-back") == [], "commits that go on are none"
    client = AdminClient(caller.settings())
    done(
        client.alter_consumer_group_offsets(
            [ConsumerGroupTopicPartitions("kafka.back", [TopicPartition("kafka.back", 0, 1)])]
        )
    )
    (act,) = acts(door, "kafka-back")
    assert (act["call"], act["resource"], act["name"], act["outcome"]) == (
        "kafka OffsetCommit",
        "group",
        "kafka.back",
        "done",
    )
    assert act["asked"] == {"topic": "kafka.back", "offsets": {"kafka.back@broker-a": 1}}


def test_sec_41_what_kafkas_clients_are_refused_is_counted(door: Door) -> None:
    poor = door.caller("kafka-poor", ("topic", "kafka.mine", "publish"))
    client = AdminClient(poor.settings())
    with pytest.raises(KafkaException):
        done(client.create_topics([NewTopic("kafka.theirs", 1)]))
    wrong = Caller(door, "kafka-poor", poor.key_id, poor.key[:-1] + "-")
    with door.raw() as raw:
        assert raw.plain("kafka-poor", wrong.key).error_code != 0
    audit = door.admin.service.audit
    assert audit is not None

    async def stored() -> set[tuple[str, str, int, int]]:
        await audit.flush(whole=True)
        log = await audit.partition.opened()
        rows, _ = read_refusals(log, 0, wanted=lambda one: one.call.startswith("kafka"), limit=100)
        return {(one.principal, one.call, one.status, one.count) for one in rows}

    found = run_coroutine_threadsafe(stored(), door.admin.service.loop).result(TIMEOUT_S)
    assert ("kafka-poor", "kafka CreateTopics", 403, 1) in found
    assert ("(anonymous)", "kafka SaslAuthenticate", 401, 1) in found
