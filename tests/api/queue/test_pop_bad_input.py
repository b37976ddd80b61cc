"""What is wrong with a pop, or with a call with handles, is named: field, code, limit; and nothing changes."""

from __future__ import annotations

import json

import msgspec
import pytest

from deltamq.mq.limits import (
    ATTEMPT_ID_LENGTH_MAX,
    HANDLE_CHARS_MAX,
    HANDLES_MAX,
    INVISIBLE_MS_MAX,
    INVISIBLE_MS_MIN,
    POP_MESSAGES_MAX,
    WAIT_MS_MAX,
)
from deltamq.mq.wire.pop import PopRequest
from tests.api.running import JSON, PROBLEM, Api

_LONG = "x" * (HANDLE_CHARS_MAX + 1)


@pytest.fixture
def path(api: Api, topic: str) -> str:
    """A topic with one message, and where a group pops it."""
    assert api.send(topic, "a").status == 200
    return f"/v1/groups/{topic}.group/topics/{topic}/pop"


@pytest.mark.parametrize(
    ("field", "value", "status", "code", "limit"),
    [
        ("max_messages", 0, 422, "invalid_value", 1),
        ("max_messages", POP_MESSAGES_MAX + 1, 422, "invalid_value", POP_MESSAGES_MAX),
        ("max_messages", "32", 400, "invalid_type", None),
        ("max_messages", 1.5, 400, "invalid_type", None),
        ("invisible_ms", -1, 422, "invalid_value", 0),
        ("invisible_ms", 0, 422, "invalid_value", None),
        ("invisible_ms", INVISIBLE_MS_MIN - 1, 422, "invalid_value", None),
        ("invisible_ms", INVISIBLE_MS_MAX + 1, 422, "invalid_value", None),
        ("invisible_ms", 2**40, 422, "invalid_value", None),
        ("invisible_ms", True, 400, "invalid_type", None),
        ("wait_ms", -1, 422, "invalid_value", 0),
        ("wait_ms", WAIT_MS_MAX + 1, 422, "invalid_value", WAIT_MS_MAX),
        ("tags", "", 422, "invalid_tag_filter", None),
        ("tags", "a|b", 422, "invalid_tag_filter", None),
        ("tags", 7, 400, "invalid_type", None),
        ("partition", "elsewhere@broker-a", 404, "partition_not_found", None),
        ("partition", "x", 422, "invalid_value", 3),
        ("order", "keys", 400, "invalid_type", None),
        ("order", 1, 400, "invalid_type", None),
        ("client_id", "", 422, "invalid_value", 1),
        ("client_id", "x" * 128, 422, "invalid_value", 127),
        ("attempt_id", "", 422, "invalid_value", 1),
        ("attempt_id", "x" * (ATTEMPT_ID_LENGTH_MAX + 1), 422, "invalid_value", ATTEMPT_ID_LENGTH_MAX),
        ("attempt_id", "a b", 422, "invalid_attempt_id", ATTEMPT_ID_LENGTH_MAX),
        ("attempt_id", "a\n", 422, "invalid_attempt_id", ATTEMPT_ID_LENGTH_MAX),
        ("attempt_id", 7, 400, "invalid_type", None),
        ("attempt_id", "x", 422, "attempt_id_without_order", None),
        ("ack", "handle", 400, "invalid_type", None),
        ("ack", [7], 400, "invalid_type", None),
        ("ack", ["x"] * (HANDLES_MAX + 1), 422, "invalid_value", HANDLES_MAX),
        ("ack", [_LONG], 422, "invalid_value", HANDLE_CHARS_MAX),
        ("acks", [], 400, "unknown_field", None),
        ("maxMessages", 32, 400, "unknown_field", None),
    ],
)
def test_a_bad_pop_is_refused_by_name_and_takes_nothing(
    api: Api, path: str, field: str, value: object, status: int, code: str, limit: int | None
) -> None:
    reply = api.call("POST", path, {field: value})
    assert (reply.status, reply.json["code"]) == (status, code), reply
    assert reply.headers["content-type"] == PROBLEM
    assert reply.json["field"].startswith(field) and field in reply.json["detail"]
    assert limit is None or reply.json["limit"] == limit
    assert len(api.call("POST", path, {}).json["messages"]) == 1


@pytest.mark.parametrize("field", [field.name for field in msgspec.structs.fields(PopRequest)])
def test_a_field_of_a_pop_that_is_null_is_left_out(api: Api, path: str, field: str) -> None:
    popped = api.call("POST", path, {field: None})
    assert popped.status == 200 and [m["body"] for m in popped.json["messages"]] == ["a"], popped


def test_a_pop_without_a_body_asks_for_nothing_in_particular(api: Api, path: str) -> None:
    popped = api.call("POST", path)
    assert popped.status == 200 and [m["body"] for m in popped.json["messages"]] == ["a"], popped
    for call in ("ack", "invisible", "nack", "dead"):
        refused = api.call("POST", f"{path.partition('/topics')[0]}/{call}")
        assert (refused.status, refused.json["code"]) == (415, "unsupported_media_type")


