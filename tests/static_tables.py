"""A static topic on real tables, without a service: create, send, remap, seal, drop (SPEC STATIC)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Sequence
from functools import partial

import pyarrow as pa

from deltamq.mq.meta.brokers import Host, decide_register
from deltamq.mq.meta.fold import AnyEvent, Meta
from deltamq.mq.meta.static_topics import (
    RemapMode,
    StaticRequest,
    decide_drop_segments,
    decide_put_static,
    decide_remap,
    queues_of,
)
from deltamq.mq.meta.topic_settings import TopicRequest
from deltamq.mq.meta.topics import Topic
from deltamq.mq.static.logical_queue import LogicalQueue
from deltamq.tables.log.batch import Batch
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.queue.meta_fences import seal_moves
from deltamq.tables.queue.metadata import MetaLog

__all__ = ["TOPIC", "StaticTables"]

TOPIC = "orders"


class StaticTables:
    """The static topic `orders` in a warehouse; `sent` has the bodies of each queue in their order."""

    def __init__(self, warehouse: Warehouse, total_queues: int = 2, brokers: Sequence[str] = ("A", "B")) -> None:
        self.warehouse = warehouse
        self.meta = MetaLog(warehouse)
        self.sent: dict[int, list[str]] = {index: [] for index in range(total_queues)}
        self.now_ms = 1_000
        self.serve(*brokers)
        self.put(total_queues)

    def serve(self, *brokers: str) -> None:
        """Let a process serve each of these brokers."""
        for broker in brokers:
            host = Host(id=f"host-{broker}", address="", brokers=(broker,), renewal=0, load=0)
            self.meta.submit_any(partial(_registered, host))

    def put(self, total_queues: int, settings: TopicRequest | None = None) -> None:
        """Create the topic, or add queues."""
        request = StaticRequest(total_queues=total_queues, settings=settings or TopicRequest())
        new_id = str(uuid.uuid4())
        self._submit(lambda meta: decide_put_static(meta, TOPIC, request, meta.brokers.available, new_id, self.now_ms))

    def remap(
        self,
        brokers: Sequence[str],
        mode: RemapMode = "strict",
        queues: Collection[int] | None = None,
        *,
        seal: bool = True,
    ) -> None:
        """Remap queues; without `seal`, the old leaders stay unsealed."""
        self._submit(lambda meta: decide_remap(meta, TOPIC, brokers, mode, self.now_ms, queues))
        if seal:
            self.seal()

    def seal(self) -> None:
        """Seal what waits for it."""
        seal_moves(self.meta, self.topic, self.log, lambda: self.now_ms)

    def drop(self, expired: Collection[str]) -> None:
        """Drop segments."""
        self._submit(lambda meta: decide_drop_segments(meta, meta.topics.topic(TOPIC), expired))

    def _submit(self, decide: Callable[[Meta], Sequence[AnyEvent]]) -> None:
        self.now_ms += 10
        self.meta.submit_any(decide)

    @property
    def topic(self) -> Topic:
        self.meta.refresh()
        return self.meta.state.topic(TOPIC)

    @property
    def queues(self) -> dict[int, LogicalQueue]:
        topic = self.topic
        return queues_of(self.meta.meta, topic)

    def ref(self, partition: str) -> PartitionRef:
        return PartitionRef(Space.TOPICS, TOPIC, partition, self.topic.generation)

    def log(self, partition: str) -> PartitionLog:
        """Return a segment's log; its table is made."""
        table_id = str(uuid.uuid5(uuid.UUID(self.topic.id), partition))
        return self.warehouse.create(self.ref(partition), table_id=table_id)

    def send(self, queue: int, count: int) -> list[int]:
        """Append messages where the queue's go now; return the offsets that clients see, -1 for undecided ones."""
        bodies = [f"{queue}-{number}" for number in range(len(self.sent[queue]), len(self.sent[queue]) + count)]
        rows = pa.RecordBatch.from_pydict({"body": pa.array([body.encode() for body in bodies], pa.binary())})
        self.sent[queue] += bodies
        return self.append(queue, rows)

    def append(self, queue: int, rows: pa.RecordBatch) -> list[int]:
        """Append a producer's rows where messages of the queue go now; return their offsets as `send` does."""
        leader = self.queues[queue].leader.partition
        moved = self.meta.meta.moved_keys(self.topic.id)
        partition = moved.behind.get(leader, leader)
        epochs = {"route": moved.sealed_up_to(partition)}
        base = self.log(partition).append([Batch(rows)], fence_epochs=epochs)[0].base_offset
        segment = self.queues[queue].segment_of(partition)
        assert segment is not None, "messages go to segments"
        return [segment.logical(at) if segment.is_decided else -1 for at in range(base, base + rows.num_rows)]


def _registered(host: Host, meta: Meta) -> Sequence[AnyEvent]:
    return decide_register(meta.brokers, host)
