"""Spark's filters on text columns, applied to Arrow rows before they go to Spark.

Spark checks the remaining rows once more: a filter here only keeps other rows from entering the JVM.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import EqualTo, Filter, In

from jobs.read.options import RowFormat

__all__ = ["RowFilter"]

_TEXT: Final = {RowFormat.MESSAGE: frozenset(("key", "tag", "message_id")), RowFormat.KAFKA: frozenset(("key",))}


class RowFilter:
    """The filters so far; pickled with the reader, so it holds values only."""

    def __init__(self, row_format: RowFormat) -> None:
        self._columns = _TEXT[row_format]
        self._wanted: list[tuple[str, list[str]]] = []

    def take(self, found: Filter) -> None:
        """Add a filter that compares a text column with values; other filters have no effect."""
        if not isinstance(found, EqualTo | In) or len(found.attribute) != 1:
            return
        column = found.attribute[0].lower()
        if column in self._columns:
            values = found.value if isinstance(found, In) else [found.value]
            self._wanted.append((column, [text for value in values if (text := _text(value)) is not None]))

    def apply(self, rows: pa.Table) -> pa.Table:
        """Return the rows that pass all filters; `rows` has the filtered columns as the message row has them."""
        for column, values in self._wanted:
            texts = rows.column(column)
            one = len(values) == 1
            rows = rows.filter(pc.equal(texts, values[0]) if one else pc.is_in(texts, pa.array(values, pa.string())))
        return rows


def _text(value: object) -> str | None:
    """Return a value as the text that a row would have, None if no row can have it."""
    if isinstance(value, bytes | bytearray):  # a key in Kafka's row format
        try:
            return value.decode()
        except UnicodeDecodeError:
            return None
    return value if isinstance(value, str) else None
