"""The sections of the settings: the meaning, default and bounds of each setting (`tables.config` loads them)."""

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
    """Text that is hidden in `repr` and returned only by `reveal`."""

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
    """Return the field of a whole number from `low` to `high`."""
    return field(default=default, metadata={"low": low, "high": high})


@dataclass(frozen=True, slots=True, kw_only=True)
class WarehouseSettings:
    """The place of the tables."""

    #: Folder, or URL of an object store (s3://, gs://, abfss://), whose credentials come from the environment.
    uri: str = "warehouse"
    #: Part of the names of the queue's own logs; all services and jobs of one warehouse must use the same.
    cluster: str = "deltamq"

    def __post_init__(self) -> None:
        try:
            check_broker(self.cluster)
        except Refused:
            raise ValueError("warehouse.cluster: 1 to 127 characters of A-Z a-z 0-9 . _ -") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """Settings of one service process."""

    #: Host name or IP address on which the service listens.
    host: str = "127.0.0.1"
    #: Port on which the service listens; 0 takes a free one, which the line `serving http://...` names.
    port: int = _between(8080, 0, 65_535)
    #: URL under which clients and other processes reach the service; if empty, the address on which it listens.
    address: str = ""
    #: Brokers that this process hosts; it also hosts the brokers of other processes while those are down.
    brokers: tuple[str, ...] = ("broker-a", "broker-b")
    #: Duration of a process's lease, in milliseconds; if it expires, other processes take over its brokers.
    lease_ms: int = _between(LEASE_MS_DEFAULT, 500, 600_000)
    #: Interval at which a process renews its lease, in milliseconds.
    lease_renew_ms: int = _between(LEASE_RENEW_MS, 50, 300_000)
    #: Stop serving this many milliseconds before the lease expires: for clocks that drift, and for requests in flight.
    lease_margin_ms: int = _between(LEASE_MARGIN_MS, 50, 60_000)
    #: A client of an exclusive group loses its partitions after this many milliseconds without a heartbeat.
    authorization_ms: int = _between(AUTHORIZATION_MS_DEFAULT, 500, 600_000)
    #: Whether a produce request to a topic that does not exist creates it, with the default route.
    auto_create_topics: bool = True
    #: Whether consuming as a group that does not exist creates it, with default settings.
    auto_create_groups: bool = True
    #: Time for requests in flight to finish after SIGTERM, in milliseconds.
    drain_ms: int = _between(10_000, 0, 600_000)
    #: Whether the service may listen beyond this machine without authentication; only behind an authenticating proxy.
    allow_open_access: bool = False
    #: Largest body of a produce request, in bytes.
    request_bytes_max: int = _between(64 * MIB, 64 * KIB, REQUEST_BYTES_MAX)
    #: Longest time in which a produce request's body must arrive, in milliseconds.
    request_ms: int = _between(60_000, 100, 3_600_000)
    #: Most bytes of produce requests that are received, decoded or waiting at once; beyond this, producers get 429.
    queue_bytes_max: int = _between(256 * MIB, MIB, 1024 * 1024 * MIB)
    #: Most produce requests at once; beyond this, producers get 429.
    queue_requests_max: int = _between(4_096, 1, 1_000_000)
    #: Most bytes of rows in fetch answers that are being sent at once; beyond this, readers get 429.
    answer_bytes_max: int = _between(512 * MIB, FETCH_BYTES_MAX, 1024 * 1024 * MIB)
    #: Number of threads that commit to different partitions.
    commit_threads: int = _between(8, 1, 256)
    #: Number of threads that decode large requests and read history.
    work_threads: int = _between(4, 1, 256)
    #: Interval at which a partition with waiting readers is checked for commits of other processes, in milliseconds.
    refresh_ms: int = _between(100, 1, 60_000)
    #: Most connections at once; further ones are closed.
    connections_max: int = _between(10_000, 1, 1_000_000)
    #: Idle time after which a connection is closed, in seconds.
    keep_alive_s: int = _between(75, 1, 3_600)

    def __post_init__(self) -> None:
        if not self.brokers or len(set(self.brokers)) != len(self.brokers):
            raise ValueError("service.brokers must name at least one broker, and none twice")
        if self.lease_renew_ms + 2 * self.lease_margin_ms >= self.lease_ms:
            raise ValueError("service.lease_ms must be greater than lease_renew_ms + 2 * lease_margin_ms")
        if self.queue_bytes_max < self.request_bytes_max:
            raise ValueError("service.queue_bytes_max must be at least service.request_bytes_max")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """Settings of groups and POP, for the service and the jobs."""

    #: Whether checkpoints and acks are matched in memory; if false, each is stored.
    memory_match: bool = True
    #: Time after which a checkpoint in memory is stored, in milliseconds.
    stay_buffer_ms: int = _between(STAY_BUFFER_MS, 100, 600_000)
    #: Most checkpoints in memory; further ones are stored at once.
    buffer_checkpoints_max: int = _between(BUFFER_CHECKPOINTS_MAX, 0, 10_000_000)
    #: The same, for one partition.
    partition_checkpoints_max: int = _between(PARTITION_CHECKPOINTS_MAX, 0, 10_000_000)
    #: Shortest invisible time that clients may request, in milliseconds ...
    invisible_ms_min: int = _between(INVISIBLE_MS_MIN, 1, INVISIBLE_MS_CEILING)
    #: ... and the longest, in milliseconds.
    invisible_ms_max: int = _between(INVISIBLE_MS_MAX, 1, INVISIBLE_MS_CEILING)
    #: Interval at which changed offsets of groups are stored, in milliseconds.
    commit_every_ms: int = _between(200, 10, 60_000)
    #: Secret that signs handles, as 32 or more hexadecimal digits; if empty, the warehouse generates and keeps one.
    handle_secret: Secret = field(default_factory=Secret)

    def __post_init__(self) -> None:
        if self.invisible_ms_min > self.invisible_ms_max:
            raise ValueError("queue.invisible_ms_min must not be above queue.invisible_ms_max")
        if self.partition_checkpoints_max > self.buffer_checkpoints_max:
            raise ValueError("queue.partition_checkpoints_max must not be above queue.buffer_checkpoints_max")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionSettings:
    """How long messages are kept, besides the messages of topics, which have their own `retention_ms`."""

    #: Whether messages that a group has not committed yet are kept at any age.
    wait_for_groups: bool = False
    #: How long delayed messages are kept in the delay log after their deliver time, in milliseconds.
    delayed_ms: int = _between(RETENTION_MS_DEFAULT, RETENTION_MS_MIN, RETENTION_MS_MAX)
    #: How long retried messages are kept, and messages popped in order after the end of their lease, in milliseconds.
    retry_ms: int = _between(RETENTION_MS_DEFAULT, RETENTION_MS_MIN, RETENTION_MS_MAX)
    #: How long dead letters are kept, in milliseconds.
    dead_ms: int = _between(10 * RETENTION_MS_DEFAULT, RETENTION_MS_MIN, RETENTION_MS_MAX)
    #: How long records of the queue's own logs are kept once the merge job has them in its tables, in milliseconds.
    system_ms: int = _between(3_600_000, 60_000, RETENTION_MS_MAX)


