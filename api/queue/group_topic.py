"""A group in a topic: its start there, its lanes, the partitions that they read, and the pops that wait for messages.

    orders@A   orders@B   %RETRY%billing_orders@A   %RETRY%billing_orders@B        one visit each

In a static topic, the segments of each logical queue are lanes. A closed segment with which the group is done is left
out of all later visits, so a pop costs as much as the segments that may have messages (SPEC STATIC-20).

The start is recorded before the group's first pop or commit in the topic:

        an expansion before it    the group begins in the new partitions as in the others, by its settings
        an expansion after it     the group begins at the first message of the new partitions (SPEC MODEL-4, ROUTE-6)

The start and the expansion are events of the one metadata log, so every process sees them in the same order, whichever
brokers it has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Final

from deltamq.api.host.hosted_meta import HostedMeta
from deltamq.api.log.partition import Partition, Partitions
from deltamq.mq.meta.fold import Meta
from deltamq.mq.meta.group import Group, GroupEvent, decide_begin
from deltamq.mq.meta.topics import Topic
from deltamq.mq.names import broker_of
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.queue.lane import visits
from deltamq.mq.queue.progress import Bounds, StartKind
from deltamq.mq.queue.retry import RetryTopic
from deltamq.mq.static.logical_queue import TopicQueues
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.queue.refs import retry_ref

#: How long after a pop its retry partitions are followed, in seconds, to see the revive job's appends in time.
_FOLLOWED_S: Final = 5.0


class LanePartition:
    """One lane and the partition that it reads."""

    __slots__ = ("broker", "end_offset", "key", "partition")

    def __init__(self, key: LaneKey, partition: Partition) -> None:
        self.key = key
        self.broker = broker_of(key.partition)
        self.partition = partition
        #: Where a closed segment of a logical queue ends; None for partitions that are still written.
        self.end_offset: int | None = None


class Waiters:
    """Pops that wait, each with a future of its own that any event may complete."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def add(self, waiter: asyncio.Future[None]) -> None:
        self._waiting.add(waiter)

    def discard(self, waiter: asyncio.Future[None]) -> None:
        self._waiting.discard(waiter)

    def __len__(self) -> int:
        return len(self._waiting)

    def wake(self) -> None:
        """Let all waiting pops look again."""
        waiting, self._waiting = self._waiting, set()
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)


