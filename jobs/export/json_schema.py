"""Converts a JSON schema to a table's DDL: objects, arrays, and the formats that have a type in Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from deltamq.mq.errors import Refused

_TYPES: Final = {"string": "STRING", "integer": "BIGINT", "number": "DOUBLE", "boolean": "BOOLEAN"}
_FORMATS: Final = {"date-time": "TIMESTAMP", "date": "DATE"}


def struct_of_json_schema(schema: Mapping[str, object]) -> str:
    """Return the fields of an object's schema as DDL; required fields are NOT NULL.

    Raises
    ------
    Refused
        The schema is not an object's, or a field's type has no counterpart in Spark.
    """
    return ", ".join(_fields(schema, "json_schema", " "))


def _fields(schema: Mapping[str, object], where: str, between: str) -> list[str]:
    properties = schema.get("properties")
    if schema.get("type") != "object" or not isinstance(properties, Mapping) or not properties:
        raise _wrong(where, 'must be of type "object" and have properties')
    required = schema.get("required", [])
    if not isinstance(required, list):
        raise _wrong(f"{where}.required", "must be a list of names")
    unknown = [name for name in required if name not in properties]
    if unknown:
        raise _wrong(f"{where}.required", f"{unknown[0]!r} is not one of the properties")
    columns = []
    for name, field in properties.items():
        if not isinstance(field, Mapping):
            raise _wrong(f"{where}.{name}", "must be a schema")
        kind, nullable = _type(field, f"{where}.{name}")
        needed = " NOT NULL" if name in required and not nullable else ""
        columns.append(f"`{name.replace('`', '``')}`{between}{kind}{needed}")
    return columns


def _type(field: Mapping[str, object], where: str) -> tuple[str, bool]:
    kind = field.get("type")
    nullable = False
    if isinstance(kind, list):
        kinds = [name for name in kind if name != "null"]
        nullable = len(kinds) < len(kind)
        kind = kinds[0] if len(kinds) == 1 else None
    if kind == "object":
        return f"STRUCT<{', '.join(_fields(field, where, ': '))}>", nullable
    if kind == "array":
        items = field.get("items")
        if not isinstance(items, Mapping):
            raise _wrong(f"{where}.items", "is missing: it gives the type of the elements")
        return f"ARRAY<{_type(items, f'{where}.items')[0]}>", nullable
    if not isinstance(kind, str) or kind not in _TYPES:
        raise _wrong(where, f"has type {kind!r}; use {', '.join([*_TYPES, 'object', 'array'])}, each also with null")
    if kind == "string":
        return _FORMATS.get(str(field.get("format")), "STRING"), nullable
    return _TYPES[kind], nullable


def _wrong(where: str, what: str) -> Refused:
    return Refused(f"{where}: {what}", code="invalid_json_schema", field=where)
