"""A process's health: stopped partitions, jobs that run nowhere, metrics of its parts, its load.

A partition that stops, because its data contradicts itself, harms no other, so a process with stopped partitions is
still ready. One whose metadata log has stopped is not: its lease ends, and it acknowledges nothing (SPEC RELY-10).

Jobs are processes of their own and may run anywhere; they leave small files in the warehouse, which `JobWatch` reads
(SPEC RETRY-7).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from deltamq.api.host.hosted_meta import HostedMeta
from deltamq.api.host.hosting import Hosting
from deltamq.api.host.peers import Peers
from deltamq.api.log.metrics import Gauge, Metrics
from deltamq.api.order.online_clients import OnlineClients
from deltamq.api.order.pull_locks import Locks
from deltamq.api.queue.lanes import Lanes
from deltamq.api.service.background import Background
from deltamq.api.wire.request import Admission
from deltamq.mq.auth.keys import ending_keys
from deltamq.mq.errors import DeltaMQError
from deltamq.mq.jobs import NEEDED_JOBS, is_missing
from deltamq.mq.meta.brokers import META_ROLE
from deltamq.mq.static.logical_queue import ShownQueue
from deltamq.mq.wire.cluster import JobShard, StoppedPartition
from deltamq.tables.clock import SYSTEM_CLOCK
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.ops.job_runs import LastRun, newest_run, read_running, read_runs
from deltamq.tables.paths import Space
from deltamq.tables.store.store import Store


class Stops:
    """The partitions that this process found stopped; used on the event loop."""

    def __init__(
        self,
        warehouse: Warehouse,
        meta: Callable[[], DeltaMQError | None],
        shown_queue_of: Callable[[str, str], ShownQueue | None],
    ) -> None:
        """`meta` returns why the metadata log has stopped; `shown_queue_of` a partition's place in a static topic."""
        self._warehouse = warehouse
        self._meta = meta
        self._shown_queue_of = shown_queue_of

    @property
    def partitions(self) -> int:
        """The number of stopped partitions, the queue's own logs among them."""
        return len(self._warehouse.stopped)

    @property
    def is_metadata_stopped(self) -> bool:
        """Whether the metadata log is stopped."""
        return self._meta() is not None

    def _queue_name(self, topic: str, partition: str) -> str | None:
        place = self._shown_queue_of(topic, partition)
        return None if place is None else place.name

    def all(self) -> list[StoppedPartition]:
        """Return the stopped partitions, sorted by space, topic and partition."""
        stopped = list(self._warehouse.stopped.items())
        stopped.sort(key=lambda item: (item[0].space.value, item[0].topic, item[0].name))
        return [
            StoppedPartition(
                space=ref.space.value,
                topic=ref.topic,
                partition=ref.name,
                queue=self._queue_name(ref.topic, ref.name) if ref.space is Space.TOPICS else None,
                code=error.code,
                detail=error.detail,
            )
            for ref, error in stopped
        ]


log = logging.getLogger("deltamq.api")

_FOLDER: Final = "jobs"
#: Seconds for which callers get the reports of the last look.
_FRESH_S: Final = 2.0
#: Seconds between two looks without a call, and from the start to the first: jobs start later than services.
_LOOK_S: Final = 60.0
#: The same on an object store, where each look is a list for each job.
_FAR_LOOK_S: Final = 300.0
_MS: Final = 1_000


class JobReport(NamedTuple):
    """The state of one job; `missing` says what does not happen because the job runs nowhere, else it is empty."""

    job: str
    last: LastRun | None
    running_since: datetime | None
    missing: str
    shards: tuple[JobShard, ...] = ()


