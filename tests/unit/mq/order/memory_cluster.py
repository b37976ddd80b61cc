"""A cluster in memory, for tests: hosts with leases, a meta role, pull locks, and one strict topic of several brokers.

All decisions are made by the code of the service's rules (`mq.meta.brokers`, `mq.meta.online`, `mq.order.pull_lock`
...); this module only moves events and requests. Each process has a clock of its own, with an arbitrary origin and a
slightly wrong rate. Hosts can be killed, stopped for a while (as by SIGSTOP), and restarted; the clients that consume
are in `tests.unit.mq.order.memory_orderly`. Time passes in `MemoryCluster.run` only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec
import numpy as np
from msgspec.structs import replace

from deltamq.mq.errors import Conflict, Fenced, Unavailable
from deltamq.mq.meta.brokers import (
    META_ROLE,
    BrokersState,
    Host,
    HostAsked,
    HostLeft,
    HostRegistered,
    HostRenewed,
    LeaseWatch,
    OwnLease,
    RoleTaken,
    check_role,
    decide_ask,
    decide_give_back,
    decide_leave,
    decide_register,
    decide_renew,
    decide_takeover,
)
from deltamq.mq.meta.moved_keys import KeysMoved, MovedKeys, MoveSealed, decide_seal, first_blocked, moves_between
from deltamq.mq.meta.online import (
    Allocated,
    ClientGone,
    ClientPut,
    Member,
    OnlineState,
    Subscription,
    TopicPartitions,
    decide_heartbeat,
    decide_scan,
)
from deltamq.mq.names import broker_of
from deltamq.mq.order.authorization import Authorizations
from deltamq.mq.order.pull_lock import PullLocks
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.routing import Route, expand, new_route

__all__ = [
    "GROUP",
    "TICK_MS",
    "TOPIC",
    "Answer",
    "Clock",
    "ClusterEvent",
    "ClusterMeta",
    "Decide",
    "KeyedMessage",
    "MemoryCluster",
    "MemoryHost",
    "lane_of",
]

TOPIC: Final = "orders"
TOPIC_ID: Final = "orders-1"
GROUP: Final = "billing"
#: Interval of the periodic work of all processes, in milliseconds.
TICK_MS: Final = 250

ClusterEvent = (
    HostRegistered
    | HostRenewed
    | HostAsked
    | HostLeft
    | RoleTaken
    | ClientPut
    | ClientGone
    | Allocated
    | KeysMoved
    | MoveSealed
    | Route
)


class Clock(NamedTuple):
    """A monotonic clock of one process."""

    origin_ms: int = 0
    rate: float = 1.0

    def at(self, true_ms: int) -> int:
        return self.origin_ms + round(true_ms * self.rate)


class KeyedMessage(NamedTuple):
    """A message of the strict topic: its key is a logical partition, and it is the key's `number`-th."""

    lp: int
    number: int


class Answer(NamedTuple):
    """The answer to a heartbeat."""

    authorized_ms: int
    partitions: tuple[str, ...]


class ClusterMeta(msgspec.Struct, frozen=True):
    """The state of the metadata: all events of its log, applied."""

    route: Route
    brokers: BrokersState = msgspec.field(default_factory=BrokersState)
    online: OnlineState = msgspec.field(default_factory=OnlineState)
    moved: MovedKeys = msgspec.field(default_factory=MovedKeys)

    def apply_all(self, events: Sequence[ClusterEvent]) -> ClusterMeta:
        meta = self
        for event in events:
            if isinstance(event, Route):
                meta = replace(meta, route=event)
            elif isinstance(event, KeysMoved | MoveSealed):
                meta = replace(meta, moved=meta.moved.apply_all([event]))
            elif isinstance(event, ClientPut | ClientGone | Allocated):
                meta = replace(meta, online=meta.online.apply_all([event]))
            else:
                meta = replace(meta, brokers=meta.brokers.apply_all([event]))
        return meta

    @property
    def topics(self) -> Mapping[str, TopicPartitions]:
        return {TOPIC: TopicPartitions(TOPIC_ID, self.route.partitions)}


