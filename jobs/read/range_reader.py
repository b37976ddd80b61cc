"""Reads a range of offsets as Arrow batches for Spark: the work of a task in batch reads and streams.

A task gets only a path and a range of offsets. Every byte that it uses was checked against the commit's checksums.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from deltamq.jobs.read.options import ReadOptions
from deltamq.jobs.read.row_format import arrow_columns, schema_of, source_columns
from deltamq.jobs.read.stored_partition import OffsetRange
from deltamq.jobs.read.typed_columns import handed_out
from deltamq.jobs.tasks.warehouse_files import storage
from deltamq.jobs.tasks.worker import keep_imports
from deltamq.mq.errors import Corrupt, Refused
from deltamq.mq.filters.condition import Header, fields_of
from deltamq.mq.filters.parser import parse_filter
from deltamq.mq.limits import MIB
from deltamq.tables.delta.actions import DataFile
from deltamq.tables.delta.reader import FileReader, RowCache
from deltamq.tables.delta.snapshot import PartitionNotFound, load
from deltamq.tables.delta.typed_stats import INVALID_MARK
from deltamq.tables.row_filter import MessageFilter
from deltamq.tables.store.store import Store
from deltamq.tables.typed_row import INVALID, TYPED, VALUE

log = logging.getLogger("deltamq.jobs.sql")

#: A larger range is cut, so that one large partition keeps several cores busy.
ROWS_PER_TASK_MAX: Final = 2_000_000
#: Bytes of one Arrow batch on its way to Spark.
BATCH_BYTES_MAX: Final = 16 * MIB
_OFFSETS_AT_ONCE: Final = 1_000_000
#: A scan reads each row group once, so only footers are worth caching.
_CACHE_BYTES: Final = 8 * MIB


class RowFilter:
    """The option `filter`: an SQL condition picks messages before rows go to Spark (SPEC SPARK-14).

    Spark's own `WHERE` stays right, but rows cross into the JVM before it looks at them: Spark keeps a Python source's
    plan for all later queries of a DataFrame, so a plan must hold none of one query's conditions. This is pickled with
    the reader, so it holds the text.
    """

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


@dataclass
class RangePartition(InputPartition):
    """The range that a task reads."""

    range: OffsetRange


class RangeRows:
    """The rows of ranges in the selected columns; pickled with the reader, so it holds values only."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.filter = RowFilter(options.filter)
        self._names = _checked_names(options, schema)
        self._schema = to_arrow_schema(schema, timezone="UTC")

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one range that pass the filter, in offset order."""
        if not isinstance(partition, RangePartition):
            return  # Spark passes a placeholder when there is nothing to read
        keep_imports()
        wanted_range, options = partition.range, self.options
        project = arrow_columns(
            self._names,
            options.row_format,
            topic=wanted_range.partition.ref.topic,
            partition=wanted_range.partition.name,
            number=wanted_range.partition.number,
            delta=wanted_range.partition.delta,
            types={field.name: field.type for field in self._schema if options.typed and field.name in TYPED},
        )
        columns = source_columns(self._names, options.row_format) or ["offset"]
        columns = [*columns, *(name for name in self.filter.columns if name not in columns)]
        if not options.quarantined and INVALID not in columns:
            columns.append(INVALID)
        for rows in read_range(options.warehouse, wanted_range, columns, fail_on_data_loss=options.fail_on_data_loss):
            wanted = self.filter.apply(handed_out(rows, quarantined=options.quarantined))
            for batch in wanted.to_batches(max_chunksize=_rows_of_batch(wanted)):
                yield pa.RecordBatch.from_arrays(project(batch), schema=self._schema)


def read_range(
    warehouse: str, wanted: OffsetRange, columns: list[str], *, fail_on_data_loss: bool = True
) -> Iterator[pa.Table]:
    """Yield the rows of a range, one row group at a time; typed columns that a file lacks are missing.

    Where bodies are made of values, these are read, too.

    If a roll-up has replaced the files since the range was planned and the old files are deleted, the same offsets are
    in other files, and the read goes on with these files.

    Raises
    ------
    Corrupt
        A file is damaged; or rows were removed during the read, by retention or because the topic was deleted. With
        `fail_on_data_loss` false, removed rows are logged and the rest is read.
    """
    store = storage(warehouse)
    folder = wanted.partition.ref.folder
    reader = FileReader(store, folder, RowCache(_CACHE_BYTES))
    at = wanted.start
    stored = _with_values(columns, wanted.is_rendered)
    for file in wanted.files:
        if file.start > at:
            break  # the offsets before it were removed between the query's first look and this one
        try:
            for rows in _rows(reader, file, at, min(wanted.stop, file.end), stored):
                at += rows.num_rows
                yield rows
        except Corrupt:
            if store.exists(f"{folder}/{file.path}"):
                raise
            break
    if at < wanted.stop:
        yield from _from_newer_files(store, reader, wanted, at, columns, fail_on_data_loss=fail_on_data_loss)


def _from_newer_files(
    store: Store, reader: FileReader, wanted: OffsetRange, at: int, columns: list[str], *, fail_on_data_loss: bool
) -> Iterator[pa.Table]:
    folder = wanted.partition.ref.folder
    try:
        now = load(store, folder)
    except PartitionNotFound as error:
        _lost(f"{folder}: the partition was deleted during the read", fail_on_data_loss, error)
        return
    if at < now.min_offset:
        lost_to = min(now.min_offset, wanted.stop)
        _lost(f"{folder}: offsets [{at}, {lost_to}) were removed by retention during the read", fail_on_data_loss)
        at = lost_to
    stored = _with_values(columns, now.is_rendered)
    for file in now.files:
        if file.end > at and file.start < wanted.stop:
            for rows in _rows(reader, file, at, min(wanted.stop, file.end), stored):
                at += rows.num_rows
                yield rows
    assert at == wanted.stop, "live files are dense"


def _rows(reader: FileReader, file: DataFile, start: int, stop: int, columns: list[str]) -> Iterator[pa.Table]:
    """Offsets are counted, not read: they are dense, and the log has the first offset of a file.

    Only statistics that say so make it worth a look which rows did not fit.
    """
    stored = [name for name in columns if name != "offset" and (name != INVALID or INVALID_MARK in file.stats)]
    if stored and all(name in TYPED for name in stored):
        stored.append("append_time")  # the file may lack the others, and rows without columns cannot be counted
    if not stored:
        for at in range(start, stop, _OFFSETS_AT_ONCE):
            yield pa.table([_offsets(at, min(at + _OFFSETS_AT_ONCE, stop))], ["offset"])
        return
    at = start
    for rows in reader.groups(file, start, stop, stored, by_page=True):
        end = at + rows.num_rows
        yield rows.append_column("offset", _offsets(at, end)) if "offset" in columns else rows
        at = end


def _with_values(columns: list[str], is_rendered: bool) -> list[str]:
    return [*columns, VALUE] if is_rendered and "body" in columns and VALUE not in columns else columns


def _offsets(start: int, stop: int) -> pa.Array:
    return pa.array(np.arange(start, stop, dtype=np.int64))


def _lost(what: str, fail: bool, cause: Exception | None = None) -> None:
    if fail:
        raise Corrupt(f"{what}; failOnDataLoss=false reads the rest") from cause
    log.warning("event=data_lost detail=%r", what)


def _rows_of_batch(rows: pa.Table) -> int:
    return max(1, int(rows.num_rows * BATCH_BYTES_MAX // max(rows.nbytes, 1)))


def _checked_names(options: ReadOptions, schema: StructType) -> Sequence[str]:
    """Refuse a schema with a column that is unknown or of another type."""
    values = schema[VALUE].dataType if options.typed and VALUE in schema.names else StructType()
    if not isinstance(values, StructType):
        raise Refused(f"column {VALUE!r} is a struct, not {values.simpleString()}", field=VALUE)
    known = {field.name: field.dataType for field in schema_of(options, values=values, every=True)}
    for field in schema:
        if field.name not in known:
            raise Refused(f"there is no column {field.name!r}; columns are {', '.join(known)}", field=field.name)
        if field.dataType != known[field.name]:
            types = f"{known[field.name].simpleString()}, not {field.dataType.simpleString()}"
            raise Refused(f"column {field.name!r} is {types}", field=field.name)
    if options.columns and list(options.columns) != schema.names:
        raise Refused(
            f"option columns has {', '.join(options.columns)}, the schema {', '.join(schema.names)}: give one",
            code="invalid_option",
            field="columns",
        )
    return schema.names
