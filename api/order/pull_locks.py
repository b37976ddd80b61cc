"""Pull locks of the brokers of this process: which client may pull and commit a partition of an exclusive group.

    take --renewal?--> renew              release --> forget, wake requests that wait for it
      '--anything new--> refresh the metadata, decide --> where the group goes on

The rules are in `mq.order.pull_lock` (SPEC ORDER-4, ORDER-5). Before a lock is granted the newest metadata is read,
since a client whose stay is over must not get one. If a partition's new owner waits for the lock, its holder is
notified at its next pull, and a pull that waits for messages ends.
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

__all__ = ["LockRequest", "Locks", "LocksTaken"]

#: Seconds after which a request that waits for a lock looks again: locks end by time, too.
_LOOK_S: Final = 1.0


class LockRequest(NamedTuple):
    """A client's request for locks; `held` are partitions whose locks it has had without a break."""

    group: Group
    topic: Topic
    client: str
    partitions: tuple[str, ...]
    held: frozenset[str]


@dataclass(slots=True)
class LocksTaken:
    """The answer to a request for locks, by partition."""

    numbers: dict[str, int] = field(default_factory=dict)
    #: Where the group goes on in granted partitions, and how often the message there was tried, if it was.
    offsets: dict[str, int] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    #: Partitions that are neither granted nor refused.
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
        """`clock` is the lease's clock."""
        self._meta = meta
        self._hosting = hosting
        self._lanes = lanes
        self._partitions = partitions
        self._clock = clock
        #: The locks of each broker.
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
        """Return the epoch since which the broker is ours, and its locks; raise `Unavailable` if it is not ours."""
        epoch = self._hosting.epoch(broker)
        return epoch, self._locks[broker]

    @property
    def held(self) -> int:
        """The number of locks that clients have."""
        self._sweep()
        return sum(map(len, self._locks.values()))

    def _sweep(self) -> None:
        """Forget expired locks, for which no more requests may come."""
        now_ms = self._clock.boot_ms()
        for locks in self._locks.values():
            locks.sweep(now_ms)

    @property
    def waiting(self) -> int:
        """The number of requests that wait for a lock."""
        return len(set().union(*self._waiters.values()))

    # Locks.

    async def take(self, asked: LockRequest) -> LocksTaken:
        """Grant or renew locks of partitions whose brokers are ours.

        Raises
        ------
        Unavailable
            A broker is not ours, or was lost meanwhile.
        """
        epochs = {broker: self._of(broker)[0] for broker in _brokers(asked.partitions)}
        if not all(self._is_renewal(asked, partition) for partition in asked.partitions):
            await self._meta.refresh()
        taken = LocksTaken()
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

    def _is_renewal(self, asked: LockRequest, partition: str) -> bool:
        lane, seat, locks = self._place(asked.group, asked.topic, partition)
        return partition in asked.held and locks.has(lane, asked.client, seat, self._clock.boot_ms())

    def _take(self, asked: LockRequest, partition: str) -> int | None:
        lane, seat, locks = self._place(asked.group, asked.topic, partition)
        return locks.take(lane, asked.client, seat, self._clock.boot_ms(), held=partition in asked.held)

    def _place(self, group: Group, topic: Topic, partition: str) -> tuple[LaneKey, Seat, PullLocks]:
        _, locks = self._of(broker_of(partition))
        seat = self._meta.now.online.seat(group.name, topic.name, partition)
        return LaneKey(topic.id, group.name, False, partition), seat, locks

    async def _add_offset(self, asked: LockRequest, partition: str, number: int, taken: LocksTaken) -> None:
        """Add to `taken` where the group goes on in a partition; if that cannot be found out, take a new lock back."""
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
        """Return where the group goes on, and how often the message there was tried.

        That is the committed position, else the start by the group's settings, which is stored (SPEC CONS-2).
        """
        committed = await self._lanes.committed(lane)
        if committed is not None:
            committed = await self._counted(lane, topic, committed)
            return committed.offset, committed.attempts
        return await self._first(lane, topic, group), 0

    async def _counted(self, lane: LaneKey, topic: Topic, committed: Committed) -> Committed:
        """Return the progress; if a client died there, first store one more attempt of the message (SPEC ORDER-8)."""
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
        """Return where a group begins that never consumed this partition, and store that position."""
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
            # After a crash the same position is found again; messages that retention takes from now on count as lost.
            self._lanes.logs.offsets.note(lane, topic.name, Committed(epoch, offset))
        return offset

    async def take_or_wait(self, asked: LockRequest, wait_ms: int, client: Client) -> LocksTaken:
        """Take locks; while none is granted, wait until one is. A client that held locks is answered at once."""
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

    async def _change(self, asked: LockRequest, within_s: float, client: Client) -> None:
        """Return when one of the locks may be free, the client has closed its connection, or after `within_s`."""
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
        """Release the client's locks of these partitions; return the partitions whose locks it had."""
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
        """Void the locks of lanes whose epoch is over: holders must ask again where the group goes on (SPEC POP-18)."""
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
            `not_lock_holder` or `partition_moved`.
        Unavailable
            The broker is not ours.
        """
        lane, seat, locks = self._place(group, topic, partition)
        locks.pull(lane, _named(client, partition), seat, self._clock.boot_ms())

    def check_commit(
        self, group: Group, topic: Topic, lane: LaneKey, client: str | None, number: int | None, field: str
    ) -> None:
        """Return if the client may commit in the lane, under the lock with `number` if it gives one.

        In a shared group, and in retry lanes of any group, every client may.

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
        """Follow the online clients: wake requests that wait for locks, and pulls of holders that must hand over."""
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
        """Answer all waiting requests."""
        self._stopping = True
        self._wake_all()


def _brokers(partitions: Iterable[str]) -> set[str]:
    return {broker_of(partition) for partition in partitions}


def _named(client: str | None, partition: str) -> str:
    """Return the client's name; raise `not_lock_holder` if the request gives none."""
    if client is None:
        raise Conflict(
            f"the group is exclusive: give the client_id that holds the pull lock of {partition}",
            code="not_lock_holder",
            field="client_id",
            extra={"partition": partition},
        )
    return client


def _moved(before: Meta, after: Meta) -> Iterator[tuple[str, str]]:
    """Yield topic and partition of each partition whose owner in some group has changed."""
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
