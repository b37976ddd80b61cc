"""F7 where Spark writes: a disk that is full in the middle of a job, and has room again (SPEC SPARK-3, SPARK-7).

Each run finds room for some pages more than the one before, so that it breaks off somewhere else: at the plan, the
data files, the commit. What went wrong is told, and once there is room everything is there, and nothing twice.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from deltamq.jobs.merge.merge import merge
from deltamq.jobs.queue.delay import delay
from deltamq.jobs.queue.revive import revive
from deltamq.jobs.tasks.warehouses import close_warehouses
from deltamq.jobs.upkeep.compact import compact
from deltamq.mq.limits import ACK_SETTLE_MS, KIB
from deltamq.tables.config import load
from deltamq.tables.state.schema import POP_CHECKPOINTS
from tests.faults.small_disk import SmallDisk, mounted
from tests.queue_tables import QueueTables, at, with_spark_engine
from tests.rows import all_bodies, batch

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

#: Room that a run finds, in pages of 4 KiB.
_PAGES = (0, 1, 3, 6, 10)
_NOW_MS = 1_790_000_000_000
_DUE_MS = _NOW_MS + 10_000 + ACK_SETTLE_MS + 1_000
_HOUR_MS = 3_600_000
#: How the operating system, and errors of ours, say it.
_FULL = ("No space left on device", "no space left")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with mounted(tmp_path, mib=8) as made:
        yield made


@pytest.fixture
def tables(disk: SmallDisk) -> Iterator[QueueTables]:
    with closing(QueueTables(disk.folder / "warehouse")) as made:
        yield made
        close_warehouses()


def _refusals(disk: SmallDisk, before: Callable[[int], object], run: Callable[[], object]) -> list[str]:
    """Run with more and more room, each time with something new to do; what the runs that failed said.

    Some jobs raise; others say in their facts, which `run` returns, what they had trouble with.
    """
    refused: list[str] = []
    for number, pages in enumerate(_PAGES):
        before(number)
        with disk.with_room_for(pages):
            try:
                done = run()
            except Exception as error:
                refused.append(str(error))
                continue
        for facts in done if isinstance(done, tuple) else (done,):
            refused += [str(facts["trouble"])] if isinstance(facts, Mapping) and "trouble" in facts else []
    assert refused, "it was full"
    wrong = [said[:600] for said in refused if not any(word in said for word in _FULL)]
    assert not wrong, wrong
    return refused


@pytest.mark.long
def test_f7_a_merge_on_a_full_disk_merges_each_record_once_when_there_is_room(
    spark: SparkSession, disk: SmallDisk, tables: QueueTables
) -> None:
    topic, group = tables.topic(), tables.group()
    tables.send(topic, *map(str, range(2 * len(_PAGES))))
    merge(spark, tables.conf, at(_NOW_MS))

    def pop(number: int) -> None:
        tables.pop(group, topic, [2 * number, 2 * number + 1], at_ms=_NOW_MS + number)

    _refusals(disk, pop, lambda: merge(spark, tables.conf, at(_NOW_MS)))
    merge(spark, tables.conf, at(_NOW_MS))
    rows = spark.read.format("delta").load(tables.warehouse.store.uri(POP_CHECKPOINTS)).collect()
    assert sorted((row.start_offset, row.in_flight) for row in rows) == [(2 * at, 2) for at in range(len(_PAGES))]


@pytest.mark.long
def test_f7_revive_and_delay_on_a_full_disk_deliver_each_once_when_there_is_room(
    spark: SparkSession, disk: SmallDisk, tables: QueueTables
) -> None:
    conf = with_spark_engine(tables.conf)
    topic, group, late = tables.topic(), tables.group(), tables.topic("late")
    offsets = tables.send(topic, *map(str, range(2 * len(_PAGES))))

    def arrive(number: int) -> None:
        tables.pop(group, topic, offsets[2 * number : 2 * number + 2], at_ms=_NOW_MS + number, queue=number)
        tables.delay(late, (f"late-{number}", _NOW_MS + number))

    def run(now_ms: int = _DUE_MS) -> object:
        return revive(spark, conf, at(now_ms)), delay(spark, conf, at(now_ms))

    _refusals(disk, arrive, run)
    run(_DUE_MS + _HOUR_MS)  # what could not be delivered is not tried again at once
    assert sorted(int(row["body"]) for row in tables.retried(group, topic)) == offsets
    assert sorted(row["body"] for row in tables.delivered(late)) == [b"late-%d" % at for at in range(len(_PAGES))]


@pytest.mark.long
def test_f7_a_compaction_on_a_full_disk_leaves_the_rows_as_they_are(
    spark: SparkSession, disk: SmallDisk, tables: QueueTables
) -> None:
    values = {"jobs.compact_target_bytes": 64 * KIB, "log.rollup_bytes_max": 4 * KIB, "jobs.engine": "spark"}
    conf = load(overrides={"warehouse.uri": tables.conf.warehouse.uri, **values}, environ={})
    log, drawn, sent = tables.log(tables.topic()), random.Random(1), []

    def send(number: int) -> None:
        for _ in range(12):
            bodies = [drawn.randbytes(3 * KIB) for _ in range(3)]
            log.append([batch(*bodies)])
            sent.extend(bodies)

    _refusals(disk, send, lambda: compact(spark, conf, at(_NOW_MS)))
    assert all_bodies(log) == sent
    assert compact(spark, conf, at(_NOW_MS))["files"] > 0
    assert all_bodies(log) == sent


@pytest.mark.long
def test_f7_a_sink_on_a_full_disk_stores_each_row_once_when_there_is_room(
    spark: SparkSession, disk: SmallDisk, tables: QueueTables, tmp_path_factory: pytest.TempPathFactory
) -> None:
    source, topic = tmp_path_factory.mktemp("source"), tables.topic()

    def come(number: int) -> None:
        rows = spark.range(100 * number, 100 * number + 100, 1, 2).selectExpr("CAST(id AS STRING) AS value")
        rows.write.parquet(str(source / str(number)))

    def run() -> None:
        writer = spark.readStream.schema("value STRING").parquet(str(source / "*")).writeStream.format("mq")
        options = {"warehouse": tables.warehouse.uri, "topic": "orders"}
        place = str(disk.folder / "checkpoint")
        query = writer.options(**options, checkpointLocation=place).trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()

    come(len(_PAGES))
    run()
    _refusals(disk, come, run)
    run()
    stored = sorted(int(row["body"]) for row in tables.delivered(topic))
    assert stored == list(range(100 * (len(_PAGES) + 1)))
