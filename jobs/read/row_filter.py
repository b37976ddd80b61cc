"""The option `filter`: an SQL condition picks messages before rows go to Spark (SPEC SPARK-14).

Spark's own `WHERE` stays right, but rows cross into the JVM before it looks at them: Spark keeps a Python source's plan
for all later queries of a DataFrame, so a plan must hold none of one query's conditions.
"""

from __future__ import annotations

import pyarrow as pa

from deltamq.mq.filters.condition import Header, fields_of
from deltamq.mq.filters.parser import parse_filter
from deltamq.tables.row_filter import MessageFilter


class RowFilter:
    """A condition on message rows; pickled with the reader, so it holds the text."""

    def __init__(self, text: str) -> None:
        self._text = text

    @property
    def columns(self) -> list[str]:
        """The columns of the message row that the condition needs."""
        if not self._text:
            return []
        fields = fields_of(parse_filter(self._text))
        return sorted({"headers" if isinstance(field, Header) else field.value for field in fields})

    def apply(self, rows: pa.Table) -> pa.Table:
        """Return the rows for which the condition is true."""
        return rows if not self._text else MessageFilter(condition=parse_filter(self._text)).matching(rows)
