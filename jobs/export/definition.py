"""The definition of an export, checked, stored in the warehouse by name, and removed (`tables/ops/exports.py`)."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Final, Literal, get_args

import msgspec

from deltamq.mq.errors import NotFound, Refused
from deltamq.mq.names import check_topic
from deltamq.tables.ops.exports import (
    BATCH_ROWS,
    Definition,
    definition_key,
    definition_names,
    definitions,
    export_folder,
    read_definition,
    removed_definitions,
    removed_key,
)
from deltamq.tables.ops.stored_json import check_name
from deltamq.tables.store.store import Store

#: Columns of the message that an export may include, each named with a leading `_`.
Extra = Literal["topic", "append_time", "born_time", "key", "tag", "headers", "message_id"]
COLUMNS: Final = get_args(Extra)


def definition_of(
    topic: str,
    to: str,
    *,
    schema: str | None = None,
    json_schema: Mapping[str, object] | None = None,
    name: str | None = None,
    columns: Sequence[str] = ("append_time",),
    batch_rows: int = BATCH_ROWS,
    fail_on_data_loss: bool = True,
) -> Definition:
    """Return a checked definition, by default named like the topic; raise `Refused` for an invalid field."""
    check_topic(topic)
    if (schema is None) == (json_schema is None):
        raise Refused("schema: give either a DDL or a JSON schema", field="schema")
    ddl = schema if schema is not None else struct_of_json_schema(json_schema or {})
    unknown = [column for column in columns if column not in COLUMNS]
    if unknown:
        raise Refused(f"columns: {unknown[0]!r} is not one of {', '.join(COLUMNS)}", field="columns")
    chosen = name or re.sub(r"[^A-Za-z0-9._-]", "_", topic)
    check_name(chosen)
    if not to.strip():
        raise Refused("to: must be a path or the name of a table", field="to")
    if batch_rows < 1:
        raise Refused("batch_rows: must be 1 or more", field="batch_rows")
    return Definition(
        name=chosen,
        topic=topic,
        to=to,
        schema=ddl,
        columns=tuple(dict.fromkeys(columns)),
        batch_rows=batch_rows,
        fail_on_data_loss=fail_on_data_loss,
        id=uuid.uuid4().hex,
    )


def save(store: Store, wanted: Definition) -> Definition:
    """Store a definition under its name, or change the existing one; return it with its final id.

    A removed export of the same topic to the same table goes on where it ended.

    Raises
    ------
    Refused
        The name belongs to an export with another topic or table, whose progress does not apply to this one; or the
        table belongs to another export.
    """
    try:
        present = read_definition(store, wanted.name)
    except NotFound:
        present = None
    if present is not None:
        if (present.topic, present.to) != (wanted.topic, wanted.to):
            taken = f"export {wanted.name} is of topic {present.topic} to {present.to}"
            detail = f"name: {taken}; remove it, or use another name"
            raise Refused(detail, field="name")
        wanted = msgspec.structs.replace(wanted, id=present.id)
    elif (other := sharing(store, wanted)) is not None:
        detail = f"to: export {other} writes to {wanted.to} already, and to its quarantine; use another table"
        raise Refused(detail, field="to")
    else:
        earlier = [old for old in removed_definitions(store) if (old.topic, old.to) == (wanted.topic, wanted.to)]
        wanted = msgspec.structs.replace(wanted, id=earlier[0].id) if earlier else wanted
    store.replace(definition_key(wanted.name), msgspec.json.encode(wanted))
    return wanted


def sharing(store: Store, wanted: Definition) -> str | None:
    """Return the name of another export with the same tables; None if there is none."""
    return next(
        (other.name for other in definitions(store) if other.to == wanted.to and other.name != wanted.name), None
    )


def remove_definition(store: Store, name: str, *, forget: bool = False) -> None:
    """Delete an export; its tables stay, and its progress, too, without `forget`.

    With `forget`, the export may also be a removed one.
    """
    earlier = [old for old in removed_definitions(store) if old.name == name]
    present = None if forget and earlier and name not in definition_names(store) else read_definition(store, name)
    if forget:
        for definition in [*earlier, *([] if present is None else [present])]:
            store.delete_tree(export_folder(definition.id))
            store.delete(removed_key(definition.id))
    elif present is not None:
        store.replace(removed_key(present.id), msgspec.json.encode(present))
    if present is not None:
        store.delete(definition_key(name))


# A JSON schema as a table's DDL: objects, arrays, and the formats that have a type in Spark.


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
