"""Exclusive clients, served by the owner of the meta role: heartbeats, authorizations, the scan (ORDER-1 to 3).

    heartbeat --> decide --changed?--> events in the metadata log --> authorize in memory --> answer
    scan      --> expired?     --> condemn --> events in the metadata log --> decided

A heartbeat that changes nothing is answered from memory: the lease guarantees that no other process has the role, so
only its owner decides. While the end of a client's stay is being stored, the client's heartbeats wait; then it joins
again. Changes that wait for each other share an append, so a hundred starting clients need only a few:

    change A ──► append            change B, change C, change D ──► one append
                 '── under way ──── wait ─────────────────────────'
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from deltamq.api.host.hosted_meta import HostedMeta
from deltamq.api.host.hosting import Hosting
from deltamq.api.wire.request import Client
from deltamq.mq.errors import DeltaMQError, Fenced, Overloaded, Unavailable
from deltamq.mq.meta.brokers import META_ROLE, check_role
from deltamq.mq.meta.fold import AnyEvent, Meta
from deltamq.mq.meta.group import Group
from deltamq.mq.meta.online import Member, OnlineEvent, Subscription, TopicPartitions, decide_heartbeat, decide_scan
from deltamq.mq.meta.topics import Topic
from deltamq.mq.order.authorization import Authorizations
from deltamq.tables.clock import Clock

log = logging.getLogger("deltamq.api")

#: Interval of the scan for expired authorizations, in seconds.
_SCAN_S: Final = 1.0
#: Maximum number of tries of a heartbeat, between which it waits for a scan to end its client's stay.
_TRIES: Final = 5


class Beat(NamedTuple):
    """A heartbeat: a client's subscriptions, or that it leaves."""

    group: str
    client: str
    subscriptions: Mapping[str, Subscription]
    online: bool


class Granted(NamedTuple):
    """The answer to a heartbeat."""

    exclusive: bool
    #: Milliseconds of authorization from the time of the answer on; 0 for none.
    authorized_ms: int
    allocation: Mapping[str, tuple[str, ...]]
    #: Another number after each change of the allocation.
    epoch: int


class _Waiter(NamedTuple):
    """A heartbeat that waits for another allocation of its client."""

    client: str
    changed: asyncio.Future[None]

    def wake(self) -> None:
        if not self.changed.done():
            self.changed.set_result(None)


class RoutedTopics(Mapping[str, TopicPartitions]):
    """The partitions of all topics as clients see them; a view, because a heartbeat looks at one topic of thousands."""

    def __init__(self, topics: Mapping[str, Topic]) -> None:
        self._topics = topics

    def __getitem__(self, name: str) -> TopicPartitions:
        topic = self._topics[name]
        return TopicPartitions(topic.id, topic.client_partitions)

    def __iter__(self) -> Iterator[str]:
        return iter(self._topics)

    def __len__(self) -> int:
        return len(self._topics)


