"""Broadcast groups over REST: each client hears everything and has progress of its own (SPEC CONS-7)."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.api.routes.test_group_offsets import commit, offsets, path_of, reset
from tests.api.routes.test_groups import group_path, put_group
from tests.api.running import Api, config_for, running
from tests.api.static_queues import StaticTopic

pytestmark = pytest.mark.static_too


@pytest.fixture
def filled(api: Api, topic: str) -> str:
    """A topic with five messages in one partition, and a broadcast group of its name."""
    api.put_topic(topic, partitions=1)
    api.send(topic, *map(str, range(5)))
    put_group(api, topic, consume_strategy="broadcast")
    return topic


def members(api: Api, group: str) -> dict[str, int]:
    """The lag of each client that has progress."""
    return {one["client_id"]: one["lag"] for one in api.call("GET", group_path(group)).json["members"]}


def test_cons_07_each_client_commits_and_lags_by_itself(api: Api, filled: str) -> None:
    partition = f"{filled}@broker-a"
    for client, at in (("one", 4), ("two", 1)):
        assert commit(api, f"{filled}@{client}", filled, {partition: at}).status == 200
    assert [offsets(api, f"{filled}@{client}", filled) for client in ("one", "two", "three")] == [
        {partition: 4},
        {partition: 1},
        {},
    ]
    assert members(api, filled) == {"one": 1, "two": 4}
    shown = api.call("GET", group_path(f"{filled}@two")).json
    assert [(one["topic"], one["lag"]) for one in shown["topics"]] == [(filled, 4)]
    assert api.call("GET", group_path(filled)).json["topics"] == [], "the group itself has no progress"


def test_cons_07_progress_of_clients_survives_a_restart(tmp_path: Path) -> None:
    partition = "orders@broker-a"
    with running(config_for(tmp_path)) as api:
        api.put_topic("orders", partitions=1)
        api.send("orders", *map(str, range(5)))
        put_group(api, "audit", consume_strategy="broadcast")
        commit(api, "audit@one", "orders", {partition: 3})
        commit(api, "audit@two", "orders", {partition: 5})
        assert api.call("DELETE", group_path("audit@two")).status == 204
    with running(config_for(tmp_path)) as api:
        assert members(api, "audit") == {"one": 2}
        assert offsets(api, "audit@two", "orders") == {}


def test_cons_07_a_client_is_reset_and_forgotten_without_the_others(api: Api, filled: str) -> None:
    partition = f"{filled}@broker-a"
    for client in ("one", "two"):
        commit(api, f"{filled}@{client}", filled, {partition: 4})
    assert reset(api, f"{filled}@one", filled, "first")["offsets"] == {partition: 0}
    assert members(api, filled) == {"one": 5, "two": 1}
    stale = commit(api, f"{filled}@one", filled, {partition: 4}, epochs={partition: 1})
    assert (stale.status, stale.json["code"]) == (409, "epoch_over")
    assert api.call("DELETE", group_path(f"{filled}@two")).status == 204
    assert members(api, filled) == {"one": 5}
    commit(api, f"{filled}@two", filled, {partition: 2})
    assert members(api, filled) == {"one": 5, "two": 3}


def test_cons_07_clients_end_with_their_group(api: Api, filled: str) -> None:
    commit(api, f"{filled}@one", filled, {f"{filled}@broker-a": 4})
    assert api.call("DELETE", group_path(filled)).status == 204
    assert api.call("GET", group_path(f"{filled}@one")).status == 404
    put_group(api, filled, consume_strategy="broadcast")
    assert members(api, filled) == {} and offsets(api, f"{filled}@one", filled) == {}


def test_cons_07_what_needs_locks_handles_or_retries_is_refused(api: Api, filled: str) -> None:
    path, partition = group_path(filled), f"{filled}@broker-a"
    of_topic = f"{path}/topics/{quote(filled)}"
    refused: list[tuple[str, str, dict[str, Any], str]] = [
        ("POST", f"{of_topic}/pop", {}, "group_broadcast"),
        ("POST", f"{group_path(filled + '@one')}/topics/{quote(filled)}/pop", {}, "group_broadcast"),
        ("POST", f"{of_topic}/locks", {"client_id": "one", "partitions": [partition]}, "group_not_exclusive"),
        (
            "POST",
            f"{of_topic}/aside",
            {"client_id": "one", "partition": partition, "lock": 1, "offsets": [0], "to": "dead"},
            "group_not_exclusive",
        ),
        ("PUT", path_of(filled, filled), {"offsets": {partition: 1}}, "group_broadcast"),
        ("POST", f"{path_of(filled, filled)}/reset", {"to": "first"}, "group_broadcast"),
    ]
    for method, where, body, code in refused:
        reply = api.call(method, where, body)
        assert (reply.status, reply.json["code"]) == (409, code), where
    assert members(api, filled) == {}


@pytest.mark.parametrize("client", ["a b", "é", "x" * 128, ""])
def test_cons_07_a_bad_client_id_is_refused(api: Api, filled: str, client: str) -> None:
    reply = commit(api, f"{filled}@{client}", filled, {f"{filled}@broker-a": 1})
    assert (reply.status, reply.json["code"]) == (400, "invalid_group_name")


def test_cons_07_only_a_broadcast_group_has_clients_with_names(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=1)
    put_group(api, topic)
    missing = commit(api, f"{topic}@one", topic, {f"{topic}@broker-a": 0})
    assert (missing.status, missing.json["code"]) == (404, "group_not_found")
    assert "is not a broadcast group" in missing.json["detail"]
    assert api.call("PUT", group_path(f"{topic}@one"), {}).json["code"] == "invalid_group_name"
    assert commit(api, f"{topic}.none@one", topic, {f"{topic}@broker-a": 0}).status == 404, "it is not created"


def test_cons_07_a_heartbeat_says_that_nothing_is_allocated(api: Api, filled: str) -> None:
    beat = api.call("POST", f"{group_path(filled)}/clients/one/heartbeat", {"topics": {filled: {}}})
    assert (beat.status, beat.json["consume_strategy"], beat.json["allocation"]) == (200, "broadcast", {})


def test_cons_07_clients_hear_logical_queues_by_their_offsets(api: Api, topic: str) -> None:
    made = StaticTopic(api, topic).put(1, "broker-a")
    made.send(0, "a0", "a1")
    made.remap("broker-b")
    made.send(0, "b0")
    put_group(api, topic, consume_strategy="broadcast")
    (queue,) = api.call("GET", path_of(f"{topic}@one", topic)).json["partitions"]
    assert commit(api, f"{topic}@one", topic, {queue["partition"]: 1}).status == 200
    assert commit(api, f"{topic}@two", topic, {queue["partition"]: 3}).status == 200
    assert members(api, topic) == {"one": 2, "two": 0}
