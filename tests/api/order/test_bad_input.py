"""What bad heartbeats and lock requests get: a problem that names the field, and nothing is changed."""

from __future__ import annotations

from typing import Any

import pytest

from deltamq.mq.limits import NAME_LENGTH_MAX, OFFSET_MAX, PARTITIONS_MAX, SUBSCRIPTIONS_MAX, WAIT_MS_MAX
from tests.api.exclusive import Member, exclusive_group
from tests.api.running import JSON, PROBLEM, Api, Reply

#: What is wrong, and the status, code and field that it gets.
Bad = tuple[Any, int, str, str]

HEARTBEATS: dict[str, Bad] = {
    "no topics": ({}, 400, "missing_field", "topics"),
    "null topics": ({"topics": None}, 400, "missing_field", "topics"),
    "topics a list": ({"topics": ["orders"]}, 400, "invalid_type", "topics"),
    "subscription no object": ({"topics": {"orders": "*"}}, 400, "invalid_type", "topics.orders"),
    "unknown field": ({"topics": {}, "onlin": True}, 400, "unknown_field", "onlin"),
    "unknown field of a topic": ({"topics": {"orders": {"tag": "*"}}}, 400, "unknown_field", "topics.orders.tag"),
    "order no flag": ({"topics": {"orders": {"order": 1}}}, 400, "invalid_type", "topics.orders.order"),
    "tags no text": ({"topics": {"orders": {"tags": ["a"]}}}, 400, "invalid_type", "topics.orders.tags"),
    "bad tags": ({"topics": {"orders": {"tags": "a||"}}}, 422, "invalid_tag_filter", "topics.orders.tags"),
    "filter no text": ({"topics": {"orders": {"filter": 5}}}, 400, "invalid_type", "topics.orders.filter"),
    "bad filter": ({"topics": {"orders": {"filter": "a ="}}}, 422, "invalid_filter", "topics.orders.filter"),
    "bad topic name": ({"topics": {"no spaces": {}}}, 400, "invalid_topic_name", "topics.no spaces"),
    "system topic": ({"topics": {"%DLQ%g": {}}}, 400, "system_name", "topics.%DLQ%g"),
    "online no flag": ({"topics": {}, "online": "yes"}, 400, "invalid_type", "online"),
    "too many topics": (
        {"topics": {f"t{at}": {} for at in range(SUBSCRIPTIONS_MAX + 1)}},
        422,
        "invalid_value",
        "topics",
    ),
    "a list": ([], 400, "invalid_type", "body"),
}
CLIENTS = ["a b", "x" * (NAME_LENGTH_MAX + 1), "é", "a\x00b", "a\x7f"]
ON_EVERY_LOCK: dict[str, Bad] = {
    "no client": ({"client_id": None}, 400, "missing_field", "client_id"),
    "client no text": ({"client_id": 7}, 400, "invalid_type", "client_id"),
    "client with a space": ({"client_id": "a b"}, 422, "invalid_value", "client_id"),
    "client with a slash": ({"client_id": "a/b"}, 422, "invalid_value", "client_id"),
    "empty client": ({"client_id": ""}, 422, "invalid_value", "client_id"),
    "no partition": ({"partitions": []}, 422, "invalid_value", "partitions"),
    "partitions a text": ({"partitions": "PARTITION"}, 400, "invalid_type", "partitions"),
    "a partition no text": ({"partitions": [1]}, 400, "invalid_type", "partitions"),
    "unknown partition": ({"partitions": ["PARTITION", "x@y"]}, 404, "partition_not_found", "partitions"),
    "too many": ({"partitions": ["PARTITION"] * (PARTITIONS_MAX + 1)}, 422, "invalid_value", "partitions"),
    "unknown field": ({"partition": "PARTITION"}, 400, "unknown_field", "partition"),
}
TAKES: dict[str, Bad] = {
    **ON_EVERY_LOCK,
    "held a text": ({"held": "PARTITION"}, 400, "invalid_type", "held"),
    "held false": ({"held": False}, 400, "invalid_type", "held"),
    "unknown held": ({"held": ["x@y"]}, 404, "partition_not_found", "held"),
    "wait no number": ({"wait_ms": "1"}, 400, "invalid_type", "wait_ms"),
    "wait a flag": ({"wait_ms": False}, 400, "invalid_type", "wait_ms"),
    "wait below": ({"wait_ms": -1}, 422, "invalid_value", "wait_ms"),
    "wait too long": ({"wait_ms": WAIT_MS_MAX + 1}, 422, "invalid_value", "wait_ms"),
}
NUMBERS: dict[str, Bad] = {
    "numbers a list": ({"locks": [1]}, 400, "invalid_type", "locks"),
    "number no number": ({"locks": {"PARTITION": "1"}}, 400, "invalid_type", "locks.PARTITION"),
    "number below": ({"locks": {"PARTITION": -1}}, 422, "invalid_value", "locks.PARTITION"),
    "number too large": ({"locks": {"PARTITION": OFFSET_MAX + 1}}, 422, "invalid_value", "locks.PARTITION"),
    "number of another": ({"locks": {"x@y": 1}}, 422, "invalid_value", "locks.x@y"),
}
RELEASES: dict[str, Bad] = {**ON_EVERY_LOCK, **NUMBERS, "wait": ({"wait_ms": 1}, 400, "unknown_field", "wait_ms")}


