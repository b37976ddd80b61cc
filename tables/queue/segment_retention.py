"""Drops the segments of static topics whose messages are all removed, and deletes their folders (SPEC STATIC-17).

    1 segments dropped      one append to sys/meta for each topic: mappings and route no longer have them
    2 folders deleted       the folders of partitions that neither a route nor a mapping has

A segment is dropped if it is sealed, all older ones of its queue go, too, and retention has removed its messages; one
that never had any goes when it has been sealed for as long as messages are kept. Groups look for retried messages on
the brokers of a topic's partitions: so a segment stays while its broker leads no queue and has retried messages. It
stays, too, while a group has progress in it and in no later one of its queue: without it the group would have committed
nothing, and a group that begins at the end would skip what was sent since (SPEC STATIC-27).

A kill between 1 and 2 leaves folders that the next run finds: it lists the folders first and reads the metadata then,
in which a new partition's name is before its folder exists.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

import msgspec

from deltamq.mq.errors import DeltaMQError
from deltamq.mq.meta.fold import AnyEvent, Meta
from deltamq.mq.meta.retention_holds import progress_of
from deltamq.mq.meta.static_topics import decide_drop_segments, queues_of
from deltamq.mq.meta.topics import Topic
from deltamq.mq.names import PartitionName, broker_of
from deltamq.mq.queue.retry import RetryTopic
from deltamq.mq.static.segments import Segment
from deltamq.tables.delta.snapshot import PartitionNotFound, load
from deltamq.tables.failpoints import failpoint
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.queue.metadata import MetaLog
from deltamq.tables.queue.recovery import recover_progress
from deltamq.tables.queue.refs import lives_of_retry


class DroppedSegments(msgspec.Struct, frozen=True):
    """What one run did."""

    #: Segments that the metadata no longer has.
    segments: int = 0
    #: Folders that were deleted, leftovers of earlier runs included.
    folders: int = 0
    #: What failed, by topic; the next run tries again.
    errors: Sequence[str] = ()


def drop_segments(warehouse: Warehouse, meta: MetaLog, cluster: str, now_ms: int) -> DroppedSegments:
    """Drop what is expired in all static topics, and delete folders of dropped segments; `now_ms` is UTC."""
    meta.refresh()
    segments = folders = 0
    errors = []
    for topic in [topic for topic in meta.state.topics.values() if topic.static is not None]:
        try:
            segments += _drop(warehouse, meta, cluster, topic, now_ms)
            failpoint("segments.after_drop")
            folders += _sweep(warehouse, meta, topic)
        except (DeltaMQError, OSError) as error:
            errors.append(f"{topic.name}: {type(error).__name__}: {error}")
    return DroppedSegments(segments, folders, tuple(errors))


def _drop(warehouse: Warehouse, meta: MetaLog, cluster: str, topic: Topic, now_ms: int) -> int:
    expired: set[str] = set()
    groups: dict[str, set[str]] | None = None
    queues = queues_of(meta.meta, topic).values()
    leading = {queue.leader.broker for queue in queues}
    for queue in queues:
        for segment in queue.segments[:-1]:
            if not _is_expired(warehouse, topic, segment, now_ms):
                break
            if segment.broker not in leading and _has_retries(warehouse, topic, segment.broker):
                break
            if groups is None:
                groups = _groups_by_partition(warehouse, meta.meta, cluster, topic)
            later = queue.segments[queue.segments.index(segment) + 1 :]
            if groups.get(segment.partition, set()).difference(*(groups.get(newer.partition, ()) for newer in later)):
                break
            expired.add(segment.partition)
    if not expired:
        return 0
    after = meta.submit_any(partial(_decided, topic.name, topic.id, frozenset(expired)))
    present = after.topics.topics.get(topic.name)
    return 0 if present is None else len(expired - set(present.route.partitions))


def _decided(name: str, topic_id: str, expired: frozenset[str], meta: Meta) -> Sequence[AnyEvent]:
    topic = meta.topics.topics.get(name)
    return () if topic is None or topic.id != topic_id else decide_drop_segments(meta, topic, expired)


def _is_expired(warehouse: Warehouse, topic: Topic, segment: Segment, now_ms: int) -> bool:
    """Return whether a segment has no messages any more, or never had any and is old enough."""
    if not segment.is_sealed:
        return False
    if segment.end_offset == 0:
        return segment.end_ms + topic.settings.retention_ms <= now_ms
    try:
        stored = load(warehouse.store, _ref(topic, segment.partition).folder)
    except PartitionNotFound:
        return False  # its messages are lost rather than removed: `verify` says so, and the mapping still shows it
    return stored.min_offset == stored.end_offset == segment.end_offset


def _groups_by_partition(warehouse: Warehouse, meta: Meta, cluster: str, topic: Topic) -> dict[str, set[str]]:
    brokers = sorted({broker_of(partition) for partition in topic.route.partitions})
    lanes = progress_of(recover_progress(warehouse, cluster, brokers), meta.groups).get(topic.id, {})
    groups: dict[str, set[str]] = {}
    for lane in lanes:
        if not lane.retry:
            groups.setdefault(lane.partition, set()).add(lane.group)
    return groups


def _has_retries(warehouse: Warehouse, topic: Topic, broker: str) -> bool:
    for ref in warehouse.refs(Space.RETRY):
        _, generation = lives_of_retry(ref.generation)
        retried_topic = RetryTopic.of_storage_name(ref.topic).topic
        if (retried_topic, generation, broker_of(ref.name)) != (topic.name, topic.generation, broker):
            continue
        try:
            stored = load(warehouse.store, ref.folder)
        except PartitionNotFound:
            continue
        if stored.min_offset < stored.end_offset:
            return True
    return False


def _sweep(warehouse: Warehouse, meta: MetaLog, topic: Topic) -> int:
    stored = warehouse.refs_of(Space.TOPICS, topic.name)
    meta.refresh()
    present = meta.state.topics.get(topic.name)
    if present is None or present.id != topic.id:
        return 0
    named = _named(meta.meta, present)
    gone = [ref for ref in stored if ref.name not in named and _was_segment(present, ref)]
    for ref in gone:
        warehouse.drop_partition(ref)
    return len(gone)


def _named(meta: Meta, topic: Topic) -> set[str]:
    """Return the partitions that the route, a move, or any mapping of a topic has, damaged and copied ones included."""
    names = {*topic.route.partitions, *(move.source for move in meta.moved_keys(topic.id).moves)}
    for mapping in meta.mappings(topic.id).by_broker.values():
        for chains in (mapping.hosted, mapping.copies):
            names |= {segment.partition for chain in chains.values() for segment in chain}
    return names


def _was_segment(topic: Topic, ref: PartitionRef) -> bool:
    """Return whether a partition has belonged to this life of a static topic."""
    if topic.static is None or ref.generation != topic.generation:
        return False
    name, _ = PartitionName.parse(ref.name)
    numbered = re.fullmatch(rf"{re.escape(topic.name)}(?:#([1-9]\d*))?", name)
    return numbered is not None and int(numbered[1] or 0) < topic.static.made


def _ref(topic: Topic, partition: str) -> PartitionRef:
    return PartitionRef(Space.TOPICS, topic.name, partition, topic.generation)
