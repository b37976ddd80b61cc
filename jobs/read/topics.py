"""The topics of a warehouse and the numbers of their partitions, without opening anything for writing.

Both come from the metadata log: a topic's route keeps the order of its partitions for ever and appends new ones, so a
partition's position in it is the number that a job from Kafka uses. For a warehouse without a metadata log (tables that
were written by `tables` alone) they come from its folders.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mq.errors import NotFound
from mq.meta import MetaState
from mq.names import PartitionName
from tables.log import refs
from tables.paths import PartitionRef, Space
from tables.queue import read_meta
from tables.store import Store

__all__ = ["Catalog", "TopicPartition"]


@dataclass(frozen=True, slots=True)
class TopicPartition:
    """A partition and its number in its topic."""

    ref: PartitionRef
    number: int

    @property
    def names(self) -> tuple[str, str]:
        """The names that an option may use for it."""
        return self.ref.name, str(self.number)


class Catalog:
    """The topics of a warehouse, as of its construction."""

    def __init__(self, store: Store, state: MetaState | None = None) -> None:
        """Take the topics from `state`; by default from the metadata log, or from the folders if there is none."""
        self._store = store
        if state is None:
            meta = read_meta(store)
            state = None if meta is None else meta.topics
        self._state = state

    def topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        if self._state is not None:
            return sorted(self._state.topics)
        return sorted({ref.topic for ref in refs(self._store, Space.TOPICS)})

    def topic_id(self, topic: str) -> str:
        """Return the id that tells this life of the topic from others of its name; empty without a metadata log."""
        known = self._state.topics.get(topic) if self._state is not None else None
        return "" if known is None else known.id

    def partitions(self, topic: str) -> list[TopicPartition]:
        """Return a topic's partitions by number.

        Raises
        ------
        NotFound
            The topic does not exist.
        """
        found = self._of_state(topic) if self._state is not None else self._folders(topic)
        if not found:
            raise NotFound(
                f"there is no topic {topic!r} in {self._store.uri('')}", code="topic_not_found", field="topic"
            )
        return [TopicPartition(ref, n) for n, ref in enumerate(found)]

    def _of_state(self, topic: str) -> list[PartitionRef]:
        known = self._state.topics.get(topic) if self._state is not None else None
        names = known.route.partitions if known is not None else ()
        generation = known.generation if known is not None else 0
        return [PartitionRef(Space.TOPICS, topic, name, generation) for name in names]

    def _folders(self, topic: str) -> list[PartitionRef]:
        found = [ref for ref in refs(self._store, Space.TOPICS) if ref.topic == topic]
        return sorted(found, key=lambda ref: _order(ref.name))


def _order(partition: str) -> tuple[int, str, str]:
    """Return a sort key: partitions named like the topic come first, then `topic#1`, `topic#2`, ..., as in routes."""
    name, broker = PartitionName.parse(partition)
    numbered = re.search(r"#(\d+)$", name)
    return (int(numbered[1]) if numbered else 0), broker, name