@pytest.fixture(scope="module")
def holder(api: Api) -> Member:
    """A client that has the lock of the one partition."""
    api.put_topic("held", partitions=1)
    exclusive_group(api, "keepers")
    found = Member(api, "keepers", "held", "c0")
    found.beat()
    assert found.take("held@broker-a")["partitions"]
    return found


def named(value: Any) -> Any:
    """`value` with the real partition in it."""
    if isinstance(value, str):
        return value.replace("PARTITION", "held@broker-a")
    if isinstance(value, list):
        return [named(one) for one in value]
    return {named(name): named(one) for name, one in value.items()} if isinstance(value, dict) else value


def assert_problem(reply: Reply, status: int, code: str, field: str | None) -> None:
    assert reply.headers["content-type"] == PROBLEM
    assert (reply.status, reply.json["code"], reply.json.get("field")) == (status, code, field), reply.json


@pytest.mark.parametrize("name", HEARTBEATS)
def test_a_bad_heartbeat_is_refused_by_name(api: Api, holder: Member, name: str) -> None:
    body, status, code, field = HEARTBEATS[name]
    before = api.service.meta.now.online
    assert_problem(api.call("POST", "/v1/groups/keepers/clients/c9/heartbeat", body), status, code, field)
    assert api.service.meta.now.online is before


@pytest.mark.parametrize("client", CLIENTS)
def test_a_bad_client_id_is_refused(api: Api, holder: Member, client: str) -> None:
    reply = Member(api, "keepers", "held", "".join(f"%{byte:02X}" for byte in client.encode())).send_beat()
    assert_problem(reply, 422, "invalid_value", "client_id")
    query = f"?group=keepers&client_id={''.join(f'%{byte:02X}' for byte in client.encode())}"
    assert_problem(api.fetch("held", "held@broker-a", query), 422, "invalid_value", "client_id")


@pytest.mark.parametrize(
    ("query", "status", "code", "field"),
    [
        ("wait_ms=x", 400, "invalid_request", "wait_ms"),
        ("wait_ms=-1", 422, "invalid_value", "wait_ms"),
        (f"wait_ms={WAIT_MS_MAX + 1}", 422, "invalid_value", "wait_ms"),
        ("allocation_epoch=-1", 422, "invalid_value", "allocation_epoch"),
    ],
)
def test_a_bad_wait_of_a_heartbeat_is_refused(
    api: Api, holder: Member, query: str, status: int, code: str, field: str
) -> None:
    assert_problem(holder.send_beat(f"?{query}"), status, code, field)


@pytest.mark.parametrize("name", TAKES)
def test_a_bad_request_for_locks_is_refused_by_name(api: Api, holder: Member, name: str) -> None:
    body, status, code, field = TAKES[name]
    asked = {"client_id": "c0", "partitions": ["held@broker-a"], **named(body)}
    reply = api.call("POST", "/v1/groups/keepers/topics/held/locks", asked)
    assert_problem(reply, status, code, named(field))
    assert holder.commit("held@broker-a", 0, locks=holder.numbers).status == 200, "the lock is as it was"


@pytest.mark.parametrize("name", RELEASES)
def test_a_bad_release_is_refused_by_name(api: Api, holder: Member, name: str) -> None:
    body, status, code, field = RELEASES[name]
    asked = {"client_id": "c0", "partitions": ["held@broker-a"], **named(body)}
    reply = api.call("DELETE", "/v1/groups/keepers/topics/held/locks", asked)
    assert_problem(reply, status, code, named(field))
    assert holder.commit("held@broker-a", 0, locks=holder.numbers).status == 200, "the lock is as it was"


@pytest.mark.parametrize("name", NUMBERS)
def test_a_bad_number_of_a_lock_is_refused_with_the_commit(holder: Member, name: str) -> None:
    body, status, code, field = NUMBERS[name]
    assert_problem(holder.commit("held@broker-a", 0, **named(body)), status, code, named(field))


def test_what_does_not_exist_is_named(api: Api, holder: Member) -> None:
    body = {"client_id": "c0", "partitions": ["held@broker-a"]}
    for method in ("POST", "DELETE"):
        no_group = api.call(method, "/v1/groups/nobody/topics/held/locks", body)
        assert_problem(no_group, 404, "group_not_found", "group")
        no_topic = api.call(method, "/v1/groups/keepers/topics/nothing/locks", body)
        assert_problem(no_topic, 404, "topic_not_found", "topic")
    assert_problem(Member(api, "nobody", "held", "c0").send_beat(), 404, "group_not_found", "group")
    assert_problem(api.fetch("held", "held@broker-a", "?group=nobody"), 404, "group_not_found", "group")
    assert_problem(Member(api, "no%2Agroup", "held", "c0").send_beat(), 400, "invalid_group_name", "group")


@pytest.mark.parametrize("path", ["clients/c0/heartbeat", "topics/held/locks"])
def test_a_body_that_is_no_json_object_is_refused(api: Api, holder: Member, path: str) -> None:
    for body, kind, status, code, field in (
        (b"{", JSON, 400, "invalid_json", "body"),
        (b"{}", "text/plain", 415, "unsupported_media_type", "content-type"),
        (b"x" * 2_000_000, JSON, 413, "request_too_large", "body"),
    ):
        assert_problem(api.call("POST", f"/v1/groups/keepers/{path}", body, kind), status, code, field)
