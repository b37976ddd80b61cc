"""The state tables on Spark's side: their columns for Spark, and the sessions that write them.

The columns stand in `tables.state.schema`, and `tables.state.table` makes the tables. Features stay at reader 1 /
writer 2 (no deletion vectors, no column mapping), so that every Delta reader can read them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from jobs.tasks import cloned_session, is_connect
from mq.limits import MIB
from tables.state import (
    ALLOCATIONS,
    ALLOCATIONS_SCHEMA,
    BROKERS,
    BROKERS_SCHEMA,
    CLIENTS,
    CLIENTS_SCHEMA,
    COMPUTED_COLUMNS,
    CONSUMER_OFFSETS,
    CONSUMER_OFFSETS_SCHEMA,
    GROUPS,
    GROUPS_SCHEMA,
    LOST_MESSAGES,
    LOST_MESSAGES_SCHEMA,
    MOVES,
    MOVES_SCHEMA,
    POP_CHECKPOINTS,
    POP_CHECKPOINTS_SCHEMA,
    ROUTES,
    ROUTES_SCHEMA,
    TOPICS,
    TOPICS_SCHEMA,
    StateLog,
)
from tables.store import Store

__all__ = [
    "STATE_TABLES",
    "add_columns",
    "frame_of",
    "idempotent",
    "missing_columns",
    "spark_schema",
    "table_at",
    "writing_session",
]

STATE_TABLES: Final = {
    CONSUMER_OFFSETS: CONSUMER_OFFSETS_SCHEMA,
    POP_CHECKPOINTS: POP_CHECKPOINTS_SCHEMA,
    LOST_MESSAGES: LOST_MESSAGES_SCHEMA,
    TOPICS: TOPICS_SCHEMA,
    ROUTES: ROUTES_SCHEMA,
    GROUPS: GROUPS_SCHEMA,
    BROKERS: BROKERS_SCHEMA,
    CLIENTS: CLIENTS_SCHEMA,
    ALLOCATIONS: ALLOCATIONS_SCHEMA,
    MOVES: MOVES_SCHEMA,
}

_SETTINGS: Final = {
    # Other readers read Spark's older format of times as nanoseconds.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # The source of a MERGE is kept by the executors, and does not change between the two passes over it.
    "spark.databricks.delta.merge.materializeSource": "none",
    "spark.databricks.delta.autoCompact.enabled": "false",
    # A MERGE writes the files anew in which it changes a row, and what is due is skipped by files: not too large ones.
    # What a compaction made of many small files is not compacted again.
    "spark.databricks.delta.optimize.minFileSize": str(8 * MIB),
    "spark.databricks.delta.optimize.maxFileSize": str(64 * MIB),
}


_TXN_APP: Final = "spark.databricks.delta.write.txnAppId"
_TXN_VERSION: Final = "spark.databricks.delta.write.txnVersion"


def spark_schema(schema: pa.Schema) -> StructType:
    """The same columns for Spark."""
    return from_arrow_schema(schema)


def writing_session(spark: SparkSession) -> SparkSession:
    """A session of the same application whose settings and temporary views are its own.

    The settings of an idempotent write hold for every write of a session: another job's must not meet them.
    """
    session: SparkSession = cloned_session(spark) if is_connect(spark) else spark.newSession()
    for key, value in _SETTINGS.items():
        session.conf.set(key, value)
    return session


@contextmanager
def idempotent(session: SparkSession, app_id: str, version: int) -> Iterator[None]:
    """Let commits of this session store `version` meanwhile; one that is stored already is not done again."""
    session.conf.set(_TXN_APP, app_id)
    session.conf.set(_TXN_VERSION, str(version))
    try:
        yield
    finally:
        session.conf.unset(_TXN_APP)
        session.conf.unset(_TXN_VERSION)


def missing_columns(table: str, log: StateLog) -> list[str]:
    """Return the columns that came after the release that made a state table, and that it does not have."""
    return [name for name in STATE_TABLES[table].names if name not in log.columns]


def add_columns(session: SparkSession, store: Store, table: str, names: Sequence[str]) -> None:
    """Add columns in the commit that fills them: a column that is there is never half filled."""
    computed = COMPUTED_COLUMNS.get(table, {})
    fields = {field.name: field for field in spark_schema(STATE_TABLES[table]).fields}
    added = {name: expr(computed.get(name, "NULL")).cast(fields[name].dataType) for name in names}
    rows = session.read.format("delta").load(store.uri(table)).withColumns(added)
    rows.write.format("delta").mode("overwrite").option("mergeSchema", "true").save(store.uri(table))


def table_at(store: Store, table: str) -> str:
    """The table as SQL names it; all else in our statements are names of our own."""
    return f"delta.`{store.uri(table).replace('`', '``')}`"


def frame_of(session: SparkSession, rows: pa.Table, *, partitions: int) -> DataFrame:
    """Arrow rows as a DataFrame of so many partitions at most; what must not be null is the table's own affair."""
    plain = rows.cast(pa.schema([one.with_nullable(True) for one in rows.schema]))
    with _active_session_kept():
        return session.createDataFrame(plain, spark_schema(plain.schema)).coalesce(partitions)


@contextmanager
def _active_session_kept() -> Iterator[None]:
    """Afterwards the thread's active session is what it was: PySpark makes that active which makes a DataFrame of rows.

    Who ran the job by hand goes on in that thread, and Spark looks in the active session for sources such as ours.
    """
    before: Any = SparkSession.getActiveSession()
    try:
        yield
    finally:
        # A client of Spark Connect names its sources with each query.
        if before is not None and not is_connect(before):
            SparkSession._activeSession = before
            before._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(before._jsparkSession)
