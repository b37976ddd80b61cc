"""Messages that an exclusive client lets go of: to the dead letters, or to the retry topic (SPEC ORDER-8)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.exclusive import Member, exclusive_group
from tests.api.running import Api, Reply

pytestmark = pytest.mark.static_too


@pytest.fixture
def holder(api: Api, topic: str) -> Member:
    """The holder of the only partition, in which there are five messages of one key."""
    api.put_topic(topic, partitions=1)
    exclusive_group(api, topic)
    messages: list[dict[str, object] | str] = [{"body": str(at), "key": "k", "tag": "t"} for at in range(5)]
    assert api.send(topic, *messages).status == 200
    member = Member(api, topic, topic, "c0")
    member.beat()
    member.take(partition_of(member))
    return member


def partition_of(member: Member) -> str:
    return f"{member.topic}@broker-a"


def let_go(member: Member, *offset: int, **more: object) -> Reply:
    body: dict[str, object] = {
        "client_id": member.id,
        "partition": partition_of(member),
        "lock": member.numbers.get(partition_of(member)),
        "offsets": list(offset),
        "to": "dead",
    } | more
    path = f"/v1/groups/{member.group}/topics/{member.topic}/aside"
    return member.api.call("POST", path, {name: value for name, value in body.items() if value is not None})


def dead_letters(member: Member) -> list[dict[str, Any]]:
    reply = member.api.call("GET", f"/v1/groups/{member.group}/dead-letters")
    found: list[dict[str, Any]] = reply.json["messages"]
    return found


def pop(member: Member, **more: object) -> Reply:
    body = {"max_messages": 10, "invisible_ms": 60_000, **more}
    return member.api.call("POST", f"/v1/groups/{member.group}/topics/{member.topic}/pop", body)


@pytest.mark.promise("LOCK-15")
def test_order_08_what_failed_is_a_dead_letter_once_however_often_it_is_asked_for(holder: Member) -> None:
    for _ in range(2):
        reply = let_go(holder, 1, 3, reason="no such account", attempts=16)
        assert (reply.status, reply.json) == (200, {"moved": 2})
    found = [(one["body"], one["key"], one["tag"], one["reason"], one["attempts"]) for one in dead_letters(holder)]
    assert found == [("1", "k", "t", "no such account", 16), ("3", "k", "t", "no such account", 16)]
    origin = {"topic": holder.topic, "partition": partition_of(holder), "offset": 1}
    assert dead_letters(holder)[0]["origin"] == origin
    assert let_go(holder, 1).json == {"moved": 1}, "another client's try, or another reason, is the same message"
    assert len(dead_letters(holder)) == 2


@pytest.mark.promise("LOCK-15")
def test_order_08_what_is_sent_to_the_retry_topic_is_popped_by_any_client_of_the_group(holder: Member) -> None:
    for _ in range(2):
        assert let_go(holder, 2, to="retry", attempts=1).json == {"moved": 1}
    (ready,) = holder.api.call("GET", f"/v1/groups/{holder.group}/retries").json["messages"]
    assert (ready["state"], ready["attempt"], ready["origin"]["offset"]) == ("ready", 2, 2), "SPEC LOOK-16"
    popped = pop(holder, retry="only", client_id="somebody")
    assert [(one["body"], one["delivery_attempt"]) for one in popped.json["messages"]] == [("2", 2)]
    assert pop(holder, retry="only").json["messages"] == [], "stored once, and nothing but retried messages"
    handles = [one["handle"] for one in popped.json["messages"]]
    acked = holder.api.call("POST", f"/v1/groups/{holder.group}/ack", {"handles": handles})
    assert acked.json == {"acked": 1, "failed": []}
    assert holder.api.call("GET", f"/v1/groups/{holder.group}/retries").json["total"] == 0


def test_cons_01_an_exclusive_group_pops_nothing_but_retried_messages(holder: Member) -> None:
    reply = pop(holder)
    assert (reply.status, reply.json["code"]) == (409, "group_exclusive")


def test_order_04_only_the_holder_of_the_lock_lets_messages_go(holder: Member) -> None:
    other = Member(holder.api, holder.group, holder.topic, "c1")
    other.beat()
    number = holder.numbers[partition_of(holder)]
    for reply in (let_go(other, 0), let_go(other, 0, lock=number), let_go(holder, 0, lock=number + 1)):
        assert (reply.status, reply.json["code"]) == (409, "not_lock_holder")
    holder.release(partition_of(holder))
    assert let_go(holder, 0).json["code"] == "not_lock_holder"
    assert dead_letters(holder) == []


def test_order_08_nothing_of_a_strict_topic_goes_to_the_retry_topic(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=1, order_strategy="strict")
    exclusive_group(api, topic)
    assert api.send(topic, {"body": "0", "key": "k"}).status == 200
    member = Member(api, topic, topic, "c0")
    member.beat()
    member.take(partition_of(member))
    reply = let_go(member, 0, to="retry")
    assert (reply.status, reply.json["code"], reply.json["field"]) == (409, "topic_strict", "to")
    assert let_go(member, 0, to="dead").json == {"moved": 1}, "its client may give a message up"


def test_a_shared_groups_messages_have_handles(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=1)
    assert api.call("PUT", f"/v1/groups/{topic}", {}).status in (200, 201)
    reply = let_go(Member(api, topic, topic, "c0"), 0)
    assert (reply.status, reply.json["code"]) == (409, "group_not_exclusive")


@pytest.mark.parametrize(
    ("change", "status", "code", "field"),
    [
        ({"offsets": []}, 422, "invalid_value", "offsets"),
        ({"offsets": [5]}, 422, "offset_out_of_range", "offsets"),
        ({"offsets": [-1]}, 422, "invalid_value", "offsets[0]"),
        ({"offsets": ["0"]}, 400, "invalid_type", "offsets[0]"),
        ({"offsets": 0}, 400, "invalid_type", "offsets"),
        ({"to": "origin"}, 422, "invalid_value", "to"),
        ({"reason": 7}, 400, "invalid_type", "reason"),
        ({"attempts": 0}, 422, "invalid_value", "attempts"),
        ({"lock": True}, 400, "invalid_type", "lock"),
        ({"partition": "nowhere@broker-a"}, 404, "partition_not_found", "partition"),
        ({"client_id": "a b"}, 422, "invalid_value", "client_id"),
        ({"priority": 1}, 400, "unknown_field", "priority"),
    ],
)
def test_what_is_wrong_with_the_request_is_named(
    holder: Member, change: dict[str, object], status: int, code: str, field: str
) -> None:
    reply = let_go(holder, 0, **change)
    assert (reply.status, reply.json["code"], reply.json["field"]) == (status, code, field)
    assert dead_letters(holder) == []


@pytest.mark.parametrize("field", ["client_id", "partition", "offsets", "to"])
def test_what_is_missing_is_named(holder: Member, field: str) -> None:
    reply = let_go(holder, 0, **{field: None})
    assert (reply.status, reply.json["code"], reply.json["field"]) == (400, "missing_field", field)
