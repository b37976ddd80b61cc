"""Retention by size, and what it takes next (SPEC RETRY-9)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.client.cli import root as cli
from deltamq.tables.queue.retention import Retention
from tests.api.queue_calls import Queue, queue_in

HOUR_MS = 3_600_000


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    with queue_in(tmp_path / "warehouse") as found:
        yield found


def _shown(queue: Queue) -> dict[str, Any]:
    reply = queue.api.call("GET", "/v1/topics/orders/retention")
    assert reply.status == 200, reply
    (partition,) = reply.json["partitions"]
    found: dict[str, Any] = partition
    return found


def _retain(queue: Queue) -> int:
    """Run retention as the job does; return the first offset that is left."""
    config, service = queue.config, queue.api.service
    brokers = tuple(service.meta.now.brokers.brokers)
    retention = Retention(service.warehouse, config.retention, config.warehouse.cluster)
    assert not [one.error for one in retention.run(brokers, queue.clock.wall_us()) if one.error]
    first: int = queue.api.call("GET", "/v1/topics/orders").json["partitions"][0]["min_offset"]
    return first


def test_pop_21_a_plan_does_not_count_what_retention_has_removed(queue: Queue) -> None:
    queue.topic(retention_ms=60_000)
    for _ in range(4):
        queue.send("x")
        queue.advance(30_000)
    assert queue.api.call("PUT", "/v1/groups/late", {}).status == 201
    path = "/v1/groups/late/topics/orders/offsets"
    assert queue.api.call("PUT", path, {"offsets": {"orders@broker-a": 1}}).status == 200
    assert _retain(queue) == 3

    def planned(to: str) -> Any:
        reply = queue.api.call("POST", f"{path}/reset", {"to": to, "plan": True})
        return reply.json["offsets"]["orders@broker-a"]

    assert planned("first") == {"from": 1, "to": 3, "messages": 0}
    assert planned("last") == {"from": 1, "to": 4, "messages": 1}


def test_retry_9_more_than_is_kept_goes_by_size_oldest_first(queue: Queue) -> None:
    queue.topic()
    for _ in range(4):
        queue.send("x" * 2_000)
        queue.advance(1_000)
    shown = _shown(queue)
    size = shown["next"]["bytes"]
    assert (shown["messages"], shown["due_messages"], shown["held_by"]) == (4, 0, [])
    assert (shown["next"]["below"], shown["next"]["messages"], shown["next"]["why"]) == (1, 1, "age")
    assert _retain(queue) == 0
    for limit, due, why in ((4 * size, 0, "age"), (2 * size - 1, 2, "age")):
        assert queue.api.put_topic("orders", retention_bytes=limit)["retention_bytes"] == limit
        shown = _shown(queue)
        assert (shown["due_messages"], shown["next"]["why"]) == (due, why)
    billing = queue.group("billing")
    held = billing.pop(2, invisible_ms=60_000)
    queue.advance(20_000)  # what was popped is in the log by now
    billing.ack(held.handles[:1])
    queue.advance(20_000)
    shown = _shown(queue)
    assert (shown["due_messages"], shown["held_by"], shown["next"]["why"]) == (1, ["billing"], "size")
    assert _retain(queue) == 1
    billing.ack(held.handles[1:])
    queue.advance(20_000)
    assert (_retain(queue), _shown(queue)["due_messages"]) == (2, 0)
    queue.restart()
    assert queue.api.call("GET", "/v1/topics/orders").json["retention_bytes"] == 2 * size - 1
    assert queue.api.put_topic("orders", retention_bytes=1)["retention_bytes"] == 1
    assert _retain(queue) == 3, "the newest file stays"
    assert queue.api.put_topic("orders", retention_bytes=-1)["retention_bytes"] == -1


def test_retry_9_a_change_is_planned(queue: Queue, capsys: pytest.CaptureFixture[str]) -> None:
    queue.topic()
    for _ in range(4):
        queue.send("x" * 2_000)
        queue.advance(1_000)
    path, before = "/v1/topics/orders/retention", queue.api.call("GET", "/v1/topics/orders/retention").json
    size = before["partitions"][0]["next"]["bytes"]

    def planned(query: str) -> tuple[int, int, int]:
        reply = queue.api.call("GET", f"{path}?{query}")
        assert reply.status == 200, reply
        return reply.json["retention_ms"], reply.json["retention_bytes"], reply.json["partitions"][0]["due_messages"]

    kept_ms = before["retention_ms"]
    assert planned(f"retention_bytes={2 * size - 1}") == (kept_ms, 2 * size - 1, 2)
    assert planned("retention_ms=2500") == (2_500, -1, 2)
    assert planned(f"retention_ms=2500&retention_bytes={size - 1}") == (2_500, size - 1, 3)
    assert queue.api.call("GET", path).json == before, "nothing is changed"
    url = f"http://127.0.0.1:{queue.api.port}"
    assert cli._status(["topic", "retention", "orders", "--retention-ms", "2500", "--json", "--url", url]) == 0
    assert json.loads(capsys.readouterr().out)["partitions"][0]["due_messages"] == 2
    assert queue.api.put_topic("orders", retention_ms=2_500)["retention_ms"] == 2_500
    assert _retain(queue) == 2, "as planned"
    assert planned(f"retention_ms={kept_ms}")[2] == 0
    for wrong in ("retention_bytes=0", "retention_bytes=-2", "retention_ms=0"):
        reply = queue.api.call("GET", f"{path}?{wrong}")
        assert (reply.status, reply.json["field"]) == (422, wrong.partition("=")[0]), reply


def test_retry_9_a_topic_without_messages_has_nothing_to_take(queue: Queue) -> None:
    queue.topic()
    shown = _shown(queue)
    assert (shown["messages"], shown["due_messages"], shown["next"]) == (0, 0, None)


@pytest.mark.parametrize(("given", "status"), [(0, 422), (-2, 422), (2**53, 422), ("1MB", 400), (1.5, 400)])
def test_retry_9_a_size_that_cannot_be_is_refused(queue: Queue, given: object, status: int) -> None:
    reply = queue.api.call("PUT", "/v1/topics/orders", {"retention_bytes": given})
    assert (reply.status, reply.json["field"]) == (status, "retention_bytes"), reply


def test_retry_9_the_sdk_and_the_command_line(queue: Queue, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{queue.api.port}"
    create = ["topic", "create", "orders", "--partitions", "1", "--retention-bytes", "5000", "--url", url]
    assert cli._status(create) == 0
    queue.send("x")
    capsys.readouterr()
    assert cli._status(["topic", "show", "orders", "--url", url]) == 0
    assert "or 5,000 bytes" in capsys.readouterr().out
    assert cli._status(["topic", "retention", "orders", "--url", url]) == 0
    assert "by age" in capsys.readouterr().out
    with Admin(url) as admin:
        assert admin.create_topic("orders", retention_bytes=7_000).retention_bytes == 7_000
        (partition,) = admin.retention("orders").partitions
        assert partition.next is not None and partition.next.messages == 1
