"""Commits of clients, one partition at a time: the group has begun before, and what it consumed is counted after."""

from __future__ import annotations

from collections.abc import Collection

from deltamq.api.host.hosted_meta import HostedMeta
from deltamq.api.progress.lane_commits import LaneCommits
from deltamq.api.progress.queue_progress import QueueProgress
from deltamq.api.queue.group_start import begin
from deltamq.api.statistics import GroupStatistics
from deltamq.api.wire.answer import Header
from deltamq.mq.meta.group import Group
from deltamq.mq.meta.topics import Topic
from deltamq.mq.names import broker_of
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.static.logical_queue import LogicalQueue


class GroupCommits:
    """Stores commits of clients in partitions of any process; used on the event loop."""

    def __init__(
        self, meta: HostedMeta, lanes: LaneCommits, queues: QueueProgress, statistics: GroupStatistics
    ) -> None:
        self._meta = meta
        self._lanes = lanes
        self._queues = queues
        self._statistics = statistics

    async def in_partition(
        self,
        topic: Topic,
        group: Group,
        partition: str,
        offset: int,
        *,
        metadata: str = "",
        headers: Collection[Header] = (),
    ) -> int:
        """Commit an offset of a partition, and return the group's, which may be greater; durable when this returns.

        `headers` are those of the client's request. Raises what `LaneCommits.anywhere` raises.
        """
        await begin(self._meta, topic, group)
        lane = LaneKey(topic.id, group.name, False, partition)
        done = await self._lanes.anywhere(
            topic.name, lane, offset, meant=None, attempts=0, headers=headers, metadata=metadata
        )
        self._statistics.committed(group.name, topic, partition, broker_of(partition), done.offset)
        return done.offset

    async def in_queue(
        self,
        topic: Topic,
        group: Group,
        queue: LogicalQueue,
        offset: int,
        *,
        metadata: str = "",
        headers: Collection[Header] = (),
    ) -> int:
        """Commit a logical offset of a queue of a static topic; as `in_partition` (SPEC STATIC-16)."""
        await begin(self._meta, topic, group)
        done = await self._queues.store(topic, group, queue, offset, metadata=metadata, headers=headers)
        self._statistics.committed(group.name, topic, queue.name, queue.leader.broker, done.offset)
        return done.offset
