"""What is delivered again: by attempt and due time, brought forward, or made a dead letter (SPEC LOOK-16)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.client.cli import root as cli
from deltamq.mq.client.pop.client import PopClient
from tests.api.guarded import guarded
from tests.api.queue_calls import Queue
from tests.api.running import config_for, running, until

pytestmark = pytest.mark.static_too


def _retries(queue: Queue, group: str = "billing", query: str = "") -> dict[str, Any]:
    reply = queue.api.call("GET", f"/v1/groups/{group}/retries{query}")
    assert reply.status == 200, reply
    answer: dict[str, Any] = reply.json
    return answer


def _states(answer: dict[str, Any]) -> list[tuple[int, int, str]]:
    return [(one["origin"]["offset"], one["attempt"], one["state"]) for one in answer["messages"]]


def _counts(answer: dict[str, Any]) -> list[tuple[int, str, int]]:
    return [(one["attempt"], one["state"], one["messages"]) for one in answer["by_attempt"]]


def test_look_16_what_comes_again_is_shown_by_attempt_and_due_time(queue: Queue) -> None:
    (partition,) = queue.api.partitions("orders")
    billing = queue.group("billing", retry_policy=[30_000, 90_000])
    queue.send("a", "b", "c", "d")
    a, b, _, d = billing.pop(4, client_id="worker-1", invisible_ms=600_000).handles
    assert _retries(queue) == {"group": "billing", "total": 0, "messages": [], "by_attempt": []}
    assert billing.nack([b]) == billing.nack([a], delay_ms=60_000) == {}
    assert billing.invisible(d, 20_000).status == 200
    answer = _retries(queue)
    assert (answer["total"], _states(answer)) == (2, [(1, 2, "waiting"), (0, 2, "waiting")])
    assert {one["origin"]["partition"] for one in answer["messages"]} == {partition}
    assert _counts(answer) == [(2, "waiting", 2)]
    queue.advance(31_000)
    states = {(1, 2, "overdue"), (3, 2, "overdue"), (0, 2, "waiting")}
    assert set(_states(_retries(queue))) == states
    queue.revive()
    until(lambda: {state for *_, state in _states(_retries(queue))} == {"ready", "waiting"})
    answer = _retries(queue)
    assert set(_states(answer)) == {(1, 2, "ready"), (3, 2, "ready"), (0, 2, "waiting")}
    assert _states(answer)[-1] == (0, 2, "waiting") and _counts(answer) == [(2, "ready", 2), (2, "waiting", 1)]
    again = billing.pop_again(2)
    assert billing.nack(again.handles) == {}
    answer = _retries(queue)
    assert set(_states(answer)) == {(0, 2, "waiting"), (1, 3, "waiting"), (3, 3, "waiting")}
    assert _counts(answer) == [(2, "waiting", 1), (3, "waiting", 2)]
    assert _retries(queue, query="?limit=1")["total"] == 3 and len(_retries(queue, query="?limit=1")["messages"]) == 1
    assert _retries(queue, query="?topic=other")["total"] == 0


def test_look_16_a_restart_knows_what_waits(queue: Queue) -> None:
    billing = queue.group("billing", retry_policy=[30_000])
    queue.send("a", "b")
    first, _ = billing.pop(2, client_id="worker-1", invisible_ms=600_000).handles
    assert billing.nack([first]) == {}
    before = _retries(queue)
    queue.restart()
    assert _states(_retries(queue)) == _states(before) == [(0, 2, "waiting")]
    (held, *_) = [one for one in _in_flight(queue)["messages"] if not one["given_back"]]
    assert held["offset"] == 1
    (handle,) = [one["handle"] for one in _retries(queue)["messages"]]
    assert queue.consumer("billing").ack([handle]) == {} and _retries(queue)["total"] == 0


def _in_flight(queue: Queue) -> dict[str, Any]:
    answer: dict[str, Any] = queue.api.call("GET", "/v1/groups/billing/in-flight").json
    return answer


def test_look_16_nobody_holds_what_was_given_back(queue: Queue) -> None:
    billing = queue.group("billing")
    queue.send("a", "b")
    first, _ = billing.pop(2, client_id="worker-1").handles
    assert billing.nack([first]) == {}
    answer = _in_flight(queue)
    assert {(one["offset"], one["client_id"], one["given_back"]) for one in answer["messages"]} == {
        (0, None, True),
        (1, "worker-1", False),
    }
    assert [(one["client_id"], one["messages"]) for one in answer["by_client"]] == [("worker-1", 1)]
    (partition,) = queue.api.partitions("orders")
    path = f"/v1/topics/orders/partitions/{partition.replace('#', '%23')}/messages/0/deliveries"
    (life,) = queue.api.call("GET", path).json["deliveries"]
    assert (life["state"], life["client_id"]) == ("failed", None) and life["due_time"]


def test_look_16_a_waiting_message_is_brought_forward_or_made_a_dead_letter(
    queue: Queue, capsys: pytest.CaptureFixture[str]
) -> None:
    billing = queue.group("billing", retry_policy=[3_600_000])
    queue.send("a", "b", "c")
    assert billing.nack(billing.pop(3).handles) == {}
    url = f"http://127.0.0.1:{queue.api.port}"
    with Admin(url) as admin, PopClient(url, "billing") as client:
        a, b, _ = [message.handle or "" for message in admin.retries("billing").messages]
        client.change_invisible(a, 0)
        assert client.dead([b], "no such account") == []
        assert [one.code for one in client.dead([a], "too late")] == ["handle_expired"]
        dying = queue.api.call("GET", "/v1/groups/billing/in-flight").json["messages"]
        assert len(dying) == 3 and len(admin.retries("billing").messages) == 1, "what becomes a dead letter is no retry"
    queue.advance(5_000)
    assert {(offset, state) for offset, _, state in _states(_retries(queue))} == {(0, "overdue"), (2, "waiting")}
    queue.revive()
    assert [row["body"] for row in queue.dead_letters("billing")] == [b"b"]
    assert billing.pop_again(1).bodies == ["a"]
    assert cli._status(["group", "retries", "billing", "--url", url]) == 0
    assert "billing: 1 messages are delivered again" in capsys.readouterr().out
    assert cli._status(["group", "retries", "billing", "--now", "--dead", "x", "--url", url]) == 2
    capsys.readouterr()
    assert cli._status(["group", "retries", "billing", "--now", "--json", "--url", url]) == 0
    assert json.loads(capsys.readouterr().out) == {"messages": 1}
    queue.advance(5_000)
    queue.revive()
    assert billing.pop_again(1).bodies == ["c"]


@pytest.mark.parametrize("order", [True, "key"])
def test_look_16_what_was_popped_in_order_waits_too_and_can_be_brought_forward(queue: Queue, order: object) -> None:
    ordered = queue.group("ordered", order=order, retry_policy=[3_600_000])
    queue.send("a", key="k")
    assert ordered.nack(ordered.pop(1, client_id="worker-1").handles) == {}
    answer = _retries(queue, "ordered")
    assert _states(answer) == [(0, 2, "waiting")]
    assert ordered.pop(1).messages == []
    assert ordered.invisible(answer["messages"][0]["handle"], 0).status == 200
    assert ordered.pop(1).attempts == [2]
    assert _retries(queue, "ordered")["total"] == 0


def test_look_16_another_process_answers_for_its_brokers(tmp_path: Path) -> None:
    with (
        running(config_for(tmp_path, brokers=("broker-a",))) as a,
        running(config_for(tmp_path, brokers=("broker-b",))) as b,
    ):
        until(lambda: all(len(api.service.meta.now.brokers.available) == 2 for api in (a, b)))
        a.put_topic("orders", partitions=2)
        for broker in ("a", "b"):
            assert a.send("orders", {"body": broker, "partition": f"orders@broker-{broker}"}).status == 200
        path = "/v1/groups/billing/topics/orders/pop"
        for api in (a, b):
            (popped,) = api.call("POST", path, {"wait_ms": 5_000}).json["messages"]
            assert api.call("POST", "/v1/groups/billing/nack", {"handles": [popped["handle"]]}).json["nacked"] == 1
        with Admin(f"http://127.0.0.1:{a.port}") as admin, PopClient(f"http://127.0.0.1:{a.port}", "billing") as client:
            answer = admin.retries("billing")
            assert {message.partition for message in answer.messages} == {"orders@broker-a", "orders@broker-b"}
            assert answer.total == 2 and [count.messages for count in answer.by_attempt] == [2]
            assert client.dead([message.handle or "" for message in answer.messages], "by hand") == []


def test_look_16_a_handle_is_for_who_may_consume_and_topics_for_who_may_describe_them(tmp_path: Path) -> None:
    with guarded(tmp_path) as admin:
        for topic in ("orders", "salaries"):
            admin.put_topic(topic)
            assert admin.send(topic, "x").status == 200
            (popped,) = admin.call("POST", f"/v1/groups/billing/topics/{topic}/pop", {}).json["messages"]
            assert admin.call("POST", "/v1/groups/billing/nack", {"handles": [popped["handle"]]}).json["nacked"] == 1
        assert all(one["handle"] for one in admin.call("GET", "/v1/groups/billing/retries").json["messages"])
        looker = admin.caller("looker", ("group", "billing", "describe"), ("topic", "orders", "describe"))
        answer = looker.call("GET", "/v1/groups/billing/retries").json
        assert [(one["topic"], one["handle"]) for one in answer["messages"]] == [("orders", None)]
        assert answer["total"] == 1
        other = admin.caller("other", ("topic", "orders", "describe"))
        assert other.call("GET", "/v1/groups/billing/retries").status == 403


def test_look_16_bad_input_names_the_field(queue: Queue) -> None:
    reply = queue.api.call("GET", "/v1/groups/no-such/retries")
    assert (reply.status, reply.json["code"]) == (404, "group_not_found")
    queue.group("billing")
    reply = queue.api.call("GET", "/v1/groups/billing/retries?limit=1001")
    assert (reply.status, reply.json["field"]) == (422, "limit")
