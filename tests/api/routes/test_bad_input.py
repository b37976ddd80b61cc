"""What bad input gets: a problem that names the field and the limit, and nothing of the request is stored."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from random import Random
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from deltamq.api.wire.arrow_body import decode_arrow
from deltamq.api.wire.route_batch import route_messages
from deltamq.api.wire.rows import ArrowRows
from deltamq.mq.errors import Refused
from deltamq.mq.limits import (
    ARROW_MESSAGES_MAX,
    DELAY_MS_MAX,
    FETCH_BYTES_MAX,
    FETCH_MESSAGES_MAX,
    HEADER_BYTES_MAX,
    HEADERS_MAX,
    KEY_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    MESSAGE_ID_BYTES_MAX,
    MESSAGE_TYPE_LENGTH_MAX,
    OFFSET_MAX,
    PRODUCER_ID_LENGTH_MAX,
    PRODUCER_SEQ_MAX,
    REQUEST_MESSAGES_MAX,
    RETENTION_MS_MAX,
    RETENTION_MS_MIN,
    TAG_BYTES_MAX,
    TAG_FILTER_TAGS_MAX,
    WAIT_MS_MAX,
)
from deltamq.mq.routing import new_route
from tests.api.running import ARROW, JSON, NDJSON, PROBLEM, Api, arrow_stream, config_for, running

TOPIC = "orders"


class Bad(msgspec.Struct, frozen=True):
    """One bad produce request and what it gets."""

    name: str
    status: int
    code: str
    field: str | None
    body: Any = None
    kind: str | None = JSON
    query: str = ""
    topic: str = TOPIC
    limit: int | None = None
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    extra: dict[str, object] = msgspec.field(default_factory=dict)


def one(**message: object) -> dict[str, object]:
    """A request of two good messages around a bad one, so that a part of it could be stored by mistake."""
    return {"messages": [{"body": "good"}, message, {"body": "good"}]}


def truncated(keep: float) -> bytes:
    whole = arrow_stream(body=[b"x" * 100] * 10)
    return whole[: int(len(whole) * keep)]


def without_end() -> bytes:
    return arrow_stream(body=[b"x"])[:-8]


def compressed() -> bytes:
    batch = pa.RecordBatch.from_pydict({"body": [b"x" * 1000]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def offsets_out_of_bounds() -> bytes:
    """A body column whose last offset points far behind its data."""
    whole = bytearray(arrow_stream(body=[b"abc", b"defg"]))
    at = whole.rindex((0).to_bytes(4, "little") + (3).to_bytes(4, "little") + (7).to_bytes(4, "little"))
    whole[at + 8 : at + 12] = (1 << 30).to_bytes(4, "little")
    return bytes(whole)


def not_utf8_key() -> bytes:
    whole = arrow_stream(body=[b"a"], key=["kkkkkkkkkkkkkkkk"])
    return whole.replace(b"kkkkkkkkkkkkkkkk", b"kkkkkkkk\xff\xfekkkkkk")


def twice() -> bytes:
    schema = pa.schema([("body", pa.binary()), ("body", pa.binary())])
    batch = pa.RecordBatch.from_arrays([pa.array([b"a"]), pa.array([b"a"])], schema=schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


MAP = pa.map_(pa.string(), pa.string())
DAY = datetime(2024, 1, 1, tzinfo=UTC)
FAR_US = 4_000_000_000_000_000
LONG_KEY = "é" * (KEY_BYTES_MAX // 2 + 1)

REQUESTS = [
    # The topic and the media type.
    Bad("bad topic name", 400, "invalid_topic_name", "topic", one(body="a"), topic="no spaces", limit=249),
    Bad("topic name too long", 400, "invalid_topic_name", "topic", one(body="a"), topic="x" * 250, limit=249),
    Bad("topic name is dots", 400, "invalid_topic_name", "topic", one(body="a"), topic=".."),
    Bad("topic name leaves its folder", 400, "invalid_topic_name", "topic", one(body="a"), topic="../../etc"),
    Bad("topic name with NUL", 400, "invalid_topic_name", "topic", one(body="a"), topic="a\0b"),
    Bad("model_05 retry topic", 400, "system_name", "topic", one(body="a"), topic="%RETRY%g_t"),
    Bad("model_05 dead-letter topic", 400, "system_name", "topic", one(body="a"), topic="%DLQ%g"),
    Bad("model_05 system topic", 400, "system_name", "topic", one(body="a"), topic="rmq_sys_x"),
    Bad("model_05 internal log", 400, "system_name", "topic", one(body="a"), topic="sys/meta"),
    Bad("no media type", 415, "unsupported_media_type", "content-type", b"{}", kind=None),
    Bad("unknown media type", 415, "unsupported_media_type", "content-type", b"{}", kind="text/csv"),
    Bad("compressed", 415, "unsupported_encoding", "content-encoding", gzip.compress(b'{"messages":[{"body":"a"}]}'),
        headers={"Content_Encoding": "gzip"}),
    Bad("said to be compressed", 415, "unsupported_encoding", "content-encoding", one(body="a"),
        headers={"Content_Encoding": "Identity, GZIP"}),
    Bad("ndjson said to be compressed", 415, "unsupported_encoding", "content-encoding", b'{"body":"a"}', kind=NDJSON,
        headers={"Content_Encoding": "zstd"}),
    # The query.
    Bad("unknown parameter", 400, "unknown_parameter", "flsh", one(body="a"), query="?flsh=sync"),
    Bad("repeated parameter", 400, "invalid_request", "flush", one(body="a"), query="?flush=sync&flush=async"),
    Bad("flush of another value", 422, "invalid_value", "flush", one(body="a"), query="?flush=maybe"),
    Bad("ids of another value", 422, "invalid_value", "ids", one(body="a"), query="?ids=1"),
    Bad("unknown partition", 404, "partition_not_found", "partition", one(body="a"), query="?partition=x%40broker-a"),
    Bad("expected_offset negative", 422, "invalid_value", "expected_offset", one(body="a"),
        query="?partition=orders%40broker-a&expected_offset=-1", limit=0),
    Bad("expected_offset no number", 400, "invalid_type", "expected_offset", one(body="a"),
        query="?partition=orders%40broker-a&expected_offset=x"),
    Bad("expected_offset without partition", 422, "invalid_value", "expected_offset", one(body="a"),
        query="?expected_offset=0"),
    Bad("expected_offset with two partitions", 422, "invalid_value", "expected_offset",
        {"messages": [{"body": "a", "partition": "orders@broker-a"}, {"body": "b", "partition": "orders@broker-b"}],
         "expected_offset": 0}),
    Bad("partition in query and message", 400, "invalid_request", "partition",
        one(body="a", partition="orders@broker-a"), query="?partition=orders%40broker-a"),
    # JSON as a whole.
    Bad("empty body", 400, "invalid_json", "body", b""),
    Bad("no JSON", 400, "invalid_json", "body", b'{"messages": ['),
    Bad("garbage after JSON", 400, "invalid_json", "body", b'{"messages": [{"body": "a"}]} x'),
    Bad("not UTF-8", 400, "invalid_json", "body", b'{"messages": [{"body": "\xff"}]}'),
    Bad("lone surrogate", 400, "invalid_json", "body", b'{"messages": [{"body": "\\ud800"}]}'),
    Bad("not an object", 400, "invalid_type", "body", b"[]"),
    Bad("deep nesting", 400, "unknown_field", "messages[0].x", b'{"messages": [{"x": ' + b"[" * 65536 + b"]" * 65536),
    Bad("messages missing", 400, "missing_field", "messages", {}),
    Bad("messages empty", 422, "no_messages", "messages", {"messages": []}),
    Bad("messages no list", 400, "invalid_type", "messages", {"messages": {}}),
    Bad("unknown field of the request", 400, "unknown_field", "mesages", {"messages": [{"body": "a"}], "mesages": []}),
    Bad("unknown field of a message", 400, "unknown_field", "messages[1].kee", one(body="a", kee="k")),
    Bad("too many messages", 413, "too_many_messages", "messages",
        {"messages": [{"body": ""}] * (REQUEST_MESSAGES_MAX + 1)}, limit=REQUEST_MESSAGES_MAX),
    # JSON messages.
    Bad("body missing", 400, "invalid_body", "messages[1].body", one(key="k")),
    Bad("body and body_base64", 400, "invalid_body", "messages[1].body", one(body="a", body_base64="YQ==")),
    Bad("body no text", 400, "invalid_type", "messages[1].body", one(body=1)),
    Bad("bad base64", 400, "invalid_base64", "messages[1].body_base64", one(body_base64="YQ=")),
    Bad("base64 with garbage", 400, "invalid_base64", "messages[1].body_base64", one(body_base64="YQ==\n")),
    Bad("base64 no ASCII", 400, "invalid_base64", "messages[1].body_base64", one(body_base64="é")),
    Bad("send_06 message too large", 413, "message_too_large", "messages[1].body",
        one(body="x" * (MESSAGE_BYTES_MAX + 1)), limit=MESSAGE_BYTES_MAX),
    Bad("key no text", 400, "invalid_type", "messages[1].key", one(body="a", key=7)),
    Bad("key too long", 422, "invalid_value", "messages[1].key", one(body="a", key=LONG_KEY), limit=KEY_BYTES_MAX),
    Bad("tag too long", 422, "invalid_value", "messages[1].tag", one(body="a", tag="t" * (TAG_BYTES_MAX + 1)),
        limit=TAG_BYTES_MAX),
    Bad("id too long", 422, "invalid_value", "messages[1].message_id",
        one(body="a", message_id="é" * MESSAGE_ID_BYTES_MAX), limit=MESSAGE_ID_BYTES_MAX),
    Bad("id empty", 422, "invalid_value", "messages[1].message_id", one(body="a", message_id=""), limit=1),
    Bad("headers no object", 400, "invalid_type", "messages[1].headers", one(body="a", headers=[])),
    Bad("header no text", 400, "invalid_type", "messages[1].headers.h", one(body="a", headers={"g": "", "h": 1})),
    Bad("header no text before broken JSON", 400, "invalid_type", "messages[0].headers[...]",
        b'{"messages":[{"body":"a","headers":{"h":1}},'),
    Bad("headers twice", 400, "invalid_type", "messages[0].headers[...]",
        b'{"messages":[{"body":"a","headers":{"h":1},"headers":null}]}'),
    Bad("messages twice", 400, "invalid_type", "messages[0].headers[...]",
        b'{"messages":[{"body":"a","headers":{"h":1}}],"messages":[]}'),
    Bad("ndjson header no text", 400, "invalid_type", "line 2.headers.h",
        b'{"body":"a"}\n{"body":"a","headers":{"g":"","h":null}}\n', kind=NDJSON),
    Bad("ndjson header too long", 422, "invalid_value", "line 3.headers.h",
        b'{"body":"a"}\n\n' + json.dumps({"body": "a", "headers": {"h": "x" * HEADER_BYTES_MAX}}).encode(), kind=NDJSON,
        limit=HEADER_BYTES_MAX),
    Bad("too many headers", 422, "invalid_value", "messages[1].headers",
        one(body="a", headers={f"h{i}": "" for i in range(HEADERS_MAX + 1)}), limit=HEADERS_MAX),
    Bad("header too long", 422, "invalid_value", "messages[1].headers.h",
        one(body="a", headers={"g": "", "h": "x" * HEADER_BYTES_MAX}), limit=HEADER_BYTES_MAX),
    Bad("born_time without zone", 400, "invalid_type", "messages[1].born_time",
        one(body="a", born_time="2024-01-01T00:00:00")),
    Bad("born_time no time", 400, "invalid_type", "messages[1].born_time", one(body="a", born_time="yesterday")),
    Bad("born_time out of range", 422, "invalid_value", "messages[1].born_time",
        one(body="a", born_time="1969-12-31T23:59:59Z")),
    Bad("retry_04 deliver_time too far ahead", 422, "invalid_value", "messages[1].deliver_time",
        one(body="a", deliver_time="2099-01-01T00:00:00Z"), extra={"max": DELAY_MS_MAX}),
    Bad("deliver_time without zone", 400, "invalid_type", "messages[1].deliver_time",
        one(body="a", deliver_time="2024-01-01T00:00:00")),
    Bad("retry_04 delay_ms too long", 422, "invalid_value", "messages[1].delay_ms",
        one(body="a", delay_ms=DELAY_MS_MAX + 1), extra={"max": DELAY_MS_MAX}),
    Bad("delay_ms beyond 64 bits", 422, "invalid_value", "messages[1].delay_ms", one(body="a", delay_ms=2**70)),
    Bad("delay_ms negative", 422, "invalid_value", "messages[1].delay_ms", one(body="a", delay_ms=-1), limit=0),
    Bad("deliver_time and delay_ms", 422, "invalid_value", "messages[1].delay_ms",
        one(body="a", delay_ms=1, deliver_time="2024-01-01T00:00:00Z")),
    Bad("delayed with expected_offset", 422, "invalid_value", "expected_offset",
        {"messages": [{"body": "a", "partition": "orders@broker-a", "delay_ms": 5}], "expected_offset": 1}),
    Bad("delay_ms no number", 400, "invalid_type", "messages[1].delay_ms", one(body="a", delay_ms="1")),
    Bad("message's unknown partition", 404, "partition_not_found", "messages[1].partition",
        one(body="a", partition="orders@broker-z")),
    # Producers.
    Bad("seq negative", 422, "invalid_value", "producer.seq",
        {"messages": [{"body": "a"}], "producer": {"id": "p", "seq": -1}}, limit=0),
    Bad("seq too large", 422, "invalid_value", "producer.seq",
        {"messages": [{"body": "a"}], "producer": {"id": "p", "seq": PRODUCER_SEQ_MAX + 1}}, limit=PRODUCER_SEQ_MAX),
    Bad("seq no number", 400, "invalid_type", "producer.seq",
        {"messages": [{"body": "a"}], "producer": {"id": "p", "seq": "1"}}),
    Bad("seq missing", 400, "missing_field", "producer.seq",
        {"messages": [{"body": "a"}], "producer": {"id": "p"}}),
    Bad("producer id empty", 422, "invalid_value", "producer.id",
        {"messages": [{"body": "a"}], "producer": {"id": "", "seq": 0}}, limit=PRODUCER_ID_LENGTH_MAX),
    Bad("producer id too long", 422, "invalid_value", "producer.id",
        {"messages": [{"body": "a"}], "producer": {"id": "p" * 128, "seq": 0}}, limit=PRODUCER_ID_LENGTH_MAX),
    Bad("producer header alone", 400, "missing_field", "Producer-Seq", b'{"body": "a"}', kind=NDJSON,
        headers={"Producer-Id": "p"}),
    Bad("producer seq header no number", 400, "invalid_type", "Producer-Seq", b'{"body": "a"}', kind=NDJSON,
        headers={"Producer-Id": "p", "Producer-Seq": "first"}),
    Bad("producer id header with space", 422, "invalid_value", "Producer-Id", b'{"body": "a"}', kind=NDJSON,
        headers={"Producer-Id": "p q", "Producer-Seq": "0"}, limit=PRODUCER_ID_LENGTH_MAX),
    Bad("producer twice", 400, "invalid_request", "producer",
        {"messages": [{"body": "a"}], "producer": {"id": "p", "seq": 0}},
        headers={"Producer-Id": "p", "Producer-Seq": "0"}),
    # NDJSON.
    Bad("ndjson empty", 422, "no_messages", "messages", b"\n \n", kind=NDJSON),
    Bad("ndjson malformed line", 400, "invalid_json", "line 3", b'{"body": "a"}\n\n{"body": \n{"body": "b"}',
        kind=NDJSON, extra={"line": 3}),
    Bad("ndjson line no object", 400, "invalid_type", "line 2", b'{"body": "a"}\n7\n', kind=NDJSON, extra={"line": 2}),
    Bad("ndjson unknown field", 400, "unknown_field", "line 2.kee", b'{"body": "a"}\n{"body": "b", "kee": 1}',
        kind=NDJSON, extra={"line": 2}),
    Bad("ndjson bad base64", 400, "invalid_base64", "line 4.body_base64",
        b'{"body": "a"}\n\n\n{"body_base64": "?"}', kind=NDJSON, extra={"line": 4}),
    Bad("ndjson far line", 400, "unknown_field", "line 30001.x", b'{"body": "a"}\n' * 30_000 + b'{"x": 1}',
        kind=NDJSON, extra={"line": 30_001}),
    Bad("ndjson not UTF-8", 400, "invalid_json", "line 2", b'{"body": "a"}\n{"body": "\xff"}', kind=NDJSON,
        extra={"line": 2}),
    # Arrow.
    Bad("arrow empty", 400, "invalid_arrow", "body", b"", kind=ARROW),
    Bad("arrow no stream", 400, "invalid_arrow", "body", b"hello, world" * 10, kind=ARROW),
    Bad("arrow cut in the schema", 400, "invalid_arrow", "body", truncated(0.05), kind=ARROW),
    Bad("arrow cut in a batch", 400, "invalid_arrow", "body", truncated(0.7), kind=ARROW),
    Bad("arrow without its end", 400, "invalid_arrow", "body", without_end(), kind=ARROW),
    Bad("arrow with more behind its end", 400, "invalid_arrow", "body", arrow_stream(body=[b"x"]) + b"\0" * 8,
        kind=ARROW),
    Bad("arrow offsets out of bounds", 400, "invalid_arrow", "body", offsets_out_of_bounds(), kind=ARROW),
    Bad("arrow key not UTF-8", 400, "invalid_arrow", "body", not_utf8_key(), kind=ARROW),
    Bad("arrow compressed", 422, "compressed_arrow", "body", compressed(), kind=ARROW),
    Bad("arrow no rows", 422, "no_messages", "body", arrow_stream(body=pa.array([], pa.binary())), kind=ARROW),
    Bad("arrow unknown column", 400, "unknown_field", "kee", arrow_stream(body=[b"a"], kee=["k"]), kind=ARROW),
    Bad("arrow column twice", 400, "unknown_field", "body", twice(), kind=ARROW),
    Bad("arrow wrong type", 400, "invalid_type", "key", arrow_stream(body=[b"a"], key=[7]), kind=ARROW),
    Bad("arrow dictionary", 400, "invalid_type", "key",
        arrow_stream(body=[b"a"], key=pa.array(["k"]).dictionary_encode()), kind=ARROW),
    Bad("arrow body missing", 400, "missing_field", "body", arrow_stream(key=["k"]), kind=ARROW),
    Bad("arrow body null", 400, "missing_field", "body", arrow_stream(body=[b"a", None]), kind=ARROW),
    Bad("arrow time without zone", 400, "invalid_type", "born_time",
        arrow_stream(body=[b"a"], born_time=pa.array([1], pa.timestamp("us"))), kind=ARROW),
    Bad("arrow time out of range", 422, "invalid_value", "born_time",
        arrow_stream(body=[b"a"], born_time=pa.array([2**62], pa.timestamp("us", "UTC"))), kind=ARROW),
    Bad("arrow time overflows", 422, "invalid_value", "born_time",
        arrow_stream(body=[b"a"], born_time=pa.array([2**62], pa.timestamp("s", "UTC"))), kind=ARROW),
    Bad("send_06 arrow message too large", 413, "message_too_large", "body",
        arrow_stream(body=[b"a", b"x" * (MESSAGE_BYTES_MAX + 1)]), kind=ARROW, limit=MESSAGE_BYTES_MAX,
        extra={"row": 1}),
    Bad("arrow key too long", 422, "invalid_value", "key", arrow_stream(body=[b"a"], key=[LONG_KEY]), kind=ARROW,
        limit=KEY_BYTES_MAX),
    Bad("arrow too many headers", 422, "invalid_value", "headers",
        arrow_stream(body=[b"a"], headers=pa.array([[(f"h{i}", "") for i in range(HEADERS_MAX + 1)]], MAP)),
        kind=ARROW, limit=HEADERS_MAX),
    Bad("arrow header null", 400, "invalid_type", "headers",
        arrow_stream(body=[b"a"], headers=pa.array([[("h", None)]], MAP)), kind=ARROW),
    Bad("arrow header too long", 422, "invalid_value", "headers",
        arrow_stream(body=[b"a"], headers=pa.array([[("h", "x" * HEADER_BYTES_MAX)]], MAP)), kind=ARROW,
        limit=HEADER_BYTES_MAX),
    Bad("arrow deliver_time too far ahead", 422, "invalid_value", "deliver_time",
        arrow_stream(body=[b"a", b"b"], deliver_time=pa.array([None, FAR_US], pa.timestamp("us", "UTC"))), kind=ARROW,
        extra={"row": 1}),
    Bad("arrow deliver_time overflows", 422, "invalid_value", "deliver_time",
        arrow_stream(body=[b"a"], deliver_time=pa.array([2**62], pa.timestamp("s", "UTC"))), kind=ARROW),
    Bad("arrow delay_ms too long", 422, "invalid_value", "delay_ms",
        arrow_stream(body=[b"a", b"b", b"c"], delay_ms=[5, DELAY_MS_MAX + 1, None]), kind=ARROW, extra={"row": 1}),
    Bad("arrow delay_ms negative", 422, "invalid_value", "delay_ms", arrow_stream(body=[b"a"], delay_ms=[-1]),
        kind=ARROW),
    Bad("arrow delay_ms beyond 63 bits", 422, "invalid_value", "delay_ms",
        arrow_stream(body=[b"a"], delay_ms=pa.array([2**64 - 1], pa.uint64())), kind=ARROW),
    Bad("arrow deliver_time and delay_ms", 422, "invalid_value", "delay_ms",
        arrow_stream(body=[b"a", b"b"], delay_ms=[None, 1],
            deliver_time=pa.array([None, DAY], pa.timestamp("us", "UTC"))), kind=ARROW, extra={"row": 1}),
    Bad("arrow unknown partition", 404, "partition_not_found", "messages[1].partition",
        arrow_stream(body=[b"a", b"b"], partition=["orders@broker-a", "orders@nowhere"]), kind=ARROW),
    Bad("arrow too many messages", 413, "too_many_messages", "body",
        arrow_stream(body=pa.repeat(pa.scalar(b""), ARROW_MESSAGES_MAX + 1)), kind=ARROW, limit=ARROW_MESSAGES_MAX),
]  # fmt: skip


@pytest.fixture(scope="module")
def stored(api: Api) -> Iterator[Api]:
    """The service with a topic that must look the same after every refusal."""
    api.put_topic(TOPIC, partitions=2)
    assert api.send(TOPIC, {"body": "before", "partition": "orders@broker-a"}).status == 200
    yield api


@pytest.mark.parametrize("bad", REQUESTS, ids=lambda bad: bad.name)
def test_a_bad_produce_request_is_refused_by_name_and_stores_nothing(stored: Api, bad: Bad) -> None:
    topics = stored.call("GET", "/v1/topics").json
    reply = stored.call(
        "POST", f"/v1/topics/{_quoted(bad.topic)}/messages{bad.query}", _bytes(bad.body), bad.kind, **bad.headers
    )
    _assert_problem(reply, bad.status, bad.code, bad.field, bad.limit)
    assert reply.json.items() >= bad.extra.items()
    assert stored.stored(TOPIC) == {"orders@broker-a": 1, "orders@broker-b": 0}
    assert stored.call("GET", "/v1/topics").json == topics, "a refused request must not make a topic"


def _quoted(topic: str) -> str:
    return "".join(c if c.isalnum() else "".join(f"%{b:02X}" for b in c.encode()) for c in topic)


def _bytes(body: Any) -> bytes:
    return body if isinstance(body, bytes) else json.dumps(body).encode()


def _assert_problem(reply: Any, status: int, code: str, field: str | None, limit: int | None) -> None:
    assert reply.headers["content-type"] == PROBLEM
    problem = reply.json
    assert (problem["status"], problem["code"], problem.get("field")) == (status, code, field), problem
    assert reply.status == status
    assert problem["type"] == f"urn:deltamq:problem:{code}" and problem["title"] and problem["detail"]
    if limit is not None:
        assert problem["limit"] == limit
        assert str(limit) in problem["detail"]


# Fetch --------------------------------------------------------------------------------------------------------

FETCHES = [
    ("negative offset", "?offset=-1", 422, "invalid_value", "offset", 0),
    ("offset too large for a long", f"?offset={OFFSET_MAX + 1}", 422, "invalid_value", "offset", OFFSET_MAX),
    ("offset with many digits", f"?offset={'9' * 40}", 400, "invalid_type", "offset", None),
    ("offset no number", "?offset=first", 400, "invalid_type", "offset", None),
    ("offset in other digits", "?offset=%D9%A3", 400, "invalid_type", "offset", None),
    ("no messages", "?max_messages=0", 422, "invalid_value", "max_messages", 1),
    ("too many", f"?max_messages={FETCH_MESSAGES_MAX + 1}", 422, "invalid_value", "max_messages", FETCH_MESSAGES_MAX),
    ("too many bytes", f"?max_bytes={FETCH_BYTES_MAX + 1}", 422, "invalid_value", "max_bytes", FETCH_BYTES_MAX),
    ("too long a wait", f"?wait_ms={WAIT_MS_MAX + 1}", 422, "invalid_value", "wait_ms", WAIT_MS_MAX),
    ("negative wait", "?wait_ms=-5", 422, "invalid_value", "wait_ms", 0),
    ("empty tag filter", "?tags=", 422, "invalid_tag_filter", "tags", None),
    ("tag filter with a gap", "?tags=a||||b", 422, "invalid_tag_filter", "tags", None),
    ("tag filter with one bar", "?tags=a|b", 422, "invalid_tag_filter", "tags", None),
    ("tag filter with a star inside", "?tags=a||*", 422, "invalid_tag_filter", "tags", None),
    ("too many tags", "?tags=" + "||".join("t" * 65), 422, "invalid_tag_filter", "tags", TAG_FILTER_TAGS_MAX),
    ("tag too long", "?tags=" + "t" * 128, 422, "invalid_tag_filter", "tags", TAG_BYTES_MAX),
    ("unknown parameter", "?max_message=1", 400, "unknown_parameter", "max_message", None),
    ("repeated parameter", "?offset=1&offset=2", 400, "invalid_request", "offset", None),
    ("parameter not UTF-8", "?tags=%FF", 400, "invalid_request", "tags", None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("query", "status", "code", "field", "limit"), [f[1:] for f in FETCHES], ids=[f[0] for f in FETCHES]
)
def test_a_bad_fetch_is_refused_by_name(
    stored: Api, query: str, status: int, code: str, field: str, limit: int | None
) -> None:
    _assert_problem(stored.fetch(TOPIC, "orders@broker-a", query), status, code, field, limit)


@pytest.mark.parametrize("partition", ["orders@broker-z", "orders", "@", "orders#1@broker-a", "../orders@broker-a"])
def test_a_fetch_of_an_unknown_partition_is_not_found(stored: Api, partition: str) -> None:
    _assert_problem(stored.fetch(TOPIC, partition), 404, "partition_not_found", "partition", None)


def test_a_fetch_of_an_unknown_topic_is_not_found_and_makes_none(stored: Api) -> None:
    _assert_problem(stored.fetch("nothing", "nothing@broker-a"), 404, "topic_not_found", "topic", None)
    assert "nothing" not in stored.call("GET", "/v1/topics").json["topics"]


# Topics and paths ---------------------------------------------------------------------------------------------

TOPICS = [
    ("unknown field", {"partitons": 4}, 400, "unknown_field", "partitons"),
    ("partitions no number", {"partitions": "4"}, 400, "invalid_type", "partitions"),
    ("partitions a truth value", {"partitions": True}, 400, "invalid_type", "partitions"),
    ("partitions a fraction", {"partitions": 1.5}, 400, "invalid_type", "partitions"),
    ("no partitions", {"partitions": 0}, 422, "partitions_out_of_range", "partitions"),
    ("too many partitions", {"partitions": 1025}, 422, "partitions_out_of_range", "partitions"),
    ("partitions beyond 64 bits", {"partitions": 2**70}, 422, "partitions_out_of_range", "partitions"),
    ("strategy no text", {"order_strategy": 1}, 400, "invalid_type", "order_strategy"),
    ("unknown strategy", {"order_strategy": "loose"}, 422, "invalid_value", "order_strategy"),
    ("empty strategy", {"order_strategy": ""}, 422, "invalid_value", "order_strategy"),
    ("strategy like a refusal", {"order_strategy": "` - at `$.flush` >= 5"}, 422, "invalid_value", "order_strategy"),
    ("retention a list", {"retention_ms": [1]}, 400, "invalid_type", "retention_ms"),
    ("no retention", {"retention_ms": 0}, 422, "invalid_value", "retention_ms"),
    ("short retention", {"retention_ms": RETENTION_MS_MIN - 1}, 422, "invalid_value", "retention_ms"),
    ("long retention", {"retention_ms": RETENTION_MS_MAX + 1}, 422, "invalid_value", "retention_ms"),
    ("retention beyond 64 bits", {"retention_ms": 2**70}, 422, "invalid_value", "retention_ms"),
    ("type an object", {"message_type": {}}, 400, "invalid_type", "message_type"),
    ("empty type", {"message_type": ""}, 422, "invalid_value", "message_type"),
    ("long type", {"message_type": "x" * (MESSAGE_TYPE_LENGTH_MAX + 1)}, 422, "invalid_value", "message_type"),
    ("type of two lines", {"message_type": "a\r\nlevel=error"}, 422, "invalid_value", "message_type"),
    ("flush a truth value", {"flush": False}, 400, "invalid_type", "flush"),
    ("unknown flush", {"flush": "SYNC"}, 422, "invalid_value", "flush"),
    ("static no truth value", {"static": "yes"}, 400, "invalid_type", "static"),
    ("static a number", {"static": 0}, 400, "invalid_type", "static"),
    ("queues of a plain topic", {"total_queues": 4}, 422, "invalid_value", "total_queues"),
    ("brokers of a plain topic", {"brokers": ["broker-a"]}, 422, "invalid_value", "brokers"),
    ("static without queues", {"static": True}, 422, "invalid_value", "total_queues"),
    ("static with partitions", {"static": True, "partitions": 2}, 422, "invalid_value", "partitions"),
    ("no queues", {"static": True, "total_queues": 0}, 422, "queues_out_of_range", "total_queues"),
    ("too many queues", {"static": True, "total_queues": 1_025}, 422, "queues_out_of_range", "total_queues"),
    ("queues no number", {"static": True, "total_queues": "4"}, 400, "invalid_type", "total_queues"),
    ("no brokers", {"static": True, "total_queues": 4, "brokers": []}, 422, "invalid_value", "brokers"),
    ("an unknown broker", {"static": True, "total_queues": 4, "brokers": ["z"]}, 422, "unknown_broker", "brokers"),
    ("no object", [1], 400, "invalid_type", "body"),
]


@pytest.mark.parametrize(("body", "status", "code", "field"), [t[1:] for t in TOPICS], ids=[t[0] for t in TOPICS])
def test_a_bad_topic_request_is_refused_by_name(stored: Api, body: object, status: int, code: str, field: str) -> None:
    _assert_problem(stored.call("PUT", "/v1/topics/fresh", body), status, code, field, None)
    assert "fresh" not in stored.call("GET", "/v1/topics").json["topics"]


def test_a_topic_request_that_is_no_json_is_refused(stored: Api) -> None:
    _assert_problem(stored.call("PUT", "/v1/topics/fresh", b"{", JSON), 400, "invalid_json", "body", None)
    _assert_problem(
        stored.call("PUT", "/v1/topics/fresh", b"a=1", "text/plain"),
        415,
        "unsupported_media_type",
        "content-type",
        None,
    )
    deep = b"[" * 100_000
    _assert_problem(stored.call("PUT", "/v1/topics/fresh", deep, JSON), 400, "invalid_json", "body", None)


@pytest.mark.parametrize("time", ["", "?time=", "?time=yesterday", "?time=2024-01-01", "?time=2024-13-01T00:00:00Z"])
def test_offsets_by_a_bad_time_are_refused(stored: Api, time: str) -> None:
    reply = stored.call("GET", f"/v1/topics/{TOPIC}/offsets{time}")
    assert (reply.status, reply.json["field"]) == (400, "time")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", f"/v1/topics/{TOPIC}/messages", "POST"),
        ("DELETE", f"/v1/topics/{TOPIC}/partitions/orders%40broker-a/messages", "GET"),
        ("PATCH", f"/v1/topics/{TOPIC}", "DELETE, GET, PUT"),
        ("POST", "/healthz", "GET"),
    ],
)
def test_another_method_is_refused_with_those_that_are_taken(
    stored: Api, method: str, path: str, allow: str | None
) -> None:
    reply = stored.call(method, path)
    _assert_problem(reply, 405, "method_not_allowed", "method", None)
    assert allow is None or reply.headers["allow"] == allow


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "/v1/topics/packed"),
        ("PUT", "/v1/groups/packed"),
        ("POST", f"/v1/groups/packed/topics/{TOPIC}/pop"),
        ("POST", "/v1/groups/packed/ack"),
    ],
)
def test_a_body_that_is_encoded_is_refused_by_every_call(stored: Api, method: str, path: str) -> None:
    refused = stored.call(method, path, {}, Content_Encoding="gzip")
    _assert_problem(refused, 415, "unsupported_encoding", "content-encoding", None)
    assert stored.call("GET", "/v1/topics/packed").status == stored.call("GET", "/v1/groups/packed").status == 404
    assert stored.call("PUT", f"/v1/topics/{TOPIC}", {}, Content_Encoding="Identity").status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/nothing",
        "/v1",
        "/v1/topics/a/b",
        "/v1/topics/a/partitions/b/messages/c",
        "/v1/topics/",
        "/v1/topics/orders/",
        "/v1/groups/",
    ],
)
def test_an_unknown_path_is_not_found(stored: Api, path: str) -> None:
    _assert_problem(stored.call("GET", path), 404, "path_not_found", None, None)


def test_produce_to_an_unknown_topic_is_refused_when_topics_are_made_on_purpose(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with running(config_for(tmp_path_factory.mktemp("warehouse"), auto_create_topics=False)) as strict:
        _assert_problem(strict.send("nothing", "a"), 404, "topic_not_found", "topic", None)
        assert strict.call("GET", "/v1/topics").json == {"topics": []}


# Damaged Arrow ------------------------------------------------------------------------------------------------

STREAMS = [
    arrow_stream(
        body=[b"abc", b"defgh", b""],
        key=["k", None, "l"],
        headers=pa.array([[("a", "b")], None, []], MAP),
        born_time=pa.array([DAY] * 3, pa.timestamp("us", "UTC")),
        partition=["orders@broker-a", None, None],
    ),
    arrow_stream(body=pa.array([b"x" * 50] * 200, pa.large_binary()), tag=[f"t{i}" for i in range(200)]),
]
ODD = [b"\xff\xff\xff\x7f", b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x01\0\0\0", b"\0\0\0\x40"]


def _damaged(random: Random) -> bytes:
    """A stream with a few bytes or numbers changed, or some left out."""
    stream = bytearray(random.choice(STREAMS))
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(stream))
        how = random.random()
        if how < 0.6:
            stream[at] = random.choice((0, 1, 128, 255, random.randrange(256)))
        elif how < 0.85:
            stream[at : at + 4] = random.choice(ODD)
        else:
            del stream[at : at + random.randint(1, 16)]
    return bytes(stream)


@pytest.mark.parametrize(
    "streams", [2_000, pytest.param(200_000, marks=[pytest.mark.long, pytest.mark.timeout(3_600)])]
)
def test_f10_a_damaged_arrow_stream_is_refused_or_read_but_breaks_nothing(streams: int) -> None:
    """Every array of a stream that is taken can be read and routed: no offset points outside."""
    random = Random(7)
    route = new_route(TOPIC, 4, ["broker-a", "broker-b"])
    taken = 0
    for _ in range(streams):
        try:
            decoded = decode_arrow(_damaged(random), 0)
            assert isinstance(decoded.rows, ArrowRows)
            decoded.rows.batch.to_pydict()
            route_messages(TOPIC, decoded.rows, decoded.partitions, route, 0)
            taken += 1
        except Refused as error:
            assert error.code and error.field
    assert 0 < taken < streams


def test_a_first_message_that_is_no_schema_is_refused() -> None:
    batch = pa.RecordBatch.from_pydict({"body": [b"a"]}).serialize().to_pybytes()
    with pytest.raises(Refused) as refused:
        decode_arrow(batch + STREAMS[0][-8:], 0)
    assert refused.value.code == "invalid_arrow"
