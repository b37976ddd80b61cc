"""A group's progress in the partitions that moved keys came from: which keys must still wait for it (SPEC ROUTE-6).

    brokers of this process   the lanes in memory
    others                    their offsets logs, read on when a group waits for them

A process whose view of the metadata or of a group's progress is old makes a group wait longer, never shorter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Final

from api.host import HostedMeta
from api.queue.group_start import bounds_at
from api.queue.lanes import Lanes
from mq.limits import OFFSET_MAX
from mq.meta import Blocked, Group, Topic
from mq.names import broker_of
from mq.queue import Committed, LaneKey, first_position
from tables.queue import ProgressFollower

__all__ = ["HELD_BACK_S", "MovedProgress"]

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
        """`hosts` says whether this process serves a broker; `follow` makes a follower of a broker that it does not."""
        self._meta = meta
        self._lanes = lanes
        self._hosts = hosts
        self._follow = follow
        self._refresh_s = refresh_s
        self._loop = asyncio.get_running_loop()
        self._others: dict[str, _Other] = {}

    async def blocked(
        self, topic: Topic, group: Group, partition: str, *, pop: bool, done: Collection[str] = ()
    ) -> Blocked | None:
        """Return the logical partitions whose messages the group may not have yet in this partition; None for none.

        `pop`: whether a group that has not begun will begin by a pop (see `first_position`). `done` are partitions with
        which the group is done, whatever it has committed there.
        """
        moved = self._meta.now.moved_keys(topic.id)
        sources = moved.sources(partition) if moved.moves else ()
        if not sources:
            return None
        positions = {
            name: OFFSET_MAX if name in done else await self.position(topic, group, name, pop=pop)
            for name in sorted(sources)
        }
        return moved.blocked(partition, positions)

    async def position(self, topic: Topic, group: Group, partition: str, *, pop: bool) -> int:
        """Return the first offset in a partition that the group is not done with."""
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

        All that was committed before `since_s` (time of the loop) is known; otherwise the answer may be a moment old.
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
    """A broker that another process serves."""

    def __init__(self, follower: ProgressFollower) -> None:
        self.follower = follower
        self.lock = asyncio.Lock()
        self.refreshed_at = float("-inf")
