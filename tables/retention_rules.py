"""Which rule of retention applies to which partition, and to which of its files (SPEC RETRY-6).

| partition            | a message is kept for                | and also until                                  |
|----------------------|--------------------------------------|-------------------------------------------------|
| topic                | the topic's `retention_ms`           | its checkpoints are done; groups, if waited for |
| retried messages     | `retention.retry_ms`                 | the same, of its one group                      |
| dead letters         | `retention.dead_ms`                  |                                                 |
| checkpoints, offsets | `retention.system_ms`                | the merge job has it in its tables              |
| lost messages        | `retention.system_ms`                | the same                                        |
| delayed messages     | deliver time, `retention.delayed_ms` | it and all before it have ended                 |
| marks about these    | `retention.system_ms`                | what they are about is removed                  |
| all else             | for ever                             |                                                 |

Partitions of a topic or group whose life is over are kept as long, and nobody holds them back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Final

import pyarrow.compute as pc

from mq.checkpoint import LaneKey
from mq.checkpoint_state import CheckpointState
from mq.errors import DeltaMQError
from mq.limits import RETENTION_MS_DEFAULT
from mq.names import split_partition
from mq.retention import (
    Dated,
    Hold,
    Progress,
    Readers,
    checkpoint_holds,
    group_holds,
    progress_of,
    readers_of,
)
from mq.retry_topic import RetryTopic
from mq.topics import Topic
from tables.actions import DataFile
from tables.config import RetentionSettings
from tables.delay_marks import ended_below, void_marks_below
from tables.log import PartitionLog
from tables.merge_plan import merged_to
from tables.metadata import Meta
from tables.paths import PartitionRef, Space
from tables.queue_refs import DELAY, DELAY_MARKS, LOST, OFFSETS, REVIVE_LOG, lives_of_retry
from tables.reader import FileReader, RowCache
from tables.recovery import recover
from tables.warehouse import Warehouse

__all__ = ["Rule", "Rules"]

#: Who holds back what is not merged yet.
_MERGE: Final = "merge"
_MERGED: Final = (REVIVE_LOG, OFFSETS, LOST)
#: Each file is looked at once.
_CACHE_BYTES: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What applies to one partition."""

    keep_ms: int
    holds: tuple[Hold, ...] = ()
    #: The groups that read there.
    readers: Readers = field(default_factory=dict)


class _Queue:
    """What is known of the queue at one moment."""

    def __init__(self, warehouse: Warehouse, cluster: str, brokers: Sequence[str], meta: Meta) -> None:
        self.topics = meta.topics
        self.groups = meta.groups
        known = recover(warehouse, cluster, brokers)
        self.progress: Progress = progress_of(known.committed, meta.groups)
        self._retry: dict[LaneKey, Sequence[CheckpointState]] = {}
        self._topic: dict[tuple[str, str], list[CheckpointState]] = {}
        for lane, states in known.states.items():
            if lane.retry:
                self._retry[lane] = states
            else:
                self._topic.setdefault((lane.topic_id, lane.partition), []).extend(states)

    def of_topic(self, topic: Topic, partition: str) -> tuple[list[Hold], Readers]:
        """What open checkpoints hold in a topic's partition, and the groups that read there."""
        states = self._topic.get((topic.id, partition), [])
        holds = checkpoint_holds(states, self.groups, topic_id=topic.id)
        return list(holds), readers_of(self.progress, topic_id=topic.id, partition=partition)

    def of_retry(self, lane: LaneKey) -> tuple[list[Hold], Readers]:
        """The same for a partition of retried messages."""
        holds = checkpoint_holds(self._retry.get(lane, ()), self.groups, topic_id=lane.topic_id)
        return list(holds), {lane.group: self.progress.get(lane.topic_id, {}).get(lane)}


