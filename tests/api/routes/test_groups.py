"""Groups over REST: settings, progress, and what ends with a group or a topic."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from msgspec.structs import replace

from deltamq.api.ports import Ports
from deltamq.mq.errors import StorageFull
from deltamq.mq.limits import INVISIBLE_MS_MAX, INVISIBLE_MS_MIN, MAX_ATTEMPTS_MAX, RETRY_WAIT_MS_MAX
from deltamq.mq.queue.retry import DEFAULT_WAITS_MS
from deltamq.tables.config import Config
from deltamq.tables.config_sections import QueueSettings
from deltamq.tables.log.batch import Batch
from deltamq.tables.paths import Space
from deltamq.tables.queue.refs import dead_ref, retry_ref
from deltamq.tables.schema import INTERNAL_SCHEMA
from tests.api.exclusive import Member
from tests.api.running import PROBLEM, Api, Reply, config_for, running, until
from tests.faulty_store import failing, faulty_disk
from tests.set_clock import SetClock

pytestmark = pytest.mark.static_too

#: What a retried or dead message is stored with, whether a job or the service stored it.
ROW = {"body": b"again", "message_id": "m", "reconsume_times": 1}


def group_path(group: str) -> str:
    return f"/v1/groups/{quote(group, safe='')}"


def put_group(api: Api, group: str, **settings: object) -> Any:
    reply = api.call("PUT", group_path(group), settings)
    assert reply.status in (200, 201), reply.body
    return reply.json


def pop(api: Api, group: str, topic: str, **ask: object) -> list[dict[str, Any]]:
    reply = api.call("POST", f"{group_path(group)}/topics/{topic}/pop", ask)
    assert reply.status == 200, reply.body
    return list(reply.json["messages"])


def progress(api: Api, group: str, topic: str) -> dict[str, Any]:
    """What the group's view says of a topic, by partition."""
    topics = {one["topic"]: one for one in api.call("GET", group_path(group)).json["topics"]}
    return {p["partition"]: p for p in topics[topic]["partitions"]} if topic in topics else {}


def store_again(api: Api, group: str, topic: str, broker: str = "broker-a", count: int = 1) -> None:
    """Append messages of the group to its retry partition, as the revive job would."""
    found = api.service.topics.state.topic(topic)
    epoch = api.service.groups.state.group(group).epoch
    origin = {"topic": topic, "partition": f"{topic}@{broker}", "offset": 0}
    rows = pa.RecordBatch.from_pylist([{**ROW, "origin": origin}] * count, schema=INTERNAL_SCHEMA)
    log = api.service.warehouse.create(retry_ref(group, epoch, topic, found.generation, broker))
    log.append([Batch(rows)])


def folders(api: Api, space: Space) -> set[tuple[str, int]]:
    return {(ref.topic, ref.generation) for ref in api.service.warehouse.refs(space)}


# Settings -------------------------------------------------------------------------------------------------------------


def test_put_makes_a_group_with_defaults_then_changes_what_is_given(api: Api, topic: str) -> None:
    made, same = api.call("PUT", group_path(topic)), api.call("PUT", group_path(topic), {})
    assert (made.status, same.status) == (201, 200) and made.json == same.json
    assert (
        made.json.items()
        >= {
            "group": topic,
            "consume_strategy": "shared",
            "allocation_strategy": "sticky",
            "order": False,
            "consume_from": "first",
            "max_attempts": 17,
            "retry_policy": list(DEFAULT_WAITS_MS),
            "invisible_ms": 60_000,
            "clients": [],
            "allocation": {},
            "topics": [],
        }.items()
    )
    wanted = {
        "consume_strategy": "exclusive",
        "allocation_strategy": "average",
        "order": "key",
        "consume_from": "2013-01-01T05:15:00.000Z",
        "max_attempts": 3,
        "retry_policy": {"exponential": {"initial_ms": 100, "multiplier": 2.0, "max_ms": 1000, "jitter": 0.5}},
        "invisible_ms": 30_000,
    }
    changed = api.call("PUT", group_path(topic), wanted)
    assert changed.status == 200 and changed.json.items() >= wanted.items()
    assert changed.json["epoch"] == made.json["epoch"], "another life begins only after a deletion"
    one = put_group(api, topic, retry_policy={"fixed_ms": 5})
    assert one == {**changed.json, "retry_policy": {"fixed_ms": 5}}
    assert api.call("GET", group_path(topic)).json == one
    assert topic in api.call("GET", "/v1/groups").json["groups"]


