"""Static topics: create, grow, remap, check, repair; one append to the metadata each, and a seal (SPEC STATIC-5 to 12).

    decide on the newest metadata --> one append: mappings, moves, route --> seal --> tables of new partitions

A remapping that was cut short is finished by the process that has the old leader's broker, by a send that runs into the
fence, or by the same remapping again: it first seals the moves that still wait.

Logical queues are shown beside the topic's physical partitions: `queue_states` (SPEC STATIC-15, 18, 22).
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from deltamq.api.host.fences import Sealer
from deltamq.api.host.hosted_meta import HostedMeta
from deltamq.api.host.hosted_topic import HostedTopic, Topics
from deltamq.api.host.typed_topics import WantedSchema, with_schema
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
from deltamq.mq.meta.topics import MetaState, Topic, TopicPut
from deltamq.mq.names import broker_of
from deltamq.mq.static.completeness import MappingFault
from deltamq.mq.static.logical_queue import LogicalQueue, TopicQueues
from deltamq.mq.static.mappings import MappingPut, MappingRemoved
from deltamq.mq.static.segments import Segment
from deltamq.mq.wire.static_topics import FaultInfo, MappingInfo, MovedQueue, Remapping, TopicCheck, TopicRepair
from deltamq.mq.wire.topics import QueueInfo, SegmentInfo

log = logging.getLogger("deltamq.api")


class StaticTopics:
    """Changes of static topics; used on the event loop."""

    def __init__(self, meta: HostedMeta, topics: Topics, sealer: Sealer, now_ms: Callable[[], int]) -> None:
        """`now_ms` is the clock for epochs of mappings and times of segments."""
        self._meta = meta
        self._topics = topics
        self._sealer = sealer
        self._now_ms = now_ms

    async def put(
        self,
        name: str,
        request: StaticRequest,
        permit: Callable[[bool], None],
        schema: Callable[[MetaState], WantedSchema] | None = None,
    ) -> tuple[HostedTopic, bool]:
        """Create a static topic or add queues to it, and make its tables; return it, and True if it was created.

        `permit` is called with whether the topic exists, and raises if the caller may not change it, or make it.
        """
        new_id, now_ms = str(uuid.uuid4()), self._now_ms()

        def decide(meta: Meta) -> Sequence[AnyEvent]:
            permit(name in meta.topics.topics)
            settings, before = with_schema(meta, name, request.settings, schema)
            asked = msgspec.structs.replace(request, settings=settings)
            return [*before, *decide_put_static(meta, name, asked, self._topics.available(meta, name), new_id, now_ms)]

        await self._meta.submit_any(decide)
        hosted = await self._topics.require(name)
        created = hosted.topic.id == new_id
        await hosted.logs(new=created)
        await self._sealer.seal(hosted)
        log.info("event=static_topic_put topic=%r created=%s queues=%d", name, created, request.total_queues)
        return hosted, created

    async def plan_remap(
        self, name: str, brokers: Sequence[str], mode: RemapMode, queues: Collection[int] | None
    ) -> Remapping:
        """Return what `remap` would move; change nothing."""
        meta = await self._meta.refresh()
        moved = _moved(meta, name, decide_remap(meta, name, brokers, mode, self._now_ms(), queues))
        return Remapping(topic=name, plan=True, mode=mode, moved=tuple(moved))

    async def remap(
        self, name: str, brokers: Sequence[str], mode: RemapMode, queues: Collection[int] | None
    ) -> Remapping:
        """Move logical queues so that `brokers` lead them; with `queues` only these.

        Returns when all old leaders are sealed, or could not be: then their processes go on trying.
        """
        hosted = await self._topics.require(name)
        # First the moves of earlier changes: their ends decide where the next segments begin.
        longest_s = await self._sealer.seal(hosted)
        now_ms, moved = self._now_ms(), list[MovedQueue]()

        def decide(meta: Meta) -> Sequence[AnyEvent]:
            events = decide_remap(meta, name, brokers, mode, now_ms, queues)
            moved[:] = _moved(meta, name, events)
            return events

        await self._meta.submit_any(decide)
        hosted = await self._topics.require(name)
        longest_s = max(longest_s, await self._sealer.seal(hosted))
        # An earlier message makes its table itself. Making the tables first would delay the fences.
        await hosted.open([queue.new_partition for queue in moved if queue.new_partition is not None])
        log.info("event=topic_remapped topic=%r mode=%s queues=%d seal_ms=%d", name, mode, len(moved), longest_s * 1e3)
        sealed = tuple(_sealed(self._meta.now, hosted.topic, moved))
        return Remapping(topic=name, plan=False, mode=mode, moved=sealed, seal_ms=round(longest_s * 1e3, 3))

    async def check(self, name: str) -> TopicCheck:
        """Return the mappings of a static topic with their faults."""
        meta = await self._meta.refresh()
        topic = meta.topics.topic(name)
        faults = _shown(static_faults(meta, topic))
        assert topic.static is not None, "the faults of a plain topic were refused"
        return TopicCheck(
            topic=name,
            epoch=topic.static.epoch,
            total_queues=topic.static.total,
            complete=not faults,
            faults=faults,
            mappings=tuple(
                MappingInfo(
                    broker=holder,
                    epoch=mapping.epoch,
                    total_queues=mapping.total_queues,
                    hosted=len(mapping.hosted),
                    copies=len(mapping.copies),
                )
                for holder, mapping in sorted(meta.mappings(topic.id).by_broker.items())
            ),
        )

    async def plan_repair(self, name: str) -> TopicRepair:
        """Return what `repair` would write; change nothing."""
        meta = await self._meta.refresh()
        return _repaired(meta, name, decide_repair(meta, name, self._now_ms()), plan=True)

    async def repair(self, name: str) -> TopicRepair:
        """Write the mappings of a static topic again from the copies that survive, if they have faults."""
        now_ms, repairs = self._now_ms(), list[TopicRepair]()

        def decide(meta: Meta) -> Sequence[AnyEvent]:
            events = decide_repair(meta, name, now_ms)
            repairs[:] = [_repaired(meta, name, events, plan=False)]
            return events

        await self._meta.submit_any(decide)
        (repaired,) = repairs
        log.info("event=topic_repaired topic=%r faults=%d", name, len(repaired.faults))
        return repaired


def _moved(meta: Meta, name: str, events: Sequence[AnyEvent]) -> list[MovedQueue]:
    before = meta.topics.topic(name).leaders()
    return [
        MovedQueue(
            queue=queue,
            source=broker_of(before[queue]),
            target=broker_of(partition),
            old_partition=before[queue],
            new_partition=partition,
        )
        for event in events
        if isinstance(event, TopicPut)
        for queue, partition in event.topic.leaders().items()
        if before[queue] != partition
    ]


def _sealed(meta: Meta, topic: Topic, moved: Sequence[MovedQueue]) -> list[MovedQueue]:
    """Return the moved queues with the offsets that their seals decided."""
    queues = queues_of(meta, topic)
    sealed = []
    for moved_queue in moved:
        queue = queues.get(moved_queue.queue)
        old = None if queue is None else queue.segment_of(moved_queue.old_partition or "")
        new = None if queue is None else queue.segment_of(moved_queue.new_partition or "")
        if old is not None and new is not None and old.is_sealed:
            moved_queue = replace(moved_queue, end_offset=old.end_offset, logic_offset=new.logic_offset)
        sealed.append(moved_queue)
    return sealed


def _repaired(meta: Meta, name: str, events: Sequence[AnyEvent], *, plan: bool) -> TopicRepair:
    brokers = {event.holder for event in events if isinstance(event, (MappingPut, MappingRemoved))}
    faults = _shown(static_faults(meta, meta.topics.topic(name)))
    return TopicRepair(topic=name, plan=plan, faults=faults, repaired=tuple(sorted(brokers)))


def _shown(faults: Iterable[MappingFault]) -> tuple[FaultInfo, ...]:
    return tuple(
        FaultInfo(kind=fault.kind, broker=fault.broker, queue=fault.queue, detail=fault.detail) for fault in faults
    )


#: The state of a queue without a mapping.
UNSERVED: Final = "queue_unserved"


def queue_states(hosted: HostedTopic, queues: TopicQueues | None) -> list[QueueInfo] | None:
    """Return all logical queues of a static topic whose partitions were opened, in order; None for a plain topic."""
    static = hosted.topic.static
    if queues is None or static is None:
        return None
    owned: dict[int, tuple[tuple[int, int], ...]] = {}
    for low, high, owner in static.owners:
        owned[owner] = (*owned.get(owner, ()), (low, high))
    return [
        QueueInfo(queue=number, partition=name, state=UNSERVED, logical_partitions=owned[number])
        if (queue := queues.served.get(number)) is None
        else _state(hosted, queue, owned[number], static.epoch)
        for number, name in enumerate(queues.names)
    ]


def _state(hosted: HostedTopic, queue: LogicalQueue, owned: tuple[tuple[int, int], ...], epoch: int) -> QueueInfo:
    partitions = [hosted.partition(segment.partition) for segment in queue.segments]
    stats = [None if partition.log is None else partition.log.stats() for partition in partitions]
    faults = [partition.fault for partition in partitions if partition.fault is not None]
    newest = queue.newest_readable
    end = stats[queue.segments.index(newest)]
    known = [segment.messages for segment in stats if segment is not None]
    return QueueInfo(
        queue=queue.index,
        partition=queue.name,
        state=faults[0] if faults else "serving",
        logical_partitions=owned,
        min_offset=None if stats[0] is None else queue.segments[0].logical(stats[0].min_offset),
        max_offset=newest.logic_end if newest.is_sealed else None if end is None else newest.logical(end.max_offset),
        messages=sum(known) if len(known) == len(stats) else None,
        holes=queue.holes,
        epoch=epoch,
        segments=tuple(_segment(queue, segment) for segment in queue.segments),
    )


def _segment(queue: LogicalQueue, segment: Segment) -> SegmentInfo:
    if segment.is_sealed:
        state = "sealed"
    elif segment is not queue.leader:
        state = "sealing"
    else:
        state = "leader" if segment.is_decided else "undecided"
    return SegmentInfo(
        gen=segment.gen,
        partition=segment.partition,
        broker=segment.broker,
        logic_offset=segment.logic_offset,
        start_offset=segment.start_offset,
        end_offset=segment.end_offset,
        state=state,
    )
