"""Static topics in Spark: reads, streams, writes, state tables and views by logical queue (SPEC STATIC, SPARK-4)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from deltamq.jobs.merge.merge import Merger
from deltamq.jobs.sql.catalog import register_tables
from deltamq.jobs.sql.reader import read_topic
from deltamq.jobs.sql.views import register_views
from deltamq.jobs.stream.progress import behind
from deltamq.mq.meta.group import decide_put_group
from deltamq.mq.meta.group_settings import GroupRequest
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.queue.progress import Committed, OffsetRecord
from deltamq.mq.queue.revive import LostReason, LostRecord
from deltamq.mq.static.mappings import MappingRemoved
from deltamq.mq.static.queue_names import queue_name
from deltamq.tables.log.batch import Batch
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.queue.records import rows_of_lost_records, rows_of_offset_records
from deltamq.tables.queue.refs import LOST, OFFSETS, system_ref
from deltamq.tables.state.schema import QUEUE_MAPPINGS, TOPICS
from tests.queue_tables import CLUSTER, QueueTables
from tests.static_tables import TOPIC, StaticTables

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

A, B, C = "broker-a", "broker-b", "broker-c"
Q0, Q1 = queue_name(0), queue_name(1)
NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


class Orders(QueueTables):
    """Queue 0 has five messages on A, three on B, and four on A behind a hole; queue 1 has two on B."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.orders = StaticTables(self.warehouse, 2, (A, B, C))
        self.orders.send(0, 5)
        self.orders.send(1, 2)
        self.orders.remap([B], "strict", [0])
        self.orders.send(0, 3)
        self.orders.remap([A], "available", [0])
        self.orders.send(0, 4)

    @property
    def expected(self) -> list[tuple[str, int, str]]:
        offsets = {0: [*range(8), *range(10_000, 10_004)], 1: [0, 1]}
        return [
            (queue_name(queue), at, body)
            for queue, bodies in self.orders.sent.items()
            for at, body in zip(offsets[queue], bodies, strict=True)
        ]

    def commit(self, group: str, offsets: dict[str, int]) -> None:
        """Store a group's progress by lanes."""
        topic = self.orders.topic
        for partition, offset in offsets.items():
            lane = LaneKey(topic.id, group, False, partition)
            epoch = self.orders.meta.meta.groups.epoch_of(lane)
            assert epoch is not None
            record = OffsetRecord(lane=lane, topic=TOPIC, committed=Committed(epoch, offset))
            log = self.warehouse.create(system_ref(OFFSETS, CLUSTER, partition.rpartition("@")[2]))
            log.append([Batch(rows_of_offset_records([record]))])

    def hold(self, group: str, partition: str, offsets: list[int]) -> None:
        """Store the checkpoint of a pop of messages that nobody acknowledges."""
        topic = self.orders.topic
        its_group = self.orders.meta.meta.groups.group(group)
        at = topic.route.partitions.index(partition)
        self.pop(its_group, topic, offsets, partition=at, at_ms=1, invisible_ms=10**10)

    def lose(self, group: str, partition: str, low: int, high: int) -> None:
        """Store that the group could not read these messages."""
        lane = LaneKey(self.orders.topic.id, group, False, partition)
        lost = LostRecord(lane=lane, topic=TOPIC, ranges=((low, high),), reason=LostReason.RETENTION, time_ms=1)
        log = self.warehouse.create(system_ref(LOST, CLUSTER, partition.rpartition("@")[2]))
        log.append([Batch(rows_of_lost_records([lost]))])

    def merge(self, spark: SparkSession) -> None:
        """Run the job in a process of its own."""
        warehouse = Warehouse.open(self.conf.warehouse.uri)
        Merger(warehouse, self.conf).run(spark, NOW)
        warehouse.close()


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[Orders]:
    made = Orders(tmp_path / "warehouse")
    yield made
    made.close()


def rows(spark: SparkSession, query: str) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in spark.sql(query).collect()]


@pytest.mark.long
def test_static_15_both_ways_to_read_show_logical_queues_and_offsets(spark: SparkSession, tables: Orders) -> None:
    uri = tables.warehouse.uri
    reads = [
        spark.read.format("mq").option("warehouse", uri).option("topic", TOPIC).load(),
        read_topic(spark, TOPIC, warehouse=uri),
    ]
    for frame in reads:
        found = sorted((row.partition, row.offset, bytes(row.body).decode()) for row in frame.collect())
        assert found == tables.expected
        last = frame.where((F.col("partition") == Q0) & (F.col("offset") >= 7) & (F.col("offset") < 10_002))
        assert sorted(row.offset for row in last.collect()) == [7, 10_000, 10_001]
    kafka = read_topic(spark, TOPIC, warehouse=uri, rowFormat="kafka", startingOffsets='{"orders": {"0": 9, "1": 1}}')
    assert sorted((row.partition, row.offset) for row in kafka.collect()) == [
        *((0, at) for at in range(10_000, 10_004)),
        (1, 1),
    ]
    before = read_topic(spark, TOPIC, warehouse=uri, asOfOffset=f'{{"orders": {{"{Q0}": 6, "{Q1}": 0}}}}')
    assert sorted(row.offset for row in before.collect()) == list(range(6))
    with pytest.raises((PythonException, AnalysisException), match="a segment of its queue"):
        spark.read.format("mq").option("warehouse", uri).option(
            "assign", '{"orders": ["orders@broker-a"]}'
        ).load().count()


