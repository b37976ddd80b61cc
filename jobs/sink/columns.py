"""The columns that may be written: as for Spark's Kafka sink, or as in the message row, to which they are converted.

| column | types | |
| --- | --- | --- |
| `value` or `body` | string, binary | required, never null |
| `value` | struct | in place of a body, for a topic with a schema (TYPE-43); beside a `body`, the body counts |
| `key` | string, binary (UTF-8) | |
| `topic` | string | required without the option `topic`, which wins |
| `partition` | string: a name; int: a number in the topic | wins over the key |
| `headers` | map<string,string>, map<string,binary>, array<struct<key:string,value:binary>> | values are UTF-8 |
| `tag`, `message_id` | string | |
| `born_time` | timestamp | |
| `deliver_time` / `delay_ms` | timestamp / int, long | when the message is delivered |

Columns that every append sets itself (`offset`, `append_time`, `invalid`, ...) are allowed but ignored, so that rows
that were read with `format("mq")` can be written unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from deltamq.mq.errors import Refused, Unprocessable
from deltamq.tables.message_limits import check_column
from deltamq.tables.queue.deliver_times import Times, times_of_columns
from deltamq.tables.schema import HEADERS, INGEST_SCHEMA
from deltamq.tables.typed_row import INVALID, RESCUED, VALUE

_SET_BY_APPEND: Final = (
    "offset",
    "append_time",
    "timestamp",
    "timestampType",
    "reconsume_times",
    "origin",
    "producer_id",
    "producer_seq",
    INVALID,
    RESCUED,
)
_TEXT: Final = (T.StringType(),)
_TEXT_OR_BYTES: Final = (T.StringType(), T.BinaryType())
_WHOLE: Final = (T.ByteType(), T.ShortType(), T.IntegerType(), T.LongType())
_TYPES: Final[dict[str, tuple[T.DataType, ...]]] = {
    "key": _TEXT_OR_BYTES,
    "value": _TEXT_OR_BYTES,
    "body": _TEXT_OR_BYTES,
    "topic": _TEXT,
    "partition": (*_TEXT, *_WHOLE),
    "tag": _TEXT,
    "message_id": _TEXT,
    "born_time": (T.TimestampType(),),
    "deliver_time": (T.TimestampType(),),
    "delay_ms": _WHOLE,
}
#: A remedy for a column of a wrong type, in SQL.
_REMEDY: Final = {
    "key": "CAST(key AS STRING)",
    "value": "CAST(value AS STRING), or to_json(struct(...))",
    "body": "CAST(body AS STRING), or to_json(struct(...))",
    "topic": "CAST(topic AS STRING)",
    "partition": "a partition's name as STRING, or its number in the topic as INT",
    "headers": "MAP<STRING,STRING>, or ARRAY<STRUCT<key: STRING, value: BINARY>>",
    "born_time": "CAST(born_time AS TIMESTAMP)",
    "deliver_time": "CAST(deliver_time AS TIMESTAMP)",
    "delay_ms": "CAST(delay_ms AS BIGINT)",
}


class SinkColumns(msgspec.Struct, frozen=True):
    """A checked schema: `body` is the name of the body's column, `names` are the columns that are written."""

    body: str
    names: tuple[str, ...]
    #: Whether the body's column is a struct, of which the topic's codec makes it.
    is_struct: bool = False

    def rows(self, batch: pa.RecordBatch, now_ms: int) -> SinkRows:
        """Return a batch of this schema as messages; raise `Refused`, with the user's column, for an invalid value."""
        given = {name: batch.column(name) for name in self.names}
        times = times_of_columns(given.pop("deliver_time", None), given.pop("delay_ms", None), now_ms)
        topics, partitions = given.pop("topic", None), given.pop("partition", None)
        values = given.pop(self.body) if self.is_struct else None
        fields, columns = [], []
        for field in INGEST_SCHEMA:
            name = self.body if field.name == "body" else field.name
            if field.name == "body" and values is not None:
                fields.append(field)
                columns.append(pa.nulls(batch.num_rows, field.type))
            elif name in given and (field.name == "body" or given[name].null_count < batch.num_rows):
                fields.append(field)
                columns.append(_message_column(name, field, given[name]))
        rows = pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
        return SinkRows(rows, _text("topic", topics), _partition_names(partitions), times, values)


class SinkRows(msgspec.Struct, frozen=True):
    """Messages and their destinations; without such a column, `topics`, `partitions` or `times` is None."""

    rows: pa.RecordBatch
    topics: pa.StringArray | None
    #: Names, or numbers as text; null for a row that its key routes.
    partitions: pa.StringArray | None
    times: Times | None
    #: Structs of which the topic's codec makes the bodies, which are null; None if the rows have bodies.
    values: pa.StructArray | None = None


