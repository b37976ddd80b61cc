"""Schemas of each format as columns, and which ones are refused (SPEC TYPE-12 to TYPE-15)."""

from __future__ import annotations

import io
import json
from typing import Any

import avro.io
import avro.schema
import pyarrow as pa
import pytest

from deltamq.mq.errors import Unprocessable
from deltamq.mq.schemas.limits import TYPED_COLUMNS_MAX
from deltamq.mq.schemas.registry import Reference, Version
from deltamq.mq.schemas.setting import Format, SchemaSetting
from deltamq.tables.typed.codec import codec_of
from tests.typed import SUBJECT, bodies, both, codec, faults_of, record, same

TIME = pa.timestamp("us", tz="UTC")
DURATION = pa.struct([(name, pa.int64()) for name in ("months", "days", "millis")])
ENUM = {"type": "enum", "name": "E", "symbols": ["A"]}


def _column(form: Format, schema: str) -> pa.DataType:
    return codec(form, schema).value_type.field("v").type


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "integer"}, pa.int64()),
        ({"type": "number"}, pa.float64()),
        ({"type": "boolean"}, pa.bool_()),
        ({"type": "string", "format": "uuid"}, pa.string()),
        ({"type": "string", "format": "date"}, pa.date32()),
        ({"type": "string", "format": "date-time"}, TIME),
        ({"type": "string", "format": "time"}, pa.string()),
        ({"type": ["null", "integer"]}, pa.int64()),
        ({"oneOf": [{"type": "null"}, {"type": "string"}]}, pa.string()),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, pa.string()),
        ({"type": ["integer", "string"]}, pa.string()),
        ({"enum": ["a", "b", None]}, pa.string()),
        ({"$ref": "#/$defs/A"}, pa.struct([("a", pa.int64())])),
        ({"allOf": [{"$ref": "#/$defs/A"}]}, pa.struct([("a", pa.int64())])),
        (
            {"allOf": [{"$ref": "#/$defs/A"}, {"properties": {"b": {"type": "string"}}}], "properties": {"c": True}},
            pa.struct([("a", pa.int64()), ("b", pa.string()), ("c", pa.string())]),
        ),
        ({"allOf": [{"type": "string"}, {"minLength": 1}]}, pa.string()),
        ({"type": "array", "items": {"type": "number"}}, pa.list_(pa.float64())),
        ({"type": "array"}, pa.list_(pa.string())),
        ({"type": "array", "prefixItems": [{"type": "number"}]}, pa.string()),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, pa.map_(pa.string(), pa.int64())),
        ({"type": "object"}, pa.string()),
        (True, pa.string()),
        ({}, pa.string()),
    ],
)
def test_type_13_a_json_schema_has_columns(schema: Any, kind: pa.DataType) -> None:
    defs = {"A": {"properties": {"a": {"type": "integer"}}}}
    assert _column("json", json.dumps({"type": "object", "properties": {"v": schema}, "$defs": defs})) == kind


def test_type_13_a_json_schema_says_what_must_be_there_and_what_may_be_null() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": ["null", "integer"]}, "c": {"type": "integer"}, "d": {}},
        "required": ["a", "b"],
    }
    pair = both("json", json.dumps(schema))
    some = ['{"a":1,"b":null}', '{"a":1,"b":2,"c":null,"x":[1.0]}', '{"a":null,"b":1}', '{"a":1}']
    columns = same(pair, [*some, '{"a":1,"b":1,"d":{"e" : [1.50, "\\u00e9"]}}'])
    assert [fault and fault[:2] for fault in faults_of(columns)] == [
        None,
        None,
        ("missing", "a"),
        ("missing", "b"),
        None,
    ]
    assert columns.value.field("d").to_pylist()[-1] == '{"e":[1.50,"é"]}'
    assert pair[0].encode(columns.value.slice(4)).to_pylist() == ['{"a":1,"b":1,"d":{"e":[1.50,"é"]}}'.encode()]
    closed = {**schema, "additionalProperties": False}
    assert faults_of(same(both("json", json.dumps(closed)), [some[1]]))[0][:2] == ("unknown_field", "x")