@pytest.mark.promise("PIPE-1")
@pytest.mark.long
def test_static_13_a_stream_writes_a_static_topic_into_a_delta_table_once(
    spark: SparkSession, tables: Orders, tmp_path: Path
) -> None:
    given = {"topic": TOPIC, "warehouse": tables.warehouse.uri, "startingOffsets": "earliest"}
    frame = spark.readStream.format("mq").options(**given, maxOffsetsPerTrigger="6").load()

    def run() -> list[Any]:
        writer = frame.writeStream.format("delta").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start(str(tmp_path / "table"))
        query.awaitTermination()
        return list(query.recentProgress)

    progress = run()
    assert sum(one.numInputRows for one in progress) == 14
    assert [one.total for one in behind(progress[0])] == [14 - progress[0].numInputRows], "holes are no messages"
    tables.orders.remap([B], "available", [0])
    tables.orders.send(0, 2)
    run()
    found = spark.read.format("delta").load(str(tmp_path / "table")).collect()
    wanted = [
        (queue_name(queue), at, body)
        for queue, offsets in ((0, [*range(8), *range(10_000, 10_004), 20_000, 20_001]), (1, [0, 1]))
        for at, body in zip(offsets, tables.orders.sent[queue], strict=True)
    ]
    assert sorted((row.partition, row.offset, bytes(row.body).decode()) for row in found) == wanted


@pytest.mark.promise("PIPE-9")
@pytest.mark.long
def test_static_21_rows_that_name_a_queue_are_written_to_it(spark: SparkSession, tables: Orders) -> None:
    uri = tables.warehouse.uri
    frame = spark.range(6).selectExpr("CAST(id AS STRING) AS value", f"IF(id < 3, '{Q1}', '0') AS partition")
    write = frame.write.format("mq").mode("append").option("warehouse", uri).option("topic", TOPIC)
    for _ in range(2):
        write.option("idempotencyKey", "once").save()
        tables.orders.remap([A], "available", [1])
    read = read_topic(spark, TOPIC, warehouse=uri).where("CAST(body AS STRING) NOT LIKE '%-%'")
    found = sorted((row.partition, bytes(row.body).decode()) for row in read.collect())
    assert found == [(Q0, "3"), (Q0, "4"), (Q0, "5"), (Q1, "0"), (Q1, "1"), (Q1, "2")]


@pytest.mark.long
def test_static_4_mappings_are_a_table(spark: SparkSession, tables: Orders) -> None:
    tables.merge(spark)
    read = spark.read.format("delta").load(tables.warehouse.store.uri(QUEUE_MAPPINGS))
    stored = [row.asDict() for row in read.orderBy("holder", "role", "queue", "gen").collect()]
    assert {(row["holder"], row["role"], row["queue"], row["gen"], row["partition"]) for row in stored} == {
        (A, "hosted", 0, 0, "orders@broker-a"),
        (A, "hosted", 0, 1, "orders#2@broker-b"),
        (A, "hosted", 0, 2, "orders#3@broker-a"),
        (B, "hosted", 1, 0, "orders#1@broker-b"),
        (B, "copy", 0, 0, "orders@broker-a"),
        (B, "copy", 0, 1, "orders#2@broker-b"),
        (B, "copy", 0, 2, "orders#3@broker-a"),
        (C, None, None, None, None),
    }
    (leader,) = [row for row in stored if row["gen"] == 2 and row["role"] == "hosted"]
    assert (leader["logic_offset"], leader["end_offset"], leader["end_time"]) == (10_000, -1, None)
    assert {row["served"] for row in stored if row["role"] == "hosted"} == {True}
    (topic,) = spark.read.format("delta").load(tables.warehouse.store.uri(TOPICS)).collect()
    assert (topic["static"], topic["total_queues"], topic["mapping_epoch"]) == (True, 2, stored[0]["epoch"])


