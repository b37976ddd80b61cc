"""The job `verify`: checks that the files of every partition match its log.

    tasks over chunks of partitions   load the log, read the `offset` columns, count    -> rows of state/verify_results
    Spark's own Delta reader          counts a few partitions of each run, in turn      -> rows with reader = 'spark'

The first reads with our code and checks every checksum. It is fast, but misses a log that our code understands and
another Delta reader does not, which the second finds. If `jobs.verify_sample` exceeds the number of partitions, Spark
counts all of them in each run.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import partial, reduce
from typing import Final

import msgspec
import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from deltamq.jobs.run.registry import Facts, job
from deltamq.jobs.tasks.items import chunks_of
from deltamq.jobs.tasks.tasks import frame_of_tasks
from deltamq.jobs.tasks.warehouse_files import storage
from deltamq.mq.errors import Corrupt, DeltaMQError
from deltamq.tables.config import Config
from deltamq.tables.delta.creation import check_no_data
from deltamq.tables.delta.snapshot import PartitionNotFound, Snapshot, load
from deltamq.tables.log.warehouse import refs
from deltamq.tables.ops.offset_counts import RowCount, count_offsets, finding_of
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.schema import TIME
from deltamq.tables.store.at_once import at_once
from deltamq.tables.store.store import Store

#: The state table of the results, relative to the warehouse.
RESULTS: Final = "state/verify_results"
#: Findings that an error shows; the table has all.
_SHOWN_MAX: Final = 5
#: Rows in one batch of a task.
_ROWS_MAX: Final = 64
#: Partitions in one query: the plan stays small, and a damaged table makes few others fail in the first try.
_PARTITIONS_PER_QUERY: Final = 64
#: Tries of a count. Retention may remove the first rows meanwhile; the next try starts from the remaining rows.
_TRIES: Final = 3
_FINDING_LENGTH_MAX: Final = 500

RESULT_ROW: Final = pa.schema(
    [
        ("space", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.string()),
        ("reader", pa.string()),
        ("min_offset", pa.int64()),
        ("end_offset", pa.int64()),
        ("messages", pa.int64()),
        ("distinct_offsets", pa.int64()),
        ("ok", pa.bool_()),
        ("finding", pa.string()),
        ("verified_at", TIME),
    ]
)


class VerifyResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result for a partition; an empty `finding` means that it is sound."""

    ref: PartitionRef
    snapshot: Snapshot | None = None
    counted: RowCount | None = None
    finding: str = ""

    @classmethod
    def of(cls, ref: PartitionRef, snapshot: Snapshot, counted: RowCount) -> VerifyResult:
        """Return the result of a count."""
        finding = finding_of(snapshot.min_offset, snapshot.end_offset, counted)
        return cls(ref=ref, snapshot=snapshot, counted=counted, finding=finding)

    def row(self, reader: str, now: datetime) -> tuple[object, ...]:
        """Return the result as a row of the state table."""
        low, end = (self.snapshot.min_offset, self.snapshot.end_offset) if self.snapshot else (None, None)
        messages, distinct = (self.counted.messages, self.counted.distinct) if self.counted else (None, None)
        where = (self.ref.space.value, self.ref.topic, self.ref.name, reader)
        return (*where, low, end, messages, distinct, not self.finding, self.finding or None, now)


def short(text: str) -> str:
    """Cut a finding to its greatest length."""
    return text if len(text) <= _FINDING_LENGTH_MAX else text[: _FINDING_LENGTH_MAX - 3] + "..."


class VerifyItem(msgspec.Struct, frozen=True):
    """Partitions that one task verifies."""

    warehouse: str
    refs: tuple[PartitionRef, ...]
    now: datetime


