"""The sink of `df.write.format("mq")` and `df.writeStream.format("mq")`: exactly once, through `tables/` (SPARK-3).

    each task                                   driver, when all tasks that count are done
    rows -> checked -> routed -> staged  -----> manifest (put if absent) -> appends -> `done`

*Why staged.* What tasks append themselves is there, whatever becomes of the batch; and a batch that is played again may
have its rows in other tasks, so half of it would be stored twice and half not at all. Staged, a batch is nothing until
its manifest stands, and is that manifest then (`jobs.stream.sink_manifest`). It also is one commit for each partition
and batch, not one for each task; a batch write that fails has stored nothing. Tasks do the work that grows with the
rows (conversion, checks, routing, grouping), the driver encodes and commits, several partitions at once.

What a kill leaves: of a task, files that no manifest names; of the driver before the manifest, a batch that is played
again; behind it, requests that are stored or not, which the restarted query's `commit` tells apart; behind `done`,
nothing. A query is known by its checkpoint's id; a batch write is one of a kind unless `producerId` and `batchId`, or
`idempotencyKey`, name it.
"""

from __future__ import annotations

import logging
import threading
import uuid
import zlib
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from jobs.stream.sink_append import append_manifest
from jobs.stream.sink_columns import SinkColumns, check_schema, pieces
from jobs.stream.sink_manifest import Manifests, planned, sweep_writes
from jobs.stream.sink_options import SinkOptions, parse_sink_options
from jobs.stream.sink_place import SinkSettings, place_of
from jobs.stream.sink_routing import route_rows
from jobs.stream.sink_staging import StagedMessage, StagedRows, Stager
from mq.errors import DeltaMQError, Refused, Unavailable
from mq.limits import MIB
from tables.config import load
from tables.log import PartitionLog

__all__ = ["batch_writer", "stream_writer"]

_log: Final = logging.getLogger("deltamq.jobs")
#: Rows that a task converts and routes at once: Spark's batches are small, and each costs its split by partition.
PIECE_BYTES_MAX: Final = 8 * MIB
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
_decode_staged: Final = msgspec.msgpack.Decoder(StagedRows)


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
        return _staged(iterator, self._options, self._columns, self._settings, name, batch)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Append the batch, unless it is appended."""
        staged = _decoded(messages)
        if staged:
            _commit(self._settings, self._options, staged[0].name, batchId, staged)

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
        return _staged(iterator, self._options, self._columns, self._settings, self._name, self._options.batch)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Append the rows, unless the write is named and was done before."""
        staged = _decoded(messages)
        if staged:
            _commit(self._settings, self._options, self._name, self._options.batch, staged)
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


def _staged(
    batches: Iterator[pa.RecordBatch],
    options: SinkOptions,
    columns: SinkColumns,
    settings: SinkSettings,
    name: str,
    batch: int,
) -> StagedMessage:
    """Stage the rows of one task."""
    place = place_of(settings)
    place.refresh()
    store = place.warehouse.store
    context = TaskContext.get()
    task = 0 if context is None else context.partitionId()
    stager = Stager(store, Manifests(store, name).folder, name, batch, task)
    now_ms = place.now_ms()
    # all tasks of a small batch put rows without a key into one partition: one commit, not several
    draw = zlib.crc32(f"{name}#{batch}".encode())
    for piece in pieces(batches, PIECE_BYTES_MAX):
        stager.add(
            route_rows(
                columns.rows(piece, now_ms),
                options.topic,
                place.routed,
                draw=draw,
                now_ms=now_ms,
            )
        )
    return stager.finish()


def _decoded(messages: list[WriterCommitMessage | None]) -> list[StagedRows]:
    return [_decode_staged.decode(message.staged) for message in messages if isinstance(message, StagedMessage)]


def _commit(settings: SinkSettings, options: SinkOptions, name: str, batch: int, staged: list[StagedRows]) -> None:
    """Append what the batch's manifest says: this one, or the one that an earlier run has put."""
    place = place_of(settings)
    manifests = Manifests(place.warehouse.store, name)
    if manifests.last_done() >= batch:
        return
    manifest = planned(name, batch, place.now_ms(), staged)
    manifest, is_new = manifests.put(manifest)
    touched = append_manifest(place, manifest, flush=options.flush, again=not is_new)
    manifests.finish(batch)
    _tend(touched)


# Upkeep -------------------------------------------------------------------------------------------------------

_tending = threading.Lock()


def _tend(logs: list[PartitionLog]) -> None:
    """Do the upkeep that is due in the background; what is left out is due again after the next batch."""
    if logs and _tending.acquire(blocking=False):
        threading.Thread(target=_tend_all, args=(logs,), name="mq-sink-upkeep", daemon=True).start()


def _tend_all(logs: list[PartitionLog]) -> None:
    try:
        for log in logs:
            log.maintain()
    except (DeltaMQError, OSError) as error:
        # due again after the next batch; what it found wrong, that append will be told
        _log.warning("event=upkeep_failed detail=%r", str(error))
    finally:
        _tending.release()
