"""The logical queues of one topic as clients see them: by name, and back from partitions (SPEC STATIC-2, 22)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

from deltamq.mq.errors import NotFound, Unavailable, Unprocessable
from deltamq.mq.static.logical_queue import LogicalQueue, queue_index, queue_names
from deltamq.mq.static.segment import UNDECIDED, Segment


class ShownPlace(Protocol):
    """Where clients see the messages of a physical partition."""

    @property
    def name(self) -> str:
        """The name of the queue as clients see it."""

    def shown(self, offset: int) -> int:
        """Return the offset that clients see; -1 while it is not decided (SPEC STATIC-10)."""


class SegmentOf(NamedTuple):
    """A physical partition's place: its logical queue, and its segment there."""

    queue: LogicalQueue
    segment: Segment

    @property
    def name(self) -> str:
        """The name of the queue as clients see it."""
        return self.queue.name

    def shown(self, offset: int) -> int:
        """Return the offset that clients see: the logical one, or -1 while it is not decided (SPEC STATIC-10)."""
        return self.segment.logical(offset) if self.segment.is_decided else UNDECIDED


# Without slots, because `cached_property` needs an instance dictionary.
@dataclass(frozen=True)
class TopicQueues:
    """All logical queues of a static topic. Immutable; a queue whose mapping cannot be had is not in `served`."""

    total: int
    served: Mapping[int, LogicalQueue]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all queues, those that cannot be had included, so that their number stays (SPEC STATIC-22)."""
        return queue_names(self.total)

    @cached_property
    def _by_partition(self) -> Mapping[str, SegmentOf]:
        return {
            segment.partition: SegmentOf(queue, segment) for queue in self.served.values() for segment in queue.segments
        }

    def find(self, name: str) -> LogicalQueue | None:
        """Return the queue with this name; None if there is none that can be had."""
        index = queue_index(name)
        return None if index is None else self.served.get(index)

    def require(self, name: str, topic: str, field: str = "partition") -> LogicalQueue:
        """Return the queue that a client names.

        Raises
        ------
        NotFound
            `partition_not_found`: the topic has no such queue.
        Unprocessable
            `physical_partition`: a segment's partition was named; clients name logical queues (SPEC STATIC-22).
        Unavailable
            `queue_unserved`: the queue's mapping cannot be had.
        """
        found = self.find(name)
        if found is not None:
            return found
        index = queue_index(name)
        if index is not None and index < self.total:
            raise Unavailable(
                f"{field}: the mapping of queue {name} of topic {topic} cannot be had; check the topic",
                code="queue_unserved",
                field=field,
            )
        if name in self._by_partition:
            raise Unprocessable(
                f"{field}: topic {topic} is static, and {name!r} is a segment of its queue"
                f" {self._by_partition[name].queue.name}; name the queue",
                code="physical_partition",
                field=field,
                extra={"partition": self._by_partition[name].queue.name},
            )
        raise NotFound(f"{field}: topic {topic} has no partition {name!r}", code="partition_not_found", field=field)

    def of_partition(self, partition: str) -> SegmentOf | None:
        """Return the place of a physical partition; None if no queue that can be had has it."""
        return self._by_partition.get(partition)
