"""Statistics of groups over REST, in metrics, in the SDK and in the log that the merge job reads (SPEC CONS-6)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deltamq.api.ports import Ports
from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.statistics import StatisticsRecord
from deltamq.tables.log.paging import pages
from deltamq.tables.paths import PartitionRef
from deltamq.tables.queue.records import statistics_of
from deltamq.tables.queue.refs import STATISTICS, system_ref
from tests.api.exclusive import Member, exclusive_group
from tests.api.running import Api, config_for, running, until
from tests.set_clock import SetClock

pytestmark = pytest.mark.static_too

BROKER = "broker-a"


def statistics(api: Api, group: str, minutes: int = 5) -> dict[str, dict[str, Any]]:
    reply = api.call("GET", f"/v1/groups/{group}/statistics?minutes={minutes}")
    assert reply.status == 200, reply
    return {one["topic"]: one for one in reply.json["topics"]}


def pop(api: Api, group: str, topic: str, **ask: object) -> list[str]:
    reply = api.call("POST", f"/v1/groups/{group}/topics/{topic}/pop", ask)
    assert reply.status == 200, reply
    return [one["handle"] for one in reply.json["messages"]]


def tell(api: Api, group: str, call: str, **body: object) -> Any:
    reply = api.call("POST", f"/v1/groups/{group}/{call}", body)
    assert reply.status == 200, reply
    return reply.json


def stored(api: Api, broker: str = BROKER) -> list[StatisticsRecord]:
    ref: PartitionRef = system_ref(STATISTICS, "deltamq", broker)
    log = api.service.warehouse.create(ref)
    log.refresh()
    return [one for page in pages(log, 0) for one in statistics_of(page.rows)]


@pytest.mark.parametrize("order", [False, True])
def test_cons_06_what_becomes_of_popped_messages_is_counted(api: Api, topic: str, order: bool) -> None:
    api.put_topic(topic, partitions=1)
    api.call("PUT", f"/v1/groups/{topic}", {"order": order, "max_attempts": 5})
    api.send(topic, *map(str, range(6)))
    handles = pop(api, topic, topic, max_messages=6, invisible_ms=60_000)
    assert tell(api, topic, "ack", handles=handles[:3]) == {"acked": 3, "failed": []}
    assert tell(api, topic, "nack", handles=[handles[3]], delay_ms=60_000)["failed"] == []
    assert tell(api, topic, "dead", handles=[handles[4]])["failed"] == []
    changed = api.call("POST", f"/v1/groups/{topic}/invisible", {"handle": handles[5], "invisible_ms": 60_000})
    assert changed.status == 200
    found = statistics(api, topic)[topic]
    wanted = {"delivered": 6, "redelivered": 0, "succeeded": 3, "failed": 1, "dead": 1, "success_rate": 0.6}
    assert found.items() >= wanted.items(), "a message whose time is prolonged has no outcome yet"
    assert 0 <= found["age_mean_ms"] <= found["age_max_ms"] < 60_000
    assert 0 <= found["handling_mean_ms"] <= found["handling_max_ms"] < 60_000


def test_cons_06_handles_that_are_refused_are_not_counted(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=1)
    api.send(topic, "a", "b")
    handles = pop(api, topic, topic, max_messages=2, invisible_ms=60_000)
    assert tell(api, topic, "ack", handles=[handles[0], handles[0], "forged"])["acked"] == 2
    tell(api, topic, "nack", handles=[handles[1]], delay_ms=60_000)
    assert len(tell(api, topic, "ack", handles=[handles[1]])["failed"]) == 1
    assert len(tell(api, topic, "nack", handles=[handles[1]])["failed"]) == 1
    assert statistics(api, topic)[topic].items() >= {"succeeded": 1, "failed": 1, "dead": 0}.items()


def test_cons_06_messages_that_come_again_are_told_apart(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=1)
    api.call("PUT", f"/v1/groups/{topic}", {"order": True})
    api.send(topic, "a")
    (handle,) = pop(api, topic, topic)
    tell(api, topic, "nack", handles=[handle], delay_ms=0)
    assert len(pop(api, topic, topic, wait_ms=5_000)) == 1
    assert statistics(api, topic)[topic].items() >= {"delivered": 2, "redelivered": 1, "failed": 1}.items()


def test_cons_06_what_an_exclusive_client_pulls_commits_and_lets_go_is_counted(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=1)
    exclusive_group(api, topic)
    api.send(topic, *map(str, range(10)))
    partition, member = f"{topic}@{BROKER}", Member(api, topic, topic, "c0")
    member.beat()
    member.take(partition)
    assert len(member.fetch(partition).json["messages"]) == 10
    assert len(member.fetch(partition, "&offset=8").json["messages"]) == 2
    aside = {"client_id": "c0", "partition": partition, "lock": member.numbers[partition], "offsets": [1], "to": "dead"}
    for _ in range(2):
        assert api.call("POST", f"/v1/groups/{topic}/topics/{topic}/aside", aside).status == 200
    for offset in (3, 3, 9):
        assert member.commit(partition, offset, locks={partition: member.numbers[partition]}).status == 200
    found = statistics(api, topic)[topic]
    wanted = {"delivered": 12, "redelivered": 2, "succeeded": 8, "failed": 0, "dead": 1}
    assert found.items() >= wanted.items()


def test_cons_06_the_metrics_have_sums_since_the_start(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=1)
    api.send(topic, "a", "b")
    tell(api, topic, "ack", handles=pop(api, topic, topic, max_messages=2)[:1])
    shown = api.call("GET", f"/metrics?topic={topic}").body.decode()
    labels = f'{{group="{topic}",topic="{topic}"}}'
    assert f"deltamq_delivered_messages_total{labels} 2.0" in shown
    assert f"deltamq_succeeded_messages_total{labels} 1.0" in shown
    for name in ("delivered_age", "handling"):
        assert f"deltamq_{name}_seconds_total{labels}" in shown


def test_cons_06_the_sdk_has_them_as_typed_values(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=1)
    api.send(topic, "a")
    tell(api, topic, "ack", handles=pop(api, topic, topic))
    with Admin(f"http://127.0.0.1:{api.port}") as admin:
        found = admin.group_statistics(topic, minutes=1)
    (one,) = found.topics
    assert (found.group, found.processes, one.topic, one.succeeded, one.success_rate) == (topic, 1, topic, 1, 1.0)
    assert 60 <= found.seconds < 125


@pytest.mark.parametrize("minutes", ["0", "16", "x"])
def test_cons_06_a_wrong_number_of_minutes_is_refused_by_name(api: Api, topic: str, minutes: str) -> None:
    api.call("PUT", f"/v1/groups/{topic}", {})
    reply = api.call("GET", f"/v1/groups/{topic}/statistics?minutes={minutes}")
    assert reply.status in (400, 422) and "minutes" in reply.json["detail"]
    assert api.call("GET", "/v1/groups/nobody/statistics").status == 404


def test_cons_06_a_minute_is_in_the_log_when_it_is_over_and_the_last_one_at_a_stop(tmp_path: Path) -> None:
    clock, config = SetClock(), config_for(tmp_path / "w", brokers=(BROKER,))
    with running(config, Ports(clock=clock)) as api:
        api.put_topic("orders", partitions=1)
        api.send("orders", "a", "b", "c")
        clock.advance_ms(30_000)
        tell(api, "billing", "ack", handles=pop(api, "billing", "orders", max_messages=1))
        clock.advance_ms(60_000)
        until(lambda: len(stored(api)) == 1)
        (first,) = stored(api)
        assert (first.key.group, first.key.topic, first.key.broker) == ("billing", "orders", BROKER)
        assert (first.consumed.delivered, first.consumed.succeeded, first.consumed.age_ms) == (1, 1, 30_000)
        pop(api, "billing", "orders", max_messages=2)
        assert statistics(api, "billing")["orders"]["delivered"] == 3, "over both minutes"
    with running(config, Ports(clock=clock)) as api:
        assert [one.consumed.delivered for one in stored(api)] == [1, 2]
        assert len({one.process for one in stored(api)}) == 1
        assert statistics(api, "billing") == {}, "a new process counts from its start"


def test_cons_06_a_group_that_is_made_again_begins_at_nothing(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=1)
    api.send(topic, "a")
    assert len(pop(api, topic, topic)) == 1
    assert api.call("DELETE", f"/v1/groups/{topic}").status == 204
    api.call("PUT", f"/v1/groups/{topic}", {})
    assert statistics(api, topic) == {}
