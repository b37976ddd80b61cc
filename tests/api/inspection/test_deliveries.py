"""What each group did with a message, from its first delivery to its end (SPEC LOOK-6)."""

from __future__ import annotations

from typing import Any

import pytest

from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.client.cli import root as cli
from tests.api.queue_calls import Queue

pytestmark = pytest.mark.static_too


def _path(queue: Queue, offset: int, topic: str = "orders") -> str:
    (partition,) = queue.api.partitions(topic)
    return f"/v1/topics/{topic}/partitions/{partition}/messages/{offset}/deliveries"


def _life(queue: Queue, offset: int = 0) -> list[dict[str, Any]]:
    reply = queue.api.call("GET", _path(queue, offset))
    assert reply.status == 200, reply
    deliveries: list[dict[str, Any]] = reply.json["deliveries"]
    return deliveries


def _states(queue: Queue, offset: int = 0) -> list[tuple[str, int, str]]:
    return [(one["group"], one["attempt"], one["state"]) for one in _life(queue, offset)]


def test_look_06_a_messages_life_is_shown_from_its_first_delivery_to_its_end(queue: Queue) -> None:
    queue.send("a", "b")
    assert _life(queue) == []
    billing = queue.group("billing", max_attempts=2, retry_policy=[1_000])
    first = billing.pop(1, client_id="worker-1", invisible_ms=10_000)
    (held,) = _life(queue)
    assert (held["attempt"], held["state"], held["client_id"]) == (1, "held", "worker-1")
    assert held["time"] < held["due_time"] and held["moved_to"] is None
    assert _states(queue, 1) == [("billing", 0, "waiting")]
    queue.advance(11_000)
    assert _states(queue) == [("billing", 1, "overdue")]
    assert first.handles
    queue.advance(10_000)
    queue.revive()
    failed, retried = _life(queue)
    assert (failed["attempt"], failed["state"]) == (1, "failed")
    assert (retried["attempt"], retried["state"], retried["moved_to"]) == (2, "retried", None)
    assert failed["moved_to"].endswith(":0") and retried["time"] is not None
    queue.advance(2_000)
    queue.revive()
    again = billing.pop_again(1, client_id="worker-2")
    while again.bodies != ["a"]:
        assert billing.ack(again.handles) == {}
        again = billing.pop_again(1, client_id="worker-2")
    assert [(one["state"], one["client_id"]) for one in _life(queue)] == [("failed", None), ("held", "worker-2")]
    assert billing.dead(again.handles, "no such customer") == {}
    queue.advance(1_000)
    queue.revive()
    *_, before, end = _life(queue)
    assert (before["state"], before["moved_to"]) == ("failed", end["moved_to"])
    assert (end["attempt"], end["state"], end["reason"]) == (2, "dead", "no such customer")


def test_look_06_groups_are_apart_and_progress_counts_in_memory_and_after_a_restart(queue: Queue) -> None:
    queue.send("a", "b", "c")
    billing, audit = queue.group("billing"), queue.group("audit")
    popped = billing.pop(3)
    audit.pop(1, client_id="auditor")
    assert billing.ack(popped.handles[:1] + popped.handles[2:]) == {}
    assert _states(queue) == [("audit", 1, "held"), ("billing", 1, "done")]
    assert _states(queue, 2) == [("audit", 0, "waiting"), ("billing", 1, "done")]
    assert billing.ack(popped.handles[1:2]) == {}
    queue.restart()
    assert _states(queue, 1) == [("audit", 0, "waiting"), ("billing", 1, "done")]


def test_look_06_a_retried_message_that_is_acknowledged_is_done(queue: Queue) -> None:
    queue.send("a")
    billing = queue.group("billing", retry_policy=[1_000])
    assert billing.nack(billing.pop(1).handles) == {}
    queue.settle()
    queue.advance(2_000)
    queue.revive()
    assert billing.ack(billing.pop_again(1).handles) == {}
    assert _states(queue) == [("billing", 1, "failed"), ("billing", 2, "done")]


@pytest.mark.parametrize(
    ("partition", "offset", "status", "code"),
    [
        ("orders@broker-a", "9", 404, "message_not_found"),
        ("orders@nowhere", "0", 404, "partition_not_found"),
        ("orders@broker-a", "-1", 422, "invalid_value"),
        ("orders@broker-a", "x", 400, "invalid_request"),
    ],
)
def test_look_06_what_is_not_there_is_named(queue: Queue, partition: str, offset: str, status: int, code: str) -> None:
    queue.send("a")
    (there,) = queue.api.partitions("orders")
    name = there if partition == "orders@broker-a" else partition
    reply = queue.api.call("GET", f"/v1/topics/orders/partitions/{name}/messages/{offset}/deliveries")
    assert reply.status == status, reply
    assert queue.static or reply.json["code"] == code


def test_look_06_in_the_sdk_and_on_the_command_line(queue: Queue, capsys: pytest.CaptureFixture[str]) -> None:
    queue.send("a")
    queue.group("billing").pop(1, client_id="worker-1")
    partition = queue.api.service_name("orders", *queue.api.partitions("orders"))
    url = f"http://127.0.0.1:{queue.api.port}"
    with Admin(url) as admin:
        (held,) = admin.deliveries("orders", partition, 0).deliveries
    assert (held.group, held.state, held.client_id) == ("billing", "held", "worker-1")
    assert cli._status(["deliveries", "orders", partition, "0", "--url", url]) == 0
    shown = capsys.readouterr().out
    assert "billing" in shown and "worker-1" in shown and "held" in shown
