"""The metrics that are read from the parts of the service at each scrape, and the load that its lease reports."""

from __future__ import annotations

from deltamq.api.host.hosted_meta import HostedMeta
from deltamq.api.host.hosting import Hosting
from deltamq.api.host.peers import Peers
from deltamq.api.log.metrics import Gauge, Metrics
from deltamq.api.order.online_clients import OnlineClients
from deltamq.api.order.pull_locks import Locks
from deltamq.api.queue.lanes import Lanes
from deltamq.api.service.job_watch import JobWatch
from deltamq.api.service.stops import Stops
from deltamq.api.wire.request import Admission
from deltamq.mq.meta.brokers import META_ROLE
from deltamq.tables.clock import SYSTEM_CLOCK
from deltamq.tables.log.warehouse import Warehouse


def gauges_of(
    admission: Admission,
    answers: Admission,
    warehouse: Warehouse,
    meta: HostedMeta,
    hosting: Hosting,
    lanes: Lanes,
    locks: Locks,
    job_watch: JobWatch,
) -> list[Gauge]:
    """Return the gauges of the process, in the order of the scrape."""
    return [
        Gauge("deltamq_queue_requests", "Produce requests under way.", lambda: admission.requests),
        Gauge("deltamq_queue_bytes", "Bytes of produce requests under way.", lambda: admission.bytes),
        Gauge("deltamq_answer_bytes", "Bytes of rows in fetch answers under way.", lambda: answers.bytes),
        Gauge("deltamq_topics", "Topics.", lambda: len(meta.now.topics.topics)),
        Gauge("deltamq_open_partitions", "Partitions open in this process.", lambda: len(warehouse.open_logs)),
        Gauge("deltamq_in_flight_messages", "Messages popped and not done.", lanes.in_flight_everywhere),
        Gauge("deltamq_hosted_brokers", "Brokers served here.", lambda: len(hosting.taking() - {META_ROLE})),
        Gauge("deltamq_online_clients", "Exclusive clients.", lambda: len(meta.now.online.members())),
        Gauge("deltamq_pull_locks", "Pull locks that clients hold in this process.", lambda: locks.held),
        Gauge("deltamq_waiting_pops", "Pops that wait for messages.", lambda: lanes.waiting),
        Gauge("deltamq_memory_checkpoints", "Checkpoints not stored.", lambda: lanes.checkpoints_in_memory),
        Gauge(
            "deltamq_missing_jobs", "Jobs that the queue needs, and that run nowhere.", lambda: len(job_watch.missing)
        ),
    ]


def gauges_of_stops(stops: Stops) -> list[Gauge]:
    """Return the gauges of what has stopped (SPEC RELY-10)."""
    return [
        Gauge(
            "deltamq_stopped_partitions",
            "Partitions that refuse all calls because their data contradicts itself.",
            lambda: stops.partitions,
        ),
        Gauge(
            "deltamq_metadata_stopped",
            "Whether the metadata log is stopped, so that this process acknowledges nothing.",
            lambda: stops.is_metadata_stopped,
        ),
    ]


def counters_of(lanes: Lanes, peers: Peers, hosting: Hosting, online: OnlineClients) -> list[Gauge]:
    """Return the counters that parts of the service keep themselves, in the order of the scrape."""
    return [
        Gauge("deltamq_stored_checkpoints", "Checkpoints stored.", lambda: lanes.unordered.stored),
        Gauge("deltamq_forwarded_requests", "Requests sent to peers.", lambda: peers.asked),
        Gauge("deltamq_lost_leases", "Times this process was declared dead.", lambda: hosting.lost_leases),
        Gauge("deltamq_heartbeats", "Heartbeats answered here.", lambda: online.heartbeats),
        Gauge("deltamq_lapsed_clients", "Clients whose authorization ended.", lambda: online.lapsed),
        Gauge("deltamq_revive_records", "Records appended to revive logs.", lambda: lanes.logs.revive.records),
    ]


class RequestRate:
    """The requests that a process answers per second."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._answered = 0
        self._at_ms = SYSTEM_CLOCK.boot_ms()

    def __call__(self) -> int:
        """Return the requests answered per second since the last call."""
        answered, now_ms = sum(self._metrics.requests.values()), SYSTEM_CLOCK.boot_ms()
        rate = (answered - self._answered) * 1_000 // max(1, now_ms - self._at_ms)
        self._answered, self._at_ms = answered, now_ms
        return rate
