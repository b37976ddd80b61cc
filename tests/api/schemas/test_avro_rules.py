"""Avro: what its own package decides, and what is checked beside it (SPEC TYPE-21, TYPE-24)."""

from __future__ import annotations

import json
import unittest
from typing import Any

import pytest
from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType
from avro.test import test_compatibility

from deltamq.api.schemas import avro_rules
from deltamq.api.schemas.texts import Texts
from deltamq.mq.errors import Unprocessable
from deltamq.mq.schemas.limits import SCHEMA_DEPTH_MAX, SCHEMA_FIELDS_MAX

NOTHING = object()


def rec(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def f(name: str, kind: Any = "int", default: Any = NOTHING, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **({} if default is NOTHING else {"default": default}), **more}


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": symbols, **more}


def parsed(schema: Any, **references: Any) -> Any:
    return avro_rules.parsed(Texts(json.dumps(schema), {name: json.dumps(one) for name, one in references.items()}))


def differences(reader: Any, writer: Any) -> list[str]:
    return avro_rules.differences(parsed(reader), parsed(writer))


#: Reader, writer, and whether the first reads what the second wrote: the rules of Avro's specification.
ROWS: dict[str, tuple[Any, Any, bool]] = {
    "the same": (rec(f("a")), rec(f("a")), True),
    "a field more": (rec(f("a"), f("b")), rec(f("a")), False),
    "a field more, with a default": (rec(f("a"), f("b", default=1)), rec(f("a")), True),
    "a field less": (rec(f("a")), rec(f("a"), f("b")), True),
    "by its earlier name": (rec(f("b", aliases=["a"])), rec(f("a")), True),
    "a record by its earlier name": (rec(f("a"), name="S", aliases=["R"]), rec(f("a")), True),
    "another record": (rec(f("a"), name="S"), rec(f("a")), False),
    "wider": (rec(f("a", "double")), rec(f("a", "long")), True),
    "narrower": (rec(f("a", "int")), rec(f("a", "long")), False),
    "text and bytes": (rec(f("a", "bytes")), rec(f("a", "string")), True),
    "into a union": (rec(f("a", ["null", "int"])), rec(f("a")), True),
    "out of a union": (rec(f("a")), rec(f("a", ["null", "int"])), False),
    "a branch more": (["null", "int", "string"], ["null", "int"], True),
    "a branch less": (["null", "int"], ["null", "int", "string"], False),
    "a symbol more": (enum("A", "B"), enum("A"), True),
    "a symbol less": (enum("A"), enum("A", "B"), False),
    "a symbol less, with a default": (enum("A", default="A"), enum("A", "B"), True),
    "items": ({"type": "array", "items": "long"}, {"type": "array", "items": "int"}, True),
    "other items": ({"type": "array", "items": "string"}, {"type": "array", "items": "int"}, False),
    "values": ({"type": "map", "values": "long"}, {"type": "map", "values": "int"}, True),
    "another size": ({"type": "fixed", "name": "F", "size": 2}, {"type": "fixed", "name": "F", "size": 3}, False),
    "a list of itself": (
        rec(f("next", ["null", "R"]), f("v", "long")),
        rec(f("next", ["null", "R"]), f("v", "int")),
        True,
    ),
    "in a list of itself": (
        rec(f("next", ["null", "R"]), f("v", "int")),
        rec(f("next", ["null", "R"]), f("v", "long")),
        False,
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_type_21_what_a_schema_reads_of_another(name: str) -> None:
    reader, writer, fine = ROWS[name]
    assert (differences(reader, writer) == []) is fine, differences(reader, writer)


def test_type_21_a_difference_says_what_and_where() -> None:
    (why,) = differences(rec(f("a", rec(f("b"), name="S"))), rec(f("a", rec(f("c"), name="S"))))
    assert why.startswith("reader_field_missing_default_value: field b has no default") and "/a/type/b" in why


def test_type_22_types_of_references_are_known_by_their_names() -> None:
    order = rec(f("a", "shop.Address"), name="Order")
    address = rec(f("city", "string"), name="Address", namespace="shop")
    assert parsed(order, address=address).fields[0].type.fullname == "shop.Address"
    with pytest.raises(Unprocessable, match=r"shop\.Address"):
        parsed(order)


def nested(depth: int) -> Any:
    schema: Any = "int"
    for at in range(depth):
        schema = rec(f("a", schema), name=f"R{at}")
    return schema


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "record"}, "Name None must be a string"),
        ("text", "not an Avro schema"),
        (rec(f("a", "text")), '"text" not a valid Avro schema'),
        (rec(f("a"), f("a")), "Field name a already in use"),
        (rec(5), "Not a valid field"),
        (["int", "int"], "already in Union"),
        (enum("A", "A"), "Duplicate symbol"),
        ({"type": "fixed", "name": "F", "size": "x"}, "positive integer"),
        (rec(f("a", aliases=-1)), "the aliases of a are no list of names"),
        (rec(f("a", default="x")), "the default of field a is no value of its type"),
        (rec(f("a", default=1.5)), "the default of field a"),
        (rec(f("a", default=2**31)), "the default of field a"),
        (rec(f("a", {"type": "array", "items": "int"}, [1, "x"])), "the default of field a"),
        (rec(f("a", {"type": "map", "values": "int"}, {"x": None})), "the default of field a"),
        (rec(f("a", {"type": "fixed", "name": "F", "size": 2}, "abc")), "the default of field a"),
        (rec(f("a", "bytes", "\u0100")), "the default of field a"),
        (rec(f("a", rec(f("b"), name="S"), {})), "the default of field a"),
        (rec(f("a", ["null", "int"], "x")), "the default of field a"),
        (nested(SCHEMA_DEPTH_MAX + 1), "nested more than 100 levels"),
        (nested(200), "nested"),
        (rec(*(f(f"f{at}") for at in range(SCHEMA_FIELDS_MAX + 1))), "more than 10000 fields"),
        (enum(*(f"S{at}" for at in range(SCHEMA_FIELDS_MAX + 1))), "more than 10000"),
    ],
)
def test_type_24_a_text_that_is_no_schema_is_refused_with_where_and_why(schema: Any, why: str) -> None:
    with pytest.raises(Unprocessable, match=why) as refused:
        parsed(schema)
    assert refused.value.code == "invalid_schema"


