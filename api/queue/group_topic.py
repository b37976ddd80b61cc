"""A group in a topic: its lanes, the partitions that they read, and the pops that wait for messages there.

orders@A   orders@B   %RETRY%billing_orders@A   %RETRY%billing_orders@B        one visit each
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final

from api.log import Partition, Partitions
from mq.meta import Group, Topic
from mq.names import broker_of
from mq.queue import LaneKey, RetryTopic, visits
from tables.queue import retry_ref

__all__ = ["GroupTopic", "LanePartition", "Waiters"]

#: How long after a pop its retry partitions are followed, in seconds: the revive job's appends are known in time then.
_FOLLOWED_S: Final = 5.0


class LanePartition:
    """One lane and the partition that it reads."""

    __slots__ = ("broker", "key", "partition")

    def __init__(self, key: LaneKey, partition: Partition) -> None:
        self.key = key
        self.broker = broker_of(key.partition)
        self.partition = partition


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

    def _places(self, partition: str | None) -> tuple[Sequence[LanePartition], Sequence[LanePartition]]:
        """Return the lanes of the partitions that a pop reads, and those of their retry partitions."""
        if partition is None:
            return self._all
        visit = self._normal[partition]
        return (visit,), (self._retries[visit.broker],)

    def visits(self, partition: str | None, *, draw: int) -> list[LanePartition]:
        """Return the lanes that a pop visits, in order (SPEC POP-1): of one partition and its retries, or of all."""
        normal, retries = self._places(partition)
        until = self._loop.time() + _FOLLOWED_S
        for visit in retries:
            visit.partition.follow(until)
        return visits(normal, retries, draw=draw)

    def lanes(self, partition: str | None) -> Iterable[LanePartition]:
        """Return the lanes that a pop may visit, retries included."""
        return chain(*self._places(partition))
