"""Spark's side of the groups: counts from the queue's views, and "nothing is left" only when it is certain."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from deltamq.jobs.flights.group_account import GroupAccount
from deltamq.jobs.flights.group_reading import GroupReader, queries
from deltamq.jobs.merge.merge import Merger
from deltamq.jobs.queue.revive import Reviver
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.queue.progress import Committed, OffsetRecord
from deltamq.tables.log.batch import Batch
from deltamq.tables.queue.records import rows_of_offset_records
from deltamq.tables.queue.refs import OFFSETS, system_ref
from tests.queue_tables import BROKER, CLUSTER, QueueTables

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

NOW_MS = 1_790_000_000_000
NOW = datetime.fromtimestamp(NOW_MS / 1000, UTC)
RETRY = f"%RETRY%billing_orders@{BROKER}"


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[QueueTables]:
    made = QueueTables(tmp_path / "w")
    yield made
    made.close()


def commit(tables: QueueTables, partition: str, offset: int) -> None:
    """Store how far the group is in a partition."""
    topic, group = tables.topic(), tables.group(max_attempts=2)
    lane = LaneKey(topic.id, group.name, partition == RETRY, partition)
    record = OffsetRecord(lane=lane, topic="orders", committed=Committed(group.epoch, offset))
    tables.warehouse.create(system_ref(OFFSETS, CLUSTER, BROKER)).append([Batch(rows_of_offset_records([record]))])


# a minute; the main job's tests have the same accounts of real groups
@pytest.mark.long
def test_a_group_is_accounted_for_message_by_message(spark: SparkSession, tables: QueueTables) -> None:
    topic, group = tables.topic(), tables.group(max_attempts=2)
    reader = GroupReader(spark, tables.conf.warehouse.uri)
    merger = Merger(tables.warehouse, tables.conf)
    tables.send(topic, *"abcdef")

    seen = reader.left("orders", ["billing"])
    assert (seen.left, seen.nothing) == ({"billing": None}, False)

    # Of six messages, b comes again after its first delivery and c is dead after its second; the others are done.
    expired = tables.pop(group, topic, [1, 2], at_ms=NOW_MS - 60_000, attempts=(1, 2))
    commit(tables, topic.route.partitions[0], 6)
    merger.run(spark, NOW)
    seen = reader.left("orders", ["billing"])
    assert (seen.left, seen.nothing) == ({"billing": 2}, False)
    assert expired.bit_map == 0b00

    Reviver(tables.warehouse, tables.conf).run(NOW_MS)
    commit(tables, RETRY, 1)
    merger.run(spark, NOW)
    seen = reader.left("orders", ["billing"])
    assert (seen.left, seen.nothing) == ({"billing": 0}, True)
    assert reader.accounts("orders", ["billing"]) == [
        GroupAccount(
            group="billing",
            consumed=6,
            acknowledged=5,
            dead=1,
            dead_distinct=1,
            dead_crc=zlib.crc32(b"c"),
            retried=1,
            left=0,
        )
    ]

    # Everything that is merged is done, but a checkpoint is not merged yet: nobody knows what it holds.
    tables.ack(tables.pop(group, topic, [5], at_ms=NOW_MS, invisible_ms=10**10), 5)
    seen = reader.left("orders", ["billing"])
    assert (seen.left, seen.nothing) == ({"billing": 0}, False)


def test_every_statement_has_its_name() -> None:
    assert set(queries()) == {"lanes", "consumed", "retried", "dead"}
