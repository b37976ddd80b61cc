"""Bodies as typed columns, in tasks: the fields if they fit, and otherwise the reason (SPEC SPARK-9, SPARK-19).

Spark's own `from_json` is not used: it stores numbers rounded, dates of any digits, and null where a value is missing
or does not fit, without any report.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StringType, StructField, StructType

from deltamq.jobs.export.definition import COLUMNS
from deltamq.jobs.tasks.first_lines import sentence_of
from deltamq.jobs.tasks.tasks import in_tasks
from deltamq.mq.errors import Refused
from deltamq.tables.typed.node import (
    SIMPLE,
    TIMESTAMP,
    Child,
    Node,
    check_columns,
    decimal_of,
    list_of,
    map_of,
    struct,
)
from deltamq.tables.typed.schema import Schema
from deltamq.tables.typed.version import Judged, VersionDecoder
from deltamq.tables.typed_row import INVALID_TYPE

#: Columns that `with_verdict` adds.
FITS: Final = "_fits"
_FIELDS: Final = "_fields"
_FIELD: Final = "_field"
_REASON: Final = "_reason"
#: The field of a body that does not fit as a whole.
_WHOLE: Final = "body"


def fields_of(ddl: str) -> StructType:
    """Return the fields of a DDL.

    Raises
    ------
    Refused
        The text is not a DDL, a type has no exact values in JSON, or a field has the name of a column that the export
        adds.
    """
    try:
        schema = StructType.fromDDL(ddl)
        assert isinstance(schema, StructType), "a list of fields"
    except Exception as error:  # Spark's two clients raise different errors
        raise Refused(f"schema: {sentence_of(str(error))}", code="invalid_schema", field="schema") from error
    taken = {"_partition", "_offset", *(f"_{name}" for name in COLUMNS)}
    for field in schema:
        if field.name.lower() in taken:
            raise Refused(f"schema: {field.name} is the name of a column that the export adds", field="schema")
    if not schema.fields:
        raise Refused("schema: must have at least one field", field="schema")
    check_columns(tree_of(schema))
    return schema


def with_verdict(messages: DataFrame, schema: StructType) -> DataFrame:
    """Return messages with their parsed fields, and whether all fields fit."""
    added = [
        StructField(_FIELDS, _nullable(schema)),
        StructField(_FIELD, StringType()),
        StructField(_REASON, StringType()),
    ]

    def judge(batches: Iterator[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        root = tree_of(schema)
        decoder = VersionDecoder("columns", Schema(0, root, root), b"", rescues=False, compiled=True)
        for batch in batches:
            verdicts = _verdicts(batch.column(batch.schema.get_field_index("body")), decoder)
            yield pa.RecordBatch.from_arrays([*batch.columns, *verdicts], names=[*batch.schema.names, *_ADDED])

    judged = in_tasks(messages, judge, StructType([*messages.schema, *added]))
    return judged.withColumn(FITS, F.col(_REASON).isNull())


_ADDED: Final = (_FIELDS, _FIELD, _REASON)


def _nullable(kind: DataType) -> DataType:
    """Values of columns that come from tasks may be null everywhere."""
    if isinstance(kind, StructType):
        return StructType([StructField(field.name, _nullable(field.dataType)) for field in kind])
    if isinstance(kind, ArrayType):
        return ArrayType(_nullable(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(kind.keyType, _nullable(kind.valueType))
    return kind


def _verdicts(bodies: pa.BinaryArray, decoder: VersionDecoder) -> list[pa.Array]:
    judged = Judged()
    fields, _ = decoder.decode(bodies, range(len(bodies)), judged)
    invalid = judged.invalid(len(bodies))
    if invalid is None:
        invalid = pa.nulls(len(bodies), INVALID_TYPE)
    # Here, a body without a value is one that does not fit.
    reasons = pc.coalesce(invalid.field("reason"), pc.if_else(fields.is_valid(), None, "is null"))
    names = pc.if_else(pc.equal(invalid.field("field"), ""), _WHOLE, invalid.field("field"))
    names = pc.if_else(reasons.is_valid(), pc.coalesce(names, _WHOLE), None)
    return [fields, names.cast(pa.string()), reasons.cast(pa.string())]


def tree_of(kind: DataType, where: str = "schema") -> Node:
    """Return the tree of a type: how JSON says its values.

    Raises
    ------
    Refused
        JSON has no exact value for a type within it.
    """
    if isinstance(kind, StructType):
        fields = [(field, tree_of(field.dataType, f"{where}.{field.name}")) for field in kind]
        return struct([Child(f.name, node, required=not f.nullable, nullable=f.nullable) for f, node in fields])
    if isinstance(kind, ArrayType):
        return list_of(tree_of(kind.elementType, where))
    if isinstance(kind, MapType) and kind.keyType == StringType():
        return map_of(tree_of(kind.valueType, where))
    if isinstance(kind, DecimalType):
        return decimal_of(kind.precision, kind.scale)
    # Not with a collation, which reads other values as equal.
    arrow = _ARROW.get(type(kind))
    if arrow is None or kind != type(kind)():
        detail = f"{where}: {kind.simpleString()} is not a type of an export; use {_TYPES}"
        raise Refused(detail, code="invalid_schema", field="schema")
    return SIMPLE[arrow]


_ARROW: Final[dict[type[DataType], pa.DataType]] = {
    T.BooleanType: pa.bool_(),
    T.ByteType: pa.int8(),
    T.ShortType: pa.int16(),
    T.IntegerType: pa.int32(),
    T.LongType: pa.int64(),
    T.FloatType: pa.float32(),
    T.DoubleType: pa.float64(),
    T.StringType: pa.string(),
    T.BinaryType: pa.binary(),
    T.DateType: pa.date32(),
    T.TimestampType: TIMESTAMP,
    T.TimestampNTZType: pa.timestamp("us"),
}
_TYPES: Final = (
    "BOOLEAN, TINYINT, SMALLINT, INT, BIGINT, FLOAT, DOUBLE, DECIMAL, STRING, BINARY, DATE, TIMESTAMP, TIMESTAMP_NTZ, "
    "ARRAY, STRUCT, MAP<STRING, ...>"
)


def typed_columns(schema: StructType, columns: Sequence[str]) -> list[Column]:
    """Return the columns of the typed table."""
    fields = [F.col(_FIELDS)[field.name].alias(field.name) for field in schema]
    position = [F.col("partition").alias("_partition"), F.col("offset").alias("_offset")]
    return [*fields, *position, *(F.col(name).alias(f"_{name}") for name in columns)]


def quarantine_columns() -> list[Column]:
    """Return the columns of the quarantine table: the whole message, the field that does not fit, and the reason."""
    position = [F.col("partition").alias("_partition"), F.col("offset").alias("_offset")]
    return [
        F.col(_FIELD).alias("field"),
        F.col(_REASON).alias("reason"),
        F.col("body"),
        *position,
        *(F.col(n).alias(f"_{n}") for n in COLUMNS),
    ]
