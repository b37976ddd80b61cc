"""Builds static topics in the state of the metadata, without a service: create, remap, seal, restart (SPEC STATIC)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from deltamq.mq.meta.brokers import Host, decide_register
from deltamq.mq.meta.fold import AnyEvent, Meta, event_from_json, event_to_json
from deltamq.mq.meta.moved_keys import decide_seal
from deltamq.mq.meta.snapshot import MetaSnapshot
from deltamq.mq.meta.static_topics import (
    RemapMode,
    StaticRequest,
    decide_drop_segments,
    decide_put_static,
    decide_remap,
    decide_repair,
    queues_of,
)
from deltamq.mq.meta.topic_settings import TopicRequest
from deltamq.mq.meta.topics import Topic
from deltamq.mq.static.logical_queue import LogicalQueue

__all__ = ["StaticWorld"]

TOPIC = "orders"


@dataclass
class StaticWorld:
    """One static topic in a cluster, and how many messages each of its partitions has."""

    brokers: Sequence[str] = ("A", "B")
    meta: Meta = field(default_factory=Meta)
    ends: dict[str, int] = field(default_factory=dict)
    now_ms: int = 1_000

    def __post_init__(self) -> None:
        for broker in self.brokers:
            self.serve(broker)

    def serve(self, *brokers: str) -> None:
        """Let a new process serve these brokers."""
        host = Host(id=f"host-{'-'.join(brokers)}", address="", brokers=brokers, renewal=0, load=0)
        self.meta = self.meta.apply_all(decide_register(self.meta.brokers, host))

    def apply(self, events: Sequence[AnyEvent]) -> Sequence[AnyEvent]:
        """Store events and fold them as a process that starts would."""
        self.meta = self.meta.apply_all([event_from_json(event.kind, event_to_json(event)) for event in events])
        return events

    def restart(self) -> None:
        """Start from a snapshot of the metadata."""
        body = MetaSnapshot(meta=self.meta, previous=0, told={}).to_json()
        self.meta = MetaSnapshot.from_json(body).meta

    def _decided(self, decide: Callable[[int], Sequence[AnyEvent]]) -> Sequence[AnyEvent]:
        self.now_ms += 10
        return self.apply(decide(self.now_ms))

    def put(
        self, total_queues: int, *, brokers: tuple[str, ...] | None = None, strict: bool = False
    ) -> Sequence[AnyEvent]:
        """Create the topic, or add queues."""
        settings = TopicRequest(order_strategy="strict" if strict else None)
        request = StaticRequest(total_queues=total_queues, brokers=brokers, settings=settings)
        available = self.meta.brokers.available
        return self._decided(lambda now: decide_put_static(self.meta, TOPIC, request, available, "id-1", now))

    def remap(
        self, brokers: Sequence[str], mode: RemapMode = "strict", queues: Collection[int] | None = None
    ) -> Sequence[AnyEvent]:
        """Begin a remapping."""
        return self._decided(lambda now: decide_remap(self.meta, TOPIC, brokers, mode, now, queues))

    def repair(self) -> Sequence[AnyEvent]:
        """Repair the mappings."""
        return self._decided(lambda now: decide_repair(self.meta, TOPIC, now))

    def drop(self, expired: Collection[str]) -> Sequence[AnyEvent]:
        """Drop segments whose messages are gone."""
        return self._decided(lambda _: decide_drop_segments(self.meta, self.topic, expired))

    def seal(self, limit: int | None = None) -> None:
        """Seal the partitions that wait for it, at the number of messages that they have."""
        moved = self.meta.moved_keys(self.topic.id)
        waiting = [(source, epoch) for source in sorted(moved.waiting)[:limit] for epoch in moved.unsealed(source)]
        self.apply(
            [
                event
                for source, epoch in waiting
                for event in decide_seal(moved, self.topic.id, source, epoch, self.ends.get(source, 0), self.now_ms)
            ]
        )

    @property
    def topic(self) -> Topic:
        return self.meta.topics.topic(TOPIC)

    @property
    def queues(self) -> dict[int, LogicalQueue]:
        """The logical queues that are available."""
        return queues_of(self.meta, self.topic)

    def send(self, queue: int, count: int = 1) -> list[int | None]:
        """Append messages that name the queue; return their logical offsets, None for undecided ones."""
        leader = self.queues[queue].leader.partition
        partition = self.meta.moved_keys(self.topic.id).behind.get(leader, leader)
        first = self.ends.get(partition, 0)
        self.ends[partition] = first + count
        segment = self.queues[queue].segment_of(partition)
        assert segment is not None, "messages go to segments"
        return [segment.logical(at) if segment.is_decided else None for at in range(first, first + count)]
