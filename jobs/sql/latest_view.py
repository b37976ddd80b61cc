"""The newest value of each key of a typed topic: the view over the table that the job `latest` keeps (SPEC TYPE-45).

    mq_latest_<topic>     the table (tables/state/latest.py), and the messages behind it: no query misses what was
                          acknowledged before it

A message without a value deletes its key. The newest of two messages is that with the later append time; a key's
messages lie in one partition unless their producers named partitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr

from deltamq.jobs.merge.state_tables import frame_of, signed, table_at, writing_session
from deltamq.jobs.read.identifiers import literal, quoted
from deltamq.jobs.read.topics import Catalog
from deltamq.jobs.sql.reader import read_topic
from deltamq.mq.errors import Unavailable
from deltamq.tables.state.latest import latest_folder
from deltamq.tables.state.table import read_state_log
from deltamq.tables.state.upkeep import DATA_KEEP_MS
from deltamq.tables.store.store import Store

#: What the view has behind the fields of the value.
_SHOWN: Final = ("mq_key", "mq_partition", "mq_offset", "mq_append_time", "mq_rescued")
_READ: Final = "key,offset,append_time,partition,value,rescued"
_OF_MESSAGE: Final = (
    "concat('k', key) AS mq_id",
    "key AS mq_key",
    "partition AS mq_partition",
    "offset AS mq_offset",
    "append_time AS mq_append_time",
    "rescued AS mq_rescued",
    "value",
)


class ErasedLatest(NamedTuple):
    """How many keys lost their row, and the table's files that are not live: just replaced, earlier, or never live."""

    rows: int = 0
    replaced: Sequence[str] = ()
    dead: Sequence[str] = ()
    unknown: Sequence[str] = ()


def erase_latest(
    spark: SparkSession | None, store: Store, topic_id: str, keys: pa.Array, *, until_us: int, now_ms: int
) -> ErasedLatest:
    """Delete the rows of these keys whose messages were appended until then (SPEC ERASE-1).

    Files that no commit names are only told if no merge writes them any more.

    Raises
    ------
    Unavailable
        `engine_needed`: only Spark writes the table.
    """
    folder = latest_folder(topic_id)
    before = read_state_log(store, folder)
    if before is None:
        return ErasedLatest()
    if spark is None:
        raise Unavailable(f"{folder}: its rows are erased by the engine spark only", code="engine_needed")
    session, table = writing_session(spark), table_at(store, folder)
    frame_of(session, pa.table({"key": keys}), partitions=1).createOrReplaceTempView("erased")
    due = f"t.mq_key = s.key AND t.mq_append_time <= timestamp_micros({until_us})"
    rows: int = session.sql(f"SELECT count(*) AS n FROM {table} t JOIN erased s ON {due}").collect()[0].n
    if rows:
        with signed(session, before):
            session.sql(f"MERGE INTO {table} t USING erased s ON {due} WHEN MATCHED THEN DELETE")
    old_ms = now_ms - DATA_KEEP_MS
    entries = [entry for entry in store.entries(folder) if entry.name.endswith(".parquet")]
    after = read_state_log(store, folder)
    assert after is not None, "nothing deletes it but the end of its topic"
    live = set(after.paths)
    replaced = set(before.paths) - live if rows else set()
    rest = [entry for entry in entries if entry.name not in live | replaced]
    dead = [entry.name for entry in rest if entry.name in after.removed_ms]
    unknown = [entry.name for entry in rest if entry.name not in after.removed_ms and entry.modified_ms < old_ms]
    return ErasedLatest(rows, sorted(replaced), dead, unknown)


def newest_messages(spark: SparkSession, *, where: str = "", **options: Any) -> DataFrame:
    """Return the newest message of each key as a row of the table; `value` is null for one that deletes its key.

    `options` are those of `read_topic`, and `where` is a condition of the messages.
    """
    rows = read_topic(spark, typed=True, columns=_READ, **options).where("key IS NOT NULL")
    return newest((rows.where(where) if where else rows).selectExpr(*_OF_MESSAGE))


def newest(rows: DataFrame) -> DataFrame:
    """Return the newest of the rows of each key."""
    best = f"max_by(struct({', '.join(rows.columns)}), struct(mq_append_time, mq_offset)) AS best"
    return rows.groupBy("mq_id").agg(expr(best)).select("best.*")


def latest_of(spark: SparkSession, store: Store, catalog: Catalog, topic: str, warehouse: str) -> DataFrame:
    """Return the newest value of each key as of each query: its fields, then those of `_SHOWN`.

    What is merged when the view is made is not read again. What is merged later is read twice, until the view is made
    again.
    """
    folder = latest_folder(catalog.topic_id(topic))
    if read_state_log(store, folder) is None:
        rows = newest_messages(spark, topic=topic, warehouse=warehouse)
    else:
        table = spark.sql(f"SELECT * FROM {table_at(store, folder)}")
        where = not_merged(merged_ends(table))
        behind = newest_messages(spark, where=where, topic=topic, warehouse=warehouse)
        rows = newest(table.where("mq_key IS NOT NULL").unionByName(behind, allowMissingColumns=True))
    taken = {name.lower() for name in rows.select("value.*").columns}
    fields = [f"value.{quoted(name)}" for name in rows.select("value.*").columns]
    return rows.where("value IS NOT NULL").selectExpr(*fields, *(name for name in _SHOWN if name not in taken))


def merged_ends(table: DataFrame) -> Mapping[str, int]:
    """Return the offset to which each partition is merged."""
    rows = table.where("mq_key IS NULL").select("mq_partition", "mq_offset").collect()
    return {row.mq_partition: row.mq_offset for row in rows}


def not_merged(ends: Mapping[str, int]) -> str:
    """Return the condition of the messages behind these offsets: in each partition's branch of a read a bound."""
    bounds = [f"NOT (partition = {literal(name)} AND offset < {end})" for name, end in sorted(ends.items())]
    return " AND ".join(bounds)