@job(name="verify", every_s=lambda conf: conf.jobs.verify_every_s)
def run(spark: SparkSession, conf: Config, now: datetime, shards: Sequence[str] | None = None) -> Facts:
    """Check that every partition's offsets are dense and unique, and end where its log says.

    Input: all message tables (topics, retry, dlq, sys): their logs, and the `offset` columns of their live files; for
    `jobs.verify_sample` partitions in turn also the rows as Spark's own Delta reader sees them.
    Output: the state table `state/verify_results`, one row for each partition and reader of this run.
    Idempotent: it only reads messages, and replaces its results as a whole.
    A kill at any line leaves the results of the previous run or of this one, never a mixture.

    Raises
    ------
    Corrupt
        A partition breaks an invariant; the results, which are written first, name all of them.
    """
    began = time.monotonic()
    store = storage(conf.warehouse.uri)
    partitions = [ref for space in Space for ref in refs(store, space)]
    sample = _sample(partitions, conf, now)
    deep = [result.row("spark", now) for result in count_with_spark(spark, store, sample)]
    frame = _frame(spark, store, partitions, now, deep)
    frame.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(store.uri(RESULTS))
    facts = {**_facts(spark, store), "sample": len(deep), "ms": int((time.monotonic() - began) * 1000)}
    return facts


def _sample(partitions: Sequence[PartitionRef], conf: Config, now: datetime) -> list[PartitionRef]:
    """The partitions that Spark counts in this run: the next ones in each interval of the schedule."""
    count = min(conf.jobs.verify_sample, len(partitions))
    at = int(now.timestamp()) // conf.jobs.verify_every_s * count
    return [partitions[(at + i) % len(partitions)] for i in range(count)]


def _frame(
    spark: SparkSession,
    store: Store,
    partitions: Sequence[PartitionRef],
    now: datetime,
    deep: Sequence[tuple[object, ...]],
) -> DataFrame:
    spark_rows = spark.createDataFrame(list(deep), from_arrow_schema(RESULT_ROW)).coalesce(1)
    items = [VerifyItem(store.uri(""), chunk, now) for chunk in chunks_of(partitions)]
    return frame_of_tasks(spark, items, verify_partitions, RESULT_ROW).unionAll(spark_rows) if items else spark_rows


def _facts(spark: SparkSession, store: Store) -> dict[str, int | str]:
    """The driver gets only as many findings as an error shows."""
    results = spark.read.format("delta").load(store.uri(RESULTS))
    (sums,) = (
        results.where("reader = 'tables'")
        .agg(F.count("*").alias("partitions"), F.coalesce(F.sum("messages"), F.lit(0)).alias("messages"))
        .collect()
    )
    broken = results.where("NOT ok").groupBy("space", "topic", "partition").agg(F.min("finding").alias("finding"))
    shown = broken.limit(_SHOWN_MAX).collect()
    if shown:
        findings = "; ".join(f"{row.space}/{row.topic}/{row.partition}: {row.finding}" for row in shown)
        raise Corrupt(
            f"{broken.count()} of {sums.partitions} partitions are not sound: {findings}", code="verify_failed"
        )
    return {"partitions": sums.partitions, "messages": sums.messages}


# In tasks.


def verify_partitions(item: VerifyItem) -> Iterator[pa.RecordBatch]:
    """Yield a result for each partition of an item; an unreadable partition gets a finding and affects no other."""
    store = storage(item.warehouse)
    rows: list[tuple[object, ...]] = []
    for result in at_once(store, partial(_verdict, store), item.refs):
        if result is not None:
            rows.append(result.row("tables", item.now))
        if len(rows) == _ROWS_MAX:
            yield _batch(rows)
            rows = []
    yield _batch(rows)


def _verdict(store: Store, ref: PartitionRef) -> VerifyResult | None:
    try:
        try:
            snapshot, count = count_offsets(store, ref)
        except PartitionNotFound:
            check_no_data(store, ref.folder)
            return None  # its topic was deleted a moment ago
    except (DeltaMQError, OSError) as error:
        return VerifyResult(ref=ref, finding=short(error.detail if isinstance(error, DeltaMQError) else str(error)))
    return VerifyResult.of(ref, snapshot, count)


