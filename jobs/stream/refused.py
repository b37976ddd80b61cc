"""A stream that was refused before it began: it raises the error where Spark passes it on whole (SPEC SPARK-23).

An error while Spark makes the reader reaches the driver as another error: its process then fails to stop the reader
that it has not made, and the sentence is lost in two tracebacks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from deltamq.jobs.tasks.first_lines import in_one_line
from deltamq.mq.errors import DeltaMQError


class RefusedStream(DataSourceStreamReader):
    """The reader of a stream that cannot be read; each call raises the reason."""

    def __init__(self, error: DeltaMQError) -> None:
        self._error = error

    @in_one_line
    def _refuse(self) -> NoReturn:
        raise self._error

    def initialOffset(self) -> dict[str, Any]:
        """Raise the error."""
        self._refuse()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Raise the error."""
        self._refuse()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Raise the error."""
        self._refuse()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raise the error."""
        self._refuse()
