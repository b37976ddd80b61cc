"""The columns of a typed topic in a read: which it has, and rows of any version with just these (SPEC TYPE-41)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from deltamq.jobs.read.identifiers import literal, quoted
from deltamq.jobs.read.offset_range import selected
from deltamq.jobs.read.options import ReadOptions
from deltamq.jobs.read.stored_partition import StoredTable
from deltamq.jobs.read.topics import Catalog
from deltamq.mq.errors import Conflict, Refused
from deltamq.tables.queue.topic_codecs import TopicCodecs
from deltamq.tables.schema import SIMPLE_TYPES
from deltamq.tables.typed.json.rendering import with_bodies
from deltamq.tables.typed_row import INVALID, INVALID_TYPE, RESCUED, TYPED, VALUE, conformed, joined


def planned_values(catalog: Catalog, options: ReadOptions) -> pa.StructType:
    """Return the type of `value` for the selected topics: the fields of all versions, and of all their tables.

    Raises
    ------
    Refused
        `no_schema`: no selected topic has a schema.
    Conflict
        `schema_conflict`: a field has different types in the topics or tables.
    """
    known: pa.DataType | None = None
    tables = list(selected(catalog, replace(options, excepted=frozenset())))
    for topic in dict.fromkeys(table.ref.topic for table in tables):
        known = _with(known, values_of_topic(catalog, topic))
    if known is None:
        topics = ", ".join(dict.fromkeys(table.ref.topic for table in tables))
        raise Refused(f"option typed: topic {topics} has no schema; leave it out", code="no_schema", field="typed")
    return known


def values_of_topic(catalog: Catalog, topic: str) -> pa.StructType | None:
    """Return the type of a topic's values; None for a topic of bytes. Raises `Conflict` as `planned_values` does."""
    known = _of_versions(catalog, topic)
    for partition in catalog.partitions(topic):
        table = StoredTable.load(catalog.store, partition)
        if table is not None:
            known = _with(known, table.value)
    return known


def _of_versions(catalog: Catalog, topic: str) -> pa.StructType | None:
    meta = catalog.meta
    described = None if meta is None else meta.topics.topics.get(topic)
    if meta is None or described is None:
        return None
    try:
        codec = TopicCodecs(lambda: meta).of(described)
    except Conflict:
        return None  # its subject has no version now: the tables have what there was
    return None if codec is None else codec.value_type


def _with(known: pa.DataType | None, more: pa.DataType | None) -> pa.DataType | None:
    return known or more if known is None or more is None else joined(known, more)


# Rows of files.


def handed_out(rows: pa.Table, *, quarantined: bool) -> pa.Table:
    """Return rows with their bodies, without those that did not fit unless these are wanted."""
    at = rows.schema.get_field_index(INVALID)
    if at >= 0 and not quarantined and rows.column(at).null_count < rows.num_rows:
        rows = rows.filter(pc.is_null(rows.column(at)))
    return with_bodies(rows)


def typed_makers(types: Mapping[str, pa.DataType]) -> dict[str, Callable[[pa.RecordBatch], pa.Array]]:
    """Return what makes the typed columns, of these types, of rows whose files may lack them, or fields of them."""
    return {name: functools.partial(_column, name, types[name]) for name in TYPED if name in types}


def _column(name: str, kind: pa.DataType, rows: pa.RecordBatch) -> pa.Array:
    at = rows.schema.get_field_index(name)
    if at < 0:
        return pa.nulls(rows.num_rows, kind)
    _check_fits(rows.schema.field(at).type, kind)
    return conformed(rows.column(at), kind)


@functools.lru_cache(maxsize=256)
def _check_fits(stored: pa.DataType, wanted: pa.DataType) -> None:
    joined(stored, wanted)


# The same in SQL, over a partition's Delta table.


def sql_of_typed(name: str, stored: pa.StructType | None, wanted: pa.StructType) -> str:
    """Return a typed column of a table whose values are `stored`, as SQL; a table without values has nulls."""
    kind = {VALUE: wanted, INVALID: INVALID_TYPE, RESCUED: pa.string()}[name]
    if stored is None:
        return f"CAST(NULL AS {_sql_type(kind)})"
    return quoted(name) if name != VALUE else conformed_sql(quoted(VALUE), stored, wanted)


#: The columns of the view of a topic's values behind its fields, and of which columns of the message row they are. A
#: field of such a name has its place.
_OF_MESSAGES: Final = {
    "mq_key": "key",
    "mq_partition": "partition",
    "mq_offset": "offset",
    "mq_append_time": "append_time",
    "mq_rescued": RESCUED,
}
#: The columns of the view of what did not fit.
_OF_QUARANTINE: Final = ("partition", "offset", "append_time", "message_id", "key", "tag", "headers", "body")


def values_columns(stored: pa.StructType, wanted: pa.StructType, made: Mapping[str, str]) -> list[str]:
    """Return what the view of a table's values selects: the fields `wanted` as columns, then those of `_OF_MESSAGES`.

    `made` has columns that the table lacks as SQL.
    """
    fields = {field.name: field.type for field in stored}
    columns = [f"{sql_of_field(quoted(VALUE), fields, field)} AS {quoted(field.name)}" for field in wanted]
    taken = {field.name.lower() for field in wanted}
    others = [(name, source) for name, source in _OF_MESSAGES.items() if name not in taken]
    return columns + [f"{made.get(source, quoted(source))} AS {name}" for name, source in others]


def quarantine_columns(made: Mapping[str, str]) -> list[str]:
    """Return what the view of messages that did not fit selects of a table: the message, and the reasons why."""
    columns = [f"{made.get(name, quoted(name))} AS {quoted(name)}" for name in _OF_QUARANTINE]
    return columns + [f"{INVALID}.{field.name} AS {field.name}" for field in INVALID_TYPE]


def conformed_sql(column: str, stored: pa.DataType, wanted: pa.DataType) -> str:
    """Return a column of the type `stored` as the type `wanted`, which has all its fields: others are null."""
    if stored == wanted:
        return column
    if pa.types.is_struct(wanted):
        fields = {field.name: field.type for field in stored}
        parts = [f"{literal(field.name)}, {sql_of_field(column, fields, field)}" for field in wanted]
        return f"IF({column} IS NULL, NULL, named_struct({', '.join(parts)}))"
    name = f"e{column.count('->') + column.count('(')}"
    if pa.types.is_list(wanted):
        return f"transform({column}, {name} -> {conformed_sql(name, stored.value_type, wanted.value_type)})"
    item = conformed_sql(name, stored.item_type, wanted.item_type)
    return f"transform_values({column}, (k, {name}) -> {item})"


def sql_of_field(column: str, stored: Mapping[str, pa.DataType], field: pa.Field) -> str:
    """Return a field of a struct column as SQL; null if it is not among the stored ones."""
    if field.name not in stored:
        return f"CAST(NULL AS {_sql_type(field.type)})"
    return conformed_sql(f"{column}.{quoted(field.name)}", stored[field.name], field.type)


def _sql_type(kind: pa.DataType) -> str:
    if pa.types.is_struct(kind):
        return f"STRUCT<{', '.join(f'{quoted(field.name)}: {_sql_type(field.type)}' for field in kind)}>"
    if pa.types.is_list(kind):
        return f"ARRAY<{_sql_type(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"MAP<{_sql_type(kind.key_type)}, {_sql_type(kind.item_type)}>"
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    return SIMPLE_TYPES[kind].upper()
