"""Spark reads a partition as the Delta table that it is (SPEC SPARK-1): at once, and right."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from deltamq.tables.delta.actions import commit_name
from deltamq.tables.delta.stamped import ProducerStamp
from deltamq.tables.log.batch import Batch
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.settings import LogSettings
from tests.contract.test_other_readers import full_rows
from tests.rows import REF, all_rows, batch, numbered_bodies
from tests.set_clock import SetClock

pytestmark = pytest.mark.spark

SETTINGS = LogSettings(rollup_files=8, checkpoint_commits=16, log_keep_ms=1_000, file_keep_ms=1_000)


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def log(tmp_path: Path, clock: SetClock) -> Iterator[PartitionLog]:
    warehouse = Warehouse.open(str(tmp_path), settings=SETTINGS, clock=clock)
    yield warehouse.create(REF)
    warehouse.close()


def bodies(spark: SparkSession, log: PartitionLog) -> list[bytes]:
    rows = spark.read.format("delta").load(log.location).orderBy("offset").select("offset", "body").collect()
    assert [row["offset"] for row in rows] == list(range(log.min_offset, log.end_offset))
    return [bytes(row["body"]) for row in rows]


@pytest.mark.long
def test_spark_1_a_message_is_seen_by_the_first_query_after_its_answer(spark: SparkSession, log: PartitionLog) -> None:
    sent = []
    for body in numbered_bodies("m", 4):
        log.append([batch(body)])
        sent.append(body)
        assert bodies(spark, log) == sent


def test_spark_1_a_table_that_was_rolled_up_checkpointed_and_cleaned_is_read_right(
    spark: SparkSession, log: PartitionLog, clock: SetClock
) -> None:
    sent = numbered_bodies("m", 60)
    for body in sent:
        log.append([batch(body)])
        log.maintain()
        clock.advance_ms(100)
    assert not (Path(log.location) / "_delta_log" / commit_name(0)).exists()
    assert log.checkpoint_version > 0 and len(log.files) < 20
    assert bodies(spark, log) == sent
    log.append([batch(b"after")])
    assert bodies(spark, log) == [*sent, b"after"]


@pytest.mark.long
def test_spark_1_a_table_is_read_right_after_retention(spark: SparkSession, log: PartitionLog, clock: SetClock) -> None:
    """Some of it is removed, then all, with checkpoints and clean-up after it."""
    sent = numbered_bodies("m", 40)
    for body in sent:
        log.append([batch(body)])
        log.maintain()
    log.delete_below(20)
    low = log.min_offset
    assert 0 < low <= 20
    assert bodies(spark, log) == sent[low:]
    log.delete_below(40)
    assert bodies(spark, log) == []
    for body in (*sent, *sent):
        log.append([batch(body)])
        log.maintain()
        clock.advance_ms(100)
    assert log.min_offset == 40 and not (Path(log.location) / "_delta_log" / commit_name(0)).exists()
    assert bodies(spark, log) == [*sent, *sent]


def test_retry_6_a_query_that_runs_while_retention_removes_finishes(spark: SparkSession, log: PartitionLog) -> None:
    """The files of the version that it found when it began are kept for it."""
    sent = numbered_bodies("m", 10)
    for body in sent:
        log.append([batch(body)])
    running = spark.read.format("delta").option("versionAsOf", log.version).load(log.location)
    log.delete_below(10)
    log.maintain()
    assert [bytes(row["body"]) for row in running.orderBy("offset").collect()] == sent
    assert bodies(spark, log) == []


@pytest.mark.parametrize("count", [7, 500])
def test_spark_1_every_column_comes_out_as_it_went_in(spark: SparkSession, log: PartitionLog, count: int) -> None:
    """Maps, structs, times and nulls; plain files of few rows and compressed ones with delta-packed offsets."""
    log.append([Batch(full_rows(count), ProducerStamp("p", 7, None, count))])
    found = spark.read.format("delta").load(log.location).orderBy("offset")
    expected = all_rows(log)
    # Times as numbers: what a row object shows depends on the machine's zone.
    times = ["born_time", "append_time", "deliver_time"]
    rows = found.select(
        *[F.unix_micros(c).alias(c) if c in times else F.col(c) for c in found.columns if c != "headers"],
        F.map_entries("headers").alias("headers"),
    ).collect()
    for name in times:
        assert [row[name] for row in rows] == expected.column(name).cast(pa.int64()).to_pylist()
    for name in ("offset", "message_id", "key", "tag", "reconsume_times", "producer_id", "producer_seq"):
        assert [row[name] for row in rows] == expected.column(name).to_pylist(), name
    assert [bytes(row["body"]) for row in rows] == expected.column("body").to_pylist()
    assert [row["origin"].asDict() if row["origin"] else None for row in rows] == expected.column("origin").to_pylist()
    headers = [None if row["headers"] is None else [(e["key"], e["value"]) for e in row["headers"]] for row in rows]
    assert headers == expected.column("headers").to_pylist()


def test_spark_1_files_are_skipped_by_offset(spark: SparkSession, log: PartitionLog) -> None:
    for _ in range(4):
        log.append([Batch(full_rows(100))])
    table = spark.read.format("delta").load(log.location)
    chosen = table.where((F.col("offset") >= 150) & (F.col("offset") < 160))
    assert chosen.count() == 10
    assert chosen.select(F.input_file_name()).distinct().count() == 1


@pytest.mark.long
def test_spark_1_a_stream_of_the_table_itself_sees_each_message_once(
    spark: SparkSession, log: PartitionLog, tmp_path: Path
) -> None:
    """Roll-ups change no data, so a Delta stream does not deliver their rows again."""
    sent = numbered_bodies("m", 20)
    target, progress = str(tmp_path / "copy"), str(tmp_path / "progress")
    for at in (0, 10):
        for body in sent[at : at + 10]:
            log.append([batch(body)])
            log.maintain()
        stream = spark.readStream.format("delta").load(log.location).select("offset", "body")
        query = stream.writeStream.format("delta").option("checkpointLocation", progress).trigger(availableNow=True)
        query.start(target).awaitTermination()
    rows = spark.read.format("delta").load(target).orderBy("offset").collect()
    assert [(row["offset"], bytes(row["body"])) for row in rows] == list(enumerate(sent))
