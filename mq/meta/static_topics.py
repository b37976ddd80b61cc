"""Decisions about static topics: create, grow, remap, repair, drop segments (SPEC STATIC-5 to 12, 17, 23, 24).

    state --faults?--> refused, by name         a repair makes the mappings again from the surviving chains
          --sound----> mappings of all brokers, moves, topic     in one append, however many queues

A remapping takes two steps. The first is decided here: each moved queue gets a new segment on its new broker, without
logical offsets. The second is the seal of its old segment (`mq.meta.moved_keys`), from which the new one's logical
offsets follow. Any process may seal, so the next process that sees a remapping cut short finishes it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec
import numpy as np
from msgspec.structs import replace

from deltamq.mq.errors import Conflict, Unprocessable
from deltamq.mq.limits import PARTITIONS_MAX
from deltamq.mq.meta.access_changes import check_targets
from deltamq.mq.meta.fold import AnyEvent, Meta
from deltamq.mq.meta.moved_keys import KeysMoved, moves_between
from deltamq.mq.meta.topic_settings import TopicRequest, TopicSettings
from deltamq.mq.meta.topics import StaticQueues, Topic, TopicPut, refuse_other_case
from deltamq.mq.names import check_client_topic, partition_name
from deltamq.mq.routing import Route, equal_ranges, expanded_ranges, ranges_of, table_of
from deltamq.mq.static.completeness import Lineages, MappingFault, faults_of, served_queues, surviving_queues
from deltamq.mq.static.logical_queue import LogicalQueue
from deltamq.mq.static.mappings import (
    MappingPut,
    MappingRemoved,
    QueueMapping,
    SegmentsDropped,
    mappings_of,
    plan_remap,
    spread_queues,
)
from deltamq.mq.static.segments import UNDECIDED, Segment

#: `strict`: close the old leader, then open the new one. `available`: the new one takes messages at once.
RemapMode = Literal["strict", "available"]
#: The table of a route has 16-bit indexes.
_PARTITIONS_KEPT_MAX: Final = 32_000
#: Faults that an error names; a list of all is in the topic's check.
_FAULTS_NAMED: Final = 8


class StaticRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a static topic: its number of queues, and settings, which change only together with it."""

    total_queues: int
    #: The brokers for new queues; None for all that lead queues now, or, for a new topic, all that are served.
    brokers: tuple[str, ...] | None = None
    settings: TopicRequest = msgspec.field(default_factory=TopicRequest)


def queues_of(meta: Meta, topic: Topic) -> dict[int, LogicalQueue]:
    """Return the available logical queues of a static topic, by number."""
    return served_queues(meta.mappings(topic.id).by_broker, topic.leaders(), _lineages(meta, topic))


def _lineages(meta: Meta, topic: Topic) -> Lineages:
    return Lineages(topic.leaders(), meta.moved_keys(topic.id).handovers)


def static_faults(meta: Meta, topic: Topic) -> list[MappingFault]:
    """Return what is missing, torn or of another epoch in the mappings of a static topic (SPEC STATIC-5)."""
    static = _static(topic)
    mappings = meta.mappings(topic.id).by_broker
    return faults_of(
        mappings,
        brokers=static.brokers,
        epoch=static.epoch,
        leaders=topic.leaders(),
        lineages=_lineages(meta, topic),
    )


# Create and grow ------------------------------------------------------------------------------------------------------


def decide_put_static(
    meta: Meta, name: str, request: StaticRequest, available: Sequence[str], new_id: str, now_ms: int
) -> tuple[AnyEvent, ...]:
    """Return the events that make `name` the static topic that `request` asks for; none when nothing changes.

    `available` are the brokers that are served now, in the order in which a new topic gets them.

    Raises
    ------
    Conflict
        `topic_not_static`, `queues_cannot_shrink`, `mapping_incomplete`, `topic_name_case`.
    Unprocessable
        `queues_out_of_range`, `unknown_broker`, `partitioner_not_static`.
    Unavailable
        `broker_unavailable`, `no_broker`, `not_writable`: a broker that would get queues is not served, or may not be
        written to.
    """
    check_client_topic(name)
    check_static_settings(name, request.settings)
    if not 1 <= request.total_queues <= PARTITIONS_MAX:
        raise Unprocessable(
            f"a static topic has 1 to {PARTITIONS_MAX} logical queues, not {request.total_queues}",
            code="queues_out_of_range",
            field="total_queues",
            extra={"limit": PARTITIONS_MAX},
        )
    present = meta.topics.topics.get(name)
    if present is None:
        refuse_other_case(meta.topics, name)
        return _created(meta, name, request, available, new_id, now_ms)
    static = _static(present)
    if static.world is not None:
        raise Conflict(
            f"topic {name} is global: its queues, clusters and settings stay as they are; remap moves its queues",
            code="global_topic_fixed",
        )
    if request.total_queues < static.total:
        raise Conflict(
            f"topic {name} has {static.total} logical queues and cannot have fewer",
            code="queues_cannot_shrink",
            field="total_queues",
            extra={"total_queues": static.total},
        )
    settings = request.settings.over(present.settings)
    if request.total_queues == static.total:
        return () if settings == present.settings else (TopicPut(topic=replace(present, settings=settings)),)
    return _grown(meta, replace(present, settings=settings), request, available, now_ms)


