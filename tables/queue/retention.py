"""Removal of messages from the partitions of a warehouse as far as retention allows (SPEC RETRY-6).

`mq.meta.retention_holds` decides, as a pure function; `tables.queue.retention_rules` gives it the rules and files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import TypeVar

import msgspec

from deltamq.mq.errors import DeltaMQError
from deltamq.mq.meta.retention_holds import Lag, Removal, decide_removal, is_old, lags_of
from deltamq.mq.queue.progress import Bounds
from deltamq.tables.config_sections import RetentionSettings
from deltamq.tables.delta.actions import DataFile
from deltamq.tables.delta.snapshot import PartitionNotFound, Snapshot, load
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.rewrite import Removed
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.queue.metadata import MetaLog
from deltamq.tables.queue.retention_rules import RetainedPartition, Rule, Rules
from deltamq.tables.store.at_once import at_once

S = TypeVar("S")


class Retained(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one run for one partition."""

    ref: PartitionRef
    removed: Removed = msgspec.field(default_factory=Removed)
    #: The groups (in the queue's own logs, the merge job) that hold back messages which are old enough to be removed.
    held_by: tuple[str, ...] = ()
    #: The lags of groups in this partition after the run.
    lags: tuple[Lag, ...] = ()
    error: Exception | None = None
    #: Keys of the removed files, if the caller has to delete them.
    gone: tuple[str, ...] = ()


class _Seen(msgspec.Struct, frozen=True):
    """The newest state of a partition, which need not be open."""

    ref: PartitionRef
    snapshot: Snapshot

    @property
    def files(self) -> Sequence[DataFile]:
        return self.snapshot.files


class Retention:
    """Removes what is due, in all partitions of a warehouse. For one thread; blocking."""

    def __init__(self, warehouse: Warehouse, settings: RetentionSettings, cluster: str) -> None:
        self._warehouse = warehouse
        self._settings = settings
        self._cluster = cluster
        self._meta = MetaLog(warehouse)

    def run(self, brokers: Sequence[str], now_us: int) -> Iterator[Retained]:
        """Remove what is due at `now_us` (UTC); yield one result for each partition, even if others fail."""
        self._meta.refresh()
        logs: list[PartitionLog] = []
        for found in self._readable([ref for space in Space for ref in self._warehouse.refs(space)], self._newest):
            if isinstance(found, Retained):
                yield found
            else:
                logs.append(found)
        # Created after the logs are refreshed, so that everything popped from them until then is known.
        rules = Rules(self._warehouse, self._settings, self._cluster, brokers, self._meta.meta, now_us)
        for log in logs:
            try:
                yield self._retain(log, rules, now_us)
            except PartitionNotFound:
                continue
            except (DeltaMQError, OSError) as error:
                yield Retained(ref=log.ref, error=error)

    def run_some(
        self, refs: Sequence[PartitionRef], brokers: Sequence[str], broker: str, now_us: int
    ) -> Iterator[Retained]:
        """Remove what is due from some partitions of one broker, as `run` would, for a task that handles only these.

        A partition is only opened if something is removed from it. What the rules need is read once; messages in flight
        are read only for this broker, and only if something is old enough. The caller deletes the files (`gone`).
        """
        self._meta.refresh()
        partitions: list[_Seen] = []
        for found in self._readable(refs, lambda ref: _Seen(ref, load(self._warehouse.store, ref.folder))):
            if isinstance(found, Retained):
                yield found
            else:
                partitions.append(found)
        meta = self._meta.meta
        rules = Rules(self._warehouse, self._settings, self._cluster, brokers, meta, now_us, flights_of=[broker])
        for seen in partitions:
            try:
                yield self._retain_unopened(seen, rules, now_us)
            except PartitionNotFound:
                continue
            except (DeltaMQError, OSError) as error:
                yield Retained(ref=seen.ref, error=error)

    def _newest(self, ref: PartitionRef) -> PartitionLog:
        log = self._warehouse.open_partition(ref)
        log.refresh()
        return log

    def _readable(self, refs: Sequence[PartitionRef], see: Callable[[PartitionRef], S]) -> Iterator[S | Retained]:
        """Yield what `see` returns for each partition that is there, or why it cannot be read."""

        def seen(ref: PartitionRef) -> S | Retained | None:
            try:
                return see(ref)
            except PartitionNotFound:
                return None  # deleted a moment ago
            except (DeltaMQError, OSError) as error:
                return Retained(ref=ref, error=error)

        return (found for found in at_once(self._warehouse.store, seen, refs) if found is not None)

    def _retain_unopened(self, seen: _Seen, rules: Rules, now_us: int) -> Retained:
        rule = rules.of(seen)
        if rule is None:
            return Retained(ref=seen.ref)
        verdict = verdict_of(seen, rule, rules, now_us)
        low, end = seen.snapshot.min_offset, seen.snapshot.end_offset
        if verdict.below <= low:
            return Retained(ref=seen.ref, held_by=verdict.held_by, lags=lags_of(rule.readers, Bounds(low, end)))
        log = self._warehouse.open_partition(seen.ref)
        removed = log.delete_below(verdict.below)
        live = {file.path for file in log.files}
        gone = tuple(f"{seen.ref.folder}/{file.path}" for file in seen.files if file.path not in live)
        lags = lags_of(rule.readers, Bounds(log.min_offset, log.end_offset))
        self._warehouse.close_partition(seen.ref)
        return Retained(ref=seen.ref, removed=removed, held_by=verdict.held_by, lags=lags, gone=gone)

    def _retain(self, log: PartitionLog, rules: Rules, now_us: int) -> Retained:
        rule = rules.of(log)
        if rule is None:
            return Retained(ref=log.ref)
        verdict = verdict_of(log, rule, rules, now_us)
        removed = log.delete_below(verdict.below) if verdict.below > log.min_offset else Removed()
        log.clean()
        lags = lags_of(rule.readers, Bounds(log.min_offset, log.end_offset))
        return Retained(ref=log.ref, removed=removed, held_by=verdict.held_by, lags=lags)


def verdict_of(seen: RetainedPartition, rule: Rule, rules: Rules, now_us: int) -> Removal:
    """Return what may be removed of a partition by its rule; asks what holds it back only if something is old."""
    keep_ms, keep_bytes = rule.keep_ms, rule.keep_bytes
    old = list(takewhile(lambda file: is_old(file, now_us, keep_ms, keep_bytes), rules.files(seen, now_us)))
    holds = rule.holds() if old else ()
    return decide_removal(old, now_us=now_us, keep_ms=keep_ms, keep_bytes=keep_bytes, holds=holds)
