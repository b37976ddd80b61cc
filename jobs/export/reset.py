"""Resets a group's offsets with only storage credentials: by command, by schedule, in a notebook (SPEC SPARK-10).

It makes the same decisions as the service's reset: an event in `sys/meta` by compare-and-set, which begins a new
epoch, then fences in the group's retries and dead letters, so that no revive run brings back messages that were in
flight before (I12, I14). A running service learns of the event when it next reads `sys/meta`; its records until then
belong to an epoch that is over, and are void.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final, Literal

import msgspec

from deltamq.mq.errors import NotFound, Refused, Unprocessable
from deltamq.mq.meta.group import Group
from deltamq.mq.meta.reset import decide_reset, lanes_of
from deltamq.mq.meta.static_topics import queues_of
from deltamq.mq.meta.topics import Topic
from deltamq.mq.names import broker_of
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.queue.progress import Bounds, Start, StartKind, reset_position
from deltamq.mq.request_values import ago_ms
from deltamq.mq.static.logical_queue import LogicalQueue, TopicQueues
from deltamq.mq.static.progress import position_of, reset_steps
from deltamq.mq.static.reading import StoredOffsets, Stretch
from deltamq.tables.failpoints import failpoint
from deltamq.tables.log.fences import RESET_FENCE
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.queue.metadata import MetaLog
from deltamq.tables.queue.refs import dead_ref, retry_ref

Retries = Literal["keep", "drop"]
_WORDS: Final = {"earliest": "first", "latest": "last"}


class Reset(msgspec.Struct, frozen=True, kw_only=True):
    """The new offsets of a group; `epoch` is None after a dry run."""

    group: str
    topic: str
    epoch: int | None
    offsets: Mapping[str, int]
    #: Messages from the new offsets to the end offsets.
    messages: int


def target_of(text: str, now_ms: int | None = None) -> Start:
    """Return the start for `first` (`earliest`), `last` (`latest`), an RFC 3339 time, or with `now_ms` `-24h`."""
    ago = ago_ms(text)
    if ago is not None and now_ms is not None:
        return Start(StartKind.TIME, now_ms - ago)
    return Start.from_json(_WORDS.get(text, text), field="to")


def reset_offsets(
    warehouse: Warehouse,
    group: str,
    topic: str,
    to: Start | Mapping[str, int],
    *,
    retries: Retries = "keep",
    dry_run: bool = False,
) -> Reset:
    """Reset a group's offsets in a topic, in a new epoch; the reset is durable when this returns.

    Parameters
    ----------
    to
        `target_of("first")` or another start for all partitions, or offsets by name of partition; the partitions of a
        static topic are its logical queues.
    retries
        Whether messages that wait for redelivery are kept or dropped.
    dry_run
        Only return the offsets that the reset would set.

    Raises
    ------
    NotFound
        The group, the topic or a partition does not exist.
    Unprocessable
        `offset_out_of_range`: an offset is greater than the end offset.
    Unknown
        The reset may be stored; repeating it is safe, and begins another epoch.
    """
    if retries not in ("keep", "drop"):
        raise Refused("retries must be keep or drop", field="retries")
    meta = MetaLog(warehouse)
    stored_group, life = meta.groups.group(group), meta.state.topic(topic)
    planned = _Reset(warehouse, meta, stored_group, life)
    offsets = planned.targets(to)
    if retries == "drop":
        offsets |= planned.past_retries()
    epoch = None
    if not dry_run:
        epoch, ends = planned.apply(offsets)
        if retries == "drop" and any(end > offsets.get(lane, 0) for lane, end in ends.items()):
            # a revive run appended before its fence: skip its messages, too; later appends know the reset
            offsets |= ends
            epoch, _ = planned.apply(offsets)
    messages = sum(max(0, planned.bounds(lane).end_offset - at) for lane, at in offsets.items())
    return Reset(group=group, topic=topic, epoch=epoch, offsets=planned.by_partition(offsets), messages=messages)


class _Reset:
    def __init__(self, warehouse: Warehouse, meta: MetaLog, group: Group, topic: Topic) -> None:
        self._warehouse = warehouse
        self._meta = meta
        self._group = group
        self._topic = topic
        self._lanes = {lane.partition: lane for lane in lanes_of(group.name, topic)}
        self._queues: TopicQueues | None = None
        if topic.static is not None:
            self._queues = TopicQueues(topic.static.total, queues_of(meta.meta, topic))

    def targets(self, to: Start | Mapping[str, int]) -> dict[LaneKey, int]:
        """Return the new offset of each lane that is to be reset."""
        if isinstance(to, Start):
            lanes = [lane for lane in self._lanes.values() if not lane.retry]
            return {lane: reset_position(to, self.bounds(lane, to.time_ms)) for lane in lanes}
        if not to:
            raise Unprocessable("to must name at least one partition", field="to")
        if self._queues is not None:
            return {lane: at for name, offset in to.items() for lane, at in self._in_queue(name, offset)}
        return {lane: self._at(lane, offset) for lane, offset in self._named(to).items()}

    def _in_queue(self, name: str, offset: int) -> Iterator[tuple[LaneKey, int]]:
        """All segments of a queue get an offset: older ones are consumed, newer ones are not (STATIC-16)."""
        assert self._queues is not None, "the topic is static"
        queue = self._queues.require(name, self._topic.name, f"to.{name}")
        offsets = self._stored(queue)
        if not 0 <= offset <= offsets.end:
            detail = f"to: {offset} is not from 0 to the end offset {offsets.end} of {name}"
            extra = {"end_offset": offsets.end}
            raise Unprocessable(detail, code="offset_out_of_range", field=f"to.{name}", extra=extra)
        for segment, at in reset_steps(queue, offset):
            yield self._lanes[segment.partition], at

    def _stored(self, queue: LogicalQueue) -> StoredOffsets:
        bounds = ((segment.delta, self.bounds(self._lanes[segment.partition])) for segment in queue.readable)
        return StoredOffsets(tuple(Stretch(delta, stored.min_offset, stored.end_offset) for delta, stored in bounds))

    def by_partition(self, offsets: Mapping[LaneKey, int]) -> dict[str, int]:
        """Return the offsets by the readers' names: a logical queue has the first offset not consumed."""
        if self._queues is None:
            return {lane.partition: offset for lane, offset in offsets.items()}
        by_name: dict[str, int] = {lane.partition: offset for lane, offset in offsets.items() if lane.retry}
        for queue in self._queues.served.values():
            at = {segment.partition: offsets.get(self._lanes[segment.partition]) for segment in queue.readable}
            known = {partition: offset for partition, offset in at.items() if offset is not None}
            if len(known) == len(at):
                by_name[queue.name] = position_of(queue, known)
        return by_name

    def _named(self, to: Mapping[str, int]) -> dict[LaneKey, int]:
        for partition in to:
            if partition not in self._lanes:
                have = ", ".join(self._lanes)
                detail = f"to: topic {self._topic.name} has no partition {partition!r}; there are {have}"
                raise NotFound(detail, code="partition_not_found", field=f"to.{partition}")
        return {self._lanes[partition]: offset for partition, offset in to.items()}

    def _at(self, lane: LaneKey, offset: int) -> int:
        bounds = self.bounds(lane)
        if not 0 <= offset <= bounds.end_offset:
            detail = f"to: {offset} is not from 0 to the end offset {bounds.end_offset} of {lane.partition}"
            extra = {"end_offset": bounds.end_offset}
            raise Unprocessable(detail, code="offset_out_of_range", field=f"to.{lane.partition}", extra=extra)
        return reset_position(offset, bounds)

    def past_retries(self) -> dict[LaneKey, int]:
        """Return the end offset of each existing retry partition of the group."""
        retries = [lane for lane in self._lanes.values() if lane.retry and self._warehouse.exists(self._ref(lane))]
        return {lane: self.bounds(lane).end_offset for lane in retries}

    def apply(self, offsets: Mapping[LaneKey, int]) -> tuple[int, dict[LaneKey, int]]:
        """Store the reset and its fences; return its epoch, and the ends of the retry partitions."""
        failpoint("reset.before_event")
        after = self._meta.submit_any(partial(decide_reset, group=self._group.name, topic=self._topic, offsets=offsets))
        failpoint("reset.after_event")
        epoch = max(after.groups.resets[lane].epoch for lane in offsets)
        ends: dict[LaneKey, int] = {}
        for broker in sorted({broker_of(lane.partition) for lane in offsets}):
            name, life = self._group.name, self._group.epoch
            retry = retry_ref(name, life, self._topic.name, self._topic.generation, broker)
            ends[LaneKey(self._topic.id, name, True, retry.name)] = self._fence(retry, epoch)
            failpoint("reset.between_fences")
            self._fence(dead_ref(name, life, broker), epoch)
        return epoch, ends

    def _fence(self, ref: PartitionRef, epoch: int) -> int:
        return self._warehouse.create(ref).fence(RESET_FENCE, epoch)

    def bounds(self, lane: LaneKey, time_ms: int | None = None) -> Bounds:
        """Return the offsets of a lane's partition, and the offset of a time in it."""
        ref = self._ref(lane)
        if not self._warehouse.exists(ref):
            return Bounds(0, 0, 0)
        log: PartitionLog = self._warehouse.open_partition(ref)
        log.refresh()
        return Bounds(log.min_offset, log.end_offset, None if time_ms is None else log.offset_at(time_ms * 1000))

    def _ref(self, lane: LaneKey) -> PartitionRef:
        topic = self._topic
        if not lane.retry:
            return PartitionRef(Space.TOPICS, topic.name, lane.partition, topic.generation)
        broker = broker_of(lane.partition)
        return retry_ref(self._group.name, self._group.epoch, topic.name, topic.generation, broker)
