"""Bodies of typed topics as columns and back (SPEC TYPE-10 to TYPE-12)."""

from __future__ import annotations

import json
from decimal import Decimal

import pyarrow as pa
import pytest

from deltamq.mq.errors import Conflict, Unprocessable
from deltamq.mq.schemas.registry import Reference, Version
from deltamq.mq.schemas.setting import SchemaSetting
from deltamq.tables.typed.codec import codec_of
from deltamq.tables.typed_row import INVALID_TYPE, joined
from tests.typed import SUBJECT, bodies, codec, record, versions_of

DDL = (
    "id BIGINT NOT NULL, name STRING, price DECIMAL(10, 2), lines ARRAY<STRUCT<sku: STRING, n: INT>>, "
    "m MAP<STRING, DOUBLE>"
)


def _faults(invalid: pa.StructArray | None) -> list[tuple[str, str] | None]:
    assert invalid is not None and invalid.type == INVALID_TYPE
    return [None if row is None else (row["code"], row["field"]) for row in invalid.to_pylist()]


def test_type_10_bodies_are_columns_and_what_does_not_fit_has_its_code_and_field() -> None:
    columns = codec("columns", DDL).decode(
        bodies(
            '{"id": 1, "price": "1.50", "lines": [{"sku": "a", "n": 2}, null], "m": {"x": 0.5}}',
            None,
            '{"id": 1, "lines": [{"n": 1}, {"n": 1.5}]}',
            "",
            '{"id": 1, "color": "red"}',
            '{"name": "a"}',
            '{"id"',
        )
    )
    assert columns.value.to_pylist()[:2] == [
        {
            "id": 1,
            "name": None,
            "price": Decimal("1.50"),
            "lines": [{"sku": "a", "n": 2}, None],
            "m": [("x", 0.5)],
        },
        None,
    ]
    assert columns.value.null_count == 6 and columns.rescued is None
    assert _faults(columns.invalid) == [
        None,
        None,
        ("wrong_type", "lines[1].n"),
        None,
        ("unknown_field", "color"),
        ("missing", "id"),
        ("not_json", ""),
    ]


def test_type_10_rescue_keeps_what_fits_and_the_rest_as_json() -> None:
    columns = codec("columns", DDL, on_invalid="rescue").decode(
        bodies('{"id": 1}', '{"id": 7, "lines": [{"sku": "a", "n": "x"}], "color": "red"}', b"{\xff")
    )
    assert columns.invalid is None and columns.rescued is not None
    assert columns.value.to_pylist()[1]["lines"] == [{"sku": "a", "n": None}]
    assert columns.value.to_pylist()[2] is None
    texts = [None if text is None else json.loads(text) for text in columns.rescued.to_pylist()]
    assert texts == [
        None,
        {
            "rest": {"lines[0].n": "x", "color": "red"},
            "reasons": {
                "lines[0].n": "wrong_type: is not a number",
                "color": "unknown_field: is not a field of the schema",
            },
        },
        {"body_base64": "e/8=", "reasons": {"": "not_text: is not UTF-8"}},
    ]


def test_type_12_columns_are_those_of_all_versions_and_a_body_is_read_by_the_one_that_wrote_it() -> None:
    first, second = record(("a", "int"), ("s", "string")), record(("b", "int", {"aliases": ["a"]}), ("s", "long"))
    old = codec("avro", first, wire="confluent").encode([{"a": 5, "s": "x"}])
    both = codec("avro", first, second, wire="confluent")
    columns = both.decode(pa.concat_arrays([both.encode([{"b": 6, "s": 7}]), bodies(None), old]))
    assert both.value_type == pa.struct(
        [("a", pa.int64()), ("s", pa.string()), ("b", pa.int64()), ("s_v2", pa.int64())]
    )
    assert columns.invalid is None and columns.value.to_pylist() == [
        {"a": 6, "s": None, "b": 6, "s_v2": 7},
        None,
        {"a": 5, "s": "x", "b": 5, "s_v2": None},
    ]


