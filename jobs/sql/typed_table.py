"""The present tables of an export: their columns and batches (SPEC SPARK-20, SPARK-21)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from pyspark.errors import PySparkException
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from deltamq.mq.errors import Refused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


#: Spark's conditions for a table that does not exist, or whose files are gone.
_GONE: Final = frozenset(
    {
        "DELTA_MISSING_DELTA_TABLE",
        "DELTA_PATH_DOES_NOT_EXIST",
        "DELTA_TABLE_NOT_FOUND",
        "PATH_NOT_FOUND",
        "SCHEMA_NOT_FOUND",
        "TABLE_OR_VIEW_NOT_FOUND",
    }
)


def named(to: str) -> str:
    """Return a table in SQL; `to` is a path, with a `/`, or a name."""
    return f"delta.`{to.replace('`', '``')}`" if "/" in to else to


def columns_of(spark: SparkSession, to: str) -> StructType | None:
    """Return the columns of a table; None if it does not exist."""
    reader = spark.read.format("delta")
    try:
        return (reader.load(to) if "/" in to else reader.table(to)).schema
    except PySparkException as error:
        if (error.getCondition() or "").split(".")[0] in _GONE:
            return None
        raise


def check_columns(wanted: StructType, present: StructType, to: str) -> None:
    """Refuse (`schema_changed`) columns that a table has with another type; missing ones are added to the table."""
    changes = list(_changes(wanted, present, ""))
    if changes:
        detail = f"schema: {'; '.join(changes)} in {to}; keep the type of a column, or give the new one another name"
        raise Refused(detail, code="schema_changed", field="schema")


def _changes(wanted: DataType, existing: DataType, at: str) -> Iterator[str]:
    if isinstance(wanted, StructType) and isinstance(existing, StructType):
        present = {field.name.lower(): field for field in existing}
        for field in wanted:
            column = present.get(field.name.lower())
            path = f"{at}.{field.name}" if at else field.name
            if column is None:
                continue
            yield from _changes(field.dataType, column.dataType, path)
            if field.nullable and not column.nullable:
                yield f"{path} may be null here and is NOT NULL"
    elif isinstance(wanted, ArrayType) and isinstance(existing, ArrayType):
        yield from _changes(wanted.elementType, existing.elementType, f"{at}[]")
    elif isinstance(wanted, MapType) and isinstance(existing, MapType):
        yield from _changes(wanted.keyType, existing.keyType, f"{at}[key]")
        yield from _changes(wanted.valueType, existing.valueType, f"{at}[]")
    elif wanted != existing:
        yield f"{at} is {wanted.simpleString()} here and {existing.simpleString()}"


def batch_mark(export_id: str, batch: int) -> str:
    """Return the mark of a batch's commit in the history of a table."""
    return f"deltamq-export-{export_id}/{batch}"


def has_batch(spark: SparkSession, to: str, mark: str) -> bool:
    """Return whether a commit of a table has this mark."""
    if columns_of(spark, to) is None:
        return False
    history = spark.sql(f"DESCRIBE HISTORY {named(to)}")
    return not history.where(history["userMetadata"] == mark).limit(1).isEmpty()
