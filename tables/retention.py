"""Removes from the partitions of a warehouse what retention allows (SPEC RETRY-6).

`mq.retention` decides by itself, `tables.retention_rules` says what it decides about.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from mq.errors import DeltaMQError
from mq.progress import Bounds
from mq.retention import Lag, decide, is_old, lags_of
from tables.config_sections import RetentionSettings
from tables.log import PartitionLog
from tables.metadata import MetaLog
from tables.partition_stats import Removed
from tables.paths import PartitionRef, Space
from tables.retention_rules import Rules
from tables.snapshot import PartitionNotFound
from tables.warehouse import Warehouse

__all__ = ["Retained", "Retention"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Retained:
    """What became of one partition in one run."""

    ref: PartitionRef
    removed: Removed = field(default_factory=Removed)
    #: Groups that keep messages which are old enough to go; in the queue's own logs, the merge job.
    held_by: tuple[str, ...] = ()
    #: How far groups are behind here, afterwards.
    lags: tuple[Lag, ...] = ()
    error: Exception | None = None


class Retention:
    """Removes what is due, in all partitions of a warehouse. For one thread; blocking."""

    def __init__(self, warehouse: Warehouse, settings: RetentionSettings, cluster: str) -> None:
        self._warehouse = warehouse
        self._settings = settings
        self._cluster = cluster
        self._meta = MetaLog(warehouse)

    def run(self, brokers: Sequence[str], now_us: int) -> Iterator[Retained]:
        """Remove what is due at `now_us` (UTC); one result for each partition, whatever becomes of the others."""
        self._meta.refresh()
        logs: list[PartitionLog] = []
        for ref in [ref for space in Space for ref in self._warehouse.refs(space)]:
            try:
                log = self._warehouse.open_partition(ref)
                log.refresh()
                logs.append(log)
            except PartitionNotFound:
                continue  # deleted a moment ago
            except (DeltaMQError, OSError) as error:
                yield Retained(ref=ref, error=error)
        # After the logs: what was popped from them until now is known.
        rules = Rules(self._warehouse, self._settings, self._cluster, brokers, self._meta.meta, now_us)
        for log in logs:
            try:
                yield self._retain(log, rules, now_us)
            except PartitionNotFound:
                continue
            except (DeltaMQError, OSError) as error:
                yield Retained(ref=log.ref, error=error)

    def _retain(self, log: PartitionLog, rules: Rules, now_us: int) -> Retained:
        rule = rules.of(log)
        if rule is None:
            return Retained(ref=log.ref)
        old = list(takewhile(lambda file: is_old(file, now_us, rule.keep_ms), rules.files(log, now_us)))
        verdict = decide(old, now_us=now_us, keep_ms=rule.keep_ms, holds=rule.holds() if old else ())
        removed = log.delete_below(verdict.below) if verdict.below > log.min_offset else Removed()
        log.clean()
        lags = lags_of(rule.readers, Bounds(log.min_offset, log.end_offset))
        return Retained(ref=log.ref, removed=removed, held_by=verdict.held_by, lags=lags)
