"""A group that is paused gets nothing, whichever way it consumes, until it is resumed (SPEC CONS-12)."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.client.cli import root as cli
from tests.api.auth.test_two_processes import Two, consumer, two_in
from tests.api.exclusive import Member, exclusive_group
from tests.api.running import JSON, Api, Reply, config_for, running, until

ORDERS = "orders@broker-a"


def _pause(api: Api, group: str, reason: str = "") -> Any:
    reply = api.call("POST", f"/v1/groups/{group}/pause", {"reason": reason})
    assert reply.status == 200, reply
    return reply.json["paused"]


def _resume(api: Api, group: str) -> None:
    reply = api.call("POST", f"/v1/groups/{group}/resume")
    assert (reply.status, reply.json["paused"]) == (200, None)


def _pop(api: Api, group: str, **asked: object) -> list[str]:
    reply = api.call("POST", f"/v1/groups/{group}/topics/orders/pop", asked)
    assert reply.status == 200, reply
    return [message["body"] for message in reply.json["messages"]]


def _later(found: list[Any], ask: Any) -> threading.Thread:
    thread = threading.Thread(target=lambda: found.append(ask()))
    thread.start()
    return thread


def test_cons_12_a_paused_group_gets_nothing_until_it_is_resumed(tmp_path: Path) -> None:
    config = config_for(tmp_path, brokers=("broker-a",))
    with running(config) as api:
        api.put_topic("orders", partitions=1)
        api.send("orders", "0", "1", "2")
        popped = api.call("POST", "/v1/groups/billing/topics/orders/pop", {"max_messages": 1}).json["messages"]
        paused = _pause(api, "billing", "the bank is down")
        assert (paused["reason"], paused["by"]) == ("the bank is down", "")
        again = _pause(api, "billing", "and closed")
        assert (again["reason"], again["since_time"]) == ("and closed", paused["since_time"])
        assert _pop(api, "billing") == [] and _pop(api, "other") == ["0", "1", "2"]
        handles = [message["handle"] for message in popped]
        assert api.call("POST", "/v1/groups/billing/ack", {"handles": handles}).json["failed"] == []
    with running(config) as api:  # it holds after a restart
        assert api.call("GET", "/v1/groups/billing").json["paused"] == again
        assert _pop(api, "billing") == []
        found: list[list[str]] = []
        thread = _later(found, lambda: _pop(api, "billing", wait_ms=20_000))
        until(lambda: api.service.lanes.waiting)
        api.send("orders", "3")
        _resume(api, "billing")
        thread.join(18)
        assert found == [["1", "2", "3"]]


@pytest.mark.parametrize("strategy", ["shared", "exclusive"])
def test_cons_12_fetches_of_a_paused_group_wait(tmp_path: Path, strategy: str) -> None:
    with running(config_for(tmp_path, brokers=("broker-a",))) as api:
        api.put_topic("orders", partitions=1)
        if strategy == "exclusive":
            exclusive_group(api, "billing")
            member = Member(api, "billing", "orders", "one")
            member.beat()
            until(lambda: member.take(ORDERS)["partitions"])
        else:
            assert api.call("PUT", "/v1/groups/billing").status == 201
        api.send("orders", "0")
        _pause(api, "billing")
        query = "?group=billing&client_id=one"
        assert api.fetch("orders", ORDERS, query).json["status"] == "no_new_message"
        assert [row["body"] for row in api.fetch("orders", ORDERS).json["messages"]] == ["0"], "it names no group"
        found: list[Reply] = []
        thread = _later(found, lambda: api.fetch("orders", ORDERS, f"{query}&wait_ms=20000", accept=JSON))
        _resume(api, "billing")
        thread.join(18)
        assert [row["body"] for row in found[0].json["messages"]] == ["0"]


def test_cons_12_each_process_knows_when_the_pause_is_answered(tmp_path: Path) -> None:
    for two in two_in(tmp_path / "warehouse"):
        _check_two(two)


def _check_two(two: Two) -> None:
    caller = consumer(two, "orders")
    for broker in ("a", "b"):
        assert caller.send("orders", {"body": broker, "partition": f"orders@broker-{broker}"}).status == 200
    assert two.a.call("PUT", "/v1/groups/orders").status == 201
    assert caller.call("POST", "/v1/groups/orders/pause").status == 403
    paused = _pause(two.a, "orders", "why")
    assert paused["by"] == "admin"
    for _ in range(5):
        for api in (caller, caller.at(two.b)):
            for broker in ("a", "b"):
                assert _pop(api, "orders", partition=f"orders@broker-{broker}") == []
        assert two.b.call("GET", "/v1/groups/orders").json["paused"] == paused
    _resume(two.b, "orders")
    bodies = {broker: _pop(caller, "orders", partition=f"orders@broker-{broker}") for broker in ("a", "b")}
    assert bodies == {"a": ["a"], "b": ["b"]}


def test_cons_12_bad_requests_name_the_field(tmp_path: Path) -> None:
    with running(config_for(tmp_path)) as api:
        assert api.call("PUT", "/v1/groups/billing").status == 201
        for reason, status in (("x" * 256, 422), ("a\nb", 422), (5, 400)):
            reply = api.call("POST", "/v1/groups/billing/pause", {"reason": reason})
            assert (reply.status, reply.json["field"]) == (status, "reason"), reply
        for how in ("pause", "resume"):
            reply = api.call("POST", f"/v1/groups/nobody/{how}")
            assert (reply.status, reply.json["code"]) == (404, "group_not_found")


def test_cons_12_the_sdk_and_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running(config_for(tmp_path)) as api, Admin(url := f"http://127.0.0.1:{api.port}") as admin:
        admin.create_group("billing")
        shown = admin.pause_group("billing", "rest").paused
        assert shown is not None and shown.reason == "rest" and admin.resume_group("billing").paused is None
        assert cli._status(["group", "pause", "billing", "--reason", "the bank is down", "--url", url]) == 0
        assert capsys.readouterr().out.rstrip().endswith(": the bank is down")
        assert cli._status(["group", "resume", "billing", "--url", url]) == 0
        assert "paused" not in capsys.readouterr().out
