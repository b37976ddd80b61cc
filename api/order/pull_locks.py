"""Pull locks of the brokers that this process has: who may pull and commit a partition of an exclusive group.

    take --renewal?--> renew              release --> forget, wake who waits for it
      '--anything new--> refresh the metadata, decide --> where the group goes on

The rules are in `mq.order.pull_lock` (SPEC ORDER-4, ORDER-5). Before a lock is given away the newest metadata is read:
a stay that is over must not get one. Whoever holds a lock that its partition's new owner waits for is told at its next
pull, and a pull that waits for messages is ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from api.host import HostedMeta, Hosting
from api.log import Partitions
from api.queue import Lanes, begin, bounds_at
from api.wire import Client
from mq.errors import Conflict, DeltaMQError
from mq.meta import META_ROLE, Group, Meta, Seat, Topic
from mq.names import broker_of
from mq.order import PullLocks
from mq.queue import Committed, LaneKey, StartKind, first_position
from mq.queue_limits import MAX_ATTEMPTS_MAX
from tables.clock import Clock

__all__ = ["Asked", "Locks", "Taken"]

#: Who waits for a lock looks again this often: locks end by time, too.
_LOOK_S: Final = 1.0


class Asked(NamedTuple):
    """Locks that a client asks for; `held` are those that it has had without a break."""

    group: Group
    topic: Topic
    client: str
    partitions: tuple[str, ...]
    held: frozenset[str]


@dataclass(slots=True)
class Taken:
    """What became of it, by partition."""

    numbers: dict[str, int] = field(default_factory=dict)
    #: Where the group goes on in what was granted, and how often the message there was tried, if it was.
    offsets: dict[str, int] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    #: Neither granted nor refused.
    unanswered: list[str] = field(default_factory=list)


class _Place(NamedTuple):
    """A partition as a group sees it, by names."""

    group: str
    topic: str
    partition: str


class Locks:
    """The pull locks of this process. Lives on one event loop."""

    def __init__(
        self,
        meta: HostedMeta,
        hosting: Hosting,
        lanes: Lanes,
        partitions: Partitions,
        *,
        clock: Clock,
    ) -> None:
        """`clock` is the one of the lease."""
        self._meta = meta
        self._hosting = hosting
        self._lanes = lanes
        self._partitions = partitions
        self._clock = clock
        #: By broker.
        self._locks: dict[str, PullLocks] = {}
        #: Requests that wait for a lock.
        self._waiters: dict[_Place, set[asyncio.Future[None]]] = {}
        self._stopping = False
        hosting.hooks.gained.append(self._gain)
        hosting.hooks.lost.append(self._lose)
        meta.follow(self._follow)

    # The roles.

    async def _gain(self, role: str, epoch: int) -> None:
        if role != META_ROLE:
            online_epoch = self._meta.now.online.epoch
            self._locks[role] = PullLocks(self._clock.boot_ms(), epoch=epoch, online_epoch=online_epoch)

    def _lose(self, role: str) -> None:
        if self._locks.pop(role, None) is not None:
            self._wake_all()

    def _of(self, broker: str) -> tuple[int, PullLocks]:
        """Since when the broker is ours, and its locks; `Unavailable` when it is not."""
        epoch = self._hosting.epoch(broker)
        return epoch, self._locks[broker]

    @property
    def held(self) -> int:
        """Locks that clients have."""
        self._sweep()
        return sum(map(len, self._locks.values()))

    def _sweep(self) -> None:
        """Forget locks that are over, which nobody may ask for again."""
        now_ms = self._clock.boot_ms()
        for locks in self._locks.values():
            locks.sweep(now_ms)

    @property
    def waiting(self) -> int:
        """Requests that wait for a lock."""
        return len(set().union(*self._waiters.values()))

    # Locks.

    async def take(self, asked: Asked) -> Taken:
        """Give or renew the locks of partitions of brokers that are ours.

        Raises
        ------
        Unavailable
            A broker is not ours, or was lost meanwhile.
        """
        epochs = {broker: self._of(broker)[0] for broker in _brokers(asked.partitions)}
        if not all(self._is_renewal(asked, partition) for partition in asked.partitions):
            await self._meta.refresh()
        taken = Taken()
        for partition in asked.partitions:
            number = self._take(asked, partition)
            if number is None:
                taken.refused.append(partition)
            else:
                taken.numbers[partition] = number
        for partition, number in list(taken.numbers.items()):
            await self._add_offset(asked, partition, number, taken)
        for broker, epoch in epochs.items():
            self._hosting.check(broker, epoch)
        return taken

    def _is_renewal(self, asked: Asked, partition: str) -> bool:
        lane, seat, locks = self._place(asked.group, asked.topic, partition)
        return partition in asked.held and locks.has(lane, asked.client, seat, self._clock.boot_ms())

    def _take(self, asked: Asked, partition: str) -> int | None:
        lane, seat, locks = self._place(asked.group, asked.topic, partition)
        return locks.take(lane, asked.client, seat, self._clock.boot_ms(), held=partition in asked.held)

    def _place(self, group: Group, topic: Topic, partition: str) -> tuple[LaneKey, Seat, PullLocks]:
        _, locks = self._of(broker_of(partition))
        seat = self._meta.now.online.seat(group.name, topic.name, partition)
        return LaneKey(topic.id, group.name, False, partition), seat, locks

    async def _add_offset(self, asked: Asked, partition: str, number: int, taken: Taken) -> None:
        """Where the group goes on in a partition; who cannot be told gives the lock back."""
        lane = LaneKey(asked.topic.id, asked.group.name, False, partition)
        try:
            taken.offsets[partition], attempts = await self._start(lane, asked.topic, asked.group)
            if attempts:
                taken.attempts[partition] = attempts
        except DeltaMQError:
            if partition not in asked.held:
                self._release(lane, asked.topic, asked.client, number)
            del taken.numbers[partition]
            taken.unanswered.append(partition)

    async def _start(self, lane: LaneKey, topic: Topic, group: Group) -> tuple[int, int]:
        """Where the group goes on, and how often the message there was tried.

        That is what is committed, else what its settings say, and that is stored (SPEC CONS-2).
        """
        committed = await self._lanes.committed(lane)
        if committed is not None:
            committed = await self._counted(lane, topic, committed)
            return committed.offset, committed.attempts
        return await self._first(lane, topic, group), 0

    async def _counted(self, lane: LaneKey, topic: Topic, committed: Committed) -> Committed:
        """The progress, and that a client that died may have tried the message there (SPEC ORDER-8); that is stored."""
        _, locks = self._of(broker_of(lane.partition))
        if not locks.is_abandoned(lane):
            return committed
        opened = await self._lanes.partition_of(lane, topic.name).look()
        if opened is not None and committed.offset < opened.end_offset:
            attempts = min(committed.attempts + 1, MAX_ATTEMPTS_MAX)
            committed = await self._lanes.commit(lane, topic.name, committed.offset, committed.epoch, attempts=attempts)
        locks.counted(lane)
        return committed

    async def _first(self, lane: LaneKey, topic: Topic, group: Group) -> int:
        """Where a group begins that never consumed this partition; it is stored."""
        epoch = self._lanes.groups.epoch_of(lane)
        await begin(self._meta, topic, group)
        partition = self._lanes.partition_of(lane, topic.name)
        start = self._meta.now.groups.start_in(lane, group, topic.route.partitions)
        opened = await partition.opened()
        await partition.refresh()
        offset = first_position(start, await bounds_at(self._partitions.run, opened, start.time_ms), pop=False)
        if start.kind is not StartKind.FIRST:
            await self._lanes.commit(lane, topic.name, offset)
        elif epoch is not None:
            # Whoever asks again after a crash is told the same; what retention takes from here on is missed.
            self._lanes.logs.offsets.note(lane, topic.name, Committed(epoch, offset))
        return offset

    async def take_or_wait(self, asked: Asked, wait_ms: int, client: Client) -> Taken:
        """The same; while none is granted, wait until one is. Who has lost what it held is told at once."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_ms / 1000
        while True:
            taken = await self.take(asked)
            left_s = deadline - loop.time()
            if taken.numbers or taken.unanswered or asked.held or left_s <= 0 or self._stopping:
                return taken
            await self._change(asked, min(left_s, _LOOK_S), client)
            if client.gone.done():
                return taken

    async def _change(self, asked: Asked, within_s: float, client: Client) -> None:
        """Return when one of the locks may be had, or the client closed its connection."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        places = [_Place(asked.group.name, asked.topic.name, partition) for partition in asked.partitions]
        for place in places:
            self._waiters.setdefault(place, set()).add(waiter)
        try:
            await asyncio.wait({waiter, client.gone}, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for place in places:
                waiting = self._waiters[place]
                waiting.discard(waiter)
                if not waiting:
                    del self._waiters[place]

    def release(
        self, group: str, topic: Topic, client: str, partitions: Iterable[str], numbers: Mapping[str, int]
    ) -> list[str]:
        """Take locks back; those that the client had."""
        return [
            partition
            for partition in partitions
            if self._release(LaneKey(topic.id, group, False, partition), topic, client, numbers.get(partition))
        ]

    def _release(self, lane: LaneKey, topic: Topic, client: str, number: int | None) -> bool:
        _, locks = self._of(broker_of(lane.partition))
        released = locks.release(lane, client, number=number)
        if released:
            self._wake(_Place(lane.group, topic.name, lane.partition))
        return released

    def void(self, lanes: Iterable[LaneKey]) -> None:
        """The epoch of these lanes is over: their holders must ask where the group goes on (SPEC POP-18)."""
        for lane in lanes:
            locks = self._locks.get(broker_of(lane.partition))
            if locks is not None and not lane.retry:
                locks.void(lane, self._clock.boot_ms())

    # Gates.

    def check_pull(self, group: Group, topic: Topic, partition: str, client: str | None) -> None:
        """Return if the client may pull, and renew its lock.

        Raises
        ------
        Conflict
            `not_lock_holder`, `partition_moved`.
        Unavailable
            The broker is not ours.
        """
        lane, seat, locks = self._place(group, topic, partition)
        locks.pull(lane, _named(client, partition), seat, self._clock.boot_ms())

    def check_commit(
        self, group: Group, topic: Topic, lane: LaneKey, client: str | None, number: int | None, field: str
    ) -> None:
        """Return if the client may commit in the lane, under the lock of this number if it says one.

        Everybody may where the group is shared, and so in the retried messages of any group.

        Raises
        ------
        Conflict
            `not_lock_holder`, naming `field`.
        Unavailable
            The broker is not ours.
        """
        if lane.retry or group.settings.consume_strategy != "exclusive":
            return
        _, seat, locks = self._place(group, topic, lane.partition)
        try:
            locks.check_commit(lane, _named(client, lane.partition), seat, self._clock.boot_ms(), number=number)
        except Conflict as error:
            error.field = error.field or field
            raise

    # Waking.

    def _follow(self, before: Meta, after: Meta) -> None:
        """Somebody came or went: who waits for a lock looks again, and who must hand over is told."""
        if before.online is after.online:
            return
        self._sweep()
        for place in self._waiters:
            was, now = before.online.seat(*place), after.online.seat(*place)
            if was.owner != now.owner or not was.clients.keys() <= now.clients.keys():
                self._wake(place)
        for topic, partition in _moved(before, after):
            found = after.topics.topics.get(topic)
            if found is not None and broker_of(partition) in self._locks:
                self._partitions.get(found, partition).wake()

    def _wake(self, place: _Place) -> None:
        for waiter in self._waiters.get(place, ()):
            if not waiter.done():
                waiter.set_result(None)

    def _wake_all(self) -> None:
        for place in self._waiters:
            self._wake(place)

    def begin_stop(self) -> None:
        """Answer whoever waits."""
        self._stopping = True
        self._wake_all()


def _brokers(partitions: Iterable[str]) -> set[str]:
    return {broker_of(partition) for partition in partitions}


def _named(client: str | None, partition: str) -> str:
    """Who asks; nobody in particular holds no lock."""
    if client is None:
        raise Conflict(
            f"the group is exclusive: name the client_id that holds the pull lock of {partition}",
            code="not_lock_holder",
            field="client_id",
            extra={"partition": partition},
        )
    return client


def _moved(before: Meta, after: Meta) -> Iterator[tuple[str, str]]:
    """The partitions, each after its topic, whose owner in some group was another."""
    for name, group in before.online.groups.items():
        now = after.online.group(name)
        if now is group:
            continue
        for topic, allocation in group.topics.items():
            there = now.topics.get(topic)
            if there is allocation:
                continue
            for partition, owner in allocation.owner.items():
                if there is None or there.owner.get(partition) != owner:
                    yield topic, partition
