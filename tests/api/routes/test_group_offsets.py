"""A group's offsets over REST: commits that survive, and resets that begin a new epoch."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from deltamq.api.ports import Ports
from deltamq.mq.client.cli import root as cli
from deltamq.mq.limits import OFFSET_MAX, PRODUCER_ID_LENGTH_MAX
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.queue.progress import Committed
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.queue.recovery import recover
from tests.api.routes.test_groups import group_path, pop, progress, put_group, store_again
from tests.api.running import PROBLEM, Api, Reply, config_for, running, until
from tests.faulty_store import faulty_disk

pytestmark = pytest.mark.static_too

A, B = "orders@broker-a", "orders@broker-b"


def path_of(group: str, topic: str) -> str:
    return f"{group_path(group)}/topics/{topic}/offsets"


def commit(api: Api, group: str, topic: str, offsets: dict[str, int], **more: object) -> Reply:
    return api.call("PUT", path_of(group, topic), {"offsets": offsets, **more})


def offsets(api: Api, group: str, topic: str) -> Any:
    return api.call("GET", path_of(group, topic)).json["offsets"]


def reset(api: Api, group: str, topic: str, to: object, **more: object) -> Any:
    reply = api.call("POST", f"{path_of(group, topic)}/reset", {"to": to, **more})
    assert reply.status == 200, reply.body
    return reply.json


@pytest.fixture
def filled(api: Api, topic: str) -> tuple[str, str, str, str]:
    """A topic with ten messages in each of two partitions, and a group: topic, group, both partitions."""
    a, b = f"{topic}@broker-a", f"{topic}@broker-b"
    api.put_topic(topic, partitions=2)
    for partition in (a, b):
        api.send(topic, *({"body": f"{partition[-1]}{i}", "partition": partition} for i in range(10)))
    put_group(api, f"{topic}.group")
    return topic, f"{topic}.group", a, b


# Commits --------------------------------------------------------------------------------------------------------------


@pytest.mark.promise("GROUP-1")
def test_cons_04_a_commit_moves_forward_only(api: Api, filled: tuple[str, str, str, str]) -> None:
    topic, group, a, b = filled
    assert offsets(api, group, topic) == {}
    first = commit(api, group, topic, {a: 6, b: 1}, client_id="worker-1")
    assert first.json.items() >= {"group": group, "topic": topic, "offsets": {a: 6, b: 1}}.items()
    back = commit(api, group, topic, {a: 2, b: 4})
    assert back.json["offsets"] == {a: 6, b: 4}, "what is ahead stays there"
    assert offsets(api, group, topic) == {a: 6, b: 4}
    assert commit(api, group, topic, {a: 10}).json["offsets"] == {a: 10}, "the end is the next offset that it wants"
    assert [m["body"] for m in pop(api, group, topic)] == [f"b{i}" for i in range(4, 10)]


def test_cons_04_what_is_beyond_the_end_is_refused_and_nothing_else_is_committed(
    api: Api, filled: tuple[str, str, str, str]
) -> None:
    topic, group, a, b = filled
    refused = commit(api, group, topic, {a: 3, b: 11})
    problem = refused.json
    assert (refused.status, problem["code"], problem["field"]) == (422, "offset_out_of_range", f"offsets.{b}")
    assert problem["end_offset"] == 10 and offsets(api, group, topic) == {}


@pytest.mark.promise("GROUP-1")
def test_cons_04_a_commit_is_in_the_tables_before_its_answer(tmp_path: Path) -> None:
    config = config_for(tmp_path)
    with running(config) as api:
        api.put_topic("orders", partitions=2)
        api.send("orders", *({"body": "a", "partition": p} for p in (A, B) for _ in range(5)))
        assert commit(api, "billing", "orders", {A: 3, B: 5}).status == 200
        # A process that is killed now leaves nothing but the tables.
        other = Warehouse.open(str(tmp_path))
        known = recover(other, "deltamq", ["broker-a", "broker-b"]).committed
        assert {lane.partition: at for lane, at in known.items()} == {A: Committed(1, 3), B: Committed(1, 5)}
        other.close()
    with running(config) as api:
        assert offsets(api, "billing", "orders") == {A: 3, B: 5}
        assert commit(api, "billing", "orders", {A: 1}).json["offsets"] == {A: 3}
        assert [m["offset"] for m in pop(api, "billing", "orders")] == [3, 4]


def test_cons_04_groups_do_not_see_each_other(api: Api, filled: tuple[str, str, str, str]) -> None:
    topic, group, a, _ = filled
    commit(api, group, topic, {a: 5})
    commit(api, f"{group}.other", topic, {a: 2})
    assert (offsets(api, group, topic), offsets(api, f"{group}.other", topic)) == ({a: 5}, {a: 2})


def test_a_commit_in_a_retry_partition_passes_over_retried_messages(
    api: Api, filled: tuple[str, str, str, str]
) -> None:
    topic, group, a, _ = filled
    commit(api, group, topic, {a: 10, f"{topic}@broker-b": 10})
    store_again(api, group, topic, count=3)
    retry = f"%RETRY%{group}_{topic}@broker-a"
    assert commit(api, group, topic, {retry: 4}).json["code"] == "offset_out_of_range"
    assert commit(api, group, topic, {retry: 2}).json["offsets"] == {retry: 2}
    assert [m["offset"] for m in pop(api, group, topic)] == [2]


BAD: dict[str, tuple[object, int, str, str]] = {
    "no offsets": ({}, 400, "missing_field", "offsets"),
    "unknown field": ({"offsets": {A: 1}, "client": "a"}, 400, "unknown_field", "client"),
    "offsets a list": ({"offsets": [1]}, 400, "invalid_type", "offsets"),
    "no partition": ({"offsets": {}}, 422, "invalid_value", "offsets"),
    "offset no number": ({"offsets": {A: "1"}}, 400, "invalid_type", f"offsets.{A}"),
    "offset a flag": ({"offsets": {A: True}}, 400, "invalid_type", f"offsets.{A}"),
    "negative": ({"offsets": {A: -1}}, 422, "invalid_value", f"offsets.{A}"),
    "too large": ({"offsets": {A: OFFSET_MAX + 1}}, 422, "invalid_value", f"offsets.{A}"),
    "unknown partition": ({"offsets": {"orders@nowhere": 1}}, 404, "partition_not_found", "offsets.orders@nowhere"),
    "client no text": ({"offsets": {A: 1}, "client_id": 7}, 400, "invalid_type", "client_id"),
    "client too long": (
        {"offsets": {A: 1}, "client_id": "x" * (PRODUCER_ID_LENGTH_MAX + 1)},
        422,
        "invalid_value",
        "client_id",
    ),
    "epochs no object": ({"offsets": {A: 1}, "epochs": 1}, 400, "invalid_type", "epochs"),
    "epoch no number": ({"offsets": {A: 1}, "epochs": {A: "1"}}, 400, "invalid_type", f"epochs.{A}"),
    "metadata no object": ({"offsets": {A: 1}, "metadata": "a"}, 400, "invalid_type", "metadata"),
    "metadata no text": ({"offsets": {A: 1}, "metadata": {A: 7}}, 400, "invalid_type", f"metadata.{A}"),
    "topic id no text": ({"offsets": {A: 1}, "topic_id": 1}, 400, "invalid_type", "topic_id"),
    "a list": ([1], 400, "invalid_type", "body"),
}
BAD_RESETS: dict[str, tuple[object, int, str, str]] = {
    "no target": ({}, 400, "missing_field", "to"),
    "unknown field": ({"to": "first", "retry": "keep"}, 400, "unknown_field", "retry"),
    "unknown target": ({"to": "middle"}, 422, "invalid_value", "to"),
    "time without zone": ({"to": "2013-01-01T00:00:00"}, 422, "invalid_value", "to"),
    "a number": ({"to": 5}, 400, "invalid_type", "to"),
    "no partition": ({"to": {}}, 422, "invalid_value", "to"),
    "unknown partition": ({"to": {"orders@nowhere": 1}}, 404, "partition_not_found", "to.orders@nowhere"),
    "beyond the end": ({"to": {A: 9}}, 422, "offset_out_of_range", f"to.{A}"),
    "negative": ({"to": {A: -1}}, 422, "invalid_value", f"to.{A}"),
    "unknown retries": ({"to": "first", "retries": "lose"}, 422, "invalid_value", "retries"),
    "retries no text": ({"to": "first", "retries": True}, 400, "invalid_type", "retries"),
}


@pytest.fixture(scope="module")
def stored(api: Api) -> Api:
    """A service with a topic of two messages and a group that has begun."""
    api.put_topic("orders", partitions=2)
    api.send("orders", {"body": "a", "partition": A}, {"body": "b", "partition": A})
    assert commit(api, "billing", "orders", {A: 1}).status == 200
    return api


@pytest.mark.parametrize("name", BAD)
def test_a_bad_commit_is_refused_by_name_and_moves_nothing(stored: Api, name: str) -> None:
    body, status, code, field = BAD[name]
    _assert_problem(stored.call("PUT", path_of("billing", "orders"), body), status, code, field)
    assert offsets(stored, "billing", "orders") == {A: 1}


@pytest.mark.parametrize("name", BAD_RESETS)
def test_a_bad_reset_is_refused_by_name_and_moves_nothing(stored: Api, name: str) -> None:
    body, status, code, field = BAD_RESETS[name]
    before = stored.service.groups.state.epoch
    _assert_problem(stored.call("POST", f"{path_of('billing', 'orders')}/reset", body), status, code, field)
    assert offsets(stored, "billing", "orders") == {A: 1} and stored.service.groups.state.epoch == before


def _assert_problem(reply: Reply, status: int, code: str, field: str) -> None:
    assert reply.headers["content-type"] == PROBLEM
    assert (reply.status, reply.json["code"], reply.json.get("field")) == (status, code, field), reply.json


def test_an_unknown_topic_or_group_is_not_found(stored: Api) -> None:
    for reply in (
        stored.call("GET", path_of("billing", "nothing")),
        commit(stored, "billing", "nothing", {"nothing@broker-a": 0}),
        stored.call("POST", f"{path_of('billing', 'nothing')}/reset", {"to": "first"}),
    ):
        assert (reply.status, reply.json["code"]) == (404, "topic_not_found")
    for reply in (
        stored.call("GET", path_of("nobody", "orders")),
        stored.call("POST", f"{path_of('nobody', 'orders')}/reset", {"to": "first"}),
    ):
        assert (reply.status, reply.json["code"]) == (404, "group_not_found")


# Commits of before ----------------------------------------------------------------------------------------------------


def place(api: Api, group: str, topic: str) -> Any:
    """What a commit may say of the offsets that were read."""
    found = api.call("GET", path_of(group, topic)).json
    return {"topic_id": found["topic_id"], "epochs": found["epochs"]}


def only(place: Any, *partitions: str) -> Any:
    return place | {"epochs": {name: place["epochs"][name] for name in partitions}}


@pytest.mark.promise("GROUP-4")
def test_pop_18_a_commit_that_was_meant_before_a_reset_does_not_undo_it(
    api: Api, filled: tuple[str, str, str, str]
) -> None:
    topic, group, a, b = filled
    read = place(api, group, topic)
    assert commit(api, group, topic, {a: 5, b: 5}, **read).json["epochs"] == read["epochs"]
    now = reset(api, group, topic, {a: 0})["epoch"]
    late = commit(api, group, topic, {b: 6, a: 6}, **read)
    problem = late.json
    assert (late.status, problem["code"], problem["field"]) == (409, "epoch_over", f"epochs.{a}")
    assert problem["epoch"] == now and offsets(api, group, topic) == {a: 0, b: 5}, "all of it is refused"
    assert commit(api, group, topic, {b: 6}, **only(read, b)).status == 200, "nothing was reset there"
    again = place(api, group, topic)
    assert again["epochs"].items() >= {a: now, b: read["epochs"][b]}.items()
    assert commit(api, group, topic, {a: 1, b: 7}, **again).json["offsets"] == {a: 1, b: 7}
    assert commit(api, group, topic, {a: 2}).json["offsets"] == {a: 2}, "who says nothing is asked nothing"


@pytest.mark.parametrize("looks", range(2))
def test_pop_18_a_reset_while_a_commit_is_under_way_stands(tmp_path: Path, looks: int) -> None:
    """The commit says no epoch. It looks for new messages twice: when it is checked, and when it is decided."""
    store = faulty_disk(tmp_path)
    with running(config_for(tmp_path), Ports(store=store)) as api:
        api.put_topic("orders", partitions=1)
        api.send("orders", *({"body": str(i)} for i in range(10)))
        assert commit(api, "billing", "orders", {A: 3}).status == 200
        service, table, left = api.service, api.hosted("orders", A).ref.folder, [looks]
        topic = service.topics.state.topic("orders")

        def look(key: str) -> None:
            if table not in key or not left:
                return
            if left[0]:
                left[0] -= 1
                return
            left.clear()
            # Not by a call, which would look at the partition, too.
            back = service.groups.reset("billing", topic, {LaneKey(topic.id, "billing", False, A): 0})
            asyncio.run_coroutine_threadsafe(back, service.loop).result(30)

        store.before["exists"] = look
        late = commit(api, "billing", "orders", {A: 9})
        assert not left, "it looked"
        assert (late.status, late.json["code"]) == (409, "epoch_over")
        assert offsets(api, "billing", "orders") == {A: 0}
        assert commit(api, "billing", "orders", {A: 9}).json["offsets"] == {A: 9}, "one that begins now counts"


@pytest.mark.promise("GROUP-4")
def test_pop_12_a_commit_that_was_meant_for_an_earlier_life_is_refused(
    api: Api, filled: tuple[str, str, str, str]
) -> None:
    topic, group, a, _ = filled
    read = only(place(api, group, topic), a)
    commit(api, group, topic, {a: 5}, **read)
    assert api.call("DELETE", f"/v1/topics/{topic}").status == 204
    api.put_topic(topic, partitions=2)
    api.send(topic, *({"body": f"new{i}", "partition": a} for i in range(10)))
    late = commit(api, group, topic, {a: 6}, **read)
    assert (late.status, late.json["code"], late.json["field"]) == (409, "epoch_over", "topic_id")
    read = only(place(api, group, topic), a)
    assert commit(api, group, topic, {a: 3}, **read).status == 200
    assert api.call("DELETE", group_path(group)).status == 204
    put_group(api, group)
    late = commit(api, group, topic, {a: 6}, **read)
    assert (late.status, late.json["code"], late.json["field"]) == (409, "epoch_over", f"epochs.{a}")
    assert offsets(api, group, topic) == {}


# Resets ---------------------------------------------------------------------------------------------------------------


def test_pop_18_a_reset_goes_anywhere_in_a_new_epoch(api: Api, filled: tuple[str, str, str, str]) -> None:
    topic, group, a, b = filled
    made = api.call("GET", group_path(group)).json["epoch"]
    assert reset(api, group, topic, "last")["offsets"] == {a: 10, b: 10}
    assert pop(api, group, topic) == []
    back = reset(api, group, topic, "first")
    assert back["offsets"] == {a: 0, b: 0} and back["epoch"] > made
    assert len(pop(api, group, topic)) == 20
    some = reset(api, group, topic, {b: 7})
    assert some["offsets"] == {b: 7} and some["epoch"] > back["epoch"]
    assert [m["body"] for m in pop(api, group, topic)] == ["b7", "b8", "b9"], "the other partition is as it was"


@pytest.mark.plain_only("a logical queue does not show when it was last written")
def test_pop_18_a_reset_to_a_time_goes_to_the_first_message_since(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=1)
    api.send(topic, "old")
    put_group(api, f"{topic}.group")
    last = api.partitions(topic)[f"{topic}@broker-a"]["last_append_time"]
    until(lambda: datetime.now(UTC) > datetime.fromisoformat(last).replace(microsecond=999_999))
    api.send(topic, "new")
    (since,) = [p["last_append_time"] for p in api.partitions(topic).values()]
    assert reset(api, f"{topic}.group", topic, since)["offsets"] == {f"{topic}@broker-a": 1}
    assert reset(api, f"{topic}.group", topic, "2000-01-01T00:00:00Z")["offsets"] == {f"{topic}@broker-a": 0}
    assert reset(api, f"{topic}.group", topic, "2099-01-01T00:00:00+01:00")["offsets"] == {f"{topic}@broker-a": 2}


@pytest.mark.promise("GROUP-6")
def test_pop_18_after_a_reset_old_handles_are_refused_and_flights_are_void(
    api: Api, filled: tuple[str, str, str, str]
) -> None:
    topic, group, a, b = filled
    old = pop(api, group, topic, max_messages=20)
    assert len(old) == 20 and pop(api, group, topic) == []
    reset(api, group, topic, {a: 0})
    view = progress(api, group, topic)
    assert (view[a]["in_flight"], view[b]["in_flight"]) == (0, 10)
    acked = api.call("POST", f"{group_path(group)}/ack", {"handles": [m["handle"] for m in old]}).json
    assert acked["acked"] == 10
    assert {one["handle"] for one in acked["failed"]} == {m["handle"] for m in old if m["partition"] == a}
    assert {one["code"] for one in acked["failed"]} == {"handle_expired"}
    again = pop(api, group, topic, max_messages=20)
    assert [m["body"] for m in again] == [f"a{i}" for i in range(10)]
    assert {m["delivery_attempt"] for m in again} == {1}


@pytest.mark.promise("GROUP-6")
def test_pop_18_a_reset_survives_a_restart_and_late_commits(tmp_path: Path) -> None:
    config = config_for(tmp_path)
    with running(config) as api:
        api.put_topic("orders", partitions=1)
        api.send("orders", *"abcde")
        commit(api, "billing", "orders", {A: 5})
        reset(api, "billing", "orders", {A: 2})
        assert offsets(api, "billing", "orders") == {A: 2}
    with running(config) as api:
        assert offsets(api, "billing", "orders") == {A: 2}
        assert commit(api, "billing", "orders", {A: 3}).json["offsets"] == {A: 3}
    with running(config) as api:
        assert [m["body"] for m in pop(api, "billing", "orders")] == ["d", "e"]


@pytest.mark.parametrize("retries", ["keep", "drop", None])
def test_pop_18_retried_messages_are_kept_or_dropped_as_asked(
    api: Api, filled: tuple[str, str, str, str], retries: str | None
) -> None:
    topic, group, _, _ = filled
    store_again(api, group, topic, count=2)
    put = reset(api, group, topic, "last", **({} if retries is None else {"retries": retries}))
    retry = f"%RETRY%{group}_{topic}@broker-a"
    assert put["offsets"].get(retry) == (2 if retries == "drop" else None)
    assert len(pop(api, group, topic)) == (0 if retries == "drop" else 2)
    store_again(api, group, topic)
    until(lambda: len(pop(api, group, topic)) == 1)


def test_pop_18_with_kept_retries_what_is_in_flight_there_goes_on(api: Api, filled: tuple[str, str, str, str]) -> None:
    topic, group, _, _ = filled
    reset(api, group, topic, "last")
    store_again(api, group, topic)
    (held,) = pop(api, group, topic)
    reset(api, group, topic, "last")
    assert api.call("POST", f"{group_path(group)}/ack", {"handles": [held["handle"]]}).json["acked"] == 1


def test_pop_15_a_reset_wakes_pops_that_wait(api: Api, filled: tuple[str, str, str, str]) -> None:
    topic, group, a, _ = filled
    reset(api, group, topic, "last")
    found: list[dict[str, Any]] = []
    waiting = threading.Thread(target=lambda: found.extend(pop(api, group, topic, wait_ms=20_000)))
    waiting.start()
    until(lambda: api.service.lanes.waiting)
    reset(api, group, topic, {a: 9})
    waiting.join(60)
    assert [m["body"] for m in found] == ["a9"]


def test_pop_12_a_reset_belongs_to_the_life_of_its_topic(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=1)
    api.send(topic, "a", "b")
    put_group(api, f"{topic}.group")
    reset(api, f"{topic}.group", topic, "last")
    api.call("DELETE", f"/v1/topics/{topic}")
    api.put_topic(topic, partitions=1)
    api.send(topic, "new")
    assert offsets(api, f"{topic}.group", topic) == {}
    assert [m["body"] for m in pop(api, f"{topic}.group", topic)] == ["new"]


def test_pop_21_a_planned_reset_says_what_it_would_do_and_does_nothing(api: Api, topic: str) -> None:
    a, b = f"{topic}@broker-a", f"{topic}@broker-b"
    api.put_topic(topic, partitions=2)
    for number in range(5):
        assert api.send(topic, {"body": str(number), "partition": a}).status == 200
    assert api.send(topic, {"body": "x", "partition": b}).status == 200
    put_group(api, topic)
    assert commit(api, topic, topic, {a: 3}).status == 200
    before = progress(api, topic, topic)
    reply = api.call("POST", f"{path_of(topic, topic)}/reset", {"to": "first", "plan": True})
    assert reply.json == {
        "group": topic,
        "topic": topic,
        "plan": True,
        "offsets": {a: {"from": 3, "to": 0, "messages": 3}, b: {"from": 0, "to": 0, "messages": 0}},
    }
    reply = api.call("POST", f"{path_of(topic, topic)}/reset", {"to": {a: 5}, "plan": True})
    assert reply.json["offsets"] == {a: {"from": 3, "to": 5, "messages": 2}}
    assert progress(api, topic, topic) == before and offsets(api, topic, topic) == {a: 3}
    reply = api.call("POST", f"{path_of(topic, topic)}/reset", {"to": {a: 6}, "plan": True})
    assert (reply.status, reply.json["code"]) == (422, "offset_out_of_range")
    assert reset(api, topic, topic, "first")["offsets"] == {a: 0, b: 0}


def test_pop_21_a_plan_counts_from_where_a_group_would_begin(api: Api, topic: str) -> None:
    a, b = f"{topic}@broker-a", f"{topic}@broker-b"
    api.put_topic(topic, partitions=2)
    for partition, number in ((a, 5), (b, 3)):
        assert api.send(topic, *({"body": str(at), "partition": partition} for at in range(number))).status == 200

    def planned(group: str, to: object) -> Any:
        return reset(api, group, topic, to, plan=True)["offsets"]

    first, last, timed = f"{topic}.first", f"{topic}.last", f"{topic}.timed"
    put_group(api, first)
    put_group(api, last, consume_from="last")
    put_group(api, timed, consume_from="2020-01-01T00:00:00Z")
    passed = {a: {"from": 0, "to": 5, "messages": 5}, b: {"from": 0, "to": 3, "messages": 3}}
    assert planned(first, "last") == planned(timed, "last") == passed
    assert planned(last, "first") == {
        a: {"from": 5, "to": 0, "messages": 5},
        b: {"from": 3, "to": 0, "messages": 3},
    }
    assert planned(last, "last")[a] == {"from": 5, "to": 5, "messages": 0}


@pytest.mark.plain_only("names partitions on the command line")
def test_pop_21_the_command_line_shows_the_plan(api: Api, topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    api.put_topic(topic, partitions=1)
    assert api.send(topic, "a", "b", "c").status == 200
    put_group(api, topic)
    assert commit(api, topic, topic, {f"{topic}@broker-a": 2}).status == 200
    asked = ["group", "reset", topic, topic, "--to", "first", "--plan", "--url", f"http://127.0.0.1:{api.port}"]
    assert cli._status(asked) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == [f"{topic}@broker-a", "2", "0", "2", "come", "again"]
    assert cli._status([*asked, "--json"]) == 0
    assert '"plan":true' in capsys.readouterr().out
    assert offsets(api, topic, topic) == {f"{topic}@broker-a": 2}