def check_static_settings(name: str, settings: TopicRequest) -> None:
    """Return if a static topic can have these settings; raise `Unprocessable` (`partitioner_not_static`) if not."""
    if settings.partitioner == "kafka":
        raise Unprocessable(
            f"topic {name}: keys of static and global topics go to logical queues by logical partitions (lp); Kafka's "
            "partitioner is for plain topics: leave the field out, or make the topic without `static`",
            code="partitioner_not_static",
            field="partitioner",
        )


def _created(
    meta: Meta, name: str, request: StaticRequest, available: Sequence[str], new_id: str, now_ms: int
) -> tuple[AnyEvent, ...]:
    brokers = check_targets(meta, available if request.brokers is None else request.brokers, now_ms)
    spread = spread_queues({}, request.total_queues, brokers)
    partitions = tuple(_partition(name, index, broker) for index, broker in sorted(spread.items()))
    queues = [LogicalQueue(index, (_first(partition, now_ms),)) for index, partition in enumerate(partitions)]
    owners = equal_ranges(request.total_queues)
    mappings = mappings_of(queues, _all_brokers(meta, brokers), epoch=now_ms)
    topic = Topic(
        name=name,
        id=new_id,
        route=Route(epoch=meta.topics.routes_epoch + 1, partitions=partitions, owners=owners),
        settings=request.settings.over(TopicSettings()),
        created_ms=now_ms,
        generation=meta.topics.ended.get(name, 0),
        static=StaticQueues(owners=owners, epoch=now_ms, brokers=tuple(mappings), made=len(partitions)),
    )
    return (*_puts(new_id, mappings), TopicPut(topic=topic))


def _grown(
    meta: Meta, topic: Topic, request: StaticRequest, available: Sequence[str], now_ms: int
) -> tuple[AnyEvent, ...]:
    """Return the events that add logical queues; the present ones stay where they are and give up keys."""
    static, queues = _static(topic), _sound(meta, topic)
    leading = {index: queue.leader.broker for index, queue in queues.items()}
    there = [broker for broker in dict.fromkeys(leading.values()) if broker in available]
    brokers = check_targets(meta, request.brokers if request.brokers is not None else there or available, now_ms)
    spread = spread_queues(leading, request.total_queues, brokers)
    partitions = [*topic.route.partitions]
    for number, (index, broker) in enumerate(sorted(spread.items()), start=static.made):
        partitions.append(_partition(topic.name, number, broker))
        queues[index] = LogicalQueue(index, (_first(partitions[-1], now_ms),))
    owners = expanded_ranges(static.owners, request.total_queues)
    changed = _changed(meta, topic, queues, tuple(partitions), owners, now_ms)
    moves = moves_between(topic.route, changed.topic.route) if topic.settings.order_strategy == "strict" else ()
    return changed.events(KeysMoved(topic_id=topic.id, moves=moves) if moves else None)


# Remap ----------------------------------------------------------------------------------------------------------------


def decide_remap(
    meta: Meta,
    name: str,
    brokers: Sequence[str],
    mode: RemapMode,
    now_ms: int,
    queues: Collection[int] | None = None,
) -> tuple[AnyEvent, ...]:
    """Return the events that begin to move logical queues, so that `brokers` lead them; none when nothing moves.

    With `queues`, only these may move (SPEC STATIC-23).

    Raises
    ------
    NotFound
        There is no such topic.
    Conflict
        `topic_not_static`, `mapping_incomplete`, `remap_in_progress`: an earlier change is not sealed yet.
    Unprocessable
        `unknown_broker`, `unknown_queue`.
    Unavailable
        `broker_unavailable`, `not_writable`.
    """
    check_client_topic(name)
    topic = meta.topics.topic(name)
    static = _static(topic)
    targets = check_targets(meta, brokers, now_ms)
    unknown = sorted(index for index in queues or () if not 0 <= index < static.total)
    if unknown:
        raise Unprocessable(
            f"queues: topic {name} has the queues 0 to {static.total - 1}, not {unknown[0]}",
            code="unknown_queue",
            field="queues",
        )
    present = _sound(meta, topic)
    moving = plan_remap({index: queue.leader.broker for index, queue in present.items()}, targets, queues)
    if not moving:
        return ()
    _check_segments(meta, topic, len(moving))
    return _moving(meta, topic, present, moving, mode, now_ms)


