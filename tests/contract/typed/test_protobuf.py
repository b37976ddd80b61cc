"""Bodies of Protobuf are decoded as Google's own parser reads them, compiled and row by row (SPEC TYPE-18)."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pytest
from google.protobuf import message_factory
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from deltamq.mq.errors import Unprocessable
from deltamq.mq.schemas.proto_file import built, message_of
from tests.typed import bodies, both, codec, faults_of, same

TEXT = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
enum Color { NONE = 0; RED = 1; BLUE = 7; }
message Inner { string name = 1; optional sint32 n = 2; repeated double d = 3; }
message Order {
  int32 i32 = 1; int64 i64 = 2; uint32 u32 = 3; uint64 u64 = 4; sint32 s32 = 5; sint64 s64 = 6;
  fixed32 f32 = 7; fixed64 f64 = 8; sfixed32 sf32 = 9; sfixed64 sf64 = 10;
  float f = 11; double d = 12; bool b = 13; string s = 14; bytes raw = 15; Color color = 16;
  optional int64 maybe = 17; Inner inner = 18; repeated Inner inners = 19; repeated int32 packed = 20;
  repeated sint64 unpacked = 21 [packed = false]; repeated string names = 22; repeated Color colors = 23;
  map<string, int64> counts = 24; map<int32, Inner> by_number = 25; map<string, string> texts = 26;
  oneof choice { string left = 27; Inner right = 28; int32 third = 29; }
  google.protobuf.Timestamp at = 30; google.protobuf.Int64Value wrapped = 31;
  repeated google.protobuf.StringValue wraps = 32; map<bool, bool> flags = 33;
}
"""
_MESSAGE = message_of(built(TEXT, {}), "Order")
_CLASS: Any = message_factory.GetMessageClass(_MESSAGE)

_text = st.text(max_size=4)
_double = st.floats()
_i32, _i64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
_u32, _u64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
_color = st.sampled_from([0, 1, 7, 5, -1])
_inner = st.fixed_dictionaries({}, optional={"name": _text, "n": _i32, "d": st.lists(_double, max_size=3)})
_fields: dict[str, st.SearchStrategy[Any]] = {
    "i32": _i32,
    "i64": _i64,
    "u32": _u32,
    "u64": _u64,
    "s32": _i32,
    "s64": _i64,
    "f32": _u32,
    "f64": _u64,
    "sf32": _i32,
    "sf64": _i64,
    "f": st.floats(width=32),
    "d": _double,
    "b": st.booleans(),
    "s": _text,
    "raw": st.binary(max_size=4),
    "color": _color,
    "maybe": _i64,
    "inner": _inner,
    "inners": st.lists(_inner, max_size=3),
    "packed": st.lists(_i32, max_size=3),
    "unpacked": st.lists(_i64, max_size=3),
    "names": st.lists(_text, max_size=3),
    "colors": st.lists(_color, max_size=3),
    "counts": st.dictionaries(_text, _i64, max_size=3),
    "by_number": st.dictionaries(_i32, _inner, max_size=2),
    "texts": st.dictionaries(_text, _text, max_size=2),
    "at": st.fixed_dictionaries(
        {"seconds": st.integers(-62135596800, 253402300799), "nanos": st.integers(0, 999_999).map(lambda n: n * 1_000)}
    ),
    "wrapped": st.fixed_dictionaries({"value": _i64}),
    "wraps": st.lists(st.fixed_dictionaries({"value": _text}), max_size=2),
    "flags": st.dictionaries(st.booleans(), st.booleans(), max_size=2),
}
_choice = st.one_of(
    st.just({}),
    _text.map(lambda text: {"left": text}),
    _inner.map(lambda inner: {"right": inner}),
    _i32.map(lambda number: {"third": number}),
)
_orders = st.builds(lambda order, choice: {**order, **choice}, st.fixed_dictionaries({}, optional=_fields), _choice)


def _expected(message: Any) -> dict[str, Any]:
    return {field.name: _field(message, field) for field in message.DESCRIPTOR.fields}


