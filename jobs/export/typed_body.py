"""Bodies as typed columns, in tasks: the fields if they fit, and otherwise the reason (SPEC SPARK-9, SPARK-19).

Spark's own `from_json` is not used: it stores numbers rounded, dates of any digits, and null where a value is missing
or does not fit, without any report.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from deltamq.jobs.export.definition import COLUMNS
from deltamq.jobs.export.exact_value import Misfit, Shape, parsed, shape_of
from deltamq.jobs.tasks.tasks import in_tasks
from deltamq.mq.errors import Refused

#: Columns that `with_verdict` adds.
FITS: Final = "_fits"
_FIELDS: Final = "_fields"
_FIELD: Final = "_field"
_REASON: Final = "_reason"
#: Rows of one conversion: values are larger in Python than in Arrow.
_ROWS: Final = 5_000


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
        raise Refused(f"schema: {str(error).splitlines()[0]}", code="invalid_schema", field="schema") from error
    taken = {"_partition", "_offset", *(f"_{name}" for name in COLUMNS)}
    for field in schema:
        if field.name.lower() in taken:
            raise Refused(f"schema: {field.name} is the name of a column that the export adds", field="schema")
    if not schema.fields:
        raise Refused("schema: must have at least one field", field="schema")
    shape_of(schema)
    return schema


def with_verdict(messages: DataFrame, schema: StructType) -> DataFrame:
    """Return messages with their parsed fields, and whether all fields fit."""
    added = [
        StructField(_FIELDS, _nullable(schema)),
        StructField(_FIELD, StringType()),
        StructField(_REASON, StringType()),
    ]

    def judge(batches: Iterator[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        shape = shape_of(schema)
        for batch in batches:
            for start in range(0, batch.num_rows, _ROWS):
                rows = batch.slice(start, _ROWS)
                verdicts = _verdicts(rows.column(rows.schema.get_field_index("body")), shape)
                yield pa.RecordBatch.from_arrays([*rows.columns, *verdicts], names=[*rows.schema.names, *_ADDED])

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


def _verdicts(bodies: pa.Array, shape: Shape) -> list[pa.Array]:
    fields: list[Any] = []
    names: list[str | None] = []
    reasons: list[str | None] = []
    for body in bodies.to_pylist():
        try:
            value, name, reason = parsed(body, shape), None, None
        except Misfit as error:
            value, name, reason = None, error.field, error.reason
        fields.append(value)
        names.append(name)
        reasons.append(reason)
    return [pa.array(fields, shape.arrow), pa.array(names, pa.string()), pa.array(reasons, pa.string())]


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
