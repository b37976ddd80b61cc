"""The sink of `df.write.format("mq")` and `df.writeStream.format("mq")`: exactly once, through `tables/` (SPARK-3).

    each task                                   driver, once all tasks have ended
    rows -> checked -> routed -> staged  -----> manifest (put if absent) -> appends -> `done`

*Why rows are staged.* Rows that tasks append would stay even if the batch fails; and a batch that runs again may
have its rows in other tasks, so some rows would be stored twice and others not at all. Staged rows are not in any topic
until the batch's manifest exists, which then is the batch (`jobs.sink.manifest`). Staging also makes one commit for
each partition and batch instead of one for each task, and a batch write that fails has stored nothing. Until there is a
manifest, rows that may go to any partition leave those that have stopped (`jobs.sink.detour`). Tasks do the
work that grows with the rows (conversion, checks, routing, grouping); the driver encodes and commits, several
partitions at once.

What a kill leaves: of a task, files that no manifest names; of the driver before the manifest, a batch that runs again;
after the manifest, requests that may or may not be stored, which `commit` of the restarted query looks up; after
`done`, nothing. A query is identified by its checkpoint's id, and one application at a time goes on from it
(`jobs.sink.stream_run`); a batch write gets an identity of its own unless `producerId` and `batchId`, or
`idempotencyKey`, name it. Each life of a topic has its own identities (SPARK-16), and a repeat that brings other rows
is refused (SPARK-17).
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from deltamq.jobs.sink.batch import commit_staged, decoded, name_of, stage_rows
from deltamq.jobs.sink.columns import SinkColumns, check_schema
from deltamq.jobs.sink.manifest import Manifests, sweep_writes
from deltamq.jobs.sink.open_sink import OpenSink, SinkSettings, open_sink
from deltamq.jobs.sink.options import SinkOptions, parse_sink_options
from deltamq.jobs.sink.staging import StagedMessage
from deltamq.jobs.sink.stream_run import BATCH_ID, QUERY_ID, check_claim, current_run
from deltamq.jobs.sink.typed_rows import check_values
from deltamq.jobs.tasks.checkpoint_claims import Claimant
from deltamq.jobs.tasks.first_lines import in_one_line
from deltamq.mq.errors import Refused, Unavailable
from deltamq.tables.config import load


def stream_writer(
    options: Mapping[str, str], schema: StructType, warehouse: str | None, *, claimant: Claimant
) -> DataSourceStreamArrowWriter:
    """Return the writer of a streaming query; wrong options and columns fail here, before anything is stored."""
    parsed = parse_sink_options(options, warehouse=warehouse, streaming=True)
    return StreamSink(*_checked(parsed, schema), claimant)


def batch_writer(
    options: Mapping[str, str], schema: StructType, warehouse: str | None, *, overwrite: bool, claimant: Claimant
) -> DataSourceArrowWriter:
    """Return the writer of one batch write."""
    if overwrite:
        raise Refused("messages can only be appended: write with mode('append'), not 'overwrite'", field="mode")
    parsed = parse_sink_options(options, warehouse=warehouse, streaming=False)
    return BatchSink(*_checked(parsed, schema), claimant)


def _checked(parsed: SinkOptions, schema: StructType) -> tuple[SinkOptions, SinkColumns, SinkSettings]:
    columns = check_schema(schema, topic=parsed.topic)
    settings = SinkSettings.of(load(overrides={"warehouse.uri": parsed.warehouse}), parsed.warehouse)
    if parsed.topic is not None:
        sink = open_sink(settings)
        sink.check_topic(parsed.topic)
        topic = sink.refresh().topics.topics.get(parsed.topic) if columns.is_struct else None
        if topic is not None:
            check_values(topic.name, sink.codecs.of(topic))
    return parsed, columns, settings


class StreamSink(DataSourceStreamArrowWriter):
    """The sink of one streaming query."""

    def __init__(self, options: SinkOptions, columns: SinkColumns, settings: SinkSettings, claimant: Claimant) -> None:
        self._claimant = claimant
        self._options = options
        self._columns = columns
        self._settings = settings

    @in_one_line
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage a task's rows."""
        name, batch = _query_and_batch()
        sink, topic = open_sink(self._settings), self._options.topic
        return _of_run(stage_rows(sink, self._columns, topic, iterator, name=name, batch=batch, task=_task()))

    @in_one_line
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Append the batch unless it has been appended, or another application goes on from the checkpoint."""
        _commit(open_sink(self._settings), self._options, batchId, messages, self._claimant)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Leave the staged rows: a manifest may name them, and the next batch that is done sweeps them."""


class BatchSink(DataSourceArrowWriter):
    """The sink of one batch write."""

    def __init__(self, options: SinkOptions, columns: SinkColumns, settings: SinkSettings, claimant: Claimant) -> None:
        self._claimant = claimant
        self._options = options
        self._columns = columns
        self._settings = settings
        self._name = options.name or f"write-{uuid.uuid4()}"

    @in_one_line
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage a task's rows."""
        sink, options = open_sink(self._settings), self._options
        name, batch, task, named = self._name, options.batch, _task(), options.name is not None
        staged = stage_rows(
            sink, self._columns, options.topic, iterator, name=name, batch=batch, task=task, named=named
        )
        return _of_run(staged)

    @in_one_line
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Append the rows, unless the write is named and has been done before."""
        sink = open_sink(self._settings)
        _commit(sink, self._options, self._options.batch, messages, self._claimant)
        if self._options.name is None:
            sink.warehouse.store.delete_tree(Manifests(sink.warehouse.store, self._name).folder)
        sweep_writes(sink.warehouse.store, sink.now_ms())

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Sweep the staged rows, except of a named write: its manifest may name them, and its next run continues."""
        if self._options.name is None:
            store = open_sink(self._settings).warehouse.store
            store.delete_tree(Manifests(store, self._name).folder)


def _of_run(staged: StagedMessage) -> StagedMessage:
    return dataclasses.replace(staged, run=current_run())


def _commit(
    sink: OpenSink,
    options: SinkOptions,
    batch: int,
    messages: Sequence[WriterCommitMessage | None],
    claimant: Claimant,
) -> None:
    run = next(
        (message.run for message in messages if isinstance(message, StagedMessage) and message.run is not None), None
    )
    if run is not None:
        check_claim(sink.warehouse.store, claimant, run)
    staged = decoded(messages)
    if staged:
        name = name_of(staged, sink, options.topic)
        commit_staged(sink, name, batch, staged, flush=options.flush, ignores_repeats=options.ignores_repeats)


def _query_and_batch() -> tuple[str, int]:
    """Read the query's name and the batch's number from the task's properties: Spark does not pass them to `write`.

    Raises
    ------
    Unavailable
        They are missing in this version of Spark, so nothing could be stored exactly once.
    """
    context = TaskContext.get()
    query = None if context is None else context.getLocalProperty(QUERY_ID)
    batch = None if context is None else context.getLocalProperty(BATCH_ID)
    if not query or not batch or not batch.isdigit():
        detail = f"tasks of this Spark do not have {QUERY_ID} and {BATCH_ID}: write with foreachBatch, and in it with "
        raise Unavailable(detail + "format('mq') and the options producerId and batchId", code="no_batch_id")
    return f"query-{query}", int(batch)


def _task() -> int:
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()
