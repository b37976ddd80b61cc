"""CloudEvents in and out, in all three modes of HTTP (SPEC SEND-12, CONS-15)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deltamq.api.wire.cloud_events import BATCHED, BINARY, STRUCTURED
from deltamq.mq.limits import HEADER_BYTES_MAX, HEADER_SECTION_BYTES_MAX, HEADERS_MAX, KEY_BYTES_MAX
from tests.api.running import JSON, Api

EVENT: dict[str, Any] = {
    "specversion": "1.0",
    "id": "7f-1",
    "source": "/shops/7",
    "type": "com.example.order.created",
    "subject": "order-7",
    "time": "2026-01-02T03:04:05.5Z",
    "region": "eu",
    "retries": 3,
    "isnew": True,
    "data": {"amount": 12.50},
}
STORED = {
    "ce_specversion": "1.0",
    "ce_id": "7f-1",
    "ce_source": "/shops/7",
    "ce_type": "com.example.order.created",
    "ce_subject": "order-7",
    "ce_time": "2026-01-02T03:04:05.5Z",
    "ce_region": "eu",
    "ce_retries": "3",
    "ce_isnew": "true",
}


def as_headers(event: dict[str, Any]) -> dict[str, str]:
    return {f"ce_{name}": str(value) for name, value in event.items() if name != "data"}


def stored(api: Api, topic: str) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = api.fetch(topic, f"{topic}@broker-a").json["messages"]
    return messages


def only(api: Api, topic: str) -> dict[str, Any]:
    (message,) = stored(api, topic)
    return message


@pytest.fixture
def home(api: Api, topic: str) -> str:
    api.put_topic(topic, partitions=1)
    return f"{topic}@broker-a"


def test_send_12_an_event_is_a_message_with_its_id_key_and_headers(api: Api, topic: str, home: str) -> None:
    text = json.dumps(EVENT).replace("12.5", "12.50")  # data is stored byte by byte
    answer = api.produce(topic, text, f"{STRUCTURED}; charset=utf-8")
    assert answer.json["ranges"] == [{"partition": home, "base_offset": 0, "count": 1}]
    message = only(api, topic)
    assert message["headers"] == STORED
    assert (message["message_id"], message["key"]) == ("7f-1", "order-7")
    assert (message["born_time"], message["body"]) == ("2026-01-02T03:04:05.500000Z", '{"amount": 12.50}')


def test_send_12_a_batch_is_stored_whole_and_once(api: Api, topic: str, home: str) -> None:
    batch = json.dumps([{**EVENT, "id": str(n)} for n in range(3)])
    sent = [api.produce(topic, batch, BATCHED, Producer_Id="shop", Producer_Seq="0") for _ in range(2)]
    assert [answer.json["duplicate"] for answer in sent] == [False, True]
    assert [message["message_id"] for message in stored(api, topic)] == ["0", "1", "2"]


def test_send_12_an_event_that_was_popped_can_be_sent_on(api: Api, topic: str, home: str) -> None:
    api.produce(topic, json.dumps(EVENT), STRUCTURED)
    popped = api.call("POST", f"/v1/groups/{topic}.g/topics/{topic}/pop", {}, Accept=STRUCTURED)
    assert "mqhandle" in popped.json
    assert api.produce(topic, popped.body, STRUCTURED).status == 200
    first, second = stored(api, topic)
    assert {**second, "offset": 0, "append_time": first["append_time"]} == first


@pytest.mark.parametrize(("data", "kind"), [(b'{"a": 1}', JSON), (b"\x00\xff", "image/png"), (b"", None)])
def test_send_12_binary_mode_stores_the_body_as_it_is(
    api: Api, topic: str, home: str, data: bytes, kind: str | None
) -> None:
    headers = {**as_headers(EVENT), "ce_isnew": "true", "ce_region": '"Z%C3%BCrich%20\\"West\\""'}
    assert api.call("POST", f"/v1/topics/{topic}/messages", data, kind, **headers).status == 200
    message = only(api, topic)
    kept = {} if kind is None else {"content-type": kind}
    assert message["headers"] == {**STORED, "ce_region": 'Zürich "West"', **kept}
    fetched = api.fetch(topic, home, accept=BINARY)
    assert (fetched.body, fetched.headers.get("content-type")) == (data, kind)
    assert (fetched.headers["ce-id"], fetched.headers["ce-region"]) == ("7f-1", "Z%C3%BCrich%20%22West%22")


@pytest.mark.parametrize("more", [{f"a{n}": "1" for n in range(60)}, {"region": "r" * 17_000}], ids=["many", "long"])
def test_send_12_an_event_with_more_than_headers_hold_goes_out_structured(
    api: Api, topic: str, home: str, more: dict[str, str]
) -> None:
    assert api.produce(topic, json.dumps({**EVENT, **more}), STRUCTURED).status == 200
    fetched = api.fetch(topic, home, accept=BINARY)
    assert fetched.headers["content-type"].startswith(STRUCTURED)
    assert {name: fetched.json[name] for name in more} == more


@pytest.mark.parametrize(
    ("given", "body", "kind"),
    [
        ({"data": "hi", "datacontenttype": "text/plain"}, b"hi", "text/plain"),
        ({"data": "hi"}, b'"hi"', None),
        ({"data": None}, b"null", None),
        ({"data": [1, None], "datacontenttype": "application/vnd.a+json; v=1"}, b"[1, null]", None),
        ({"data_base64": "AP8=", "datacontenttype": "image/png"}, b"\x00\xff", "image/png"),
        ({"data": "<a/>", "datacontenttype": "application/xml"}, b"<a/>", "application/xml"),
        ({}, b"", None),
    ],
)
def test_send_12_data_is_the_body_and_comes_back_as_it_was(
    api: Api, topic: str, home: str, given: dict[str, Any], body: bytes, kind: str | None
) -> None:
    event = {**{name: value for name, value in EVENT.items() if name != "data"}, **given}
    assert api.produce(topic, json.dumps(event), STRUCTURED).status == 200
    back = api.fetch(topic, home, accept=STRUCTURED)
    assert back.json == {
        **event, "retries": "3", "isnew": "true", "mqpartition": home, "mqoffset": "0"
    }  # fmt: skip
    binary = api.fetch(topic, home, accept=BINARY)
    assert binary.body == body and (kind is None or binary.headers["content-type"] == kind)


@pytest.mark.parametrize(
    ("change", "status", "code", "field"),
    [
        ({"id": None}, 400, "missing_field", "id"),
        ({"source": ""}, 400, "missing_field", "source"),
        ({"type": {}}, 400, "invalid_type", "type"),
        ({"id": 7}, 400, "invalid_type", "id"),
        ({"subject": ""}, 400, "invalid_value", "subject"),
        ({"specversion": "0.3"}, 422, "invalid_value", "specversion"),
        ({"Region": "eu"}, 400, "unknown_field", "Region"),
        ({"ratio": 0.5}, 400, "invalid_type", "ratio"),
        ({"time": "yesterday"}, 400, "invalid_type", "time"),
        ({"time": "0001-01-01T00:00:00Z"}, 422, "invalid_value", "time"),
        ({"id": "i" * 256}, 422, "invalid_value", "id"),
        ({"subject": "s" * (KEY_BYTES_MAX + 1)}, 422, "invalid_value", "subject"),
        ({"region": "r" * HEADER_BYTES_MAX}, 422, "invalid_value", "region"),
        ({f"a{n}": "" for n in range(HEADERS_MAX)}, 422, "invalid_value", "attributes"),
        ({"data_base64": "AA=="}, 400, "invalid_body", "data"),
        ({"data": 1, "datacontenttype": "text/plain"}, 400, "invalid_type", "data"),
    ],
)
def test_send_12_a_refusal_names_the_attribute(
    api: Api, topic: str, home: str, change: dict[str, Any], status: int, code: str, field: str
) -> None:
    wrong = {**EVENT, **change}
    answers = {field: api.produce(topic, json.dumps(wrong), STRUCTURED)}
    answers[f"[1].{field}"] = api.produce(topic, json.dumps([EVENT, wrong]), BATCHED)
    if not field.startswith("data") and all(isinstance(value, str) for value in change.values()):
        name = f"ce-{field.lower()}"
        if field not in ("Region", "attributes") and len(json.dumps(wrong)) < HEADER_SECTION_BYTES_MAX:
            answers[name] = api.call("POST", f"/v1/topics/{topic}/messages", b"", None, **as_headers(wrong))
    for named, answer in answers.items():
        assert (answer.status, answer.json["code"], answer.json["field"]) == (status, code, named), answer
        assert named in answer.json["detail"]
    assert stored(api, topic) == []


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{"id": "\xff"}', b'{"id": ' + b"[" * 100_000, b'{"data": ' + b"[" * 100_000]
)
def test_send_12_what_is_no_event_is_refused(api: Api, topic: str, home: str, body: bytes) -> None:
    for kind in (STRUCTURED, BATCHED):
        assert api.produce(topic, body, kind).status in (400, 422)


def test_cons_15_fetch_answers_in_each_mode(api: Api, topic: str, home: str) -> None:
    api.produce(topic, json.dumps([{**EVENT, "id": str(n)} for n in range(3)]), BATCHED)
    batch = api.fetch(topic, home, "?offset=1", accept=BATCHED)
    assert [event["id"] for event in batch.json] == ["1", "2"]
    assert batch.headers["content-type"] == f"{BATCHED}; charset=utf-8"
    for accept in (STRUCTURED, BINARY):
        one = api.fetch(topic, home, "?offset=1&max_messages=9", accept=accept)
        place = {name: value for name, value in one.headers.items() if name.startswith("mq-")}
        assert place == {"mq-status": "found", "mq-next-offset": "2", "mq-min-offset": "0", "mq-max-offset": "3"}
        none = api.fetch(topic, home, "?offset=3", accept=accept)
        assert (none.status, none.body, none.headers["mq-status"]) == (204, b"", "no_new_message")
    assert api.fetch(topic, home, "?offset=3", accept=BATCHED).json == []
    assert api.fetch(topic, "x@broker-a", accept=BATCHED).json["code"] == "partition_not_found"


def test_cons_15_a_pop_gives_events_with_their_handles(api: Api, topic: str, home: str) -> None:
    api.produce(topic, json.dumps([{**EVENT, "id": str(n)} for n in range(5)]), BATCHED)
    path, group = f"/v1/groups/{topic}.g/topics/{topic}/pop", f"/v1/groups/{topic}.g"
    one = api.call("POST", path, {"max_messages": 3}, Accept=STRUCTURED)
    assert (one.json["id"], one.json["mqattempt"], one.headers["mq-rest"]) == ("0", "1", "4")
    two = api.call("POST", path, {}, Accept=BINARY)
    assert (two.headers["ce-id"], two.body) == ("1", b'{"amount": 12.5}')
    others = api.call("POST", path, {"ack": [one.json["mqhandle"], "x"]}, Accept=BATCHED)
    assert ([event["id"] for event in others.json], others.headers["mq-failed"]) == (["2", "3", "4"], "1")
    handles = [two.headers["ce-mqhandle"], *(event["mqhandle"] for event in others.json)]
    assert api.call("POST", f"{group}/ack", {"handles": handles}).json == {"acked": 4, "failed": []}
    assert api.call("POST", path, {}, Accept=STRUCTURED).status == 204


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"body": "[1]", "message_id": "m", "tag": "created", "key": "k"},
         {"id": "m", "type": "created", "subject": "k", "data": [1]}),
        ({"body": "hi"}, {"type": "deltamq.message", "datacontenttype": "text/plain; charset=utf-8", "data": "hi"}),
        ({"body_base64": "/w=="}, {"datacontenttype": "application/octet-stream", "data_base64": "/w=="}),
        # What Kafka's clients send in its binding's binary mode, and what only looks like it.
        ({"body": "{}", "headers": {"ce_specversion": "1.0", "ce_id": "k-1", "ce_source": "s", "ce_type": "t",
                                    "content-type": "application/json"}},
         {"id": "k-1", "source": "s", "type": "t", "datacontenttype": "application/json", "data": {}}),
        ({"body": "{", "headers": {"content-type": "application/json"}},
         {"datacontenttype": "application/json", "data_base64": "ew=="}),
        ({"body": "x", "headers": {"ce_specversion": "1.0", "ce_Bad-name": "x", "ce_data": "x",
                                   "content-type": "a\nb"}},
         {"type": "deltamq.message", "datacontenttype": "text/plain; charset=utf-8", "data": "x"}),
    ],
)  # fmt: skip
def test_cons_15_every_message_is_an_event(
    api: Api, topic: str, home: str, message: dict[str, object], expected: dict[str, object]
) -> None:
    assert api.send(topic, message).status == 200
    event = api.fetch(topic, home, accept=STRUCTURED).json
    known = {"specversion": "1.0", "source": f"/v1/topics/{topic}", "mqpartition": home, "mqoffset": "0"}
    assert expected.items() <= event.items() and {**known, **expected}.items() <= event.items()
    assert event["id"] and "ce_Bad-name" not in event and "ce_data" not in event
    assert api.fetch(topic, home, accept=BINARY).status == 200


def test_cons_15_json_is_answered_where_it_is_named_first(api: Api, topic: str, home: str) -> None:
    assert api.fetch(topic, home, accept=f"{JSON}, {BATCHED}, {STRUCTURED}").json["messages"] == []
    assert api.fetch(topic, home, accept=f"{JSON};q=0.5, {BATCHED}").json == []
