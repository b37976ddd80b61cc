"""Delayed messages that wait: listed by due time, cancelled (SPEC LOOK-5)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from deltamq.api.queue import waiting_list
from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.client.cli import root as cli
from tests.api.guarded import guarded
from tests.api.running import Api, config_for, running

pytestmark = pytest.mark.static_too

HOUR_MS = 3_600_000


def _page(api: Api, topic: str, query: str = "") -> dict[str, Any]:
    reply = api.call("GET", f"/v1/topics/{topic}/delayed{query}")
    assert reply.status == 200, reply
    answer: dict[str, Any] = reply.json
    return answer


def _all(api: Api, topic: str, limit: int = 100) -> list[str]:
    found, cursor, calls = [], "", 0
    while calls == 0 or cursor:
        answer = _page(api, topic, f"?limit={limit}{f'&cursor={quote(cursor)}' if cursor else ''}")
        found += [one["body"] for one in answer["messages"]]
        cursor, calls = answer["cursor"] or "", calls + 1
        assert calls < 100
    return found


def _send(api: Api, topic: str, body: str, hours: float, **fields: object) -> None:
    reply = api.send(topic, {"body": body, "delay_ms": int(hours * HOUR_MS), **fields})
    assert reply.status == 200, reply


def test_look_05_what_waits_is_listed_the_next_due_first(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=2)
    api.put_topic(f"{topic}.other", partitions=2)
    for body, hours in (("c", 3), ("a", 1), ("b", 2), ("d", 4)):
        _send(api, topic, body, hours, key=body, message_id=f"id-{body}", headers={"h": "1"})
        _send(api, f"{topic}.other", f"other {body}", hours)
    assert api.send(topic, "now").status == 200
    answer = _page(api, topic)
    assert [one["body"] for one in answer["messages"]] == ["a", "b", "c", "d"] and answer["cursor"] is None
    first = answer["messages"][0]
    assert (first["key"], first["message_id"], first["headers"]) == ("a", "id-a", {"h": "1"})
    assert first["partition"] in api.partitions(topic) and "origin" not in first
    assert answer["now_time"] < first["deliver_time"] < answer["messages"][1]["deliver_time"]


def test_look_05_pages_go_on_where_the_last_one_ended(api: Api, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    api.put_topic(topic, partitions=3)
    whole = [f"{number:02}" for number in range(17)]
    for body in whole:
        _send(api, topic, body, 1 + int(body) / 100)
        _send(api, f"{topic}.other", body, 1 + int(body) / 100)
    assert _all(api, topic) == whole
    assert _all(api, topic, limit=5) == whole
    monkeypatch.setattr(waiting_list, "_PIECE", 2)
    assert _all(api, topic, limit=3) == whole
    monkeypatch.setattr(waiting_list, "_LOOK_S", 0.0)
    assert _all(api, topic, limit=3) == whole, "each page looks at something"


def test_look_05_messages_that_are_due_at_one_time_are_each_listed_once(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=3)
    at = (datetime.now(UTC) + timedelta(hours=5)).isoformat()
    for number in range(10):
        assert api.send(topic, {"body": str(number), "deliver_time": at}).status == 200
    assert sorted(_all(api, topic, limit=3)) == sorted(map(str, range(10)))


def test_look_05_a_cancelled_message_is_listed_no_more(api: Api, topic: str) -> None:
    api.put_topic(topic)
    _send(api, topic, "a", 1, message_id="id/a")
    _send(api, topic, "b", 2, message_id="b")
    assert api.call("DELETE", f"/v1/topics/{topic}/delayed/{quote('id/a')}").status == 204
    assert _all(api, topic) == ["b"]
    reply = api.call("DELETE", f"/v1/topics/{topic}/delayed/no-such")
    assert (reply.status, reply.json["code"]) == (404, "message_not_found")


def test_look_05_a_topic_that_was_made_again_has_none_of_the_old_ones(api: Api, topic: str) -> None:
    api.put_topic(topic)
    _send(api, topic, "old", 1)
    assert api.call("DELETE", f"/v1/topics/{topic}").status == 204
    api.put_topic(topic)
    assert _all(api, topic) == []
    _send(api, topic, "new", 1)
    assert _all(api, topic) == ["new"]


@pytest.mark.parametrize(
    ("query", "status", "field"),
    [
        ("?limit=0", 422, "limit"),
        ("?cursor=x", 400, "cursor"),
        ("?cursor=1:2:", 400, "cursor"),
        ("?cursor=-1:2:a", 400, "cursor"),
    ],
)
def test_look_05_bad_requests_name_the_field(api: Api, topic: str, query: str, status: int, field: str) -> None:
    api.put_topic(topic)
    reply = api.call("GET", f"/v1/topics/{topic}/delayed{query}")
    assert (reply.status, reply.json["field"]) == (status, field)


def test_look_05_the_sdk_and_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running(config_for(tmp_path)) as api:
        url = f"http://127.0.0.1:{api.port}"
        for number in range(3):
            _send(api, "orders", f"body {number}", 1 + number, message_id=f"m{number}")
        with Admin(url) as admin:
            assert [message.payload for message in admin.delayed("orders")] == [b"body 0", b"body 1", b"body 2"]
        assert cli._status(["delayed", "cancel", "orders", "m1", "--url", url]) == 0
        capsys.readouterr()
        assert cli._status(["delayed", "list", "orders", "--max", "5", "--url", url]) == 0
        out = capsys.readouterr()
        assert [line.split("\t")[3:] for line in out.out.splitlines()] == [["m0", "body 0"], ["m2", "body 2"]]
        assert "no job delay and revive run" in out.err


def test_look_05_only_who_may_read_a_topic_sees_what_waits(tmp_path: Path) -> None:
    with guarded(tmp_path) as admin:
        admin.put_topic("orders")
        assert admin.send("orders", {"body": "secret", "delay_ms": HOUR_MS}).status == 200
        assert len(admin.call("GET", "/v1/topics/orders/delayed").json["messages"]) == 1
        other = admin.caller("other", ("topic", "orders", "publish", "describe"))
        assert other.call("GET", "/v1/topics/orders/delayed").status == 403
