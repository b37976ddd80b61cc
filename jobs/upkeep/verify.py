"""The job `verify`: what Spark sees of every partition is what the log promises."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, LongType, StringType, StructField, StructType, TimestampType

from jobs.run.registry import Facts, job
from jobs.run.storage import storage
from mq.errors import Corrupt, DeltaMQError
from tables.config import Config
from tables.paths import PartitionRef, Space
from tables.snapshot import PartitionNotFound, Snapshot, load
from tables.store import Store
from tables.warehouse import refs

__all__ = ["RESULTS", "results_schema", "run", "tally"]

#: The state table of the results, relative to the warehouse.
RESULTS: Final = "state/verify_results"
#: Partitions in one Spark query: the plan stays small, and one damaged table spoils few others' first try.
_PARTITIONS_PER_QUERY: Final = 64
#: Retention may remove the first rows while they are counted; each further try starts from what is left.
_TRIES: Final = 3
_FINDING_LENGTH_MAX: Final = 500

results_schema: Final = StructType(
    [
        StructField("space", StringType(), nullable=False),
        StructField("topic", StringType(), nullable=False),
        StructField("partition", StringType(), nullable=False),
        StructField("min_offset", LongType()),
        StructField("end_offset", LongType()),
        StructField("messages", LongType()),
        StructField("distinct_offsets", LongType()),
        StructField("ok", BooleanType(), nullable=False),
        StructField("finding", StringType()),
        StructField("verified_at", TimestampType(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What Spark counted of a partition's rows inside `[min_offset, end_offset)`."""

    messages: int = 0
    distinct: int = 0
    first: int | None = None
    last: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A partition's verdict; an empty `finding` means that all is well."""

    ref: PartitionRef
    snapshot: Snapshot | None = None
    counted: Counted | None = None
    finding: str = ""

    def row(self, now: datetime) -> tuple[object, ...]:
        """Return it as a row of the state table."""
        low, end = (self.snapshot.min_offset, self.snapshot.end_offset) if self.snapshot else (None, None)
        messages, distinct = (self.counted.messages, self.counted.distinct) if self.counted else (None, None)
        where = (self.ref.space.value, self.ref.topic, self.ref.name)
        return (*where, low, end, messages, distinct, not self.finding, self.finding or None, now)


@job(name="verify", every_s=lambda conf: conf.jobs.verify_every_s)
def run(spark: SparkSession, conf: Config, now: datetime, shards: Sequence[str] | None = None) -> Facts:
    """Check that every partition's offsets are dense and unique and end where its log says.

    Input: all message tables (topics, retry, dlq, sys), as Spark reads them, and each table's `mq.offset`.
    Output: the state table `state/verify_results`, one row for each partition of this run.
    Idempotent: it only reads messages, and replaces its results as a whole.
    A kill at any line leaves the results of the run before, or those of this one, never a mixture.

    Raises
    ------
    Corrupt
        A partition breaks an invariant; the results, which are written first, name all of them.
    """
    began = time.monotonic()
    store = storage(conf.warehouse.uri)
    found = [ref for space in Space for ref in refs(store, space)]
    results = [result for some in _chunks(found) for result in _verify(spark, store, some)]
    rows = [result.row(now) for result in results]
    frame = spark.createDataFrame(rows, results_schema).coalesce(1)
    frame.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(store.uri(RESULTS))
    broken = [result for result in results if result.finding]
    if broken:
        told = "; ".join(f"{result.ref.folder}: {result.finding}" for result in broken[:5])
        raise Corrupt(f"{len(broken)} of {len(results)} partitions are not sound: {told}", code="verify_failed")
    messages = sum(result.counted.messages for result in results if result.counted)
    return {"partitions": len(results), "messages": messages, "ms": int((time.monotonic() - began) * 1000)}


def tally(rows: DataFrame) -> DataFrame:
    """Return, for each `folder` of `rows(folder, offset)`, messages, distinct offsets, first and last offset.

    Distinct offsets are counted exactly, as bits of maps of 64: only one row in 64 is shuffled, and nothing sorted.
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


def _chunks(found: Sequence[PartitionRef]) -> Iterator[Sequence[PartitionRef]]:
    for at in range(0, len(found), _PARTITIONS_PER_QUERY):
        yield found[at : at + _PARTITIONS_PER_QUERY]


def _verify(spark: SparkSession, store: Store, some: Sequence[PartitionRef]) -> list[Result]:
    """Return the verdicts; a partition that cannot even be read gets its own, and does not spoil the others'."""
    results: list[Result] = []
    sound: list[tuple[PartitionRef, Snapshot]] = []
    for ref in some:
        try:
            sound.append((ref, load(store, ref.folder)))
        except PartitionNotFound:
            continue  # a topic that was deleted a moment ago
        except DeltaMQError as error:
            results.append(Result(ref=ref, finding=_short(error.detail)))
    try:
        return results + _judged(spark, store, sound)
    except (PySparkException, Py4JJavaError) as error:
        if len(sound) > 1:
            return results + [result for ref, _ in sound for result in _verify(spark, store, [ref])]
        return results + [Result(ref=ref, snapshot=found, finding=_short(str(error))) for ref, found in sound]


def _judged(spark: SparkSession, store: Store, sound: Sequence[tuple[PartitionRef, Snapshot]]) -> list[Result]:
    results = []
    counted = _counted(spark, store, sound)
    for ref, snapshot in sound:
        for _ in range(_TRIES):
            now = load(store, ref.folder)
            if now.min_offset == snapshot.min_offset:
                break
            snapshot = now
            counted |= _counted(spark, store, [(ref, snapshot)])
        found = counted.get(ref.folder, Counted())
        results.append(Result(ref=ref, snapshot=snapshot, counted=found, finding=_finding(snapshot, found)))
    return results


def _counted(spark: SparkSession, store: Store, sound: Sequence[tuple[PartitionRef, Snapshot]]) -> dict[str, Counted]:
    frames = [_offsets(spark, store, ref, snapshot) for ref, snapshot in sound if snapshot.files]
    if not frames:
        return {}
    found = tally(reduce(DataFrame.unionAll, frames)).collect()
    return {
        row.folder: Counted(messages=row.messages, distinct=row.distinct, first=row["first"], last=row["last"])
        for row in found
    }


def _offsets(spark: SparkSession, store: Store, ref: PartitionRef, snapshot: Snapshot) -> DataFrame:
    """Return the rows that were there when the snapshot was taken: later appends lie behind its end."""
    table = spark.read.format("delta").load(store.uri(ref.folder))
    inside = (F.col("offset") >= snapshot.min_offset) & (F.col("offset") < snapshot.end_offset)
    return table.where(inside).select(F.lit(ref.folder).alias("folder"), "offset")


def _finding(snapshot: Snapshot, found: Counted) -> str:
    expected = snapshot.end_offset - snapshot.min_offset
    if found.messages != found.distinct:
        return f"{found.messages - found.distinct} messages have an offset that another one has"
    if found.messages != expected:
        return f"{expected - found.messages} of the {expected} offsets before mq.offset have no message"
    if expected and (found.first, found.last) != (snapshot.min_offset, snapshot.end_offset - 1):
        return f"offsets are [{found.first}, {found.last}], not [{snapshot.min_offset}, {snapshot.end_offset - 1}]"
    return ""


def _short(text: str) -> str:
    return text if len(text) <= _FINDING_LENGTH_MAX else text[: _FINDING_LENGTH_MAX - 3] + "..."
