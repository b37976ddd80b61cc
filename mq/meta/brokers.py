"""Brokers: which service process hosts each broker and the meta role, by leases and epochs (SPEC META-1).

A *broker* is a namespace of partitions, and routes name it for ever; a *host* is one life of a service process. A host
takes a broker with an event in the metadata log, by compare-and-set, and each takeover has a higher epoch:

    host 1   register  take A, meta (epochs 1, 2)   renew  renew  (killed)
    host 2                          register  take B (3)    renew  renew ... 10 s ... host 1 left, take A, meta (4, 5)
    host 1'                                                                  (comes back: fenced; registers again)

The epoch is the fence; clocks only determine when to try (SPEC RELY-6). Each process measures by its own clock, which
never goes back, and two clocks are never compared. A host that reads the metadata and finds itself there, asked by
nobody, has a lease from before that read on: a host at rest writes nothing. Who hears nothing of another host asks it,
by an event, to renew its lease, which is an event with a number that grows:

    host 1    reads . reads . reads ......... (hangs)                                     reads: it is declared dead
    host 2                                   hears nothing: asked 1 ----- a whole lease ----> left 1, take A
                                             read by 1 before, so it stops a margin earlier ^

Who asked waits a whole lease from when it *saw* its question stored (`LeaseWatch`). What host 1 read before does not
hold as long, since it stops early by a margin, and what it reads later has the question: that is no lease until it is
answered (`OwnLease`). Answers and takeovers are changes of one log, so the second of two is decided again and sees the
first. If a host refuses connections, others wait only for a moment; then its lease may not be over, and only the fences
keep it out (SPEC META-8).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

import msgspec
from msgspec.structs import replace

from deltamq.mq.errors import Fenced
from deltamq.mq.limits import LEASE_MARGIN_MS, LEASE_MS_DEFAULT
from deltamq.mq.stored_json import Form, check_event, forms_of

#: The meta role, which decides about routes, groups and allocation. No broker has this name, because of the slash.
META_ROLE: Final = "/meta"


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """One life of a service process. Each start is another host with a new id."""

    id: str
    #: The address that clients connect to.
    address: str
    #: The brokers that it was started for; it hosts others while no other host does.
    brokers: tuple[str, ...]
    #: Grows with each renewal of its lease.
    renewal: int
    #: Requests a second, for display and for choices by load.
    load: int
    #: Identifies its machine since the last boot; empty when that is not known.
    machine: str = ""
    #: Where Kafka clients connect to, `HOST:PORT`; empty if they cannot.
    kafka: str = ""
    #: The features that its release knows (`mq.meta.features`).
    features: tuple[str, ...] = ()


class Ownership(msgspec.Struct, frozen=True):
    """The host of a role, and the epoch since which it has it; None after the host left."""

    host: str | None
    epoch: int


class HostRegistered(msgspec.Struct, frozen=True, kw_only=True):
    """A service process began to hold a lease."""

    kind: ClassVar[str] = "host_registered"
    host: Host

    @property
    def key(self) -> str:
        return f"host/{self.host.id}"


class HostRenewed(msgspec.Struct, frozen=True, kw_only=True):
    """A host renewed its lease."""

    kind: ClassVar[str] = "host_renewed"
    id: str
    renewal: int
    load: int

    @property
    def key(self) -> str:
        return f"host/{self.id}"


class HostAsked(msgspec.Struct, frozen=True, kw_only=True):
    """Another host hears nothing of a host: it is dead if it does not renew its lease."""

    kind: ClassVar[str] = "host_asked"
    id: str

    @property
    def key(self) -> str:
        return f"host/{self.id}"


class HostLeft(msgspec.Struct, frozen=True, kw_only=True):
    """A host is gone and its roles are free: it stopped, or (`expired`) its lease is over."""

    kind: ClassVar[str] = "host_left"
    id: str
    expired: bool

    @property
    def key(self) -> str:
        return f"host/{self.id}"


class RoleTaken(msgspec.Struct, frozen=True, kw_only=True):
    """A host took a broker or the meta role."""

    kind: ClassVar[str] = "role_taken"
    role: str
    host: str
    epoch: int

    @property
    def key(self) -> str:
        return f"role/{self.role}"


BrokerEvent = HostRegistered | HostRenewed | HostAsked | HostLeft | RoleTaken
#: The stored form of each kind of event.
BROKER_EVENTS: Final[Mapping[str, Form[Any]]] = forms_of(HostRegistered, HostRenewed, HostAsked, HostLeft, RoleTaken)


class BrokersState(msgspec.Struct, frozen=True):
    """The state of all hosts and roles. Immutable: `apply_all` returns the next one."""

    #: The hosts that hold leases, by id; never modified.
    hosts: Mapping[str, Host] = msgspec.field(default_factory=dict)
    #: The owner of each broker and of the meta role; never modified.
    roles: Mapping[str, Ownership] = msgspec.field(default_factory=dict)
    #: Grows with each role that is taken.
    epoch: int = 0
    #: The hosts that others have asked to renew their leases, and that have not done so since.
    asked: frozenset[str] = frozenset()

    def apply_all(self, events: Iterable[BrokerEvent]) -> BrokersState:
        """Return the state after `events`; copies the state once for all of them."""
        hosts, roles, epoch, asked = dict(self.hosts), dict(self.roles), self.epoch, set(self.asked)
        for event in events:
            if isinstance(event, HostRegistered):
                check_event(event.host.id not in hosts, "an event of host", event.host.id)
                hosts[event.host.id] = event.host
            elif isinstance(event, HostRenewed):
                check_event(
                    event.id in hosts and event.renewal == hosts[event.id].renewal + 1, "an event of host", event.id
                )
                hosts[event.id] = replace(hosts[event.id], renewal=event.renewal, load=event.load)
                asked.discard(event.id)
            elif isinstance(event, HostAsked):
                check_event(event.id in hosts, "an event of host", event.id)
                asked.add(event.id)
            elif isinstance(event, HostLeft):
                check_event(event.id in hosts, "an event of host", event.id)
                del hosts[event.id]
                asked.discard(event.id)
                roles |= {role: replace(own, host=None) for role, own in roles.items() if own.host == event.id}
            else:
                check_event(event.host in hosts and event.epoch > epoch, "an event of host", event.host)
                roles[event.role] = Ownership(event.host, event.epoch)
                epoch = event.epoch
        return BrokersState(hosts=hosts, roles=roles, epoch=epoch, asked=frozenset(asked))

    @property
    def brokers(self) -> tuple[str, ...]:
        """Every broker that ever existed: partitions of all of them may exist."""
        return tuple(sorted(role for role in self.roles if role != META_ROLE))

    @property
    def numbered(self) -> tuple[str, ...]:
        """All brokers in the order in which they came: a broker keeps its place for ever."""
        return tuple(role for role in self.roles if role != META_ROLE)

    @property
    def available(self) -> tuple[str, ...]:
        """The brokers that are hosted now: new partitions go to these."""
        return tuple(broker for broker in self.brokers if self.roles[broker].host is not None)

    @property
    def features(self) -> Mapping[str, Sequence[str]]:
        """The features that the release of each live process knows, by its address."""
        return {host.address or host.id: host.features for host in self.hosts.values()}

    def owner(self, role: str) -> Host | None:
        """Return the host of a broker or of the meta role; None when it has none."""
        own = self.roles.get(role)
        return None if own is None or own.host is None else self.hosts[own.host]

    def roles_of(self, host: str) -> dict[str, int]:
        """Return the roles of a host, each with its epoch."""
        return {role: own.epoch for role, own in self.roles.items() if own.host == host}


def _present(state: BrokersState, host: str) -> Host:
    """Return the host's entry; raises `Fenced` if others declared it dead: it must stop and register as a new host."""
    present = state.hosts.get(host)
    if present is None:
        raise Fenced("this process lost its lease; other processes have taken over its roles", code="lease_lost")
    return present