class OnlineClients:
    """The meta role's part in exclusive consumption, while this process has the role. Lives on one event loop."""

    def __init__(
        self,
        meta: HostedMeta,
        hosting: Hosting,
        *,
        length_ms: int,
        clients_max: int,
        clock: Clock,
    ) -> None:
        """Authorize clients for `length_ms` at a time, `clients_max` of a group at most; `clock` is the lease's."""
        self._meta = meta
        self._hosting = hosting
        self._clock = clock
        self._length_ms = length_ms
        self._clients_max = clients_max
        #: The authorizations, while this process has the role.
        self._granting: Authorizations | None = None
        #: Heartbeats that wait for another allocation, by group.
        self._waiters: dict[str, set[_Waiter]] = {}
        #: Heartbeats of condemned clients, which wait until the scan has ended their stay.
        self._condemned: set[asyncio.Future[None]] = set()
        #: The metadata in which the last scan found nothing to do.
        self._scanned: Meta | None = None
        self._stopping = False
        self._scanner: asyncio.Task[None] | None = None
        self.heartbeats = 0
        #: Clients that went offline because their authorizations were over.
        self.lapsed = 0
        hosting.hooks.gained.append(self._gain)
        hosting.hooks.lost.append(self._lose)
        meta.follow(self._follow)

    # The role.

    async def _gain(self, role: str, _epoch: int) -> None:
        if role == META_ROLE:
            self._scanned = None
            self._granting = Authorizations(
                self._hosting.lease,
                self._meta.now.online.members(),
                self._clock.boot_ms(),
                length_ms=self._length_ms,
            )

    def _lose(self, role: str) -> None:
        if role == META_ROLE:
            self._granting = None
            self._wake_all()

    def _mine(self) -> tuple[int, Authorizations]:
        """Return the role's epoch, and the authorizations; raise `Unavailable` without the role."""
        epoch = self._hosting.epoch(META_ROLE)
        assert self._granting is not None, "a role is served after it was gained"
        return epoch, self._granting

    # Heartbeats.

    async def beat(self, beat: Beat) -> Granted:
        """Handle a heartbeat and authorize its client; changes are stored when this returns."""
        self.heartbeats += 1
        for _ in range(_TRIES):
            epoch, granting = self._mine()
            group = await self._group(beat.group)
            if group.settings.consume_strategy != "exclusive":
                return Granted(False, self._length_ms if beat.online else 0, {}, 0)
            decide = partial(self._decide, beat, epoch)
            if decide(self._meta.now):
                await self._submit(decide)
            await self._hosting.confirm(META_ROLE, epoch)
            granted = self._grant(beat, granting)
            if granted is not None:
                return granted
            await self._settled()
        raise Unavailable("the end of this client's earlier stay is not stored yet; send the heartbeat again")

    async def _group(self, name: str) -> Group:
        """Return the group; unless it is known as exclusive, read the log: another process may have changed it."""
        group = self._meta.now.groups.groups.get(name)
        if group is None or group.settings.consume_strategy != "exclusive":
            group = (await self._meta.refresh()).groups.group(name)
        return group

    def _decide(self, beat: Beat, epoch: int, meta: Meta) -> tuple[OnlineEvent, ...]:
        check_role(meta.brokers, META_ROLE, self._hosting.id, epoch)
        group = meta.groups.group(beat.group)
        if group.settings.consume_strategy != "exclusive":
            return ()
        clients = meta.online.group(beat.group).clients
        if beat.online and beat.client not in clients and len(clients) >= self._clients_max:
            raise Overloaded(f"group {beat.group} is full: it has {self._clients_max} clients", code="too_many_clients")
        return decide_heartbeat(
            meta.online,
            beat.group,
            beat.client,
            subscriptions=beat.subscriptions,
            online=beat.online,
            topics=RoutedTopics(meta.topics.topics),
            strategy=group.settings.allocation_strategy,
            now_ms=self._clock.wall_us() // 1_000,
        )

    def _grant(self, beat: Beat, granting: Authorizations) -> Granted | None:
        """Return the answer; None while the end of the client's stay is being stored, or if the stay has ended."""
        online = self._meta.now.online.group(beat.group)
        present = online.clients.get(beat.client)
        if present is None:
            return None if beat.online else Granted(True, 0, {}, 0)
        if present.leaving:
            return Granted(True, 0, {}, 0)
        member, now_ms = Member(beat.group, beat.client, present.joined), self._clock.boot_ms()
        authorized_ms = granting.grant(member, now_ms)
        if not authorized_ms:
            return None
        epochs = (online.topics[topic].epoch for topic in present.topics if topic in online.topics)
        return Granted(True, authorized_ms, online.allocation(beat.client), max(epochs, default=0))

    async def beat_until_changed(self, beat: Beat, known: int, wait_ms: int, client: Client) -> Granted:
        """Handle a heartbeat, and answer when the allocation's epoch is not `known`, or after `wait_ms`.

        It waits for a third of an authorization at most, so that a waiting client does not go offline.
        """
        granted = await self.beat(beat)
        wait_s = min(wait_ms, self._length_ms // 3) / 1000
        if granted.epoch != known or not granted.authorized_ms or not granted.exclusive or not beat.online:
            return granted
        if wait_s > 0 and not self._stopping:
            await self._change(beat, wait_s, client)
            client.has_left()
            _, granting = self._mine()
            # If the client went offline while this process slept, it must send a heartbeat of its own.
            granted = self._grant(beat, granting) or Granted(True, 0, {}, 0)
        return granted

    async def _change(self, beat: Beat, within_s: float, client: Client) -> None:
        """Wait until the allocation has changed or the client has gone, for `within_s` at most."""
        waiter = _Waiter(beat.client, asyncio.get_running_loop().create_future())
        waiting = self._waiters.setdefault(beat.group, set())
        waiting.add(waiter)
        try:
            wakers = {waiter.changed, client.gone}
            await asyncio.wait(wakers, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.discard(waiter)
            if not waiting:
                self._waiters.pop(beat.group, None)

    async def _submit(self, decide: Callable[[Meta], Sequence[AnyEvent]]) -> None:
        try:
            await self._meta.submit_any(decide)
        except Fenced as error:
            raise Unavailable(error.detail, code="not_owner") from error

    async def _settled(self) -> None:
        """Wait for the end of the scan that condemned the client, for one interval at most."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._condemned.add(waiter)
        try:
            # A scan that fails is repeated, and losing the role wakes all waiters.
            await asyncio.wait({waiter}, timeout=_SCAN_S)
        finally:
            self._condemned.discard(waiter)

    # The scan.

    def start(self) -> None:
        """Begin to scan."""
        self._scanner = asyncio.create_task(self._repeat())

    async def _repeat(self) -> None:
        while True:
            await asyncio.sleep(_SCAN_S)
            try:
                await self.scan()
            except DeltaMQError as error:
                log.warning("event=scan_failed code=%s detail=%r", error.code, error.detail)
            except Exception as error:
                log.error("event=scan_failed kind=%s", type(error).__name__, exc_info=error)

    async def scan(self) -> None:
        """End the stay of clients whose authorization is over; reallocate after changes (ORDER-2)."""
        if not self._hosting.hosts(META_ROLE):
            return
        epoch, granting = self._mine()
        seen = self._meta.now
        over = granting.over(seen.online.members(), self._clock.boot_ms())
        if not over and self._is_scanned(seen):
            return
        decide = partial(self._decide_scan, over, epoch)
        changes = bool(over)
        if not changes:
            # On a thread: with thousands of clients, deciding takes a tenth of a second.
            changes = await self._meta.run(lambda: bool(decide(seen)))
        if changes:
            # If this fails, the clients stay condemned: their end may be stored, and the next scan tries again.
            await self._submit(decide)
            self.lapsed += len(over)
            log.info("event=clients_scanned over=%d", len(over))
        else:
            self._scanned = seen
        granting.decided(self._meta.now.online.members())
        self._wake_condemned()

    def _is_scanned(self, seen: Meta) -> bool:
        """Whether nothing that allocations depend on has changed since a scan found nothing to do."""
        last = self._scanned
        return last is not None and (
            last.topics is seen.topics and last.groups is seen.groups and last.online is seen.online
        )

    def _decide_scan(self, over: set[Member], epoch: int, meta: Meta) -> tuple[OnlineEvent, ...]:
        check_role(meta.brokers, META_ROLE, self._hosting.id, epoch)
        strategies = {
            name: group.settings.allocation_strategy
            for name, group in meta.groups.groups.items()
            if group.settings.consume_strategy == "exclusive"
        }
        return decide_scan(meta.online, over=over, strategies=strategies, topics=RoutedTopics(meta.topics.topics))

    # Queries.

    def authorized_ms(self, member: Member) -> int | None:
        """Return how long a client is still authorized; None if this process does not have the meta role."""
        if self._granting is None or not self._hosting.hosts(META_ROLE):
            return None
        return self._granting.rest(member, self._clock.boot_ms())

    @property
    def waiting(self) -> int:
        """The number of heartbeats that wait for another allocation."""
        return sum(map(len, self._waiters.values()))

    # Waking.

    def _follow(self, before: Meta, after: Meta) -> None:
        """Wake only clients whose allocation has changed: a hundred joining clients must not wake one another."""
        if before.online is after.online:
            return
        for name, waiting in self._waiters.items():
            was, now = before.online.group(name), after.online.group(name)
            if was is now:
                continue
            for waiter in waiting:
                client = waiter.client
                stays = was.clients.get(client) is now.clients.get(client)
                if not stays or was.allocation(client) != now.allocation(client):
                    waiter.wake()

    def _wake_all(self) -> None:
        for waiting in self._waiters.values():
            for waiter in waiting:
                waiter.wake()
        self._wake_condemned()

    def _wake_condemned(self) -> None:
        for waiter in self._condemned:
            if not waiter.done():
                waiter.set_result(None)

    def begin_stop(self) -> None:
        """Answer all waiting heartbeats."""
        self._stopping = True
        self._wake_all()

    async def stop(self) -> None:
        """Stop scanning."""
        if self._scanner is not None:
            self._scanner.cancel()
            await asyncio.gather(self._scanner, return_exceptions=True)