class GroupTopic:
    """One group in one topic, valid until the group's life or the topic's route changes."""

    def __init__(self, topic: Topic, group: Group, partitions: Partitions, waiters: Waiters) -> None:
        self.topic = topic
        self.group = group
        self.waiters = waiters
        self._loop = partitions.loop
        retry = RetryTopic(group.name, topic.name)
        #: The lanes of the topic's partitions by name, in route order.
        self._normal = {
            name: LanePartition(LaneKey(topic.id, group.name, False, name), partitions.get(topic, name))
            for name in topic.route.partitions
        }
        #: The brokers of the route, in its order.
        self.brokers = tuple(dict.fromkeys(visit.broker for visit in self._normal.values()))
        #: The lanes of the retry partitions, by broker.
        self._retries: dict[str, LanePartition] = {}
        for broker in self.brokers:
            key = LaneKey(topic.id, group.name, True, retry.partition(broker))
            ref = retry_ref(group.name, group.epoch, topic.name, topic.generation, broker)
            self._retries[broker] = LanePartition(key, partitions.of(ref))
        self._all = (tuple(self._normal.values()), tuple(self._retries.values()))
        self._queues: TopicQueues | None = None
        #: The segments of each logical queue that may have messages for the group, oldest first, by the queue's name.
        self._open: dict[str, list[LanePartition]] = {}
        #: The closed segments with which the group is done.
        self._finished: set[str] = set()

    def _lanes_of(self, partition: str | None) -> tuple[Sequence[LanePartition], Sequence[LanePartition]]:
        """Return the lanes of a partition, or of all with None, and the lanes of their retry partitions."""
        if partition is None:
            return self._all
        visit = self._normal[partition]
        return (visit,), (self._retries[visit.broker],)

    def visits(self, partition: str | None, *, draw: int) -> list[LanePartition]:
        """Return the lanes that a pop visits, in order (SPEC POP-1): those of one partition and its retries, or all."""
        normal, retries = self._lanes_of(partition)
        return visits(normal, self._followed(retries), draw=draw)

    def _followed(self, retries: Sequence[LanePartition]) -> Sequence[LanePartition]:
        until = self._loop.time() + _FOLLOWED_S
        for visit in retries:
            visit.partition.follow(until)
        return retries

    def lanes(self, partition: str | None) -> Iterable[LanePartition]:
        """Return the lanes that a pop may visit, retries included."""
        return chain(*self._lanes_of(partition))

    # Static topics.

    def segment_visits(
        self,
        queues: TopicQueues,
        queue: str | None,
        brokers: Collection[str],
        is_finished: Callable[[LaneKey, int], bool],
        *,
        in_order: bool,
        draw: int,
    ) -> list[LanePartition]:
        """Return the lanes that a pop visits at a process that serves `brokers`: of one logical queue, or of all.

        The segments of one queue come oldest first. With `in_order`, only its oldest unfinished segment is visited: the
        later ones wait for it. `is_finished` returns whether the group is done with a lane up to an offset.
        """
        chains, retries = self._segments(queues, queue)
        normal: list[LanePartition] = []
        for segments in chains:
            for visit in [visit for visit in segments if visit.broker in brokers]:
                if visit.end_offset is not None and is_finished(visit.key, visit.end_offset):
                    self.finish(visit)
                    continue
                normal.append(visit)
                if in_order:
                    break
        followed = [visit for visit in self._followed(retries) if visit.broker in brokers]
        return visits(normal, followed, draw=draw, as_given=queue is not None)

    def segment_lanes(self, queues: TopicQueues, queue: str | None) -> Iterable[LanePartition]:
        """Return the lanes of a logical queue, or of all, that may have messages, retries included."""
        chains, retries = self._segments(queues, queue)
        return chain(*chains, retries)

    def finish(self, visit: LanePartition) -> None:
        """Leave a closed segment with which the group is done out of later visits; it stays so until a reset."""
        self._finished.add(visit.key.partition)
        place = None if self._queues is None else self._queues.of_partition(visit.key.partition)
        if place is not None and visit in (still_open := self._open[place.queue.name]):
            still_open.remove(visit)

    def _segments(
        self, queues: TopicQueues, queue: str | None
    ) -> tuple[Iterable[list[LanePartition]], Sequence[LanePartition]]:
        """Return the open segments of each queue, and the retry lanes of all their brokers."""
        self._see(queues)
        if queue is None:
            return self._open.values(), self._all[1]
        named = queues.find(queue)
        brokers = dict.fromkeys(segment.broker for segment in named.segments) if named is not None else ()
        return (self._open.get(queue, []),), [self._retries[broker] for broker in brokers if broker in self._retries]

    def _see(self, queues: TopicQueues) -> None:
        """Learn of remappings and seals. Segments without logical offsets are not popped (SPEC STATIC-10)."""
        if queues is self._queues:
            return
        self._queues, self._open = queues, {}
        for _, queue in sorted(queues.served.items()):
            lanes = self._open[queue.name] = list[LanePartition]()
            for segment in queue.readable:
                visit = self._normal.get(segment.partition)
                if visit is None or segment.partition in self._finished or segment.end_offset == 0:
                    continue
                visit.end_offset = segment.end_offset if segment.is_sealed else None
                lanes.append(visit)


async def begin(meta: HostedMeta, topic: Topic, group: Group) -> None:
    """Record that the group begins in the topic, unless it has begun, or the group or topic has ended meanwhile."""
    if group.settings.consume_from.kind is StartKind.FIRST or (group.name, topic.id) in meta.now.groups.began:
        return

    def decide(newest: Meta) -> Sequence[GroupEvent]:
        present, life = newest.topics.topics.get(topic.name), newest.groups.find(group.name)
        if present is None or present.id != topic.id or life is None or life.epoch != group.epoch:
            return ()
        return decide_begin(newest.groups, group.name, {topic.id: len(present.route.partitions)})

    await meta.submit_groups(decide)


async def bounds_at(
    run: Callable[[Callable[[], int]], Awaitable[int]], log: PartitionLog, time_ms: int | None
) -> Bounds:
    """Return the bounds of a partition, and the offset of `time_ms` in it, for `first_position` and `reset_position`.

    `run` runs blocking work on a thread.
    """
    time_offset = None if time_ms is None else await run(partial(log.offset_at, time_ms * 1_000))
    return Bounds(log.min_offset, log.end_offset, time_offset)
