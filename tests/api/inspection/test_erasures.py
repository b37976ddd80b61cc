"""`POST /v1/topics/{t}/erase` and its receipt, beside a service that runs, with the job (SPEC ERASE-5)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from msgspec.structs import replace

from deltamq.jobs.tasks.warehouse_files import storage
from deltamq.jobs.tasks.warehouses import close_warehouses
from deltamq.jobs.upkeep.compact import compact
from deltamq.jobs.upkeep.erase import erase
from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.client.cli.root import main
from deltamq.mq.errors import NotFound
from deltamq.mq.limits import KEY_BYTES_MAX
from deltamq.tables.ops.erasures import ErasedExport, read_erasure, replace_open
from tests.api.guarded import guarded
from tests.api.queue_calls import Queue, queue_in
from tests.unit.jobs.upkeep.test_erase import holding

ADA, SECRET = "ada@example.org", "SECRET-of-ada"
BODY = json.dumps({"id": SECRET})
SCHEMA = json.dumps({"type": "object", "properties": {"id": {"type": "string"}}})
NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    with queue_in(tmp_path / "warehouse") as made:
        made.config = replace(made.config, log=replace(made.config.log, file_keep_ms=1, log_keep_ms=1_000))
        made.restart()
        made.topic()
        made.topic(name="typed", schema={"format": "json", "schema": SCHEMA})
        yield made
    close_warehouses()


def asked(queue: Queue, topic: str) -> str:
    reply = queue.api.call("POST", f"/v1/topics/{topic}/erase", {"keys": [ADA, ADA]})
    assert reply.status == 200, reply
    return str(reply.json["erasure"])


def shown(queue: Queue, erasure: str) -> dict[str, Any]:
    reply = queue.api.call("GET", f"/v1/erasures/{erasure}")
    assert reply.status == 200, reply
    found: dict[str, Any] = reply.json
    return found


def test_erase_5_a_request_over_rest_and_its_receipt(queue: Queue) -> None:
    group = queue.group("billing")
    for topic in ("orders", "typed"):
        queue.send(BODY, BODY, topic=topic, key=ADA, headers={"mail": ADA})
        queue.send('{"id": "kept"}', topic=topic, key="eve")
    queue.send(BODY, key=ADA, delay_ms=3_600_000)
    handles = group.pop(3).handles
    assert group.nack(handles[:1]) == group.dead(handles[1:2]) == group.ack(handles[2:]) == {}
    queue.advance(20_000)
    queue.revive()
    assert len(queue.retries("billing")) == len(queue.dead_letters("billing")) == 1
    requests = [asked(queue, topic) for topic in ("orders", "typed")]
    assert [shown(queue, one)["state"] for one in requests] == ["waiting", "waiting"]
    queue.advance(1_000)
    queue.send("sent later", key="ada@home.example")

    erase(None, queue.config, NOW)
    compact(None, queue.config, NOW)
    first = shown(queue, requests[0])
    assert (first["state"], first["keys"], first["rows"]) == ("erased", 1, 2)
    assert (
        first["copies"] == {"dead_letters": 1, "delayed": 1, "retries": 1} and first["gone_time"] > first["asked_time"]
    )
    until = time.monotonic() + 60
    while any(shown(queue, one)["state"] != "gone" for one in requests):
        assert time.monotonic() < until
        erase(None, queue.config, NOW)

    # The service goes on: the retried message comes, and says nothing.
    queue.advance(20_000)
    popped = group.pop_again(2)
    assert sorted((one.get("body", ""), one.get("key")) for one in popped.messages) == [
        ("", None),
        ("sent later", "ada@home.example"),
    ]
    fetched = queue.api.fetch("typed", "typed@broker-a", "?offset=0&typed=true").json["messages"]
    assert [one.get("value") for one in fetched] == [None, None, {"id": "kept"}]
    assert holding(queue.folder, SECRET.encode(), ADA.encode()) == []
    queue.restart()
    assert [
        one.get("body", "") for one in queue.api.fetch("orders", "orders@broker-a", "?offset=0").json["messages"]
    ] == [
        "",
        "",
        '{"id": "kept"}',
        "sent later",
    ]


def test_erase_1_a_pop_hands_out_nothing_that_was_erased_elsewhere(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = queue.group("billing")
    queue.send("first")
    assert group.pop().bodies == ["first"]
    queue.send(BODY, key=ADA)  # the service has it in memory
    asked(queue, "orders")
    erase(None, queue.config, NOW)
    # as if the pop of before was ten seconds ago
    monkeypatch.setattr("deltamq.api.queue.popper._FOLLOWED_S", 0.0)
    (popped,) = group.pop_again(1).messages
    assert "body" not in popped and "key" not in popped


def test_erase_5_admin_and_the_command_line(queue: Queue, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*words: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(["erase", *words, "--url", url])
        return int(str(ended.value.code or 0)), capsys.readouterr().out

    url = f"http://127.0.0.1:{queue.api.port}"
    queue.send(BODY, key=ADA)
    with Admin(url) as admin:
        info = admin.erasure(admin.erase("orders", [ADA]))
        assert (info.topic, info.state, info.keys, info.gone_time) == ("orders", "waiting", 1, None)
        for missing in ("0" * 32, "..", "%2e%2e"):
            with pytest.raises(NotFound):
                admin.erasure(missing)
        with pytest.raises(NotFound):
            admin.erase("never-made", [ADA])
    code, output = run("orders", "--message-key", ADA, "--json")
    erasure = json.loads(output)["erasure"]
    erase(None, queue.config, NOW)
    code, output = run("status", erasure)
    assert code == 0 and f"erasure {erasure}: erased, " in output and " messages of 1 keys, old files go at " in output
    store = storage(str(queue.folder))
    away, there = (
        ErasedExport(name="a", failure="NotFound: its table /t is gone"),
        ErasedExport(name="b", rows=3, gone_ms=1),
    )
    replace_open(store, structs.replace(read_erasure(store, erasure), exports={"1": there, "2": away}))
    _, output = run("status", erasure)
    assert "export a: NOT DONE, NotFound: its table /t is gone\nexport b: 3 rows, old files go at 1970-01" in output
    assert run("orders")[0] == run("status")[0] == 2
    for keys in ([], [""], ["k" * (KEY_BYTES_MAX + 1)], "ada"):
        assert queue.api.call("POST", "/v1/topics/orders/erase", {"keys": keys}).status in (400, 422)


def test_erase_5_both_calls_are_for_who_may_delete_the_topic(tmp_path: Path) -> None:
    with guarded(tmp_path) as admin:
        admin.call("PUT", "/v1/topics/orders", {"partitions": 1})
        erasure = admin.call("POST", "/v1/topics/orders/erase", {"keys": [ADA]}).json["erasure"]
        reader = admin.caller("reader", ("topic", "orders", "subscribe", "describe", "publish", "alter"))
        assert reader.call("POST", "/v1/topics/orders/erase", {"keys": [ADA]}).status == 403
        assert reader.call("GET", f"/v1/erasures/{erasure}").status == 404
        owner = admin.caller("owner", ("topic", "orders", "delete"))
        assert owner.call("GET", f"/v1/erasures/{erasure}").json["state"] == "waiting"
        assert owner.call("POST", "/v1/topics/orders/erase", {"keys": [ADA]}).status == 200
        acts = [act for act in admin.call("GET", "/v1/audit").json["acts"] if act["call"].endswith("/erase")]
        assert [(act["principal"], act["name"], act["status"]) for act in acts][1] == ("owner", "orders", 200)
        assert ADA not in str(acts)
