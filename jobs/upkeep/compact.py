"""The job `compact`: replaces adjacent files of a partition by files of the target size (SPEC SPARK-8).

    tasks over chunks of partitions    load the log, plan                          -> ranges of offsets
    tasks over runs of these ranges    read, encode, put, commit, each by itself   -> counts

The local engine runs the same functions one after another in this process.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any, Final

import msgspec

from deltamq.jobs.run.registry import Facts, job, with_spark_engine
from deltamq.jobs.tasks.items import chunks_of, runner_of
from deltamq.jobs.tasks.warehouses import warehouse_of
from deltamq.jobs.upkeep.dead_paths import delete_due, remember
from deltamq.mq.errors import Corrupt, DeltaMQError, Unavailable
from deltamq.mq.limits import RETENTION_MS_DEFAULT
from deltamq.tables.config import Config
from deltamq.tables.delta.snapshot import PartitionNotFound, load
from deltamq.tables.log.warehouse import Warehouse, refs
from deltamq.tables.ops.compaction_plan import RETENTION_PART, TAIL_FILES_MAX, CompactionTargets, plan_compaction
from deltamq.tables.ops.compactor import Compacted, Compactor
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.queue.metadata import read_meta
from deltamq.tables.store.at_once import at_once
from deltamq.tables.store.store import ListedFile, Store

#: The queue's own logs are left out: their records are removed within the hour, by retention or by the log itself.
_SPACES: Final = (Space.TOPICS, Space.RETRY, Space.DLQ)
#: Files that one task makes; it opens the partition once for all of them.
_RANGES_PER_TASK: Final = 4
#: Partitions that a worker process keeps open for later tasks.
_OPEN_MAX: Final = 64
_SHOWN_MAX: Final = 5


class PlanItem(msgspec.Struct, frozen=True):
    """Partitions that one task plans, each with its retention time in milliseconds."""

    conf: Config
    partitions: tuple[tuple[PartitionRef, int], ...]
    in_task: bool = True


class CompactItem(msgspec.Struct, frozen=True):
    """Ranges of offsets of one partition; each range becomes one file."""

    conf: Config
    ref: PartitionRef
    ranges: tuple[tuple[int, int], ...]
    #: Whether the process runs only tasks; then it may close partitions, since nothing else in it uses them.
    in_task: bool = True


class Planned(msgspec.Struct, frozen=True):
    """The ranges of offsets of a partition that each become one file, or why there is no plan."""

    ref: PartitionRef
    ranges: list[tuple[int, int]]
    error: str | None = None


class Done(msgspec.Struct, frozen=True):
    """What became of the ranges of an item, as far as there was no error."""

    ref: PartitionRef
    results: list[Compacted]
    error: str | None = None


_plans: Final = msgspec.msgpack.Decoder(list[Planned])
_outcomes: Final = msgspec.msgpack.Decoder(Done)


@job(name="compact", every_s=lambda conf: conf.jobs.compact_every_s, needs_spark=with_spark_engine)
def compact(spark: Any, conf: Config, now: datetime, shards: Sequence[str] | None = None) -> Facts:
    """Replace small files by files of the target size, in topics, retries and dead letters.

    Input: the live files of every partition, and its retention time.

    Output: for each group of adjacent files one file with the same rows, and one commit without a change of data. The
    old files are deleted `log.file_keep_ms` later by the services that have the partition open, or by this application.

    Idempotent: a replaced file is no longer live, so it is not replaced again. Two runs at once, or a run and any
    append, roll-up or retention, race for the next version of a partition; a run whose files are gone skips them.

    A kill at any line leaves each group of files as before or after its one commit, and at most a file that no commit
    names. The next run does the rest.

    `rows` are the messages in new files, `files` the old files, `made` the new ones.

    Raises
    ------
    Corrupt, Unavailable
        Some partitions failed; all others were compacted.
    """
    began = time.monotonic()
    warehouse = warehouse_of(conf)
    delete_due(warehouse)
    kept = _partitions(warehouse.store, conf)
    run, in_task = runner_of(spark), spark is not None
    plans = run([PlanItem(conf, chunk, in_task) for chunk in chunks_of(kept)], plan_partitions, _plans)
    planned = [plan for some in plans for plan in some]
    done = run(_items(conf, planned, in_task), compact_ranges, _outcomes)
    for item in done:
        remember(warehouse, [f"{item.ref.folder}/{path}" for result in item.results for path in result.removed])
    facts = _facts(len(kept), [result for item in done for result in item.results], began)
    errors = [plan.error for plan in planned if plan.error] + [item.error for item in done if item.error]
    if errors:
        kind = Corrupt if any(error.startswith(Corrupt.__name__) for error in errors) else Unavailable
        shown = "; ".join(errors[:_SHOWN_MAX])
        raise kind(f"{len(errors)} partitions failed: {shown}; the others: {facts}", code="compact_failed")
    return facts


def _partitions(store: Store, conf: Config) -> list[tuple[PartitionRef, int]]:
    meta = read_meta(store)
    topics = {} if meta is None else meta.topics.topics
    partitions = []
    for ref in (ref for space in _SPACES for ref in refs(store, space)):
        keep_ms = conf.retention.dead_ms if ref.space is Space.DLQ else conf.retention.retry_ms
        if ref.space is Space.TOPICS:
            topic = topics.get(ref.topic)
            present = topic is not None and topic.generation == ref.generation
            keep_ms = topic.settings.retention_ms if topic is not None and present else RETENTION_MS_DEFAULT
        partitions.append((ref, keep_ms))
    return partitions


def _items(conf: Config, planned: Iterable[Planned], in_task: bool) -> list[CompactItem]:
    """A partition's ranges make several items, so that several tasks share a large partition."""
    items = []
    for plan in planned:
        for at in range(0, len(plan.ranges), _RANGES_PER_TASK):
            items.append(CompactItem(conf, plan.ref, tuple(plan.ranges[at : at + _RANGES_PER_TASK]), in_task))
    return items