@pytest.mark.parametrize(
    ("body", "kind", "status", "code"),
    [
        (b"", JSON, 400, "invalid_json"),
        (b"{", JSON, 400, "invalid_json"),
        (b"\xff\xfe", JSON, 400, "invalid_json"),
        (b"[]", JSON, 400, "invalid_type"),
        (b'"pop"', JSON, 400, "invalid_type"),
        (b"{}", "text/plain", 415, "unsupported_media_type"),
        (b"{}", None, 415, "unsupported_media_type"),
        (b'{"max_messages": ' + b"9" * 5_000 + b"}", JSON, 422, "invalid_value"),
    ],
)
@pytest.mark.parametrize("call", ["pop", "ack", "invisible", "nack", "dead"])
def test_a_body_that_is_no_request_is_refused(
    api: Api, path: str, call: str, body: bytes, kind: str | None, status: int, code: str
) -> None:
    if call != "pop":
        api.call("POST", path, {})
        path = f"{path.partition('/topics')[0]}/{call}"
        if b"max_messages" in body:
            status, code = 400, "unknown_field"
    reply = api.call("POST", path, body, kind)
    assert reply.headers["content-type"] == PROBLEM
    if b"999" in body:
        # A number that no machine holds: the decoder may see it before it looks at the name.
        assert reply.status in (400, 422)
    else:
        assert (reply.status, reply.json["code"]) == (status, code), reply


def test_a_body_over_the_limit_is_refused(api: Api, path: str) -> None:
    reply = api.call("POST", path, b" " * (HANDLES_MAX * HANDLE_CHARS_MAX + 1), JSON)
    assert (reply.status, reply.json["code"], reply.json["field"]) == (413, "request_too_large", "body")


@pytest.mark.parametrize(
    ("call", "request_", "status", "code", "field"),
    [
        ("ack", {}, 400, "missing_field", "handles"),
        ("ack", {"handles": None}, 400, "invalid_type", "handles"),
        ("ack", {"handles": ["x"] * (HANDLES_MAX + 1)}, 422, "invalid_value", "handles"),
        ("ack", {"handles": [], "handle": "x"}, 400, "unknown_field", "handle"),
        ("invisible", {"handle": "x"}, 400, "missing_field", "invisible_ms"),
        ("invisible", {"invisible_ms": 10_000}, 400, "missing_field", "handle"),
        ("invisible", {"handle": "x", "invisible_ms": 1}, 422, "invalid_value", "invisible_ms"),
        ("invisible", {"handle": "x", "invisible_ms": -1}, 422, "invalid_value", "invisible_ms"),
        ("invisible", {"handle": "x", "invisible_ms": INVISIBLE_MS_MAX + 1}, 422, "invalid_value", "invisible_ms"),
        ("nack", {"handles": ["x"], "delay_ms": 1}, 422, "invalid_value", "delay_ms"),
        ("nack", {"handles": ["x"], "delay_ms": INVISIBLE_MS_MAX + 1}, 422, "invalid_value", "delay_ms"),
        ("nack", {"handles": ["x"], "delay_ms": "soon"}, 400, "invalid_type", "delay_ms"),
        ("dead", {"handles": ["x"], "reason": ""}, 422, "invalid_value", "reason"),
        ("dead", {"handles": ["x"], "reason": "x" * 256}, 422, "invalid_value", "reason"),
        ("dead", {"handles": ["x"], "reason": "two\nlines"}, 422, "invalid_value", "reason"),
    ],
)
def test_a_bad_call_with_handles_is_refused_by_name(
    api: Api, path: str, call: str, request_: dict[str, object], status: int, code: str, field: str
) -> None:
    api.call("POST", path, {})
    reply = api.call("POST", f"{path.partition('/topics')[0]}/{call}", request_)
    assert (reply.status, reply.json["code"]) == (status, code), reply
    assert reply.json["field"].startswith(field)


@pytest.mark.parametrize("call", ["ack", "nack", "dead"])
def test_no_handles_are_no_error(api: Api, path: str, call: str) -> None:
    api.call("POST", path, {})
    reply = api.call("POST", f"{path.partition('/topics')[0]}/{call}", {"handles": []})
    assert reply.status == 200 and reply.json["failed"] == []


def test_unknown_topics_and_groups_are_not_found(api: Api, path: str, topic: str) -> None:
    unknown = api.call("POST", f"/v1/groups/{topic}.group/topics/{topic}.nowhere/pop", {})
    assert (unknown.status, unknown.json["code"]) == (404, "topic_not_found")
    for call in ("ack", "nack", "dead"):
        unknown = api.call("POST", f"/v1/groups/{topic}.nobody/{call}", {"handles": ["x"]})
        assert (unknown.status, unknown.json["code"]) == (404, "group_not_found")


@pytest.mark.parametrize("name", ["%25RETRY%25a_b", "sys%2Fmeta", "a%00b", "x" * 256, "%ff"])
def test_model_05_names_that_are_not_allowed_are_refused(api: Api, path: str, topic: str, name: str) -> None:
    for place in (f"/v1/groups/{name}/topics/{topic}/pop", f"/v1/groups/{topic}.group/topics/{name}/pop"):
        reply = api.call("POST", place, {})
        assert reply.status in (400, 404) and reply.headers["content-type"] == PROBLEM, reply


@pytest.mark.parametrize("call", ["pop", "ack", "invisible", "nack", "dead"])
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_other_methods_and_parameters_are_refused(api: Api, path: str, call: str, method: str) -> None:
    place = path if call == "pop" else f"{path.partition('/topics')[0]}/{call}"
    refused = api.call(method, place)
    assert (refused.status, refused.headers["allow"]) == (405, "POST")
    reply = api.call("POST", f"{place}?max_messages=1", json.dumps({}).encode(), JSON)
    assert (reply.status, reply.json["code"], reply.json["field"]) == (400, "unknown_parameter", "max_messages")
