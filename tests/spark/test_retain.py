"""Retention behind the merge job: the queue's own logs are cut, and nothing that they said is forgotten (RETRY-6)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from deltamq.jobs.merge.merge import merge
from deltamq.jobs.queue.revive import Reviver
from deltamq.jobs.tasks.warehouses import close_warehouses
from deltamq.jobs.upkeep.retain import retain
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.queue.progress import Committed, OffsetRecord
from deltamq.tables.config_sections import Engine
from deltamq.tables.log.batch import Batch
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import PartitionRef
from deltamq.tables.queue.records import rows_of_offset_records
from deltamq.tables.queue.recovery import Recovered, recover
from deltamq.tables.queue.refs import OFFSETS, revive_ref, system_ref
from tests.queue_tables import BROKER, CLUSTER, QueueTables

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

OLD_ENOUGH = timedelta(hours=1, minutes=1)


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[QueueTables]:
    made = QueueTables(tmp_path / "warehouse")
    yield made
    close_warehouses()
    made.close()


def recovered(tables: QueueTables) -> Recovered:
    """What a service that starts now knows."""
    warehouse = Warehouse.open(tables.warehouse.uri)
    found = recover(warehouse, CLUSTER, [BROKER])
    warehouse.close()
    return found


def bounds(tables: QueueTables, ref: PartitionRef) -> tuple[int, int]:
    log = tables.warehouse.open_partition(ref)
    log.refresh()
    return log.min_offset, log.end_offset


@pytest.mark.long
@pytest.mark.parametrize("engine", [Engine.SPARK, Engine.LOCAL])
def test_retry_6_what_is_merged_is_cut_and_a_start_knows_all_of_it(
    spark: SparkSession, tables: QueueTables, engine: Engine
) -> None:
    carried_out_by = spark if engine is Engine.SPARK else None
    topic, group = tables.topic(), tables.group()
    revive, offsets = revive_ref(CLUSTER, 0, BROKER), system_ref(OFFSETS, CLUSTER, BROKER)
    lane = LaneKey(topic.id, group.name, False, topic.route.partitions[0])
    now_ms = int(time.time() * 1_000)
    sent = tables.send(topic, "a", "b", "c")
    checkpoint = tables.pop(group, topic, sent, at_ms=now_ms, invisible_ms=10_000)
    tables.ack(checkpoint, sent[1])
    log = tables.warehouse.create(offsets)
    for offset in (1, 3):
        record = OffsetRecord(lane=lane, topic=topic.name, committed=Committed(group.epoch, offset))
        log.append([Batch(rows_of_offset_records([record]))])
    merge(spark, tables.conf, datetime.now(UTC))
    late = tables.pop(group, topic, sent[:1], at_ms=now_ms + 1, invisible_ms=10_000)
    before = recovered(tables)

    facts = retain(carried_out_by, tables.conf, datetime.now(UTC) + OLD_ENOUGH)
    assert (bounds(tables, revive), bounds(tables, offsets)) == ((2, 3), (2, 2))
    assert (facts["rows"], facts["unmerged"]) == (4, 1)
    assert recovered(tables) == before
    assert before.committed[lane].offset == 3 and len(before.states[lane]) == 2

    # The jobs go on behind the cut.
    tables.ack(late, sent[0])
    merge(spark, tables.conf, datetime.now(UTC))
    retain(carried_out_by, tables.conf, datetime.now(UTC) + OLD_ENOUGH)
    assert bounds(tables, revive) == (4, 4)
    reviver = Warehouse.open(tables.warehouse.uri)
    Reviver(reviver, tables.conf).run(now_ms + 3_600_000)
    reviver.close()
    assert sorted(row["body"] for row in tables.retried(group, topic)) == [b"a", b"c"]
