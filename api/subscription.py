"""A group in a topic: its lanes, what they read, and the pops that wait for something there.

orders@A   orders@B   %RETRY%billing_orders@A   %RETRY%billing_orders@B        one seat each
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Final

from api.partition import Partition, Partitions
from mq.checkpoint import LaneKey
from mq.group import Group
from mq.names import split_partition
from mq.pop_turn import Visit, visits
from mq.retry_topic import RetryTopic
from mq.topics import Topic
from tables.queue_refs import retry_ref

__all__ = ["Seat", "Subscription", "Waiters"]

#: Retries that others append are looked for so long after a pop, so that they are there when their turn comes.
_FOLLOWED_S: Final = 5.0


class Seat:
    """One lane and the partition that it reads."""

    __slots__ = ("broker", "key", "partition")

    def __init__(self, key: LaneKey, partition: Partition) -> None:
        self.key = key
        self.broker = split_partition(key.partition)[1]
        self.partition = partition


class Waiters:
    """Pops that wait: each is a future of its own that anybody may complete."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def add(self, waiter: asyncio.Future[None]) -> None:
        self._waiting.add(waiter)

    def discard(self, waiter: asyncio.Future[None]) -> None:
        self._waiting.discard(waiter)

    def __len__(self) -> int:
        return len(self._waiting)

    def wake(self) -> None:
        """Tell all of them to look again."""
        waiting, self._waiting = self._waiting, set()
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)


class Subscription:
    """One group in one topic, as long as neither its life nor the topic's route changes."""

    def __init__(self, topic: Topic, group: Group, partitions: Partitions, waiters: Waiters) -> None:
        self.topic = topic
        self.group = group
        self.waiters = waiters
        self._loop = partitions.loop
        retry = RetryTopic(group.name, topic.name)
        self._seats: dict[Visit, Seat] = {}
        for name in topic.route.partitions:
            key = LaneKey(topic.id, group.name, False, name)
            self._seats[Visit(name, False)] = Seat(key, partitions.get(topic, name))
        self._retries: dict[str, str] = {}
        for broker in dict.fromkeys(split_partition(name)[1] for name in topic.route.partitions):
            name = self._retries[broker] = retry.partition(broker)
            ref = retry_ref(group.name, group.epoch, topic.name, topic.generation, broker)
            self._seats[Visit(name, True)] = Seat(LaneKey(topic.id, group.name, True, name), partitions.of(ref))

    def visits(self, partition: str | None, *, draw: int, ordered: bool) -> list[Seat]:
        """Where a pop looks, one after the other (SPEC POP-1); a named partition is not left but for its retries."""
        if partition is None:
            normal, retries = self.topic.route.partitions, tuple(self._retries.values())
        else:
            normal, retries = (partition,), (self._retries[split_partition(partition)[1]],)
        self._follow(retries)
        return [self._seats[visit] for visit in visits(normal, retries, draw=draw, ordered=ordered)]

    def seats(self, partition: str | None) -> Collection[Seat]:
        """Where a pop may look, retries included."""
        if partition is None:
            return self._seats.values()
        return [
            self._seats[Visit(partition, False)],
            self._seats[Visit(self._retries[split_partition(partition)[1]], True)],
        ]

    def _follow(self, retries: tuple[str, ...]) -> None:
        until = self._loop.time() + _FOLLOWED_S
        for name in retries:
            self._seats[Visit(name, True)].partition.followed_until = until
