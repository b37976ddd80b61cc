"""The roles of this process, which are brokers and the meta role: leases, takeover, giving back (SPEC META-1).

    register --roles--> served (`api.host.roles`) --its own process is there--> given back
       ^                   |
       |                   |-- reads the metadata, asked by nobody: its lease goes on; asked: renews it
       |                   '-- others asked in vain, or their locks free: declared dead, their roles taken
       '-- declared dead by others (`lease_lost`): a new life

`mq.meta.brokers` decides; this module writes its events to the metadata log, watches the other processes, and notifies
the other parts. Everything but the blocking calls runs on the event loop.

A call that needs a role checks it twice: it takes the `epoch` first, and awaits `confirm` with it before the answer is
sent. In between the process may have slept for longer than its lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Callable, Collection
from functools import partial
from typing import Final

import msgspec
from msgspec.structs import replace

from deltamq.api.host.hosted_meta import HostedMeta
from deltamq.api.host.pace import LeaseTimes, Pace
from deltamq.api.host.roles import Hooks, Roles
from deltamq.mq.errors import DeltaMQError, Fenced, Unavailable
from deltamq.mq.meta.brokers import (
    META_ROLE,
    BrokersState,
    Host,
    LeaseWatch,
    OwnLease,
    decide_ask,
    decide_give_back,
    decide_leave,
    decide_register,
    decide_renew,
    decide_takeover,
)
from deltamq.mq.meta.features import KNOWN_FEATURES, decide_upgrade
from deltamq.mq.meta.fold import AnyEvent, Meta
from deltamq.mq.meta.hearing import Hearing, neighbours_of
from deltamq.mq.meta.topics import MetaState
from deltamq.mq.names import broker_of
from deltamq.tables.failpoints import failpoint
from deltamq.tables.store.host_lock import HostLocks

log = logging.getLogger("deltamq.api")

#: Seconds between two tries to read the metadata.
_READ_AGAIN_S: Final = 0.5
#: Time limit for leaving the cluster at a stop, in seconds.
_LEAVE_S: Final = 5.0
_NOTHING: Final[frozenset[str]] = frozenset()
#: Least time between two records of a process's load, in milliseconds.
_LOAD_MS: Final = 30_000


class _Life(msgspec.Struct):
    """One registered host; a process that was declared dead begins a new life."""

    host: Host
    watch: LeaseWatch
    lease: OwnLease
    roles: Roles


class Hosting:
    """The roles of this process. Lives on one event loop, from `start` to `stop`."""

    def __init__(
        self,
        meta: HostedMeta,
        locks: HostLocks,
        *,
        address: str,
        brokers: tuple[str, ...],
        times: LeaseTimes,
        now_ms: Callable[[], int],
        load: Callable[[], int],
        kafka: str = "",
    ) -> None:
        """`now_ms` is a monotonic clock; `load` returns the requests per second of this process.

        `kafka` is the address for Kafka's clients, `HOST:PORT`; empty for none.
        """
        self.address = address
        self.kafka = kafka
        self.brokers = brokers
        #: Callbacks of the parts that keep state for a role.
        self.hooks = Hooks()
        #: How often this process was declared dead.
        self.lost_leases = 0
        self._meta = meta
        self._locks = locks
        self._times = times
        #: The clock of the lease.
        self.now_ms = now_ms
        self._load = load
        self._life = self._new_life()
        self._wanted = asyncio.Event()
        #: Whether reading the metadata is no longer enough for the lease to go on.
        self._must_write = False
        #: Roles whose previous owner may be alive.
        self._sleepers: set[str] = set()
        self._hearing = Hearing(silent_ms=times.silent_ms, again_ms=times.lease_ms)
        self._load_ms = now_ms()
        self._departures: dict[str, asyncio.Future[None]] = {}
        self._routed: tuple[MetaState, frozenset[str]] = (MetaState(), frozenset())
        self._ticker: asyncio.Task[None] | None = None
        self._stopping = False
        #: Why the last look failed; None if it did not.
        self._failure: DeltaMQError | None = None
        meta.follow(self._follow)

    # Queries.

    @property
    def id(self) -> str:
        """The id of this life of the process."""
        return self._life.host.id

    @property
    def meta_offset(self) -> int:
        """The offset up to which this process has read the metadata."""
        return self._meta.offset

    @property
    def lease(self) -> OwnLease:
        """The lease of this life."""
        return self._life.lease

    @property
    def lease_ms(self) -> int:
        """The length of leases: each process that serves a role has read the metadata within this time."""
        return self._times.lease_ms

    def holds(self) -> bool:
        """Whether the lease holds, by this process's clock."""
        return self._life.lease.holds(self.now_ms())

    def check_lease(self) -> None:
        """Return if the lease holds; raise `Unavailable` (`lease_lost`), with why it is not renewed, if not."""
        if not self.holds():
            why = self._meta.why if self._failure is None else f": {self._failure.detail}"
            raise Unavailable(f"this process's lease is over, so it serves nothing{why}", code="lease_lost")

    def hosts(self, role: str) -> bool:
        """Whether this process serves the role now."""
        return self._life.roles.serves(role) and self.holds()

    @property
    def alone(self) -> bool:
        """Whether this process serves all brokers, so that no request concerns another process."""
        return self._meta.now.brokers.roles.keys() <= self.taking()

    def taking(self) -> frozenset[str]:
        """Return the roles for which this process takes requests now."""
        return self._life.roles.taking if self.holds() else _NOTHING

    def owner(self, role: str) -> Host | None:
        """Return the host that has the role, as far as this process knows; None if no host has it."""
        return self._meta.now.brokers.owner(role)

    def epoch(self, role: str) -> int:
        """Return the epoch since which this process serves the role; `check` it again before the answer is sent.

        Raises
        ------
        Unavailable
            `lease_lost`: this process's lease is over; `not_owner`: another process has the role; `broker_unavailable`:
            no process serves it at the moment; `metadata_stopped`.
        """
        self._meta.check()
        life = self._life
        if self.hosts(role):
            return life.roles.served[role]
        owner = self.owner(role)
        if not self.holds() and (role in life.roles.served or (owner is not None and owner.id == life.host.id)):
            raise Unavailable("this process lost its lease; ask again", code="lease_lost")
        if owner is None or owner.id == life.host.id:
            raise Unavailable(f"{_shown(role)} is being taken over; ask again", code="broker_unavailable")
        raise Unavailable(
            f"another process serves {_shown(role)}", code="not_owner", extra={"address": owner.address, "role": role}
        )

    def held_since(self, role: str) -> int | None:
        """Return the epoch since which this process has the role, served or not; None if it has not."""
        return self._life.roles.ours.get(role)

    def fence(self, role: str) -> int | None:
        """Return the epoch that fences the previous owner of a role; None if it had no owner."""
        roles = self._life.roles
        return None if role in roles.fresh else roles.ours.get(role)

    def may_wake(self, role: str) -> bool:
        """Whether the role's previous owner may be alive: it did not answer, but its process was not seen dead."""
        return role in self._sleepers

    async def confirm(self, role: str, epoch: int) -> None:
        """Return if the role was served from `epoch` until now, else raise `Unavailable` (`lease_lost`).

        What is only in memory may be answered after this. If the metadata was read so long ago that others may have
        taken the role without waiting for the end of the lease, it is read again; on a machine that is too busy to
        read it in this time, for as long as a lease.
        """
        self._check(role, epoch)
        end_ms = self.now_ms() + self._times.lease_ms
        while not self._life.lease.is_fresh(self.now_ms(), self._times.fresh_ms):
            if self.now_ms() > end_ms:
                raise Unavailable(
                    "the metadata is read too slowly to know who serves this; ask again", code="lease_lost"
                )
            try:
                await self._look()
                await self._renew()
            except Fenced as error:
                raise Unavailable(error.detail, code="lease_lost") from error
            self._check(role, epoch)

    def _check(self, role: str, epoch: int) -> None:
        if self._life.roles.served.get(role) != epoch or not self.holds():
            raise Unavailable(f"{_shown(role)} went to another process meanwhile; ask again", code="lease_lost")

    def departure(self, host: str) -> asyncio.Future[None]:
        """Return a future that is done when a host has left or was declared dead; it must not be cancelled."""
        gone = self._departures.get(host)
        if gone is None:
            gone = self._departures[host] = asyncio.get_running_loop().create_future()
            if host not in self._meta.now.brokers.hosts:
                gone.set_result(None)
        return gone

    def suspect(self) -> None:
        """Look at the metadata at once, since another process could not be reached or has taken a role."""
        self._wanted.set()

    def doubt_writes(self) -> None:
        """Renew the lease by a write, since the store did not take another: one that may only read serves nothing."""
        if not self._must_write:
            self._must_write = True
            self._wanted.set()

    def neighbours(self) -> list[Host]:
        """Return the other processes to listen to now."""
        hosts, own = self._meta.now.brokers.hosts, self.id
        # What comes before this life at its own address has ended; it would hear itself there.
        known = list(hosts)
        before = known[: known.index(own)] if own in hosts else []
        earlier = [id for id in before if hosts[id].address == self.address]
        ids = neighbours_of(own, hosts.keys() - set(earlier))
        self._hearing.listen(ids, earlier, self.now_ms())
        return [hosts[id] for id in ids if hosts[id].address != self.address]

    def note_answer(self, host: str, answers: bool | None) -> None:
        """Note whether a neighbour answers; False: it refuses connections, None: it is not known."""
        if answers:
            if self._hearing.heard(host, self.now_ms()):
                log.info("event=host_reached host=%s", host)
        else:
            self._hearing.missed(host, refuses=answers is False)
            if self._hearing.doubted(self.now_ms()):
                self._wanted.set()

    # Life.

    def _new_life(self) -> _Life:
        times = self._times
        host = Host(
            id=uuid.uuid4().hex,
            address=self.address,
            brokers=self.brokers,
            renewal=0,
            load=0,
            machine=self._locks.machine,
            kafka=self.kafka,
            features=tuple(KNOWN_FEATURES),
        )
        lease = OwnLease(self.now_ms(), lease_ms=times.lease_ms, margin_ms=times.margin_ms)
        return _Life(host, LeaseWatch(times.lease_ms), lease, Roles(self.hooks))

    async def start(self) -> None:
        """Register, take over the roles of dead processes, and return when all roles of this process are served.

        Raises
        ------
        DeltaMQError
            The metadata log cannot be written, or a role cannot begin.
        """
        await self._register()
        await self._take_over()
        await self._life.roles.all_served()
        self._ticker = asyncio.create_task(self._repeat())

    async def _register(self) -> None:
        host = self._life.host
        if not await self._meta.run(partial(self._locks.hold, host.id)):
            host = self._life.host = replace(host, machine="")
        self._life.lease.renewed(self.now_ms())
        await self._meta.submit_any(partial(_first_events, host))
        log.info("event=host_registered host=%s address=%s", host.id, host.address)

    async def stop(self) -> None:
        """Leave the cluster, so that others need not wait for the lease to end. Call it when all state is stored."""
        self._stopping = True
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.gather(self._ticker, return_exceptions=True)
        await self._life.roles.end(is_over=False)
        host = self.id
        try:
            async with asyncio.timeout(_LEAVE_S):
                await self._meta.submit_any(lambda meta: decide_leave(meta.brokers, host))
                await self._meta.run(partial(self._locks.forget, host))
        except (DeltaMQError, TimeoutError) as error:
            log.warning("event=leave_failed host=%s kind=%s", host, type(error).__name__)
        self._locks.close()

    async def _repeat(self) -> None:
        pace = Pace(self._times)
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pace.wait_ms / 1000):
                    await self._wanted.wait()
            self._wanted.clear()
            before = self.meta_offset
            try:
                await self._tick()
                if self._failure is not None:
                    log.warning("event=lease_tick_works_again")
                self._failure = None
                is_quiet = self.meta_offset == before and self.holds()
                pace.looked(is_quiet=is_quiet, is_asked=bool(self._meta.now.brokers.asked))
            except DeltaMQError as error:
                # the next one comes in a fraction of a second, and a store may be gone for an hour
                if self._failure is None or self._failure.code != error.code:
                    log.warning("event=lease_tick_failed code=%s detail=%r", error.code, error.detail)
                self._failure = error
            except Exception as error:
                log.error("event=lease_tick_failed kind=%s", type(error).__name__, exc_info=error)

    async def _look(self) -> None:
        """Read the metadata: it renews the lease, unless another process has asked, or writes are in doubt."""
        life, begun_ms = self._life, self.now_ms()
        await self._meta.refresh()
        if not self._must_write:
            life.lease.read(self._meta.now.brokers, life.host.id, begun_ms)

    async def _tick(self) -> None:
        await self._look()
        try:
            await self._renew()
            await self._take_over()
            await self._ask()
        except Fenced:
            await self._begin_again()
        self._give_back()

    async def _renew(self) -> None:
        """Renew the lease if another process asks for it, or the load has changed: an idle process writes nothing."""
        life, state = self._life, self._meta.now.brokers
        begun_ms = self.now_ms()
        if life.host.id not in state.hosts:
            raise Fenced("this process was declared dead", code="lease_lost")
        is_asked = life.host.id in state.asked or self._must_write
        if not is_asked and begun_ms - self._load_ms < _LOAD_MS:
            return
        self._load_ms, load = begun_ms, self._load()
        if is_asked or load != state.hosts[life.host.id].load:
            await self._meta.submit_any(lambda meta: decide_renew(meta.brokers, life.host.id, load))
            life.lease.renewed(begun_ms)
            self._must_write = False
        if is_asked:
            log.info("event=lease_renewed host=%s", life.host.id)

    async def _ask(self) -> None:
        """Ask the processes of which nothing is heard to renew their leases."""
        life, now_ms = self._life, self.now_ms()
        silent = self._hearing.doubted(now_ms)
        if silent:
            self._hearing.asked(silent, now_ms)
            await self._meta.submit_any(lambda meta: decide_ask(meta.brokers, life.host.id, silent))
            log.info("event=hosts_asked hosts=%s", ",".join(sorted(silent)))

    async def _take_over(self) -> None:
        """Record the deaths of dead processes, and take roles without an owner."""
        life, state = self._life, self._meta.now.brokers
        now_ms = self.now_ms()
        life.watch.see(state, now_ms)
        over = life.watch.asked_since(now_ms - self._times.ended_ms)
        expired = life.watch.expired(now_ms)
        over = {id: renewal for id, renewal in over.items() if id in expired or self._hearing.has_ended(id)}
        over.pop(life.host.id, None)
        if len(state.hosts) > 1:
            dead = await self._meta.run(partial(self._dead, tuple(state.hosts.values())))
            silent = over.keys() - dead
            over |= dead
            self._sleepers |= {role for role, own in state.roles.items() if own.host in silent}
        if not over and not self._is_any_free(self._meta.now):
            return

        def decide(meta: Meta) -> tuple[AnyEvent, ...]:
            return decide_takeover(meta.brokers, life.host.id, over, named=_routed(meta))

        await self._meta.submit_any(decide)
        failpoint("lease.after_acquire")
        for host in over:
            if host not in self._meta.now.brokers.hosts:
                log.info("event=host_declared_dead host=%s", host)
                await self._meta.run(partial(self._locks.forget, host))

    def _dead(self, hosts: Collection[Host]) -> dict[str, int]:
        """Return the hosts of this machine whose processes have ended, with their last renewals."""
        return {host.id: host.renewal for host in hosts if self._locks.is_dead(host.id, host.machine)}

    def _is_any_free(self, meta: Meta) -> bool:
        if meta.topics is not self._routed[0]:
            self._routed = (meta.topics, frozenset(_routed(meta)))
        roles = meta.brokers.roles
        return any(own.host is None for own in roles.values()) or not self._routed[1] <= roles.keys()

    async def _begin_again(self) -> None:
        """End this life, since others have taken over its roles, and register as a new host."""
        before = self._life
        self.lost_leases += 1
        log.warning("event=lease_lost host=%s", before.host.id)
        self._life = self._new_life()
        await before.roles.end(is_over=True)
        await self._life.roles.all_served()
        await self._meta.run(partial(self._locks.forget, before.host.id))
        await self._register()

    # Roles.

    def _follow(self, before: Meta, after: Meta) -> None:
        """Follow the metadata: begin roles that became ours, end roles that are no longer ours."""
        hosts = after.brokers.hosts
        for host in [host for host in self._departures if host not in hosts]:
            future = self._departures.pop(host)
            if not future.done():
                future.set_result(None)
        life = self._life
        if self._stopping:
            return
        if life.host.id in after.brokers.asked:
            self._wanted.set()
        if life.host.id in hosts:
            life.roles.follow(after.brokers.roles_of(life.host.id), before.brokers.roles.keys())
        elif life.roles.ours:
            # Declared dead: this process serves nothing until it has registered again.
            life.roles.pause()
            self._wanted.set()

    # Giving back.

    def _give_back(self) -> None:
        """Begin to give brokers back to the processes that were started for them."""
        life, state = self._life, self._meta.now.brokers
        if not self.holds():
            return
        for role in life.roles.served.keys() - {META_ROLE, *self.brokers}:
            if any(role in host.brokers for host in state.hosts.values()):
                life.roles.pass_on(role, self._give)

    async def _give(self, role: str) -> None:
        """Give a broker to a process that was started for it; return when the metadata says which process has it."""
        host = self.id

        def decide(meta: Meta) -> tuple[AnyEvent, ...]:
            return decide_give_back(meta.brokers, host, (role,))

        failpoint("lease.before_release")
        try:
            await self._meta.submit_any(decide)
            log.info("event=role_given_back role=%s", role)
        except DeltaMQError as error:
            log.warning("event=role_not_given_back role=%s code=%s", role, error.code)
            # The broker may have moved all the same: do not serve it before the metadata is read.
            while not await self._has_read():
                await asyncio.sleep(_READ_AGAIN_S)

    async def _has_read(self) -> bool:
        try:
            await self._meta.refresh()
        except DeltaMQError:
            return False
        return True


def _first_events(host: Host, meta: Meta) -> tuple[AnyEvent, ...]:
    """Return the events with which a process begins; the first one of a warehouse switches all features on.

    No older release ever ran there, so none has to be waited for, and none that is started later misreads anything.
    """
    is_first = meta.brokers == BrokersState()
    features = decide_upgrade(meta.features, {}) if is_first else ()
    return (*features, *decide_register(meta.brokers, host))


def _routed(meta: Meta) -> set[str]:
    return {broker_of(name) for topic in meta.topics.topics.values() for name in topic.route.partitions}


def _shown(role: str) -> str:
    return "the meta role" if role == META_ROLE else f"broker {role}"
