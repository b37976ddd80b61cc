"""Search of messages: what is found, how far a call looks, who may (SPEC LOOK-1 to LOOK-3)."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from deltamq.api.inspection import search
from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.client.cli import root as cli
from tests.api.guarded import guarded
from tests.api.running import Api, Reply, config_for, running

pytestmark = pytest.mark.static_too


def _search(api: Api, topic: str, **wanted: object) -> Reply:
    return api.call("GET", f"/v1/topics/{topic}/search?{urlencode(wanted)}")


def _bodies(reply: Reply) -> list[str]:
    assert reply.status == 200, reply.body
    return [one["body"] for one in reply.json["messages"]]


def _all(api: Api, topic: str, **wanted: object) -> tuple[list[dict[str, Any]], int]:
    """Search to the end; return what was found, and the number of calls."""
    found, calls, cursor = [], 0, None
    while calls == 0 or cursor is not None:
        answer = _search(api, topic, **wanted, **({} if cursor is None else {"cursor": cursor})).json
        found += answer["messages"]
        cursor, calls = answer["cursor"], calls + 1
        assert calls < 200, "a search ends"
    return found, calls


@pytest.fixture
def orders(api: Api, topic: str) -> str:
    """A topic of two partitions with six messages."""
    api.put_topic(topic, partitions=2)
    for number in range(6):
        message = {
            "key": f"k{number % 2}",
            "tag": ["paid", "new", None][number % 3],
            "message_id": f"id-{number}",
            "headers": {"region": ["eu", "us"][number % 2], "n": str(number)},
            "body": f"body {number} äöü",
        }
        assert api.send(topic, message).status == 200
    return topic


@pytest.mark.parametrize(
    ("wanted", "numbers"),
    [
        ({"key": "k1"}, [1, 3, 5]),
        ({"id": "id-4"}, [4]),
        ({"tag": "paid"}, [0, 3]),
        ({"header": "region:us"}, [1, 3, 5]),
        ({"header": "n:2"}, [2]),
        ({"header": "region"}, [0, 1, 2, 3, 4, 5]),
        ({"text": "4 äö"}, [4]),
        ({"key": "k1", "tag": "paid"}, [3]),
        ({"key": "k1", "id": "id-4"}, []),
        ({"tag": "a.*"}, []),
        ({}, [0, 1, 2, 3, 4, 5]),
    ],
    ids=str,
)
def test_look_01_messages_are_found_by_what_is_in_them(
    api: Api, orders: str, wanted: dict[str, str], numbers: list[int]
) -> None:
    found, _ = _all(api, orders, **wanted)
    # of two partitions, those of the same millisecond come in any order
    assert sorted(one["body"] for one in found) == [f"body {number} äöü" for number in numbers]
    assert sorted(times := [one["append_time"] for one in found]) == times
    for one in found:
        (fetched,) = api.fetch(orders, one["partition"], f"?offset={one['offset']}&max_messages=1").json["messages"]
        assert fetched == {name: value for name, value in one.items() if name != "partition"}


def test_look_01_messages_are_found_by_the_time_when_they_were_stored(api: Api, orders: str) -> None:
    stored = [one["append_time"] for one in _all(api, orders)[0]]
    assert stored == sorted(stored)
    found, _ = _all(api, orders, from_time=stored[2], to_time=stored[4])
    assert [one["append_time"] for one in found] == [time for time in stored if stored[2] <= time < stored[4]]
    assert _all(api, orders, from_time="2100-01-01T00:00:00Z")[0] == []
    assert _all(api, orders, to_time="2000-01-01T00:00:00Z") == ([], 1)


def _by_id(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(messages, key=lambda one: str(one["message_id"]))


def test_look_02_a_call_is_bounded_and_the_next_goes_on(api: Api, orders: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, _ = _all(api, orders)
    paged, calls = _all(api, orders, limit=2)
    assert _by_id(paged) == _by_id(whole) and calls >= 3, "each answer is sorted by itself"
    monkeypatch.setattr(search, "_PIECE_MESSAGES", 1)
    monkeypatch.setattr(search, "_BYTES_MAX", 1)
    slow, calls = _all(api, orders, key="k1")
    assert [one["message_id"] for one in slow] == ["id-1", "id-3", "id-5"] and calls >= 6
    first = _search(api, orders, key="none").json
    assert (first["messages"], first["looked_at"]["messages"]) == ([], 1) and first["cursor"]


def test_look_02_it_says_how_far_it_has_looked(api: Api, orders: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = _search(api, orders, key="none").json
    stored = [datetime.fromisoformat(one["append_time"]) for one in _all(api, orders)[0]]
    assert whole["looked_at"]["messages"] == 6 and whole["looked_at"]["bytes"] > 0 and whole["cursor"] is None
    assert datetime.fromisoformat(whole["looked_at"]["through_time"]) == stored[-1]
    monkeypatch.setattr(search, "_PIECE_MESSAGES", 1)
    cursor, seen = "", 0
    for _ in range(6):
        answer = _search(api, orders, limit=1, **({"cursor": cursor} if cursor else {})).json
        seen += answer["looked_at"]["messages"]
        through = answer["looked_at"]["through_time"]
        # Whatever was stored up to then has been looked at.
        assert through is None or sum(one <= datetime.fromisoformat(through) for one in stored) <= seen
        cursor = answer["cursor"]
        if cursor is None:
            break
    assert seen == 6


def test_look_02_messages_that_come_during_a_search_are_found(api: Api, orders: str) -> None:
    first = _search(api, orders, limit=3).json
    assert api.send(orders, {"body": "late", "key": "k0"}).status == 200
    rest, cursor = [], first["cursor"]
    while cursor is not None:
        answer = _search(api, orders, cursor=cursor).json
        rest += answer["messages"]
        cursor = answer["cursor"]
    assert len(first["messages"]) + len(rest) == 7 and rest[-1]["body"] == "late"


def test_look_02_one_partition_alone(api: Api, orders: str) -> None:
    (name, other) = api.partitions(orders)
    found = _all(api, orders, partition=name)[0] + _all(api, orders, partition=other)[0]
    assert sorted(one["body"] for one in found) == sorted(one["body"] for one in _all(api, orders)[0])
    assert {one["partition"] for one in _all(api, orders, partition=name)[0]} <= {name}


@pytest.mark.parametrize(
    ("wanted", "status", "code", "field"),
    [
        ({"limit": 0}, 422, "invalid_value", "limit"),
        ({"from_time": "yesterday"}, 400, "invalid_request", "from_time"),
        ({"header": ":x"}, 422, "invalid_value", "header"),
        ({"partition": "nowhere@broker-a"}, 404, "partition_not_found", "partition"),
        ({"cursor": "x"}, 400, "invalid_request", "cursor"),
        ({"text": "x" * 1_025}, 422, "invalid_value", "text"),
    ],
    ids=str,
)
def test_look_02_bad_requests_name_the_field(
    api: Api, orders: str, wanted: dict[str, object], status: int, code: str, field: str
) -> None:
    reply = _search(api, orders, **wanted)
    assert (reply.status, reply.json["code"], reply.json["field"]) == (status, code, field)


def test_look_02_a_cursor_that_was_changed_is_refused(api: Api, orders: str) -> None:
    cursor = _search(api, orders, limit=1).json["cursor"]
    life = cursor.partition(".")[0]
    wrong = [cursor + ".5", cursor.replace("_", "x"), cursor[:-1] + "²", cursor.rpartition(".")[0] + ".9" * 30]
    wrong += [
        "",
        ".",
        life,
        life + ".",
        life.upper() + ".-",
        "x" + cursor,
        f"{life}.{'9' * 5_000}_1",
        cursor + ".-" * 30,
    ]
    for one in wrong:
        reply = _search(api, orders, cursor=one)
        assert (reply.status, reply.json["code"], reply.json["field"]) == (400, "invalid_request", "cursor"), one


def test_look_02_binary_bodies_and_marks_are_found_as_they_are(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=1)
    assert api.send(topic, {"body_base64": "/wD/"}, {"body": "<script>alert(1)</script>\u202e\x00"}).status == 200
    found, _ = _all(api, topic)
    assert found[0]["body_base64"] == "/wD/" and found[1]["body"] == "<script>alert(1)</script>\u202e\x00"
    assert len(_all(api, topic, text="<script>")[0]) == 1


def test_look_02_what_retention_took_is_passed_over(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=1)
    for number in range(3):
        assert api.send(topic, str(number)).status == 200
    first = _search(api, topic, limit=1).json
    (partition,) = api.partitions(topic)
    log = api.hosted(topic, partition).open()
    log.delete_below(2)
    assert _bodies(_search(api, topic, cursor=first["cursor"])) == ["2"]


def test_look_01_the_sdk_and_the_command_line_search(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_PIECE_MESSAGES", 2)
    monkeypatch.setattr(search, "_BYTES_MAX", 1)
    with running(config_for(tmp_path)) as plain:
        topic = "orders"
        url = f"http://127.0.0.1:{plain.port}"
        plain.put_topic(topic, partitions=2)
        for number in range(9):
            assert plain.send(topic, {"key": f"k{number % 3}", "body": f"body {number}\x1b[31m"}).status == 200
        with Admin(url) as admin:
            found = list(admin.search(topic, key="k1", since=datetime(2000, 1, 1, tzinfo=UTC)))
            assert sorted(one.payload for one in found) == [b"body %d\x1b[31m" % number for number in (1, 4, 7)]
            assert list(admin.search(topic, until=datetime(2000, 1, 1, tzinfo=UTC))) == []
        assert cli._status(["search", topic, "--message-key", "k1", "--from", "-1h", "--url", url]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == 3 and all("\x1b" not in line and "\tk1\t" in line for line in lines)
        assert cli._status(["search", topic, "--max", "2", "--json", "--url", url]) == 0
        assert len(capsys.readouterr().out.splitlines()) == 2
        assert cli._status(["search", topic, "--from", "first", "--url", url]) == 2
        assert cli._status(["search", "no-such", "--url", url]) == 1


def test_look_03_a_topic_that_was_made_again_is_searched_from_the_beginning(api: Api, orders: str) -> None:
    cursor = _search(api, orders, limit=1).json["cursor"]
    assert api.call("DELETE", f"/v1/topics/{orders}").status == 204
    api.put_topic(orders, partitions=2)
    reply = _search(api, orders, cursor=cursor)
    assert (reply.status, reply.json["code"]) == (409, "topic_made_again")


def test_look_03_only_who_may_read_a_topic_may_search_it(tmp_path: Path) -> None:
    with guarded(tmp_path) as admin:
        admin.put_topic("orders")
        assert admin.send("orders", "secret").status == 200
        reader = admin.caller("reader", ("topic", "orders", "subscribe"))
        other = admin.caller("other", ("topic", "orders", "publish", "describe"))
        assert len(reader.call("GET", "/v1/topics/orders/search").json["messages"]) == 1
        assert other.call("GET", "/v1/topics/orders/search").status == 403