class JobWatch(Background):
    """Reads the records of runs at each call and each minute; used on the event loop."""

    def __init__(
        self,
        store: Store,
        *,
        run: Callable[[Callable[[], list[JobReport]]], Awaitable[list[JobReport]]],
        now_ms: Callable[[], int],
        is_used: Callable[[], bool],
        is_far: bool = False,
    ) -> None:
        """`run` calls a function on a thread; `is_used` returns whether the queue is in use, so that it needs jobs.

        `is_far` says that looks at the store are paid for.
        """
        self._look_s = _FAR_LOOK_S if is_far else _LOOK_S
        self._store = store
        self._on_thread = run
        self._now_ms = now_ms
        self._is_used = is_used
        self._loop = asyncio.get_running_loop()
        self._reports: list[JobReport] = []
        self._read_at = -_FRESH_S
        self._reported: frozenset[str] = frozenset()

    @property
    def missing(self) -> Sequence[JobReport]:
        """The jobs that the queue needs and that ran nowhere, at the last look."""
        return [report for report in self._reports if report.missing]

    async def reports(self) -> list[JobReport]:
        """Return all jobs that have run in the warehouse or are needed, by name, two seconds old at most.

        If they cannot be read now, it returns the reports of the last look.
        """
        if self._loop.time() - self._read_at >= _FRESH_S:
            self._read_at = self._loop.time()
            try:
                self._reports = await self._on_thread(self._read)
            except DeltaMQError as error:
                log.warning("event=jobs_not_read code=%s detail=%r", error.code, error.detail)
        return self._reports

    def _read(self) -> list[JobReport]:
        names = sorted({*self._store.folders(_FOLDER), *NEEDED_JOBS})
        return [self._report(name) for name in names]

    def _report(self, job: str) -> JobReport:
        runs, running = read_runs(self._store, job), read_running(self._store, job)
        last = newest_run(runs)
        since = max((run.started_at for run in running), default=None)
        is_gone = job in NEEDED_JOBS and is_missing(
            ok_ms=_ms(last.ok_at) if last is not None and last.ok_at is not None else None,
            running_ms=None if since is None else _ms(since),
            every_ms=0 if last is None else int(last.every_s * _MS),
            now_ms=self._now_ms(),
        )
        return JobReport(job, last, since, NEEDED_JOBS[job] if is_gone else "", _shards(runs))

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._look_s)
            await self.reports()
            self._tell()

    def _tell(self) -> None:
        missing = {report.job: report for report in self.missing} if self._is_used() else {}
        for name in sorted(missing.keys() - self._reported):
            last = missing[name].last
            since = "never" if last is None or last.ok_at is None else last.ok_at.isoformat()
            does_not = missing[name].missing
            log.warning("event=job_missing job=%s last_ok=%s means=%r remedy='deltamq jobs run'", name, since, does_not)
        for name in sorted(self._reported - missing.keys()):
            log.info("event=job_back job=%s", name)
        self._reported = frozenset(missing)


def _shards(runs: Sequence[LastRun]) -> tuple[JobShard, ...]:
    """Return each shard as the newest run that included it left it; `runs` begins with the newest."""
    newest: dict[str, LastRun] = {}
    for run in runs:
        for shard in run.shards:
            newest.setdefault(shard, run)
    return tuple(
        JobShard(
            shard=shard,
            owner=run.application,
            last_run_time=run.started_at,
            behind_ms=behind if isinstance(behind := run.facts.get("behind_ms"), int) else None,
            error=None if run.ok else run.last_error or run.detail,
        )
        for shard, run in sorted(newest.items())
    )


def _ms(at: datetime) -> int:
    return int(at.timestamp() * _MS)


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
        Gauge("deltamq_groups", "Groups.", lambda: len(meta.now.groups.groups)),
        Gauge("deltamq_open_partitions", "Partitions open in this process.", lambda: len(warehouse.open_logs)),
        Gauge("deltamq_in_flight_messages", "Messages popped and not done.", lanes.in_flight_everywhere),
        Gauge(
            "deltamq_lease_left_seconds",
            "Time for which this process may serve unless it renews its lease.",
            lambda: max(0, hosting.lease.until_ms - hosting.now_ms()) / 1_000,
        ),
        Gauge("deltamq_hosted_brokers", "Brokers served here.", lambda: len(hosting.taking() - {META_ROLE})),
        Gauge(
            "deltamq_ending_keys",
            "Live keys that end within a week: their principals need new ones.",
            lambda: len(ending_keys(meta.now.auth.keys.values(), warehouse.clock.wall_us() // 1_000)),
        ),
        Gauge("deltamq_online_clients", "Exclusive clients.", lambda: len(meta.now.online.members())),
        Gauge("deltamq_pull_locks", "Pull locks that clients hold in this process.", lambda: locks.held),
        Gauge("deltamq_waiting_pops", "Pops that wait for messages.", lambda: lanes.waiting),
        Gauge("deltamq_memory_checkpoints", "Checkpoints not stored.", lambda: lanes.checkpoints_in_memory),
        Gauge(
            "deltamq_missing_jobs", "Jobs that the queue needs, and that run nowhere.", lambda: len(job_watch.missing)
        ),
    ]


def gauges_of_stops(stops: Stops, unread_s: Callable[[], float]) -> list[Gauge]:
    """Return the gauges of stopped partitions and of metadata, not read for `unread_s()` (SPEC RELY-10)."""
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
        Gauge(
            "deltamq_metadata_unread_seconds",
            "Seconds since the metadata was last read; long when the store does not answer.",
            unread_s,
        ),
    ]


def counters_of(
    warehouse: Warehouse, lanes: Lanes, peers: Peers, hosting: Hosting, online: OnlineClients
) -> list[Gauge]:
    """Return the counters that parts of the service keep themselves, in the order of the scrape."""
    return [
        Gauge(
            "deltamq_commit_conflicts",
            "Commits that another writer's has beaten, and that were made again.",
            lambda: warehouse.lost_races,
        ),
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