def test_type_12_a_changed_type_is_a_conflict_that_names_its_column() -> None:
    a = pa.struct([("x", pa.list_(pa.struct([("y", pa.int64())])))])
    assert joined(a, pa.struct([("x", pa.list_(pa.struct([("z", pa.string())]))), ("n", pa.int64())])) == pa.struct(
        [("x", pa.list_(pa.struct([("y", pa.int64()), ("z", pa.string())]))), ("n", pa.int64())]
    )
    for other in ([("x", pa.list_(pa.struct([("y", pa.string())])))], [("x", pa.int64())]):
        with pytest.raises(Conflict) as raised:
            joined(a, pa.struct(other))
        assert raised.value.code == "schema_conflict" and "value.x" in raised.value.detail


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"\x01\0\0\0\x0bx", "unknown_schema"),
        (b"\0\0\0", "truncated"),
        (b"\0\0\0\0\x63x", "unknown_schema"),
        (b"\0\0\0\0\x0c\x02", "unknown_schema"),
        (b"\0\0\0\0\x0b", "truncated"),
        (b"\0\0\0\0\x0b\x02\x02", "trailing_bytes"),
    ],
)
def test_type_10_a_header_names_a_schema_of_the_topics_subject(body: bytes, code: str) -> None:
    [version] = versions_of("avro", [record(("a", "int"))])
    other = Version(subject="others-value", version=1, id=12, schema_type="AVRO", schema=version.schema)
    setting = SchemaSetting(format="avro", subject=SUBJECT, wire="confluent")
    columns = codec_of(setting, [version], {11: version, 12: other}.get, lambda one: [one]).decode(bodies(body))
    assert columns.invalid is not None and columns.invalid[0].as_py()["code"] == code


def test_type_10_a_schema_has_the_types_that_it_refers_to() -> None:
    used = Version(
        subject="city-value", version=1, id=1, schema_type="AVRO", schema=record(("zip", "string"), name="x.City")
    )
    text = record(("city", "x.City"))
    version = Version(
        subject=SUBJECT,
        version=1,
        id=2,
        schema_type="AVRO",
        schema=text,
        references=(Reference(name="x.City", subject="city-value", version=1),),
    )
    setting = SchemaSetting(format="avro", subject=SUBJECT)
    made = codec_of(setting, [version], lambda id_: None, lambda one: [used, one])
    value = [{"city": {"zip": "10115"}}]
    assert made.decode(made.encode(value)).value.to_pylist() == value
    with pytest.raises(Unprocessable, match=r"city names the type x\.City"):
        codec("avro", text)


def test_type_16_values_are_rendered_in_one_form_without_nulls() -> None:
    made = codec("columns", "i BIGINT, d DECIMAL(5, 2), t TIMESTAMP, day DATE, b BINARY, f FLOAT, r DOUBLE, s STRING")
    text = (
        b'{"i":9223372036854775807,"d":"1.50","t":"2026-11-29T12:00:00.000001Z","day":"0001-01-01","b":"AP8=","f":0.1,'
        b'"r":1e+16,"s":"\xc3\xa9\\n"}'
    )
    assert made.render(made.decode(bodies(text, "{}", None)).value).to_pylist() == [text, b"{}", None]


def test_type_15_a_value_of_json_keeps_what_has_no_column_type_of_its_own() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "any": {}}, "required": ["a"]}
    made = codec("json", json.dumps(schema), wire="confluent")
    [body] = made.encode([{"a": 1, "any": {"b": [1.5, None]}}]).to_pylist()
    assert body == b'\0\0\0\0\x0b{"a":1,"any":{"b":[1.5,null]}}'
    assert made.decode(bodies(body)).value.to_pylist() == [{"a": 1, "any": '{"b":[1.5,null]}'}]
    columns = made.decode(made.encode([{"any": 1}, {"a": 2, "more": []}, None]))
    assert _faults(columns.invalid) == [("missing", "a"), None, None]


@pytest.mark.parametrize("compiled", [True, False])
def test_type_19_the_value_of_an_envelope_is_the_row_after_the_change(compiled: bool) -> None:
    row = {"type": "record", "name": "Value", "fields": [{"name": "id", "type": "int"}]}
    text = record(("before", ["null", row]), ("after", ["null", "Value"]), ("op", "string"), name="Envelope")
    versions = versions_of("avro", [text])
    setting = SchemaSetting(format="avro", subject=SUBJECT, unwrap="debezium")
    made = codec_of(setting, versions, lambda id_: None, lambda one: [one], compiled=compiled)
    columns = made.decode(bodies(b"\0\x02\x0a\x02c", b"\x02\x0a\x02\x0c\x02u", b"\x02\x0c\0\x02d", None, b"\0\x02"))
    assert made.value_type == pa.struct([("id", pa.int64())])
    assert columns.value.to_pylist() == [{"id": 5}, {"id": 6}, None, None, None]
    assert _faults(columns.invalid) == [None, None, None, None, ("truncated", "after.id")]
    with pytest.raises(Unprocessable, match="send bodies"):
        made.encode([{"id": 1}])
    with pytest.raises(Unprocessable, match="'after'"):
        codec_of(setting, versions_of("avro", [record(("a", "int"))]), lambda id_: None, lambda one: [one])
