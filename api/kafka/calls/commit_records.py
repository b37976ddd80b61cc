"""The topic `__consumer_offsets`: the offsets logs as Kafka's clients read them (SPEC KAFKA-30).

    offsets log of broker-a    partition 0        row       group, lane, epoch, offset, text; JSON
    offsets log of broker-b    partition 1        record    key: group, topic, partition; value: offset, text, time

Nothing is stored for it. A row becomes a record when it is fetched, at the row's offset: offsets are those of the log,
after a restart, too, and what retention takes of the log once it is merged is what Kafka's compaction would take. A
broker keeps its number, and all that a group commits in a partition is in the log of that partition's broker, in order.

Some rows are no records, and leave gaps: progress in retry partitions, of clients of broadcast groups, in topics that
are deleted or that Kafka's clients cannot use, and from before a reset. A null value says that a group has no offset.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa

from deltamq.api.host.hosted_meta import HostedMeta
from deltamq.api.host.hosted_topic import Topics
from deltamq.api.kafka.records.columns import Int64s, Records
from deltamq.api.kafka.rows import RECORD_COLUMNS
from deltamq.api.log.partition import Partitions
from deltamq.mq.meta.fold import Meta
from deltamq.mq.meta.group import NO_OFFSET, GroupsState
from deltamq.mq.meta.topics import Topic
from deltamq.mq.names import split_member
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.queue.progress import OffsetRecord
from deltamq.mq.static.logical_queue import TopicQueues
from deltamq.mq.static.segments import Segment
from deltamq.tables.kafka_row import kafka_time_ms
from deltamq.tables.queue.records import offset_records_of

#: The columns of the logs that are read.
COLUMNS: Final = (*RECORD_COLUMNS, "tag")
#: Versions of key and value: readers made for Kafka 2.1 and later know them. No commit here has a leader epoch.
_KEY_VERSION: Final = 1
_VALUE_VERSION: Final = 3
_NO_EPOCH: Final = -1


class CommitRecords:
    """Makes records of commits; used on the event loop."""

    def __init__(self, topics: Topics, meta: HostedMeta, partitions: Partitions) -> None:
        self._topics = topics
        self._meta = meta
        self._partitions = partitions
        #: The places of lanes, and the metadata that they are from.
        self._places: tuple[Meta, Places] | None = None

    async def of(self, rows: pa.Table) -> tuple[Int64s, Records]:
        """Return the records that rows of an offsets log are, and their offsets; there may be none.

        Raises
        ------
        Corrupt
            `record_corrupt`: a row is no commit.
        """
        commits = await self._partitions.run(partial(offset_records_of, rows))
        if not all(map(self._now().knows, commits)):
            await self._topics.refresh()  # another process may have changed the topic or the group just now
        return await self._partitions.run(partial(_records, rows, commits, self._now()))

    def _now(self) -> Places:
        meta = self._meta.now
        if self._places is None or self._places[0] is not meta:
            topics = {topic.id: topic for topic in meta.topics.topics.values() if topic.world is None}
            queues = {topic.id: self._topics.queues_of(topic) for topic in topics.values() if topic.static is not None}
            offsets = self._topics.offsets.topic
            self._places = meta, Places(meta.groups, topics | {offsets.id: offsets}, queues)
        return self._places[1]


class _Place(NamedTuple):
    """A lane as Kafka's clients see it."""

    key: bytes
    #: The group's epoch there; None if there is no such group.
    epoch: int | None
    #: The segment of a static topic that the lane is, whose offsets are shown as its queue's.
    segment: Segment | None = None


class Places(msgspec.Struct, frozen=True):
    """How Kafka's clients see lanes, by one state of the metadata."""

    groups: GroupsState
    #: The topics that Kafka's clients can use, and the queues of static ones, by id.
    topics: Mapping[str, Topic]
    queues: Mapping[str, TopicQueues | None]
    #: What `of` has returned; any thread adds to it.
    known: dict[LaneKey, _Place | None] = msgspec.field(default_factory=dict)

    def knows(self, commit: OffsetRecord) -> bool:
        """Whether the metadata is as new as the commit: it has the partition, and the group in its epoch or a later."""
        if _is_hidden(commit.lane):
            return True
        place = self.of(commit.lane)
        return place is not None and place.epoch is not None and commit.committed.epoch <= place.epoch

    def of(self, lane: LaneKey) -> _Place | None:
        """Return the place of a lane; None if Kafka's clients see none."""
        if lane not in self.known:
            self.known[lane] = self._found(lane)
        return self.known[lane]

    def _found(self, lane: LaneKey) -> _Place | None:
        topic = self.topics.get(lane.topic_id)
        if topic is None or _is_hidden(lane):
            return None
        epoch = self.groups.epoch_of(lane)
        if topic.static is None:
            index = topic.route.index_of.get(lane.partition)
            return None if index is None else _Place(_key(lane.group, topic.name, index), epoch)
        queues = self.queues[topic.id]
        at = None if queues is None else queues.of_partition(lane.partition)
        if at is None or not at.segment.is_decided:
            return None
        return _Place(_key(lane.group, topic.name, at.queue.index), epoch, at.segment)


def _is_hidden(lane: LaneKey) -> bool:
    """Whether it is a retry partition, or a client's of a broadcast group."""
    return lane.retry or split_member(lane.group) is not None


def _records(rows: pa.Table, commits: Sequence[OffsetRecord], places: Places) -> tuple[Int64s, Records]:
    times = kafka_time_ms(rows.column("born_time").combine_chunks())
    kept: list[int] = []
    keys: list[bytes] = []
    values: list[bytes | None] = []
    for at, (commit, time_ms) in enumerate(zip(commits, times.tolist(), strict=True)):
        place, committed = places.of(commit.lane), commit.committed
        is_none = committed.offset == NO_OFFSET
        if place is None or (not is_none if place.epoch is None else committed.epoch < place.epoch):
            continue
        kept.append(at)
        keys.append(place.key)
        offset = committed.offset if is_none or place.segment is None else place.segment.logical(committed.offset)
        values.append(None if is_none else _value(offset, committed.metadata, time_ms))
    offsets = rows.column("offset").to_numpy()[kept]
    key, value = (pa.array(column, pa.binary()) for column in (keys, values))
    return offsets, Records(key=key, value=value, headers=None, time_ms=times[kept])


def _key(group: str, topic: str, partition: int) -> bytes:
    return struct.pack(">h", _KEY_VERSION) + _text(group) + _text(topic) + struct.pack(">i", partition)


def _value(offset: int, metadata: str, time_ms: int) -> bytes:
    return struct.pack(">hqi", _VALUE_VERSION, offset, _NO_EPOCH) + _text(metadata) + struct.pack(">q", time_ms)


def _text(text: str) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    return struct.pack(">h", len(data)) + data