Decide = Callable[[ClusterMeta], Sequence[ClusterEvent]]


class Process(Protocol):
    """A process with periodic work."""

    def tick(self) -> None: ...


class MemoryCluster:
    """The tables, which outlive every process, and the processes; `now_ms` is the true time that none of them knows."""

    def __init__(self, partitions: int, brokers: Sequence[str]) -> None:
        self.now_ms = 0
        self.meta = ClusterMeta(new_route(TOPIC, partitions, brokers))
        self.events: list[ClusterEvent] = []
        self.logs: dict[str, list[KeyedMessage]] = {partition: [] for partition in self.meta.route.partitions}
        self.committed: dict[str, int] = dict.fromkeys(self.logs, 0)
        self.hosts: list[MemoryHost] = []
        self.clients: list[Process] = []
        self._wire: list[tuple[int, Callable[[], None]]] = []

    def append(self, decide: Decide) -> ClusterMeta:
        """Decide on the newest state, and append the events atomically (compare-and-set)."""
        events = decide(self.meta)
        self.meta = self.meta.apply_all(events)
        self.events += events
        return self.meta

    def later(self, wait_ms: int, act: Callable[[], None]) -> None:
        """Call `act` after `wait_ms`, as for a request or answer under way."""
        self._wire.append((self.now_ms + wait_ms, act))

    def run(self, ms: int) -> None:
        """Let time pass."""
        until_ms = self.now_ms + ms
        while self.now_ms < until_ms:
            self.now_ms += TICK_MS
            due = [act for at, act in self._wire if at <= self.now_ms]
            self._wire = [one for one in self._wire if one[0] > self.now_ms]
            for act in due:
                act()
            processes: list[Process] = [*self.hosts, *self.clients]
            for process in processes:
                process.tick()
            self.observe()

    def observe(self) -> None:
        """Do nothing; called after each tick, for tests to override."""

    def host_of(self, role: str) -> MemoryHost:
        """Return the host of a role, where clients send their requests."""
        owner = self.meta.brokers.owner(role)
        for host in self.hosts:
            if owner is not None and host.id == owner.id:
                return host
        raise Unavailable(f"no process hosts {role}")

    def partition_host(self, partition: str) -> MemoryHost:
        return self.host_of(broker_of(partition))

    def send(self, lp: int, number: int) -> None:
        """Produce the next message of a key; raises the errors of the service."""
        meta = self.meta
        partition = meta.route.partitions[meta.moved.table(meta.route)[lp]]
        self.partition_host(partition).produce(partition, KeyedMessage(lp, number))

    def expand(self, count: int, brokers: Sequence[str]) -> None:
        """Expand the topic, as for an administrator; any process may decide that."""

        def decide(meta: ClusterMeta) -> Sequence[ClusterEvent]:
            route = expand(meta.route, TOPIC, count, brokers)
            moved = KeysMoved(topic_id=TOPIC_ID, moves=moves_between(meta.route, route))
            return (route, moved) if route is not meta.route else ()

        for partition in self.append(decide).route.partitions:
            self.logs.setdefault(partition, [])
            self.committed.setdefault(partition, 0)


