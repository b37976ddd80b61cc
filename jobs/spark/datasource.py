"""`spark.read.format("mq")` and `spark.readStream.format("mq")`: topics as DataFrames (SPEC SPARK-1, SPARK-2).

    driver, once         each task of each query
    options -> shares -> offset ranges, as of the query -> parquet -> Arrow batches, every byte checked -> Spark

Options are as in Spark's Kafka source. A task gets only a share of all present and later offsets:
no session, no service, no open table. It yields Arrow batches, so no row becomes a Python object. Spark keeps the
plan of a Python source for all later queries of a DataFrame or view, so a plan holds neither ends nor filters: each
query sees the messages that are stored when it runs (SPEC SPARK-13), and its conditions are applied by Spark. The
options select before rows go to Spark: `startingOffsets` and the other bounds, `assign`, `filter` (a condition of SQL),
`columns`. Offsets are dense, so they are counted, not read.

Spark gives a Python source neither column pruning nor a way to answer with a native plan. So the option `columns`
("offset, key"), or a schema that names fewer columns (`.schema("offset BIGINT, key STRING")`), makes it read only
these, and `jobs.sql.reader.read_topic` takes the same options and reads Delta natively (with measurements). Streams are
in `jobs.stream`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from deltamq.jobs.read.options import Mode, ReadOptions, parse_options
from deltamq.jobs.read.query_topics import SharePartition, plan_shares, ranges_of_share
from deltamq.jobs.read.range_reader import ROWS_PER_TASK_MAX, RangePartition, RangeRows
from deltamq.jobs.read.row_format import schema_of, spark_type
from deltamq.jobs.read.topics import Catalog
from deltamq.jobs.read.typed_columns import planned_values
from deltamq.jobs.tasks.checkpoint_claims import Claimant
from deltamq.jobs.tasks.connect import is_connect
from deltamq.jobs.tasks.first_lines import errors_in_one_line, in_one_line
from deltamq.jobs.tasks.warehouse_files import storage
from deltamq.jobs.tasks.warehouses import absolute
from deltamq.mq.errors import DeltaMQError
from deltamq.tables.config import Config, load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter


#: The warehouse of each session that has the format, by the session's id. Not a Spark setting: some sessions take
#: none, such as sessions of declarative pipelines.
_warehouses: Final[dict[str, str]] = {}


def register(spark: SparkSession, *, warehouse: str, cluster: str | None = None) -> None:
    """Register `format("mq")` with a session.

    Parameters
    ----------
    warehouse
        The warehouse that it reads unless an option names another.
    cluster
        Part of the names of the queue's own logs, where streams record their progress; by default the profile's.
    """
    _warehouses[_id(spark)] = warehouse
    application = _id(spark) if is_connect(spark) else str(spark.sparkContext.applicationId)
    register_sources(
        spark, _bound(warehouse, cluster or load().warehouse.cluster, Claimant.this(application=application))
    )


def register_sources(spark: SparkSession, *sources: type[DataSource]) -> None:
    """Register sources with a session, whichever session of the application is active in this thread.

    Spark looks in the active session, and refuses a source that another session has already.
    """
    if is_connect(spark):
        for source in sources:
            spark.dataSource.register(source)
        return
    given: Any = spark
    sessions = given._jvm.org.apache.spark.sql.classic.SparkSession
    before = sessions.getActiveSession()
    sessions.setActiveSession(given._jsparkSession)
    try:
        for source in sources:
            spark.dataSource.register(source)
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def session_warehouse(spark: SparkSession) -> str | None:
    """Return the warehouse that `format("mq")` reads in a session; None if the format is not registered there."""
    return _warehouses.get(_id(spark))


def chosen_warehouse(spark: SparkSession, conf: Config | None) -> str:
    """Return the warehouse of `conf` if it is given, else the one that `format("mq")` reads, else the profile's."""
    if conf is not None:
        return absolute(conf.warehouse.uri)
    return absolute(session_warehouse(spark) or load().warehouse.uri)


def _id(spark: SparkSession) -> str:
    if is_connect(spark):
        return str(spark.session_id)  # type: ignore[attr-defined] # a session of Spark Connect
    return str(spark._jsparkSession.sessionUUID())


def _bound(warehouse_of_session: str, cluster_of_session: str, application: Claimant) -> type[DataSource]:
    """The defaults are in the class: Spark makes the source in another process, only from the options."""

    class BoundMessageSource(MessageSource):
        warehouse = warehouse_of_session
        cluster = cluster_of_session
        claimant = application

    return BoundMessageSource


class MessageReader(DataSourceReader):
    """A read. Spark plans it once, for all queries of a DataFrame or view; each query decides its extent."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._rows = RangeRows(options, schema)

    @in_one_line
    def partitions(self) -> list[InputPartition]:
        """Return as many shares as the topics need now (`jobs.read.query_topics`).

        Raises
        ------
        Unavailable
            `not_readable`: a partition may not be read now (SPEC ROUTE-9).
        """
        return [*plan_shares(self._options, rows_max=ROWS_PER_TASK_MAX)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a share, in the order of partitions and offsets."""
        if isinstance(partition, SharePartition):
            with errors_in_one_line():
                for offsets in ranges_of_share(self._options, partition):
                    yield from self._rows.read(RangePartition(offsets))


class MessageSource(DataSource):
    """Topics of one warehouse."""

    warehouse: str | None = None
    cluster: str = "deltamq"
    #: The application as its streams name it.
    claimant: Claimant = Claimant.this()

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "mq"

    @in_one_line
    def schema(self) -> StructType:
        """Return the columns that the options select; invalid options fail here, in `load()`."""
        options = self._parsed(Mode.EITHER)
        if not options.typed:
            return schema_of(options)
        return schema_of(options, values=spark_type(planned_values(Catalog(storage(options.warehouse)), options)))

    @in_one_line
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader; `schema` may name fewer columns, in any order."""
        return MessageReader(self._parsed(Mode.BATCH), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream; Spark makes one for planning and others for its tasks."""
        # jobs.stream builds on this package, and its tasks import it first
        from deltamq.jobs.stream.reader import MessageStreamReader, RefusedStream

        try:
            options = self._parsed(Mode.STREAM)
        except DeltaMQError as error:
            return RefusedStream(error)
        return MessageStreamReader(options, schema, cluster=self.cluster, claimant=self.claimant)

    @in_one_line
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return the sink of one batch write (`jobs.sink.sink`)."""
        from deltamq.jobs.sink.sink import batch_writer  # imported here: readers need none of it

        given = dict(self.options)
        return batch_writer(given, schema, self.warehouse, overwrite=overwrite, claimant=self.claimant)

    @in_one_line
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Return the sink of a streaming query, in any output mode: it appends each batch, as Kafka's sink does."""
        from deltamq.jobs.sink.sink import stream_writer  # imported here: readers need none of it

        return stream_writer(dict(self.options), schema, self.warehouse, claimant=self.claimant)

    def _parsed(self, mode: Mode) -> ReadOptions:
        return parse_options(dict(self.options), warehouse=self.warehouse, mode=mode)
