"""A number of a producer stands for one content (SPEC SEND-10)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.running import ARROW, NDJSON, Api, arrow_stream

_SENT = {"key": "k", "tag": "t", "body": "one"}


def _json(api: Api, topic: str, seq: int, *messages: dict[str, Any]) -> Any:
    body = {"messages": list(messages), "producer": {"id": "copied", "seq": seq}}
    return api.call("POST", f"/v1/topics/{topic}/messages", body)


@pytest.mark.parametrize(
    "other",
    [{"body": "two"}, {"key": "l"}, {"tag": "u"}, {"tag": None}, {"key": None}],
    ids=["body", "key", "tag", "no tag", "no key"],
)
def test_send_10_a_number_with_other_messages_is_refused(api: Api, topic: str, other: dict[str, Any]) -> None:
    first = _json(api, topic, 1, _SENT)
    assert (first.status, first.json["duplicate"]) == (200, False)
    again = _json(api, topic, 1, _SENT)
    assert (again.status, again.json["duplicate"], again.json["ranges"]) == (200, True, first.json["ranges"])
    refused = _json(api, topic, 1, {name: value for name, value in {**_SENT, **other}.items() if value is not None})
    assert (refused.status, refused.json["code"]) == (409, "producer_sequence_reused")
    assert "make a producer with a new id" in refused.json["detail"]
    assert sum(one["messages"] for one in api.call("GET", f"/v1/topics/{topic}").json["partitions"]) == 1


def test_send_10_so_in_every_form_and_in_part(api: Api, topic: str) -> None:
    def sent(body: bytes, kind: str) -> int:
        headers = {"Producer-Id": "copied", "Producer-Seq": "7", "Content-Type": kind}
        return api.call("POST", f"/v1/topics/{topic}/messages", body, **headers).status

    lines = b'{"key": "a", "body": "1"}\n{"key": "b", "body": "2"}\n'
    assert [sent(lines, NDJSON), sent(lines, NDJSON), sent(arrow_stream(key=["a", "b"], body=[b"1", b"2"]), ARROW)] == [
        200
    ] * 3
    assert sent(lines.replace(b'"2"', b'"3"'), NDJSON) == 409
    assert sent(arrow_stream(key=["a", "b"], body=[b"0", b"2"]), ARROW) == 409


def test_send_10_a_delayed_message_is_compared_too(api: Api, topic: str) -> None:
    assert _json(api, topic, 1, {**_SENT, "delay_ms": 600_000}).status == 200
    assert _json(api, topic, 1, {**_SENT, "delay_ms": 600_000}).status == 200
    assert _json(api, topic, 1, {**_SENT, "body": "two", "delay_ms": 600_000}).status == 409
