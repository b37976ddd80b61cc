"""Parses JSON bodies into typed columns and says why others do not fit, with Spark's own expressions alone."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from jobs.export.definition import COLUMNS
from mq.errors import Refused

__all__ = ["FITS", "fields_of", "quarantine_columns", "typed", "typed_columns", "with_verdict"]

#: Columns that `with_verdict` adds.
FITS: Final = "_fits"
_FIELDS: Final = "_fields"
_TEXT: Final = "_text"
_IS_WHOLE: Final = "_is_whole"
_CORRUPT: Final = "_corrupt_record"
_PERMISSIVE: Final = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
#: Characters of the faulty text that a reason quotes.
_FOUND_CHARS: Final = 200


def fields_of(ddl: str) -> StructType:
    """Return the fields of a DDL.

    Raises
    ------
    Refused
        The text is not a DDL, or a field has the name of a column that the export adds.
    """
    try:
        schema = StructType.fromDDL(ddl)
        assert isinstance(schema, StructType), "a list of fields"
    except Exception as error:  # Spark's two clients raise different errors
        raise Refused(f"schema: {str(error).splitlines()[0]}", code="invalid_schema", field="schema") from error
    taken = {"_partition", "_offset", *(f"_{name}" for name in COLUMNS), _CORRUPT}
    for field in schema:
        if field.name.lower() in taken:
            raise Refused(f"schema: {field.name} is the name of a column that the export adds", field="schema")
    if not schema.fields:
        raise Refused("schema: must have at least one field", field="schema")
    return schema


def with_verdict(messages: DataFrame, schema: StructType) -> DataFrame:
    """Return messages with their parsed fields, and whether all of these fit."""
    nullable = StructType([StructField(field.name, field.dataType) for field in schema])
    asked = nullable.add(_CORRUPT, "string")
    text = F.expr("try_validate_utf8(CAST(body AS STRING))")
    found = messages.withColumn(_TEXT, text).withColumn(_FIELDS, F.from_json(_TEXT, asked, _PERMISSIVE))
    found = found.withColumn(_IS_WHOLE, _is_whole(F.col(_TEXT)))
    is_object = F.ltrim(F.col(_TEXT)).startswith("{")
    fits = F.col(_TEXT).isNotNull() & is_object & F.col(_IS_WHOLE) & F.col(_FIELDS)[_CORRUPT].isNull()
    for field in schema:
        if not field.nullable:
            fits = fits & F.col(_FIELDS)[field.name].isNotNull()
    return found.withColumn(FITS, F.coalesce(fits, F.lit(False)))


def _is_whole(text: Column) -> Column:
    """Return whether a text is one JSON value: `from_json` does not look at what stands behind the first one.

    So the text becomes the first field of an object, whose second is read only if nothing but a value stands there. No
    sender knows the name of that field.
    """
    mark = uuid.uuid4().hex
    around = F.concat(F.lit('{"body":'), text, F.lit(f',"{mark}":true}}'))
    return F.coalesce(F.from_json(around, f"`{mark}` BOOLEAN")[mark], F.lit(False))


def typed_columns(schema: StructType, columns: Sequence[str]) -> list[Column]:
    """Return the columns of the typed table."""
    fields = [F.col(_FIELDS)[field.name].alias(field.name) for field in schema]
    place = [F.col("partition").alias("_partition"), F.col("offset").alias("_offset")]
    return [*fields, *place, *(F.col(name).alias(f"_{name}") for name in columns)]


def quarantine_columns(schema: StructType) -> list[Column]:
    """Return the columns of the quarantine table: the whole message, the field that does not fit, and the reason."""
    field, reason = _why(schema)
    place = [F.col("partition").alias("_partition"), F.col("offset").alias("_offset")]
    return [
        field.alias("field"),
        reason.alias("reason"),
        F.col("body"),
        *place,
        *(F.col(n).alias(f"_{n}") for n in COLUMNS),
    ]


def typed(messages: DataFrame, schema: StructType, columns: Sequence[str]) -> DataFrame:
    """Return the typed table's rows for the messages that fit."""
    return with_verdict(messages, schema).where(FITS).select(typed_columns(schema, columns))


def _why(schema: StructType) -> tuple[Column, Column]:
    """Return the name of the first field that does not fit (`body` for the whole), and the reason."""
    text = F.col(_TEXT)
    found = F.substring(text, 1, _FOUND_CHARS)
    cases: list[tuple[Column, str, Column]] = [
        (text.isNull(), "body", F.lit("is not UTF-8")),
        (F.expr(f"try_parse_json({_TEXT})").isNull(), "body", F.concat(F.lit("is not JSON: "), found)),
        (~F.ltrim(text).startswith("{"), "body", F.concat(F.lit("is not a JSON object: "), found)),
        (~F.col(_IS_WHOLE), "body", F.concat(F.lit("has more than one JSON value: "), found)),
    ]
    for field in schema:
        cases += _field_cases(field)
    name, reason = F.lit("body"), F.concat(F.lit("does not fit: "), found)
    for when, field_name, told in reversed(cases):
        name = F.when(when, F.lit(field_name)).otherwise(name)
        reason = F.when(when, told).otherwise(reason)
    return name, reason


def _field_cases(field: StructField) -> list[tuple[Column, str, Column]]:
    """Return the ways in which a field may not fit; evaluated only for rows that do not fit."""
    kind = field.dataType.simpleString()
    asked = StructType([StructField(field.name, field.dataType)]).add(_CORRUPT, "string")
    path = "$['" + field.name.replace("'", "\\'") + "']"
    value = F.substring(F.get_json_object(F.col(_TEXT), path), 1, _FOUND_CHARS)
    told = F.concat(F.lit(f"is not {kind}: "), F.coalesce(value, F.lit("null")))
    wrong = F.from_json(_TEXT, asked, _PERMISSIVE)[_CORRUPT].isNotNull()
    cases = [(wrong, field.name, told)]
    if not field.nullable:
        missing = F.col(_FIELDS)[field.name].isNull()
        cases.append((missing, field.name, F.lit(f"is missing: {kind} NOT NULL")))
    return cases
