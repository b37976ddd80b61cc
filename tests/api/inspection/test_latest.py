"""`GET /v1/topics/{topic}/latest/{key}` where no job has run: every answer is of the messages (SPEC TYPE-47)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from deltamq.api.reading import latest_values
from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.client.cli.root import main
from deltamq.mq.errors import Unprocessable
from tests.api.queue_calls import Queue, queue_in
from tests.api.running import Reply

SCHEMA = json.dumps({"type": "object", "properties": {"id": {"type": "integer"}, "at": {"type": "string"}}})


pytestmark = pytest.mark.static_too


@pytest.fixture
def queue(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Queue]:
    with queue_in(tmp_path / "warehouse", static=request.param == "static") as made:
        made.topic(2, schema={"format": "json", "schema": SCHEMA, "on_invalid": "quarantine"})
        yield made


def latest(queue: Queue, key: str, topic: str = "orders") -> Reply:
    return queue.api.call("GET", f"/v1/topics/{topic}/latest/{quote(key, safe='')}")


def _url(queue: Queue) -> str:
    return f"http://127.0.0.1:{queue.api.port}"


def put(queue: Queue, key: str, body: str) -> None:
    queue.send(body, key=key)


def test_type_47_the_newest_value_of_a_key_is_what_was_acknowledged_last(queue: Queue) -> None:
    put(queue, "a", '{"id": 1}')
    put(queue, "b", '{"id": 7}')
    first = latest(queue, "a")
    assert (first.status, first.json["value"], first.json["offset"]) == (200, {"id": 1}, 0), first
    assert first.json["partition"] in queue.api.partitions("orders")
    put(queue, "a", '{"id": 2, "at": "x"}')
    assert latest(queue, "a").json["value"] == {"id": 2, "at": "x"}
    put(queue, "a", '{"id": "does not fit"}')
    assert latest(queue, "a").json["value"] == {"id": 2, "at": "x"}, "what does not fit counts for nothing"
    queue.restart()
    assert latest(queue, "a").json["value"] == {"id": 2, "at": "x"}
    put(queue, "a", "")
    gone = latest(queue, "a")
    assert (gone.status, gone.json["code"]) == (404, "key_not_found"), "a message without a value deletes its key"
    assert latest(queue, "b").json["value"] == {"id": 7}


def test_type_47_producers_that_name_partitions_put_one_key_into_several(queue: Queue) -> None:
    for n, partition in enumerate([*queue.api.partitions("orders")] * 2):
        reply = queue.api.send("orders", {"body": json.dumps({"id": n}), "key": "a", "partition": partition})
        assert reply.status == 200, reply
        queue.advance(10)
        assert latest(queue, "a").json["value"] == {"id": n}


@pytest.mark.parametrize("key", ["a/b", "/", "ä ö?#", "%2F", "..", "a" * 1_000])
def test_type_47_any_key_can_be_asked_for(queue: Queue, key: str) -> None:
    put(queue, key, '{"id": 1}')
    found = latest(queue, key)
    assert (found.status, found.json["key"]) == (200, key), found
    with Admin(_url(queue)) as admin:
        newest = admin.latest("orders", key)
    assert newest is not None and newest.fields == {"id": 1}


def test_type_47_what_cannot_be_looked_up_is_said(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    assert latest(queue, "a").json["code"] == "key_not_found"
    assert latest(queue, "a", "nothing").json["code"] == "topic_not_found"
    queue.topic(name="bytes")
    assert (latest(queue, "a", "bytes").status, latest(queue, "a", "bytes").json["code"]) == (422, "no_schema")
    assert latest(queue, "a" * 5_000).status in (400, 422)
    for n in range(30):
        put(queue, "a", json.dumps({"id": n}))
    monkeypatch.setattr(latest_values, "_PIECE_MESSAGES", 10)
    assert latest(queue, "a").json["value"] == {"id": 29}, "several pieces"
    monkeypatch.setattr(latest_values, "_BYTES_MAX", 1)
    behind = latest(queue, "a")
    assert (behind.status, behind.json["code"]) == (503, "latest_behind") and "job" in behind.json["detail"]


def test_type_47_the_admin_and_the_command_line_look_up(queue: Queue, capsys: pytest.CaptureFixture[str]) -> None:
    put(queue, "a", '{"id": 1}')
    with Admin(_url(queue)) as admin:
        newest = admin.latest("orders", "a")
        assert newest is not None and (newest.fields, newest.offset) == ({"id": 1}, 0)
        assert admin.latest("orders", "b") is None
        queue.topic(name="bytes")
        with pytest.raises(Unprocessable, match="has no schema"):
            admin.latest("bytes", "a")
    url = ["--url", _url(queue)]
    assert _printed(capsys, "orders", "a", *url) == (0, {"id": 1})
    code, shown = _printed(capsys, "orders", "a", "--json", *url)
    assert (code, shown["value"], shown["key"]) == (0, {"id": 1}, "a")
    with pytest.raises(SystemExit) as ended:
        main(["latest", "orders", "b", *url])
    assert ended.value.code == 1 and "no value of this key" in capsys.readouterr().err


def _printed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[object, Any]:
    with pytest.raises(SystemExit) as ended:
        main(["latest", *words])
    return ended.value.code or 0, json.loads(capsys.readouterr().out)
