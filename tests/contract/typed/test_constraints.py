"""What a JSON Schema asks of values beside their type is judged as JSON Schema's own package judges it."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from deltamq.mq.errors import Unprocessable
from deltamq.tables.typed.columns import TypedColumns
from tests.typed import both, codec, faults_of, same

_INTEGER = {"type": "integer"}
_NUMBER = {"type": "number"}
_STRING = {"type": "string"}


def _schema(kind: Any, **more: Any) -> str:
    return json.dumps({"type": "object", "properties": {"v": kind}, **more})


def _codes(schema: str, *values: str, **options: Any) -> list[tuple[str, str] | None]:
    some = [f'{{"v":{value}}}' for value in values]
    return [fault and fault[:2] for fault in _faults(same(both("json", schema, **options), some), len(some))]


def _faults(columns: TypedColumns, count: int) -> list[tuple[str, str, str, int | None] | None]:
    return faults_of(columns) or [None] * count


_NO = ("not_allowed", "v")


@pytest.mark.parametrize(
    ("kind", "fits", "breaks"),
    [
        ({**_INTEGER, "minimum": 1}, ["1", "9223372036854775807"], ["0", "-9223372036854775808"]),
        ({**_INTEGER, "minimum": 0.5}, ["1"], ["0"]),
        ({**_INTEGER, "exclusiveMinimum": 0.5}, ["1"], ["0"]),
        ({**_INTEGER, "exclusiveMinimum": 1}, ["2"], ["1"]),
        ({**_INTEGER, "maximum": -0.5}, ["-1"], ["0"]),
        ({**_INTEGER, "exclusiveMaximum": -1}, ["-2"], ["-1"]),
        ({**_INTEGER, "minimum": 2**63}, [], ["9223372036854775807"]),
        ({**_INTEGER, "maximum": 2**70}, ["9223372036854775807"], []),
        ({**_INTEGER, "minimum": 1, "exclusiveMinimum": True}, ["2"], ["1"]),
        ({**_INTEGER, "minimum": 1, "exclusiveMinimum": False}, ["1"], ["0"]),
        ({**_INTEGER, "multipleOf": 3}, ["0", "-3", "9223372036854775806"], ["1", "-2"]),
        ({**_INTEGER, "multipleOf": 1.5}, ["3", "-6"], ["1", "2"]),
        ({**_INTEGER, "multipleOf": 0.01}, ["7"], []),
        ({**_INTEGER, "multipleOf": 2**70}, ["0"], ["1"]),
        ({**_NUMBER, "minimum": 0.1}, ["0.1", "1"], ["0.09999999999999999", "-1e300"]),
        ({**_NUMBER, "exclusiveMaximum": 10**400}, ["1.7976931348623157e308"], []),
        ({**_NUMBER, "multipleOf": 0.01}, ["0.07", "0.57", "1.1", "1e22", "-0.0"], ["0.571", "0.5700000000000001"]),
        ({**_NUMBER, "multipleOf": 1e-8}, ["12.39251152", "1e300"], ["12.391000001"]),
        ({**_STRING, "minLength": 2}, ['"ab"', '"\\ud83d\\ude00\\ud83d\\ude00"'], ['"a"', '"\\ud83d\\ude00"', '""']),
        ({**_STRING, "maxLength": 2}, ['"ab"', '"éé"'], ['"abc"']),
        ({**_STRING, "pattern": "b+$"}, ['"ab"', '"bb"'], ['"ba"', '"b\\n"']),
        ({**_STRING, "pattern": "^\\u00e9\\/[0-9]{2}$"}, ['"é/12"'], ['"e/12"', '"é/1"']),
        ({"enum": ["a", "b"]}, ['"a"'], ['"c"', '""']),
        ({**_INTEGER, "enum": [1, 2.0, "3", 4.5, None]}, ["1", "2"], ["3", "4"]),
        ({**_NUMBER, "enum": [0.1, 0]}, ["0.1", "-0.0", "0.0"], ["0.2"]),
        ({"type": "boolean", "enum": [True]}, ["true"], ["false"]),
        ({"const": "a"}, ['"a"'], ['"b"']),
        ({**_STRING, "format": "date", "enum": ["2026-01-01", "no"]}, ['"2026-01-01"'], ['"2026-01-02"']),
        ({**_STRING, "format": "date-time", "const": "2026-01-01T00:00:00Z"}, ['"2026-01-01T01:00:00+01:00"'], []),
        ({"type": "array", "items": _INTEGER, "minItems": 1, "maxItems": 2}, ["[1]", "[1,2]"], ["[]", "[1,2,3]"]),
        ({"type": "array", "items": _INTEGER, "uniqueItems": True}, ["[]", "[1,2]"], ["[1,1]", "[2,1,2]"]),
        ({"type": "array", "items": _NUMBER, "uniqueItems": True}, ["[0.0,1]"], ["[0.0,-0.0]"]),
        ({"type": "array", "items": _INTEGER, "uniqueItems": False}, ["[1,1]"], []),
        (
            {"type": "array", "items": {"properties": {"a": _INTEGER}}, "uniqueItems": True},
            ['[{"a":1},{"a":2},{}]'],
            ['[{"a":1},{"a":1}]'],
        ),
        (
            {"type": "object", "additionalProperties": _INTEGER, "minProperties": 1, "maxProperties": 2},
            ['{"a":1}'],
            ["{}", '{"a":1,"b":1,"c":1}'],
        ),
        ({"allOf": [_INTEGER, {"minimum": 1}], "maximum": 3}, ["1", "3"], ["0", "4"]),
        ({"oneOf": [{"type": "null"}, {**_INTEGER, "minimum": 1}]}, ["1", "null"], ["0"]),
        ({"$ref": "#/$defs/P", "maximum": 3}, ["1", "3"], ["0", "4"]),
        # What JSON Schema passes over: a keyword of another type.
        ({**_STRING, "minimum": 5, "maxItems": 0}, ['"a"'], []),
        ({**_INTEGER, "pattern": "a", "minLength": 9}, ["1"], []),
    ],
)
def test_type_46_a_value_meets_what_its_schema_asks(kind: Any, fits: list[str], breaks: list[str]) -> None:
    schema = _schema(kind, **{"$defs": {"P": {**_INTEGER, "minimum": 1}}})
    assert _codes(schema, *fits) == [None] * len(fits)
    assert _codes(schema, *breaks) == [_NO] * len(breaks)


def test_type_46_what_breaks_a_constraint_has_its_place_and_the_keyword() -> None:
    schema = _schema({
        "type": "array",
        "items": {"properties": {"n": {**_INTEGER, "maximum": 5}, "m": {"additionalProperties": {"enum": ["a"]}}}},
    })  # fmt: skip
    assert _codes(
        schema, '[{"n":1},{"n":6}]', '[{"m":{"x":"a","y":"b"}}]', "[]", "null", '[{"n":9}]', '[{"n":1},{"n":7}]'
    ) == [
        ("not_allowed", "v[1].n"),
        ("not_allowed", "v[0].m.y"),
        None,
        None,
        ("not_allowed", "v[0].n"),
        ("not_allowed", "v[1].n"),
    ]
    strict = schema.replace('"additionalProperties": {"enum"', '"type": "object", "additionalProperties": {"enum"')
    columns = same(both("json", strict), ['{"v":[{},{"m":{"x":"a","y":"b"}}]}'])
    assert faults_of(columns) == [("not_allowed", "v[1].m[y]", 'does not meet `enum` of the schema: ["a"]', 11)]


def test_type_46_rescue_leaves_out_what_breaks_and_keeps_the_rest() -> None:
    schema = json.dumps({
        "properties": {
            "a": {**_INTEGER, "minimum": 1},
            "b": {"type": "array", "items": {"properties": {"c": {**_NUMBER, "maximum": 1}}}},
            "d": {"type": "array", "items": {**_INTEGER, "maximum": 1}},
            "e": _STRING,
        }
    })  # fmt: skip
    some = ['{"a":0,"b":[{"c":1},{"c":1.5}],"d":[1,2],"e":"x"}', '{"a":1,"e":5}', '{"a":0,"e":5}']
    columns = same(both("json", schema, on_invalid="rescue"), some)
    assert columns.invalid is None and columns.rescued is not None
    assert columns.value.to_pylist() == [
        {"a": None, "b": [{"c": 1.0}, {"c": None}], "d": None, "e": "x"},
        {"a": 1, "b": None, "d": None, "e": None},
        {"a": None, "b": None, "d": None, "e": None},
    ]
    rests = [json.loads(text) for text in columns.rescued.to_pylist()]
    assert [rest["rest"] for rest in rests] == [{"a": 0, "b[1].c": 1.5, "d[1]": [1, 2]}, {"e": 5}, {"a": 0, "e": 5}]
    assert rests[2]["reasons"] == {
        "e": "wrong_type: is not a string",
        "a": "not_allowed: does not meet `minimum` of the schema: 1",
    }


def test_type_46_values_that_are_sent_as_columns_are_judged_alike() -> None:
    kind = {"type": "array", "items": {"properties": {"n": {**_INTEGER, "maximum": 5}}}}
    sent = pa.array([{"v": [{"n": 1}]}, {"v": [{"n": 1}, {"n": 6}]}, None, {"v": None}])
    columns = codec("json", _schema(kind)).check(sent)
    assert [fault and fault[:2] for fault in faults_of(columns)] == [None, ("not_allowed", "v[1].n"), None, None]
    assert columns.value.to_pylist() == [{"v": [{"n": 1}]}, None, None, {"v": None}]
    # Values of a slice, with lists before it that break.
    assert codec("json", _schema(kind)).check(sent[2:]).invalid is None


@pytest.mark.parametrize(
    "kind",
    [
        {**_INTEGER, "minimum": "1"},
        {**_INTEGER, "multipleOf": 0},
        {**_NUMBER, "maximum": True},
        {**_STRING, "maxLength": -1},
        {**_STRING, "minLength": 1.5},
        {**_STRING, "pattern": 5},
        {**_STRING, "pattern": "("},
        {**_STRING, "pattern": "a(?=b)"},
        {**_STRING, "pattern": r"(a)\1"},
        {**_STRING, "enum": "a"},
        {"type": "array", "items": _INTEGER, "uniqueItems": 1},
    ],
)
def test_type_46_a_constraint_that_cannot_be_checked_is_refused(kind: Any) -> None:
    with pytest.raises(Unprocessable, match=r"schema: v has an? `\w+`") as refused:
        codec("json", _schema(kind))
    assert refused.value.code == "invalid_schema"


def test_type_46_a_pattern_takes_bounded_time() -> None:
    """Backtracking would take 2^50,000 steps."""
    schema = _schema({**_STRING, "pattern": "^(a+)+$"})
    assert _codes(schema, json.dumps("a" * 50_000 + "b"), json.dumps("a" * 50_000)) == [_NO, None]


_bounds = st.integers(-20, 20) | st.decimals(-20, 20, places=2).map(float)
_sizes = st.integers(0, 3)
_of_numbers = st.fixed_dictionaries(
    {},
    optional={
        "minimum": _bounds,
        "maximum": _bounds,
        "exclusiveMinimum": _bounds,
        "exclusiveMaximum": _bounds,
        "multipleOf": st.integers(1, 7) | st.sampled_from([0.01, 0.1, 0.25, 1.5, 0.003]),
        "enum": st.lists(st.integers(-3, 3) | st.sampled_from([0.5, -0.0]), min_size=1),
    },
)
_of_strings = st.fixed_dictionaries(
    {},
    optional={
        "minLength": _sizes,
        "maxLength": _sizes,
        "pattern": st.sampled_from(["a", "^a", "a$", "^[ab]*$", "(a|é)b?", "\\d", "^.{2}$", ""]),
        "enum": st.lists(st.text("abé1", max_size=2), min_size=1),
    },
)
_numbers = st.integers(-30, 30).map(str) | st.decimals(-30, 30, places=3).map(str)
_texts = st.text("abé1\U0001f600", max_size=4).map(lambda text: json.dumps(text, ensure_ascii=False))
_leaves = st.one_of(
    st.tuples(_of_numbers.map(lambda some: {**_NUMBER, **some}), st.just(_numbers)),
    st.tuples(_of_strings.map(lambda some: {**_STRING, **some}), st.just(_texts)),
)


def _array(leaf: tuple[Any, st.SearchStrategy[str]]) -> st.SearchStrategy[tuple[Any, st.SearchStrategy[str]]]:
    kind, values = leaf
    more = st.fixed_dictionaries({}, optional={"minItems": _sizes, "maxItems": _sizes, "uniqueItems": st.booleans()})
    lists = st.lists(values, max_size=4).map(lambda some: f"[{','.join(some)}]")
    return st.tuples(more.map(lambda some: {"type": "array", "items": kind, **some}), st.just(lists))


def _map(leaf: tuple[Any, st.SearchStrategy[str]]) -> st.SearchStrategy[tuple[Any, st.SearchStrategy[str]]]:
    kind, values = leaf
    more = st.fixed_dictionaries({}, optional={"minProperties": _sizes, "maxProperties": _sizes})
    maps = st.dictionaries(st.sampled_from("abcd"), values, max_size=4)
    texts = maps.map(lambda some: "{" + ",".join(f'"{name}":{value}' for name, value in some.items()) + "}")
    return st.tuples(more.map(lambda some: {"type": "object", "additionalProperties": kind, **some}), st.just(texts))


def _object(leaf: tuple[Any, st.SearchStrategy[str]]) -> tuple[Any, st.SearchStrategy[str]]:
    kind, values = leaf
    return {"type": "object", "properties": {"x": kind}}, values.map(lambda value: f'{{"x":{value}}}')


@given(
    st.recursive(_leaves, lambda inner: inner.flatmap(_array) | inner.flatmap(_map) | inner.map(_object), max_leaves=3),
    st.data(),
)
def test_type_46_bodies_are_judged_as_json_schemas_own_package_judges_them(
    kind: tuple[Any, st.SearchStrategy[str]], data: st.DataObject
) -> None:
    texts = [f'{{"v":{value}}}' for value in data.draw(st.lists(kind[1], min_size=1, max_size=5))]
    schema = _schema(kind[0])
    # Numbers as they are written: binary fractions are no multiples of 0.01.
    judge = Draft202012Validator(json.loads(schema, parse_float=Decimal))
    want = [judge.is_valid(json.loads(text, parse_float=Decimal)) for text in texts]
    assert [fault is None for fault in _faults(same(both("json", schema), texts), len(texts))] == want
    rescued = same(both("json", schema, on_invalid="rescue"), texts)
    assert rescued.invalid is None
    notes = [None] * len(texts) if rescued.rescued is None else rescued.rescued.to_pylist()
    assert [note is None for note in notes] == want