def closing_events(
    meta: Meta, topic: Topic, changed: Topic, leaving: Collection[int], now_ms: int
) -> tuple[AnyEvent, ...]:
    """Return the events that close queues of a global topic in this cluster, and make the topic `changed`.

    Each gets a new segment on its present broker. The seal of the old one, as in a `strict` remapping, shows where the
    queue ends here; nothing is sent to the new one as long as the queue is away (SPEC STATIC-19).

    Raises
    ------
    Conflict
        `mapping_incomplete`, `remap_in_progress`, `too_many_segments`.
    """
    queues = _sound(meta, topic)
    _check_segments(meta, topic, len(leaving))
    return _moving(meta, changed, queues, {index: queues[index].leader.broker for index in leaving}, "strict", now_ms)


def _check_segments(meta: Meta, topic: Topic, more: int) -> None:
    if meta.moved_keys(topic.id).waiting:
        raise Conflict(
            f"topic {topic.name}: an earlier remapping or expansion is not sealed yet; ask again",
            code="remap_in_progress",
        )
    if len(topic.route.partitions) + more > _PARTITIONS_KEPT_MAX:
        raise Conflict(
            f"topic {topic.name} has {len(topic.route.partitions)} segments; wait until retention drops the oldest",
            code="too_many_segments",
        )


def _moving(
    meta: Meta, topic: Topic, queues: dict[int, LogicalQueue], moving: Mapping[int, str], mode: RemapMode, now_ms: int
) -> tuple[AnyEvent, ...]:
    """Return the events that give queues new leaders on these brokers; `queues` are all of the topic."""
    static = _static(topic)
    partitions = [*topic.route.partitions]
    for number, (index, broker) in enumerate(sorted(moving.items()), start=static.made):
        partitions.append(_partition(topic.name, number, broker))
        queues[index] = _with_leader(queues[index], partitions[-1], now_ms)
    changed = _changed(meta, topic, queues, tuple(partitions), static.owners, now_ms)
    moves = moves_between(topic.route, changed.topic.route, remaps=True, at_once=mode == "available")
    return changed.events(KeysMoved(topic_id=topic.id, moves=moves))


def _with_leader(queue: LogicalQueue, partition: str, now_ms: int) -> LogicalQueue:
    leader = Segment(
        gen=queue.leader.gen + 1, partition=partition, logic_offset=UNDECIDED, start_ms=now_ms, update_ms=now_ms
    )
    return LogicalQueue(queue.index, (*queue.segments, leader))


# Repair and clean-up --------------------------------------------------------------------------------------------------


def decide_repair(meta: Meta, name: str, now_ms: int) -> tuple[AnyEvent, ...]:
    """Return the events that make all mappings again from the surviving copies; none when nothing is wrong.

    Raises
    ------
    NotFound
        There is no such topic.
    Conflict
        `topic_not_static`; `mapping_lost`: no copy of some queues survives.
    """
    check_client_topic(name)
    topic = meta.topics.topic(name)
    static = _static(topic)
    if not static_faults(meta, topic):
        return ()
    by_broker = meta.mappings(topic.id).by_broker
    queues = surviving_queues(by_broker, _lineages(meta, topic), now_ms)
    lost = sorted(set(range(static.total)) - queues.keys())
    if lost:
        raise Conflict(
            f"topic {name}: no mapping has a whole copy of {_queues(lost)}; put one back, then repair again",
            code="mapping_lost",
            extra={"queues": lost},
        )
    epoch = _next_epoch(static, now_ms, [mapping.epoch for mapping in by_broker.values()])
    mappings = mappings_of(queues.values(), _all_brokers(meta, static.brokers), epoch)
    gone = [MappingRemoved(topic_id=topic.id, holder=holder) for holder in by_broker.keys() - mappings.keys()]
    repaired = replace(topic, static=replace(static, epoch=epoch, brokers=tuple(mappings)))
    return (*gone, *_puts(topic.id, mappings), TopicPut(topic=repaired))


