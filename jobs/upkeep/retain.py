"""The job `retain`: removes messages whose retention time is over (SPEC RETRY-6).

The local engine needs no Spark session and keeps partitions open between runs. With Spark, tasks apply the same rules,
each to some partitions of a broker, and return counts (SPEC SPARK-7).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any, Final

import msgspec

from deltamq.jobs.queue.brokers import brokers_of
from deltamq.jobs.run.registry import Facts, job, with_spark_engine
from deltamq.jobs.tasks.checkpoint_claims import forget_claims
from deltamq.jobs.tasks.items import Runner, runner_of
from deltamq.jobs.tasks.query_values import forget_queries
from deltamq.jobs.tasks.warehouses import warehouse_of
from deltamq.jobs.upkeep.dead_paths import delete_due, remember
from deltamq.mq.errors import Corrupt, Unavailable
from deltamq.mq.names import broker_of
from deltamq.tables.config import Config
from deltamq.tables.log.rewrite import Removed
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.queue.metadata import MetaLog
from deltamq.tables.queue.retention import Retained, Retention
from deltamq.tables.queue.segment_retention import drop_segments

#: Groups that the facts name (the farthest behind), and partitions that an error names.
_SHOWN_MAX: Final = 5
#: Partitions in one task; the task reads the input of the rules once for all of them.
_PARTITIONS_PER_TASK: Final = 512


class RetainItem(msgspec.Struct, frozen=True):
    """Partitions of one broker, for one task."""

    conf: Config
    broker: str
    brokers: tuple[str, ...]
    refs: tuple[PartitionRef, ...]
    now_us: int


class Summary(msgspec.Struct):
    """The outcome for some partitions, in bounded size whatever their number."""

    partitions: int = 0
    removed: Removed = msgspec.field(default_factory=Removed)
    unmerged: int = 0
    holding: set[str] = msgspec.field(default_factory=set)
    lags: dict[str, int] = msgspec.field(default_factory=dict)
    gone: list[str] = msgspec.field(default_factory=list)
    failed: int = 0
    corrupt: bool = False
    errors: list[str] = msgspec.field(default_factory=list)
    #: Segments of static topics that were dropped, and the folders of dropped segments that were deleted.
    dropped: int = 0
    folders: int = 0

    def add(self, retained: Retained) -> None:
        self.partitions += 1
        self.removed += retained.removed
        if retained.ref.space is Space.SYS:
            self.unmerged += bool(retained.held_by)
        else:
            self.holding.update(retained.held_by)
        for lag in retained.lags:
            self._add_lag(lag.group, lag.messages)
        self.gone += retained.gone
        if retained.error is not None:
            self.failed += 1
            self.corrupt |= isinstance(retained.error, Corrupt)
            self._add_errors([f"{retained.ref.folder}: {type(retained.error).__name__}: {retained.error}"])

    def add_summary(self, other: Summary) -> None:
        """Add the summary of a task."""
        self.partitions += other.partitions
        self.removed += other.removed
        self.unmerged += other.unmerged
        self.holding |= other.holding
        for group, messages in other.lags.items():
            self._add_lag(group, messages)
        self.gone += other.gone
        self.failed += other.failed
        self.corrupt |= other.corrupt
        self._add_errors(other.errors)

    def _add_lag(self, group: str, messages: int) -> None:
        self.lags[group] = self.lags.get(group, 0) + messages

    def drop_segments(self, warehouse: Warehouse, cluster: str, now: datetime) -> None:
        """Drop the segments of static topics whose messages are all removed by now."""
        done = drop_segments(warehouse, MetaLog(warehouse), cluster, int(now.timestamp() * 1_000))
        self.dropped += done.segments
        self.folders += done.folders
        self.failed += len(done.errors)
        self._add_errors(done.errors)

    def _add_errors(self, errors: Iterable[str]) -> None:
        self.errors = [*self.errors, *errors][:_SHOWN_MAX]

    def facts(self) -> Facts:
        facts: dict[str, int | str] = {
            "partitions": self.partitions,
            "files": self.removed.files,
            "rows": self.removed.messages,
            "bytes": self.removed.bytes,
        }
        if self.dropped or self.folders:
            facts |= {"segments_dropped": self.dropped, "folders_deleted": self.folders}
        if self.holding:
            facts["held_by"] = _shown(sorted(self.holding))
        if self.unmerged:
            facts["unmerged"] = self.unmerged
        if self.lags:
            behind = sorted(self.lags.items(), key=lambda item: (-item[1], item[0]))
            facts["lags"] = _shown([f"{group}:{messages}" for group, messages in behind])
        return facts

    def check(self) -> None:
        """Raise an error if partitions failed; its message also counts the removed messages."""
        if self.failed:
            done = " ".join(f"{key}={value}" for key, value in self.facts().items())
            kind = Corrupt if self.corrupt else Unavailable
            shown = "; ".join(self.errors)
            raise kind(
                f"{self.failed} of {self.partitions} partitions failed: {shown}; the others: {done}",
                code="retain_failed",
            )


_summaries: Final = msgspec.msgpack.Decoder(Summary)


@job(name="retain", every_s=lambda conf: conf.jobs.retain_every_s, needs_spark=with_spark_engine)
def retain(spark: Any, conf: Config, now: datetime, shards: Sequence[str] | None = None) -> Facts:
    """Remove messages whose retention time is over, in all partitions of all spaces.

    Input: every partition's live files with their append times; topics and groups; the groups' committed offsets and
    messages in flight; the progress of the merge job; the delay marks. `tables.queue.retention_rules` holds the
    rules.

    Output: at most one commit for each partition, which removes whole files from its front. The files themselves are
    deleted `log.file_keep_ms` later by this application and by the services that have the partition open, or, if all
    these have ended by then, `log.orphan_keep_ms` later by the next process that has it open.

    Then the segments of static topics whose messages are all removed are dropped from their queues, in one append to
    the metadata for each topic, and their folders are deleted (`tables.queue.segment_retention`). The values of queries
    of ended applications (`reads/`) are removed a day later, claims of streams (`jobs/streams/`) a month later.

    Idempotent: a removed file is no longer live, so it is not removed again. Two runs at once, or a run and any append
    or roll-up, race for the next version of a partition, and the loser decides again.

    A kill at any line leaves each partition as before or after its one commit, and folders of dropped segments; the
    next run does the rest.

    `rows` are the messages removed. `held_by` names the groups that hold back messages which are old enough to go.
    `unmerged` counts the queue's own logs with records that are old enough, but not in the state tables yet. `lags`
    says how many stored messages each group is behind.

    Raises
    ------
    Corrupt, Unavailable
        Some partitions failed; all others were processed.
    """
    store, now_ms = warehouse_of(conf).store, int(now.timestamp() * 1_000)
    forget_queries(store, now_ms)
    forget_claims(store, now_ms)
    if spark is not None:
        return retain_in_tasks(runner_of(spark), conf, now)
    warehouse = warehouse_of(conf)
    summary = Summary()
    retention = Retention(warehouse, conf.retention, conf.warehouse.cluster)
    for retained in retention.run(brokers_of(warehouse, conf), int(now.timestamp() * 1_000_000)):
        summary.add(retained)
    summary.drop_segments(warehouse, conf.warehouse.cluster, now)
    summary.check()
    return summary.facts()


def retain_in_tasks(run: Runner, conf: Config, now: datetime) -> Facts:
    """Do the same with a task for each item."""
    warehouse = warehouse_of(conf)
    delete_due(warehouse)
    items = _items(warehouse, conf, tuple(brokers_of(warehouse, conf)), int(now.timestamp() * 1_000_000))
    summary = Summary()
    for part in run(items, retain_partitions, _summaries):
        summary.add_summary(part)
    remember(warehouse, summary.gone)
    summary.drop_segments(warehouse, conf.warehouse.cluster, now)
    summary.check()
    return summary.facts()


def _items(warehouse: Warehouse, conf: Config, brokers: tuple[str, ...], now_us: int) -> list[RetainItem]:
    partitions = [ref for space in Space for ref in warehouse.refs(space)]
    items = []
    for broker, group in groupby(sorted(partitions, key=_broker), key=_broker):
        refs = tuple(group)
        for at in range(0, len(refs), _PARTITIONS_PER_TASK):
            items.append(RetainItem(conf, broker, brokers, refs[at : at + _PARTITIONS_PER_TASK], now_us))
    return items


def _broker(ref: PartitionRef) -> str:
    return broker_of(ref.name)


def _shown(words: Sequence[str]) -> str:
    more = f",+{len(words) - _SHOWN_MAX}" if len(words) > _SHOWN_MAX else ""
    return ",".join(words[:_SHOWN_MAX]) + more


# In tasks.


def retain_partitions(item: RetainItem) -> Summary:
    """Remove what is due in an item's partitions."""
    warehouse = warehouse_of(item.conf)
    retention = Retention(warehouse, item.conf.retention, item.conf.warehouse.cluster)
    summary = Summary()
    for retained in retention.run_some(item.refs, item.brokers, item.broker, item.now_us):
        summary.add(retained)
    return summary
