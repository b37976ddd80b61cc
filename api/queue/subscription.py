"""A group in a topic: its lanes, what they read, and the pops that wait for something there.

orders@A   orders@B   %RETRY%billing_orders@A   %RETRY%billing_orders@B        one seat each
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

__all__ = ["Seat", "Subscription", "Waiters"]

#: Retries that others append are looked for so long after a pop, so that they are there when their turn comes.
_FOLLOWED_S: Final = 5.0


class Seat:
    """One lane and the partition that it reads."""

    __slots__ = ("broker", "key", "partition")

    def __init__(self, key: LaneKey, partition: Partition) -> None:
        self.key = key
        self.broker = broker_of(key.partition)
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
        #: By partition, in route order.
        self._normal = {
            name: Seat(LaneKey(topic.id, group.name, False, name), partitions.get(topic, name))
            for name in topic.route.partitions
        }
        #: The brokers of the route, in its order.
        self.brokers = tuple(dict.fromkeys(seat.broker for seat in self._normal.values()))
        #: By broker.
        self._retries: dict[str, Seat] = {}
        for broker in self.brokers:
            key = LaneKey(topic.id, group.name, True, retry.partition(broker))
            ref = retry_ref(group.name, group.epoch, topic.name, topic.generation, broker)
            self._retries[broker] = Seat(key, partitions.of(ref))
        self._all = (tuple(self._normal.values()), tuple(self._retries.values()))

    def _places(self, partition: str | None) -> tuple[Sequence[Seat], Sequence[Seat]]:
        """What a pop reads, and what of it is delivered again."""
        if partition is None:
            return self._all
        seat = self._normal[partition]
        return (seat,), (self._retries[seat.broker],)

    def visits(self, partition: str | None, *, draw: int) -> list[Seat]:
        """Where a pop looks, one after the other (SPEC POP-1); a named partition is not left but for its retries."""
        normal, retries = self._places(partition)
        until = self._loop.time() + _FOLLOWED_S
        for seat in retries:
            seat.partition.follow(until)
        return visits(normal, retries, draw=draw)

    def seats(self, partition: str | None) -> Iterable[Seat]:
        """Where a pop may look, retries included."""
        return chain(*self._places(partition))
