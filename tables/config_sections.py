"""The sections of the settings: what each setting means, its default and its bounds (`tables.config` loads them)."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from mq.errors import Refused
from mq.limits import (
    FETCH_BYTES_MAX,
    KIB,
    MIB,
    REQUEST_BYTES_MAX,
    RETENTION_MS_DEFAULT,
    RETENTION_MS_MAX,
    RETENTION_MS_MIN,
)
from mq.names import check_broker
from mq.order_limits import AUTHORIZATION_MS_DEFAULT, LEASE_MARGIN_MS, LEASE_MS_DEFAULT, LEASE_RENEW_MS
from mq.queue_limits import (
    BUFFER_CHECKPOINTS_MAX,
    INVISIBLE_MS_CEILING,
    INVISIBLE_MS_MAX,
    INVISIBLE_MS_MIN,
    PARTITION_CHECKPOINTS_MAX,
    STAY_BUFFER_MS,
)

__all__ = [
    "ClientSettings",
    "Engine",
    "JobsSettings",
    "QueueSettings",
    "RetentionSettings",
    "Secret",
    "ServiceSettings",
    "WarehouseSettings",
]


class Secret:
    """Text that shows itself only when asked by name."""

    __slots__ = ("_text",)

    def __init__(self, text: str = "") -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return "Secret('***')" if self._text else "Secret('')"


def _between(default: int, low: int, high: int) -> int:
    """Return a whole number with bounds, both included."""
    return field(default=default, metadata={"low": low, "high": high})


@dataclass(frozen=True, slots=True, kw_only=True)
class WarehouseSettings:
    """Where the tables are."""

    #: A folder, or a URL of an object store (s3://, gs://, abfss://), with credentials in the environment.
    uri: str = "warehouse"
    #: Part of the names of the queue's own logs; services and jobs of one warehouse must agree on it.
    cluster: str = "deltamq"

    def __post_init__(self) -> None:
        try:
            check_broker(self.cluster)
        except Refused:
            raise ValueError("warehouse.cluster: 1 to 127 characters of A-Z a-z 0-9 . _ -") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """One service process."""

    #: Where it listens.
    host: str = "127.0.0.1"
    #: 0 takes a free port, which the line `serving http://...` names.
    port: int = _between(8080, 0, 65_535)
    #: The URL under which other processes and clients reach it; empty: what it listens on.
    address: str = ""
    #: The broker groups that this process is there for; it hosts those of others while they are not.
    brokers: tuple[str, ...] = ("broker-a", "broker-b")
    #: A process that has not renewed for so long is dead to the others, which take over its brokers.
    lease_ms: int = _between(LEASE_MS_DEFAULT, 500, 600_000)
    #: How often it renews.
    lease_renew_ms: int = _between(LEASE_RENEW_MS, 50, 300_000)
    #: Stop serving this long before the lease expires: for clocks that drift, and for requests that are under way.
    lease_margin_ms: int = _between(LEASE_MARGIN_MS, 50, 60_000)
    #: A client of an exclusive group that has not sent a heartbeat for so long loses its partitions.
    authorization_ms: int = _between(AUTHORIZATION_MS_DEFAULT, 500, 600_000)
    #: A topic that is produced to before it exists is created with the default route.
    auto_create_topics: bool = True
    #: A group that consumes before it exists is created with default settings.
    auto_create_groups: bool = True
    #: After SIGTERM, requests in flight get so long to end.
    drain_ms: int = _between(10_000, 0, 600_000)
    #: Whether it may listen beyond this machine without authentication: only behind a proxy that authenticates.
    allow_open_access: bool = False
    #: A produce request's body has at most so many bytes.
    request_bytes_max: int = _between(64 * MIB, 64 * KIB, REQUEST_BYTES_MAX)
    #: A produce request's body has so long to arrive.
    request_ms: int = _between(60_000, 100, 3_600_000)
    #: Bytes of produce requests that are received, decoded or waiting at once; beyond it producers get 429.
    queue_bytes_max: int = _between(256 * MIB, MIB, 1024 * 1024 * MIB)
    #: Produce requests at once; beyond it producers get 429.
    queue_requests_max: int = _between(4_096, 1, 1_000_000)
    #: Bytes of rows in fetch answers that are being sent; beyond it readers get 429.
    answer_bytes_max: int = _between(512 * MIB, FETCH_BYTES_MAX, 1024 * 1024 * MIB)
    #: Commits of different partitions that run at the same time.
    commit_threads: int = _between(8, 1, 256)
    #: Threads that decode large requests and read history.
    work_threads: int = _between(4, 1, 256)
    #: A partition with waiting readers is looked at this often for commits of other processes.
    refresh_ms: int = _between(100, 1, 60_000)
    #: Connections at once; further ones are closed.
    connections_max: int = _between(10_000, 1, 1_000_000)
    #: An idle connection is closed after so long.
    keep_alive_s: int = _between(75, 1, 3_600)

    def __post_init__(self) -> None:
        if not self.brokers or len(set(self.brokers)) != len(self.brokers):
            raise ValueError("service.brokers must name at least one broker, and none twice")
        if self.lease_renew_ms + 2 * self.lease_margin_ms >= self.lease_ms:
            raise ValueError("service.lease_ms must be above lease_renew_ms and twice lease_margin_ms together")
        if self.queue_bytes_max < self.request_bytes_max:
            raise ValueError("service.queue_bytes_max must be at least service.request_bytes_max")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """Groups and POP, for the service and the jobs."""

    #: Checkpoints and acknowledgements meet in memory; off, each is stored.
    memory_match: bool = True
    #: A checkpoint that stays longer in memory is stored.
    stay_buffer_ms: int = _between(STAY_BUFFER_MS, 100, 600_000)
    #: Checkpoints that are in memory at once; beyond, they are stored at once.
    buffer_checkpoints_max: int = _between(BUFFER_CHECKPOINTS_MAX, 0, 10_000_000)
    #: The same for one partition.
    partition_checkpoints_max: int = _between(PARTITION_CHECKPOINTS_MAX, 0, 10_000_000)
    #: The shortest invisible time that clients may ask for ...
    invisible_ms_min: int = _between(INVISIBLE_MS_MIN, 1, INVISIBLE_MS_CEILING)
    #: ... and the longest.
    invisible_ms_max: int = _between(INVISIBLE_MS_MAX, 1, INVISIBLE_MS_CEILING)
    #: How often the offsets of groups that have moved are stored.
    commit_every_ms: int = _between(200, 10, 60_000)
    #: Signs handles, as 32 or more hexadecimal digits; when empty, the warehouse keeps one that it made itself.
    handle_secret: Secret = field(default_factory=Secret)

    def __post_init__(self) -> None:
        if self.invisible_ms_min > self.invisible_ms_max:
            raise ValueError("queue.invisible_ms_min must not be above queue.invisible_ms_max")
        if self.partition_checkpoints_max > self.buffer_checkpoints_max:
            raise ValueError("queue.partition_checkpoints_max must not be above queue.buffer_checkpoints_max")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionSettings:
    """How long messages are kept; a topic's own `retention_ms` wins."""

    #: What a group has not committed yet stays, whatever its age.
    wait_for_groups: bool = False
    #: Delayed messages where they waited, counted from their deliver time.
    delayed_ms: int = _between(RETENTION_MS_DEFAULT, RETENTION_MS_MIN, RETENTION_MS_MAX)
    #: Retried messages.
    retry_ms: int = _between(RETENTION_MS_DEFAULT, RETENTION_MS_MIN, RETENTION_MS_MAX)
    #: Dead letters.
    dead_ms: int = _between(10 * RETENTION_MS_DEFAULT, RETENTION_MS_MIN, RETENTION_MS_MAX)
    #: Records of the queue's own logs, after the merge job has them in its tables.
    system_ms: int = _between(3_600_000, 60_000, RETENTION_MS_MAX)