def _facts(partitions: int, results: Sequence[Compacted], began: float) -> Facts:
    return {
        "partitions": partitions,
        "files": sum(len(result.removed) for result in results),
        "made": sum(bool(result.removed) for result in results),
        "rows": sum(result.rows for result in results),
        "bytes": sum(result.bytes_before for result in results),
        "bytes_after": sum(result.bytes_after for result in results),
        "ms": int((time.monotonic() - began) * 1000),
    }


# In tasks.


def plan_partitions(item: PlanItem) -> list[Planned]:
    """Return the plan for each of an item's partitions that has something to compact, or failed."""
    warehouse = warehouse_of(item.conf)
    plans = []
    listed = at_once(warehouse.store, partial(_entries, warehouse.store), [ref for ref, _ in item.partitions])
    for (ref, keep_ms), entries in zip(item.partitions, listed, strict=True):
        try:
            if isinstance(entries, Exception):
                raise entries
            ranges = list(_ranges(item, warehouse, ref, entries, _target(item.conf, keep_ms)))
        except PartitionNotFound:
            continue  # deleted a moment ago
        except (DeltaMQError, OSError) as error:
            plans.append(Planned(ref, [], _error_text(ref, error)))
        else:
            plans += [Planned(ref, ranges)] if ranges else []
    return plans


def _target(conf: Config, keep_ms: int) -> CompactionTargets:
    size = conf.jobs.compact_target_bytes
    tail_bytes = min(conf.log.rollup_bytes_max, size) // 2
    return CompactionTargets(bytes=size, tail_bytes=tail_bytes, span_ms=keep_ms // RETENTION_PART)


def _entries(store: Store, ref: PartitionRef) -> Sequence[ListedFile] | Exception:
    try:
        return store.entries(ref.folder)
    except (DeltaMQError, OSError) as error:
        return error  # it concerns this partition alone


def _ranges(
    item: PlanItem, warehouse: Warehouse, ref: PartitionRef, entries: Sequence[ListedFile], target: CompactionTargets
) -> Iterable[tuple[int, int]]:
    # Listing a folder is much cheaper than loading a log, and where there are many partitions, most are small.
    if len(entries) <= TAIL_FILES_MAX and sum(entry.size for entry in entries) < target.tail_bytes:
        return
    if len(entries) > TAIL_FILES_MAX:
        with _opened(warehouse, ref, item.in_task) as compactor:
            compactor.roll_up()
    for group in plan_compaction(load(warehouse.store, ref.folder).files, target):
        yield group[0].start, group[-1].end


def compact_ranges(item: CompactItem) -> Done:
    """Compact the ranges of an item."""
    done: list[Compacted] = []
    try:
        with _opened(warehouse_of(item.conf), item.ref, item.in_task) as compactor:
            for start, end in item.ranges:
                done.append(compactor.compact(start, end))
    except PartitionNotFound:
        return Done(item.ref, [])  # deleted meanwhile, with the new files
    except (DeltaMQError, OSError) as error:
        return Done(item.ref, done, _error_text(item.ref, error))
    return Done(item.ref, done)


@contextmanager
def _opened(warehouse: Warehouse, ref: PartitionRef, in_task: bool) -> Iterator[Compactor]:
    """A worker process keeps partitions open for later tasks, up to `_OPEN_MAX`."""
    log = warehouse.open_partition(ref)
    try:
        yield Compactor(log, warehouse.store, settings=warehouse.settings, clock=warehouse.clock)
    finally:
        if in_task and len(warehouse.open_logs) > _OPEN_MAX:
            warehouse.close_partition(ref)


def _error_text(ref: PartitionRef, error: Exception) -> str:
    kind = Corrupt if isinstance(error, Corrupt) else type(error)
    return f"{kind.__name__}: {ref.folder}: {error}"
