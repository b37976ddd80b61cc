"""The sink of `df.write.format("mq")` and `df.writeStream.format("mq")`: exactly once, through `tables/` (SPARK-3).

    each task                                   driver, when all tasks that count are done
    rows -> checked -> routed -> staged  -----> manifest (put if absent) -> appends -> `done`

*Why staged.* What tasks append themselves is there, whatever becomes of the batch; and a batch that is played again may
have its rows in other tasks, so half of it would be stored twice and half not at all. Staged, a batch is nothing until
its manifest stands, and is that manifest then (`jobs.sink.manifest`). It also is one commit for each partition
and batch, not one for each task; a batch write that fails has stored nothing. Tasks do the work that grows with the
rows (conversion, checks, routing, grouping), the driver encodes and commits, several partitions at once.

What a kill leaves: of a task, files that no manifest names; of the driver before the manifest, a batch that is played
again; behind it, requests that are stored or not, which the restarted query's `commit` tells apart; behind `done`,
nothing. A query is known by its checkpoint's id; a batch write is one of a kind unless `producerId` and `batchId`, or
`idempotencyKey`, name it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from jobs.sink.batch import commit_staged, decoded, stage_rows
from jobs.sink.columns import SinkColumns, check_schema
from jobs.sink.manifest import Manifests, sweep_writes
from jobs.sink.options import SinkOptions, parse_sink_options
from jobs.sink.place import SinkSettings, place_of
from mq.errors import Refused, Unavailable
from tables.config import load

__all__ = ["batch_writer", "stream_writer"]

_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"


def stream_writer(options: Mapping[str, str], schema: StructType, warehouse: str | None) -> DataSourceStreamArrowWriter:
    """Return the writer of a streaming query; wrong options and columns fail here, before anything is stored."""
    asked = parse_sink_options(options, warehouse=warehouse, streaming=True)
    return StreamSink(*_checked(asked, schema))


def batch_writer(
    options: Mapping[str, str], schema: StructType, warehouse: str | None, *, overwrite: bool
) -> DataSourceArrowWriter:
    """Return the writer of one batch write."""
    if overwrite:
        raise Refused("a log is appended to: write with mode('append'), not 'overwrite'", field="mode")
    asked = parse_sink_options(options, warehouse=warehouse, streaming=False)
    return BatchSink(*_checked(asked, schema))


def _checked(asked: SinkOptions, schema: StructType) -> tuple[SinkOptions, SinkColumns, SinkSettings]:
    columns = check_schema(schema, topic=asked.topic)
    settings = SinkSettings.of(load(overrides={"warehouse.uri": asked.warehouse}), asked.warehouse)
    if asked.topic is not None:
        place_of(settings).check_topic(asked.topic)
    return asked, columns, settings


class StreamSink(DataSourceStreamArrowWriter):
    """The sink of one streaming query."""

    def __init__(self, options: SinkOptions, columns: SinkColumns, settings: SinkSettings) -> None:
        self._options = options
        self._columns = columns
        self._settings = settings

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage a task's rows."""
        name, batch = _query_and_batch()
        place, topic = place_of(self._settings), self._options.topic
        return stage_rows(place, self._columns, topic, iterator, name=name, batch=batch, task=_task())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Append the batch, unless it is appended."""
        staged = decoded(messages)
        if staged:
            commit_staged(place_of(self._settings), staged[0].name, batchId, staged, flush=self._options.flush)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Leave what is staged: a manifest may name it, and the next batch that is done sweeps it."""


class BatchSink(DataSourceArrowWriter):
    """The sink of one batch write."""

    def __init__(self, options: SinkOptions, columns: SinkColumns, settings: SinkSettings) -> None:
        self._options = options
        self._columns = columns
        self._settings = settings
        self._name = options.name or f"write-{uuid.uuid4()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage a task's rows."""
        place, options = place_of(self._settings), self._options
        name, batch, task = self._name, options.batch, _task()
        return stage_rows(place, self._columns, options.topic, iterator, name=name, batch=batch, task=task)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Append the rows, unless the write is named and was done before."""
        staged = decoded(messages)
        if staged:
            options = self._options
            commit_staged(place_of(self._settings), self._name, options.batch, staged, flush=options.flush)
        place = place_of(self._settings)
        if self._options.name is None:
            place.warehouse.store.delete_tree(Manifests(place.warehouse.store, self._name).folder)
        sweep_writes(place.warehouse.store, place.now_ms())

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Sweep what is staged, but for a named write: its manifest may name it, and its next run goes on."""
        if self._options.name is None:
            store = place_of(self._settings).warehouse.store
            store.delete_tree(Manifests(store, self._name).folder)


def _query_and_batch() -> tuple[str, int]:
    """Return the identity of the batch that this task is part of; `write` is not told, but its task's properties are.

    Raises
    ------
    Unavailable
        They are missing: this Spark does not tell tasks, so nothing could be stored exactly once.
    """
    context = TaskContext.get()
    query = None if context is None else context.getLocalProperty(_QUERY_ID)
    batch = None if context is None else context.getLocalProperty(_BATCH_ID)
    if not query or not batch or not batch.isdigit():
        detail = (
            f"tasks of this Spark are not told {_QUERY_ID} and {_BATCH_ID}: write with foreachBatch, and in it with "
        )
        raise Unavailable(detail + "format('mq') and the options producerId and batchId", code="no_batch_id")
    return f"query-{query}", int(batch)


def _task() -> int:
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()
