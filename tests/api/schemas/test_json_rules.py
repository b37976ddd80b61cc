"""JSON Schema: which change is compatible, by the kinds of change that Confluent's registry names (SPEC TYPE-21).

Each row is a writer's schema, a reader's schema, and whether the reader accepts whatever the writer accepts. The rows
cover the kinds of change of Confluent's published examples (263 of them, at its commit 794611bd), with whose verdicts
these rules were held: four differ. `additionalItems` without a list of `items` says nothing here (two), and a property
that becomes required needs a default, whether or not it has a schema (two).
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from deltamq.api.schemas import json_rules
from deltamq.api.schemas.texts import Texts
from deltamq.mq.errors import Unprocessable
from deltamq.mq.schemas.limits import SCHEMA_DEPTH_MAX, SCHEMA_FIELDS_MAX

A = {"type": "object", "properties": {"a": {"type": "string"}}}
CLOSED = {"additionalProperties": False}
NUMBERS = {"additionalProperties": {"type": "number"}}
INT, TEXT = {"type": "integer"}, {"type": "string"}


def differences(reader: Any, writer: Any, **references: Any) -> list[str]:
    def parsed(schema: Any) -> Any:
        texts = {name: json.dumps(text) for name, text in references.items()}
        return json_rules.parsed(Texts(json.dumps(schema), texts))

    return json_rules.differences(parsed(reader), parsed(writer))


def obj(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **({"required": list(required)} if required else {})}


ROWS: dict[str, tuple[Any, Any, bool]] = {
    "anything": (A, {}, True),
    "anything, as true": (A, True, True),
    "nothing was written": (False, A, True),
    "nothing is read": (A, False, False),
    "from anything": ({}, A, False),
    "words about it": ({**A, "title": "x", "$id": "http://a/1", "default": 1}, {**A, "description": "y"}, True),
    "another type": (TEXT, INT, False),
    "a wider number": (INT, {"type": "number"}, True),
    "a narrower number": ({"type": "number"}, INT, False),
    "a type more": (TEXT, {"type": ["null", "string"]}, True),
    "a type less": ({"type": ["null", "string"]}, TEXT, False),
    "types in another order": ({"type": ["null", "string"]}, {"type": ["string", "null"]}, True),
    "one type in a list": ({"type": ["string"]}, TEXT, True),
    **{
        f"{name} {was} to {now}": (
            {**({name: was} if was is not None else {})},
            {**({name: now} if now is not None else {})},
            fine,
        )
        for name, was, now, fine in (
            ("maxLength", 5, 6, True),
            ("maxLength", 5, 4, False),
            ("maxLength", 5, None, True),
            ("maxLength", None, 5, False),
            ("minLength", 5, 4, True),
            ("minLength", 5, 6, False),
            ("maximum", 5, 6, True),
            ("maximum", 5, 4, False),
            ("exclusiveMaximum", 5, 4, False),
            ("minimum", 5, 4, True),
            ("minimum", 5, 6, False),
            ("multipleOf", 10, 5, True),
            ("multipleOf", 10, 3, False),
            ("multipleOf", 10, 20, False),
            ("multipleOf", None, 2, False),
            ("pattern", "a", None, True),
            ("pattern", "a", "b", False),
            ("enum", ["a"], ["b", "a"], True),
            ("enum", ["a", "b"], ["a"], False),
            ("enum", None, ["a"], False),
            ("enum", [1], [1, True], True),
            ("const", 1, 1, True),
            ("const", 1, 2, False),
            ("maxItems", 3, 2, False),
            ("minItems", 3, 2, True),
            ("uniqueItems", True, False, True),
            ("uniqueItems", False, True, False),
            ("maxProperties", 3, 4, True),
            ("minProperties", 3, 4, False),
            ("minContains", 1, 2, False),
            ("contains", INT, TEXT, False),
        )
    },
    "draft 4's bound": ({"maximum": 5, "exclusiveMaximum": True}, {"exclusiveMaximum": 5}, True),
    "draft 4's bound was no bound": ({"maximum": 5, "exclusiveMaximum": False}, {"maximum": 5}, True),
    # objects: open, partly open and closed
    "a property more, where anything was": (A, obj(a=TEXT, b=INT), False),
    "a property of anything more": (A, obj(a=TEXT, b={}), True),
    "a property less, where anything is": (obj(a=TEXT, b=INT), A, True),
    "an optional property more, where nothing was": ({**A, **CLOSED}, {**obj(a=TEXT, b=INT), **CLOSED}, True),
    "a required one more": ({**A, **CLOSED}, {**obj("b", a=TEXT, b=INT), **CLOSED}, False),
    "a required one with a default": (
        {**A, **CLOSED},
        {**obj("b", a=TEXT, b={**INT, "default": 1}), **CLOSED},
        True,
    ),
    "a property less, where nothing is": ({**obj(a=TEXT, b=INT), **CLOSED}, {**A, **CLOSED}, False),
    "a property that nobody had less": ({**obj(a=TEXT, b=False), **CLOSED}, {**A, **CLOSED}, True),
    "a property more, covered": ({**A, **NUMBERS}, {**obj(a=TEXT, b={"type": "number"}), **NUMBERS}, True),
    "a property more, not covered": ({**A, **NUMBERS}, {**obj(a=TEXT, b=TEXT), **NUMBERS}, False),
    "a property less, covered": ({**obj(a=TEXT, b=INT), **NUMBERS}, {**A, **NUMBERS}, True),
    "a property less, not covered": ({**obj(a=TEXT, b=TEXT), **NUMBERS}, {**A, **NUMBERS}, False),
    "closed": (A, {**A, **CLOSED}, False),
    "opened": ({**A, **CLOSED}, A, True),
    "opened in part": ({**A, **CLOSED}, {**A, **NUMBERS}, True),
    "closed in part": (A, {**A, **NUMBERS}, False),
    "by a pattern": (
        {**obj(a=TEXT), "patternProperties": {"^x": INT}, **CLOSED},
        {**obj(a=TEXT, xa=INT), "patternProperties": {"^x": INT}, **CLOSED},
        True,
    ),
    "another pattern": ({**A, "patternProperties": {"^x": INT}}, {**A, "patternProperties": {"^x": TEXT}}, False),
    "required before": (obj("a", a=TEXT), obj(a=TEXT), True),
    "required now": (obj(a=TEXT), obj("a", a=TEXT), False),
    "required now, with a default": (obj(a=TEXT), obj("a", a={**TEXT, "default": ""}), True),
    "inside": (obj(a=obj(b=INT)), obj(a=obj(b=TEXT)), False),
    "names of properties": ({"propertyNames": {"maxLength": 5}}, {"propertyNames": {"maxLength": 4}}, False),
    "a dependency more": ({}, {"dependencies": {"a": ["b"]}}, False),
    "a dependency of more": ({"dependencies": {"a": ["b"]}}, {"dependentRequired": {"a": ["b", "c"]}}, False),
    "a dependency of less": ({"dependencies": {"a": ["b", "c"]}}, {"dependentRequired": {"a": ["b"]}}, True),
    "a dependency's schema": ({"dependentSchemas": {"a": A}}, {"dependencies": {"a": A}}, True),
    "a condition": ({"if": INT, "then": {"minimum": 1}}, {"if": INT, "then": {"minimum": 2}}, False),
    # arrays
    "items": ({"items": INT}, {"items": {"type": "number"}}, True),
    "other items": ({"items": INT}, {"items": TEXT}, False),
    "an item more, where nothing was": ({"items": [INT], "additionalItems": False}, {"prefixItems": [INT, TEXT]}, True),
    "an item more, where anything was": ({"items": [INT]}, {"items": [INT, TEXT]}, False),
    "an item less, where anything is": ({"items": [INT, TEXT]}, {"items": [INT]}, True),
    "an item less, where nothing is": (
        {"items": [INT, TEXT], "additionalItems": False},
        {"prefixItems": [INT], "items": False},
        False,
    ),
    # choices and products
    "a branch more": ({"oneOf": [INT, TEXT]}, {"oneOf": [{"type": "null"}, TEXT, INT]}, True),
    "a branch less": ({"anyOf": [INT, TEXT, {"type": "null"}]}, {"anyOf": [TEXT, INT]}, False),
    "into a choice": (INT, {"oneOf": [TEXT, INT]}, True),
    "into a choice without it": (INT, {"oneOf": [TEXT, {"type": "null"}]}, False),
    "out of a choice": ({"oneOf": [TEXT, INT]}, INT, False),
    "a choice of one": ({"oneOf": [INT]}, INT, True),
    "anyOf for oneOf": ({"oneOf": [INT, TEXT]}, {"anyOf": [INT, TEXT]}, True),
    "a part less": ({"allOf": [INT, {"minimum": 1}]}, {"allOf": [INT]}, True),
    "a part more": ({"allOf": [INT]}, {"allOf": [INT, {"minimum": 1}]}, False),
    "parts in another order": ({"allOf": [INT, {"minimum": 1}]}, {"allOf": [{"minimum": 1}, INT]}, True),
    "less is excluded": ({"not": {"type": ["string", "null"]}}, {"not": TEXT}, True),
    "more is excluded": ({"not": TEXT}, {"not": {"type": ["string", "null"]}}, False),
    "a not more": (INT, {"not": TEXT}, False),
    # references
    "by reference": (
        {"$ref": "#/$defs/a", "$defs": {"a": INT}},
        {"$ref": "#/definitions/b", "definitions": {"b": INT}},
        True,
    ),
    "by anchor": ({"$ref": "#x", "$defs": {"a": {"$anchor": "x", **INT}}}, INT, True),
    "by id": ({"$id": "http://a/b", "$ref": "c", "$defs": {"a": {"$id": "c", **INT}}}, INT, True),
    "other by reference": ({"$ref": "#/$defs/a", "$defs": {"a": INT}}, TEXT, False),
    "a list of itself": (obj(next={"$ref": "#"}), obj(next={"$ref": "#"}), True),
    "a schema": (obj(a={"$ref": "http://json-schema.org/draft-07/schema#"}), obj(a={}), True),
}


@pytest.mark.parametrize("name", ROWS)
def test_type_21_what_a_schema_accepts_of_another(name: str) -> None:
    writer, reader, fine = ROWS[name]
    assert (differences(reader, writer) == []) is fine, differences(reader, writer)
    assert differences(reader, reader) == differences(writer, writer) == []


def test_type_21_a_difference_says_where_it_is() -> None:
    assert differences(obj(a=obj(b=TEXT)), obj(a=obj(b=INT))) == [
        "#/properties/a/properties/b: type string was integer"
    ]
    assert differences({"minimum": 3}, {"minimum": 2}) == ["#: minimum 3 was 2"]


def test_type_22_a_schema_refers_to_others_by_name_and_to_their_parts() -> None:
    other = {"$defs": {"id": INT}, "type": "object"}
    mine = obj(a={"$ref": "other.json"}, b={"$ref": "other.json#/$defs/id"})
    assert differences(mine, mine, **{"other.json": other}) == []
    assert differences(mine, obj(a={}, b={}), **{"other.json": other}) != []
    with pytest.raises(Unprocessable, match=r"'third\.json' leads nowhere"):
        differences({"$ref": "third.json"}, {}, **{"other.json": other})


def nested(depth: int) -> Any:
    schema: Any = INT
    for _ in range(depth):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (5, "a schema is an object, true or false"),
        ({"type": "text"}, "'text' is none of null"),
        ({"properties": []}, "is no value of this keyword"),
        ({"properties": {"a": 1}}, "/properties/a: a schema is an object"),
        ({"anyOf": {}}, "is no value of this keyword"),
        ({"minimum": "1"}, "is no value of this keyword"),
        ({"required": "a"}, "is no value of this keyword"),
        ({"dependentRequired": "null"}, "is no value of this keyword"),
        ({"dependentRequired": {"a": 1}}, "is no value of this keyword"),
        ({"dependencies": {"a": [1]}}, "is no value of this keyword"),
        ({"exclusiveMinimum": {}}, "is no value of this keyword"),
        ({"multipleOf": 0}, "is no value of this keyword"),
        ({"$ref": 5}, r"\$ref must be a text"),
        ({"$ref": "#/definitions/a"}, "leads nowhere"),
        ({"$ref": "#/x", "x": 5}, "is no schema"),
        (nested(SCHEMA_DEPTH_MAX + 1), "nested more than 100 levels"),
        (nested(400), "nested"),
        ({"oneOf": [{}] * SCHEMA_FIELDS_MAX}, "more than 10000 schemas"),
    ],
)
def test_type_24_a_text_that_is_no_schema_is_refused_with_where_and_why(schema: Any, why: str) -> None:
    with pytest.raises(Unprocessable, match=why) as refused:
        json_rules.parsed(Texts(json.dumps(schema), {}))
    assert refused.value.code == "invalid_schema"


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', "{", "[1", "NaN", "1e400", "\ud800", "[" * 100_000])
def test_type_24_a_text_that_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(Unprocessable, match="not JSON"):
        json_rules.parsed(Texts(text, {}))


def test_type_24_choices_of_choices_end() -> None:
    def choices(depth: int) -> Any:
        return INT if not depth else {"anyOf": [choices(depth - 1) for _ in range(8)]}

    assert differences(choices(3), choices(3)) == []
    many = {"anyOf": [{"pattern": f"{at:100}"} for at in range(200)]}
    with pytest.raises(Unprocessable, match="its choices are too large"):
        differences(many, many)


def test_type_24_lists_of_schemas_that_double_fill_no_memory() -> None:
    defs = {f"a{at}": {"allOf": [{"$ref": f"#/$defs/a{at + 1}"}] * 2} for at in range(60)}
    doubling = {"$ref": "#/$defs/a0", "$defs": {**defs, "a60": TEXT}}
    assert differences(doubling, doubling) == [] and differences({**doubling, "maxLength": 3}, doubling) != []


def test_type_24_patterns_are_matched_in_bounded_time() -> None:
    slow = {"patternProperties": {"(a+)+$": INT}, **CLOSED}
    assert differences(slow, {**obj(**{"a" * 50_000 + "b": INT}), **CLOSED}) != []
    # What is compared beside the patterns leaves them little of what a comparison may cost.
    names = {"properties": {f"a{at}": {} for at in range(100)}, "pattern": "x" * 196_000}
    assert differences(names, {"patternProperties": {"b": TEXT}}) != []
    with pytest.raises(Unprocessable, match="its choices are too large"):
        differences(names, {"patternProperties": {f"b{at}": TEXT for at in range(100)}})