@pytest.mark.long
def test_static_18_queues_and_lags_are_shown_by_logical_queue(spark: SparkSession, tables: Orders) -> None:
    orders = tables.orders
    orders.meta.submit_groups(lambda m: decide_put_group(m.groups, "billing", GroupRequest(), 0))
    tables.commit("billing", {"orders@broker-a": 5, "orders#2@broker-b": 1})
    tables.hold("billing", "orders#2@broker-b", [1, 2])
    tables.lose("billing", "orders#3@broker-a", 1, 3)
    orders.remap([A], "available", [1], seal=False)
    orders.send(1, 3)
    tables.merge(spark)
    register_views(spark, tables.conf)
    queues = rows(spark, "SELECT * FROM mq_logical_queues ORDER BY queue")
    shown = ("partition", "min_offset", "max_offset", "messages", "holes", "segments", "leader", "broker", "state")
    assert [tuple(row[name] for name in shown) for row in queues] == [
        (Q0, 0, 10_004, 12, 9_992, 3, "orders#3@broker-a", A, "open"),
        (Q1, 0, 2, 5, 0, 2, "orders#4@broker-a", A, "undecided"),
    ]
    lag = "SELECT partition, broker, committed_offset, min_offset, end_offset, lag FROM mq_lag"
    assert rows(spark, f"{lag} WHERE NOT retry ORDER BY partition") == [
        {
            "partition": Q0,
            "broker": A,
            "committed_offset": 6,
            "min_offset": 0,
            "end_offset": 10_004,
            "lag": 6,
        },
        {"partition": Q1, "broker": A, "committed_offset": None, "min_offset": 0, "end_offset": 2, "lag": 5},
    ]
    show_stored_places_and_logical_ones(spark)
    tables.commit("billing", {"orders@broker-a": 5, "orders#2@broker-b": 3})
    tables.merge(spark)
    assert rows(spark, "SELECT committed_offset, lag FROM mq_lag WHERE NOT retry AND lag < 5") == [
        {"committed_offset": 8, "lag": 4}
    ], "what it committed, not the end of the hole behind it"
    moves = rows(spark, "SELECT source, passed FROM mq_moves ORDER BY route_epoch")
    assert [(row["source"], row["passed"]) for row in moves][:2] == [
        ("orders@broker-a", True),
        ("orders#2@broker-b", True),
    ]
    lost = MappingRemoved(topic_id=orders.topic.id, holder=B)
    orders.seal()
    orders.remap([B], "strict", [1])
    orders.meta.submit_any(lambda _: (lost,))
    tables.merge(spark)
    assert rows(spark, "SELECT queue, state FROM mq_logical_queues ORDER BY queue") == [
        {"queue": 0, "state": "open"},
        {"queue": 1, "state": "unserved"},
    ]


def show_stored_places_and_logical_ones(spark: SparkSession) -> None:
    """Rows about segments have the logical queue and logical offsets beside what they have of plain topics."""
    shown = "SELECT partition, offset, logical_queue, logical_offset FROM mq_in_flight ORDER BY offset"
    assert [tuple(row.values()) for row in rows(spark, shown)] == [
        ("orders#2@broker-b", 1, Q0, 6),
        ("orders#2@broker-b", 2, Q0, 7),
    ]
    shown = "SELECT low, high, messages, logical_queue, logical_low, logical_high FROM mq_lost"
    assert [tuple(row.values()) for row in rows(spark, shown)] == [(1, 3, 2, Q0, 10_001, 10_003)]
    shown = (
        "SELECT partition, end_offset, logical_queue, logical_min_offset, logical_end_offset FROM mq_partitions "
        "WHERE topic = 'orders' ORDER BY logical_queue, logical_end_offset NULLS LAST"
    )
    assert [tuple(row.values()) for row in rows(spark, shown)] == [
        ("orders@broker-a", 5, Q0, 0, 5),
        ("orders#2@broker-b", 3, Q0, 5, 8),
        ("orders#3@broker-a", 4, Q0, 10_000, 10_004),
        ("orders#1@broker-b", 2, Q1, 0, 2),
        ("orders#4@broker-a", 3, Q1, None, None),
    ]
    assert rows(spark, "SELECT 1 FROM mq_partitions WHERE space <> 'topics' AND logical_queue IS NOT NULL") == []


@pytest.mark.long
def test_static_15_the_catalogs_view_of_a_topic_is_by_logical_queue(
    spark: SparkSession, tables: Orders, tmp_path: Path
) -> None:
    register_tables(spark, "static_orders", tables.conf)
    try:
        found = spark.sql("SELECT partition, offset, body FROM static_orders.topic_orders").collect()
        assert sorted((row.partition, row.offset, bytes(row.body).decode()) for row in found) == tables.expected
    finally:
        spark.sql("DROP SCHEMA static_orders CASCADE")
