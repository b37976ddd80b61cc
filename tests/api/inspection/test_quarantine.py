"""A topic's quarantine: list, send again with the newest schema, delete; restarts and kills (SPEC TYPE-6 to TYPE-8)."""

from __future__ import annotations

import http.client
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.client.cli.root import main
from deltamq.tables.failpoints import arm
from tests.api.running import Api, config_for, running
from tests.api.test_killed_calls import call
from tests.api.test_serve import serving

STRICT = {
    "type": "object",
    "properties": {"id": {"type": "string"}, "amount": {"type": "integer"}},
    "required": ["id"],
    "additionalProperties": False,
}
#: It allows one more field than `STRICT`.
WIDER = {**STRICT, "properties": {**STRICT["properties"], "note": {"type": "string"}}}  # type: ignore[dict-item]
GOOD, NOTED, NUMBER, NONSENSE = '{"id": "a"}', '{"id": "b", "note": "n"}', '{"id": 7}', "nonsense"
PATH = "/v1/topics/orders/quarantine"


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with running(config_for(tmp_path)) as api:
        yield api


def put(api: Api, schema: dict[str, Any] = STRICT, **topic: Any) -> None:
    given = {"format": "json", "schema": json.dumps(schema), "on_invalid": "quarantine"}
    reply = api.call("PUT", "/v1/topics/orders", {"schema": given, **(topic or {"partitions": 1})})
    assert reply.status in (200, 201), reply


def widen(api: Api, **topic: Any) -> None:
    assert api.call("PUT", "/schemas/config/orders-value", {"compatibility": "NONE"}).status == 200
    put(api, WIDER, **topic)


def send(api: Api, *bodies: str) -> None:
    assert api.send("orders", *({"body": body, "key": "k"} for body in bodies)).status == 200


def listed(api: Api, query: str = "") -> list[dict[str, Any]]:
    reply = api.call("GET", PATH + query)
    assert reply.status == 200, reply
    found: list[dict[str, Any]] = reply.json["messages"]
    return found


def replay(api: Api, **asked: Any) -> dict[str, Any]:
    reply = api.call("POST", f"{PATH}/replay", asked)
    assert reply.status == 200, reply
    done: dict[str, Any] = reply.json
    return done


def delete(api: Api, **asked: Any) -> dict[str, Any]:
    reply = api.call("DELETE", PATH, asked)
    assert reply.status == 200, reply
    done: dict[str, Any] = reply.json
    return done


def seen(api: Api) -> list[str]:
    """The bodies that readers are handed, of all partitions or logical queues."""
    topic = api.call("GET", "/v1/topics/orders").json
    names = [one["partition"] for one in topic["logical_queues"] or topic["partitions"]]
    return sorted(body for name in names for body in api.bodies_of("orders", name))


def test_type_6_what_did_not_fit_is_listed_with_the_reason_page_by_page(api: Api) -> None:
    put(api)
    send(api, GOOD, NUMBER, GOOD, NONSENSE, NOTED)
    whole = listed(api)
    assert [(one["offset"], one["body"], one["invalid"]["code"], one["key"]) for one in whole] == [
        (1, NUMBER, "wrong_type", "k"),
        (3, NONSENSE, "not_json", "k"),
        (4, NOTED, "unknown_field", "k"),
    ]
    assert whole[0]["invalid"]["field"] == "id" and whole[0]["partition"] == "orders@broker-a"
    pages, cursor = [], ""
    for _ in range(3):
        answer = api.call("GET", f"{PATH}?limit=1{cursor}").json
        pages += answer["messages"]
        cursor = f"&cursor={answer['cursor']}"
    assert pages == whole
    assert [one["offset"] for one in listed(api, "?code=not_json")] == [3]
    (one,) = listed(api, "?partition=orders@broker-a&offset=3")
    assert one["body"] == NONSENSE and listed(api, "?partition=orders@broker-a&offset=2") == []
    (partition,) = api.call("GET", "/v1/topics/orders").json["partitions"]
    assert partition["quarantined"] == 3
    metrics = api.call("GET", "/metrics").body.decode()
    assert 'deltamq_quarantined_messages_total{topic="orders"} 3.0' in metrics


