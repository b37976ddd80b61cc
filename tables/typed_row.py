"""The columns that rows of a typed topic have behind those of every message (SPEC TYPE-1).

    offset ... producer_seq | value struct<...> | invalid struct<code, field, reason, schema_id> | rescued string

`value` has the fields of the topic's schema. It only grows: a new version adds fields, and rows of before have null
there. So rows of any age become alike by adding nulls, and a table's type is the union of all types that its rows had:

    {a long}  joined with  {a long, b struct<c string>}  joined with  {b struct<d date>}   =   {a, b struct<c, d>}
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from deltamq.mq.errors import Conflict
from deltamq.tables.schema import DELTA_SCHEMA, MESSAGE_SCHEMA, SIMPLE_TYPES, delta_schema

VALUE: Final = "value"
INVALID: Final = "invalid"
RESCUED: Final = "rescued"
TYPED: Final = (VALUE, INVALID, RESCUED)
#: Why a body did not fit: a code, the path of the field, a sentence, and the id of the schema that it was read with.
INVALID_TYPE: Final = pa.struct(
    [("code", pa.string()), ("field", pa.string()), ("reason", pa.string()), ("schema_id", pa.int32())]
)
_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")
_BY_NAME: Final = {name: kind for kind, name in SIMPLE_TYPES.items()}


def typed_fields(value: pa.StructType) -> list[pa.Field]:
    """Return the fields behind those of every message, for values of this type."""
    return [pa.field(VALUE, value), pa.field(INVALID, INVALID_TYPE), pa.field(RESCUED, pa.string())]


def row_schema(value: pa.StructType | None) -> pa.Schema:
    """Return the schema of a partition's rows; None for one without typed rows."""
    return MESSAGE_SCHEMA if value is None else pa.schema([*MESSAGE_SCHEMA, *typed_fields(value)])


@functools.lru_cache(maxsize=1_024)
def schema_of(delta_json: str) -> pa.Schema:
    """Return the schema of a table's rows from its metadata (`schemaString`)."""
    if delta_json == DELTA_SCHEMA:
        return MESSAGE_SCHEMA
    fields: list[dict[str, Any]] = json.loads(delta_json)["fields"]
    given = next((field["type"] for field in fields if field["name"] == VALUE), None)
    return row_schema(None if given is None else _arrow_type(given))


@functools.lru_cache(maxsize=1_024)
def delta_json_of(schema: pa.Schema) -> str:
    """Return Delta's schema JSON of rows."""
    return delta_schema(schema)


def value_type(schema: pa.Schema) -> pa.StructType | None:
    """Return the type of `value`; None if rows have none."""
    at = schema.get_field_index(VALUE)
    return None if at < 0 else schema.field(at).type


def _arrow_type(kind: Any) -> pa.DataType:
    if isinstance(kind, str):
        match = _DECIMAL.fullmatch(kind)
        return pa.decimal128(int(match[1]), int(match[2])) if match else _BY_NAME[kind]
    match kind["type"]:
        case "array":
            return pa.list_(_arrow_type(kind["elementType"]))
        case "map":
            return pa.map_(_arrow_type(kind["keyType"]), _arrow_type(kind["valueType"]))
    return pa.struct([(field["name"], _arrow_type(field["type"])) for field in kind["fields"]])


def joined(known: pa.DataType, more: pa.DataType, path: str = VALUE) -> pa.DataType:
    """Return the type that has the fields of both: those of `known` first, in their order.

    Raises
    ------
    Conflict
        `schema_conflict`: a field has another type in `more`; the message names it.
    """
    if known == more:
        return known
    if pa.types.is_struct(known) and pa.types.is_struct(more):
        fields = {field.name: field.type for field in known}
        for field in more:
            before = fields.get(field.name)
            here = f"{path}.{field.name}"
            fields[field.name] = field.type if before is None else joined(before, field.type, here)
        return pa.struct(list(fields.items()))
    if pa.types.is_list(known) and pa.types.is_list(more):
        return pa.list_(joined(known.value_type, more.value_type, f"{path}[]"))
    if pa.types.is_map(known) and pa.types.is_map(more) and known.key_type == more.key_type:
        return pa.map_(known.key_type, joined(known.item_type, more.item_type, f"{path}{{}}"))
    raise Conflict(
        f"{path} is {known} in the table, and {more} now: a field keeps its type; give the new one another name",
        code="schema_conflict",
        field="schema",
    )