class MemoryHost:
    """One service process; its knowledge is in memory, and lost in a kill."""

    def __init__(self, cluster: MemoryCluster, name: str, brokers: tuple[str, ...], clock: Clock) -> None:
        self.cluster = cluster
        self.name = name
        self.brokers = brokers
        self.clock = clock
        self.life = 0
        self.stopped_until_ms = 0
        self.start()

    @property
    def id(self) -> str:
        return f"{self.name}.{self.life}"

    @property
    def now_ms(self) -> int:
        return self.clock.at(self.cluster.now_ms)

    @property
    def runs(self) -> bool:
        """True if the process is alive and not stopped."""
        return self.alive and self.cluster.now_ms >= self.stopped_until_ms

    def start(self) -> None:
        """Start the process anew."""
        self.life += 1
        self.alive = True
        self.roles: dict[str, int] = {}
        self.locks: dict[str, PullLocks] = {}
        self.authorizations: Authorizations | None = None
        self.watch = LeaseWatch()
        self.lease = OwnLease(self.now_ms)
        host = Host(id=self.id, address=self.name, brokers=self.brokers, renewal=0, load=0)
        self._append(lambda meta: decide_register(meta.brokers, host))

    def kill(self) -> None:
        self.alive = False
        self.stopped_until_ms = 0

    def leave(self) -> None:
        """Stop cleanly: announce that the host leaves, after everything is finished."""
        self._append(lambda meta: decide_leave(meta.brokers, self.id))
        self.kill()

    def stop_for(self, ms: int) -> None:
        """Stop the process for `ms`, unnoticed by itself."""
        self.stopped_until_ms = self.cluster.now_ms + ms

    def _append(self, decide: Decide) -> None:
        self._see(self.cluster.append(decide))

    def _see(self, meta: ClusterMeta) -> None:
        """Take in the newest metadata, and begin the roles that are this host's now."""
        self.view = meta
        self.watch.see(meta.brokers, self.now_ms)
        roles = meta.brokers.roles_of(self.id)
        for role, epoch in sorted(roles.items() - self.roles.items()):
            self._begin(role, epoch)
        for role in self.roles.keys() - roles.keys():
            self.locks.pop(role, None)
        self.roles = roles

    def _begin(self, role: str, epoch: int) -> None:
        if role == META_ROLE:
            self.authorizations = Authorizations(self.lease, self.view.online.members(), self.now_ms)
        else:
            self.locks[role] = PullLocks(self.now_ms, epoch=epoch, online_epoch=self.view.online.epoch)

    def tick(self) -> None:
        """Do the host's periodic work."""
        if not self.runs:
            return
        begun_ms = self.now_ms
        self._see(self.cluster.meta)
        self.lease.read(self.view.brokers, self.id, begun_ms)
        try:
            self._renew()
            silent = self.view.brokers.hosts.keys() - {host.id for host in self.cluster.hosts if host.runs}
            self._append(lambda meta: decide_ask(meta.brokers, self.id, silent))
            expired = self.watch.expired(self.now_ms)
            self._append(lambda meta: decide_takeover(meta.brokers, self.id, expired))
            self._append(lambda meta: decide_give_back(meta.brokers, self.id, tuple(self.roles)))
            if self.lease.holds(self.now_ms):
                self._scan()
                self._seal()
        except Fenced:
            # Other hosts have declared it dead, so it starts anew.
            self.start()

    def _renew(self) -> None:
        if self.id in self.view.brokers.asked or self.id not in self.view.brokers.hosts:
            begun_ms = self.now_ms
            self._append(lambda meta: decide_renew(meta.brokers, self.id, load=0))
            self.lease.renewed(begun_ms)

    def _scan(self) -> None:
        """Run the meta role's periodic scan (SPEC ORDER-2)."""
        if META_ROLE not in self.roles or self.authorizations is None:
            return
        over = self.authorizations.over(self.view.online.members(), self.now_ms)
        epoch = self.roles[META_ROLE]

        def decide(meta: ClusterMeta) -> Sequence[ClusterEvent]:
            check_role(meta.brokers, META_ROLE, self.id, epoch)
            return decide_scan(meta.online, over=over, strategies={GROUP: "sticky"}, topics=meta.topics)

        self._append(decide)
        self.authorizations.decided(self.view.online.members())

    def _seal(self) -> None:
        """Seal the partitions of this host's brokers that gave up logical partitions (SPEC ROUTE-6)."""
        for source in self.view.route.partitions:
            broker = broker_of(source)
            for epoch in self.view.moved.unsealed(source) if broker in self.roles else ():
                self._append(self._sealing(source, epoch, broker))

    def _sealing(self, source: str, epoch: int, broker: str) -> Decide:
        def decide(meta: ClusterMeta) -> Sequence[ClusterEvent]:
            check_role(meta.brokers, broker, self.id, self.roles[broker])
            return decide_seal(meta.moved, TOPIC_ID, source, epoch, len(self.cluster.logs[source]))

        return decide

    # Requests.

    def _serve(self, role: str) -> int:
        """Return the host's time; raises unless the host may act in the role now."""
        if not self.runs or not self.lease.holds(self.now_ms) or role not in self.roles:
            raise Unavailable(f"{self.name} does not serve {role}")
        return self.now_ms

    def heartbeat(self, client: str, *, online: bool) -> Answer:
        now_ms = self._serve(META_ROLE)
        assert self.authorizations is not None
        epoch = self.roles[META_ROLE]

        def decide(meta: ClusterMeta) -> Sequence[ClusterEvent]:
            check_role(meta.brokers, META_ROLE, self.id, epoch)
            return decide_heartbeat(
                meta.online,
                GROUP,
                client,
                subscriptions={TOPIC: Subscription(order=True, tags="*")},
                online=online,
                topics=meta.topics,
                strategy="sticky",
                now_ms=0,
            )

        self._append(decide)
        group = self.view.online.group(GROUP)
        present = group.clients.get(client)
        if present is None:
            return Answer(0, ())
        if present.leaving:
            return Answer(0, ())
        member = Member(GROUP, client, present.joined)
        return Answer(self.authorizations.grant(member, now_ms), group.allocation(client)[TOPIC])

    def take_lock(self, partition: str, client: str, *, held: bool) -> int | None:
        now_ms, locks = self._locks(partition)
        seat = self.view.online.seat(GROUP, TOPIC, partition)
        return locks.take(lane_of(partition), client, seat, now_ms, held=held)

    def release(self, partition: str, client: str, number: int | None) -> None:
        _, locks = self._locks(partition)
        locks.release(lane_of(partition), client, number=number)

    def pull(self, partition: str, client: str, offset: int, count: int) -> list[KeyedMessage]:
        """Return messages from `offset` on, up to the first with a key that must wait (SPEC ROUTE-6)."""
        now_ms, locks = self._locks(partition)
        seat = self.view.online.seat(GROUP, TOPIC, partition)
        locks.pull(lane_of(partition), client, seat, now_ms)
        batch = self.cluster.logs[partition][offset : offset + count]
        blocked = self.view.moved.blocked(partition, self.cluster.committed)
        lps = np.array([message.lp for message in batch], dtype=np.int16)
        return batch[: first_blocked(blocked, lps)]

    def commit(self, partition: str, client: str, offset: int, number: int) -> None:
        now_ms, locks = self._locks(partition)
        seat = self.view.online.seat(GROUP, TOPIC, partition)
        locks.check_commit(lane_of(partition), client, seat, now_ms, number=number)
        self.cluster.committed[partition] = max(self.cluster.committed[partition], offset)

    def produce(self, partition: str, message: KeyedMessage) -> None:
        self._locks(partition)
        table = self.view.moved.table(self.view.route)
        if self.view.route.partitions[table[message.lp]] != partition:
            raise Conflict("the key goes to another partition", code="wrong_route")
        self.cluster.logs[partition].append(message)

    def _locks(self, partition: str) -> tuple[int, PullLocks]:
        broker = broker_of(partition)
        return self._serve(broker), self.locks[broker]


def lane_of(partition: str) -> LaneKey:
    """Return the lane of the only group in a partition of the only topic."""
    return LaneKey(TOPIC_ID, GROUP, False, partition)
