"""A group's progress in the source partitions of moved keys: which keys must still wait for it (SPEC ROUTE-6).

    brokers of this process   the lanes in memory
    others                    their offsets logs, read on when a group waits for them

A process whose view of the metadata or of a group's progress is old makes a group wait longer, never shorter.

In a static topic the messages of a segment wait for the segments before it (SPEC STATIC-20).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import Final

from deltamq.api.host.hosted_meta import HostedMeta
from deltamq.api.queue.group_topic import LanePartition, bounds_at
from deltamq.api.queue.lanes import Lanes
from deltamq.mq.meta.fold import Meta
from deltamq.mq.meta.group import Group
from deltamq.mq.meta.moved_keys import Blocked, Move
from deltamq.mq.meta.topics import Topic
from deltamq.mq.names import broker_of
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.queue.progress import Committed, first_position
from deltamq.tables.queue.recovery import ProgressFollower

#: Poll interval of blocked readers; the event that unblocks them is in another partition, perhaps in another process.
HELD_BACK_S: Final = 0.05


class MovedProgress:
    """The progress of all groups in partitions with moved keys; used on the event loop."""

    def __init__(
        self,
        meta: HostedMeta,
        lanes: Lanes,
        hosts: Callable[[str], bool],
        follow: Callable[[str], ProgressFollower],
        *,
        refresh_s: float,
    ) -> None:
        """`hosts` returns whether this process serves a broker; `follow` makes a follower for any other broker."""
        self._meta = meta
        self._lanes = lanes
        self._hosts = hosts
        self._follow = follow
        self._refresh_s = refresh_s
        self._loop = asyncio.get_running_loop()
        self._others: dict[str, _Other] = {}
        #: The partitions in which a group has nothing to wait for, by the names of groups and the ids of topics.
        self._passed: dict[tuple[str, str], set[str]] = {}
        meta.follow(self._wake)

    async def blocked(
        self, topic: Topic, group: Group, partition: str, *, pop: bool, done: Collection[str] = ()
    ) -> Blocked | None:
        """Return the logical partitions whose messages the group may not get yet in this partition; None for none.

        `pop`: whether a group that has not begun will begin by a pop (see `first_position`). `done` are partitions that
        count as finished, whatever the group has committed there.
        """
        moved = self._meta.now.moved_keys(topic.id)
        if not moved.moves:
            return None
        # A reset meanwhile takes this set out of use: later additions to it have no effect.
        passed = self._passed.setdefault((group.name, topic.id), set())
        if partition in passed:
            return None
        asking = moved.inquire(partition, passed)
        try:
            move = next(asking)
            while True:
                is_done = move.source in done or await self._is_done(topic, group, move, pop=pop)
                move = asking.send(is_done)
        except StopIteration as end:
            blocked: Blocked | None = end.value
        if blocked is None and not done:
            passed.add(partition)
        return blocked

    def forget(self, lanes: Iterable[LaneKey]) -> None:
        """Forget the partitions that groups have passed, in topics of lanes whose epoch is over (SPEC POP-18)."""
        for group, topic_id in {(lane.group, lane.topic_id) for lane in lanes}:
            self._passed.pop((group, topic_id), None)

    async def is_left(self, visit: LanePartition) -> bool:
        """Whether the group may get messages in a closed segment or a retry partition that any process serves."""
        committed = await self.committed(visit.key)
        if visit.end_offset is not None:
            return committed is None or committed.offset < visit.end_offset
        partition = visit.partition
        if self._loop.time() - partition.refreshed_at >= self._refresh_s:
            await partition.look()
        log = partition.log
        return log is not None and max(log.min_offset, committed.offset if committed else 0) < log.end_offset

    async def _is_done(self, topic: Topic, group: Group, move: Move, *, pop: bool) -> bool:
        """Whether the group has consumed the source of a sealed move up to its end."""
        if move.end_offset == 0:
            return True
        assert move.end_offset is not None, "the move is sealed"
        committed = await self.committed(LaneKey(topic.id, group.name, False, move.source))
        if committed is not None and committed.offset >= move.end_offset:
            return True
        return await self.position(topic, group, move.source, pop=pop) >= move.end_offset

    def _wake(self, before: Meta, after: Meta) -> None:
        """Follow routes, remappings and their seals: messages for waiting groups may be in other partitions now."""
        if after.topics is not before.topics:
            self._lanes.wake_routed(after.topics.topics)
        for topic_id, mappings in after.static.items():
            if before.static.get(topic_id) is not mappings:
                self._lanes.wake_all(topic_id)

    async def position(self, topic: Topic, group: Group, partition: str, *, pop: bool) -> int:
        """Return the first offset in a partition with which the group is not done."""
        lane = LaneKey(topic.id, group.name, False, partition)
        committed = await self.committed(lane)
        source = self._lanes.partition_of(lane, topic.name)
        log = await source.opened()
        if committed is not None:
            return max(committed.offset, log.min_offset)
        newest = self._meta.now.topics.topics.get(topic.name, topic)  # a new segment is not in the caller's route
        start = self._meta.now.groups.start_in(lane, group, newest.route.partitions)
        return first_position(start, await bounds_at(self._lanes.logs.run, log, start.time_ms), pop=pop)

    async def committed(self, lane: LaneKey, since_s: float = 0.0) -> Committed | None:
        """Return the group's progress in a lane of any process; None if it has not begun there.

        Commits before `since_s` (the loop's clock) are included; later ones may be missing.
        """
        broker = broker_of(lane.partition)
        if self._hosts(broker):
            self._others.pop(broker, None)
            return await self._lanes.committed(lane)
        other = self._others.get(broker)
        if other is None:
            other = self._others[broker] = _Other(self._follow(broker))
        async with other.lock:
            now_s = self._loop.time()
            if now_s - other.refreshed_at >= self._refresh_s or other.refreshed_at < since_s:
                await self._lanes.logs.run(other.follower.refresh)
                other.refreshed_at = now_s
        return self._meta.now.groups.committed_in(lane, other.follower.committed.get(lane))


class _Other:
    def __init__(self, follower: ProgressFollower) -> None:
        self.follower = follower
        self.lock = asyncio.Lock()
        self.refreshed_at = float("-inf")
