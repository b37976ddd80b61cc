"""Where delayed messages go when they are due, by one state of the metadata.

    plain topic      the partition that was chosen when the message was sent
    static topic     the partition that the messages of its logical queue go to now; remappings may have moved the queue

A message that is sent again may lie in an earlier segment of its queue, where an earlier try has stored it. Earlier
segments are sealed, so a message that is not found there is not stored there later; an old leader that is not sealed
yet, although messages go to the new one, is sealed first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

import pyarrow as pa

from deltamq.mq.meta.access import AccessState
from deltamq.mq.meta.topics import Topic
from deltamq.mq.queue.delay import Delayed
from deltamq.tables.log.fences import ANY_EPOCH, BROKER_FENCE, ROUTE_FENCE
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.queue.meta_fences import seal_moves
from deltamq.tables.queue.metadata import MetaLog
from deltamq.tables.queue.placement import Placement
from deltamq.tables.queue.topic_codecs import TopicCodecs


class DelayTargets:
    """The targets of one batch; for one thread."""

    def __init__(self, warehouse: Warehouse, meta: MetaLog, now_ms: Callable[[], int]) -> None:
        """`now_ms` is the clock for the time of a seal."""
        self._warehouse = warehouse
        self._meta = meta
        self._now_ms = now_ms
        self._topics = meta.state.topics
        self._codecs = TopicCodecs(lambda: meta.meta, meta.refresh)
        self._placements: dict[str, Placement] = {}

    @property
    def topic_ids(self) -> set[str]:
        """The ids of the topics that exist."""
        return {topic.id for topic in self._topics.values()}

    def of(self, message: Delayed, key: str | None) -> PartitionRef:
        """Return the target of a message of a topic that exists.

        Raises
        ------
        Unavailable
            `queue_unserved`: the mapping of its logical queue is unavailable.
        NotFound
            The topic was deleted a moment ago.
        """
        topic = self._topics[message.topic]
        if topic.static is None:
            return _ref(topic, message.partition)
        home = self._placement(topic).home_of(topic.name, message.partition, key, message.offset)
        return _ref(topic, home)

    def before(self, target: PartitionRef, origins: Iterable[str], since_ms: int) -> list[PartitionRef]:
        """Return the segments before a target to which tries after `since_ms` may have sent messages for `origins`."""
        topic = self._topics[target.topic]
        if topic.static is None or set(origins) == {target.name}:
            return []
        queues = self._placement(topic).queues
        located = None if queues is None else queues.of_partition(target.name)
        assert located is not None, "targets are partitions of logical queues"
        earlier = (segment for segment in located.queue.segments if segment.gen < located.segment.gen)
        # what was sealed before the messages were due got none of them
        return [
            _ref(topic, segment.partition) for segment in earlier if segment.end_ms <= 0 or segment.end_ms >= since_ms
        ]

    def arrived(self, target: PartitionRef, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return delayed messages as their target stores them (SPEC TYPE-42); raises as `TopicCodecs.of` does."""
        return self._codecs.arrived(self._topics[target.topic], rows)

    def fence_epochs(self, target: PartitionRef) -> Mapping[str, int] | None:
        """Return the fence epochs of an append to a target: a segment gets nothing behind its seal."""
        topic = self._topics[target.topic]
        if topic.static is None:
            return None
        known = self._placement(topic).fence_epochs[target.name]
        return {BROKER_FENCE: ANY_EPOCH, ROUTE_FENCE: known.get(ROUTE_FENCE, 0)}

    def _placement(self, topic: Topic) -> Placement:
        placement = self._placements.get(topic.name)
        if placement is None:
            placement = self._placements[topic.name] = self._sealed_placement(topic.name)
        return placement

    def _sealed_placement(self, name: str) -> Placement:
        while True:
            meta = self._meta.meta
            topic = meta.topics.topic(name)
            # Delayed messages were accepted when they were sent: they go to closed partitions, too.
            placement = Placement.of(topic, meta, AccessState())
            if not placement.ahead:
                return placement
            seal_moves(self._meta, topic, partial(self._open, topic), self._now_ms)

    def _open(self, topic: Topic, partition: str) -> PartitionLog:
        return self._warehouse.create(_ref(topic, partition))


def _ref(topic: Topic, partition: str) -> PartitionRef:
    return PartitionRef(Space.TOPICS, topic.name, partition, topic.generation)
