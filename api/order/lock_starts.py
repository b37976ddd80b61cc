"""Where a group goes on in a partition whose pull lock a client gets, and how often the message there was tried."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import NamedTuple

from deltamq.api.host.hosted_meta import HostedMeta
from deltamq.api.host.hosted_topic import Topics
from deltamq.api.progress.queue_progress import QueueProgress
from deltamq.api.queue.group_start import begin, bounds_at
from deltamq.api.queue.lanes import Lanes
from deltamq.api.wire.answer import Header
from deltamq.mq.limits import MAX_ATTEMPTS_MAX
from deltamq.mq.meta.group import Group
from deltamq.mq.meta.topics import Topic
from deltamq.mq.order.pull_lock import PullLocks
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.queue.progress import Committed, StartKind, first_position
from deltamq.mq.static.logical_queue import LogicalQueue


class LockRequest(NamedTuple):
    """A client's request for locks; `held` are partitions whose locks it has had without a break."""

    group: Group
    topic: Topic
    client: str
    partitions: tuple[str, ...]
    held: frozenset[str]
    #: The headers of the request, for what other processes are asked.
    headers: Collection[Header] = ()


class LockStarts:
    """Finds the starts of lock holders; used on the event loop."""

    def __init__(self, meta: HostedMeta, topics: Topics, lanes: Lanes, progress: QueueProgress) -> None:
        self._meta = meta
        self._topics = topics
        self._lanes = lanes
        self._progress = progress

    async def of(self, asked: LockRequest, lane: LaneKey, locks: PullLocks) -> tuple[int, int]:
        """Return where the group goes on, and how often the message there was tried.

        That is the committed position, else the start by the group's settings, which is stored (SPEC CONS-2).
        """
        queues = self._topics.queues_of(asked.topic)
        if queues is not None:
            return await self._in_queue(asked, queues.require(lane.partition, asked.topic.name), lane, locks)
        committed = await self._lanes.committed(lane)
        if committed is not None:
            committed = await self._counted(lane, asked.topic, committed, locks)
            return committed.offset, committed.attempts
        return await self._first(lane, asked.topic, asked.group), 0

    async def _counted(self, lane: LaneKey, topic: Topic, committed: Committed, locks: PullLocks) -> Committed:
        """Return the progress; if a client died there, first store one more attempt of the message (SPEC ORDER-8)."""
        if not locks.is_abandoned(lane):
            return committed
        opened = await self._lanes.partition_of(lane, topic.name).look()
        if opened is not None and committed.offset < opened.end_offset:
            attempts = min(committed.attempts + 1, MAX_ATTEMPTS_MAX)
            committed = await self._lanes.commit(lane, topic.name, committed.offset, committed.epoch, attempts=attempts)
        locks.counted(lane)
        return committed

    async def _first(self, lane: LaneKey, topic: Topic, group: Group) -> int:
        """Return where a group begins that never consumed this partition, and store that position."""
        epoch = self._lanes.groups.epoch_of(lane)
        await begin(self._meta, topic, group)
        partition = self._lanes.partition_of(lane, topic.name)
        start = self._meta.now.groups.start_in(lane, group, topic.route.partitions)
        opened = await partition.opened()
        await partition.refresh()
        offset = first_position(start, await bounds_at(self._lanes.logs.run, opened, start.time_ms), pop=False)
        if start.kind is not StartKind.FIRST:
            await self._lanes.commit(lane, topic.name, offset, epoch)
        elif epoch is not None:
            # After a crash the same position is found again; messages that retention takes from now on count as lost.
            self._lanes.logs.offsets.note(lane, topic.name, Committed(epoch, offset))
        return offset

    async def _in_queue(
        self, asked: LockRequest, queue: LogicalQueue, lane: LaneKey, locks: PullLocks
    ) -> tuple[int, int]:
        """Return what `of` does, for a logical queue, whose segments may be at brokers of other processes."""
        topic, group = asked.topic, asked.group
        at = await self._progress.of(topic, group, queue, newest=True)
        store = partial(self._progress.store, topic, group, queue, headers=asked.headers)
        if not at.is_begun:
            await begin(self._meta, topic, group)
            at = await self._progress.of(topic, group, queue, newest=True)
            # As in a plain partition, it is no consumption, and what is found again after a crash need not be durable.
            again = group.settings.consume_from.kind is StartKind.FIRST
            await self._progress.begin(topic, group, queue, at.offset, found_again=again, headers=asked.headers)
            return at.offset, 0
        attempts = 0 if at.committed is None else at.committed.attempts
        if locks.is_abandoned(lane):
            if at.offset < (await self._progress.bounds(topic, queue)).end_offset:
                attempts = min(attempts + 1, MAX_ATTEMPTS_MAX)
                await store(at.offset, meant=at.epoch, attempts=attempts)
            locks.counted(lane)
        return at.offset, attempts
