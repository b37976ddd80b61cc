"""Retried and delayed messages, and dead letters, keep which schema wrote them, by both engines (SPEC TYPE-51)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from deltamq.jobs.export.replay import Chosen, replay_dead_letters
from deltamq.jobs.sink.open_sink import SinkSettings
from deltamq.mq.limits import ACK_SETTLE_MS
from deltamq.tables.config import load
from deltamq.tables.log.batch import Batch
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.queue.delay_targets import DelayTargets
from deltamq.tables.queue.metadata import MetaLog
from deltamq.tables.queue.redelivery_rows import with_destination
from deltamq.tables.queue.refs import DELAY, dead_ref, retry_ref, system_ref
from deltamq.tables.queue.topic_codecs import TopicCodecs
from deltamq.tables.queue.waiting_rows import WAITING_COLUMNS, written_by
from deltamq.tables.schema import INGEST_SCHEMA
from deltamq.tables.typed_row import VALUE
from tests.queue_engines import ENGINES, delay_job, revive_job
from tests.queue_tables import BROKER, CLUSTER, QueueTables
from tests.typed import make_typed, record

FIRST = record(("a", "long"), ("b", "long"))
#: Its bodies look alike, with the fields the other way round.
SECOND = record(("b", "long"), ("a", "long"))
SENT = {"a": 1, "b": 2}
DUE = 10_000 + ACK_SETTLE_MS


class Orders:
    """A topic whose messages were written by the first of two versions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tables = QueueTables(folder)
        self.topic, self.group = self.tables.topic(), self.tables.group(max_attempts=2)
        self.codecs = TopicCodecs(lambda: self.tables.meta.meta)
        self.version(FIRST)

    def version(self, text: str) -> None:
        make_typed(self.tables.meta, "orders", "avro", text, on_invalid="quarantine")
        self.topic = self.tables.topic()

    def rows(self, count: int) -> pa.RecordBatch:
        codec = self.codecs.of(self.topic)
        assert codec is not None
        bodies = codec.encode([SENT] * count).to_pylist()
        return pa.RecordBatch.from_pylist([{"key": "k", "body": body} for body in bodies], schema=INGEST_SCHEMA)

    def values(self, log: PartitionLog) -> list[Any]:
        log.refresh()
        rows = log.read(log.min_offset, max_messages=10, max_bytes=1 << 20, columns=WAITING_COLUMNS).rows
        return list(rows.column(VALUE).to_pylist()) if VALUE in rows.column_names else [None] * rows.num_rows


@pytest.fixture
def orders(tmp_path: Path) -> Iterator[Orders]:
    made = Orders(tmp_path / "w")
    yield made
    made.tables.close()


@pytest.mark.parametrize("engine", ENGINES)
def test_type_51_retried_messages_and_dead_letters_keep_the_schema_that_wrote_them(orders: Orders, engine: str) -> None:
    tables, topic, group = orders.tables, orders.topic, orders.group
    log = tables.log(topic)
    log.append([Batch(orders.codecs.typed(topic, orders.rows(2)))])
    (first,) = {entry.id for entry in orders.tables.meta.meta.schemas.versions("orders-value")}
    orders.version(SECOND)
    job = revive_job(engine, tables.warehouse, tables.conf)
    tables.pop(group, topic, [0])
    tables.pop(group, topic, [1], dead_reason="rejected")
    job.run(DUE)
    retry = tables.warehouse.open_partition(retry_ref(group.name, group.epoch, topic.name, topic.generation, BROKER))
    dead = tables.warehouse.open_partition(dead_ref(group.name, group.epoch, BROKER))
    assert orders.values(retry) == orders.values(dead) == [{"schema_id": first}]
    # From the retry partition on as from the topic.
    tables.pop(group, topic, [0], retry=True, at_ms=DUE, attempts=2)
    job.run(2 * DUE)
    assert orders.values(dead) == [{"schema_id": first}] * 2
    settings = SinkSettings.of(load(overrides={"warehouse.uri": str(orders.folder)}), str(orders.folder))
    assert replay_dead_letters(settings, group.name, Chosen(), to="retry").replayed == 2
    assert orders.values(retry) == [{"schema_id": first}] * 3
    letters = Chosen(offsets={dead.ref.name: [0, 1]})
    assert replay_dead_letters(settings, group.name, letters).replayed == 2
    assert orders.values(log) == [SENT] * 4


@pytest.mark.parametrize("engine", ENGINES)
def test_type_51_delayed_messages_keep_the_schema_that_wrote_them(orders: Orders, engine: str) -> None:
    tables, topic = orders.tables, orders.topic
    codec = orders.codecs.of(topic)
    assert codec is not None
    for id_ in (codec.newest, None):
        partitions = pa.array([topic.route.partitions[0]] * 2)
        rows = with_destination(written_by(orders.rows(2), id_), topic, partitions, pa.array([1_000, 1_001]))
        tables.warehouse.create(system_ref(DELAY, CLUSTER, BROKER)).append([Batch(_last(rows))])
    orders.version(SECOND)
    assert delay_job(engine, tables.warehouse, tables.conf).run(2_000)["rows"] == 4
    # What waited before this rule is of the newest version, as it was.
    turned = {"a": SENT["b"], "b": SENT["a"]}
    assert sorted(map(str, orders.values(tables.log(topic)))) == sorted(map(str, [SENT, SENT, turned, turned]))


def test_type_52_a_delayed_message_of_a_version_that_came_after_the_metadata_was_read_arrives_whole(
    tmp_path: Path,
) -> None:
    tables = QueueTables(tmp_path / "w")
    topic = tables.topic()
    make_typed(tables.meta, "orders", "avro", FIRST, on_invalid="quarantine", wire="confluent")
    with contextlib.closing(tables):
        targets = DelayTargets(tables.warehouse, MetaLog(tables.warehouse), lambda: DUE)
        new = record(("a", "long"), ("b", "long"), ("c", ["null", "string"], {"default": None}))
        make_typed(tables.meta, "orders", "avro", new, on_invalid="quarantine", wire="confluent")
        codec = TopicCodecs(lambda: tables.meta.meta).of(tables.meta.state.topics["orders"])
        assert codec is not None
        sent = {**SENT, "c": "x"}
        rows = pa.RecordBatch.from_pylist([{"body": codec.encode([sent])[0].as_py()}], schema=INGEST_SCHEMA)
        arrived = targets.arrived(tables.log(topic).ref, rows)
        assert arrived.column(VALUE).to_pylist() == [sent]


def _last(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The deliver time that is set last is the one that counts."""
    names = rows.schema.names
    return rows.select([at for at, name in enumerate(names) if name not in names[at + 1 :]])