def test_meta_03_groups_are_there_after_a_restart_and_in_other_processes(tmp_path: Path) -> None:
    config = config_for(tmp_path)
    with running(config) as api, running(config) as other:
        made = put_group(api, "billing", max_attempts=7)
        assert other.call("GET", group_path("billing")).json == made
        assert other.call("DELETE", group_path("billing")).status == 204
        assert api.call("PUT", group_path("billing"), {}).status == 201, "it was deleted elsewhere"
        made = api.call("GET", group_path("billing")).json
    with running(config) as api:
        assert api.call("GET", group_path("billing")).json == made


@pytest.mark.parametrize("name", ["a.b", "%2F", "a|b", "-", "_x", "x" * 255, "...", "my app: größe #1?&=+'\"\\~"])
def test_model_05_any_legal_name_can_be_used(api: Api, name: str) -> None:
    put_group(api, name)
    assert name in api.call("GET", "/v1/groups").json["groups"]
    assert api.call("DELETE", group_path(name)).status == 204
    assert name not in api.call("GET", "/v1/groups").json["groups"]


BAD: dict[str, tuple[object, int, str, str]] = {
    "unknown field": ({"max_attemps": 3}, 400, "unknown_field", "max_attemps"),
    "strategy no text": ({"consume_strategy": 1}, 400, "invalid_type", "consume_strategy"),
    "unknown strategy": ({"consume_strategy": "everybody"}, 422, "invalid_value", "consume_strategy"),
    "allocation no text": ({"allocation_strategy": 1}, 400, "invalid_type", "allocation_strategy"),
    "unknown allocation": ({"allocation_strategy": "fair"}, 422, "invalid_value", "allocation_strategy"),
    "order no flag": ({"order": 1}, 400, "invalid_type", "order"),
    "unknown order": ({"order": "topic"}, 422, "invalid_value", "order"),
    "start no text": ({"consume_from": 0}, 400, "invalid_type", "consume_from"),
    "start without zone": ({"consume_from": "2013-01-01T05:15:00"}, 422, "invalid_value", "consume_from"),
    "start no time": ({"consume_from": "yesterday"}, 422, "invalid_value", "consume_from"),
    "no attempts": ({"max_attempts": 0}, 422, "invalid_value", "max_attempts"),
    "too many attempts": ({"max_attempts": MAX_ATTEMPTS_MAX + 1}, 422, "invalid_value", "max_attempts"),
    "attempts no number": ({"max_attempts": "3"}, 400, "invalid_type", "max_attempts"),
    "attempts a fraction": ({"max_attempts": 1.5}, 400, "invalid_type", "max_attempts"),
    "attempts a flag": ({"max_attempts": True}, 400, "invalid_type", "max_attempts"),
    "attempts beyond 64 bits": ({"max_attempts": 2**70}, 422, "invalid_value", "max_attempts"),
    "policy a number": ({"retry_policy": 5}, 400, "invalid_type", "retry_policy"),
    "policy without waits": ({"retry_policy": []}, 422, "invalid_value", "retry_policy"),
    "wait too long": ({"retry_policy": [RETRY_WAIT_MS_MAX + 1]}, 422, "invalid_value", "retry_policy"),
    "policy of two kinds": ({"retry_policy": {"fixed_ms": 1, "exponential": {}}}, 400, "invalid_type", "retry_policy"),
    "policy of no kind": ({"retry_policy": {}}, 400, "invalid_type", "retry_policy"),
    "waits no numbers": ({"retry_policy": [1, "2"]}, 400, "invalid_type", "retry_policy"),
    "fixed no number": ({"retry_policy": {"fixed_ms": "1"}}, 400, "invalid_type", "retry_policy.fixed_ms"),
    "fixed nothing": ({"retry_policy": {"fixed_ms": None}}, 400, "invalid_type", "retry_policy.fixed_ms"),
    "fixed too long": (
        {"retry_policy": {"fixed_ms": RETRY_WAIT_MS_MAX + 1}},
        422,
        "invalid_value",
        "retry_policy.fixed_ms",
    ),
    "growth too fast": (
        {"retry_policy": {"exponential": {"multiplier": 101}}},
        422,
        "invalid_value",
        "retry_policy.exponential.multiplier",
    ),
    "growth to less": (
        {"retry_policy": {"exponential": {"initial_ms": 10, "max_ms": 9}}},
        422,
        "invalid_value",
        "retry_policy.exponential.max_ms",
    ),
    "unknown growth": (
        {"retry_policy": {"exponential": {"factor": 2}}},
        400,
        "unknown_field",
        "retry_policy.exponential.factor",
    ),
    "invisible too short": ({"invisible_ms": INVISIBLE_MS_MIN - 1}, 422, "invalid_value", "invisible_ms"),
    "invisible too long": ({"invisible_ms": INVISIBLE_MS_MAX + 1}, 422, "invalid_value", "invisible_ms"),
    "invisible a flag": ({"invisible_ms": True}, 400, "invalid_type", "invisible_ms"),
    "a list": ([], 400, "invalid_type", "body"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_setting_is_refused_by_name_and_changes_nothing(api: Api, topic: str, name: str) -> None:
    body, status, code, field = BAD[name]
    before = put_group(api, topic, max_attempts=5)
    _assert_problem(api.call("PUT", group_path(topic), body), status, code, field)
    assert api.call("GET", group_path(topic)).json == before
    _assert_problem(api.call("PUT", group_path(f"{topic}.new"), body), status, code, field)
    assert api.call("GET", group_path(f"{topic}.new")).status == 404, "a refused request makes no group"


def _assert_problem(reply: Reply, status: int, code: str, field: str) -> None:
    assert reply.headers["content-type"] == PROBLEM
    assert (reply.status, reply.json["code"], reply.json.get("field")) == (status, code, field), reply.json


@pytest.mark.parametrize(
    ("body", "kind", "status", "code"),
    [
        (b"{", "application/json", 400, "invalid_json"),
        (b"[" * 100_000, "application/json", 400, "invalid_json"),
        (b"{}", "text/plain", 415, "unsupported_media_type"),
        (b"x" * 2_000_000, "application/json", 413, "request_too_large"),
    ],
)
def test_a_body_that_is_no_small_json_object_is_refused(
    api: Api, topic: str, body: bytes, kind: str, status: int, code: str
) -> None:
    reply = api.call("PUT", group_path(topic), body, kind)
    assert (reply.status, reply.json["code"]) == (status, code)


@pytest.mark.parametrize(
    ("name", "status", "code"),
    [
        ("a/b", 404, "path_not_found"),
        ("x" * 256, 400, "invalid_group_name"),
        ("a*", 400, "invalid_group_name"),
        ("%RETRY%billing", 400, "system_name"),
        ("rmq_sys_billing", 400, "system_name"),
    ],
)
def test_model_05_a_name_that_is_not_allowed_is_refused(api: Api, name: str, status: int, code: str) -> None:
    path = f"/v1/groups/{quote(name)}" if name == "a/b" else group_path(name)
    reply = api.call("PUT", path, {})
    assert (reply.status, reply.json["code"]) == (status, code)
    assert api.call("GET", path).status in (400, 404)


def test_a_name_that_differs_only_by_case_is_a_conflict(api: Api, topic: str) -> None:
    put_group(api, topic)
    refused = api.call("PUT", group_path(topic.upper()), {})
    assert (refused.status, refused.json["code"]) == (409, "group_name_case")


def test_pop_03_the_service_may_have_other_bounds_for_invisible_times(tmp_path: Path) -> None:
    config: Config = replace(config_for(tmp_path), queue=QueueSettings(invisible_ms_min=50, invisible_ms_max=1_000))
    with running(config) as api:
        assert put_group(api, "quick", invisible_ms=50)["invisible_ms"] == 50
        refused = api.call("PUT", group_path("quick"), {"invisible_ms": 1_001})
        assert (refused.status, refused.json["min"], refused.json["max"]) == (422, 50, 1_000)


# Groups that nobody made ----------------------------------------------------------------------------------------------


def test_a_group_is_made_by_its_first_pop_or_commit(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=1)
    api.send(topic, "a")
    assert len(pop(api, f"{topic}.pops", topic)) == 1
    commit = {"offsets": {f"{topic}@broker-a": 1}}
    assert api.call("PUT", f"{group_path(f'{topic}.commits')}/topics/{topic}/offsets", commit).status == 200
    for group in (f"{topic}.pops", f"{topic}.commits"):
        assert api.call("GET", group_path(group)).json["max_attempts"] == 17


def test_cons_01_a_pop_of_retried_messages_alone_makes_no_group(api: Api, topic: str) -> None:
    """An ordered consumer's group that was deleted would come back as a shared one, and end all of its consumers."""
    api.put_topic(topic, partitions=1)
    group = f"{topic}.ledger"
    path = f"{group_path(group)}/topics/{topic}/pop"
    reply = api.call("POST", path, {"retry": "only"})
    assert (reply.status, reply.json["code"]) == (404, "group_not_found")
    assert api.call("GET", group_path(group)).status == 404
    assert api.call("PUT", group_path(group), {"consume_strategy": "exclusive"}).status == 201
    assert api.call("POST", path, {"retry": "only"}).json["messages"] == []


def test_without_auto_create_an_unknown_group_is_not_found(tmp_path: Path) -> None:
    with running(config_for(tmp_path, auto_create_groups=False)) as api:
        api.put_topic("orders", partitions=1)
        path = f"{group_path('billing')}/topics/orders"
        calls = [
            api.call("POST", f"{path}/pop", {}),
            api.call("PUT", f"{path}/offsets", {"offsets": {"orders@broker-a": 0}}),
            api.call("GET", f"{path}/offsets"),
            api.call("POST", f"{path}/offsets/reset", {"to": "first"}),
            api.call("GET", f"{group_path('billing')}/dead-letters"),
            api.call("POST", f"{group_path('billing')}/dead-letters/replay", {}),
            api.call("DELETE", group_path("billing")),
        ]
        assert [(reply.status, reply.json["code"]) for reply in calls] == [(404, "group_not_found")] * len(calls)
        put_group(api, "billing")
        assert pop(api, "billing", "orders") == []


def test_a_system_name_makes_no_group(api: Api, topic: str) -> None:
    api.put_topic(topic)
    reply = api.call("POST", f"/v1/groups/rmq_sys_x/topics/{topic}/pop", {})
    assert (reply.status, reply.json["code"]) == (400, "system_name")


# Progress -------------------------------------------------------------------------------------------------------------


def test_cons_04_a_group_shows_how_far_it_is_in_each_partition(api: Api, topic: str) -> None:
    group, home = f"{topic}.group", f"{topic}@broker-a"
    api.put_topic(topic, partitions=2)
    api.put_topic(f"{topic}.other")
    api.send(topic, *({"body": str(i), "partition": home} for i in range(10)))
    messages = pop(api, group, topic, max_messages=4, partition=home)
    view = progress(api, group, topic)
    assert view[home].items() >= {"retry": False, "min_offset": 0, "end_offset": 10, "in_flight": 4}.items()
    assert view[home]["last_consume_time"] is not None and view[home]["lag"] == 10
    assert view[f"{topic}@broker-b"].items() >= {"committed_offset": None, "lag": 0, "in_flight": 0}.items()
    assert f"{topic}.other" not in {one["topic"] for one in api.call("GET", group_path(group)).json["topics"]}
    acked = api.call("POST", f"{group_path(group)}/ack", {"handles": [m["handle"] for m in messages[:3]]})
    assert acked.json["acked"] == 3
    view = progress(api, group, topic)
    assert (view[home]["in_flight"], view[home]["committed_offset"]) == (1, 0), "it waits for the fourth"
    api.call("POST", f"{group_path(group)}/ack", {"handles": [messages[3]["handle"]]})
    view = progress(api, group, topic)
    assert (view[home]["in_flight"], view[home]["committed_offset"], view[home]["lag"]) == (0, 4, 6)
    total = {one["topic"]: one["lag"] for one in api.call("GET", group_path(group)).json["topics"]}
    assert total[topic] == 6


@pytest.mark.parametrize("strategy", ["shared", "exclusive"])
def test_cons_04_a_backlog_is_lag_as_soon_as_a_client_subscribes(api: Api, topic: str, strategy: str) -> None:
    """Nothing was popped or committed yet: the group's view says what its offsets in the topic say."""
    api.put_topic(topic, partitions=2)
    api.put_topic(f"{topic}.other")
    api.send(topic, *({"body": str(i), "partition": f"{topic}@broker-a"} for i in range(5)))
    put_group(api, topic, consume_strategy=strategy)
    assert progress(api, topic, topic) == {}, "nobody consumes it"
    client = Member(api, topic, topic, "c0")
    assert client.beat()["consume_strategy"] == strategy
    offsets = api.call("GET", f"{group_path(topic)}/topics/{topic}/offsets").json
    shown = api.call("GET", group_path(topic)).json["topics"]
    assert shown == [{"topic": topic, "lag": 5, "partitions": offsets["partitions"]}]
    assert [one["lag"] for one in offsets["partitions"]] == [5, 0] and offsets["offsets"] == {}
    client.leave()
    until(lambda: strategy == "exclusive" or progress(api, topic, topic) == {})


def test_retry_01_retried_messages_count_as_lag_of_their_group_alone(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=1)
    for group in ("one", "two"):
        put_group(api, f"{topic}.{group}")
        pop(api, f"{topic}.{group}", topic)
        api.call(
            "PUT", f"{group_path(f'{topic}.{group}')}/topics/{topic}/offsets", {"offsets": {f"{topic}@broker-a": 0}}
        )
    store_again(api, f"{topic}.one", topic, count=3)
    retry = f"%RETRY%{topic}.one_{topic}@broker-a"
    assert progress(api, f"{topic}.one", topic)[retry].items() >= {"retry": True, "lag": 3, "end_offset": 3}.items()
    assert [p["retry"] for p in progress(api, f"{topic}.two", topic).values()] == [False]


def test_a_damaged_partition_does_not_hide_the_others(tmp_path: Path) -> None:
    config = config_for(tmp_path)
    with running(config) as api:
        api.put_topic("orders", partitions=2)
        api.send("orders", *({"body": "a", "partition": f"orders@broker-{b}"} for b in "ab"))
        pop(api, "billing", "orders")
    for commit in (tmp_path / "topics/orders/orders@broker-b/_delta_log").glob("*1.json"):
        commit.write_bytes(b"{")
    with running(config) as api:
        view = progress(api, "billing", "orders")
        assert view["orders@broker-a"]["end_offset"] == 1
        assert view["orders@broker-b"].items() >= {"end_offset": None, "lag": None, "min_offset": None}.items()


def test_settings_may_change_while_messages_are_in_flight(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=1)
    api.send(topic, "a", "b")
    group = f"{topic}.group"
    put_group(api, group, max_attempts=5)
    first, second = pop(api, group, topic)
    put_group(api, group, max_attempts=1, invisible_ms=20_000, retry_policy={"fixed_ms": 0})
    done = api.call("POST", f"{group_path(group)}/ack", {"handles": [first["handle"]]})
    assert done.json == {"acked": 1, "failed": []}
    assert api.call("POST", f"{group_path(group)}/nack", {"handles": [second["handle"]]}).status == 200


# Ends -----------------------------------------------------------------------------------------------------------------


@pytest.mark.promise("GROUP-7")
def test_pop_12_a_group_made_again_begins_anew_and_old_handles_are_refused(api: Api, topic: str) -> None:
    group = f"{topic}.group"
    api.put_topic(topic, partitions=1)
    api.send(topic, "a", "b")
    put_group(api, group, max_attempts=3)
    (old, _) = pop(api, group, topic)
    api.call("PUT", f"{group_path(group)}/topics/{topic}/offsets", {"offsets": {f"{topic}@broker-a": 2}})
    assert api.call("DELETE", group_path(group)).status == 204
    assert api.call("GET", group_path(group)).status == 404
    assert api.call("DELETE", group_path(group)).status == 404
    again = put_group(api, group)
    assert again["max_attempts"] == 17 and again["topics"] == []
    refused = api.call("POST", f"{group_path(group)}/ack", {"handles": [old["handle"]]})
    assert [one["code"] for one in refused.json["failed"]] == ["handle_expired"]
    assert [m["body"] for m in pop(api, group, topic)] == ["a", "b"]


def test_pop_12_with_a_group_go_its_retries_and_dead_letters_of_that_life(api: Api, topic: str) -> None:
    group = f"{topic}.group"
    api.put_topic(topic, partitions=2)
    epoch = put_group(api, group)["epoch"]
    put_group(api, f"{group}.other")
    for one in (group, f"{group}.other"):
        store_again(api, one, topic)
    dead = api.service.warehouse.create(dead_ref(group, epoch, "broker-b"))
    dead.append([Batch(pa.RecordBatch.from_pylist([ROW], schema=INTERNAL_SCHEMA))])
    assert api.call("GET", f"{group_path(group)}/dead-letters").json["total"] == 1
    api.call("DELETE", group_path(group))
    assert {one for one, _ in folders(api, Space.RETRY)} & {f"{group}/{topic}", f"{group}.other/{topic}"} == {
        f"{group}.other/{topic}"
    }
    assert group not in {one for one, _ in folders(api, Space.DLQ)}
    put_group(api, group)
    assert pop(api, group, topic) == []
    assert api.call("GET", f"{group_path(group)}/dead-letters").json["total"] == 0


@pytest.mark.promise("GROUP-7")
def test_pop_12_with_a_topic_go_the_progress_and_retries_of_all_groups(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=1)
    api.send(topic, "old")
    groups = [f"{topic}.one", f"{topic}.two"]
    for group in groups:
        pop(api, group, topic)
        store_again(api, group, topic)
    store_again_elsewhere = f"{topic}.kept"
    api.put_topic(store_again_elsewhere, partitions=1)
    store_again(api, groups[0], store_again_elsewhere)
    assert api.call("DELETE", f"/v1/topics/{topic}").status == 204
    assert {one for one, _ in folders(api, Space.RETRY)} & {f"{g}/{topic}" for g in groups} == set()
    assert f"{groups[0]}/{store_again_elsewhere}" in {one for one, _ in folders(api, Space.RETRY)}
    assert all(api.call("GET", group_path(group)).json["topics"] == [] for group in groups)
    api.put_topic(topic, partitions=1)
    api.send(topic, "new")
    for group in groups:
        assert [m["body"] for m in pop(api, group, topic)] == ["new"]


@pytest.mark.promise("GROUP-10")
@pytest.mark.parametrize("ends", ["group", "topic"])
def test_pop_12_a_removal_that_was_cut_short_is_finished_by_the_next_start(tmp_path: Path, ends: str) -> None:
    config, store = config_for(tmp_path), faulty_disk(tmp_path)
    with running(config, Ports(store=store)) as api:
        api.put_topic("orders", partitions=1)
        put_group(api, "billing")
        put_group(api, "other")
        for group in ("billing", "other"):
            store_again(api, group, "orders")
        dead = api.service.warehouse.create(dead_ref("billing", 1, "broker-a"))
        dead.append([Batch(pa.RecordBatch.from_pylist([ROW], schema=INTERNAL_SCHEMA))])

        store.before["delete_tree"] = failing(StorageFull())
        path = group_path("billing") if ends == "group" else "/v1/topics/orders"
        assert api.call("DELETE", path).status == 507
        assert api.call("GET", path).status == 404, "nobody is sent there any more"
        assert len(folders(api, Space.RETRY)) == 2 and len(folders(api, Space.DLQ)) == 1
    with running(config) as api:
        _until_swept(api)
        left = {one for one, _ in folders(api, Space.RETRY)}
        assert left == ({"other/orders"} if ends == "group" else set())
        assert len(folders(api, Space.DLQ)) == (0 if ends == "group" else 1)


def _until_swept(api: Api) -> None:
    """The sweep comes before the first look for other processes' changes."""
    with running(api.service.config) as other:
        put_group(other, "seen")
    until(lambda: "seen" in api.service.groups.state.groups)


def test_pop_15_a_pop_that_waits_is_told_that_its_group_ended(api: Api, topic: str) -> None:
    group = f"{topic}.group"
    api.put_topic(topic, partitions=1)
    put_group(api, group)
    answers: list[Reply] = []
    ask = {"wait_ms": 20_000}
    waiting = threading.Thread(
        target=lambda: answers.append(api.call("POST", f"{group_path(group)}/topics/{topic}/pop", ask))
    )
    waiting.start()
    until(lambda: api.service.lanes.waiting)
    assert api.call("DELETE", group_path(group)).status == 204
    waiting.join(60)
    assert [(reply.status, reply.json["code"]) for reply in answers] == [(404, "group_not_found")]


def test_now_of_topics_and_groups_is_the_services_clock(tmp_path: Path) -> None:
    clock = SetClock()
    with running(config_for(tmp_path), Ports(clock=clock)) as api:
        made = [api.put_topic("orders")]
        clock.advance_ms(60_000)
        made.append(put_group(api, "billing"))
        clock.advance_ms(60_000)
        made.append(api.put_topic("orders", partitions=2))
        made.append(put_group(api, "billing", max_attempts=3))
    first, then = (
        datetime.fromtimestamp((clock.wall_us() // 1_000 - ago_ms) / 1_000, UTC) for ago_ms in (120_000, 60_000)
    )
    assert [datetime.fromisoformat(one["created_time"]) for one in made] == [first, then, first, then]
