"""Exports of topics to typed tables: what they are, and how far they are (SPEC LOOK-18)."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from deltamq.jobs.export.definition import definition_of, remove_definition, save
from deltamq.jobs.export.plan import ExportPlan, Plans
from deltamq.jobs.tasks.warehouse_files import storage
from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.client.cli import root as cli
from deltamq.mq.static.queue_names import queue_name
from deltamq.tables.ops.exports import Definition
from deltamq.tables.ops.job_runs import LastRun
from deltamq.tables.store.store import Store
from tests.api.guarded import guarded
from tests.api.queue_calls import Queue

pytestmark = pytest.mark.static_too


def _exports(queue: Queue, query: str = "") -> list[dict[str, Any]]:
    reply = queue.api.call("GET", f"/v1/exports{query}")
    assert reply.status == 200, reply
    exports: list[dict[str, Any]] = reply.json["exports"]
    return exports


def _store(queue: Queue) -> Store:
    return storage(str(queue.folder))


def _orders(queue: Queue, name: str = "orders") -> Definition:
    topic = queue.api.service.topics.state.topic("orders").name
    return save(_store(queue), definition_of(topic, f"lake.{name}", schema="id BIGINT", name=name))


def _exported(queue: Queue, definition: Definition, end: int, *, quarantined: int = 0) -> None:
    """Do what the job does at the end of a batch."""
    (partition,) = [queue_name(0)] if queue.static else queue.api.partitions("orders")
    plans = Plans(_store(queue), definition.id)
    before = plans.state()
    start = before.ends.get(f"{partition}:0", 0)
    plan = plans.put(ExportPlan(batch=before.batch + 1, schema="id BIGINT", ranges={f"{partition}:0": (start, end)}))
    plans.finish(plan, before, rows=end - start - quarantined, quarantined=quarantined)


def test_look_18_an_export_says_how_far_it_is_and_what_is_in_quarantine(queue: Queue) -> None:
    assert _exports(queue) == []
    definition = _orders(queue)
    queue.send("a", "b", "c", "d", "e")
    (export,) = _exports(queue)
    assert (export["name"], export["to"], export["quarantine"]) == ("orders", "lake.orders", "lake.orders_quarantine")
    assert (export["behind"], export["rows"], export["offsets"], export["last_run_time"]) == (5, 0, {}, None)
    _exported(queue, definition, 2)
    _exported(queue, definition, 3, quarantined=1)
    (export,) = _exports(queue)
    (partition,) = queue.api.partitions("orders")
    assert (export["behind"], export["rows"], export["quarantined"]) == (2, 2, 1)
    assert (export["offsets"], export["schema"], export["failure"]) == ({partition: 3}, "id BIGINT", None)
    at = datetime(2026, 1, 1, 0, 0, 7, 250_000, tzinfo=UTC)
    run = LastRun(job="export", started_at=at, seconds=1, ok=True, detail="", shards=["orders"])
    _store(queue).replace("jobs/export/runs/one.json", msgspec.json.encode(run))
    queue.restart()
    (export,) = _exports(queue)
    assert (export["behind"], export["last_run_time"]) == (2, "2026-01-01T00:00:07.250000Z")
    remove_definition(_store(queue), "orders")
    assert _exports(queue) == []


def test_look_18_a_failure_is_shown_until_the_export_runs_again(
    queue: Queue, capsys: pytest.CaptureFixture[str]
) -> None:
    definition = _orders(queue)
    plans = Plans(_store(queue), definition.id)
    plans.failed(1_500, "retention removed 7 messages that were not exported")
    (export,) = _exports(queue)
    assert export["failure"] == {
        "time": "1970-01-01T00:00:01.500000Z",
        "detail": "retention removed 7 messages that were not exported",
    }
    url = f"http://127.0.0.1:{queue.api.port}"
    assert cli._status(["topic", "exports", "--url", url]) == 0
    assert "retention removed 7 messages" in capsys.readouterr().out
    assert cli._status(["topic", "exports", "other", "--json", "--url", url]) == 0
    assert json.loads(capsys.readouterr().out) == []
    plans.succeeded()
    with Admin(url) as admin:
        assert [export.failure for export in admin.exports()] == [None]


def test_look_18_an_export_of_a_topic_that_is_gone_is_shown_without_what_it_is_behind(queue: Queue) -> None:
    _orders(queue)
    _orders(queue, "again")
    assert queue.api.call("DELETE", "/v1/topics/orders").status == 204
    assert [(one["name"], one["behind"]) for one in _exports(queue)] == [("again", None), ("orders", None)]
    assert _exports(queue, "?topic=other") == []


@pytest.mark.plain_only(why="access rules name topics")
def test_look_18_only_exports_of_topics_that_the_caller_may_read_are_shown(tmp_path: Path) -> None:
    with guarded(tmp_path) as admin:
        store = admin.service.warehouse.store
        for topic in ("orders", "salaries"):
            admin.put_topic(topic)
            save(store, definition_of(topic, f"lake.{topic}", schema="id BIGINT"))
        assert [one["name"] for one in admin.call("GET", "/v1/exports").json["exports"]] == ["orders", "salaries"]
        reader = admin.caller("reader", ("topic", "orders", "subscribe"))
        assert [one["name"] for one in reader.call("GET", "/v1/exports").json["exports"]] == ["orders"]
        sender = admin.caller("sender", ("topic", "orders", "publish"))
        assert sender.call("GET", "/v1/exports").json == {"exports": []}
