"""Tables as a service leaves them: topics, groups, messages, pops, acknowledgements, delayed messages.

They are made with `tables` alone, so that jobs can be tested without a service.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from msgspec.structs import replace

from deltamq.mq.meta.group import Group, decide_put_group
from deltamq.mq.meta.group_settings import GroupRequest
from deltamq.mq.meta.topic_settings import TopicRequest
from deltamq.mq.meta.topics import Topic, decide_delete_topic, decide_put_topic
from deltamq.mq.names import broker_of
from deltamq.mq.queue.checkpoint import Checkpoint, Pop, spans_of
from deltamq.mq.queue.delay import Cancelled, DelayMark
from deltamq.mq.queue.retry import RetryTopic
from deltamq.mq.queue.revive import LostRecord
from deltamq.mq.queue.revive_log import Ack, Done, Record
from deltamq.tables.config import Config
from deltamq.tables.config_sections import Engine, WarehouseSettings
from deltamq.tables.log.batch import Batch
from deltamq.tables.log.bounds import BOUNDS, LogBounds
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.paging import pages
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.queue.metadata import MetaLog
from deltamq.tables.queue.records import lost_records_of, records_of, rows_of_delay_marks, rows_of_records
from deltamq.tables.queue.refs import DELAY, DELAY_MARKS, LOST, dead_ref, retry_ref, revive_ref, system_ref
from deltamq.tables.schema import INGEST_SCHEMA, INTERNAL_SCHEMA
from deltamq.tables.store.store import Store

__all__ = ["BROKER", "CLUSTER", "QueueTables", "at", "config", "with_spark_engine"]

CLUSTER = "deltamq"
BROKER = "broker-a"
_INGEST = {field.name: field.type for field in INGEST_SCHEMA}
_INTERNAL = {field.name: field.type for field in INTERNAL_SCHEMA}


def config(folder: Path | str) -> Config:
    """Return the settings of jobs that work in `folder`, with the engine that needs no Spark."""
    conf = Config()
    return replace(conf, warehouse=WarehouseSettings(uri=str(folder)), jobs=replace(conf.jobs, engine=Engine.LOCAL))


def with_spark_engine(conf: Config) -> Config:
    """Return the same settings with the Spark engine."""
    return replace(conf, jobs=replace(conf.jobs, engine=Engine.SPARK))


def at(now_ms: int) -> datetime:
    """Return milliseconds since 1970 as a `datetime`, which jobs take."""
    return datetime.fromtimestamp(now_ms / 1_000, UTC)


class QueueTables:
    """A warehouse as a service leaves it."""

    def __init__(self, folder: Path | str, store: Store | None = None, bounds: LogBounds = BOUNDS) -> None:
        self.conf = config(folder)
        self.warehouse = Warehouse.open(str(folder), store=store, bounds=bounds)
        self.meta = MetaLog(self.warehouse)

    def close(self) -> None:
        """Close the tables."""
        self.warehouse.close()

    # Metadata.

    def topic(self, name: str = "orders", partitions: int = 1, brokers: Sequence[str] = (BROKER,)) -> Topic:
        """Return a topic; creates it if it does not exist."""
        request = TopicRequest(partitions=partitions)
        made = self.meta.submit(lambda s: decide_put_topic(s, name, request, brokers, uuid.uuid4().hex, 0))
        return made.topics[name]

    def delete_topic(self, topic: Topic) -> None:
        """Delete a topic as the service does: first the event, then the data."""
        self.meta.submit(lambda s: decide_delete_topic(s, topic.name))
        self.warehouse.drop_topic(Space.TOPICS, topic.name, topic.generation)

    def group(self, name: str = "billing", **settings: Any) -> Group:
        """Return a group; creates it if it does not exist."""
        request = GroupRequest(**settings)
        return self.meta.submit_groups(lambda m: decide_put_group(m.groups, name, request, 0)).groups.group(name)

    # Messages.

    def send(self, topic: Topic, *bodies: str, partition: int = 0, **columns: Sequence[Any]) -> list[int]:
        """Append messages to one partition of a topic; returns their offsets."""
        count = len(bodies)
        arrays = {
            "body": pa.array([body.encode() for body in bodies], pa.binary()),
            "key": pa.array([f"key-{body}" for body in bodies], pa.string()),
            "headers": pa.array([[("h", body)] for body in bodies], _INGEST["headers"]),
            **{name: pa.array(values, _INTERNAL[name]) for name, values in columns.items()},
        }
        base = self.log(topic, partition).append([Batch(pa.RecordBatch.from_pydict(arrays))])[0].base_offset
        return list(range(base, base + count))

    def log(self, topic: Topic, partition: int = 0) -> PartitionLog:
        """Return the log of one partition of a topic."""
        name = topic.route.partitions[partition]
        return self.warehouse.create(PartitionRef(Space.TOPICS, topic.name, name, topic.generation))

    def rows(self, ref: PartitionRef) -> list[dict[str, Any]]:
        """Return all rows of a partition; none if it does not exist yet."""
        if not self.warehouse.exists(ref):
            return []
        log = self.warehouse.open_partition(ref)
        log.refresh()
        return [row for page in pages(log, log.min_offset) for row in page.rows.to_pylist()]

    def retried(self, group: Group, topic: Topic, broker: str = BROKER) -> list[dict[str, Any]]:
        """Return the rows of a retry partition."""
        return self.rows(retry_ref(group.name, group.epoch, topic.name, topic.generation, broker))

    def dead(self, group: Group, broker: str = BROKER) -> list[dict[str, Any]]:
        """Return a group's dead letters."""
        return self.rows(dead_ref(group.name, group.epoch, broker))

    def lost(self, broker: str = BROKER) -> list[LostRecord]:
        """Return the records of lost messages."""
        return [one for page in self._pages(system_ref(LOST, CLUSTER, broker)) for one in lost_records_of(page)]

    def _pages(self, ref: PartitionRef) -> list[pa.Table]:
        if not self.warehouse.exists(ref):
            return []
        log = self.warehouse.open_partition(ref)
        log.refresh()
        return [page.rows for page in pages(log, log.min_offset)]

    # Pops.

    def checkpoint(
        self,
        group: Group,
        topic: Topic,
        offsets: Sequence[int],
        *,
        partition: int = 0,
        at_ms: int = 0,
        invisible_ms: int = 10_000,
        queue: int = 0,
        attempts: int | tuple[int, ...] = 1,
        retry: bool = False,
        dead_reason: str | None = None,
        epoch: int | None = None,
    ) -> Checkpoint:
        """Return the checkpoint that a pop of at most 32 messages makes, without storing it."""
        name = topic.route.partitions[partition]
        if retry:
            name = RetryTopic(group.name, topic.name).partition(broker_of(name))
        pop = Pop(
            topic=topic.name,
            topic_id=topic.id,
            group=group.name,
            epoch=group.epoch if epoch is None else epoch,
            partition=name,
            retry=retry,
            pop_time_ms=at_ms,
            invisible_ms=invisible_ms,
            revive_queue=queue,
        )
        (span,) = spans_of(offsets, attempts)
        return Checkpoint(pop=pop, span=span, dead_reason=dead_reason)

    def pop(self, group: Group, topic: Topic, offsets: Sequence[int], **options: Any) -> Checkpoint:
        """Store the checkpoint of a pop, and return it."""
        made = self.checkpoint(group, topic, offsets, **options)
        self.record(made)
        return made

    def ack(self, checkpoint: Checkpoint, *offsets: int) -> None:
        """Store an acknowledgement."""
        bits = sum(1 << index for offset in offsets if (index := checkpoint.span.index_of(offset)) is not None)
        ack = Ack(checkpoint.key, bits, checkpoint.revive_time_ms)
        self.record(ack, queue=checkpoint.pop.revive_queue, broker=broker_of(checkpoint.pop.partition))

    def record(self, *records: Record, queue: int | None = None, broker: str = BROKER) -> None:
        """Append records to the revive log; a checkpoint goes to the queue and broker that it names."""
        for record in records:
            at = (queue or 0, broker)
            if isinstance(record, Checkpoint):
                at = (record.pop.revive_queue, broker_of(record.pop.partition))
            log = self.warehouse.create(revive_ref(CLUSTER, *at))
            log.append([Batch(rows_of_records([record]))])

    def done(self, queue: int = 0, broker: str = BROKER) -> list[Done]:
        """Return the records of finished checkpoints that the revive job has written."""
        found = [one for page in self._pages(revive_ref(CLUSTER, queue, broker)) for one in records_of(page)]
        return [one for one in found if isinstance(one, Done)]

    # Delayed messages.

    def delay(self, topic: Topic, *messages: tuple[str, int], partition: int = 0, broker: str = BROKER) -> list[int]:
        """Store bodies, each with its deliver time in milliseconds, in the delay log; returns their offsets there."""
        count = len(messages)
        origin = {"topic": f"{topic.id}/{topic.name}", "partition": topic.route.partitions[partition], "offset": -1}
        arrays = {
            "body": pa.array([body.encode() for body, _ in messages], pa.binary()),
            "key": pa.array([f"key-{body}" for body, _ in messages], pa.string()),
            "deliver_time": pa.array([at * 1_000 for _, at in messages], _INGEST["deliver_time"]),
            "origin": pa.array([origin] * count, _INTERNAL["origin"]),
        }
        log = self.warehouse.create(system_ref(DELAY, CLUSTER, broker))
        base = log.append([Batch(pa.RecordBatch.from_pydict(arrays))])[0].base_offset
        return list(range(base, base + count))

    def mark(self, *marks: DelayMark, broker: str = BROKER) -> None:
        """Append delay marks."""
        log = self.warehouse.create(system_ref(DELAY_MARKS, CLUSTER, broker))
        log.append([Batch(rows_of_delay_marks(marks))])

    def cancel(self, offset: int, broker: str = BROKER) -> None:
        """Cancel the delayed message at an offset of the delay log."""
        self.mark(Cancelled(system_ref(DELAY, CLUSTER, broker).name, offset, "id"), broker=broker)

    def delivered(self, topic: Topic, partition: int = 0) -> list[dict[str, Any]]:
        """Return the rows of a partition of a topic."""
        return self.rows(PartitionRef(Space.TOPICS, topic.name, topic.route.partitions[partition], topic.generation))
