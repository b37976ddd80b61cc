"""The columns that a read returns: the message row with topic and partition, or as in Spark's Kafka source.

Each format exists twice, for the two ways to read: as a projection of a Delta table's columns (SQL), and as a
projection of Arrow rows. A test checks that both return the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

from deltamq.jobs.read.identifiers import literal, quoted
from deltamq.jobs.read.options import ReadOptions, RowFormat
from deltamq.jobs.read.typed_columns import typed_makers
from deltamq.mq.errors import Refused
from deltamq.tables.kafka_row import kafka_headers, kafka_key, kafka_sql, kafka_time_ms, kafka_value
from deltamq.tables.schema import MESSAGE_SCHEMA, TIME
from deltamq.tables.typed_row import INVALID, INVALID_TYPE, RESCUED, VALUE

_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
MESSAGE_ROW: Final = pa.schema([*MESSAGE_SCHEMA, pa.field("topic", pa.string()), pa.field("partition", pa.string())])
KAFKA_ROW: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", TIME),
        ("timestampType", pa.int32()),
        ("headers", _HEADERS),
    ]
)
#: The columns of a typed topic behind those of the message row; the type of `value` is the topic's.
TYPED_ROW: Final = pa.schema([(INVALID, INVALID_TYPE), (RESCUED, pa.string())])
#: Kafka's number for "the timestamp is the producer's time".
CREATE_TIME: Final = 0
#: The columns of the message row from which each Kafka column is made.
_KAFKA_SOURCES: Final = {
    "key": ("key", "headers"),
    "value": ("body", "headers"),
    "timestamp": ("born_time",),
    "headers": ("headers", "key", "body"),
}


def schema_of(options: ReadOptions, *, values: StructType | None = None, every: bool = False) -> StructType:
    """Return the schema of a read; with `every`, include the columns that the option `columns` leaves out.

    `values` is the type of `value` in a typed read.

    Raises
    ------
    Refused
        The option `columns` names a column that does not exist.
    """
    whole = from_arrow_schema(MESSAGE_ROW if options.row_format is RowFormat.MESSAGE else KAFKA_ROW)
    if options.row_format is RowFormat.KAFKA and not options.headers:
        whole = StructType(whole.fields[:-1])
    if options.typed:
        assert values is not None, "its topics' types were looked up"
        typed = from_arrow_schema(TYPED_ROW)
        whole = StructType([*whole.fields, StructField(VALUE, values), *typed.fields])
    if every or not options.columns:
        return whole
    unknown = [name for name in options.columns if name not in whole.names]
    if unknown:
        raise Refused(
            f"option columns: there is no column {unknown[0]!r}; columns are {', '.join(whole.names)}",
            code="invalid_option",
            field="columns",
        )
    return StructType([whole[name] for name in options.columns])


def spark_type(values: pa.StructType) -> StructType:
    """Return the type of values as Spark has it."""
    return from_arrow_schema(pa.schema(list(values)))


def sql_columns(
    options: ReadOptions,
    names: Sequence[str],
    *,
    topic: str,
    partition: str,
    number: int,
    delta: int = 0,
    typed: Mapping[str, str],
) -> str:
    """Return the projection of a partition's Delta table, as SQL; `delta` is added to its offsets.

    `typed` has the typed columns as SQL.
    """
    made = {"topic": literal(topic), "partition": literal(partition), **typed}
    if delta:
        made["offset"] = f"`offset` + {delta}"
    if options.row_format is RowFormat.KAFKA:
        made |= {**kafka_sql(), "partition": str(number), "timestampType": str(CREATE_TIME)}
    return ", ".join(f"{made.get(name, quoted(name))} AS {quoted(name)}" for name in names)


def source_columns(names: Sequence[str], row_format: RowFormat) -> list[str]:
    """Return the columns of the message row that are needed for the columns `names` of a read."""
    constants = {"topic", "partition", "timestampType"}
    if row_format is RowFormat.MESSAGE:
        return [name for name in names if name not in constants]
    sources = (_KAFKA_SOURCES.get(name, (name,)) for name in names if name not in constants)
    return list(dict.fromkeys(column for columns in sources for column in columns))


def arrow_columns(
    names: Sequence[str],
    row_format: RowFormat,
    *,
    topic: str,
    partition: str,
    number: int,
    delta: int = 0,
    types: Mapping[str, pa.DataType] | None = None,
) -> Callable[[pa.RecordBatch], list[pa.Array]]:
    """Return the projection of a partition's Arrow rows, which need only the columns of `source_columns`.

    `delta` is added to the offsets. `types` are those of the typed columns.
    """
    kafka = row_format is RowFormat.KAFKA
    makers: dict[str, Callable[[pa.RecordBatch], pa.Array]] = {
        "topic": lambda rows: pa.repeat(topic, rows.num_rows),
        "partition": lambda rows: pa.repeat(partition, rows.num_rows),
        **typed_makers(types or {}),
    }
    if kafka:
        makers |= {
            "partition": lambda rows: pa.repeat(pa.scalar(number, pa.int32()), rows.num_rows),
            "key": lambda rows: kafka_key(rows.column("key"), rows.column("headers")),
            "value": lambda rows: kafka_value(rows.column("body"), rows.column("headers")),
            "timestamp": lambda rows: pa.array(kafka_time_ms(rows.column("born_time")) * 1_000, TIME),
            "timestampType": lambda rows: pa.repeat(pa.scalar(CREATE_TIME, pa.int32()), rows.num_rows),
            "headers": lambda rows: _listed_headers(rows),
        }
    if delta:
        makers["offset"] = lambda rows: pc.add(rows.column("offset"), delta)
    chosen = [makers.get(name) or _column(name) for name in names]
    return lambda rows: [make(rows) for make in chosen]


def _column(name: str) -> Callable[[pa.RecordBatch], pa.Array]:
    return lambda rows: rows.column(name)


def _listed_headers(rows: pa.RecordBatch) -> pa.Array:
    headers = kafka_headers(rows.column("headers"), rows.column("key"), rows.column("body"))
    if headers is None:
        return pa.nulls(rows.num_rows, _HEADERS)
    offsets, count = headers.offsets, len(headers)
    # a null offset makes a null list
    some = pc.not_equal(offsets.slice(0, count), offsets.slice(1))
    starts = pc.if_else(some, offsets.slice(0, count), pa.scalar(None, pa.int32()))
    values = [headers.keys.cast(pa.string()), headers.items]
    entries = pa.StructArray.from_arrays(values, fields=list(_HEADERS.value_type))
    return pa.ListArray.from_arrays(pa.concat_arrays([starts, offsets.slice(count)]), entries, type=_HEADERS)
