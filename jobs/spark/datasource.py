"""`spark.read.format("mq")` and `spark.readStream.format("mq")`: topics as DataFrames (SPEC SPARK-1, SPARK-2).

    driver                                     each task
    options -> offset ranges, resolved once -> parquet -> Arrow batches, every byte checked -> Spark

Options are those of Spark's Kafka source. A task gets paths and offset ranges, nothing else: no session, no service,
no open table. It yields Arrow batches, so no row becomes a Python object. In a batch read, comparisons on `offset`,
`topic` and `partition` are applied here and never reach Spark; those on `append_time` skip files; rows with another
`key`, `tag` or `message_id` are left out before they go to Spark. Offsets are dense, so they are counted, not read.

Spark gives a Python source neither column pruning nor a way to answer with a native plan. So the option `columns`
("offset, key"), or a schema that names fewer columns (`.schema("offset BIGINT, key STRING")`), makes it read only
those, and `jobs.sql.reader.read_topic` takes the same options and reads Delta natively (with measurements). Streams are
in `jobs.stream`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from jobs.read import (
    ROWS_PER_TASK_MAX,
    Catalog,
    Kept,
    Mode,
    OffsetFilter,
    RangePartition,
    RangeRows,
    ReadOptions,
    parse_options,
    read_range,
    resolve,
    schema_of,
    split,
)
from jobs.tasks import storage
from tables.clock import SYSTEM_CLOCK
from tables.config import load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, Filter

__all__ = ["MessageSource", "RangePartition", "read_range", "register"]

WAREHOUSE_SETTING: Final = "spark.deltamq.warehouse"


def register(spark: SparkSession, *, warehouse: str, cluster: str | None = None) -> None:
    """Register `format("mq")` with a session.

    Parameters
    ----------
    warehouse
        The warehouse that it reads unless an option names another.
    cluster
        Part of the names of the queue's own logs, where streams record their progress; by default the profile's.
    """
    pushdown = spark.conf.get("spark.sql.python.filterPushdown.enabled", "false") == "true"
    spark.conf.set(WAREHOUSE_SETTING, warehouse)
    spark.dataSource.register(_bound(warehouse, cluster or load().warehouse.cluster, pushdown=pushdown))


def _bound(warehouse_of_session: str, cluster_of_session: str, *, pushdown: bool) -> type[DataSource]:
    """Return the source with its defaults in the class: Spark makes it in another process, from the options alone."""

    class BoundMessageSource(MessageSource):
        warehouse = warehouse_of_session
        cluster = cluster_of_session
        reader_class = PushdownReader if pushdown else MessageReader

    return BoundMessageSource


class MessageReader(DataSourceReader):
    """One read: planned on the driver, carried out in tasks."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._rows = RangeRows(options, schema)
        self._filter = OffsetFilter()

    def partitions(self) -> list[InputPartition]:
        """Return one partition for each range that is left after the pushed filters.

        Raises
        ------
        Unavailable
            `not_readable`: one of them may not be read now (SPEC ROUTE-9).
        """
        options = self._options
        catalog = Catalog(storage(options.warehouse))
        ranges = self._filter.apply(resolve(catalog, options))
        catalog.check_readable((one.partition for one in ranges), SYSTEM_CLOCK.wall_us() // 1_000)
        rows_max = min(options.records_per_partition_max or ROWS_PER_TASK_MAX, ROWS_PER_TASK_MAX)
        return [RangePartition(r) for r in split(ranges, partitions_min=options.partitions_min, rows_max=rows_max)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one range, in offset order."""
        return self._rows.read(partition)


class PushdownReader(MessageReader):
    """A reader for sessions that show filters to a Python source (`spark.sql.python.filterPushdown.enabled`)."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Apply filters on offsets, topic and partition; yield the others back to Spark, which checks the rows."""
        for found in filters:
            self._rows.filter.take(found)
            if self._filter.take(found, self._options.row_format) is not Kept.EXACTLY:
                yield found


class MessageSource(DataSource):
    """Topics of one warehouse."""

    warehouse: str | None = None
    cluster: str = "deltamq"
    reader_class: type[MessageReader] = MessageReader

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "mq"

    def schema(self) -> StructType:
        """Return the columns that the options select; invalid options fail here, in `load()`."""
        return schema_of(self._parsed(Mode.EITHER))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader; `schema` may name fewer columns, in any order."""
        return self.reader_class(self._parsed(Mode.BATCH), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream; Spark makes one for planning and others for its tasks."""
        # jobs.stream builds on this package, and its tasks import it first
        from jobs.stream import MessageStreamReader

        return MessageStreamReader(self._parsed(Mode.STREAM), schema, cluster=self.cluster)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return the sink of one batch write (`jobs.sink.sink`)."""
        from jobs.sink import batch_writer  # imported here: readers need none of it

        return batch_writer(dict(self.options), schema, self.warehouse, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Return the sink of a streaming query, in any output mode: it appends each batch, as Kafka's does."""
        from jobs.sink import stream_writer  # imported here: readers need none of it

        return stream_writer(dict(self.options), schema, self.warehouse)

    def _parsed(self, mode: Mode) -> ReadOptions:
        return parse_options(dict(self.options), warehouse=self.warehouse, mode=mode)
