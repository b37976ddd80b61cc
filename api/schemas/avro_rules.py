"""Avro: schemas are parsed, and compared, by the Apache project's own package.

Beside what the package checks: values of defaults, depth, and the number of fields. Its comparison is bounded, and
looks fields up in a map that is made once for each record: the package makes one for each field.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Mapping
from typing import Any, Final

from avro.compatibility import (
    CompatibleResult,
    ReaderWriterCompatibilityChecker,
    SchemaCompatibilityType,
    SchemaIncompatibilityType,
    incompatible,
    merge,
)
from avro.errors import AvroException
from avro.name import Names
from avro.schema import make_avsc_object

from deltamq.api.schemas.texts import DIFFERENCES_MAX, Texts, invalid, json_of
from deltamq.mq.errors import Unprocessable
from deltamq.mq.schemas.limits import SCHEMA_DEPTH_MAX, SCHEMA_FIELDS_MAX

#: Pairs of schemas that one comparison looks at: as many as two schemas of the most fields have, unions apart.
_PAIRS_MAX: Final = 20 * SCHEMA_FIELDS_MAX
_INTEGERS: Final = {"int": 2**31, "long": 2**63}
_NOT_LATIN: Final = re.compile(r"[^\x00-\xff]")


def parsed(texts: Texts) -> Any:
    """Return the package's schema, with the types of the references known by their names."""
    names = Names()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of logical types that it does not know
            # A text that schemas have two names for defines its types once.
            for text in dict.fromkeys(texts.references.values()):
                _made(json_of(text), names, "a reference: ")
            return _made(json_of(texts.schema), names, "")
    except RecursionError:
        raise invalid("it is nested too deeply") from None


def _made(document: Any, names: Names, where: str) -> Any:
    _Size().count(document, 0)
    try:
        schema = make_avsc_object(document, names)
    except (AvroException, TypeError, ValueError, AttributeError, KeyError) as error:
        raise invalid(f"{where}not an Avro schema: {str(error)[:500]}") from None
    _check_defaults(schema, set())
    return schema


class _Size:
    """Counts fields, symbols and branches, and the levels of a schema."""

    def __init__(self) -> None:
        # The schema as a whole is none of them.
        self._fields = -1

    def count(self, schema: Any, depth: int) -> None:
        self._fields += 1
        if depth > SCHEMA_DEPTH_MAX:
            raise invalid(f"it is nested more than {SCHEMA_DEPTH_MAX} levels deep")
        inner = schema if isinstance(schema, list) else []
        if isinstance(schema, dict):
            symbols, fields = schema.get("symbols"), schema.get("fields")
            for named in (schema, *(fields if isinstance(fields, list) else ())):
                _check_aliases(named)
            self._fields += len(symbols) if isinstance(symbols, list) else 0
            inner = [one.get("type") for one in fields if isinstance(one, dict)] if isinstance(fields, list) else []
            inner += [schema[name] for name in ("items", "values", "type") if isinstance(schema.get(name), dict | list)]
        if self._fields > SCHEMA_FIELDS_MAX:
            raise invalid(f"it has more than {SCHEMA_FIELDS_MAX} fields, symbols and branches")
        for one in inner:
            self.count(one, depth if isinstance(schema, list) else depth + 1)


def _check_aliases(named: Any) -> None:
    aliases = named.get("aliases", []) if isinstance(named, dict) else []
    if not isinstance(aliases, list) or not all(isinstance(one, str) for one in aliases):
        raise invalid(f"the aliases of {str(named.get('name'))[:100]} are no list of names")


def _check_defaults(schema: Any, seen: set[int]) -> None:
    if id(schema) in seen:
        return
    seen.add(id(schema))
    for field in getattr(schema, "fields", None) or ():
        if field.has_default and not _fits(field.type, field.default):
            raise invalid(f"the default of field {field.name[:100]} is no value of its type")
        _check_defaults(field.type, seen)
    for part in ("items", "values"):
        if schema.type in ("array", "map") and hasattr(schema, part):
            _check_defaults(getattr(schema, part), seen)
    for branch in getattr(schema, "schemas", None) or ():
        _check_defaults(branch, seen)


def _fits(schema: Any, value: Any) -> bool:
    """Whether a JSON value is one of a schema, as defaults are written: bytes as text, a union as one of its types."""
    kind, is_number = schema.type, isinstance(value, int | float) and not isinstance(value, bool)
    if kind in _INTEGERS:
        return is_number and value == math.floor(value) and -_INTEGERS[kind] <= value < _INTEGERS[kind]
    if kind in ("bytes", "fixed"):
        is_latin = isinstance(value, str) and not _NOT_LATIN.search(value)
        return is_latin and (kind == "bytes" or len(value) == schema.size)
    if kind in ("union", "error_union"):
        return any(_fits(branch, value) for branch in schema.schemas)
    if kind == "record":
        return isinstance(value, Mapping) and all(
            _fits(field.type, value[field.name]) if field.name in value else field.has_default
            for field in schema.fields
        )
    simple = {
        "null": value is None,
        "boolean": isinstance(value, bool),
        "float": is_number,
        "double": is_number,
        "string": isinstance(value, str),
        "enum": kind == "enum" and value in schema.symbols,
        "array": isinstance(value, list) and kind == "array" and all(_fits(schema.items, one) for one in value),
        "map": isinstance(value, Mapping)
        and kind == "map"
        and all(_fits(schema.values, one) for one in value.values()),
    }
    return simple.get(kind, True)


class _Checker(ReaderWriterCompatibilityChecker):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # the package is typed in part
        self._pairs = 0
        self._fields: dict[int, dict[str, Any]] = {}

    def calculate_compatibility(self, reader: Any, writer: Any, location: list[str]) -> Any:
        self._pairs += 1 + len(getattr(reader, "symbols", ())) + len(getattr(writer, "symbols", ()))
        if self._pairs > _PAIRS_MAX:
            raise Unprocessable(
                f"schema: its unions are too large: more than {_PAIRS_MAX} pairs of parts would have to be compared",
                code="invalid_schema",
                field="schema",
            )
        return super().calculate_compatibility(reader, writer, location)

    def check_reader_writer_record_fields(self, reader: Any, writer: Any, location: list[str]) -> Any:
        self._pairs += len(reader.fields)
        written = self._fields.get(id(writer))
        if written is None:
            written = self._fields[id(writer)] = {field.name: field for field in writer.fields}
        result = CompatibleResult
        for field in reader.fields:
            at = [*location, field.name]
            names = (field.name, *(field.props.get("aliases") or ()))
            same = next((written[name] for name in names if name in written), None)
            if same is not None:
                part = self.get_compatibility(field.type, same.type, "type", at)
            elif field.has_default:
                continue
            else:
                why = f"field {field.name} has no default, and is not written"
                part = incompatible(SchemaIncompatibilityType.reader_field_missing_default_value, why, at)
            if part.compatibility is not SchemaCompatibilityType.compatible:
                result = merge(result, part)
            if len(result.messages) > DIFFERENCES_MAX:
                break
        return result


def differences(reader: Any, writer: Any) -> list[str]:
    """Return what the package says against reading what `writer` wrote as `reader`."""
    try:
        result = _Checker().get_compatibility(reader, writer)
    except RecursionError:
        raise invalid("it is nested too deeply") from None
    if result.compatibility is SchemaCompatibilityType.compatible:
        return []
    kinds = ", ".join(sorted({str(one.name) for one in result.incompatibilities}))
    return [f"{kinds}: {'; '.join(sorted(result.messages))} (at {', '.join(sorted(result.locations))})"]