def test_type_13_a_json_schema_refers_to_others_by_name() -> None:
    inner = {"properties": {"x": {"$ref": "#/$defs/I"}}, "$defs": {"I": {"type": "integer"}}}
    other = Version(
        subject="a",
        version=1,
        id=1,
        schema_type="JSON",
        schema=json.dumps(inner),
    )
    text = '{"type":"object","properties":{"v":{"$ref":"a.json"}}}'
    version = Version(
        subject=SUBJECT, version=1, id=2, schema_type="JSON", schema=text, references=(Reference("a.json", "a", 1),)
    )
    setting = SchemaSetting(format="json", subject=SUBJECT)
    made = codec_of(setting, [version], lambda id_: None, lambda one: [other, one])
    assert made.value_type == pa.struct([("v", pa.struct([("x", pa.int64())]))])


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ("int", pa.int64()),
        ("float", pa.float64()),
        ("bytes", pa.binary()),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, pa.string()),
        ({"type": "fixed", "name": "F", "size": 2}, pa.binary()),
        ({"type": "int", "logicalType": "date"}, pa.date32()),
        ({"type": "int", "logicalType": "time-millis"}, pa.int64()),
        ({"type": "long", "logicalType": "timestamp-micros"}, TIME),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, pa.int64()),
        ({"type": "long", "logicalType": "timestamp-nanos"}, pa.int64()),
        ({"type": "string", "logicalType": "uuid"}, pa.string()),
        ({"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 4}, pa.decimal128(38, 4)),
        (
            {"type": "fixed", "name": "D", "size": 12, "logicalType": "duration"},
            pa.struct([("months", pa.int64()), ("days", pa.int64()), ("millis", pa.int64())]),
        ),
        (["null", "string"], pa.string()),
        (["string"], pa.string()),
        (["null", "string", "long"], pa.struct([("string", pa.string()), ("long", pa.int64())])),
        ({"type": "map", "values": ["null", "int"]}, pa.map_(pa.string(), pa.int64())),
        (
            [{"type": "enum", "name": "a.E", "symbols": ["A"]}, {"type": "enum", "name": "b.E", "symbols": ["A"]}],
            pa.struct([("a_E", pa.string()), ("b_E", pa.string())]),
        ),
    ],
)
def test_type_14_an_avro_schema_has_columns(schema: Any, kind: pa.DataType) -> None:
    assert _column("avro", record(("v", schema))) == kind


def test_type_14_a_union_of_records_is_a_struct_of_them() -> None:
    text = json.dumps(["null", json.loads(record(("a", "int"), name="A")), json.loads(record(("b", "int"), name="B"))])
    columns = same(both("avro", text), [b"\x02\x04", b"\x04\x06", b"\0", b"\x06\x02"])
    assert columns.value.to_pylist() == [{"A": {"a": 2}, "B": None}, {"A": None, "B": {"b": 3}}, None, None]
    assert [fault and fault[0] for fault in faults_of(columns)] == [None, None, None, "wrong_type"]


DEEP = {"type": "array", "items": "int"}
for _ in range(40):
    DEEP = {"type": "array", "items": DEEP}


@pytest.mark.parametrize(
    ("form", "text", "names"),
    [
        ("avro", "{", "is not JSON"),
        ("avro", '"string"', "the body is a string"),
        ("avro", record(("v", "null")), "v is always null"),
        ("avro", record(("v", "Other")), "v names the type Other"),
        ("avro", record(("v", {"type": "bytes", "logicalType": "decimal", "precision": 39})), "39 digits"),
        ("avro", record(("v", ["null", {"type": "record", "name": "Empty", "fields": []}])), "v has no fields"),
        ("avro", record(("next", ["null", "Order"])), "next contains itself"),
        ("avro", record(("a", "int"), ("A", "int")), "upper and lower case"),
        ("avro", record(("v", DEEP)), "levels deep"),
        ("avro", "[" * 100_000, "is not JSON"),
        ("avro", record(*[(f"f{n}", "int") for n in range(TYPED_COLUMNS_MAX + 1)]), "1001 columns"),
        ("json", '{"type": "array"}', "the body is a list"),
        ("json", '{"properties": {"first name": {"type": "integer"}}}', "'first name'"),
        ("json", '{"properties": {"a": {"$ref": "#"}}}', "a contains itself"),
        ("json", '{"properties": {"a": {"$ref": "b.json"}}}', "b.json, which is not among"),
        ("json", '{"properties": {"a": {"$ref": "#/$defs/B"}}}', "refers to nothing"),
        ("json", '{"properties": {"a": {"type": "text"}}}', "'text'"),
        ("columns", "a", "a: nothing is not a type"),
        ("columns", "a INT,", "a field's name at its end"),
        ("columns", "a BIGINT b", "a comma or the end at 'b'"),
        ("columns", "a TIMESTAMP_NTZ", "use TIMESTAMP"),
        ("columns", "a VARCHAR(3)", "use STRING"),
        ("columns", "a MAP<INT, INT>", "MAP<STRING"),
        ("columns", "a DECIMAL(39)", "1 to 38 digits"),
        ("columns", "a INT, a INT", "fields a and a"),
        ("columns", "a " + "ARRAY<" * 40 + "INT" + ">" * 40, "levels deep"),
    ],
)
def test_type_12_what_has_no_column_is_refused_by_its_name(form: Format, text: str, names: str) -> None:
    with pytest.raises(Unprocessable) as raised:
        codec(form, text)
    assert names in str(raised.value) and (raised.value.code, raised.value.field) == ("invalid_schema", "schema")


