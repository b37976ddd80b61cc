"""Counts the offsets of some partitions with Spark's own Delta reader: a check that shares no code with ours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from deltamq.jobs.upkeep.verify_result import VerifyResult, short
from deltamq.mq.errors import DeltaMQError
from deltamq.tables.delta.snapshot import PartitionNotFound, Snapshot, load
from deltamq.tables.paths import PartitionRef
from deltamq.tables.store.store import Store

#: Partitions in one query: the plan stays small, and a damaged table makes few others fail in the first try.
_PARTITIONS_PER_QUERY: Final = 64
#: Tries of a count. Retention may remove the first rows meanwhile; the next try starts from the remaining rows.
_TRIES: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkCount:
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
