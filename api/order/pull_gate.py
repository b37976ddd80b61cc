"""The right of a group's fetch to read a partition, and the messages that it may get there.

An exclusive group's client must hold the pull lock. In an ordered topic that was expanded, messages of moved keys wait
until the group is done with the partition from which the keys came (SPEC ROUTE-6).
"""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa

from deltamq.api.order.pull_locks import Locks
from deltamq.api.queue.lanes import Lanes
from deltamq.api.queue.moved_progress import HELD_BACK_S, MovedProgress
from deltamq.api.statistics import GroupStatistics
from deltamq.api.wire.route_batch import first_held_back
from deltamq.mq.limits import PAUSED_LOOK_S
from deltamq.mq.meta.group import Group
from deltamq.mq.meta.topics import Topic
from deltamq.mq.names import broker_of
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.tables.log.fetch import Fetched, FetchStatus


class Gate:
    """The checks of one fetch, made before each read of the log and before messages are sent."""

    def __init__(
        self,
        locks: Locks,
        lanes: Lanes,
        moved: MovedProgress,
        statistics: GroupStatistics,
        *,
        group: Group,
        topic: Topic,
        partition: str,
        client: str | None,
    ) -> None:
        """`partition` is the name that clients see."""
        self._locks = locks
        self._lanes = lanes
        self._moved = moved
        self._statistics = statistics
        self._group = group
        self._topic = topic
        self._partition = partition
        self._client = client
        #: If the last `cut` removed messages that the group may have later: after how many seconds to look again.
        self.again_s: float | None = None

    @property
    def is_owners(self) -> bool:
        """Whether only the owner of the partition's broker can decide which client may read."""
        return self._group.settings.consume_strategy == "exclusive"

    def check(self) -> None:
        """Return if the client may read now.

        Raises
        ------
        Conflict
            `not_lock_holder` or `partition_moved`.
        Unavailable
            Another process owns the broker.
        """
        if self.is_owners:
            self._locks.check_pull(self._group, self._topic, self._partition, self._client)

    def took(self, rows: pa.Table, segment: str | None = None) -> None:
        """Note that messages go to the client, which has the lock; `segment` as for `cut`."""
        if self.is_owners:
            read, group = segment or self._partition, self._group.name
            self._lanes.consumed(LaneKey(self._topic.id, group, False, read), self._lanes.logs.now_ms())
            self._statistics.pulled(group, self._topic, self._partition, broker_of(read), rows)

    async def cut(self, fetched: Fetched, segment: str | None = None, earlier: Collection[str] = ()) -> Fetched:
        """Cut `fetched` before the first message of a key that must wait; a paused group gets none.

        If the partition is a logical queue, `segment` is the physical partition that was read, and `earlier` are the
        segments before it, which the client has read: it reads a queue in order.
        """
        self.again_s = None
        if fetched.status is not FetchStatus.FOUND or not fetched.rows.num_rows:
            return fetched
        known_group = self._lanes.groups.find(self._group.name)
        if known_group is not None and known_group.paused is not None:
            count, self.again_s = 0, PAUSED_LOOK_S
        else:
            read = segment or self._partition
            blocked = await self._moved.blocked(self._topic, self._group, read, pop=False, done=earlier)
            count = first_held_back(blocked, fetched.rows)
            if count == fetched.rows.num_rows:
                return fetched
            self.again_s = HELD_BACK_S
        status = FetchStatus.FOUND if count else FetchStatus.NO_NEW_MESSAGE
        next_offset = fetched.rows.column("offset")[count].as_py()
        return Fetched(status, fetched.rows.slice(0, count), next_offset, fetched.min_offset, fetched.max_offset)


class Gates:
    """Makes the gates of fetches that name a group."""

    def __init__(self, locks: Locks, lanes: Lanes, moved: MovedProgress, statistics: GroupStatistics) -> None:
        self._locks = locks
        self._lanes = lanes
        self._moved = moved
        self._statistics = statistics

    def of(self, group: Group, topic: Topic, partition: str, client: str | None) -> Gate:
        """Return the gate of one fetch."""
        return Gate(
            self._locks,
            self._lanes,
            self._moved,
            self._statistics,
            group=group,
            topic=topic,
            partition=partition,
            client=client,
        )