def test_type_24_defaults_of_every_type_are_taken() -> None:
    inner = rec(f("b", "string", "x"), name="S")
    for kind, default in (
        *(("null", None), ("boolean", True), ("long", 2**62), ("float", 1), ("double", 1.5), ("string", "x")),
        *(("bytes", "\u00ff"), (enum("A"), "A"), (inner, {}), (["null", "int"], 1)),
        ({"type": "array", "items": ["null", "int"]}, [None, 1]),
    ):
        assert parsed(rec(f("a", kind, default)))


def test_type_24_the_largest_schemas_are_compared_and_large_unions_refused() -> None:
    every = parsed(rec(*(f(f"f{at}", default=0) for at in range(SCHEMA_FIELDS_MAX))))
    other = parsed(rec(*(f(f"g{at}") for at in range(SCHEMA_FIELDS_MAX // 10))))
    assert avro_rules.differences(every, other) == [] and len(avro_rules.differences(other, every)) == 1
    deep = nested(SCHEMA_DEPTH_MAX)
    assert differences(deep, deep) == []
    union = [rec(*(f(f"f{at}_{j}") for j in range(100)), name=f"R{at}") for at in range(70)]
    with pytest.raises(Unprocessable, match="its unions are too large"):
        differences(union, union)


def test_type_21_the_verdicts_on_avros_own_cases_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[bool, bool]] = []

    class Both(ReaderWriterCompatibilityChecker):  # type: ignore[misc] # the package is typed in part
        """The package's, which asks ours as well."""

        def get_compatibility(self, reader: Any, writer: Any, *more: Any) -> Any:
            theirs = super().get_compatibility(reader, writer, *more)
            if not more:
                is_fine = theirs.compatibility is SchemaCompatibilityType.compatible
                seen.append((is_fine, avro_rules.differences(reader, writer) == []))
            return theirs

    monkeypatch.setattr(test_compatibility, "ReaderWriterCompatibilityChecker", Both)
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromModule(test_compatibility).run(result)
    assert result.wasSuccessful() and len(seen) > 150
    assert [pair for pair in seen if pair[0] is not pair[1]] == []
