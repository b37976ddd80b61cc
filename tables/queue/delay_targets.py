"""Where delayed messages go when they are due, and where an earlier run may have put them (SPEC RETRY-4, STATIC-20).

    of a plain topic    -> the partition that was chosen when they were sent
    of a static topic   -> the present leader of their logical queue: a queue may be remapped while messages wait for it

A run that knows of no remapping yet may append to the old leader. Its request then lies there behind no fence, and
later runs, which know the seal, find it: so the message is stored once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mq.errors import Unavailable
from mq.meta import Meta, Topic
from mq.queue import Delayed
from mq.queue_limits import CLOCKS_APART_MS
from mq.static import LogicalQueue, Segment
from tables.log import ROUTE_FENCE
from tables.paths import PartitionRef, Space
from tables.queue.placement import Placement

__all__ = ["DelayTarget", "DelayTargets"]


class DelayTarget(NamedTuple):
    """Where a due message goes."""

    ref: PartitionRef
    #: The epoch up to which the route fence in `ref` is known; a newer one forbids the append. None: any.
    route_epoch: int | None = None
    #: The segments of the logical queue that were sealed after the message may have been forwarded.
    before: Sequence[PartitionRef] = ()


class DelayTargets:
    """The targets of delayed messages by one state of the metadata."""

    def __init__(self, meta: Meta) -> None:
        self._meta = meta
        self._placements: dict[str, Placement] = {}

    def of(self, message: Delayed) -> DelayTarget:
        """Return where a message goes whose topic exists.

        Raises
        ------
        Unavailable
            `queue_unserved`: the mapping of its logical queue cannot be had. `logic_offset_undecided`: an earlier run
            may still append to the queue's old leader, which is not sealed yet.
        """
        topic = self._meta.topics.topics[message.topic]
        if topic.static is None:
            return DelayTarget(_ref(topic, message.partition))
        placement = self._placement(topic)
        queue = _queue_of(placement, message)
        partition = placement.partitions[placement.names[queue.name]]
        if partition in placement.ahead:
            raise Unavailable(
                f"{placement.ahead[partition]}, the old leader of {queue.name}, is not sealed yet",
                code="logic_offset_undecided",
            )
        since_ms = message.deliver_time_ms - CLOCKS_APART_MS
        before = [_ref(topic, one.partition) for one in queue.segments if _may_hold(one, since_ms)]
        return DelayTarget(_ref(topic, partition), placement.fence_epochs[partition].get(ROUTE_FENCE, 0), before)

    def _placement(self, topic: Topic) -> Placement:
        found = self._placements.get(topic.id)
        if found is None:
            found = self._placements[topic.id] = Placement.of(topic, self._meta)
        return found


def _queue_of(placement: Placement, message: Delayed) -> LogicalQueue:
    """Return the queue that a message waits for; its target names the queue, or the leader that it had."""
    queues = placement.queues
    assert queues is not None, "the topic is static"
    queue = queues.find(message.partition)
    if queue is None and (place := queues.of_partition(message.partition)) is not None:
        queue = place.queue
    if queue is None:
        raise Unavailable(f"the mapping of {message.partition} cannot be had", code="queue_unserved")
    return queue


def _may_hold(segment: Segment, since_ms: int) -> bool:
    """Return whether a sealed segment may hold a message that was forwarded after `since_ms`."""
    return segment.is_sealed and (segment.end_ms <= 0 or segment.end_ms >= since_ms)


def _ref(topic: Topic, partition: str) -> PartitionRef:
    return PartitionRef(Space.TOPICS, topic.name, partition, topic.generation)
