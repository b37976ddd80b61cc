"""What a JSON Schema asks of a body as a whole is judged, or the schema is refused (SPEC TYPE-50)."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from deltamq.mq.errors import Unprocessable
from tests.typed import both, codec, faults_of, same

_FIELDS = {"kind": {"type": "string"}, "amount": {"type": "integer"}, "tags": {"type": "array"}, "any": {}}


def _schema(**more: Any) -> str:
    return json.dumps({"type": "object", "properties": _FIELDS, **more})


_IF = {"properties": {"kind": {"const": "card"}}, "required": ["kind"]}
# One case a line, or they fill pages.
# ruff: noqa: E501
CASES: list[tuple[str, dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]] = [
    ("if", {"if": _IF, "then": {"required": ["amount"]}}, [{"kind": "cash"}, {"kind": "card", "amount": 1}], [{"kind": "card"}]),
    ("else", {"if": _IF, "else": {"required": ["any"]}}, [{"kind": "card"}, {"any": None}], [{"kind": "cash"}]),
    ("not", {"not": {"required": ["kind", "amount"]}}, [{"kind": "a"}], [{"kind": "a", "amount": 1}]),
    ("dependentRequired", {"dependentRequired": {"kind": ["amount"]}}, [{}, {"kind": "a", "amount": 1}], [{"kind": "a"}]),
    ("dependencies", {"dependencies": {"kind": ["amount"]}}, [{}], [{"kind": "a"}]),
    ("dependentSchemas", {"dependentSchemas": {"kind": {"minProperties": 2}}}, [{"amount": 1}], [{"kind": "a"}]),
    ("propertyNames", {"propertyNames": {"pattern": "^[a-z]+$"}}, [{"x": 1}], [{"X": 1}]),
    ("minProperties", {"minProperties": 2}, [{"kind": "a", "x": 1}], [{"kind": "a"}]),
    ("maxProperties", {"maxProperties": 1}, [{}], [{"kind": "a", "x": 1}]),
    ("patternProperties", {"patternProperties": {"^x-": {"type": "integer"}}}, [{"x-a": 1}], [{"x-a": "1"}]),
    ("additionalProperties", {"additionalProperties": {"type": "integer"}}, [{"x": 1}], [{"x": "1"}]),
    ("unevaluatedProperties", {"unevaluatedProperties": False}, [{"kind": "a"}], [{"x": 1}]),
    ("required of others", {"required": ["x"]}, [{"x": None}], [{"kind": "a"}]),
    ("contains", {"properties": {"tags": {"type": "array", "contains": {"const": 1}}}}, [{"tags": [2, 1]}], [{"tags": [2]}]),
    ("tuple", {"properties": {"tags": {"type": "array", "prefixItems": [{"type": "string"}]}}}, [{"tags": ["a", 1]}], [{"tags": [1]}]),
    ("tuple of draft 7", {"properties": {"tags": {"type": "array", "items": [{"type": "string"}], "additionalItems": False}}}, [{"tags": ["a"]}], [{"tags": ["a", 1]}]),
    ("two types", {"properties": {"any": {"type": ["integer", "string"]}}}, [{"any": 1}, {"any": "a"}], [{"any": 1.5}, {"any": [1]}]),
    ("oneOf", {"properties": {"any": {"oneOf": [{"type": "integer", "minimum": 5}, {"type": "string"}]}}}, [{"any": 5}], [{"any": 4}]),
    ("enum of any", {"properties": {"any": {"enum": [1, "a", [2]]}}}, [{"any": [2]}], [{"any": 2}]),
    ("enum of lists", {"properties": {"tags": {"type": "array", "items": {"type": "integer"}, "enum": [[1]]}}}, [{"tags": [1]}], [{"tags": [2]}]),
    ("an object of any", {"properties": {"any": {"type": "object"}}}, [{"any": {"a": 1}}, {"any": {}}], [{"any": [1]}, {"any": "{"}]),
    ("lists of any", {"properties": {"tags": {"type": "array", "items": {"type": ["array", "boolean"]}}}}, [{"tags": [[1], True]}], [{"tags": [{}]}]),
    ("allOf", {"allOf": [{"properties": {"o": {"properties": {"a": {"minimum": 1, "type": "integer"}}}}}, {"properties": {"o": {"properties": {"a": {"maximum": 2, "type": "integer"}}}}}]}, [{"o": {"a": 1}}], [{"o": {"a": 3}}, {"o": {"a": 0}}]),
    ("a reference", {"$defs": {"d": {"required": ["kind"]}}, "if": {"required": ["amount"]}, "then": {"$ref": "#/$defs/d"}}, [{"amount": 1, "kind": "a"}], [{"amount": 1}]),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_type_50_a_body_meets_what_its_schema_asks_of_it_as_a_whole(
    case: tuple[str, dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]],
) -> None:
    _, more, fits, breaks = case
    schema, texts = _schema(**more), [json.dumps(body) for body in (*fits, *breaks)]
    faults = faults_of(same(both("json", schema), texts))
    assert faults is not None
    assert [fault is None for fault in faults] == [True] * len(fits) + [False] * len(breaks)
    assert {fault[0] for fault in faults if fault} == {"not_allowed"}
    rescued = same(both("json", schema, on_invalid="rescue"), texts)
    assert rescued.invalid is None and rescued.rescued is not None
    assert [note is None for note in rescued.rescued.to_pylist()] == [True] * len(fits) + [False] * len(breaks)


def test_type_50_the_place_and_the_word_are_said() -> None:
    schema = _schema(properties={"tags": {"type": "array", "contains": {"const": 1}}})
    (fault,) = faults_of(same(both("json", schema), ['{"tags": [2]}'])) or [None]
    assert fault is not None
    assert fault[:3] == ("not_allowed", "tags", "does not meet `properties/tags/contains` of the schema")


def test_type_50_what_is_not_required_may_be_null_beside_what_is_asked() -> None:
    schema = _schema(**{"if": _IF, "then": {"required": ["amount"]}, "minProperties": 1})
    assert not faults_of(same(both("json", schema), ['{"kind": null, "amount": null}']))


_BODY = st.dictionaries(
    st.sampled_from(["kind", "amount", "any", "x"]),
    st.integers(0, 3) | st.sampled_from(["card", "a"]) | st.lists(st.integers(0, 2), max_size=2),
)
_PART = st.sampled_from(
    [
        _IF,
        {"required": ["x"]},
        {"properties": {"any": {"type": ["integer", "array"], "minimum": 2}}},
        {"minProperties": 2},
        {"dependentRequired": {"x": ["any"]}},
        {"properties": {"x": {"contains": {"const": 1}}}},
    ]
)
_WORDS = st.fixed_dictionaries(
    {},
    optional={
        "if": _PART,
        "then": _PART,
        "else": _PART,
        "not": _PART,
        "allOf": st.lists(_PART, min_size=1, max_size=2),
        "anyOf": st.lists(_PART, min_size=2, max_size=3),
        "propertyNames": st.just({"maxLength": 4}),
    },
)


@settings(max_examples=settings.default.max_examples * 2)
@given(_WORDS, st.lists(_BODY, min_size=1, max_size=5))
def test_type_50_bodies_are_judged_as_json_schemas_own_package_judges_them(
    more: dict[str, Any], bodies: list[dict[str, Any]]
) -> None:
    schema = {"allOf": [{"type": "object", "properties": {"k": {"type": "integer"}}}, more]}
    judge = Draft202012Validator(schema)
    faults = faults_of(same(both("json", json.dumps(schema)), list(map(json.dumps, bodies)))) or [None] * len(bodies)
    assert [fault is None for fault in faults] == list(map(judge.is_valid, bodies))


def test_type_50_values_that_come_as_columns_are_judged_too() -> None:
    made = codec("json", _schema(**{"if": _IF, "then": {"required": ["amount"]}}))
    rows = [{"kind": "card"}, {"kind": "card", "amount": 1}]
    checked = made.check(pa.array(rows, pa.struct([("kind", pa.string()), ("amount", pa.int64())])))
    assert checked.invalid is not None and checked.invalid.is_valid().to_pylist() == [True, False]
    assert checked.value.is_valid().to_pylist() == [False, True]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"not": {"properties": {"a": {"pattern": "(?=a)"}}}}, "cannot be checked"),
        ({"not": {"$ref": "#/$defs/none"}}, "refers to nothing"),
        ({"not": {"$ref": "other.json"}}, "a reference has the form"),
        ({"not": {"type": "intege"}}, "cannot be checked"),
        ({"$defs": {"t": {"items": {"$ref": "#/$defs/t"}}}, "not": {"$ref": "#/$defs/t"}}, "contains itself"),
        ({"not": {"$dynamicRef": "#a"}}, "use [$]ref"),
        (
            {
                "$defs": {"d0": {}, **{f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n - 1}"}] * 9} for n in range(1, 9)}},
                "not": {"$ref": "#/$defs/d8"},
            },
            "too often",
        ),
    ],
)
def test_type_50_a_schema_that_cannot_be_checked_is_refused(more: dict[str, Any], why: str) -> None:
    with pytest.raises(Unprocessable, match=why) as refused:
        codec("json", _schema(**more))
    assert refused.value.code == "invalid_schema"


def test_type_50_a_body_is_judged_in_bounded_time() -> None:
    schema = _schema(propertyNames={"pattern": "^(a+)+$|any"}, properties={"any": {"type": ["array", "integer"]}})
    texts = [json.dumps({"a" * 5_000 + "!": 1}), '{"any": ' + "[" * 60 + "]" * 60 + "}"]
    faults = faults_of(same(both("json", schema), texts))
    assert [fault is None for fault in faults] == [False, True]


_WORD = st.sampled_from(
    [
        "type",
        "properties",
        "required",
        "if",
        "then",
        "not",
        "allOf",
        "anyOf",
        "oneOf",
        "items",
        "prefixItems",
        "contains",
        "additionalProperties",
        "$ref",
        "$defs",
        "dependencies",
        "dependentRequired",
        "patternProperties",
        "minProperties",
        "enum",
        "const",
        "minimum",
        "exclusiveMinimum",
        "pattern",
    ]
)
_JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 3) | st.sampled_from(["object", "integer", "#/$defs/a", "#", "a", "("]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORD | st.sampled_from("ab"), inner, max_size=3),
    max_leaves=12,
)


@settings(max_examples=settings.default.max_examples * 4)
@given(st.dictionaries(_WORD, _JUNK, min_size=1, max_size=4))
def test_type_50_what_is_no_schema_is_refused_or_judges(more: dict[str, Any]) -> None:
    try:
        made = codec("json", _schema(**more))
    except Unprocessable as refused:
        assert refused.code == "invalid_schema"
    else:
        made.decode(pa.array([b'{"kind": "a", "any": [1]}', b"{}"], pa.binary()))
