"""Pull locks of the brokers of this process: which client may pull and commit a partition of an exclusive group.

    take --renewal?--> renew              release --> forget, wake requests that wait for it
      '--anything new--> refresh the metadata, decide --> where the group goes on

The rules are in `mq.order.pull_lock` (SPEC ORDER-4, ORDER-5). Before a lock is granted the newest metadata is read,
since a client whose stay is over must not get one. If a partition's new owner waits for the lock, its holder is
notified at its next pull, and a pull that waits for messages ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from deltamq.api.host.hosted_meta import HostedMeta
from deltamq.api.host.hosted_topic import Topics
from deltamq.api.host.hosting import Hosting
from deltamq.api.host.peers import Peers
from deltamq.api.log.partition import Partitions
from deltamq.api.order.lock_handover import LockAccounts, LockRequest, LockStarts, reallocated, remapped
from deltamq.api.progress.group_progress import QueueProgress
from deltamq.api.queue.lanes import Lanes
from deltamq.api.wire.answer import Header
from deltamq.api.wire.request import Client
from deltamq.mq.errors import Conflict, DeltaMQError, Unavailable
from deltamq.mq.meta.brokers import META_ROLE
from deltamq.mq.meta.fold import Meta
from deltamq.mq.meta.group import Group
from deltamq.mq.meta.online import Seat
from deltamq.mq.meta.topics import Topic
from deltamq.mq.names import broker_of
from deltamq.mq.order.pull_lock import LockAccount, PullLocks
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.wire.groups import LocksGiven
from deltamq.tables.clock import Clock

#: Seconds after which a request that waits for a lock looks again: locks end by time, too.
_LOOK_S: Final = 1.0


class _GroupPartition(NamedTuple):
    group: str
    topic: str
    partition: str


class Locks:
    """The pull locks of this process. Lives on one event loop."""

    def __init__(
        self,
        meta: HostedMeta,
        hosting: Hosting,
        topics: Topics,
        lanes: Lanes,
        partitions: Partitions,
        progress: QueueProgress,
        peers: Peers,
        *,
        clock: Clock,
    ) -> None:
        """`clock` is the lease's clock."""
        self._meta = meta
        #: The metadata up to which locks have followed the remappings of logical queues.
        self._seen = meta.now
        self._topics = topics
        self._starts = LockStarts(meta, topics, lanes, progress)
        self._accounts = LockAccounts(peers, self.account)
        self._hosting = hosting
        self._partitions = partitions
        self._clock = clock
        #: The locks of each broker.
        self._locks: dict[str, PullLocks] = {}
        #: Requests that wait for a lock.
        self._waiters: dict[_GroupPartition, set[asyncio.Future[None]]] = {}
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
        """Return the broker's epoch, and its locks; raise `Unavailable` if another process serves it."""
        epoch = self._hosting.epoch(broker)
        return epoch, self._locks[broker]

    @property
    def held(self) -> int:
        """The number of locks that clients have."""
        self._sweep()
        return sum(map(len, self._locks.values()))

    def _sweep(self) -> None:
        now_ms = self._clock.boot_ms()
        for locks in self._locks.values():
            locks.sweep(now_ms)

    @property
    def waiting(self) -> int:
        """The number of requests that wait for a lock."""
        return len(set().union(*self._waiters.values()))

    # Locks.

    async def take(self, asked: LockRequest) -> LocksGiven:
        """Grant or renew locks of partitions whose brokers this process serves.

        Raises
        ------
        Unavailable
            This process does not serve a broker, or lost it meanwhile.
        """
        if not all(self._is_renewal(asked, partition) for partition in asked.partitions):
            await self._meta.refresh()
        epochs = {broker: self._of(broker)[0] for broker in self._brokers(asked)}
        taken = LocksGiven()
        for partition in asked.partitions:
            number = self._take(asked, partition)
            if number is None and await self._learn(asked.group.name, asked.topic, partition, asked.headers):
                number = self._take(asked, partition)
            if number is None:
                taken.refused.append(partition)
            else:
                taken.locks[partition] = number
        for partition, number in list(taken.locks.items()):
            await self._add_offset(asked, partition, number, taken)
        for broker, epoch in epochs.items():
            await self._hosting.confirm(broker, epoch)
        if asked.topic.static is not None and self._brokers(asked) != epochs.keys():
            raise Unavailable("a logical queue was remapped meanwhile; ask again", code="not_owner")
        return taken

    def _brokers(self, asked: LockRequest) -> set[str]:
        return {self._broker(asked.topic, partition) for partition in asked.partitions}

    def _is_renewal(self, asked: LockRequest, partition: str) -> bool:
        lane, seat, locks = self._lock(asked.group, asked.topic, partition)
        return partition in asked.held and locks.has(lane, asked.client, seat, self._clock.boot_ms())

    def _take(self, asked: LockRequest, partition: str) -> int | None:
        lane, seat, locks = self._lock(asked.group, asked.topic, partition)
        return locks.take(lane, asked.client, seat, self._clock.boot_ms(), held=partition in asked.held)

    def _lock(self, group: Group, topic: Topic, partition: str) -> tuple[LaneKey, Seat, PullLocks]:
        _, locks = self._of(self._broker(topic, partition))
        seat = self._meta.now.online.seat(group.name, topic.name, partition)
        return LaneKey(topic.id, group.name, False, partition), seat, locks

    async def _add_offset(self, asked: LockRequest, partition: str, number: int, taken: LocksGiven) -> None:
        """Add to `taken` where the group goes on in a partition; if that fails, take a new lock back."""
        lane = LaneKey(asked.topic.id, asked.group.name, False, partition)
        try:
            _, _, locks = self._lock(asked.group, asked.topic, partition)
            taken.offsets[partition], attempts = await self._starts.of(asked, lane, locks)
            if attempts:
                taken.attempts[partition] = attempts
        except DeltaMQError:
            if partition not in asked.held:
                self._release(lane, asked.topic, asked.client, number)
            del taken.locks[partition]
            taken.unanswered.append(partition)

    async def take_or_wait(self, asked: LockRequest, wait_ms: int, client: Client) -> LocksGiven:
        """Take locks; while none is granted, wait until one is. A client that held locks is answered at once."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_ms / 1000
        while True:
            taken = await self.take(asked)
            left_s = deadline - loop.time()
            if taken.locks or taken.unanswered or asked.held or left_s <= 0 or self._stopping:
                return taken
            await self._change(asked, min(left_s, _LOOK_S), client)
            if client.has_left():
                return taken

    async def _change(self, asked: LockRequest, within_s: float, client: Client) -> None:
        """Wait until one of the locks may be free or the client has gone, for `within_s` at most."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        wanted = [_GroupPartition(asked.group.name, asked.topic.name, partition) for partition in asked.partitions]
        for key in wanted:
            self._waiters.setdefault(key, set()).add(waiter)
        try:
            await asyncio.wait({waiter, client.gone}, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for key in wanted:
                waiting = self._waiters[key]
                waiting.discard(waiter)
                if not waiting:
                    del self._waiters[key]

    async def release(
        self,
        group: str,
        topic: Topic,
        client: str,
        partitions: Iterable[str],
        numbers: Mapping[str, int],
        headers: Collection[Header],
    ) -> list[str]:
        """Release the client's locks of these partitions; return the partitions whose locks it had.

        `headers` are the request's. Raises `Unavailable` if another process serves a broker.
        """
        released = []
        for partition in partitions:
            lane, number = LaneKey(topic.id, group, False, partition), numbers.get(partition)
            had = self._release(lane, topic, client, number)
            if not had and await self._learn(group, topic, partition, headers):
                had = self._release(lane, topic, client, number)
            if had:
                released.append(partition)
        return released

    async def _learn(self, group: str, topic: Topic, partition: str, headers: Collection[Header]) -> bool:
        """Ask the process that led a logical queue before for its lock; return whether it has answered."""
        if topic.static is None:
            return False
        lane = LaneKey(topic.id, group, False, partition)
        _, locks = self._of(self._broker(topic, partition))
        previous = locks.came_from(lane, self._clock.boot_ms())
        account = None if previous is None else await self._accounts.of(previous, topic.name, lane, headers)
        if account is None:
            return False
        # The queue may have moved on meanwhile; then the new locks of its broker count.
        if self._of(self._broker(topic, partition))[1] is locks:
            locks.adopt(lane, account, self._clock.boot_ms())
        return True

    async def account(self, broker: str, topic: str, lane: LaneKey) -> LockAccount:
        """Return the lock's account for a logical queue that `broker` led before.

        Raises
        ------
        Conflict
            `queue_not_moved`: the broker still leads the queue, so the lock may change.
        Unavailable
            Another process serves the broker.
        """
        await self._meta.refresh()
        hosted = self._topics.find(topic)
        _, locks = self._of(broker)
        if hosted is None or hosted.topic.id != lane.topic_id or self._broker(hosted.topic, lane.partition) == broker:
            detail = f"broker: {broker} still leads {lane.partition}, so the lock may change"
            raise Conflict(detail, code="queue_not_moved", field="broker")
        return locks.account(lane, self._clock.boot_ms())

    def _release(self, lane: LaneKey, topic: Topic, client: str, number: int | None) -> bool:
        _, locks = self._of(self._broker(topic, lane.partition))
        released = locks.release(lane, client, number=number)
        if released:
            self._wake(_GroupPartition(lane.group, topic.name, lane.partition))
        return released

    def void(self, lanes: Iterable[LaneKey]) -> None:
        """Void the locks of lanes whose epoch is over: holders must ask for their start again (SPEC POP-18)."""
        for lane in lanes:
            if lane.retry:
                continue
            name = self._topics.queue_name(lane.topic_id, lane.partition)
            if name is not None:
                lane = lane._replace(partition=name)
            # A logical queue's lock is at its leader's broker, which the name does not show.
            for locks in self._locks.values() if name is not None else self._at(broker_of(lane.partition)):
                locks.void(lane, self._clock.boot_ms())

    def _at(self, broker: str) -> list[PullLocks]:
        locks = self._locks.get(broker)
        return [] if locks is None else [locks]

    # Gates.

    def check_pull(self, group: Group, topic: Topic, partition: str, client: str | None) -> None:
        """Return if the client may pull, and renew its lock.

        Raises
        ------
        Conflict
            `not_lock_holder` or `partition_moved`.
        Unavailable
            Another process serves the broker.
        """
        lane, seat, locks = self._lock(group, topic, partition)
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
            Another process serves the broker.
        """
        if lane.retry or group.settings.consume_strategy != "exclusive":
            return
        _, seat, locks = self._lock(group, topic, lane.partition)
        try:
            locks.check_commit(lane, _named(client, lane.partition), seat, self._clock.boot_ms(), number=number)
        except Conflict as error:
            error.field = error.field or field
            raise

    # Waking.

    def _follow(self, before: Meta, after: Meta) -> None:
        """Follow the online clients: wake requests that wait for locks, and pulls whose holders must hand over."""
        self._see()
        if before.online is after.online:
            return
        self._sweep()
        for key in self._waiters:
            was, now = before.online.seat(*key), after.online.seat(*key)
            if was.owner != now.owner or not was.clients.keys() <= now.clients.keys():
                self._wake(key)
        for name, partition in reallocated(before, after):
            topic = after.topics.topics.get(name)
            read = None if topic is None else self._read_partition(topic, partition)
            if topic is not None and read is not None:
                self._partitions.get(topic, read).wake()

    def _read_partition(self, topic: Topic, partition: str) -> str | None:
        """Return the physical partition at which pulls under our locks wait; None if another process has the locks."""
        queues = self._topics.queues_of(topic)
        if queues is None:
            return partition if broker_of(partition) in self._locks else None
        queue = queues.find(partition)
        return queue.newest_readable.partition if queue is not None and queue.leader.broker in self._locks else None

    def _see(self) -> Meta:
        """Return the newest metadata, after locks have followed its remappings.

        Requests may see newer metadata than followers have been notified of.
        """
        before, self._seen = self._seen, self._meta.now
        if before.static is not self._seen.static:
            self._follow_remaps(before, self._seen)
        return self._seen

    def _broker(self, topic: Topic, partition: str) -> str:
        """Return the broker that has the lock of a partition as clients see it; raises `queue_unserved`."""
        return broker_of(partition) if topic.static is None else self._topics.broker_of(topic, partition, self._see())

    def _follow_remaps(self, before: Meta, after: Meta) -> None:
        """Take over the locks of logical queues that came to this process's brokers, and wake their waiters."""
        moved = list(remapped(before, after))
        for topic, name, broker, previous in moved:
            locks, earlier = self._locks.get(broker), self._locks.get(previous or "")
            if locks is None or locks is earlier:
                continue
            if earlier is not None:
                locks.receive(topic.id, name, earlier)
                continue
            now_ms, late_ms = self._clock.boot_ms(), 0 if self._hosting.alone else self._hosting.lease_ms
            epoch = after.online.epoch
            locks.arrive(topic.id, name, now_ms, online_epoch=epoch, late_ms=late_ms, previous=previous)
        changed = {(change.topic.name, change.queue) for change in moved}
        for key in self._waiters if changed else ():
            if (key.topic, key.partition) in changed:
                self._wake(key)

    def _wake(self, key: _GroupPartition) -> None:
        for waiter in self._waiters.get(key, ()):
            if not waiter.done():
                waiter.set_result(None)

    def _wake_all(self) -> None:
        for key in self._waiters:
            self._wake(key)

    def begin_stop(self) -> None:
        """Answer all waiting requests."""
        self._stopping = True
        self._wake_all()


def _named(client: str | None, partition: str) -> str:
    if client is None:
        raise Conflict(
            f"the group is exclusive: give the client_id that holds the pull lock of {partition}",
            code="not_lock_holder",
            field="client_id",
            extra={"partition": partition},
        )
    return client