def test_type_17_types_that_name_each_other_take_no_more_memory_than_a_topic_may_have() -> None:
    """Thirty types, each with ten fields of the next one."""
    inner: Any = "int"
    for level in range(30):
        names = [f"f{n}" for n in range(10)]
        fields = [{"name": names[0], "type": inner}]
        fields += [{"name": name, "type": f"R{level - 1}" if level else "int"} for name in names[1:]]
        inner = {"type": "record", "name": f"R{level}", "fields": fields}
    for text in (json.dumps(inner), record(("v", inner))):
        with pytest.raises(Unprocessable, match=r"too many parts|levels deep"):
            codec("avro", text)
    proto = 'syntax = "proto3";' + "".join(
        f"message M{n} {{ M{n + 1} a = 1; M{n + 1} b = 2; M{n + 1} c = 3; }}" for n in range(25)
    )
    with pytest.raises(Unprocessable, match="too many parts"):
        codec("protobuf", proto + "message M25 { int32 a = 1; }")


AVRO = record(
    ("i", "int"),
    ("l", "long"),
    ("f", "float"),
    ("d", "double"),
    ("b", "boolean"),
    ("s", ["null", "string"]),
    ("y", "bytes"),
    ("e", {"type": "enum", "name": "E", "symbols": ["A", "B"]}),
    ("x", {"type": "fixed", "name": "X", "size": 2}),
    ("a", {"type": "array", "items": {"type": "map", "values": "long"}}),
    ("u", ["null", "long", "string"]),
)


def test_type_14_bodies_of_the_avro_package_are_read_and_ours_by_it() -> None:
    schema = avro.schema.parse(AVRO)
    values = [
        {
            "i": -(2**31),
            "l": 2**63 - 1,
            "f": 0.5,
            "d": -1e300,
            "b": True,
            "s": "é",
            "y": b"\0\xff",
            "e": "B",
            "x": b"ab",
            "a": [{"k": 1, "m": -(2**63)}, {}],
            "u": "text",
        },
        {"i": 0, "l": 0, "f": 0.0, "d": 0.0, "b": False, "s": None, "y": b"", "e": "A", "x": b"  ", "a": [], "u": 7},
    ]
    raw = []
    for value in values:
        sink = io.BytesIO()
        avro.io.DatumWriter(schema).write(value, avro.io.BinaryEncoder(sink))
        raw.append(sink.getvalue())
    pair = both("avro", AVRO)
    columns = same(pair, raw)
    assert columns.invalid is None
    written = [avro.io.BinaryDecoder(io.BytesIO(body.as_py())) for body in pair[0].encode(columns.value)]
    assert [avro.io.DatumReader(schema).read(body) for body in written] == values
    assert columns.value.field("u").to_pylist() == [{"long": None, "string": "text"}, {"long": 7, "string": None}]
    assert pair[0].decode(bodies(*raw)).value.field("a").to_pylist() == [[[("k", 1), ("m", -(2**63))], []], []]


@pytest.mark.parametrize(
    ("schema", "value", "names"),
    [
        ("int", 2**31, "value.v is no whole number of 32 bits"),
        ("float", 16777217, "value.v has no exact value"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "B", "value.v"),
        ({"type": "fixed", "name": "X", "size": 2}, "YQ==", "value.v"),
        (["string", "long"], {"string": "a", "long": 1}, "value.v is a union"),
        ("string", None, "value.v is null"),
        ({"type": "array", "items": "int"}, [1, 2**31], r"value\.v\[1\]"),
        ({"type": "long", "logicalType": "timestamp-millis"}, "2026-01-01T00:00:00.000001Z", "value.v"),
        ({"type": "fixed", "name": "D", "size": 1, "logicalType": "decimal", "precision": 4}, 128, "value.v"),
    ],
)
def test_type_15_a_value_without_a_body_is_refused_by_its_place(schema: Any, value: Any, names: str) -> None:
    with pytest.raises(Unprocessable, match=rf"messages\[1\]\.{names}") as raised:
        made = codec("avro", record(("v", schema), ("n", ["null", "int"])))
        made.encode([None, {"v": value}])
    assert raised.value.extra["index"] == 1
