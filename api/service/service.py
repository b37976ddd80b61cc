"""The parts of a service process, made in the order of their needs.

event loop        requests, queues, waiting readers, counters, commits
native threads    the file calls of commits to a local disk, without the interpreter
work threads      decoding large bodies, reading history, opening logs, metadata
upkeep thread     roll-ups, checkpoints, clean-up
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

import pyarrow as pa

from deltamq.api.audit.audit import Audit
from deltamq.api.auth.forwarded import Prover, derived
from deltamq.api.auth.gate import guarded_warehouse, is_guarded
from deltamq.api.auth.quotas import Quotas
from deltamq.api.host.clusters import ClusterProofs, Clusters
from deltamq.api.host.fences import Fencing, Sealer
from deltamq.api.host.global_copies import GlobalCopies
from deltamq.api.host.global_topics import GlobalTopics
from deltamq.api.host.hosted_group import Groups
from deltamq.api.host.hosted_meta import HostedMeta
from deltamq.api.host.hosted_topic import Topics
from deltamq.api.host.hosting import Hosting
from deltamq.api.host.neighbours import Neighbours
from deltamq.api.host.owners import Owners
from deltamq.api.host.pace import LeaseTimes
from deltamq.api.host.peers import Peers
from deltamq.api.host.static_topics import StaticTopics
from deltamq.api.host.tables import Tables
from deltamq.api.host.typed_topics import TopicCodecs
from deltamq.api.log.lane import Threads
from deltamq.api.log.metrics import Metrics
from deltamq.api.log.partition import Partitions
from deltamq.api.order.online_clients import OnlineClients
from deltamq.api.order.pull_locks import Locks
from deltamq.api.ports import REAL, Ports
from deltamq.api.progress.global_times import GlobalTimes
from deltamq.api.progress.group_progress import GroupCommits, LaneCommits, QueueProgress
from deltamq.api.progress.times import Times
from deltamq.api.queue.delays import Delays, Waiting
from deltamq.api.queue.group_topic import begin
from deltamq.api.queue.handle_calls import HandleCalls
from deltamq.api.queue.lane_pops import LanePops
from deltamq.api.queue.lanes import Lanes
from deltamq.api.queue.moved_progress import MovedProgress
from deltamq.api.queue.popper import Popper
from deltamq.api.queue.seen_clients import SeenClients
from deltamq.api.queue.waiting_list import WaitingList
from deltamq.api.reading.latest_values import LatestValues
from deltamq.api.reading.readers import PartitionReader, QueueReader
from deltamq.api.reading.values import Values
from deltamq.api.schemas.outside import OutsideRegistry
from deltamq.api.schemas.registry import Registry, subjects_without_ids
from deltamq.api.sending.letters import DeadLetterLogs, Marks
from deltamq.api.sending.quarantine import Quarantines
from deltamq.api.sending.replay import Replayer
from deltamq.api.service.access import ServiceAccess
from deltamq.api.service.background import AccessWatch, Takeover, Watch
from deltamq.api.service.gauges import Gauges
from deltamq.api.service.health import JobWatch, RequestRate, Stops, counters_of, gauges_of, gauges_of_stops
from deltamq.api.service.looks import Looks
from deltamq.api.service.samples import Samples
from deltamq.api.service.scrape import Scrape
from deltamq.api.statistics import GroupStatistics
from deltamq.api.tls import peer_context
from deltamq.api.wire.request import Admission
from deltamq.mq.limits import ACT_ID_BYTES, SECRET_BYTES
from deltamq.mq.meta.global_topics import require_world
from deltamq.mq.meta.group_settings import InvisibleBounds
from deltamq.mq.names import broker_of
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.queue.handle import HandleKeys
from deltamq.tables.config import Config
from deltamq.tables.config_sections import ServiceSettings
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.queue.metadata import MetaLog
from deltamq.tables.queue.recovery import ProgressFollower
from deltamq.tables.state.latest import LatestTables
from deltamq.tables.store.handle_secret import handle_keys
from deltamq.tables.store.host_lock import HostLocks

log = logging.getLogger("deltamq.api")


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
        kafka: str = "",
    ) -> None:
        self.config = config
        self.settings = config.service
        self.warehouse = warehouse
        self.loop = asyncio.get_running_loop()
        self._cluster = config.warehouse.cluster
        self._refresh_s = config.service.refresh_ms / 1000
        self.metrics = Metrics(series_max=ports.series_max)
        self.admission, self.answers, self.pops = _admissions(self.settings)
        self.invisible = InvisibleBounds(config.queue.invisible_ms_min, config.queue.invisible_ms_max)
        # Each step takes the parts of the steps before.
        self._make_storage(meta)
        self._make_access(meta, ports)
        self._make_hosting(keys, ports, address, kafka)
        self._make_topics()
        self._make_clusters()
        self._make_lanes(meta, keys)
        self._make_pops(meta, ports)
        self._make_groups(ports)
        self.job_watch = JobWatch(
            warehouse.store,
            run=self.partitions.run,
            now_ms=self.now_ms,
            is_used=lambda: bool(self.meta.now.groups.groups),
            is_far=self.partitions.is_far,
        )
        self.stops = Stops(warehouse, lambda: meta.stopped, self.topics.shown_queue_of)
        #: What groups have before them, for metrics and history.
        self.gauges = Gauges(
            self.meta,
            self.lanes,
            self.partitions,
            self.seen,
            queues_of=self.topics.queues_of,
            serving=self.hosting.taking,
            now_ms=self.now_ms,
        )
        self.looks = Looks(self.gauges, self.lanes, self.partitions, self.dead_letters, self.waiting_list)
        #: The last day of them.
        self.samples = Samples(
            self.gauges,
            self.metrics,
            self.statistics.totals,
            self.partitions,
            process=lambda: self.hosting.id,
            now_ms=self.now_ms,
        )
        #: What `/metrics` shows.
        self.scrape = Scrape(
            self.gauges,
            self.metrics,
            self.partitions,
            top=self.settings.metrics_top,
            warehouse=warehouse,
            certificate=self.settings.tls_cert,
        )
        self.metrics.gauges = [
            *gauges_of(
                self.admission, self.answers, warehouse, self.meta, self.hosting, self.lanes, self.locks, self.job_watch
            ),
            *gauges_of_stops(self.stops, lambda: self.meta.unread_s),
        ]
        self.metrics.counters = counters_of(warehouse, self.lanes, self.peers, self.hosting, self.online)

    def _make_storage(self, meta: MetaLog) -> None:
        settings, warehouse = self.settings, self.warehouse
        self._threads = Threads(
            self.loop,
            commits=settings.commit_threads,
            work=settings.work_threads,
            calls_max=settings.store_calls_max,
        )
        self.partitions = Partitions(warehouse, self.loop, self._threads, self.metrics)
        self.meta = HostedMeta(meta, self.partitions)

    def _make_access(self, meta: MetaLog, ports: Ports) -> None:
        boot_ms = self.warehouse.clock.boot_ms
        self._access = ServiceAccess(
            self.config,
            lambda: self.meta.now.auth,
            now_ms=self.now_ms,
            boot_ms=boot_ms,
            key_times=ports.key_times,
            unread=self.meta.unread,
        )
        #: The check of all requests; None without authentication.
        self.gate = self._access.gate
        # By the boot clock: a wall clock that is set back must not stop a caller.
        self.quotas = Quotas(lambda: self.meta.now.auth.quotas, boot_ms, body_bytes_max=self.settings.request_bytes_max)
        if self.gate is not None:
            self.meta.follow(self.gate.follow)
        #: Records administrative acts and refusals; None if the settings switch it off.
        self.audit = self._audit(meta) if self.settings.is_audited else None

    def _make_hosting(self, keys: HandleKeys, ports: Ports, address: str, kafka: str) -> None:
        settings, is_far = self.settings, self.partitions.is_far
        self.prover = Prover(_cluster_secret(settings), self.now_ms)
        self.hosting = Hosting(
            self.meta,
            HostLocks(self.warehouse.folder),
            address=address,
            brokers=settings.brokers,
            times=LeaseTimes.of(settings, is_far=is_far),
            now_ms=ports.lease_clock.boot_ms,
            load=RequestRate(self.metrics),
            kafka=kafka,
        )
        self.partitions.doubt_writes = self.hosting.doubt_writes
        self.fencing = self.partitions.fencing = Fencing(self.meta, self.hosting.held_since, self.hosting.suspect)
        prover = None if self.gate is None else self.prover
        self.peers = Peers(self.hosting, peer_context(settings), prover)
        self._neighbours = Neighbours(self.meta, self.hosting, self.peers, tells=is_far)
        self.owners = Owners(self.hosting, self.peers, keys)

    def _make_topics(self) -> None:
        settings = self.settings
        self._tables = Tables(self.partitions)
        self.topics = Topics(
            self.meta,
            self.partitions,
            self._tables,
            cluster=self._cluster,
            brokers=settings.brokers,
            auto_create=settings.auto_create_topics,
            now_ms=self.now_ms,
        )
        self.codecs = TopicCodecs(self.meta, lambda: self.hosting.alone)
        self.registry = Registry(self.meta, self.owners)
        if settings.schemas_url:
            self.registry.outside = OutsideRegistry(
                settings.schemas_url,
                settings.schemas_user.reveal(),
                settings.schemas_ca,
                state=lambda: self.registry.state,
                follow=self.registry.follow,
                without_ids=lambda: subjects_without_ids(self.meta.now),
            )
            self.codecs.want = self.registry.outside.want
        self.partitions.codecs = self.codecs.of_partition
        self.sealer = Sealer(self.meta, self.topics, self.hosting.hosts, self.now_ms)
        self.static_topics = StaticTopics(self.meta, self.topics, self.sealer, self.now_ms)
        self.reader = PartitionReader(self.partitions, self.hosting, refresh_s=self._refresh_s)
        self.values = Values(self.meta, self.partitions, self.hosting)
        self.queue_reader = QueueReader(self.reader, self.topics, self.meta, self.partitions)
        latest = LatestTables(self.warehouse.store)
        self.latest_values = LatestValues(latest, self.topics, self.partitions, self.reader, self.codecs)

    def _make_clusters(self) -> None:
        settings, cluster = self.settings, self._cluster
        others = [(name, url) for name, _, url in (entry.partition("=") for entry in settings.clusters)]
        shared = settings.clusters_shared_secret.reveal().encode()
        #: The proofs of calls between clusters; None if they share no secret.
        self.cluster_proofs = ClusterProofs(cluster, shared, self.now_ms) if shared else None
        is_guarded = settings.auth and self.cluster_proofs is None
        clusters = Clusters(cluster, others, self.peers, self.cluster_proofs, is_guarded=is_guarded)
        self.global_copies = GlobalCopies(
            self.meta,
            self.topics,
            self.sealer,
            clusters,
            refresh_s=settings.clusters_refresh_ms / 1000,
            now_ms=self.now_ms,
        )
        self.global_topics = GlobalTopics(self.meta, self.topics, clusters, self.global_copies, now_ms=self.now_ms)

    def _make_lanes(self, meta: MetaLog, keys: HandleKeys) -> None:
        cluster = self._cluster
        self.statistics = GroupStatistics(
            self.partitions, cluster, self.metrics, process=lambda: self.hosting.id, now_ms=self.now_ms
        )
        self.lanes = Lanes(self.partitions, meta, self.config.queue, cluster, keys=keys, clock=self.warehouse.clock)
        self.hosting.hooks.taken.append(Takeover(self.partitions, self.hosting, self.lanes, cluster).recover)
        self.hosting.hooks.served.append(self.lanes.wake_at)
        self.hosting.hooks.drained.append(self.lanes.drain)
        self.hosting.hooks.drained.append(lambda broker: self.statistics.flush(whole=True, broker=broker))
        self.hosting.hooks.lost.append(self.lanes.drop)
        follow = partial(ProgressFollower, self.warehouse, cluster)
        self.moved = MovedProgress(self.meta, self.lanes, self.hosting.hosts, follow, refresh_s=self._refresh_s)
        self.commits = LaneCommits(self.lanes, self.hosting, self.owners)
        self.progress = QueueProgress(self.lanes, self.moved, self.commits)
        self.group_commits = GroupCommits(self.meta, self.commits, self.progress, self.statistics)
        self.times = Times(self.topics, self.progress, self.meta, self.partitions, self.settings.refresh_ms)
        self.global_times = GlobalTimes(self.global_copies, self.topics, self.progress)

    def _make_pops(self, meta: MetaLog, ports: Ports) -> None:
        blocked = partial(self.moved.blocked, pop=True)
        queues_of = self.topics.queues_of
        pops = LanePops(self.lanes, blocked, partial(begin, self.meta), queues_of, busy_ms=ports.lane_busy_ms)
        self.popper = Popper(
            self.lanes,
            pops,
            self.hosting,
            queues_of,
            lambda: self.topics.access,
            refresh_s=self._refresh_s,
            bytes_max=ports.pop_bytes_max,
        )
        self.handles = HandleCalls(self.lanes, self.hosting, self.statistics)
        self.delays = Delays(self.partitions, self._cluster, _brokers(self.settings, meta))
        self.waiting = Waiting(self.partitions, self.delays, self._cluster)
        self.waiting_list = WaitingList(self.partitions, self.delays, self.warehouse, self._cluster)

    def _make_groups(self, ports: Ports) -> None:
        length_ms, clock = self.settings.authorization_ms, ports.lease_clock
        self.seen = SeenClients(self.now_ms, keep_ms=length_ms)
        self.online = OnlineClients(
            self.meta, self.hosting, length_ms=length_ms, clients_max=ports.clients_max, clock=clock
        )
        self.locks = Locks(
            self.meta, self.hosting, self.topics, self.lanes, self.partitions, self.progress, self.peers, clock=clock
        )

        marks = Marks(self.partitions)
        self.dead_letters = DeadLetterLogs(self.partitions, self.meta, self.settings.brokers, marks, self.now_ms)
        self.replayer = Replayer(self.topics, self.partitions, self.meta, self.fencing, self.sealer, self.dead_letters)
        self.quarantines = Quarantines(self.topics, self.partitions, self.codecs, marks, self.replayer, self.now_ms)
        self.groups = Groups(
            self.meta,
            self.partitions,
            self._tables,
            forget=self._void,
            auto_create=self.settings.auto_create_groups,
            now_ms=self.now_ms,
        )
        self._watch = Watch(self.partitions, self.topics, self.groups, self.lanes, every_s=self._refresh_s)
        self._access_watch = None if self.gate is None else AccessWatch(self.gate, self.meta, every_s=self._refresh_s)

    @classmethod
    async def start(cls, config: Config, ports: Ports = REAL, *, address: str = "", kafka: str = "") -> Service:
        """Open the warehouse and the metadata log, take the brokers without an owner, and be ready to serve them.

        `address` is the URL under which other processes reach this one, `kafka` the address for Kafka's clients.
        """

        def open_all() -> tuple[Warehouse, MetaLog, HandleKeys]:
            uri = config.warehouse.uri
            warehouse = Warehouse.open(uri, settings=config.log, clock=ports.clock, store=ports.store)
            warehouse.check_may_write("a service")
            meta, keys = MetaLog(warehouse), handle_keys(warehouse.store, _handle_secret(config))
            # Arrow keeps the memory of reading the metadata: with 10,000 access rules 21 MiB.
            pa.default_memory_pool().release_unused()
            return warehouse, meta, keys

        opened = await asyncio.to_thread(open_all)
        if not config.service.auth and is_guarded(opened[1].meta):
            opened[0].close()
            raise guarded_warehouse()
        service = cls(config, *opened, config.service.address or address, ports, kafka)
        try:
            await service.hosting.start()
        except BaseException:
            await service.stop()
            raise
        service._neighbours.start()
        service._watch.start()
        if service._access_watch is not None:
            service._access_watch.start()
        service.job_watch.start()
        service.looks.start()
        service.samples.start()
        service.scrape.start()
        service.online.start()
        service.global_copies.start()
        if service.registry.outside is not None:
            service.registry.outside.start()
        if service.audit is not None:
            service.audit.start(lambda: service.meta.now)
        return service

    def _audit(self, meta: MetaLog) -> Audit:
        return Audit(
            self.partitions,
            meta,
            process=lambda: self.hosting.id,
            now_ms=self.now_ms,
            new_id=lambda: secrets.token_hex(ACT_ID_BYTES),
        )

    @property
    def is_outsider(self) -> bool:
        """Whether the warehouse is guarded, and this process has no authentication (SPEC SEC-44)."""
        return self.gate is None and is_guarded(self.meta.now)

    @property
    def stopping(self) -> bool:
        """Whether the service stops."""
        return self.partitions.stopping

    def now_ms(self) -> int:
        """Return the time for messages and records, in milliseconds since 1970."""
        return self.warehouse.clock.wall_us() // 1000

    async def delete_topic(self, name: str, *, by_cluster: bool = False) -> None:
        """Delete a topic, and the groups' retry partitions for it; a global topic first in all other clusters."""
        topic = (await self.topics.require(name)).topic
        if by_cluster:
            require_world(topic)  # another cluster may delete only global topics
        elif topic.world is not None:
            await self.global_topics.delete_elsewhere(topic)
        await self.groups.drop_retries(await self.topics.delete(name))

    def begin_stop(self) -> None:
        """Begin to stop: long polls, event streams and commit windows end at once, requests under way are answered.

        Those that wait at other processes and clusters end at once, too; pops there within a second.
        """
        self.popper.stopping = True
        self.partitions.begin_stop()
        self.peers.begin_stop()
        self.online.begin_stop()
        self.locks.begin_stop()

    def _void(self, lanes: Iterable[LaneKey]) -> None:
        ended = list(lanes)
        self.lanes.void(ended)
        self.moved.forget(ended)
        self.locks.void(ended)

    async def stop(self) -> None:
        """Finish every queued commit and the upkeep step under way, make all durable, and close the warehouse.

        A failed step is logged, and the others are taken all the same: state in memory is stored, and roles are left.
        The first failure is raised at the end.
        """
        self.begin_stop()
        steps: tuple[Callable[[], Awaitable[None] | None], ...] = (
            self._watch.stop,
            *(() if self._access_watch is None else (self._access_watch.stop,)),
            self.job_watch.stop,
            self.looks.stop,
            self.samples.stop,
            self.scrape.stop,
            self._access.stop,
            self.online.stop,
            self.global_copies.stop,
            self.sealer.stop,
            self.lanes.stop,
            self.statistics.stop,
            *(() if self.audit is None else (self.audit.stop,)),
            *(() if self.registry.outside is None else (self.registry.outside.stop,)),
            self._neighbours.stop,
            self.hosting.stop,
            self.peers.close,
            self.meta.close,
            self._tables.close,
            self.partitions.finish,
            self._threads.lane.stop,
            self._threads.stop,
            partial(asyncio.to_thread, self.warehouse.close),
        )
        failures: list[Exception] = []
        for step in steps:
            try:
                done = step()
                if done is not None:
                    await done
            except Exception as error:
                log.error("event=stop_failed kind=%s", type(error).__name__, exc_info=error)
                failures.append(error)
        if failures:
            raise failures[0]


