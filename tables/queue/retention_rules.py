"""The retention rule of each partition, and the files that it applies to (SPEC RETRY-6).

| partition            | a message is kept for                | and also until                                  |
|----------------------|--------------------------------------|-------------------------------------------------|
| topic                | its `retention_ms`; by size less     | pops of it are done; groups, if waited for      |
| retried messages     | `retention.retry_ms`                 | the same, for its one group                     |
| dead letters         | `retention.dead_ms`                  |                                                 |
| marks about these    | the same                             | the dead letters that they are about are removed |
| marks of quarantined | the same                             | the messages that they are about are removed    |
| checkpoints, offsets | `retention.system_ms`                | the merge job has it in its tables              |
| lost messages        | `retention.system_ms`                | the same                                        |
| statistics           | `retention.system_ms`                | the same                                        |
| delayed messages     | deliver time, `retention.delayed_ms` | it and all before it have ended                 |
| marks about these    | `retention.system_ms`                | the messages that they are about are removed    |
| acts, refusals       | `retention.audit_ms`                 |                                                 |
| samples of gauges    | `retention.history_ms`               |                                                 |
| all others           | for ever (`MetaLog` trims metadata)  |                                                 |

By `retention_bytes` a topic's files go earlier, while so many bytes stay behind them. Messages of a deleted topic or
group are kept as long (a topic's for the default time), but no group holds them back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Final, Generic, Protocol, TypeVar

import msgspec
import pyarrow.compute as pc

from deltamq.mq.errors import DeltaMQError
from deltamq.mq.limits import RETENTION_MS_DEFAULT
from deltamq.mq.meta.fold import Meta
from deltamq.mq.meta.retention_holds import (
    Dated,
    Hold,
    Readers,
    checkpoint_holds,
    group_holds,
    is_old,
    lease_holds,
    progress_of,
    readers_of,
)
from deltamq.mq.meta.topic_settings import NO_LIMIT, limit_of
from deltamq.mq.meta.topics import Topic
from deltamq.mq.names import broker_of
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.queue.progress import Start
from deltamq.mq.queue.retry import RetryTopic
from deltamq.mq.queue.revive_log import CheckpointState
from deltamq.tables.config_sections import RetentionSettings
from deltamq.tables.delta.actions import DataFile
from deltamq.tables.delta.file_stats import decoded_stats, time_ms
from deltamq.tables.delta.reader import FileReader, RowCache
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.queue.dead_marks import void_dead_marks_below
from deltamq.tables.queue.delay_marks import ended_below, void_marks_below
from deltamq.tables.queue.merge_plan import merged_to
from deltamq.tables.queue.recovery import Follower, recover_progress
from deltamq.tables.queue.refs import (
    AUDIT,
    DELAY,
    DELAY_MARKS,
    HISTORY,
    LOST,
    OFFSETS,
    REVIVE_LOG,
    STATISTICS,
    lives_of_retry,
    marked_ref,
)

T = TypeVar("T")

#: The holder of records that are not merged yet.
_MERGE: Final = "merge"
_MERGED: Final = (REVIVE_LOG, OFFSETS, LOST, STATISTICS)
#: Size of the cache: each file is read once, so nothing is kept.
_CACHE_BYTES: Final = 1


class RetainedPartition(Protocol):
    """What rules need of a partition, which is open or only has its newest state loaded."""

    @property
    def ref(self) -> PartitionRef: ...
    @property
    def files(self) -> Sequence[DataFile]: ...


def _no_holds() -> Iterable[Hold]:
    return ()


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """The rule of one partition."""

    keep_ms: int
    #: Files also go while so many bytes stay behind them; None for no such limit.
    keep_bytes: int | None = None
    #: Returns what holds messages back. This is expensive with many messages in flight, so it is only called if
    #: something is old enough to be removed.
    holds: Callable[[], Iterable[Hold]] = _no_holds
    #: The groups that read the partition, with their progress.
    readers: Readers = msgspec.field(default_factory=dict)


class _Flights:
    """Open checkpoints, by the partition that they were popped from."""

    def __init__(self, warehouse: Warehouse, cluster: str, brokers: Sequence[str]) -> None:
        follower = Follower(warehouse, cluster, brokers)
        follower.refresh()
        self._retry: dict[LaneKey, list[CheckpointState]] = {}
        self._topic: dict[tuple[str, str], list[CheckpointState]] = {}
        for key, state in follower.states.items():
            if not state.open:
                continue
            if key.retry:
                self._retry.setdefault(key.lane, []).append(state)
            else:
                self._topic.setdefault((key.topic_id, key.partition), []).append(state)

    def of_topic(self, topic: Topic, partition: str) -> list[CheckpointState]:
        """Return all groups' checkpoints in a partition of a topic."""
        return self._topic.get((topic.id, partition), [])

    def of_retry(self, lane: LaneKey) -> list[CheckpointState]:
        return self._retry.get(lane, [])