class Engine(enum.Enum):
    """What carries out the jobs."""

    LOCAL = "local"  #: what is due is followed in the memory of one process: the least delay, on one machine
    SPARK = "spark"  #: tasks of Spark, divided by broker and queue: grows with the cluster (SPEC SPARK-7)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsSettings:
    """The Spark application that runs the jobs, and Spark sessions of users on one machine."""

    #: "local" follows what is due in the memory of one process, "spark" finds and moves it in tasks.
    engine: Engine = Engine.LOCAL
    #: Ignored where a session exists already (Databricks, Spark Connect).
    master: str = "local[*]"
    #: Memory of the driver, in Spark's notation.
    driver_memory: str = "2g"
    #: Tasks after a shuffle: more only pays on a cluster.
    shuffle_partitions: int = _between(2, 1, 100_000)
    #: Tasks that rebuild a Delta table's state: Delta's 50 doubles the time of a small MERGE.
    snapshot_partitions: int = _between(2, 1, 100_000)
    #: The Spark UI's port is only opened when asked for.
    ui: bool = False
    #: A run that lasts longer is cancelled.
    run_s_max: int = _between(3_600, 1, 31_536_000)
    #: What the tasks of one Spark action may send to the driver, in Spark's notation; more fails that action alone.
    result_size_max: str = "512m"
    #: How often records are merged into the state tables.
    merge_every_ms: int = _between(2_000, 100, 3_600_000)
    #: How often messages are looked for that nobody acknowledged in time.
    revive_every_ms: int = _between(250, 50, 3_600_000)
    #: How often delayed messages are looked for that are due.
    delay_every_ms: int = _between(250, 50, 3_600_000)
    #: The same two with the engine "spark", where a look is a job of Spark.
    spark_look_every_ms: int = _between(1_000, 50, 3_600_000)
    #: How often messages are removed whose time has passed.
    retain_every_s: int = _between(60, 1, 31_536_000)
    #: How often small files of partitions are compacted.
    compact_every_s: int = _between(600, 1, 31_536_000)
    #: The size of a compacted file; one of half the size is final. A task takes about twice as much memory.
    compact_target_bytes: int = _between(128 * MIB, 64 * KIB, 1024 * MIB)
    #: How often the exports that are defined append what is new.
    export_every_s: int = _between(60, 1, 31_536_000)
    #: How often `replay` and `reset` look whether one that is scheduled is due.
    scheduled_every_s: int = _between(30, 1, 31_536_000)
    #: How often `verify` checks every partition.
    verify_every_s: int = _between(3_600, 1, 31_536_000)
    #: Partitions of each run, in turn, that Spark's own Delta reader counts, too: a check of the checker.
    verify_sample: int = _between(4, 0, 1_000_000)
    #: How often the catalog follows the topics.
    catalog_every_s: int = _between(300, 1, 31_536_000)
    #: The schema of the catalog's tables and views, SCHEMA or CATALOG.SCHEMA.
    catalog_schema: str = "deltamq"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """How the demo, jobs and notebooks reach a service."""

    #: The service.
    url: str = "http://127.0.0.1:8080"
    #: Sent as `Authorization: Bearer ...` when not empty.
    token: Secret = field(default_factory=Secret)