def _cluster_secret(settings: ServiceSettings) -> bytes:
    """Return the cluster's secret; without one, a secret that no other process has, so that no proof is valid."""
    return settings.cluster_secret.reveal().encode() or secrets.token_bytes(SECRET_BYTES)


def _handle_secret(config: Config) -> str:
    """Return the operator's secret for handles, in hexadecimal digits; empty for the warehouse's own.

    With authentication it is derived from the cluster's secret, so that readers of the warehouse cannot forge handles.
    """
    settings = config.service
    if config.queue.handle_secret or not (settings.auth and settings.cluster_secret):
        return config.queue.handle_secret.reveal()
    return derived(_cluster_secret(settings), b"handles").hex()


def _brokers(settings: ServiceSettings, meta: MetaLog) -> list[str]:
    """Return the brokers of the settings, and the ones that topics got under earlier settings."""
    routed = {broker_of(name) for topic in meta.state.topics.values() for name in topic.route.partitions}
    return sorted(routed.union(settings.brokers))


def _admissions(settings: ServiceSettings) -> tuple[Admission, Admission, Admission]:
    return (
        Admission("produce", bytes_max=settings.queue_bytes_max, requests_max=settings.queue_requests_max),
        Admission("fetch", bytes_max=settings.answer_bytes_max, requests_max=settings.connections_max),
        Admission("pop", bytes_max=settings.queue_bytes_max, requests_max=settings.connections_max),
    )
