"""The compiled decoders and the plain one give the same values, faults and rescued parts for the same bodies."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Sequence
from datetime import date, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamq.mq.errors import Unprocessable
from deltamq.mq.schemas.setting import Format
from tests.typed import bodies, both, codec, faults_of, record, same

#: A type as DDL, and texts of JSON that mostly fit it.
Kind = tuple[str, st.SearchStrategy[str]]


# JSON.

_integers = st.one_of(
    st.integers(-(2**65), 2**65).map(str),
    st.integers(-300, 300).map(str),
    st.sampled_from(["-0", "1.0", "1e2", "1.5"]),
    st.builds("{}e{}".format, st.integers(-200, 200), st.integers(-3, 20)),
)
_numbers = st.one_of(
    _integers,
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.floats(allow_nan=False, allow_infinity=False, width=32).map(repr),
    st.decimals(allow_nan=False, allow_infinity=False).map(str),
    st.from_regex(r"\A-?(0|[1-9][0-9]{0,20})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?\Z"),
)
_text = st.text() | st.sampled_from(["\ud800", "\udc00x", "\U0001f600", '"\\/\b\f\n\r\t', "\0"])
_strings = st.builds(lambda text, ascii_: json.dumps(text, ensure_ascii=ascii_), _text, st.booleans()) | st.just(
    r'"\u00e9\ud83d\ude00\ud83dx"'
)
_days = st.dates().map(str) | st.sampled_from(["2023-02-29", "0000-01-01", "2024-02-29", "2026-1-1", "20260101", ""])
_zones = st.sampled_from(["Z", "z", "+00:00", "-23:59", "+24:00", "+0100", "", "+14:00"])
_times = st.builds(
    "{}{}{:02}:{:02}:{:02}{}{}".format,
    _days,
    st.sampled_from(["T", "t", " ", "x"]),
    st.integers(0, 24),
    st.integers(0, 60),
    st.integers(0, 60),
    st.sampled_from(["", ".1", ".123456", ".1234567", ".1000000000", "."]),
    _zones,
)
_base64 = st.binary(max_size=9).map(lambda data: base64.b64encode(data).decode()) | st.text("Aa01+/=-_\n", max_size=9)
_simple: list[Kind] = [
    ("BOOLEAN", st.sampled_from(["true", "false"])),
    *((name, _integers) for name in ("TINYINT", "SMALLINT", "INT", "BIGINT")),
    *((name, _numbers) for name in ("FLOAT", "DOUBLE", "DECIMAL(5, 2)", "DECIMAL(38, 10)", "DECIMAL(19, 0)")),
    ("DECIMAL(7, 3)", _numbers.map(lambda number: f'"{number}"')),
    ("STRING", _strings),
    ("BINARY", _base64.map(json.dumps)),
    ("DATE", _days.map(json.dumps)),
    ("TIMESTAMP", _times.map(json.dumps)),
]
_junk = st.sampled_from(
    ["null", "1", '"x"', "[]", "{}", "[1", "tru", "NaN", "01", "1.", "-", '"a', "[1,]", '{"a":1,}', '"\\x"', "[[{}]]"]
)


def _or_junk(kind: Kind) -> Kind:
    name, texts = kind
    return name, st.integers(0, 19).flatmap(lambda n: _junk if n == 0 else st.just("null") if n == 1 else texts)


def _array(kind: Kind) -> Kind:
    return f"ARRAY<{kind[0]}>", st.lists(kind[1], max_size=3).map(lambda some: f"[{','.join(some)}]")


def _map(kind: Kind) -> Kind:
    pairs = st.lists(st.tuples(_strings | st.sampled_from(['"a"', '"b"']), kind[1]), max_size=3)
    return f"MAP<STRING, {kind[0]}>", pairs.map(_object)


def _object(pairs: Sequence[tuple[str, str]]) -> str:
    return "{" + ", ".join(f"{name} :{value}" for name, value in pairs) + "}"


def _struct(fields: Sequence[tuple[Kind, bool]], *, top: bool = False) -> Kind:
    names = [f"f{number}" for number in range(len(fields))]
    colon = "" if top else ":"
    ddl = ", ".join(
        f"{name}{colon} {kind[0]}{'' if nullable else ' NOT NULL'}"
        for name, (kind, nullable) in zip(names, fields, strict=True)
    )
    values = st.tuples(*(kind[1] for kind, _ in fields))

    def texts(data: tuple[Sequence[str], Sequence[int], int]) -> str:
        given, order, odd = data
        pairs = [(f'"{names[n]}"', given[n]) for n in order]
        if odd == 3:
            pairs = [(name.replace("f", r"\u0066"), value) for name, value in pairs]
        if odd == 0:
            pairs = pairs[1:]
        if odd == 1:
            pairs += [('"g"', "[1.5, {}]")]
        if odd == 2:
            pairs += pairs[:1]
        return _object(pairs)

    made = st.tuples(values, st.permutations(range(len(fields))), st.integers(0, 30)).map(texts)
    return (ddl if top else f"STRUCT<{ddl}>"), made


_kinds: st.SearchStrategy[Kind] = st.recursive(
    st.sampled_from(_simple).map(_or_junk),
    lambda inner: (
        inner.map(_array).map(_or_junk)
        | inner.map(_map).map(_or_junk)
        | st.lists(st.tuples(inner, st.booleans()), min_size=1, max_size=3).map(_struct).map(_or_junk)
    ),
    max_leaves=5,
)
_tables = st.lists(st.tuples(_kinds, st.sampled_from([True, True, True, False])), min_size=1, max_size=4)


@given(st.data())
def test_type_10_json_of_any_schema_is_decoded_alike(data: st.DataObject) -> None:
    ddl, texts = _struct(data.draw(_tables), top=True)
    some = data.draw(st.lists(texts, min_size=1, max_size=6))
    for on_invalid in ("quarantine", "rescue"):
        same(both("columns", ddl, on_invalid=on_invalid), some, faults=False)


@given(st.sampled_from(_simple), st.data())
def test_type_10_one_value_is_decoded_or_refused_alike(kind: Kind, data: st.DataObject) -> None:
    value = data.draw(kind[1] | _junk)
    same(both("columns", f"v {kind[0]}"), [f'{{"v":{value}}}', f' {{ "v" : {value} }} '])
    same(both("columns", f"v STRUCT<w: ARRAY<{kind[0]}>> NOT NULL"), [f'{{"v":{{"w":[{value}, null]}}}}'])
    same(both("columns", f"v MAP<STRING, {kind[0]}>"), [f'{{"v":{{"w":{value}}}}}'])


@given(st.data())
def test_type_10_changed_bytes_of_json_are_decoded_alike(data: st.DataObject) -> None:
    ddl, texts = _struct(data.draw(_tables), top=True)
    body = bytearray(data.draw(texts).encode("utf-8", "surrogatepass"))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body)))
        body[at : at + data.draw(st.integers(0, 2))] = data.draw(
            st.binary(max_size=2) | st.sampled_from([b'"', b"\\", b",", b"}", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"])
        )
    same(both("columns", ddl), [bytes(body)], faults=False)


_any = st.recursive(
    _numbers | _strings | _junk | st.sampled_from(["true", "false", "null", "0.00000012", "0.000000", "-0"]),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda some: f"[ {' , '.join(some)}]")
        | st.lists(st.tuples(_strings | st.sampled_from(['"a"', '"b"']), inner), max_size=3).map(_object)
    ),
    max_leaves=6,
)


@given(st.lists(_any, min_size=1, max_size=3))
def test_type_13_json_without_a_type_is_the_same_text_in_both_ways(values: Sequence[str]) -> None:
    schema = '{"type":"object","properties":{"v":{},"w":{"type":"array"}}}'
    some = [f'{{"v":{value},"w":[{value}, 1.50]}}' for value in values]
    same(both("json", schema), some)
    same(both("json", schema, on_invalid="rescue"), some)


# Avro.

_NAMED = st.integers(0, 10**9)
_avro_simple = st.sampled_from(
    [
        *("boolean", "int", "long", "float", "double", "bytes", "string"),
        {"type": "int", "logicalType": "date"},
        {"type": "int", "logicalType": "time-millis"},
        {"type": "long", "logicalType": "time-micros"},
        {"type": "long", "logicalType": "timestamp-millis"},
        {"type": "long", "logicalType": "timestamp-micros"},
        {"type": "long", "logicalType": "local-timestamp-millis"},
        {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2},
        {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 38},
        {"type": "string", "logicalType": "uuid"},
    ]
) | _NAMED.flatmap(
    lambda n: st.sampled_from(
        [
            {"type": "fixed", "name": f"f{n}", "size": 3},
            {"type": "fixed", "name": f"d{n}", "size": 12, "logicalType": "duration"},
            {"type": "fixed", "name": f"x{n}", "size": 4, "logicalType": "decimal", "precision": 9},
            {"type": "enum", "name": f"e{n}", "symbols": ["A", "B", "LONG"]},
        ]
    )
)


def _avro_record(types: Sequence[Any], number: int) -> Any:
    fields = [{"name": f"f{at}", "type": kind} for at, kind in enumerate(types)]
    return {"type": "record", "name": f"r{number}", "fields": fields}


def _nullable(kind: Any, first: bool) -> Any:
    return kind if isinstance(kind, list) else ["null", kind] if first else [kind, "null"]


_avro_kinds = st.recursive(
    _avro_simple,
    lambda inner: (
        inner.map(lambda kind: {"type": "array", "items": kind})
        | inner.map(lambda kind: {"type": "map", "values": kind})
        | st.builds(_nullable, inner, st.booleans())
        | st.sampled_from([["null", "string", "long"], ["int", "bytes"], ["string"]])
        | st.builds(_avro_record, st.lists(inner, min_size=1, max_size=3), _NAMED)
    ),
    max_leaves=6,
)
_varints = st.sampled_from([0, 1, -1, 2, 5, 2**31, -(2**31), 2**62, 253402300799999, 253402300800000000, 86_400_000])


def _zigzag(value: int) -> bytes:
    value = value << 1 ^ value >> 63
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))


def _some_avro(kind: Any, draw: Any) -> bytes:
    """Bytes of a type, written apart from the codec; some do not fit."""
    if isinstance(kind, list):
        number = draw(st.integers(0, len(kind) - 1))
        return _zigzag(number) + _some_avro(kind[number], draw)
    parts = kind if isinstance(kind, dict) else {}
    name = parts.get("type", kind)
    if name == "null":
        return b""
    if name == "record":
        return b"".join(_some_avro(field["type"], draw) for field in parts["fields"])
    if name in ("array", "map"):
        blocks = []
        for count in draw(st.lists(st.integers(1, 2), max_size=2)):
            items = b"".join(
                (_short(draw(st.sampled_from([b"k", b"l", b"\xff"]))) if name == "map" else b"")
                + _some_avro(parts.get("items", parts.get("values")), draw)
                for _ in range(count)
            )
            blocks.append((_zigzag(-count) + _zigzag(len(items)) if draw(st.booleans()) else _zigzag(count)) + items)
        return b"".join(blocks) + b"\0"
    if name == "fixed":
        return bytes(draw(st.binary(min_size=parts["size"], max_size=parts["size"])))
    if name == "enum":
        return _zigzag(draw(st.integers(-1, 3)))
    if name == "boolean":
        return bytes([draw(st.integers(0, 1) | st.integers(0, 255))])
    if name in ("int", "long"):
        return _zigzag(draw(_varints | st.integers(-(2**63), 2**63 - 1) | st.integers(-100, 100)))
    if name in ("float", "double"):
        return struct.pack("<f" if name == "float" else "<d", draw(st.floats(width=32)))
    if name == "string":
        return _short(draw(st.text().map(str.encode) | st.sampled_from([b"\xff", b"\xed\xa0\x80", b"\xc3"])))
    return _short(draw(st.binary(max_size=18)))


def _short(data: bytes) -> bytes:
    return _zigzag(len(data)) + data


@given(st.lists(_avro_kinds, min_size=1, max_size=4), st.data())
def test_type_14_avro_of_any_schema_is_decoded_alike(types: Sequence[Any], data: st.DataObject) -> None:
    schema = _avro_record(types, 0)
    try:
        codec("avro", json.dumps(schema))
    except Unprocessable as refused:
        assert refused.code == "invalid_schema"
        return
    some = [_some_avro(schema, data.draw) for _ in range(data.draw(st.integers(1, 4)))]
    for body in list(some):
        at = data.draw(st.integers(0, len(body)))
        some += [body[:at], body[:at] + data.draw(st.binary(max_size=3)) + body[at:]]
    for on_invalid in ("quarantine", "rescue"):
        same(both("avro", json.dumps(schema), on_invalid=on_invalid), some)


@given(st.lists(_avro_kinds, min_size=1, max_size=4), st.data())
def test_type_15_what_avro_decodes_is_encoded_to_what_decodes_to_it(types: Sequence[Any], data: st.DataObject) -> None:
    schema = _avro_record(types, 0)
    try:
        made = codec("avro", json.dumps(schema))
    except Unprocessable:
        return
    values = made.decode(bodies(*(_some_avro(schema, data.draw) for _ in range(3)))).value
    assert str(made.decode(made.encode(values)).value) == str(values)


def test_type_10_bodies_of_several_versions_and_headers_are_decoded_alike() -> None:
    texts = record(("a", "int")), record(("a", "int"), ("b", ["null", "string"]))
    pair = both("avro", *texts, wire="confluent")
    first, second = (b"\0\0\0\0" + bytes([10 + number]) for number in (1, 2))
    columns = same(
        pair,
        [
            None,
            second + b"\x02\x02\x02x",
            first + b"\x04",
            b"",
            b"\0",
            b"\x01\0\0\0\x0b\x02",
            first,
            b"\0\xff\0\0\x0b\x02",
            second + b"\x06\0",
            b"\0\0\0\0\x63\x02",
        ],
    )
    assert [row and (row["a"], row["b"]) for row in columns.value.to_pylist()] == [
        None,
        (1, "x"),
        (2, None),
        *[None] * 5,
        (3, None),
        None,
    ]
    assert [fault and fault[::3] for fault in faults_of(columns)] == [
        *[None] * 4,
        ("truncated", None),
        ("unknown_schema", None),
        ("truncated", 11),
        ("unknown_schema", None),
        None,
        ("unknown_schema", 99),
    ]


def test_type_10_many_bodies_with_few_faults_are_decoded_alike() -> None:
    some = [json.dumps({"a": n, "b": [{"c": str(n)}] * (n % 3)}) for n in range(3_000)]
    for at in range(0, 3_000, 97):
        some[at] = some[at].replace("a", "A" if at % 2 else "a ")
    columns = same(both("columns", "a BIGINT NOT NULL, b ARRAY<STRUCT<c: STRING>>"), some)
    assert columns.invalid is not None and columns.invalid.null_count == 3_000 - 31


@pytest.mark.parametrize("form", ["columns", "avro"])
def test_type_17_a_body_cannot_take_more_memory_than_its_size_allows(form: Format) -> None:
    """Elements of a byte with a thousand columns each."""
    names = [f"c{n}" for n in range(900)]
    if form == "columns":
        text, body = (
            f"v ARRAY<STRUCT<{', '.join(f'{name}: INT' for name in names)}>>",
            b'{"v":[' + b"{}," * 9_999 + b"{}]}",
        )
    else:
        inner = {"type": "record", "name": "I", "fields": [{"name": name, "type": "int"} for name in names]}
        text = record(("v", {"type": "array", "items": ["null", inner]}))
        body = _zigzag(10_000) + b"\0" * 10_001
    codecs = both(form, text)
    before = pa.total_allocated_bytes()  # other tests of this process hold memory, too
    columns = same(codecs, [body])
    assert [fault and fault[:2] for fault in faults_of(columns)] == [("out_of_range", "v")]
    assert pa.total_allocated_bytes() - before < 2**20, "nothing of the body is kept"


def test_type_13_days_are_those_of_the_calendar() -> None:
    day, some = date(1, 1, 1), []
    while day < date(9990, 1, 1):
        some.append(day)
        day += timedelta(days=331)
    columns = same(both("columns", "d DATE"), [f'{{"d":"{day}"}}' for day in some])
    assert [row["d"] for row in columns.value.to_pylist()] == some


@pytest.mark.parametrize("ends", [None, pa.py_buffer(b"")])
def test_type_10_no_bodies_are_no_rows(ends: pa.Buffer | None) -> None:
    """Arrow's streams may leave out the buffers of empty columns."""
    column = pa.Array.from_buffers(pa.binary(), 0, [None, ends, pa.py_buffer(b"")])
    for made in both("columns", "a BIGINT"):
        columns = made.decode(column)
        assert len(columns.value) == 0 and columns.value.type == made.value_type
