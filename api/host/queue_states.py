"""The logical queues of a static topic as they are shown, beside its physical partitions (SPEC STATIC-15, 18, 22)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from deltamq.api.host.hosted_topic import HostedTopic
from deltamq.mq.static.logical_queue import LogicalQueue, Segment, TopicQueues

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