def _field(message: Any, field: Any) -> Any:
    value = getattr(message, field.name)
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        item = kind.fields_by_name["value"]
        keys = [key if isinstance(key, str) else str(key).lower() for key in value]
        return sorted((key, _value(value[raw], item)) for key, raw in zip(keys, value, strict=True))
    if field.is_repeated:
        return [_value(item, field) for item in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _value(value, field)


def _value(value: Any, field: Any) -> Any:
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return str(value) if known is None else known.name
    kind = field.message_type
    if kind is None:
        return "NaN" if isinstance(value, float) and math.isnan(value) else value
    if kind.full_name == "google.protobuf.Timestamp":
        return value.seconds * 1_000_000 + value.nanos // 1_000
    return value.value if kind.full_name.endswith("Value") else _expected(value)


def _found(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _found(item) for name, item in value.items()}
    if isinstance(value, list):
        items = [(one[0], _found(one[1])) if isinstance(one, tuple) else _found(one) for one in value]
        return sorted(items) if items and isinstance(items[0], tuple) else items
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    return int(value) if isinstance(value, Decimal) else value


def _rows(columns: Any) -> list[Any]:
    rows = columns.value.to_pylist()
    times = columns.value.field("at").cast("int64").to_pylist()
    return [None if row is None else _found({**row, "at": at}) for row, at in zip(rows, times, strict=True)]


@given(st.lists(_orders, min_size=1, max_size=3), st.data())
def test_type_18_messages_are_read_as_the_parser_of_protobuf_reads_them(orders: Any, data: st.DataObject) -> None:
    pair = both("protobuf", TEXT, message="Order", wire="confluent")
    messages = [_CLASS(**order) for order in orders]
    # A second part is joined with the first, as the parser does.
    raw = [message.SerializeToString() for message in messages]
    if data.draw(st.booleans()):
        raw = [data.draw(st.permutations([raw[0], raw[-1]]))[0] + raw[0], *raw[1:]]
        messages = [_CLASS.FromString(one) for one in raw]
    columns = same(pair, [b"\0\0\0\0\x0b\x02\x02" + one for one in raw])
    assert columns.invalid is None
    assert _rows(columns) == [_expected(message) for message in messages]
    written = [body.as_py() for body in pair[0].encode(columns.value)]
    for body, message in zip(written, messages, strict=True):
        assert body[:7] == b"\0\0\0\0\x0b\x02\x02"
        again = _CLASS.FromString(body[7:])
        assert again == message or str(again) == str(message), "NaN differs from itself"


@given(_orders, st.data())
def test_type_18_changed_bytes_are_decoded_alike_and_none_that_the_parser_refuses(
    order: Any, data: st.DataObject
) -> None:
    body = bytearray(_CLASS(**order).SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body)))
        body[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
    some = [bytes(body), bytes(body)]
    same(both("protobuf", TEXT, message="Order", on_invalid="rescue"), some, faults=False)
    columns = same(both("protobuf", TEXT, message="Order"), some, faults=False)
    try:
        message = _CLASS.FromString(bytes(body))
    except DecodeError:
        assert not body or columns.value.null_count == 2
    else:
        if columns.value.null_count == 0:
            assert _rows(columns)[0] == _expected(message)


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        (b"\x08\x80\x80\x80\x80\x10", "out_of_range", "i32"),
        (b"\x18\x80\x80\x80\x80\x10", "out_of_range", "u32"),
        (b"\x68\x02", "wrong_type", "b"),
        (b"\x72\x01\xff", "not_text", "s"),
        (b"\x72\x02x", "truncated", ""),
        (b"\x9a\x01\x00\x9a\x01\x03\x0a\x01\xff", "not_text", "inners[1].name"),
        (b"\xca\x01\x07\x08\x05\x12\x03\x0a\x01\xff", "not_text", "by_number[5].name"),
        (b"\xf2\x01\x02\x10\x01", "out_of_range", "at"),
        (b"\x0b", "truncated", ""),
        (b"\x0c", "wrong_type", ""),
        (b"\x07", "wrong_type", ""),
        (b"\x00", "wrong_type", ""),
    ],
)
def test_type_18_a_value_without_an_exact_place_is_a_fault(body: bytes, code: str, field: str) -> None:
    columns = same(both("protobuf", TEXT, message="Order"), [body])
    assert [fault and fault[:2] for fault in faults_of(columns)] == [(code, field)]


def test_type_18_the_header_names_the_message() -> None:
    made = codec("protobuf", TEXT, message="Order", wire="confluent")
    right = [b"\0\0\0\0\x0b\x02\x02\x08\x05"]
    wrong = [
        b"\0\0\0\0\x0b\0\x08\x05",
        b"\0\0\0\0\x0b",
        b"\0\0\0\0\x0b\x7f\x08\x05",
        b"\0\0\0\0\x0b\x02\x04\x08\x05",
    ]
    columns = made.decode(bodies(*right, *wrong, *right))
    assert columns.value.field("i32").to_pylist() == [5, None, None, None, None, 5]
    assert [fault and fault[0] for fault in faults_of(columns)] == [None, *["unknown_schema"] * 4, None]
    first = codec("protobuf", TEXT, wire="confluent")
    for body in (b"\0\0\0\0\x0b\0\x0a\x01x", b"\0\0\0\0\x0b\x02\0\x0a\x01x"):
        assert first.decode(bodies(body)).value.to_pylist() == [{"name": "x", "n": None, "d": []}]
    assert first.encode([{"name": "x"}]).to_pylist() == [b"\0\0\0\0\x0b\0\x0a\x01x"]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('syntax = "proto3"; message A { A a = 1; int32 i = 2; }', "a contains itself"),
        ('syntax = "proto3"; message A { B b = 1; } message B { }', "b has no fields"),
        ('syntax = "proto2"; message A { optional group G = 1 { optional int32 i = 1; } }', "group"),
        (
            'syntax = "proto3"; import "google/protobuf/struct.proto"; message A { google.protobuf.Value s = 1; }',
            "itself",
        ),
        ('syntax = "proto3"; message A { int32 a = 1; int32 A = 2; }', "upper and lower case"),
    ],
)
def test_type_18_what_has_no_column_is_refused(text: str, names: str) -> None:
    with pytest.raises(Unprocessable, match=names) as raised:
        codec("protobuf", text)
    assert raised.value.code == "invalid_schema"


@pytest.mark.parametrize(
    "body",
    [
        b"\x01rubbish",  # the number 0
        b"\x0e",  # a kind of value that there is not
        b"\x0c",  # the end of a group that has not begun
    ],
)
def test_type_18_what_is_not_protobuf_is_said_to_be_none(body: bytes) -> None:
    [fault] = faults_of(same(both("protobuf", TEXT), [body]))
    assert fault is not None and fault[0] == "wrong_type" and "is not Protobuf" in fault[2]