def check_schema(schema: T.StructType, *, topic: str | None) -> SinkColumns:
    """Return how rows of this schema become messages; `topic` is the value of the option.

    Raises
    ------
    Refused
        A column is missing, unknown or of a wrong type; the message names the remedy.
    """
    names = [field.name for field in schema]
    structs = [field.name for field in schema if field.name == VALUE and isinstance(field.dataType, T.StructType)]
    if structs and "body" in names:
        names.remove(VALUE)  # of rows that were read: the body is what was sent
        schema = T.StructType([field for field in schema if field.name in names])
        structs = []
    body = [name for name in ("value", "body") if name in names]
    if len(body) != 1:
        problem = "is missing: every message has one" if not body else "and 'body' are both given: give only one"
        raise _wrong("value", problem)
    if topic is None and "topic" not in names:
        raise _wrong("topic", "is missing: give it, or the option topic")
    for field in schema:
        if field.name not in _SET_BY_APPEND:
            _check_type(field)
    taken = [name for name in names if name not in _SET_BY_APPEND and not (name == "topic" and topic is not None)]
    return SinkColumns(body[0], tuple(taken), bool(structs))


def _check_type(field: T.StructField) -> None:
    if field.name == "headers":
        fits = _is_headers(field.dataType)
    elif field.name in _TYPES:
        struct = (T.StructType(),) if field.name == VALUE else ()
        fits = any(isinstance(field.dataType, type(kind)) for kind in (*_TYPES[field.name], *struct))
    else:
        raise _wrong(field.name, f"is unknown; columns are {', '.join([*_TYPES, 'headers'])}. Drop or rename it")
    if not fits:
        how = _REMEDY.get(field.name, f"CAST({field.name} AS STRING)")
        raise _wrong(field.name, f"has type {field.dataType.simpleString()}, which is not supported: write {how}")


def _is_headers(kind: T.DataType) -> bool:
    if isinstance(kind, T.MapType):
        return isinstance(kind.keyType, T.StringType) and isinstance(kind.valueType, T.StringType | T.BinaryType)
    if not isinstance(kind, T.ArrayType) or not isinstance(kind.elementType, T.StructType):
        return False
    fields = {field.name: field.dataType for field in kind.elementType}
    return fields.keys() == {"key", "value"} and all(
        isinstance(part, T.StringType | T.BinaryType) for part in fields.values()
    )


# Columns ------------------------------------------------------------------------------------------------------


def _message_column(name: str, field: pa.Field, column: pa.Array) -> pa.Array:
    made = _headers(column) if name == "headers" else _cast(name, column, field.type)
    try:
        check_column(field.name, made)
    except Refused as error:
        if name == field.name:
            raise
        detail = error.detail.replace(f"{field.name}:", f"{name}:", 1)
        raise type(error)(detail, code=error.code, field=name, extra=error.extra) from None
    return made


def _cast(name: str, column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type == kind:
        return column
    try:
        return pc.cast(column, kind)
    except pa.ArrowInvalid as error:
        problem = "is not UTF-8: a binary column must hold text here" if "UTF8" in str(error) else str(error)
        raise Unprocessable(f"{name}: {problem}", field=name) from None


def _headers(column: pa.Array) -> pa.MapArray:
    if column.type == HEADERS:
        return column
    is_map = pa.types.is_map(column.type)
    low, high = column.offsets[0].as_py(), column.offsets[-1].as_py()
    offsets = pa.array(np.asarray(column.offsets) - low, pa.int32())
    if is_map:
        keys, values = column.keys.slice(low, high - low), column.items.slice(low, high - low)
    else:
        pairs = column.values.slice(low, high - low)
        keys, values = pairs.field("key"), pairs.field("value")
    if keys.null_count:
        raise Refused("headers: a header's key is null", code="invalid_type", field="headers")
    keys, values = _cast("headers", keys, pa.string()), _cast("headers", values, pa.string())
    mask = column.is_null() if column.null_count else None
    return pa.MapArray.from_arrays(offsets, keys, values, type=HEADERS, mask=mask)


def _text(name: str, column: pa.Array | None) -> pa.StringArray | None:
    if column is None:
        return None
    if column.null_count:
        raise _wrong(name, f"is null in row {pc.index(column.is_null(), True).as_py()}: every message has a topic")
    return _cast(name, column, pa.string())


def _partition_names(column: pa.Array | None) -> pa.StringArray | None:
    if column is None or column.null_count == len(column):
        return None
    return pc.cast(column, pa.string())


def pieces(batches: Iterator[pa.RecordBatch], bytes_max: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows in batches of about `bytes_max`: Spark's are small, and splitting each by partition costs time."""
    held: list[pa.RecordBatch] = []
    nbytes = 0
    for batch in batches:
        held.append(batch)
        nbytes += batch.nbytes
        if nbytes >= bytes_max:
            yield _joined(held)
            held, nbytes = [], 0
    if nbytes or any(batch.num_rows for batch in held):
        yield _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _wrong(column: str, what: str) -> Refused:
    return Refused(f"column {column!r} {what}", code="invalid_column", field=column)
