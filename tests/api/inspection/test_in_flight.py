"""Who holds which message, since when (SPEC LOOK-4)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.client.cli import root as cli
from tests.api.guarded import guarded
from tests.api.queue_calls import Queue
from tests.api.running import config_for, running, until

pytestmark = pytest.mark.static_too


def _in_flight(queue: Queue, group: str = "billing", query: str = "") -> dict[str, Any]:
    reply = queue.api.call("GET", f"/v1/groups/{group}/in-flight{query}")
    assert reply.status == 200, reply
    answer: dict[str, Any] = reply.json
    return answer


def _offsets(answer: dict[str, Any]) -> list[int]:
    return [one["offset"] for one in answer["messages"]]


def test_look_04_who_holds_which_message_since_when(queue: Queue) -> None:
    (partition,) = queue.api.partitions("orders")
    billing = queue.group("billing")
    queue.send("a", "b", "c", "d")
    first = billing.pop(2, client_id="worker-1", invisible_ms=60_000)
    queue.advance(5_000)
    second = billing.pop(1, client_id="worker-2", invisible_ms=30_000)
    billing.pop(1)
    answer = _in_flight(queue)
    assert (answer["total"], _offsets(answer)) == (4, [0, 1, 2, 3])
    assert [one["client_id"] for one in answer["messages"]] == ["worker-1", "worker-1", "worker-2", None]
    assert {one["partition"] for one in answer["messages"]} == {partition}
    assert [one["attempt"] for one in answer["messages"]] == [1, 1, 1, 1]
    held = {(one["client_id"], one["messages"]) for one in answer["by_client"]}
    assert held == {("worker-1", 2), ("worker-2", 1), (None, 1)}
    assert answer["by_client"][0]["client_id"] == "worker-1"
    oldest, third = answer["messages"][0], answer["messages"][2]
    assert oldest["since_time"] < third["since_time"] and third["visible_time"] < oldest["visible_time"]
    assert billing.ack([first.handles[0], *second.handles]) == {}
    assert _offsets(_in_flight(queue)) == [1, 3]
    assert _in_flight(queue, query="?limit=1")["total"] == 2 and _offsets(_in_flight(queue, query="?limit=1")) == [1]
    assert _offsets(_in_flight(queue, query="?topic=other")) == []


@pytest.mark.parametrize("order", [True, "key"])
def test_look_04_messages_that_are_popped_in_order_have_holders(queue: Queue, order: object) -> None:
    ordered = queue.group("ordered", order=order)
    queue.send("a", "b", key="k")
    ordered.pop(2, client_id="worker-1")
    answer = _in_flight(queue, "ordered")
    assert answer["messages"] and {one["client_id"] for one in answer["messages"]} == {"worker-1"}


def test_look_04_what_is_overdue_is_in_flight_until_it_is_delivered_again(queue: Queue) -> None:
    billing = queue.group("billing")
    queue.send("a")
    billing.pop(1, client_id="worker-1", invisible_ms=10_000)
    queue.advance(11_000)
    (held,) = _in_flight(queue)["messages"]
    assert (held["client_id"], held["retry"]) == ("worker-1", False)
    queue.advance(10_000)
    queue.revive()
    again = billing.pop_again(1, client_id="worker-2")
    until(lambda: [one["client_id"] for one in _in_flight(queue)["messages"]] == ["worker-2"])
    (held,) = _in_flight(queue)["messages"]
    assert (held["attempt"], held["retry"], held["topic"]) == (2, True, "orders") and again.attempts == [2]


def test_look_04_after_a_restart_the_messages_are_there_and_their_holders_are_not_known(queue: Queue) -> None:
    billing = queue.group("billing")
    queue.send("a", "b")
    billing.pop(2, client_id="worker-1", invisible_ms=600_000)
    queue.restart()
    answer = _in_flight(queue)
    assert (_offsets(answer), [one["client_id"] for one in answer["messages"]]) == ([0, 1], [None, None])


def test_look_04_a_group_without_messages_in_flight_and_one_that_is_none(queue: Queue) -> None:
    queue.group("billing")
    assert _in_flight(queue) == {"group": "billing", "total": 0, "messages": [], "by_client": []}
    reply = queue.api.call("GET", "/v1/groups/no-such/in-flight")
    assert (reply.status, reply.json["code"]) == (404, "group_not_found")
    reply = queue.api.call("GET", "/v1/groups/billing/in-flight?limit=0")
    assert (reply.status, reply.json["field"]) == (422, "limit")


def test_look_04_another_process_answers_for_its_brokers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (
        running(config_for(tmp_path, brokers=("broker-a",))) as a,
        running(config_for(tmp_path, brokers=("broker-b",))) as b,
    ):
        until(lambda: all(len(api.service.meta.now.brokers.available) == 2 for api in (a, b)))
        a.put_topic("orders", partitions=2)
        for broker in ("a", "b"):
            assert a.send("orders", {"body": broker, "partition": f"orders@broker-{broker}"}).status == 200
        path = "/v1/groups/billing/topics/orders/pop"
        popped = [
            one
            for api in (a, b)
            for one in api.call("POST", path, {"client_id": "w", "wait_ms": 5_000}).json["messages"]
        ]
        assert len(popped) == 2
        for api in (a, b):
            with Admin(f"http://127.0.0.1:{api.port}") as admin:
                answer = admin.in_flight("billing")
            assert {held.partition for held in answer.messages} == {"orders@broker-a", "orders@broker-b"}
            assert [(holder.client_id, holder.messages) for holder in answer.by_client] == [("w", 2)]
        assert cli._status(["group", "in-flight", "billing", "--url", f"http://127.0.0.1:{a.port}"]) == 0
        assert "billing: 2 messages in flight" in capsys.readouterr().out


def test_look_04_only_topics_that_the_caller_may_describe_are_shown(tmp_path: Path) -> None:
    with guarded(tmp_path) as admin:
        for topic in ("orders", "salaries"):
            admin.put_topic(topic)
            assert admin.send(topic, "x").status == 200
            path = f"/v1/groups/billing/topics/{topic}/pop"
            assert len(admin.call("POST", path, {}).json["messages"]) == 1
        looker = admin.caller("looker", ("group", "billing", "describe"), ("topic", "orders", "describe"))
        answer = looker.call("GET", "/v1/groups/billing/in-flight").json
        assert [one["topic"] for one in answer["messages"]] == ["orders"] and answer["total"] == 1
        other = admin.caller("other", ("topic", "orders", "describe"))
        assert other.call("GET", "/v1/groups/billing/in-flight").status == 403
