"""Bodies that are small and would cost much: deep, huge, unfolding, or made for patterns (SPEC SEC-32, SEC-35)."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from urllib.parse import quote

import pyarrow as pa
import pytest

from deltamq.api.wire.arrow_body import decode_arrow
from deltamq.api.wire.rows import ArrowRows
from deltamq.mq.errors import Refused
from deltamq.mq.filters.condition import matches_like, parse_like
from deltamq.mq.limits import FILTER_DEPTH_MAX, MIB
from tests.api.running import ARROW, JSON, Api, config_for, running


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(config_for(tmp_path_factory.mktemp("warehouse"))) as found:
        found.put_topic("orders", partitions=1)
        yield found


DEEP = 200_000
JSONS = {
    "lists": b"[" * DEEP,
    "objects": b'{"messages":' * (DEEP // 10),
    "in a message": b'{"messages":[{"body":' + b"[" * DEEP,
    "in headers": b'{"messages":[{"body":"x","headers":{"a":' + b'{"a":' * (DEEP // 10),
    "unknown and deep": b'{"messages":[{"body":"x"}],"x":' + b"[" * 100 + b"]" * 100 + b"}",
    "a float beyond all": b'{"messages":[{"body":"x","delay_ms":1e999999}]}',
    "a million digits": b'{"messages":[{"body":"x","delay_ms":' + b"9" * 1_000_000 + b"}]}",
    "an exponent of zeros": b'{"messages":[{"body":"x","delay_ms":1e' + b"0" * 100_000 + b"9999}]}",
    "not a number": b'{"messages":[{"body":"x","delay_ms":NaN}]}',
    "half a surrogate": b'{"messages":[{"body":"\\ud800"}]}',
    "no utf-8": b'{"messages":[{"body":"\xff\xfe"}]}',
    "nothing": b"",
    "a BOM": b'\xef\xbb\xbf{"messages":[{"body":"x"}]}',
}


@pytest.mark.parametrize("body", JSONS.values(), ids=JSONS.keys())
def test_sec_32_json_that_is_deep_or_huge_is_refused_by_every_call(api: Api, body: bytes) -> None:
    for method, path in (
        ("POST", "/v1/topics/orders/messages"),
        ("PUT", "/v1/topics/new"),
        ("PUT", "/v1/groups/new"),
        ("POST", "/v1/groups/billing/ack"),
        ("POST", "/v1/groups/billing/topics/orders/pop"),
    ):
        if body or method == "POST":
            reply = api.call(method, path, body, JSON)
            assert 400 <= reply.status < 500 or (not body and path.endswith("pop")), (path, reply)
    assert api.stored("orders") == {"orders@broker-a": 0}


def _stream(schema: pa.Schema, *arrays: pa.Array, **options: object) -> bytes:
    sink = pa.BufferOutputStream()
    batch = pa.RecordBatch.from_arrays(list(arrays), schema=schema)
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def _arrows() -> Iterator[tuple[str, bytes]]:
    zeros = pa.array([b"\0" * MIB] * 32, pa.binary())
    for codec in ("zstd", "lz4"):
        yield f"compressed with {codec}", _stream(pa.schema([("body", pa.binary())]), zeros, compression=codec)
    index = pa.array([0] * 100_000, pa.int8())
    words = pa.DictionaryArray.from_arrays(index, pa.array(["x" * 1_000]))
    yield "a dictionary that unfolds", _stream(pa.schema([("body", words.type)]), words)
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([1_000_000_000], pa.int32()), pa.array([b"x" * 100]))
    yield "runs that unfold", _stream(pa.schema([("body", runs.type)]), runs)
    empty = pa.array([b""] * 2_000_000, pa.binary(0))
    yield "rows without bytes", _stream(pa.schema([("body", pa.binary(0))]), empty)
    views = pa.array([b"x" * 100] * 3, pa.binary_view())
    yield "views into one buffer", _stream(pa.schema([("body", views.type)]), views)
    deep = pa.array([b"x"], pa.binary())
    kind: pa.DataType = pa.binary()
    for _ in range(60):
        kind, deep = pa.list_(kind), pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), deep)
    yield "a deep type", _stream(pa.schema([("body", kind)]), deep)
    names = [f"c{number}" for number in range(20_000)]
    yield "very many columns", pa.schema([(name, pa.null()) for name in names]).serialize().to_pybytes()


@pytest.mark.parametrize(("name", "body"), list(_arrows()), ids=lambda one: one if isinstance(one, str) else "")
def test_sec_32_arrow_that_unfolds_is_refused(api: Api, name: str, body: bytes) -> None:
    before = pa.total_allocated_bytes()
    with pytest.raises(Refused):
        decode_arrow(body, 0)
    assert pa.total_allocated_bytes() - before < 64 * MIB
    reply = api.produce("orders", body, ARROW)
    assert 400 <= reply.status < 500, reply
    assert api.stored("orders") == {"orders@broker-a": 0}


_TIMES = [1_000_000, 2_000_000, 3_000_000, 4_000_000]


@pytest.mark.parametrize(
    ("name", "column", "bytes_of_numbers"),
    [
        ("body", pa.array([b"a", b"b", b"c", b"d"], pa.binary()), 20),
        ("body", pa.array(["a", "b", "c", "d"], pa.string()), 20),
        ("key", pa.array(["k1", "k2", "k3", "k4"], pa.string()), 20),
        ("born_time", pa.array(_TIMES, pa.timestamp("us", "UTC")), 32),
        ("born_time", pa.array(_TIMES, pa.timestamp("us", "Europe/Berlin")), 32),
    ],
    ids=["body", "body of text", "key", "born_time", "born_time elsewhere"],
)
def test_sec_32_a_buffer_that_ends_in_a_part_of_a_number_stops_no_reader(
    api: Api, topic: str, name: str, column: pa.Array, bytes_of_numbers: int
) -> None:
    wanted = {name: column} if name == "body" else {name: column, "body": pa.array([b"a", b"b", b"c", b"d"])}
    schema = pa.schema([(one, given.type) for one, given in wanted.items()])
    body = bytearray(_stream(schema, *wanted.values()))
    # In the batch's metadata a buffer is its place and its length, and that of the first column's numbers comes first.
    body[body.index(struct.pack("<qq", 0, bytes_of_numbers)) + 8] += 1
    decoded = decode_arrow(body, 0)
    assert isinstance(decoded.rows, ArrowRows)
    stored = decoded.rows.batch.column(name)
    assert stored.equals(column.cast(stored.type))
    api.put_topic(topic, partitions=1)
    assert api.produce(topic, bytes(body), ARROW).status == 200
    assert api.bodies_of(topic, f"{topic}@broker-a") == ["a", "b", "c", "d"]


def test_sec_32_lengths_beyond_the_body_are_refused_whichever_they_are() -> None:
    body = _stream(pa.schema([("body", pa.binary())]), pa.array([b"x"] * 3, pa.binary()))
    refused = 0
    for at in range(0, len(body) - 8, 4):
        for value in (b"\xff\xff\xff\x7f", b"\x00\x00\x00\x40", b"\xff\xff\xff\xff"):
            try:
                decoded = decode_arrow(body[:at] + value + body[at + 4 :], 0)
            except Refused:
                refused += 1
            else:
                assert decoded.rows.count <= 3
    assert refused > 50


def test_sec_32_handles_are_bounded_in_length_and_number(api: Api) -> None:
    for handles in (["x" * 2_049], ["x"] * 4_097, ["x" * MIB], [""], ["\0"], ["é" * 2_048]):
        for call in ("ack", "nack", "dead", "invisible"):
            body: dict[str, object] = {"handles": handles, "reason": "x"}
            if call == "invisible":
                body = {"handle": handles[0], "invisible_ms": 0}
            reply = api.call("POST", f"/v1/groups/billing/{call}", body)
            failed = reply.json.get("failed", []) if reply.status == 200 else []
            assert 400 <= reply.status < 500 or len(failed) == len(handles), (call, reply)


@pytest.mark.parametrize("pattern", ["%a" * 1_000 + "b", "%" * 2_000 + "b", "_%" * 1_000 + "b", "%a_" * 600 + "b"])
def test_sec_35_patterns_are_matched_in_one_pass_whatever_they_say(pattern: str) -> None:
    parsed = parse_like(pattern, None)
    assert parsed is not None
    assert not matches_like("a" * 100_000, parsed)


def test_sec_35_a_filter_is_bounded_in_length_depth_and_terms(api: Api) -> None:
    path = api.messages_path("orders", "orders@broker-a")
    for condition in (
        "(" * (FILTER_DEPTH_MAX + 1) + "a = 1" + ")" * (FILTER_DEPTH_MAX + 1),
        "NOT " * 1_000 + "a",
        "a = " + "-" * 1_000 + "1",
        " OR ".join(["a = 1"] * 129),
        "a = '" + "x" * 5_000 + "'",
    ):
        reply = api.call("GET", f"{path}?filter={quote(condition)}")
        assert 400 <= reply.status < 500, (condition[:20], reply.json)
    assert json.loads(api.call("GET", f"{path}?filter=a%20LIKE%20%27%25%27").body)["messages"] == []
