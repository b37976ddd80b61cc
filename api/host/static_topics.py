"""Static topics: create, grow, remap, check, repair; one append to the metadata each, and a seal (SPEC STATIC-5 to 12).

    decide on the newest metadata --> one append: mappings, moves, route --> seal --> tables of new partitions

A remapping that was cut short is finished by the process that has the old leader's broker, by a send that runs into the
fence, or by the same remapping again: it first seals what still waits.

Logical queues are shown beside the topic's physical partitions: `queue_states` (SPEC STATIC-15, 18, 22).
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from deltamq.api.host.fences import Sealer
from deltamq.api.host.hosted_meta import HostedMeta
from deltamq.api.host.hosted_topic import HostedTopic, Topics
from deltamq.mq.meta.fold import AnyEvent, Meta
from deltamq.mq.meta.static_topics import (
    RemapMode,
    StaticRequest,
    decide_put_static,
    decide_remap,
    decide_repair,
    queues_of,
    static_faults,
)
from deltamq.mq.meta.topics import StaticQueues, Topic, TopicPut
from deltamq.mq.names import broker_of
from deltamq.mq.static.completeness import MappingFault
from deltamq.mq.static.logical_queue import LogicalQueue, Segment, TopicQueues
from deltamq.mq.static.mappings import MappingPut, MappingRemoved, QueueMapping

log = logging.getLogger("deltamq.api")


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedQueue:
    """A logical queue that moves; `end_offset` and `logic_offset` are None until its old leader is sealed."""

    queue: int
    old_partition: str
    new_partition: str
    #: The physical offset behind the last message of the old partition.
    end_offset: int | None = None
    #: The logical offset at which the new partition begins.
    logic_offset: int | None = None

    @property
    def source(self) -> str:
        """The broker that led the queue before."""
        return broker_of(self.old_partition)

    @property
    def target(self) -> str:
        """The broker that leads the queue now."""
        return broker_of(self.new_partition)


@dataclass(frozen=True, slots=True)
class Remapped:
    """What a remapping moved."""

    moved: Sequence[MovedQueue]
    #: For how long messages of one queue waited at most, in milliseconds; None for a plan.
    seal_ms: float | None


@dataclass(frozen=True, slots=True)
class Checked:
    """The mappings of a static topic, by the broker that holds each, and their faults."""

    static: StaticQueues
    faults: Sequence[MappingFault]
    mappings: Mapping[str, QueueMapping]


@dataclass(frozen=True, slots=True)
class Repaired:
    """The faults before a repair, and the brokers whose mappings it made anew or removed."""

    faults: Sequence[MappingFault]
    brokers: Sequence[str]


class StaticTopics:
    """Changes of static topics; used on the event loop."""

    def __init__(self, meta: HostedMeta, topics: Topics, sealer: Sealer, now_ms: Callable[[], int]) -> None:
        """`now_ms` is the clock for epochs of mappings and times of segments."""
        self._meta = meta
        self._topics = topics
        self._sealer = sealer
        self._now_ms = now_ms

    async def put(self, name: str, request: StaticRequest, permit: Callable[[bool], None]) -> tuple[HostedTopic, bool]:
        """Create a static topic or add queues to it, and make its tables; return it, and True if it was created.

        `permit` is told whether the topic exists, and raises if the caller may not change it, or make it.
        """
        new_id, now_ms = str(uuid.uuid4()), self._now_ms()

        def decide(meta: Meta) -> Sequence[AnyEvent]:
            permit(name in meta.topics.topics)
            return decide_put_static(meta, name, request, self._topics.available(meta, name), new_id, now_ms)

        await self._meta.submit_any(decide)
        hosted = await self._topics.require(name)
        await hosted.logs()
        await self._sealer.seal(hosted)
        created = hosted.topic.id == new_id
        log.info("event=static_topic_put topic=%r created=%s queues=%d", name, created, request.total_queues)
        return hosted, created

    async def plan_remap(
        self, name: str, brokers: Sequence[str], mode: RemapMode, queues: Collection[int] | None
    ) -> Remapped:
        """Return what `remap` would move; change nothing."""
        meta = await self._meta.refresh()
        return Remapped(_moved(meta, name, decide_remap(meta, name, brokers, mode, self._now_ms(), queues)), None)

    async def remap(
        self, name: str, brokers: Sequence[str], mode: RemapMode, queues: Collection[int] | None
    ) -> Remapped:
        """Move logical queues so that `brokers` lead them; with `queues` only these.

        Returns when all old leaders are sealed, or could not be: then the process that has them goes on trying.
        """
        hosted = await self._topics.require(name)
        # What an earlier change left; its end decides where the next segments begin.
        longest_s = await self._sealer.seal(hosted)
        now_ms, moved = self._now_ms(), list[MovedQueue]()

        def decide(meta: Meta) -> Sequence[AnyEvent]:
            events = decide_remap(meta, name, brokers, mode, now_ms, queues)
            moved[:] = _moved(meta, name, events)
            return events

        await self._meta.submit_any(decide)
        hosted = await self._topics.require(name)
        longest_s = max(longest_s, await self._sealer.seal(hosted))
        # A message that comes earlier makes its table itself. Making them before would keep the fences waiting.
        await hosted.open([one.new_partition for one in moved])
        log.info("event=topic_remapped topic=%r mode=%s queues=%d seal_ms=%d", name, mode, len(moved), longest_s * 1e3)
        return Remapped(_sealed(self._meta.now, hosted.topic, moved), round(longest_s * 1e3, 3))

    async def check(self, name: str) -> Checked:
        """Return the mappings of a static topic with their faults."""
        meta = await self._meta.refresh()
        topic = meta.topics.topic(name)
        faults = static_faults(meta, topic)
        assert topic.static is not None, "the faults of a plain topic were refused"
        return Checked(topic.static, faults, meta.mappings(topic.id).by_broker)

    async def plan_repair(self, name: str) -> Repaired:
        """Return what `repair` would make anew; change nothing."""
        meta = await self._meta.refresh()
        return _repaired(meta, name, decide_repair(meta, name, self._now_ms()))

    async def repair(self, name: str) -> Repaired:
        """Make the mappings of a static topic anew from the copies that survive, if they have faults."""
        now_ms, found = self._now_ms(), list[Repaired]()

        def decide(meta: Meta) -> Sequence[AnyEvent]:
            events = decide_repair(meta, name, now_ms)
            found[:] = [_repaired(meta, name, events)]
            return events

        await self._meta.submit_any(decide)
        (repaired,) = found
        log.info("event=topic_repaired topic=%r faults=%d", name, len(repaired.faults))
        return repaired


def _moved(meta: Meta, name: str, events: Sequence[AnyEvent]) -> list[MovedQueue]:
    """Return the queues that the events of a remapping move."""
    before = meta.topics.topic(name).leaders()
    return [
        MovedQueue(queue=queue, old_partition=before[queue], new_partition=partition)
        for event in events
        if isinstance(event, TopicPut)
        for queue, partition in event.topic.leaders().items()
        if before[queue] != partition
    ]


def _sealed(meta: Meta, topic: Topic, moved: Sequence[MovedQueue]) -> list[MovedQueue]:
    """Return the moved queues with what their seals decided."""
    queues = queues_of(meta, topic)
    found = []
    for one in moved:
        queue = queues.get(one.queue)
        old = None if queue is None else queue.segment_of(one.old_partition)
        new = None if queue is None else queue.segment_of(one.new_partition)
        if old is not None and new is not None and old.is_sealed:
            one = replace(one, end_offset=old.end_offset, logic_offset=new.logic_offset)
        found.append(one)
    return found


def _repaired(meta: Meta, name: str, events: Sequence[AnyEvent]) -> Repaired:
    brokers = {event.holder for event in events if isinstance(event, (MappingPut, MappingRemoved))}
    return Repaired(static_faults(meta, meta.topics.topic(name)), sorted(brokers))


_SERVING = "serving"
_UNSERVED = "queue_unserved"


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentState:
    """One segment; `logic_offset` is -1 while it is undecided, `end_offset` until it is sealed.

    `state` is `sealed`, `sealing` (an old leader that waits for it), `leader`, or `undecided` (a leader whose messages
    have no logical offsets yet).
    """

    gen: int
    partition: str
    broker: str
    logic_offset: int
    start_offset: int
    end_offset: int
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueState:
    """One logical queue, in logical offsets; what is not known is None, and of a queue without a mapping all is.

    `state` is `serving`, `queue_unserved` if no mapping of the queue can be had, or the code of the error that stopped
    one of its partitions.
    """

    queue: int
    partition: str
    state: str
    logical_partitions: Sequence[tuple[int, int]]
    min_offset: int | None = None
    max_offset: int | None = None
    #: The messages that are stored, those without logical offsets included.
    messages: int | None = None
    #: Logical offsets between the segments that no message has.
    holes: int | None = None
    epoch: int | None = None
    segments: Sequence[SegmentState] = ()


def queue_states(hosted: HostedTopic, queues: TopicQueues | None) -> list[QueueState] | None:
    """Return all logical queues of a static topic whose partitions were opened, in order; None for a plain topic."""
    static = hosted.topic.static
    if queues is None or static is None:
        return None
    owned: dict[int, list[tuple[int, int]]] = {}
    for low, high, owner in static.owners:
        owned.setdefault(owner, []).append((low, high))
    return [
        QueueState(queue=number, partition=name, state=_UNSERVED, logical_partitions=owned[number])
        if (queue := queues.served.get(number)) is None
        else _state(hosted, queue, owned[number], static.epoch)
        for number, name in enumerate(queues.names)
    ]


def _state(hosted: HostedTopic, queue: LogicalQueue, owned: Sequence[tuple[int, int]], epoch: int) -> QueueState:
    partitions = [hosted.partition(segment.partition) for segment in queue.segments]
    stats = [None if partition.log is None else partition.log.stats() for partition in partitions]
    faults = [partition.fault for partition in partitions if partition.fault is not None]
    newest = queue.newest_readable
    end = stats[queue.segments.index(newest)]
    known = [one.messages for one in stats if one is not None]
    return QueueState(
        queue=queue.index,
        partition=queue.name,
        state=faults[0] if faults else _SERVING,
        logical_partitions=owned,
        min_offset=None if stats[0] is None else queue.segments[0].logical(stats[0].min_offset),
        max_offset=newest.logic_end if newest.is_sealed else None if end is None else newest.logical(end.max_offset),
        messages=sum(known) if len(known) == len(stats) else None,
        holes=queue.holes,
        epoch=epoch,
        segments=[_segment_state(queue, segment) for segment in queue.segments],
    )


def _segment_state(queue: LogicalQueue, segment: Segment) -> SegmentState:
    if segment.is_sealed:
        state = "sealed"
    elif segment is not queue.leader:
        state = "sealing"
    else:
        state = "leader" if segment.is_decided else "undecided"
    return SegmentState(
        gen=segment.gen,
        partition=segment.partition,
        broker=segment.broker,
        logic_offset=segment.logic_offset,
        start_offset=segment.start_offset,
        end_offset=segment.end_offset,
        state=state,
    )
