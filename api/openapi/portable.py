"""The document as generators of clients for other languages read it; what is valid stays as it was.

    {"anyOf": [{"type": "string"}, {"type": "null"}], "default": null}  ->  {"type": ["string", "null"]}
    {"type": "integer", "default": 0}  of a field                       ->  {..., "description": "By default 0."}
    {"type": "integer"}                                    ->  {..., "format": "int64", "maximum": 9007199254740991}

Generators take a field with a default for one that is always there, and an integer without a format for one of 32 bits.
JavaScript holds no integer above 2^53 - 1 (SPEC LOOK-21): one that may be greater says so.
"""

from __future__ import annotations

import inspect
from typing import Any, Final

import msgspec

from deltamq.api.wire.openapi_parts import Json
from deltamq.mq.limits import JSON_INTEGER_MAX

_INT32_MAX: Final = 2**31 - 1
NULL: Final[Json] = {"type": "null"}
#: Fields of a schema that hold values, not schemas.
_VALUES: Final = frozenset({"default", "enum", "example", "examples"})


def make_portable(value: Any) -> None:
    """Rewrite all schemas and descriptions in a part of the document, in place."""
    if isinstance(value, list):
        for item in value:
            make_portable(item)
    elif isinstance(value, dict):
        if value.get("in") == "query" and NULL in value["schema"].get("anyOf", []):  # a query cannot say it
            value["schema"]["anyOf"].remove(NULL)
        fields = value.get("properties", {})
        for name, field in fields.items():
            if name not in value.get("required", ()):
                _describe_default(field)
            make_portable(field)
        for name, item in value.items():
            if name != "properties" and name not in _VALUES:
                make_portable(item)
        if value.get("items") is False:  # as many as `prefixItems`, which `maxItems` says, too
            del value["items"]
        _flatten(value)
        if isinstance(value.get("description"), str):
            value["description"] = inspect.cleandoc(value["description"])


def _describe_default(field: Json) -> None:
    """Say in words what counts for a field that is left out."""
    default = field.pop("default", None)
    if default not in (None, [], {}, ""):
        said = f"By default {msgspec.json.encode(default).decode()}."
        field["description"] = f"{field['description']} {said}" if "description" in field else said


def _flatten(schema: Json) -> None:
    """Write "this or null" as one schema, and give each word and integer its type."""
    kinds = [kind for kind in schema.get("anyOf", []) if kind != NULL]
    if len(kinds) == 1 and "type" in kinds[0] and isinstance(kinds[0]["type"], str):
        (kind,), nullable = kinds, NULL in schema.pop("anyOf")
        schema |= {**kind, **schema}
        if kind["type"] == "integer":
            _bound(schema)
        if nullable:
            schema["type"] = [kind["type"], "null"]
            if "enum" in kind:
                schema["enum"] = [*kind["enum"], None]
    elif "enum" in schema:
        schema["type"] = "string"
    elif schema.get("type") == "integer":
        _bound(schema)


def _bound(schema: Json) -> None:
    """Give an integer its size, and its greatest value if it has none that is smaller."""
    schema["format"] = "int32" if 0 <= schema.get("maximum", -1) <= _INT32_MAX else "int64"
    if "2^53" not in schema.get("description", ""):
        schema["maximum"] = min(schema.get("maximum", JSON_INTEGER_MAX), JSON_INTEGER_MAX)
    elif schema.get("maximum") == JSON_INTEGER_MAX:  # it was given before its description
        del schema["maximum"]
