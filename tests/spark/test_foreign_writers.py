"""Other sessions of Spark at our tables: they may not write message tables, and change no state (SPEC TABLE-1, 5)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from deltamq.jobs.merge.merge import Merger
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.queue.progress import Committed, OffsetRecord
from deltamq.tables.log.batch import Batch
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.queue.records import rows_of_offset_records
from deltamq.tables.queue.recovery import recover_progress
from deltamq.tables.queue.refs import OFFSETS, system_ref
from deltamq.tables.state.schema import CONSUMER_OFFSETS, TOPICS
from deltamq.tables.state.table import read_state_log
from tests.queue_tables import BROKER, CLUSTER, QueueTables
from tests.rows import batch
from tests.unit.jobs.warehouses import Filled

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
REF = PartitionRef(Space.TOPICS, "orders", "orders@broker-a")
STATEMENTS = [
    "OPTIMIZE {table}",
    "VACUUM {table}",
    "DELETE FROM {table} WHERE offset < 3",
    "UPDATE {table} SET key = 'k'",
    "INSERT INTO {table} SELECT * FROM {table}",
    "ALTER TABLE {table} ADD COLUMNS (more STRING)",
    "ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
    "COMMENT ON TABLE {table} IS 'ours'",
    "RESTORE TABLE {table} TO VERSION AS OF 1",
]


@pytest.mark.long
def test_table_01_spark_reads_and_may_not_write(spark: SparkSession, filled: Filled) -> None:
    log = filled.warehouse.create(REF)
    for body in (b"a", b"b", b"c", b"d"):
        log.append([batch(body)])
    table = f"delta.`{log.location}`"
    for statement in STATEMENTS:
        with pytest.raises(Exception, match="deltamq"):
            spark.sql(statement.format(table=table))
        assert spark.table(table).count() == 4, statement
    assert log.append([batch(b"e")])[0].version == 5, "none of them left a commit"
    assert [bytes(row.body) for row in spark.table(table).orderBy("offset").collect()] == [b"a", b"b", b"c", b"d", b"e"]


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[QueueTables]:
    made = QueueTables(tmp_path / "w")
    yield made
    made.close()


STATE_STATEMENTS = [
    "DELETE FROM {table}",
    "UPDATE {table} SET committed_offset = 0",
    "RESTORE TABLE {table} TO VERSION AS OF 0",
    "ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
    "DELETE FROM {table} WHERE committed_offset > 0",
    "ALTER TABLE {table} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')",
]


@pytest.mark.long
def test_table_05_what_another_session_does_to_state_tables_counts_for_nothing(
    spark: SparkSession, tables: QueueTables
) -> None:
    """No start of a service is stopped by it, no acknowledged message comes again, and the next merge takes it back."""
    lane = LaneKey(tables.topic("orders", 2).id, "billing", False, f"orders@{BROKER}")
    epoch = tables.group().epoch
    log = tables.warehouse.create(system_ref(OFFSETS, CLUSTER, BROKER))

    def commit(offset: int) -> None:
        record = OffsetRecord(lane=lane, topic="orders", committed=Committed(epoch, offset))
        log.append([Batch(rows_of_offset_records([record]))])

    def progress() -> Committed:
        return recover_progress(Warehouse.open(tables.conf.warehouse.uri), CLUSTER, [BROKER])[lane]

    merger = Merger(tables.warehouse, tables.conf)
    store = tables.warehouse.store
    table = f"delta.`{store.uri(CONSUMER_OFFSETS)}`"
    for offset, statement in enumerate(STATE_STATEMENTS, start=5):
        commit(offset)
        merger.run(spark, NOW)
        log.delete_below(log.end_offset)
        spark.sql(statement.format(table=table))
        found = read_state_log(store, CONSUMER_OFFSETS)
        assert found is not None and found.foreign, statement
        assert progress() == Committed(epoch, offset), statement
    commit(99)
    spark.sql(f"DELETE FROM delta.`{store.uri(TOPICS)}`")
    merger.run(spark, NOW)
    found = read_state_log(store, CONSUMER_OFFSETS)
    assert found is not None and found.foreign == "" and found.reader_version == 1
    assert progress() == Committed(epoch, 99)
    assert [row.committed_offset for row in spark.table(table).collect()] == [99], "as Spark reads it, too"
    assert spark.table(f"delta.`{store.uri(TOPICS)}`").count() == 1


@pytest.mark.long
@pytest.mark.timeout(900)
def test_table_06_state_tables_that_are_gone_are_made_again_from_what_the_logs_have(
    spark: SparkSession, tables: QueueTables, caplog: pytest.LogCaptureFixture
) -> None:
    topic = tables.topic("orders", 2)
    lanes = [LaneKey(topic.id, "billing", False, name) for name in topic.route.partitions]
    epoch = tables.group().epoch
    log = tables.warehouse.create(system_ref(OFFSETS, CLUSTER, BROKER))

    def commit(lane: int, offset: int) -> None:
        record = OffsetRecord(lane=lanes[lane], topic="orders", committed=Committed(epoch, offset))
        log.append([Batch(rows_of_offset_records([record]))])

    merger = Merger(tables.warehouse, tables.conf)
    store = tables.warehouse.store
    for lane in range(2):
        commit(lane, 7)
        merger.run(spark, NOW)
    log.delete_below(1)
    for table in (CONSUMER_OFFSETS, TOPICS):
        store.delete_tree(table)
    merger.run(spark, NOW)
    assert "event=state_table_gone table=state/consumer_offsets" in caplog.text
    found = spark.read.format("delta").load(store.uri(CONSUMER_OFFSETS)).collect()
    assert [(row.partition, row.committed_offset) for row in found] == [(lanes[1].partition, 7)]
    assert spark.read.format("delta").load(store.uri(TOPICS)).count() == 1
    commit(0, 9)
    merger.run(spark, NOW)
    recovered = recover_progress(Warehouse.open(tables.conf.warehouse.uri), CLUSTER, [BROKER])
    assert [recovered[lane].offset for lane in lanes] == [9, 7]