def decide_drop_segments(meta: Meta, topic: Topic, expired: Collection[str]) -> tuple[AnyEvent, ...]:
    """Return the events that drop the oldest segments of queues as far as they are `expired`; never a leader.

    `expired` are partitions whose messages are all gone. If the topic's mappings have faults, nothing is dropped.
    """
    if topic.static is None or not expired or static_faults(meta, topic):
        return ()
    dropped: list[str] = []
    for queue in queues_of(meta, topic).values():
        for segment, following in zip(queue.segments, queue.segments[1:], strict=False):
            if segment.partition not in expired or not segment.is_sealed or not following.is_decided:
                break
            dropped.append(segment.partition)
    route = topic.route
    indexes = sorted(route.index_of[partition] for partition in dropped)
    if not indexes:
        return ()
    kept = [at for at in range(len(route.partitions)) if at not in set(indexes)]
    after = {before: at for at, before in enumerate(kept)}
    shorter = Route(
        epoch=meta.topics.routes_epoch + 1,
        partitions=tuple(route.partitions[at] for at in kept),
        owners=tuple((low, high, after[owner]) for low, high, owner in route.owners),
        retired=tuple(after[at] for at in route.retired if at in after),
    )
    names = tuple(route.partitions[at] for at in indexes)
    gone = SegmentsDropped(topic_id=topic.id, partitions=names, indexes=tuple(indexes))
    return (TopicPut(topic=replace(topic, route=shorter)), gone)


# Shared ---------------------------------------------------------------------------------------------------------------


class _Changed(msgspec.Struct, frozen=True):
    topic: Topic
    mappings: tuple[MappingPut, ...]

    def events(self, moved: KeysMoved | None) -> tuple[AnyEvent, ...]:
        """Return the events: the mappings before the moves, and both before the route."""
        return (*self.mappings, *([] if moved is None else [moved]), TopicPut(topic=self.topic))


def _changed(
    meta: Meta,
    topic: Topic,
    queues: Mapping[int, LogicalQueue],
    partitions: tuple[str, ...],
    owners: tuple[tuple[int, int, int], ...],
    now_ms: int,
) -> _Changed:
    """Return the topic with these queues; `partitions` are the present ones and the new ones."""
    static = _static(topic)
    index_of = {partition: at for at, partition in enumerate(partitions)}
    leader_at = {index: index_of[queue.leader.partition] for index, queue in queues.items()}
    by_lp = [leader_at[queue] for queue in table_of(owners).tolist()]
    route = Route(
        epoch=meta.topics.routes_epoch + 1,
        partitions=partitions,
        owners=ranges_of(np.array(by_lp)),
        retired=tuple(sorted(set(range(len(partitions))) - set(leader_at.values()))),
    )
    epoch = _next_epoch(static, now_ms)
    brokers = _all_brokers(meta, [*static.brokers, *(queue.leader.broker for queue in queues.values())])
    mappings = mappings_of(queues.values(), brokers, epoch)
    changed = replace(
        topic,
        route=route,
        static=replace(
            static,
            owners=owners,
            epoch=epoch,
            brokers=tuple(mappings),
            made=static.made + len(partitions) - len(topic.route.partitions),
        ),
    )
    return _Changed(changed, tuple(_puts(topic.id, mappings)))


def _static(topic: Topic) -> StaticQueues:
    if topic.static is None:
        raise Conflict(
            f"topic {topic.name} is a plain topic, and plain topics never become static ones",
            code="topic_not_static",
            field="static",
        )
    return topic.static


def _sound(meta: Meta, topic: Topic) -> dict[int, LogicalQueue]:
    """Return all logical queues; refuse if a mapping has a fault."""
    faults = static_faults(meta, topic)
    if faults:
        named = [fault.detail for fault in faults]
        more = f" and {len(named) - _FAULTS_NAMED} more" if len(named) > _FAULTS_NAMED else ""
        raise Conflict(
            f"topic {topic.name}: {'; '.join(named[:_FAULTS_NAMED])}{more}; nothing was changed: repair it first",
            code="mapping_incomplete",
            extra={"faults": named[:_FAULTS_NAMED]},
        )
    return queues_of(meta, topic)


def _all_brokers(meta: Meta, more: Iterable[str]) -> list[str]:
    """Return the brokers that get a mapping: all that exist, whether they host queues or not (SPEC STATIC-4)."""
    return sorted({*meta.brokers.brokers, *more})


def _next_epoch(static: StaticQueues, now_ms: int, seen: Sequence[int] = ()) -> int:
    return max([static.epoch + 1, now_ms, *(epoch + 1 for epoch in seen)])


def _partition(topic: str, number: int, broker: str) -> str:
    return partition_name(f"{topic}#{number}" if number else topic, broker)


def _first(partition: str, now_ms: int) -> Segment:
    return Segment(gen=0, partition=partition, logic_offset=0, start_ms=now_ms, update_ms=now_ms)


def _puts(topic_id: str, mappings: Mapping[str, QueueMapping]) -> list[MappingPut]:
    return [MappingPut(topic_id=topic_id, holder=holder, mapping=mapping) for holder, mapping in mappings.items()]


def _queues(numbers: Sequence[int]) -> str:
    return f"queue {numbers[0]}" if len(numbers) == 1 else f"queues {', '.join(map(str, numbers))}"
