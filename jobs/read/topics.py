"""The topics of a warehouse and the numbers of their partitions, without opening anything for writing.

Both come from the metadata log: a topic's route keeps the order of its partitions for ever and appends new ones, so a
partition's position in it is the number that a job from Kafka uses. The partitions of a static topic are its logical
queues, whose numbers never change; each is a chain of tables (SPEC STATIC-2). For a warehouse without a metadata log
(tables that only `tables` has written) topics come from its folders.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec

from deltamq.mq.errors import NotFound
from deltamq.mq.meta.fold import Meta
from deltamq.mq.meta.static_topics import queues_of
from deltamq.mq.meta.topic_settings import schema_of
from deltamq.mq.meta.topics import Topic
from deltamq.mq.names import PartitionName
from deltamq.mq.static.logical_queue import TopicQueues
from deltamq.tables.log.warehouse import refs
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.queue.metadata import read_meta
from deltamq.tables.store.store import Store


class TopicPartition(msgspec.Struct, frozen=True):
    """A table of a topic: a partition, or a segment of a logical queue; with the number that readers see."""

    ref: PartitionRef
    number: int
    #: The name of the logical queue; None in a plain topic.
    queue: str | None = None
    #: The readers' offsets less the table's offsets.
    delta: int = 0
    #: The offset behind the last message of a sealed segment; None if more may be appended.
    sealed_end: int | None = None

    @property
    def name(self) -> str:
        """The name that readers see: the partition's own, or its logical queue's."""
        return self.queue or self.ref.name

    @property
    def names(self) -> tuple[str, str]:
        """The names that an option may use for the partition."""
        return self.name, str(self.number)

    @property
    def key(self) -> tuple[str, str]:
        """The topic's name and the name that readers see."""
        return self.ref.topic, self.name


class Catalog:
    """The topics of a warehouse, as of its construction."""

    def __init__(self, store: Store, meta: Meta | None = None) -> None:
        """Take the topics from `meta`; by default from the metadata log, or from the folders if there is none."""
        self.store = store
        self._meta = read_meta(store) if meta is None else meta

    @property
    def meta(self) -> Meta | None:
        """The metadata; None for a warehouse without a metadata log."""
        return self._meta

    def _topic(self, name: str) -> Topic | None:
        return None if self._meta is None else self._meta.topics.topics.get(name)

    def topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        if self._meta is not None:
            return sorted(self._meta.topics.topics)
        return sorted({ref.topic for ref in refs(self.store, Space.TOPICS)})

    def topic_id(self, topic: str) -> str:
        """Return the id of this life of the topic; empty without a metadata log."""
        known = self._topic(topic)
        return "" if known is None else known.id

    def typed_topics(self) -> list[str]:
        """Return the names of the topics that have a schema."""
        return [name for name in self.topics() if (known := self._topic(name)) and schema_of(known.settings)]

    def queues(self, topic: str) -> TopicQueues | None:
        """Return the logical queues of a static topic; None for another topic."""
        known = self._topic(topic)
        if known is None or known.static is None:
            return None
        assert self._meta is not None, "the topic is from the metadata"
        return TopicQueues(known.static.total, queues_of(self._meta, known))

    def is_readable(self, partition: TopicPartition, now_ms: int) -> bool:
        """Return whether a partition or segment may be read at this time (SPEC ROUTE-9)."""
        access = self._meta.access.at(now_ms) if self._meta is not None else None
        return not access or access.of(self.topic_id(partition.ref.topic), partition.ref.name).readable

    def check_readable(self, partitions: Iterable[TopicPartition], now_ms: int) -> None:
        """Raise `Unavailable` (`not_readable`) if a partition may not be read at this time (SPEC ROUTE-9)."""
        access = self._meta.access.at(now_ms) if self._meta is not None else None
        for partition in partitions if access else ():
            assert access is not None, "checked before the first partition"
            access.check_readable(self.topic_id(partition.ref.topic), partition.ref.name, partition.name)

    def check_names(self, topic: str, names: Iterable[str], option: str) -> None:
        """Refuse names of a static topic's partitions, as `TopicQueues.require` does; numbers name its queues."""
        queues = self.queues(topic)
        for name in names if queues is not None else ():
            assert queues is not None, "checked before the first name"
            if not name.isdigit():
                queues.require(name, topic, option)

    def partitions(self, topic: str) -> list[TopicPartition]:
        """Return a topic's partitions by number; for a logical queue, all readable segments in their order.

        Raises
        ------
        NotFound
            The topic does not exist.
        Unavailable
            `queue_unserved`: the mapping of a logical queue is not available, so its messages cannot be found.
        """
        queues = self.queues(topic)
        if queues is not None:
            return [segment for name in queues.names for segment in self._segments(topic, queues, name)]
        partitions = self._of_meta(topic) if self._meta is not None else self._folders(topic)
        if not partitions:
            raise NotFound(
                f"there is no topic {topic!r} in {self.store.uri('')}", code="topic_not_found", field="topic"
            )
        return [TopicPartition(ref, n) for n, ref in enumerate(partitions)]

    def _segments(self, topic: str, queues: TopicQueues, name: str) -> Iterator[TopicPartition]:
        queue, known = queues.require(name, topic, "topic"), self._topic(topic)
        assert known is not None, "the topic has queues"
        for segment in queue.readable:
            yield TopicPartition(
                PartitionRef(Space.TOPICS, topic, segment.partition, known.generation),
                queue.index,
                queue=name,
                delta=segment.delta,
                sealed_end=segment.end_offset if segment.is_sealed else None,
            )

    def _of_meta(self, topic: str) -> list[PartitionRef]:
        known = self._topic(topic)
        names = known.route.partitions if known is not None else ()
        generation = known.generation if known is not None else 0
        return [PartitionRef(Space.TOPICS, topic, name, generation) for name in names]

    def _folders(self, topic: str) -> list[PartitionRef]:
        folders = [ref for ref in refs(self.store, Space.TOPICS) if ref.topic == topic]
        return sorted(folders, key=lambda ref: _order(ref.name))


def _order(partition: str) -> tuple[int, str, str]:
    """Partitions named like the topic come first, then `topic#1`, `topic#2`, ..., as in routes."""
    name, broker = PartitionName.parse(partition)
    numbered = re.search(r"#(\d+)$", name)
    return (int(numbered[1]) if numbered else 0), broker, name