def _batch(rows: Sequence[tuple[object, ...]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [dict(zip(RESULT_ROW.names, row, strict=True)) for row in rows], schema=RESULT_ROW
    )


# With Spark's own Delta reader: a check that shares no code with ours.


class SparkCount(msgspec.Struct, frozen=True, kw_only=True):
    """Spark's count of a partition's rows within `[min_offset, end_offset)`."""

    messages: int = 0
    distinct: int = 0
    first: int | None = None
    last: int | None = None


def count_with_spark(spark: SparkSession, store: Store, partitions: Sequence[PartitionRef]) -> Iterator[VerifyResult]:
    """Yield a result for each partition; an unreadable partition gets a finding and does not affect the others."""
    for at in range(0, len(partitions), _PARTITIONS_PER_QUERY):
        yield from _verify(spark, store, partitions[at : at + _PARTITIONS_PER_QUERY])


def tally(rows: DataFrame) -> DataFrame:
    """Return messages, distinct offsets, first and last offset for each `folder` of `rows(folder, offset)`.

    Distinct offsets are counted exactly, in bitmaps of 64 bits: only one row in 64 is shuffled, and nothing is sorted.
    """
    maps = rows.groupBy("folder", F.shiftright("offset", 6).alias("map")).agg(
        F.count("*").alias("messages"),
        F.bit_or(F.expr("shiftleft(1L, cast(offset & 63 AS INT))")).alias("bits"),
        F.min("offset").alias("first"),
        F.max("offset").alias("last"),
    )
    return maps.groupBy("folder").agg(
        F.sum("messages").alias("messages"),
        F.sum(F.bit_count("bits")).alias("distinct"),
        F.min("first").alias("first"),
        F.max("last").alias("last"),
    )


def _verify(spark: SparkSession, store: Store, partitions: Sequence[PartitionRef]) -> list[VerifyResult]:
    results: list[VerifyResult] = []
    sound: list[tuple[PartitionRef, Snapshot]] = []
    for ref in partitions:
        try:
            sound.append((ref, load(store, ref.folder)))
        except PartitionNotFound:
            continue  # a topic that was deleted a moment ago
        except DeltaMQError as error:
            results.append(VerifyResult(ref=ref, finding=short(error.detail)))
    try:
        return results + _judged(spark, store, sound)
    except (PySparkException, Py4JJavaError) as error:
        if len(sound) > 1:
            return results + [result for ref, _ in sound for result in _verify(spark, store, [ref])]
        return results + [
            VerifyResult(ref=ref, snapshot=snapshot, finding=short(str(error))) for ref, snapshot in sound
        ]


def _judged(spark: SparkSession, store: Store, sound: Sequence[tuple[PartitionRef, Snapshot]]) -> list[VerifyResult]:
    results = []
    counted = _counted(spark, store, sound)
    for ref, snapshot in sound:
        for _ in range(_TRIES):
            now = load(store, ref.folder)
            if now.min_offset == snapshot.min_offset:
                break
            snapshot = now
            counted |= _counted(spark, store, [(ref, snapshot)])
        count = counted.get(ref.folder, SparkCount())
        results.append(VerifyResult.of(ref, snapshot, count))
    return results


def _counted(
    spark: SparkSession, store: Store, sound: Sequence[tuple[PartitionRef, Snapshot]]
) -> dict[str, SparkCount]:
    frames = [_offsets(spark, store, ref, snapshot) for ref, snapshot in sound if snapshot.files]
    if not frames:
        return {}
    tallies = tally(reduce(DataFrame.unionAll, frames)).collect()
    return {
        row.folder: SparkCount(messages=row.messages, distinct=row.distinct, first=row["first"], last=row["last"])
        for row in tallies
    }


def _offsets(spark: SparkSession, store: Store, ref: PartitionRef, snapshot: Snapshot) -> DataFrame:
    """The rows that were stored when the snapshot was taken; later appends lie behind its end."""
    table = spark.read.format("delta").load(store.uri(ref.folder))
    inside = (F.col("offset") >= snapshot.min_offset) & (F.col("offset") < snapshot.end_offset)
    return table.where(inside).select(F.lit(ref.folder).alias("folder"), "offset")
