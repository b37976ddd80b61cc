"""The state tables in Spark: the sessions that write them, and their names in SQL.

`tables.state.schema` defines the columns, and `tables.state.table` creates the tables. Their features stay at reader 1
and writer 2 (no deletion vectors, no column mapping), so that every Delta reader can read them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from deltamq.jobs.tasks.connect import cloned_session, is_connect
from deltamq.mq.limits import MIB
from deltamq.tables.state.signature import signature
from deltamq.tables.state.table import StateLog
from deltamq.tables.store.store import Store

_SETTINGS: Final = {
    # Other readers take Spark's older format of times for nanoseconds.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # The executors keep the source of a MERGE, and it does not change between the two passes over it.
    "spark.databricks.delta.merge.materializeSource": "none",
    "spark.databricks.delta.autoCompact.enabled": "false",
    # A MERGE rewrites the files in which it changes a row, and queries for due rows skip files, so files are not too
    # large. A file that a compaction made is not compacted again.
    "spark.databricks.delta.optimize.minFileSize": str(8 * MIB),
    "spark.databricks.delta.optimize.maxFileSize": str(64 * MIB),
}


_USER_METADATA: Final = "spark.databricks.delta.commitInfo.userMetadata"
_TXN_APP: Final = "spark.databricks.delta.write.txnAppId"
_TXN_VERSION: Final = "spark.databricks.delta.write.txnVersion"


def writing_session(spark: SparkSession) -> SparkSession:
    """Return a session of the same application with its own settings and temporary views.

    The settings of an idempotent write hold for every write of a session, so another job must not share it.
    """
    session: SparkSession = cloned_session(spark) if is_connect(spark) else spark.newSession()
    for key, value in _SETTINGS.items():
        session.conf.set(key, value)
    return session


@contextmanager
def signed(session: SparkSession, log: StateLog) -> Iterator[None]:
    """Meanwhile sign the session's commits: their writer has read the table's log up to this version (TABLE-5)."""
    session.conf.set(_USER_METADATA, signature(log.version))
    try:
        yield
    finally:
        session.conf.unset(_USER_METADATA)


@contextmanager
def idempotent(session: SparkSession, app_id: str, version: int) -> Iterator[None]:
    """Make commits of this session store `version` meanwhile; a commit whose version is stored already is skipped."""
    session.conf.set(_TXN_APP, app_id)
    session.conf.set(_TXN_VERSION, str(version))
    try:
        yield
    finally:
        session.conf.unset(_TXN_APP)
        session.conf.unset(_TXN_VERSION)


def table_at(store: Store, table: str) -> str:
    """Return the table's name in SQL; only this part of our statements needs escaping."""
    return f"delta.`{store.uri(table).replace('`', '``')}`"


def frame_of(session: SparkSession, rows: pa.Table, *, partitions: int) -> DataFrame:
    """Return Arrow rows as a DataFrame of at most `partitions` partitions; the table itself checks for nulls."""
    plain = rows.cast(pa.schema([column.with_nullable(True) for column in rows.schema]))
    with _active_session_kept():
        return session.createDataFrame(plain, from_arrow_schema(plain.schema)).coalesce(partitions)


@contextmanager
def _active_session_kept() -> Iterator[None]:
    """PySpark activates the session that makes a DataFrame from rows.

    A caller that ran the job by hand goes on in this thread, and Spark looks up sources such as ours in the active one.
    """
    before: Any = SparkSession.getActiveSession()
    try:
        yield
    finally:
        # A client of Spark Connect sends its sources with each query.
        if before is not None and not is_connect(before):
            SparkSession._activeSession = before
            before._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(before._jsparkSession)
