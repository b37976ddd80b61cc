"""Commits a stream's progress to a group, so that the usual tools show its lag (SPEC SPARK-2, option `group`).

    position up to which all batches are done --> records of the offsets log, one append for each broker
                                                     |--> GET /v1/groups/{group}/topics/{topic}/offsets
                                                     '--> merge --> state/consumer_offsets, mq_lag, retention

The query goes on from its checkpoint folder; the group only shows its progress. So a failed commit is logged, and the
next one makes up for it, and a killed query shows less than it has done, never more.

The group should be the query's own: it is created if it does not exist, and must be `shared` and without order.
Nothing else should pop or pull with it, since a commit moves the position of all its consumers. If two queries use one
group, it shows the farther one. A commit belongs to the group's epoch at the start of this process: after a reset, or a
deletion, the commits of this process are void (I12), and it logs that; commits count again after a restart of the
query.

The group's progress in a logical queue is stored for each segment: the earlier segments are done to their ends.

Input: positions. Output: records in `sys/rmq_sys_OFFSETS_*`. Idempotent since records join: repeated or late records
change nothing. A kill leaves the record or nothing.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from typing import Final

from deltamq.jobs.read.stored_partition import StoredPartition
from deltamq.jobs.stream.followed import FollowedTopics
from deltamq.mq.errors import Conflict, DeltaMQError, Refused
from deltamq.mq.meta.fold import Meta
from deltamq.mq.meta.group import Group, GroupEvent, decide_begin, decide_put_group
from deltamq.mq.meta.group_settings import GroupRequest
from deltamq.mq.names import broker_of
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.queue.progress import STREAM_PRODUCER_PREFIX, Committed, OffsetRecord
from deltamq.mq.streams import StreamOffset
from deltamq.tables.delta.stamped import ProducerStamp
from deltamq.tables.failpoints import failpoint
from deltamq.tables.log.batch import Batch
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.queue.metadata import MetaLog
from deltamq.tables.queue.records import rows_of_offset_records
from deltamq.tables.queue.refs import OFFSETS, system_ref

log = logging.getLogger("deltamq.jobs.stream")

#: Appends between two upkeeps of an offsets log; a service, if one runs, does upkeep as well.
_UPKEEP_EVERY: Final = 64


class GroupProgress:
    """Commits one query's positions to one group; for one thread."""

    def __init__(self, warehouse: str, group: str, cluster: str, followed: FollowedTopics) -> None:
        """Create the group if it does not exist.

        Raises
        ------
        Refused
            The warehouse has no metadata log, so it has no groups.
        Conflict
            The group is exclusive or ordered: its position follows from its consumers' own commits.
        """
        self._group = group
        self._cluster = cluster
        self._followed = followed
        self._warehouse = Warehouse.open(warehouse, create=False)
        self._logs: dict[str, PartitionLog] = {}
        self._epochs: dict[LaneKey, int] = {}
        self._done: dict[LaneKey, int] = {}
        self._void: set[LaneKey] = set()
        self._producer = f"{STREAM_PRODUCER_PREFIX}{group}/{uuid.uuid4().hex}"
        self._seq = 0
        self._begin()

    def _begin(self) -> None:
        if self._followed.meta is None:
            raise Refused("option group: the warehouse has no metadata log, so it has no groups", field="group")
        now_ms = self._warehouse.clock.wall_us() // 1_000

        def decide(meta: Meta) -> Sequence[GroupEvent]:
            events: tuple[GroupEvent, ...] = ()
            if self._group not in meta.groups.groups:
                events = tuple(decide_put_group(meta.groups, self._group, GroupRequest(), now_ms))
            groups = meta.groups.apply_all(events)
            self._check(groups.group(self._group))
            topics = {part.topic_id: part.partition.ref.topic for part in self._followed.partitions.values()}
            counts = {
                topic_id: len(meta.topics.topics[name].route.partitions)
                for topic_id, name in topics.items()
                if name in meta.topics.topics
            }
            return (*events, *decide_begin(groups, self._group, counts))

        meta = MetaLog(self._warehouse).submit_groups(decide)
        for lane in self._lanes():
            self._note_epoch(lane, meta)
        # the group may be new
        self._followed.refresh()

    def _check(self, group: Group) -> None:
        settings = group.settings
        if settings.order is not False or settings.consume_strategy != "shared":
            raise Conflict(
                f"option group: {group.name} is {'ordered' if settings.order is not False else 'exclusive'}, so only "
                "its consumers may commit; give the query a group of its own (shared, without order)",
                code="group_not_for_streams",
                field="group",
            )

    def _lanes(self) -> list[LaneKey]:
        return [
            LaneKey(followed.topic_id, self._group, False, table.partition.ref.name)
            for followed in self._followed.partitions.values()
            for table in followed.tables
        ]

    def _note_epoch(self, lane: LaneKey, meta: Meta) -> None:
        epoch = meta.groups.epoch_of(lane)
        if epoch is not None:
            self._epochs.setdefault(lane, epoch)

    def commit(self, position: StreamOffset) -> None:
        """Record that everything before `position` is done; the next call makes up for a failure."""
        by_broker: dict[str, list[OffsetRecord]] = {}
        for record in self._records(position):
            by_broker.setdefault(broker_of(record.lane.partition), []).append(record)
        for broker, records in by_broker.items():
            try:
                self._append(broker, records)
            except (DeltaMQError, OSError) as error:
                log.warning("event=group_commit_failed group=%r broker=%r detail=%r", self._group, broker, str(error))
            else:
                self._done.update({record.lane: record.committed.offset for record in records})

    def _records(self, position: StreamOffset) -> list[OffsetRecord]:
        meta, records = self._followed.meta, []
        assert meta is not None, "checked by the constructor"
        for topic, topic_id, name, offset in position.places():
            followed = self._followed.partitions.get((topic, name))
            if followed is None or followed.topic_id != topic_id:
                continue
            for partition, done in _done_in_tables(followed.stored, offset):
                lane = LaneKey(topic_id, self._group, False, partition)
                if self._done.get(lane) == done:
                    continue
                self._note_epoch(lane, meta)
                epoch = self._epochs.get(lane)
                if epoch is None or epoch != meta.groups.epoch_of(lane):
                    self._say_void(lane)
                    continue
                records.append(OffsetRecord(lane=lane, topic=topic, committed=Committed(epoch, done)))
        return records

    def _say_void(self, lane: LaneKey) -> None:
        if lane not in self._void:
            self._void.add(lane)
            log.warning(
                "event=group_commit_void group=%r partition=%r detail='the group was deleted, or its offsets were "
                "reset; this query goes on by its checkpoint and shows in the group again after a restart'",
                self._group,
                lane.partition,
            )

    def _append(self, broker: str, records: list[OffsetRecord]) -> None:
        opened = self._logs.get(broker)
        if opened is None:
            opened = self._logs[broker] = self._warehouse.create(system_ref(OFFSETS, self._cluster, broker))
        self._seq += 1
        stamp = ProducerStamp(id=self._producer, seq=self._seq, indexes=None, total=len(records))
        failpoint("stream.before_group_commit")
        opened.append([Batch(rows_of_offset_records(records), stamp)])
        failpoint("stream.after_group_commit")
        if self._seq % _UPKEEP_EVERY == 0:
            opened.maintain()

    def close(self) -> None:
        """Close the warehouse."""
        self._warehouse.close()


def _done_in_tables(stored: StoredPartition, offset: int) -> Iterator[tuple[str, int]]:
    """The tables with messages before the offset that readers see, and the stored offset behind these messages.

    In a logical queue, the tables before the one with the offset are done to their ends (SPEC STATIC-16).
    """
    for table in stored.tables:
        done = min(offset - table.partition.delta, table.end)
        if done > 0:
            yield table.partition.ref.name, done
