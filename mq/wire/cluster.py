"""Answers about the service itself: brokers and processes, what has stopped, features, jobs, health."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from deltamq.mq.wire.answers import AccessInfo, Time


class BrokerInfo(AccessInfo, frozen=True, kw_only=True):
    """One broker: a namespace of partitions that one service process hosts.

    `host` is the process that serves it now, at `address`, since `epoch`; both are null, and `online` is false, while
    none does.
    """

    broker: str
    roles: tuple[str, ...]
    epoch: int
    partitions: int
    address: str | None = None
    host: str | None = None
    online: bool = True


class BrokerAccess(AccessInfo, frozen=True, kw_only=True):
    """The access of a broker."""

    broker: str


class PartitionAccess(AccessInfo, frozen=True, kw_only=True):
    """The access of a partition, as far as it and its broker both allow."""

    topic: str
    partition: str


class MetaInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The process that has the meta role: it answers heartbeats of exclusive groups."""

    address: str
    host: str
    epoch: int


class HostInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One service process; `host` is its id, new with each start, `brokers` are those it was started for.

    `load` is its requests a second at the last renewal, `auth` whether it asks callers for keys.
    """

    host: str
    address: str
    brokers: tuple[str, ...]
    load: int = 0
    auth: bool | None = None


class MissingJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that the queue needs and that runs nowhere: what does not happen, and when it last succeeded, if ever."""

    job: str
    means: str
    ok_at: Time | None = None


class StoppedPartition(msgspec.Struct, frozen=True, kw_only=True):
    """A partition that refuses all calls of this process, with the error; `queue` is its logical queue, if any.

    `space` is `topics`, `retry` for groups' retries, `dlq` for dead letters, or `sys` for the service's own logs.
    """

    space: str
    topic: str
    partition: str
    code: str
    detail: str
    queue: str | None = None


class DiskInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The disk of a warehouse: its size, and what the process may still write."""

    size_bytes: int
    free_bytes: int

    @property
    def is_nearly_full(self) -> bool:
        """Whether less than a tenth is free."""
        return self.free_bytes * 10 < self.size_bytes


class StoreOperation(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of one kind: `put`, `put_if_absent`, `get`, `head`, `list` or `delete`; `bytes` were put or got by them."""

    operation: str
    requests: int
    bytes: int


class StoreUse(msgspec.Struct, frozen=True, kw_only=True):
    """What the process that answers asked of the object store in the `seconds` since its start, and most recently.

    `recent` are the calls of the last one or two minutes (`recent_seconds`). `dollars_a_month` is what a month costs at
    their rate, `dollars_a_gib` what calls cost since the start for each GiB put; neither has what is kept. Both follow
    the price list `prices`, and are null without one.
    """

    seconds: float
    operations: tuple[StoreOperation, ...]
    recent_seconds: float
    recent: tuple[StoreOperation, ...]
    prices: str | None = None
    dollars_a_month: float | None = None
    dollars_a_gib: float | None = None


class ClusterInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The warehouse, its brokers, and the processes that serve them; `host` is the process that answers.

    With `auth` each caller must show who it is; without it, anyone who can reach this process may do everything.
    `missing_jobs` are those that the queue needs and that run nowhere, `stopped` at most a hundred partitions that have
    stopped, as far as the caller may see them. `disk` is null on an object store, `store` on a disk.
    """

    warehouse: str
    version: str
    routes_epoch: int
    topics: int
    brokers: tuple[BrokerInfo, ...]
    host: str | None = None
    meta: MetaInfo | None = None
    hosts: tuple[HostInfo, ...] = ()
    auth: bool | None = None
    missing_jobs: tuple[MissingJob, ...] = ()
    stopped: tuple[StoppedPartition, ...] = ()
    disk: DiskInfo | None = None
    store: StoreUse | None = None


class Health(msgspec.Struct, frozen=True):
    """The state of this process."""

    status: str


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """Whether this process serves everything, or is `degraded`: some partitions have stopped, and the others serve.

    `stopped` names a hundred of them at most; with authentication none, since nobody has shown a key here.
    """

    status: Literal["serving", "degraded"]
    stopped_partitions: int
    stopped: tuple[str, ...] = ()


class FeatureInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A feature and what it changes; `lacking` are the addresses of the processes that do not know it yet."""

    feature: str
    says: str
    lacking: tuple[str, ...] = ()


class UpgradeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Features that are on, those that an upgrade switches on now, and those that wait for processes."""

    on: tuple[FeatureInfo, ...]
    ready: tuple[FeatureInfo, ...]
    waiting: tuple[FeatureInfo, ...]


class JobShard(msgspec.Struct, frozen=True, kw_only=True):
    """A shard of a job, as its last run that ended left it: `owner` is the application that ran it.

    `behind_ms` is how far behind the run found itself, null if it does not say. `error` is null if it succeeded.
    """

    shard: str
    owner: str
    last_run_time: Time
    behind_ms: int | None = None
    error: str | None = None


class JobInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A job and its last run that ended, of any application.

    `missing` says what does not happen because the job runs nowhere; null if it runs, or the queue does not need it.
    """

    name: str
    engine: str | None = None
    every_s: float | None = None
    started_at: Time | None = None
    seconds: float | None = None
    ok: bool | None = None
    ok_at: Time | None = None
    running_since: Time | None = None
    detail: str | None = None
    facts: dict[str, int | str] = {}
    failures: int = 0
    missing: str | None = None
    shards: tuple[JobShard, ...] = ()


class ExportFailureInfo(msgspec.Struct, frozen=True, kw_only=True):
    """When and why the last run of an export failed."""

    time: Time
    detail: str


class ExportInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An export of a topic to a typed table, which the job `export` writes.

    `to` and `quarantine` are paths or names of tables: of the messages that fit `schema`, the DDL of a body's fields,
    and of the others. `rows` were written in all, `quarantined` are in quarantine. `offsets` has the next offset of
    each partition, or logical queue; `behind` is how many stored messages are not exported yet, null if that is not
    known: the topic is gone, or global. `failure` is null unless the last run failed.
    """

    name: str
    topic: str
    to: str
    quarantine: str
    schema: str
    columns: tuple[str, ...]
    rows: int
    quarantined: int
    offsets: dict[str, int]
    behind: int | None = None
    last_run_time: Time | None = None
    failure: ExportFailureInfo | None = None


class ExportList(msgspec.Struct, frozen=True, kw_only=True):
    """Exports that are defined in the warehouse, by name."""

    exports: tuple[ExportInfo, ...]


#: `missing`: it was applied, and is not there. `changed`: `fields` differ. `extra`: a rule that its principal should
#: not have.
DifferenceState = Literal["missing", "changed", "extra"]


class DifferingField(msgspec.Struct, frozen=True, kw_only=True):
    """A field as it was applied, and as it is now; null where it is not there."""

    applied: Any
    present: Any


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is not as it was applied; the name of a rule is `PRINCIPAL/ID`."""

    kind: Literal["topic", "group", "principal", "rule", "quota"]
    name: str
    state: DifferenceState
    fields: dict[str, DifferingField]


class AppliedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What was applied from files last, and what differs from it now.

    `names` is how many topics, groups and principals were applied; what was not is not compared. `applied_time` is null
    if nothing ever was.
    """

    applied_time: Time | None = None
    applied_by: str | None = None
    names: int = 0
    differences: tuple[Difference, ...] = ()


class LogLevelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """From which level on a logger of the process that answers, and those below it, log."""

    logger: str
    level: str


class HistorySeries(msgspec.Struct, frozen=True, kw_only=True):
    """Samples of a metric of one group, topic or both, which `labels` name: a time and the last value of each step."""

    metric: str
    labels: dict[str, str]
    points: tuple[tuple[Time, float], ...]


class HistoryAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Samples of a metric; `process` has answered, with what it knows of the others."""

    process: str
    metric: str
    step_ms: int
    series: tuple[HistorySeries, ...]


class SettingInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One setting of the process that answers: `source` is where it was given, `differs` whether from its default.

    A secret is shown as `***`, and as an empty text if it is not set.
    """

    name: str
    value: bool | int | float | str | tuple[str, ...] | None
    default: bool | int | float | str | tuple[str, ...] | None
    source: str
    differs: bool


class SettingList(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of the process that answers."""

    settings: tuple[SettingInfo, ...]


class JobList(msgspec.Struct, frozen=True, kw_only=True):
    """All jobs that have run in this warehouse or that the queue needs, by name."""

    warehouse: str
    jobs: tuple[JobInfo, ...]