class Engine(enum.Enum):
    """What carries out the jobs."""

    LOCAL = "local"  #: one process, which follows due messages in memory: the least delay, on one machine
    SPARK = "spark"  #: Spark tasks, divided by broker and queue: scales with the cluster (SPEC SPARK-7)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsSettings:
    """Settings of the Spark application that runs the jobs, and of users' Spark sessions on one machine."""

    #: "local" follows due messages in the memory of one process, "spark" finds and moves them in tasks.
    engine: Engine = Engine.LOCAL
    #: Master of the Spark session; ignored where a session exists already (Databricks, Spark Connect).
    master: str = "local[*]"
    #: Memory of the driver, in Spark's notation.
    driver_memory: str = "2g"
    #: Number of tasks after a shuffle: more only pay on a cluster.
    shuffle_partitions: int = _between(2, 1, 100_000)
    #: Number of tasks that rebuild a Delta table's state: Delta's default of 50 doubles the time of a small MERGE.
    snapshot_partitions: int = _between(2, 1, 100_000)
    #: Whether the Spark UI opens its port.
    ui: bool = False
    #: Longest run of a job, in seconds; a longer one is cancelled.
    run_s_max: int = _between(3_600, 1, 31_536_000)
    #: Most data that tasks of one Spark action may send to the driver, in Spark's notation; more fails that action.
    result_size_max: str = "512m"
    #: Interval at which records are merged into the state tables, in milliseconds.
    merge_every_ms: int = _between(2_000, 100, 3_600_000)
    #: Interval of the search for messages that were not acknowledged in time, in milliseconds.
    revive_every_ms: int = _between(250, 50, 3_600_000)
    #: Interval of the search for delayed messages that are due, in milliseconds.
    delay_every_ms: int = _between(250, 50, 3_600_000)
    #: Interval of both searches with the engine "spark", where each is a Spark job, in milliseconds.
    spark_look_every_ms: int = _between(1_000, 50, 3_600_000)
    #: Interval at which messages are removed that are older than their retention time, in seconds.
    retain_every_s: int = _between(60, 1, 31_536_000)
    #: Interval at which small files of partitions are compacted, in seconds.
    compact_every_s: int = _between(600, 1, 31_536_000)
    #: Size of a compacted file, in bytes; a file of half the size is final. A task takes about twice as much memory.
    compact_target_bytes: int = _between(128 * MIB, 64 * KIB, 1024 * MIB)
    #: Interval at which the defined exports append new messages, in seconds.
    export_every_s: int = _between(60, 1, 31_536_000)
    #: Interval at which `replay` and `reset` check for scheduled runs that are due, in seconds.
    scheduled_every_s: int = _between(30, 1, 31_536_000)
    #: Interval at which `verify` checks every partition, in seconds.
    verify_every_s: int = _between(3_600, 1, 31_536_000)
    #: Number of partitions, in turn, that each `verify` run also counts with Spark's own Delta reader, a cross-check.
    verify_sample: int = _between(4, 0, 1_000_000)
    #: Interval at which the catalog is updated with the topics, in seconds.
    catalog_every_s: int = _between(300, 1, 31_536_000)
    #: Schema of the catalog's tables and views: SCHEMA or CATALOG.SCHEMA.
    catalog_schema: str = "deltamq"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """Settings with which the demo, jobs and notebooks reach a service."""

    #: URL of the service for the demo, jobs and notebooks.
    url: str = "http://127.0.0.1:8080"
    #: Token that is sent as `Authorization: Bearer ...`, if not empty.
    token: Secret = field(default_factory=Secret)