class Rules:
    """What applies to each partition, by what is known at one moment."""

    def __init__(
        self,
        warehouse: Warehouse,
        settings: RetentionSettings,
        cluster: str,
        brokers: Sequence[str],
        meta: Meta,
    ) -> None:
        self._warehouse = warehouse
        self._settings = settings
        self._cluster = cluster
        self._brokers = brokers
        self._meta = meta
        self._queue: _Queue | DeltaMQError | None = None
        self._merged: Mapping[PartitionRef, int] | DeltaMQError | None = None

    def of(self, log: PartitionLog) -> Rule | None:
        """The rule for a partition; None for one that is kept for ever.

        Raises
        ------
        DeltaMQError
            What it depends on cannot be read now: nothing of it may go.
        """
        ref = log.ref
        if ref.space is Space.TOPICS:
            return self._of_topic(log)
        if ref.space is Space.RETRY:
            return self._of_retry(log)
        if ref.space is Space.DLQ:
            return Rule(keep_ms=self._settings.dead_ms)
        kind = self._kind(ref)
        if kind in _MERGED:
            return Rule(keep_ms=self._settings.system_ms, holds=(Hold(self._merged_to(ref), _MERGE),))
        if kind == DELAY:
            return Rule(keep_ms=self._settings.delayed_ms)
        if kind == DELAY_MARKS:
            return Rule(keep_ms=self._settings.system_ms)
        return None

    def files(self, log: PartitionLog, now_us: int) -> Iterator[Dated]:
        """The files that retention may look at, oldest first, each with the time from which it ages."""
        kind = self._kind(log.ref)
        if kind == DELAY:
            return self._delayed(log, now_us)
        if kind == DELAY_MARKS:
            return self._marks(log)
        return (Dated(file.end, file.append_max_us) for file in log.files)

    def _kind(self, ref: PartitionRef) -> str | None:
        """Which of the queue's own logs this is; None for other partitions, and for another cluster's."""
        ours = ref.space is Space.SYS and ref.topic.endswith(f"_{self._cluster}")
        return ref.topic.removesuffix(f"_{self._cluster}") if ours else None

    # Topics, and what is retried of them.

    def _topic(self, name: str, generation: int) -> Topic | None:
        """The topic, if that life of it is the present one."""
        topic = self._meta.topics.topics.get(name)
        return topic if topic is not None and topic.generation == generation else None

    def _of_topic(self, log: PartitionLog) -> Rule:
        topic = self._topic(log.ref.topic, log.ref.generation)
        if topic is None:
            return Rule(keep_ms=RETENTION_MS_DEFAULT)
        holds, readers = self._known().of_topic(topic, log.ref.name)
        return self._shared(log.ref.space, topic.settings.retention_ms, holds, readers)

    def _of_retry(self, log: PartitionLog) -> Rule:
        retry = RetryTopic.of_storage_name(log.ref.topic)
        epoch, generation = lives_of_retry(log.ref.generation)
        topic, group = self._topic(retry.topic, generation), self._meta.groups.groups.get(retry.group)
        if topic is None or group is None or group.epoch != epoch:
            return Rule(keep_ms=self._settings.retry_ms)
        holds, readers = self._known().of_retry(LaneKey(topic.id, group.name, True, log.ref.name))
        return self._shared(log.ref.space, self._settings.retry_ms, holds, readers)

    def _shared(self, space: Space, keep_ms: int, holds: list[Hold], readers: Readers) -> Rule:
        if self._settings.wait_for_groups:
            holds += group_holds(readers, self._meta.groups, from_first=space is Space.RETRY)
        return Rule(keep_ms=keep_ms, holds=tuple(holds), readers=readers)

    def _known(self) -> _Queue:
        """What is known of the queue, read when it is first needed."""
        if self._queue is None:
            try:
                self._queue = _Queue(self._warehouse, self._cluster, self._brokers, self._meta)
            except DeltaMQError as error:
                self._queue = error
        if isinstance(self._queue, DeltaMQError):
            raise _again(self._queue)
        return self._queue

    # The queue's own logs.

    def _merged_to(self, ref: PartitionRef) -> int:
        if self._merged is None:
            try:
                self._merged = merged_to(self._warehouse.store)
            except DeltaMQError as error:
                self._merged = error
        if isinstance(self._merged, DeltaMQError):
            raise _again(self._merged)
        return self._merged.get(ref, 0)

    def _delayed(self, log: PartitionLog, now_us: int) -> Iterator[Dated]:
        """Files of which all messages have ended, aged from their last deliver time."""
        ended: int | None = None
        for file in log.files:
            aged = Dated(file.end, file.append_max_us)
            if self._is_old(aged, now_us):
                # No statistics have it; it is read for the first files only.
                aged = Dated(file.end, max(file.append_max_us, _last_deliver_us(self._warehouse, log, file)))
            if self._is_old(aged, now_us):
                if ended is None:
                    ended = ended_below(self._warehouse, self._cluster, _broker(log.ref))
                if file.end > ended:
                    return
            yield aged

    def _is_old(self, file: Dated, now_us: int) -> bool:
        return file.time_us + self._settings.delayed_ms * 1_000 <= now_us

    def _marks(self, log: PartitionLog) -> Iterator[Dated]:
        """Files of marks that are only about messages which are removed."""
        void = void_marks_below(self._warehouse, self._cluster, _broker(log.ref))
        return (Dated(file.end, file.append_max_us) for file in takewhile(lambda file: file.end <= void, log.files))


def _broker(ref: PartitionRef) -> str:
    return split_partition(ref.name)[1]


def _last_deliver_us(warehouse: Warehouse, log: PartitionLog, file: DataFile) -> int:
    """When the last of a file's messages is to be delivered."""
    reader = FileReader(warehouse.store, log.ref.folder, RowCache(_CACHE_BYTES))
    groups = reader.groups(file, file.start, file.end, ["deliver_time"])
    return max(pc.max(rows.column("deliver_time")).value or 0 for rows in groups)


def _again(error: DeltaMQError) -> DeltaMQError:
    """The same error anew, for another partition that depends on the same."""
    return type(error)(error.detail, code=error.code)
