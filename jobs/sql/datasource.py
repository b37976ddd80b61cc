"""`spark.read.format("mq")`: topics as DataFrames, with the options of Spark's Kafka source (SPEC SPARK-1).

    driver                                     each task
    options -> offset ranges, resolved once -> parquet -> Arrow batches, every byte checked -> Spark

A task gets paths and offset ranges, nothing else: no session, no service, no open table. It yields Arrow batches,
so no row becomes a Python object. Comparisons on `offset`, `topic` and `partition` are applied here and never reach
Spark; those on `append_time` skip files. Spark gives a Python source neither column pruning nor a way to answer with
a plan of Spark's own; so a schema that names fewer columns (`.schema("offset BIGINT, key STRING")`) makes this read
only those, and `jobs.sql.reader.read_topic` takes the same options and reads Delta natively (figures there).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from jobs.run.storage import storage
from jobs.sql.offset_filter import Kept, OffsetFilter
from jobs.sql.offset_range import OffsetRange, resolve, split
from jobs.sql.read_options import ReadOptions, parse_options
from jobs.sql.row_format import arrow_columns, schema_of, source_columns
from mq.errors import Corrupt, Refused
from mq.limits import MIB
from tables.reader import FileReader, RowCache
from tables.snapshot import load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, Filter

__all__ = ["MessageSource", "register"]

#: A range of more rows is cut, so that one large partition keeps several cores busy.
ROWS_PER_TASK_MAX: Final = 1_000_000
#: Arrow data on its way to Spark at once, for each task.
BATCH_BYTES_MAX: Final = 16 * MIB
#: A scan reads each row group once: only footers are worth keeping.
_CACHE_BYTES: Final = 8 * MIB
WAREHOUSE_SETTING: Final = "spark.deltamq.warehouse"


def register(spark: SparkSession, *, warehouse: str) -> None:
    """Make `format("mq")` known to a session; `warehouse` is where it reads unless an option says otherwise."""
    pushdown = spark.conf.get("spark.sql.python.filterPushdown.enabled", "false") == "true"
    spark.conf.set(WAREHOUSE_SETTING, warehouse)
    spark.dataSource.register(_bound(warehouse, pushdown=pushdown))


def _bound(warehouse_of_session: str, *, pushdown: bool) -> type[DataSource]:
    """Return the source with its default warehouse: Spark makes it in another process, from the options alone."""

    class BoundMessageSource(MessageSource):
        warehouse = warehouse_of_session
        reader_class = PushdownReader if pushdown else MessageReader

    return BoundMessageSource


@dataclass
class RangePartition(InputPartition):
    """What a task reads."""

    range: OffsetRange


class MessageReader(DataSourceReader):
    """One read: planned on the driver, carried out in tasks."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._names = _checked_names(options, schema)
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._filter = OffsetFilter()

    def partitions(self) -> list[InputPartition]:
        """Return one partition for each range that is left after the pushed filters."""
        options = self._options
        ranges = self._filter.apply(resolve(storage(options.warehouse), options))
        rows_max = min(options.records_per_partition_max or ROWS_PER_TASK_MAX, ROWS_PER_TASK_MAX)
        return [RangePartition(r) for r in split(ranges, partitions_min=options.partitions_min, rows_max=rows_max)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one range, in offset order."""
        if not isinstance(partition, RangePartition):
            return  # Spark's stand-in where there is nothing to read
        found = partition.range
        project = arrow_columns(
            self._names,
            self._options.row_format,
            topic=found.partition.ref.topic,
            partition=found.partition.ref.name,
            number=found.partition.number,
        )
        columns = source_columns(self._names, self._options.row_format) or ["offset"]
        for rows in read_range(self._options.warehouse, found, columns):
            for batch in rows.to_batches(max_chunksize=_rows_of_batch(rows)):
                yield pa.RecordBatch.from_arrays(project(batch), schema=self._schema)


class PushdownReader(MessageReader):
    """The same where the session lets a Python source see filters (`spark.sql.python.filterPushdown.enabled`)."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take what offsets, topic and partition decide; yield the rest back to Spark."""
        for found in filters:
            if self._filter.take(found, self._options.row_format) is not Kept.EXACTLY:
                yield found


class MessageSource(DataSource):
    """Topics of one warehouse."""

    warehouse: str | None = None
    reader_class: type[MessageReader] = MessageReader

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "mq"

    def schema(self) -> StructType:
        """Return the columns that the options ask for; wrong options fail here, in `load()`."""
        return schema_of(self._parsed())

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader; `schema` may name fewer columns, in any order."""
        return self.reader_class(self._parsed(), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return the sink of one batch write (`jobs.stream.sink`)."""
        from jobs.stream.sink import batch_writer  # what only reads needs none of it

        return batch_writer(dict(self.options), schema, self.warehouse, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Return the sink of a streaming query, in any output mode: as Kafka's, it appends what each batch gives."""
        from jobs.stream.sink import stream_writer  # what only reads needs none of it

        return stream_writer(dict(self.options), schema, self.warehouse)

    def _parsed(self) -> ReadOptions:
        return parse_options(dict(self.options), warehouse=self.warehouse)


def read_range(warehouse: str, found: OffsetRange, columns: list[str]) -> Iterator[pa.Table]:
    """Yield the rows of a range, one row group at a time.

    A roll-up may have replaced the files since the range was planned, and their time may have passed; then the rows
    are in other files, under the same offsets, and the read goes on with those.
    """
    store = storage(warehouse)
    folder = found.partition.ref.folder
    reader = FileReader(store, folder, RowCache(_CACHE_BYTES))
    at = found.start
    for file in found.files:
        try:
            for rows in reader.groups(file, at, min(found.stop, file.end), columns):
                at += rows.num_rows
                yield rows
        except Corrupt:
            if store.exists(f"{folder}/{file.path}"):
                raise
            break
    if at == found.stop:
        return
    now = load(store, folder)
    if at < now.min_offset:
        raise Corrupt(f"{folder}: offsets [{at}, {now.min_offset}) were removed by retention during the read")
    for file in now.files:
        if file.end > at and file.start < found.stop:
            for rows in reader.groups(file, at, min(found.stop, file.end), columns):
                at += rows.num_rows
                yield rows
    assert at == found.stop, "live files are dense"


def _rows_of_batch(rows: pa.Table) -> int:
    return max(1, int(rows.num_rows * BATCH_BYTES_MAX // max(rows.nbytes, 1)))


def _checked_names(options: ReadOptions, schema: StructType) -> list[str]:
    """Return the asked columns; refuse a schema with one that is unknown or of another type."""
    known = {field.name: field.dataType for field in schema_of(options)}
    for field in schema:
        if field.name not in known:
            raise Refused(f"there is no column {field.name!r}; columns are {', '.join(known)}", field=field.name)
        if field.dataType != known[field.name]:
            told = f"{known[field.name].simpleString()}, not {field.dataType.simpleString()}"
            raise Refused(f"column {field.name!r} is {told}", field=field.name)
    return schema.names
