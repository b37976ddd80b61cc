"""RETRY-4, RETRY-5 from end to end: sent over REST, forwarded by the job, popped; with restarts of both in between."""

from __future__ import annotations

import math
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from deltamq.jobs.queue.delay import Forwarder
from deltamq.mq.schemas.setting import Format as Form
from deltamq.tables.config import Config
from deltamq.tables.log.warehouse import Warehouse
from tests.api.running import ARROW, Api, config_for, running
from tests.typed import record

DELAY_MS = 60_000
"""Longer than any machine needs to send and to cancel; the job is told the time, so that nobody waits for it."""


def pop(api: Api, **ask: object) -> list[dict[str, Any]]:
    reply = api.call("POST", "/v1/groups/billing/topics/orders/pop", ask)
    assert reply.status == 200, reply.body
    return list(reply.json["messages"])


class Job:
    """The forwarder as a process of its own."""

    def __init__(self, config: Config) -> None:
        self._warehouse = Warehouse.open(config.warehouse.uri)
        self._forwarder = Forwarder(self._warehouse, config)

    def run(self, now_ms: int) -> dict[str, int | str]:
        return dict(self._forwarder.run(now_ms))

    def stop(self) -> None:
        self._warehouse.close()


@pytest.mark.promise("DELAY-1")
def test_retry_04_a_delayed_message_reaches_a_pop_that_waits_and_a_cancelled_one_nobody(tmp_path: Path) -> None:
    config = config_for(tmp_path)
    with running(config) as api:
        api.put_topic("orders", partitions=4)
        began_ms = api.service.now_ms()
        sent = [
            {"key": f"k{i}", "body": str(i), "delay_ms": DELAY_MS, "message_id": f"m{i}", "headers": {"n": str(i)}}
            for i in range(8)
        ]
        assert api.send("orders", *sent, {"body": "now"}, producer={"id": "p", "seq": 0}).status == 200
        assert [m["body"] for m in pop(api)] == ["now"]
        assert api.call("DELETE", "/v1/topics/orders/messages/m3").status == 204
        found: list[dict[str, Any]] = []

        def consume() -> None:
            while len(found) < 7:
                found.extend(pop(api, wait_ms=20_000, max_messages=32))

        waiting = threading.Thread(target=consume)
        waiting.start()
        job = Job(config)
        assert job.run(began_ms + DELAY_MS - 1)["rows"] == 0 and not found, "not before its time"
        ran = job.run(began_ms + 2 * DELAY_MS)
        assert (ran["rows"], ran["cancelled"]) == (7, 1)
        waiting.join(20)
        assert not waiting.is_alive()
        assert sorted(m["body"] for m in found) == [str(i) for i in range(8) if i != 3]
        assert all(m["headers"] == {"n": m["body"]} and m["message_id"] == f"m{m['body']}" for m in found)
        home = {m["body"]: m["partition"] for m in found}
        api.send("orders", *({"key": f"k{i}", "body": f"again-{i}"} for i in range(8)))
        for message in pop(api):
            number = message["body"].removeprefix("again-")
            assert number == "3" or message["partition"] == home[number], "its target is that of its key"
        job.stop()


@pytest.mark.parametrize("form", ["json", "columns", "avro"])
def test_type_42_a_delayed_value_arrives_as_it_was_sent(tmp_path: Path, form: Form) -> None:
    """Values wait as bodies in the delay log; in the topic they are columns."""
    config = config_for(tmp_path)
    texts = {
        "json": '{"properties": {"id": {"type": "integer"}, "at": {"type": "string"}}, "required": ["id"]}',
        "columns": "id BIGINT NOT NULL, at STRING, ratio DOUBLE",
        "avro": record(("id", "long"), ("at", ["null", "string"], {"default": None}), ("ratio", "double")),
    }
    # A number that JSON has no digits for is a name there, in both directions.
    value = {"id": 7, "at": "noon", **({} if form == "json" else {"ratio": "-Infinity"})}
    stored_value = {"id": 7, "at": "noon", **({} if form == "json" else {"ratio": -math.inf})}
    with running(config) as api:
        asked = {"format": form, "schema": texts[form], "on_invalid": "quarantine"}
        assert api.call("PUT", "/v1/topics/orders", {"partitions": 1, "schema": asked}).status == 201
        began_ms = api.service.now_ms()
        values = pa.array([stored_value])
        rows = pa.RecordBatch.from_pydict({"value": values, "delay_ms": pa.array([DELAY_MS])})
        sent = api.call("POST", "/v1/topics/orders/messages", _stream(rows), **{"Content-Type": ARROW})
        assert sent.status == 200, sent
        assert api.send("orders", {"value": value, "delay_ms": DELAY_MS}).status == 200
        assert api.send("orders", {"body": "nonsense", "delay_ms": DELAY_MS}).status == 200
        job = Job(config)
        assert job.run(began_ms + 2 * DELAY_MS)["rows"] == 3
        job.stop()
        popped = pop_values(api)
        assert [message["value"] for message in popped] == [value, value]
        location = api.call("GET", "/v1/topics/orders").json["partitions"][0]["location"]
    stored = DeltaTable(location).to_pyarrow_table().sort_by("offset").to_pylist()
    assert [row["value"] for row in stored] == [stored_value, stored_value, None]
    assert [row["invalid"] is None for row in stored] == [True, True, False]


def pop_values(api: Api) -> list[dict[str, Any]]:
    reply = api.call("POST", "/v1/groups/billing/topics/orders/pop?typed=true", {"max_messages": 32, "wait_ms": 20_000})
    assert reply.status == 200, reply.body
    return list(reply.json["messages"])


def _stream(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


@pytest.mark.promise("DELAY-1")
def test_retry_05_restarts_of_service_and_job_neither_lose_nor_repeat(tmp_path: Path) -> None:
    config = config_for(tmp_path)
    messages = [{"key": f"k{i}", "body": str(i), "delay_ms": DELAY_MS} for i in range(20)]
    with running(config) as api:
        api.put_topic("orders", partitions=2)
        api.send("orders", *messages, producer={"id": "p", "seq": 0})
        now_ms = api.service.now_ms()
    with running(config) as api:
        again = api.send("orders", *messages, producer={"id": "p", "seq": 0})
        assert again.json["duplicate"] and all(r["delayed"] for r in again.json["ranges"])
        for _ in range(3):
            job = Job(config)
            job.run(now_ms + DELAY_MS)
            job.stop()
        late = api.send("orders", *messages, producer={"id": "p", "seq": 0})
        assert late.json["ranges"] == again.json["ranges"]
    with running(config) as api:
        assert sorted(int(m["body"]) for m in pop(api, max_messages=100)) == list(range(20))
