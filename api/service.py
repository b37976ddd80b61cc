"""The composition root: one `Service` holds all parts of a service process.

event loop        requests, queues, waiting readers, counters
commit threads    one commit each at a time; fsync and encoding run without the interpreter's lock
work threads      decoding large bodies, reading history, opening logs, metadata
upkeep thread     roll-ups, checkpoints, clean-up
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar

from api.host import Fencing, Groups, HostedMeta, Hosting, LeaseTimes, Owners, Peers, Sealer, Topics
from api.log import Gauge, Metrics, Partition, PartitionGauges, Partitions, Workers
from api.order import Locks, OnlineClients
from api.ports import REAL, Ports
from api.queue import (
    Delays,
    HandleCalls,
    LanePops,
    Lanes,
    MovedProgress,
    Popper,
    SeenClients,
    Waiting,
    begin,
    settle_overdue,
)
from api.wire import Admission
from mq.errors import DeltaMQError
from mq.meta import META_ROLE, InvisibleBounds
from mq.names import broker_of
from mq.queue import HandleKeys, LaneKey
from tables.clock import SYSTEM_CLOCK
from tables.config import Config
from tables.config_sections import ServiceSettings
from tables.failpoints import failpoint
from tables.log import Warehouse
from tables.queue import DELAY, DELAY_MARKS, LOST, OFFSETS, MetaLog, ProgressFollower, recover, revive_refs, system_ref
from tables.store import HostLocks, handle_keys

__all__ = ["Service"]

log = logging.getLogger("deltamq.api")

T = TypeVar("T")
#: A broker's logs that its owner fences beside its revive logs.
_OWN_LOGS: Final = (OFFSETS, LOST, DELAY, DELAY_MARKS)


class Service:
    """The service of one process, made by `start` and ended by `stop`; lives on one event loop."""

    def __init__(
        self,
        config: Config,
        warehouse: Warehouse,
        meta: MetaLog,
        keys: HandleKeys,
        address: str,
        ports: Ports,
    ) -> None:
        self.config = config
        self.settings = config.service
        self.flush_default = config.log.flush
        self.warehouse = warehouse
        self.loop = asyncio.get_running_loop()
        self.metrics = Metrics(series_max=ports.series_max)
        self.admission, self.answers, self.pops = _admissions(self.settings)
        self.invisible = InvisibleBounds(config.queue.invisible_ms_min, config.queue.invisible_ms_max)
        self.stopping = False
        self._answered = (0, SYSTEM_CLOCK.boot_ms())
        self._watcher: asyncio.Task[None] | None = None
        self._commits = Workers(self.settings.commit_threads, name="mq-commit")
        self._upkeep = Workers(1, name="mq-upkeep")
        self._threads = ThreadPoolExecutor(self.settings.work_threads, thread_name_prefix="mq-work")
        self.partitions = Partitions(
            warehouse,
            self.loop,
            commits=self._commits,
            upkeep=self._upkeep,
            threads=self._threads,
            metrics=self.metrics,
        )
        self.meta = HostedMeta(meta, self.partitions)
        self.hosting = self._hosting(address, ports)
        self.fencing = self.partitions.fencing = Fencing(self.meta, self.hosting.held_since)
        self.peers = Peers(self.hosting)
        self.topics = Topics(
            self.meta,
            self.partitions,
            brokers=self.settings.brokers,
            auto_create=self.settings.auto_create_topics,
            now_ms=self.now_ms,
        )
        self.sealer = Sealer(self.meta, self.topics, self.hosting.hosts)
        self.lanes = Lanes(
            self.partitions, meta, config.queue, config.warehouse.cluster, keys=keys, clock=warehouse.clock
        )
        self.moved = MovedProgress(
            self.meta,
            self.lanes,
            self.hosting.hosts,
            partial(ProgressFollower, warehouse, config.warehouse.cluster),
            refresh_s=self.settings.refresh_ms / 1000,
        )
        self.hosting.hooks.taken.append(self._recover)
        self.hosting.hooks.drained.append(self.lanes.drain)
        self.hosting.hooks.lost.append(self.lanes.drop)
        self.online = OnlineClients(
            self.meta,
            self.hosting,
            length_ms=self.settings.authorization_ms,
            clients_max=ports.clients_max,
            clock=ports.lease_clock,
        )
        self.seen = SeenClients(self.now_ms, keep_ms=self.settings.authorization_ms)
        self.locks = Locks(self.meta, self.hosting, self.lanes, self.partitions, clock=ports.lease_clock)
        pops = LanePops(
            self.lanes,
            partial(self.moved.blocked, pop=True),
            partial(begin, self.meta),
            busy_ms=ports.lane_busy_ms,
        )
        self.popper = Popper(
            self.lanes,
            pops,
            self.hosting,
            refresh_s=self.settings.refresh_ms / 1000,
            bytes_max=ports.pop_bytes_max,
        )
        self.handles = HandleCalls(self.lanes, self.hosting)
        self.owners = Owners(self.hosting, self.peers, keys)
        self.delays = Delays(self.partitions, config.warehouse.cluster, _brokers(config, meta))
        self.waiting = Waiting(self.partitions, self.delays, config.warehouse.cluster)
        self.groups = Groups(
            self.meta,
            self.partitions,
            forget=self._void,
            auto_create=self.settings.auto_create_groups,
            now_ms=self.now_ms,
        )
        self._observe()

    @classmethod
    async def start(cls, config: Config, ports: Ports = REAL, *, address: str = "") -> Service:
        """Open the warehouse and the metadata log, take the brokers without an owner, and be ready to serve them.

        `address` is the URL under which other processes reach this one.
        """

        def open_all() -> tuple[Warehouse, MetaLog, HandleKeys]:
            uri = config.warehouse.uri
            warehouse = Warehouse.open(uri, settings=config.log, clock=ports.clock, store=ports.store)
            return warehouse, MetaLog(warehouse), handle_keys(warehouse.store, config.queue.handle_secret.reveal())

        service = cls(config, *await asyncio.to_thread(open_all), config.service.address or address, ports)
        try:
            await service.hosting.start()
        except BaseException:
            await service.stop()
            raise
        service._watcher = service.loop.create_task(service._watch())
        service.online.start()
        return service

    def _hosting(self, address: str, ports: Ports) -> Hosting:
        settings = self.settings
        times = LeaseTimes(
            lease_ms=settings.lease_ms,
            renew_ms=settings.lease_renew_ms,
            margin_ms=settings.lease_margin_ms,
            look_ms=settings.refresh_ms,
        )
        return Hosting(
            self.meta,
            HostLocks(self.warehouse.folder),
            address=address,
            brokers=settings.brokers,
            times=times,
            now_ms=ports.lease_clock.boot_ms,
            load=self._load,
        )

    def _load(self) -> int:
        """Return the requests answered per second since the last call."""
        answered, now_ms = sum(self.metrics.requests.values()), SYSTEM_CLOCK.boot_ms()
        before, at_ms = self._answered
        self._answered = (answered, now_ms)
        return (answered - before) * 1_000 // max(1, now_ms - at_ms)

    async def _recover(self, roles: Mapping[str, int]) -> None:
        """Fence these brokers' logs against earlier owners, then read their lanes from the tables (SPEC META-3)."""
        brokers = sorted(roles.keys() - {META_ROLE})
        if not brokers:
            return
        cluster = self.config.warehouse.cluster
        for broker in brokers:
            await self._fence(broker)
        failpoint("lease.after_fence")
        recovered = await self.run(partial(recover, self.warehouse, cluster, brokers))
        for broker in brokers:
            self.lanes.adopt(broker, roles[broker], recovered.of(broker))

    async def _fence(self, broker: str) -> None:
        """Keep the broker's previous owner from writing to the broker's logs."""
        epoch, cluster = self.hosting.fence(broker), self.config.warehouse.cluster
        if epoch is None:
            return
        revives = [self.partitions.of(ref) for ref in revive_refs(cluster, broker)]
        others = [self.partitions.of(system_ref(kind, cluster, broker)) for kind in _OWN_LOGS]
        found = await asyncio.gather(*(one.look() for one in [*revives, *others]))
        # A revive log that does not exist yet is made here: a previous owner that wakes up must find the fence in it.
        makes = revives if self.hosting.may_wake(broker) else []
        there = [one for one, log in zip([*revives, *others], found, strict=True) if log is not None or one in makes]
        await asyncio.gather(*(one.fenced(epoch) for one in there))

    async def run(self, work: Callable[[], T]) -> T:
        """Run blocking work on a work thread."""
        return await self.loop.run_in_executor(self._threads, work)

    def now_ms(self) -> int:
        """Return the time for messages and records, in milliseconds since 1970."""
        return self.warehouse.clock.wall_us() // 1000

    async def delete_topic(self, name: str) -> None:
        """Delete a topic, and the groups' retry partitions for it."""
        await self.groups.drop_retries(await self.topics.delete(name))

    def begin_stop(self) -> None:
        """Begin to stop: long polls and event streams end at once, other requests under way are still answered."""
        self.stopping = self.popper.stopping = self.partitions.stopping = True
        self.online.begin_stop()
        self.locks.begin_stop()
        for partition in self.partitions.awaited:
            partition.wake()

    def _void(self, lanes: Iterable[LaneKey]) -> None:
        """Forget what memory knows of these lanes: their epoch is over."""
        ended = list(lanes)
        self.lanes.forget(ended)
        self.locks.void(ended)

    async def stop(self) -> None:
        """Finish every queued commit and the upkeep step under way, make all durable, and close the warehouse."""
        self.begin_stop()
        if self._watcher is not None:
            self._watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watcher
        await self.online.stop()
        await self.sealer.stop()
        await self.lanes.stop()
        await self.hosting.stop()
        await self.peers.close()
        self.meta.close()
        await asyncio.to_thread(self._commits.stop)
        await asyncio.to_thread(self._upkeep.stop)
        self._threads.shutdown()
        await asyncio.to_thread(self.warehouse.close)

    # Other processes' commits.

    async def _watch(self) -> None:
        """Look for commits of other processes: often where a reader waits, now and then in other partitions in use."""
        every_s = self.settings.refresh_ms / 1000
        await self._guarded(self.topics.sweep, None)
        await self._guarded(self.groups.sweep, None)
        while True:
            await asyncio.sleep(every_s)
            await self._guarded(partial(settle_overdue, self.lanes), None)
            for partition in list(self.partitions.awaited):
                if not partition.has_waiters:
                    self.partitions.awaited.discard(partition)
                elif self.loop.time() - partition.refreshed_at >= every_s:
                    await self._guarded(partition.refresh, partition)
            for partition in self.partitions.tending.take():
                await self._guarded(partition.tend, partition)

    async def _guarded(self, refresh: Callable[[], Awaitable[None]], partition: Partition | None) -> None:
        """Run one refresh; a failure is logged, wakes the partition's readers, and does not end the watch."""
        try:
            await refresh()
        except DeltaMQError as error:
            log.warning("event=refresh_failed partition=%s code=%s", partition.name if partition else "-", error.code)
            if partition is not None:
                partition.wake()

    # Metrics.

    def _observe(self) -> None:
        self.metrics.gauges = [
            Gauge("deltamq_queue_requests", "Produce requests under way.", lambda: self.admission.requests),
            Gauge("deltamq_queue_bytes", "Bytes of produce requests under way.", lambda: self.admission.bytes),
            Gauge("deltamq_answer_bytes", "Bytes of rows in fetch answers under way.", lambda: self.answers.bytes),
            Gauge("deltamq_topics", "Topics.", lambda: len(self.topics.state.topics)),
            Gauge("deltamq_open_partitions", "Partitions open in this process.", lambda: len(self.warehouse.open_logs)),
            Gauge("deltamq_in_flight_messages", "Messages popped and not done.", self.lanes.in_flight_everywhere),
            Gauge("deltamq_hosted_brokers", "Brokers served here.", lambda: len(self.hosting.taking() - {META_ROLE})),
            Gauge("deltamq_online_clients", "Exclusive clients.", lambda: len(self.meta.now.online.members())),
            Gauge("deltamq_pull_locks", "Pull locks that clients hold in this process.", lambda: self.locks.held),
            Gauge("deltamq_waiting_pops", "Pops that wait for messages.", lambda: self.lanes.waiting),
            Gauge("deltamq_memory_checkpoints", "Checkpoints not stored.", lambda: self.lanes.checkpoints_in_memory),
        ]
        self.metrics.counters = [
            Gauge("deltamq_stored_checkpoints", "Checkpoints stored.", lambda: self.lanes.match.stored),
            Gauge("deltamq_forwarded_requests", "Requests sent to peers.", lambda: self.peers.asked),
            Gauge("deltamq_lost_leases", "Times this process was declared dead.", lambda: self.hosting.lost_leases),
            Gauge("deltamq_heartbeats", "Heartbeats answered here.", lambda: self.online.heartbeats),
            Gauge("deltamq_lapsed_clients", "Clients whose authorization ended.", lambda: self.online.lapsed),
            Gauge("deltamq_revive_records", "Records appended to revive logs.", lambda: self.lanes.logs.revive.records),
        ]

    def partition_gauges(self, topics: Collection[str] | None = None) -> Iterator[PartitionGauges]:
        """Yield the gauges of the open partitions of these topics, or of all, as this process knows them."""
        for partition in self.partitions:
            opened = partition.log
            if opened is not None and (topics is None or partition.topic in topics):
                stats = opened.stats()
                yield PartitionGauges(
                    topic=partition.topic,
                    partition=partition.name,
                    end_offset=stats.max_offset,
                    min_offset=stats.min_offset,
                    version=stats.version,
                    files=stats.files,
                    bytes=stats.bytes,
                )


def _brokers(config: Config, meta: MetaLog) -> list[str]:
    """Return the brokers of the settings, and those that topics got under earlier settings."""
    routed = {broker_of(name) for topic in meta.state.topics.values() for name in topic.route.partitions}
    return sorted(routed.union(config.service.brokers))


def _admissions(settings: ServiceSettings) -> tuple[Admission, Admission, Admission]:
    """Return the admissions of produce requests, of fetches (which count the bytes of answers), and of pops."""
    return (
        Admission("produce", bytes_max=settings.queue_bytes_max, requests_max=settings.queue_requests_max),
        Admission("fetch", bytes_max=settings.answer_bytes_max, requests_max=settings.connections_max),
        Admission("pop", bytes_max=settings.queue_bytes_max, requests_max=settings.connections_max),
    )