def check_role(state: BrokersState, role: str, host: str, epoch: int) -> None:
    """Raise `Fenced` unless `host` still has `role` since `epoch`.

    Every decision of the meta role calls it: compare-and-set makes the check hold at the moment of the append.
    """
    if state.roles.get(role) != Ownership(host, epoch):
        raise Fenced(f"another process has taken over {role}", code="role_lost", extra={"role": role})


def decide_register(state: BrokersState, host: Host) -> tuple[BrokerEvent, ...]:
    """Return the events with which a host begins: it takes its brokers and the meta role, as far as they are free."""
    if host.id in state.hosts:
        return ()
    registered: BrokerEvent = HostRegistered(host=host)
    after = state.apply_all([registered])
    free = [role for role in (*host.brokers, META_ROLE) if after.owner(role) is None]
    return (registered, *_take(after, host.id, free))


def decide_renew(state: BrokersState, host: str, load: int) -> tuple[BrokerEvent, ...]:
    """Return the event that renews a lease; raises `Fenced` (`lease_lost`) if others declared the host dead."""
    present = _present(state, host)
    return (HostRenewed(id=host, renewal=present.renewal + 1, load=load),)


def decide_ask(state: BrokersState, host: str, silent: Collection[str]) -> tuple[BrokerEvent, ...]:
    """Return the events by which `host` asks others to renew their leases; none for those that are asked already."""
    _present(state, host)
    return tuple(
        HostAsked(id=id) for id in sorted(silent) if id != host and id in state.hosts and id not in state.asked
    )