def joined_fields(batches: Sequence[pa.RecordBatch]) -> list[pa.Field]:
    """Return the typed fields that some of the batches have, with the types that have room for all."""
    kinds: dict[str, pa.DataType] = {}
    for batch in batches:
        for field in batch.schema:
            if field.name in TYPED:
                known = kinds.get(field.name)
                kinds[field.name] = field.type if known is None else joined(known, field.type)
    return [pa.field(name, kinds[name]) for name in TYPED if name in kinds]


def conformed(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column as the type `kind`, which has all its fields: fields that it lacks are null."""
    if column.type == kind:
        return column
    if pa.types.is_struct(kind):
        own = column.type
        children = []
        for field in kind:
            at = own.get_field_index(field.name)
            children.append(pa.nulls(len(column), field.type) if at < 0 else conformed(column.field(at), field.type))
        mask = column.is_null() if column.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
    if pa.types.is_list(kind):
        parts = [conformed(column.values, kind.value_type)]
        return pa.Array.from_buffers(kind, len(column), column.buffers()[:2], offset=column.offset, children=parts)
    if pa.types.is_map(kind):
        items = conformed(column.items, kind.item_type)
        entries = pa.StructArray.from_arrays([column.keys, items], fields=[kind.key_field, kind.item_field])
        return pa.Array.from_buffers(kind, len(column), column.buffers()[:2], offset=column.offset, children=[entries])
    raise AssertionError(f"{column.type} is not {kind}: `joined` allows no change of a type")


def conformed_rows(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with just the columns of `schema`; typed ones may be missing, or have fewer fields."""
    if rows.schema == schema:
        return rows
    return pa.Table.from_arrays([_column(rows, field) for field in schema], schema=schema)


@functools.lru_cache(maxsize=1_024)
def picked(delta_json: str, columns: tuple[str, ...] | None) -> pa.Schema:
    """Return the schema of these columns of a table's rows, without typed columns that the table lacks.

    None stands for the columns of every message.
    """
    if columns is None:
        return MESSAGE_SCHEMA
    schema = schema_of(delta_json)
    names = set(schema.names)
    return pa.schema([schema.field(name) for name in columns if name in names or name not in TYPED])


def _column(rows: pa.Table, field: pa.Field) -> pa.ChunkedArray:
    at = rows.schema.get_field_index(field.name)
    if at < 0:
        return pa.chunked_array([pa.nulls(rows.num_rows, field.type)])
    column = rows.column(at)
    if column.type == field.type:
        return column
    return pa.chunked_array([conformed(chunk, field.type) for chunk in column.chunks], field.type)


def parquet_leaves(schema: pa.Schema) -> list[str]:
    """Return the paths of the typed columns' leaves in a parquet file."""
    return [path for field in schema if field.name in TYPED for path in _leaves(field.type, field.name)]


def _leaves(kind: pa.DataType, path: str) -> list[str]:
    if pa.types.is_struct(kind):
        return [leaf for field in kind for leaf in _leaves(field.type, f"{path}.{field.name}")]
    if pa.types.is_list(kind):
        return _leaves(kind.value_type, f"{path}.list.element")
    if pa.types.is_map(kind):
        return [f"{path}.key_value.key", *_leaves(kind.item_type, f"{path}.key_value.value")]
    return [path]


def bounded_leaves(schema: pa.Schema) -> dict[str, pa.DataType]:
    """Return the types of the leaves that have one value a row: bounds of others skip nothing."""
    return {path: kind for field in schema if field.name in TYPED for path, kind in _single(field.type, field.name)}


def _single(kind: pa.DataType, path: str) -> list[tuple[str, pa.DataType]]:
    if pa.types.is_struct(kind):
        return [leaf for field in kind for leaf in _single(field.type, f"{path}.{field.name}")]
    return [] if pa.types.is_nested(kind) else [(path, kind)]


def untyped(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows without typed columns, for logs of other rows than the topic's: they get them when they come back."""
    names = [name for name in rows.schema.names if name not in TYPED]
    return rows if len(names) == rows.num_columns else rows.select(names)