class Rules:
    """The rules of all partitions, by the state at one moment."""

    def __init__(
        self,
        warehouse: Warehouse,
        settings: RetentionSettings,
        cluster: str,
        brokers: Sequence[str],
        meta: Meta,
        now_us: int,
        *,
        flights_of: Sequence[str] | None = None,
    ) -> None:
        """Take what rules depend on; `flights_of` are the brokers of the wanted partitions, if not all `brokers`.

        Only a broker's own revive logs hold what is popped from its partitions. The groups' progress is read for all
        brokers, because a group consumes a topic on any of them.
        """
        self._now_us = now_us
        self._warehouse = warehouse
        self._settings = settings
        self._cluster = cluster
        self._meta = meta
        self._progress = _Once(lambda: progress_of(recover_progress(warehouse, cluster, brokers), meta.groups))
        self._flights = _Once(lambda: _Flights(warehouse, cluster, brokers if flights_of is None else flights_of))
        self._merged = _Once(lambda: merged_to(warehouse.store))

    def of(self, log: RetainedPartition) -> Rule | None:
        """Return the rule for a partition; None if its messages are kept for ever.

        Raises
        ------
        DeltaMQError
            What the rule depends on cannot be read now: nothing may be removed from the partition.
        """
        ref = log.ref
        if ref.space is Space.TOPICS:
            return self._of_topic(log)
        if ref.space is Space.RETRY:
            return self._of_retry(log)
        if ref.space is Space.DLQ or marked_ref(ref) is not None:
            return Rule(keep_ms=self._settings.dead_ms)
        if ref == AUDIT:
            return Rule(keep_ms=self._settings.audit_ms)
        if ref == HISTORY:
            return Rule(keep_ms=self._settings.history_ms)
        kind = self._kind(ref)
        if kind in _MERGED:
            return Rule(keep_ms=self._settings.system_ms, holds=lambda: [self._unmerged(ref)])
        if kind == DELAY:
            return Rule(keep_ms=self._settings.delayed_ms)
        if kind == DELAY_MARKS:
            return Rule(keep_ms=self._settings.system_ms)
        return None

    def files(self, log: RetainedPartition, now_us: int) -> Iterator[Dated]:
        """Return the files that retention may remove, oldest first, each with the time from which it ages."""
        kind = self._kind(log.ref)
        about = marked_ref(log.ref)
        if about is not None:
            return _until(log, void_dead_marks_below(self._warehouse, log.ref, about))
        if kind == DELAY:
            return self._delayed(log, now_us)
        if kind == DELAY_MARKS:
            return _until(log, void_marks_below(self._warehouse, self._cluster, _broker(log.ref)))
        return _sized(log.files)

    def _kind(self, ref: PartitionRef) -> str | None:
        """Return which of the queue's own logs this is; None for other partitions, and for logs of another cluster."""
        ours = ref.space is Space.SYS and ref.topic.endswith(f"_{self._cluster}")
        return ref.topic.removesuffix(f"_{self._cluster}") if ours else None

    # Topics and their retried messages.

    def _topic(self, name: str, generation: int) -> Topic | None:
        """Return the topic if `generation` is its present one; None otherwise."""
        topic = self._meta.topics.topics.get(name)
        return topic if topic is not None and topic.generation == generation else None

    def _of_topic(self, log: RetainedPartition) -> Rule:
        topic = self._topic(log.ref.topic, log.ref.generation)
        if topic is None:
            return Rule(keep_ms=RETENTION_MS_DEFAULT)
        readers = readers_of(self._progress(), topic_id=topic.id, partition=log.ref.name)

        def start_of(group: str) -> Start:
            lane, groups = LaneKey(topic.id, group, False, log.ref.name), self._meta.groups
            return groups.start_in(lane, groups.group(group), topic.route.partitions)

        def holds() -> Iterator[Hold]:
            flights = self._flights().of_topic(topic, log.ref.name)
            yield from checkpoint_holds(flights, self._meta.groups, topic_id=topic.id)
            yield from lease_holds(readers, now_ms=self._now_us // 1_000, keep_ms=self._settings.retry_ms)
            if self._settings.wait_for_groups:
                yield from group_holds(readers, start_of)

        limit = limit_of(topic.settings)
        return Rule(
            keep_ms=topic.settings.retention_ms,
            keep_bytes=None if limit == NO_LIMIT else limit,
            holds=holds,
            readers=readers,
        )

    def _of_retry(self, log: RetainedPartition) -> Rule:
        retry = RetryTopic.of_storage_name(log.ref.topic)
        epoch, generation = lives_of_retry(log.ref.generation)
        topic, group = self._topic(retry.topic, generation), self._meta.groups.groups.get(retry.group)
        if topic is None or group is None or group.epoch != epoch:
            return Rule(keep_ms=self._settings.retry_ms)
        lane = LaneKey(topic.id, group.name, True, log.ref.name)
        readers: Readers = {group.name: self._progress().get(topic.id, {}).get(lane)}

        def holds() -> Iterator[Hold]:
            yield from checkpoint_holds(self._flights().of_retry(lane), self._meta.groups, topic_id=lane.topic_id)
            if self._settings.wait_for_groups:
                yield from group_holds(readers, lambda _: Start())

        return Rule(keep_ms=self._settings.retry_ms, holds=holds, readers=readers)

    # The queue's own logs.

    def _unmerged(self, ref: PartitionRef) -> Hold:
        return Hold(self._merged().get(ref, 0), _MERGE)

    def _delayed(self, log: RetainedPartition, now_us: int) -> Iterator[Dated]:
        """Yield the files of which all messages have ended, which age from their last deliver time."""
        ended: int | None = None
        for file in log.files:
            aged = Dated(file.end, file.append_max_us)
            if is_old(aged, now_us, self._settings.delayed_ms):
                aged = Dated(file.end, max(file.append_max_us, _last_deliver_us(self._warehouse, log, file)))
            if is_old(aged, now_us, self._settings.delayed_ms):
                if ended is None:
                    ended = ended_below(self._warehouse, self._cluster, _broker(log.ref))
                if file.end > ended:
                    return
            yield aged


def _sized(files: Sequence[DataFile]) -> Iterator[Dated]:
    behind = sum(file.size for file in files)
    for file in files:
        behind -= file.size
        yield Dated(file.end, file.append_max_us, behind)


def _until(log: RetainedPartition, void: int) -> Iterator[Dated]:
    """Return the files below `void`: all of their marks are about removed messages."""
    return (Dated(file.end, file.append_max_us) for file in takewhile(lambda file: file.end <= void, log.files))


def _broker(ref: PartitionRef) -> str:
    return broker_of(ref.name)


def _last_deliver_us(warehouse: Warehouse, log: RetainedPartition, file: DataFile) -> int:
    """Return the last deliver time of a file's messages; read only if the statistics lack it (old releases)."""
    known = decoded_stats(file.stats)
    last_ms = time_ms(known.maxValues.get("deliver_time")) if known.nullCount.get("deliver_time") == 0 else None
    if last_ms is not None:
        return last_ms * 1_000
    reader = FileReader(warehouse.store, log.ref.folder, RowCache(_CACHE_BYTES))
    groups = reader.groups(file, file.start, file.end, ["deliver_time"])
    return max(pc.max(rows.column("deliver_time")).value or 0 for rows in groups)


class _Once(Generic[T]):
    """A value that is read when it is first needed; after an error every call raises the same error."""

    def __init__(self, read: Callable[[], T]) -> None:
        self._read = read
        self._value: T | None = None
        self._error: DeltaMQError | None = None

    def __call__(self) -> T:
        if self._error is not None:
            raise type(self._error)(self._error.detail, code=self._error.code)
        if self._value is None:
            try:
                self._value = self._read()
            except DeltaMQError as error:
                self._error = error
                raise
        return self._value