def decide_leave(state: BrokersState, host: str) -> tuple[BrokerEvent, ...]:
    """Return the event of a host that stops after it has finished everything: no host then waits for its lease."""
    return (HostLeft(id=host, expired=False),) if host in state.hosts else ()


def decide_takeover(
    state: BrokersState, host: str, expired: Mapping[str, int], *, named: Iterable[str] = ()
) -> tuple[BrokerEvent, ...]:
    """Return the events by which `host` declares others dead and takes every free role.

    `expired` are hosts, each with its renewal when it was asked in vain; a host that has renewed since is left out.
    `named` are brokers that routes name, though no host may ever have had them. One host takes all free roles at once:
    if they were shared, some could go to a host that is dying itself.
    """
    _present(state, host)
    dead = [id for id, seen in sorted(expired.items()) if id != host and _is_still(state, id, seen)]
    left: list[BrokerEvent] = [HostLeft(id=id, expired=True) for id in dead]
    after = state.apply_all(left)
    free = [role for role in sorted({*after.roles, *named}) if after.owner(role) is None]
    return (*left, *_take(after, host, free))


def _is_still(state: BrokersState, host: str, renewal: int) -> bool:
    return host in state.hosts and state.hosts[host].renewal == renewal


def decide_give_back(state: BrokersState, host: str, drained: Collection[str]) -> tuple[BrokerEvent, ...]:
    """Return the events by which `host` passes brokers on to the hosts that were started for them.

    `drained` are the brokers for which it accepts no more requests and has finished all of them.
    """
    mine = _present(state, host).brokers
    events: list[BrokerEvent] = []
    for broker in sorted(set(drained) & set(state.roles_of(host)) - {*mine, META_ROLE}):
        heirs = sorted(other.id for other in state.hosts.values() if broker in other.brokers)
        if heirs:
            events.append(RoleTaken(role=broker, host=heirs[0], epoch=state.epoch + len(events) + 1))
    return tuple(events)


def _take(state: BrokersState, host: str, roles: Iterable[str]) -> tuple[BrokerEvent, ...]:
    return tuple(
        RoleTaken(role=role, host=host, epoch=state.epoch + number) for number, role in enumerate(roles, start=1)
    )


class LeaseWatch:
    """When one process first saw that each other host was asked, by its own clock. In memory only."""

    __slots__ = ("_lease_ms", "_seen")

    def __init__(self, lease_ms: int = LEASE_MS_DEFAULT) -> None:
        self._lease_ms = lease_ms
        self._seen: dict[str, tuple[int, int]] = {}

    def see(self, state: BrokersState, now_ms: int) -> None:
        """Note the questions that the log holds now; each counts from when it was first seen."""
        before = self._seen
        self._seen = {
            id: before[id] if id in before and before[id][0] == host.renewal else (host.renewal, now_ms)
            for id, host in state.hosts.items()
            if id in state.asked
        }

    def expired(self, now_ms: int) -> dict[str, int]:
        """Return the hosts whose leases are over, each with its last renewal, for `decide_takeover`."""
        return self.asked_since(now_ms - self._lease_ms)

    def asked_since(self, since_ms: int) -> dict[str, int]:
        """Return the hosts that were asked at `since_ms` or earlier and have not answered, as `expired` does."""
        return {id: renewal for id, (renewal, seen_ms) in self._seen.items() if seen_ms <= since_ms}


class OwnLease:
    """The lease of this process as a host, by its own clock. In memory only."""

    __slots__ = ("_begun_ms", "_lease_ms", "_margin_ms")

    def __init__(self, begun_ms: int, *, lease_ms: int = LEASE_MS_DEFAULT, margin_ms: int = LEASE_MARGIN_MS) -> None:
        """Begin with the registration of the lease; `begun_ms` is a time before the request for it."""
        assert 0 < margin_ms < lease_ms
        self._lease_ms, self._margin_ms = lease_ms, margin_ms
        self._begun_ms = begun_ms

    def read(self, state: BrokersState, host: str, begun_ms: int) -> None:
        """Note what was read; `begun_ms` is a time before the read. A host that was asked has to renew its lease."""
        if host in state.hosts and host not in state.asked:
            self.renewed(begun_ms)

    def renewed(self, begun_ms: int) -> None:
        """Note that a renewal was stored; `begun_ms` is a time before the request for it."""
        self._begun_ms = max(self._begun_ms, begun_ms)

    @property
    def until_ms(self) -> int:
        """When this process must stop serving if it has not read or renewed its lease by then."""
        return self._begun_ms + self._lease_ms - self._margin_ms

    def holds(self, now_ms: int) -> bool:
        return now_ms < self.until_ms

    def is_fresh(self, now_ms: int, within_ms: int) -> bool:
        """Whether it was read or renewed less than `within_ms` ago."""
        return now_ms - self._begun_ms < within_ms