def test_type_6_files_without_what_did_not_fit_are_not_read(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    put(api)
    for body in (GOOD, NUMBER, GOOD):
        send(api, body)
    log = api.hosted("orders", "orders@broker-a").log
    assert log is not None
    read, asked = log.read, []

    def noted(offset: int, **given: Any) -> Any:
        asked.append((offset, given["max_messages"]))
        return read(offset, **given)

    monkeypatch.setattr(log, "read", noted)
    assert [one["offset"] for one in listed(api)] == [1]
    assert asked == [(1, 1)]


def test_type_7_a_replay_sends_what_fits_the_newest_schema_once(api: Api) -> None:
    put(api)
    send(api, NOTED, NUMBER, GOOD)
    assert replay(api)["failed_total"] == 2 and seen(api) == [GOOD]
    widen(api)
    done = replay(api)
    (stays,) = done["failed"]
    assert (done["done"], stays["offset"], stays["code"], stays["field"]) == (1, 1, "wrong_type", "id")
    assert seen(api) == sorted([GOOD, NOTED])
    assert [one["offset"] for one in listed(api)] == [1]
    fetched = api.fetch("orders", "orders@broker-a", "?offset=3").json["messages"]
    assert [(one["offset"], one["origin"]["offset"], one["key"]) for one in fetched] == [(3, 0, "k")]
    assert replay(api)["done"] == 0 and len(seen(api)) == 2
    again = replay(api, offsets={"orders@broker-a": [0, 2, 9]})
    assert again["duplicates"] == 1
    codes = {one["offset"]: one["code"] for one in again["failed"]}
    assert codes == {2: "not_quarantined", 9: "offset_out_of_range"}


def test_type_7_a_replay_that_was_cut_off_from_its_mark_stores_nothing_twice(api: Api) -> None:
    put(api)
    send(api, NOTED)
    widen(api)
    arm("replay.before_mark=raise")
    try:
        assert api.call("POST", f"{PATH}/replay", {}).status == 500
    finally:
        arm("")
    assert seen(api) == [NOTED] and len(listed(api)) == 1
    done = replay(api)
    assert (done["done"], done["duplicates"]) == (0, 1)
    assert seen(api) == [NOTED] and listed(api) == []


@pytest.mark.parametrize("point", ["replay.before_mark=kill@1", "commit.after_link=kill@6"])
def test_type_7_a_replay_that_is_repeated_after_a_kill_stores_nothing_twice(tmp_path: Path, point: str) -> None:
    with running(config_for(tmp_path)) as api:
        put(api)
        send(api, NOTED, '{"id": "c", "note": "m"}', NUMBER)
        widen(api)
    with serving(tmp_path, DELTAMQ_FAILPOINTS=point) as process:
        with pytest.raises((OSError, http.client.HTTPException)):
            call(process, "POST", f"{PATH}/replay", {})
            call(process, "POST", f"{PATH}/replay", {})
        assert process.wait() == -signal.SIGKILL
    with running(config_for(tmp_path)) as api:
        assert replay(api)["failed_total"] == 1
        assert len(seen(api)) == 2 and [one["offset"] for one in listed(api)] == [2]


def test_type_8_what_is_deleted_is_shown_no_more_and_never_sent_also_after_a_restart(tmp_path: Path) -> None:
    with running(config_for(tmp_path)) as api:
        put(api)
        send(api, NOTED, NUMBER, NONSENSE)
        assert api.call("DELETE", PATH, {}).status == 400
        assert delete(api, offsets={"orders@broker-a": [0]})["done"] == 1
        assert delete(api, code="not_json")["done"] == 1
        widen(api)
        assert replay(api)["done"] == 0
    with running(config_for(tmp_path)) as api:
        assert [one["offset"] for one in listed(api)] == [1]
        assert replay(api, offsets={"orders@broker-a": [0]})["duplicates"] == 1
        assert delete(api, all=True)["done"] == 1 and listed(api) == [] and seen(api) == []
        assert api.call("DELETE", "/v1/topics/orders").status == 204
        put(api)
        send(api, NUMBER)
        assert [one["offset"] for one in listed(api)] == [0]


def test_type_6_logical_queues_of_a_static_topic(api: Api) -> None:
    put(api, static=True, total_queues=1, brokers=["broker-a"])
    send(api, NOTED)
    remap = {"brokers": ["broker-b"], "mode": "strict"}
    assert api.call("POST", "/v1/topics/orders/remap", remap).status == 200
    send(api, GOOD, NUMBER, NOTED)
    queue = "0@__logical_queue_broker__"
    places = [(one["partition"], one["offset"], one["body"]) for one in listed(api)]
    assert [place[::2] for place in places] == [(queue, NOTED), (queue, NUMBER), (queue, NOTED)]
    assert len({offset for _, offset, _ in places}) == 3
    widen(api, static=True, total_queues=1)
    last = places[2][1]
    assert replay(api, offsets={queue: [last]})["done"] == 1
    assert [one["offset"] for one in listed(api)] == [offset for _, offset, _ in places[:2]]
    done = replay(api)
    assert (done["done"], done["failed"][0]["offset"]) == (1, places[1][1])
    assert seen(api) == sorted([GOOD, NOTED, NOTED])


def test_a_topic_of_bytes_has_no_quarantine(api: Api) -> None:
    api.put_topic("orders")
    reply = api.call("GET", PATH)
    assert (reply.status, reply.json["code"]) == (422, "no_schema")
    assert api.call("GET", f"{PATH}?cursor=x").status == 422


def test_type_6_admin_and_the_command_line(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    put(api)
    send(api, NOTED, NUMBER, NONSENSE)
    url = f"http://127.0.0.1:{api.port}"
    with Admin(url) as admin:
        assert [one.invalid.code for one in admin.quarantine("orders")] == ["unknown_field", "wrong_type", "not_json"]
        assert admin.delete_quarantine("orders", offsets={"orders@broker-a": [2]}).done == 1

    def run(*words: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(["quarantine", *words, "--url", url])
        return int(str(ended.value.code or 0)), "".join(capsys.readouterr())

    code, output = run("list", "orders")
    assert code == 0 and output.splitlines()[1].split("\t")[:3] == ["orders@broker-a:1", "wrong_type", "id"]
    assert '"code":"wrong_type"' in run("show", "orders", "orders@broker-a", "1")[1]
    assert run("show", "orders", "orders@broker-a", "2")[0] != 0
    widen(api)
    code, output = run("replay", "orders")
    assert code == 1 and "sent again: 1 messages" in output and "wrong_type" in output
    assert run("delete", "orders")[0] == 2
    assert run("delete", "orders", "--at", "orders@broker-a=1")[0] == 0 and listed(api) == []
