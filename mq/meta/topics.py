"""Topics: their settings and routes as a fold of events, and the decisions that make events.

The metadata log holds events, and the state is their fold. A decision is a pure function of the state:

    request + state  --decide-->  events  --append if the state has not moved-->  log  --apply-->  state

A decision that would change nothing makes no event, so that repeating a request is harmless. Time and ids are
passed in. A topic that is deleted and created again has a new id: it is another topic with the same name (SPEC POP-12).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

import msgspec
from msgspec.structs import replace

from deltamq.mq.errors import Conflict, NotFound
from deltamq.mq.meta.topic_settings import TopicRequest, TopicSettings, schema_of, settings_after
from deltamq.mq.names import check_client_topic
from deltamq.mq.partitioners import Partitioner
from deltamq.mq.routing import (
    DEFAULT_PARTITIONS,
    Range,
    Route,
    default_route,
    expand,
    expand_by_hand,
    new_route,
    route_by_hand,
)
from deltamq.mq.schemas.setting import SchemaSetting
from deltamq.mq.static.global_queues import GlobalQueues
from deltamq.mq.static.queue_names import global_queue_names, queue_names
from deltamq.mq.stored_json import Form, check_event, form, forms_of


class StaticQueues(msgspec.Struct, frozen=True, kw_only=True):
    """What a static topic's settings know of its logical queues (SPEC STATIC-4); the segments are in the mappings."""

    #: LPs `[low, high)` belong to the logical queue with this number.
    owners: tuple[Range, ...]
    #: The epoch of all mappings.
    epoch: int
    #: The brokers that must have a mapping.
    brokers: tuple[str, ...]
    #: How many partitions the topic has ever had; it numbers the next one, so that no name is used twice.
    made: int
    #: Where the queues of a topic of several clusters are; None for a topic of this cluster only (STATIC-19).
    world: GlobalQueues | None = None

    @property
    def total(self) -> int:
        """The number of logical queues."""
        return 1 + max(queue for _, _, queue in self.owners)


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """One life of a topic: `id` distinguishes it from earlier and later ones of the same name.

    `generation` counts the earlier lives of the name. It keeps their folders apart, so that a process that does not
    know of a deletion yet can never write into the next life.
    """

    name: str
    id: str
    route: Route
    settings: TopicSettings
    created_ms: int
    generation: int = 0
    #: Its logical queues; None for a plain topic.
    static: StaticQueues | None = None
    #: What Kafka's clients set of Kafka's own settings, by name (SPEC KAFKA-15).
    kafka: Mapping[str, str] = msgspec.field(default_factory=dict)

    @property
    def client_partitions(self) -> tuple[str, ...]:
        """The partitions as clients see them: the route's, in its order, or all logical queues (STATIC-2)."""
        if self.static is None:
            return self.route.partitions
        return queue_names(self.static.total) if self.world is None else global_queue_names(self.static.total)

    @property
    def world(self) -> GlobalQueues | None:
        """Where its queues are, if it covers several clusters."""
        return None if self.static is None else self.static.world

    def leaders(self) -> dict[int, str]:
        """Return the partition that the route sends each logical queue's messages to; empty for a plain topic."""
        if self.static is None:
            return {}
        first = {queue: low for low, _, queue in reversed(self.static.owners)}
        return {queue: self.route.partitions[self.route.table[first[queue]]] for queue in sorted(first)}


class TopicPut(msgspec.Struct, frozen=True, kw_only=True):
    """A topic was created, or its route or settings changed; holds the complete new state of the topic."""

    kind: ClassVar[str] = "topic_put"
    topic: Topic

    @property
    def key(self) -> str:
        return f"topic/{self.topic.name}"


class TopicDeleted(msgspec.Struct, frozen=True, kw_only=True):
    """A topic was deleted together with its data; `epoch` is the epoch of the routes without it."""

    kind: ClassVar[str] = "topic_deleted"
    name: str
    id: str
    epoch: int

    @property
    def key(self) -> str:
        return f"topic/{self.name}"


Event = TopicPut | TopicDeleted


def no_partition(topic: str, partition: str, field: str = "partition", *, at: str | None = None) -> NotFound:
    """Return the error for a partition that the topic does not have; `at` names the request's field if longer."""
    detail = f"{field}: topic {topic} has no partition {partition!r}"
    return NotFound(detail, code="partition_not_found", field=at or field)


class StoredTopic(msgspec.Struct):
    """The stored form of a topic; its route is read separately, because damage in it has its own error code."""

    name: str
    id: str
    route: object
    settings: TopicSettings
    created_ms: int
    generation: int
    static: StaticQueues | None = None
    #: Not there unless something is set.
    kafka: Mapping[str, str] | msgspec.UnsetType = msgspec.UNSET

    @classmethod
    def of(cls, topic: Topic) -> StoredTopic:
        return cls(
            topic.name,
            topic.id,
            topic.route,
            topic.settings,
            topic.created_ms,
            topic.generation,
            topic.static,
            topic.kafka or msgspec.UNSET,
        )

    def topic(self) -> Topic:
        return Topic(
            name=self.name,
            id=self.id,
            route=Route.from_json(self.route),
            settings=self.settings,
            created_ms=self.created_ms,
            generation=self.generation,
            static=self.static,
            kafka={} if isinstance(self.kafka, msgspec.UnsetType) else self.kafka,
        )


class _Put(msgspec.Struct):
    topic: StoredTopic


#: The stored form of each kind of event.
TOPIC_EVENTS: Final[Mapping[str, Form[Any]]] = {
    TopicPut.kind: form(
        _Put, lambda stored: TopicPut(topic=stored.topic.topic()), lambda event: _Put(StoredTopic.of(event.topic))
    ),
    **forms_of(TopicDeleted),
}


class MetaState(msgspec.Struct, frozen=True):
    """The state of all topics. Immutable: `apply` returns the next one."""

    #: The topics by name; never modified.
    topics: Mapping[str, Topic] = msgspec.field(default_factory=dict)
    #: Grows with every change of any route; a route's own epoch is the value at its last change (ROUTE-1).
    routes_epoch: int = 0
    #: The number of deleted topics of each name that has any.
    ended: Mapping[str, int] = msgspec.field(default_factory=dict)

    def topic(self, name: str) -> Topic:
        """Return the topic with this name; raises `NotFound` when there is none."""
        topic = self.topics.get(name)
        if topic is None:
            raise NotFound(f"there is no topic {name}", code="topic_not_found", field="topic")
        return topic

    def apply(self, event: Event) -> MetaState:
        """Return the state after `event`."""
        return self.apply_all((event,))

    def apply_all(self, events: Iterable[Event]) -> MetaState:
        """Return the state after `events`; copies the state once for all of them."""
        topics = dict(self.topics)
        ended = dict(self.ended)
        epoch = self.routes_epoch
        for event in events:
            if isinstance(event, TopicPut):
                _check_id(topics, event.topic.name, (None, event.topic.id))
                topics[event.topic.name] = event.topic
                epoch = max(epoch, event.topic.route.epoch)
            else:
                _check_id(topics, event.name, (event.id,))
                del topics[event.name]
                ended[event.name] = ended.get(event.name, 0) + 1
                epoch = max(epoch, event.epoch)
        return MetaState(topics=topics, routes_epoch=epoch, ended=ended)


def _check_id(topics: Mapping[str, Topic], name: str, ids: tuple[str | None, ...]) -> None:
    present = topics.get(name)
    check_event((present.id if present else None) in ids, "an event of topic", name)


def brokers_for(name: str, available: Sequence[str], named: Sequence[str]) -> Sequence[str]:
    """Return the brokers for new partitions of topic `name`, in the order in which they get them.

    `available` are the brokers that are served now; `named` are the settings' brokers, whose order is used if they
    include all available ones. With more brokers than a default route uses, each topic begins at another one.
    """
    known = [broker for broker in named if broker in available]
    ordered = known if len(known) == len(available) else available
    if len(ordered) <= DEFAULT_PARTITIONS:
        return ordered or named
    start = zlib.crc32(name.encode()) % len(ordered)
    return [*ordered[start:], *ordered[:start]]


def decide_put_topic(
    state: MetaState, name: str, request: TopicRequest, brokers: Sequence[str], new_id: str, now_ms: int
) -> tuple[Event, ...]:
    """Return the events that make topic `name` what `request` asks; none when nothing changes.

    `brokers` are the brokers for new partitions; `new_id` and `now_ms` are used if the topic is created.

    Raises
    ------
    Refused
        `system_name`, `invalid_topic_name`.
    Conflict
        `topic_name_case` when another topic's name differs only by case, `partitions_cannot_shrink`, `topic_static`
        when it is a static topic, which has a request of its own, `partition_taken` when another topic has a new
        partition, `routes_cannot_be_reordered`, `partitioner_fixed`, and what `check_may_grow` raises.
    Unprocessable
        `partitions_out_of_range`, and what `check_by_hand` raises.
    """
    check_client_topic(name)
    epoch = state.routes_epoch + 1
    present = state.topics.get(name)
    if present is None:
        topic = _created(state, name, request, brokers, new_id, now_ms)
        return (TopicPut(topic=replace(topic, route=replace(topic.route, epoch=epoch))),)
    if present.static is not None:
        raise Conflict(
            f"topic {name} is static: give `static` and `total_queues` ({present.static.total} now) to change it",
            code="topic_static",
            field="static",
            extra={"total_queues": present.static.total},
        )
    if request.partitioner is not None:
        check_partitioner(name, present.settings, request.partitioner)
    settings, kafka = settings_after(request, present.settings, present.kafka)
    route = present.route
    if request.routes is not None:
        expanded = expand_by_hand(route, request.routes)
        route = route if expanded is route else replace(expanded, epoch=epoch)
    elif request.partitions is not None and request.partitions != len(route.partitions):
        route = replace(expand(route, name, request.partitions, brokers), epoch=epoch)
    _refuse_taken(state, name, route.partitions[len(present.route.partitions) :])
    if len(route.partitions) > len(present.route.partitions):
        check_may_grow(name, settings, "partitions" if request.routes is None else "routes")
    changed = replace(present, route=route, settings=settings, kafka=kafka)
    return () if changed == present else (TopicPut(topic=changed),)


def check_partitioner(name: str, settings: TopicSettings, wanted: Partitioner) -> None:
    """Return if a topic with these settings has the partitioner `wanted`.

    With another one, the stored messages of a key would be in one partition, and later ones in another.

    Raises
    ------
    Conflict
        `partitioner_fixed`: it has another one.
    """
    if wanted != settings.partitioner:
        raise Conflict(
            f"partitioner: topic {name} has {settings.partitioner}, and keeps what it was made with, so that a key "
            f"stays in its partition; leave it out, or make another topic with {wanted}",
            code="partitioner_fixed",
            field="partitioner",
            extra={"partitioner": settings.partitioner},
        )


def check_schema(name: str, settings: TopicSettings, wanted: SchemaSetting) -> None:
    """Return if a topic with these settings may have the setting `wanted`.

    With another format or subject, what the topic's columns hold and what its messages say would be two things.

    Raises
    ------
    Conflict
        `schema_fixed`: it has another one.
    """
    present = schema_of(settings)
    if present is None or (present.format, present.subject) == (wanted.format, wanted.subject):
        return
    raise Conflict(
        f"schema: topic {name} has the format {present.format} and the subject {present.subject}, and keeps both; "
        "register a new version of that subject, or make another topic",
        code="schema_fixed",
        field="schema",
    )


def check_may_grow(name: str, settings: TopicSettings, field: str = "partitions") -> None:
    """Return if a topic with these settings may get more partitions.

    By Kafka's hash most keys have another partition among more, and no order holds across that.

    Raises
    ------
    Conflict
        `partitions_cannot_grow`: it keeps the order of keys.
    """
    if settings.partitioner == "kafka" and settings.order_strategy == "strict":
        raise Conflict(
            f"topic {name} keeps the order of keys (strict), and most keys would get another partition by Kafka's "
            "partitioner: make a topic with more partitions, or set order_strategy to best_tried first",
            code="partitions_cannot_grow",
            field=field,
        )


def _created(
    state: MetaState, name: str, request: TopicRequest, brokers: Sequence[str], new_id: str, now_ms: int
) -> Topic:
    refuse_other_case(state, name)
    count = request.partitions
    if request.routes is not None:
        route = route_by_hand(request.routes)
    else:
        route = default_route(name, brokers) if count is None else new_route(name, count, brokers)
    _refuse_taken(state, name, route.partitions)
    settings, kafka = settings_after(request, TopicSettings(), {})
    return Topic(
        name=name,
        id=new_id,
        route=route,
        settings=settings,
        created_ms=now_ms,
        generation=state.ended.get(name, 0),
        kafka=kafka,
    )


def refuse_other_case(state: MetaState, name: str) -> None:
    """Refuse a name that differs from another only by case: case-insensitive file systems would share the folders."""
    folded = name.lower()
    for other in state.topics:
        if other.lower() == folded:
            raise Conflict(
                f"topic {other} exists, and {name} differs from it only by case",
                code="topic_name_case",
                field="topic",
                extra={"topic": other},
            )


def _refuse_taken(state: MetaState, name: str, partitions: Iterable[str]) -> None:
    """Refuse partitions of other topics: a partition belongs to one topic (SPEC MODEL-1)."""
    wanted = set(partitions)
    for other in state.topics.values() if wanted else ():
        taken = wanted.intersection(other.route.index_of) if other.name != name else ()
        if taken:
            raise Conflict(
                f"{min(taken)} is a partition of topic {other.name}",
                code="partition_taken",
                field="routes",
                extra={"topic": other.name},
            )


def decide_delete_topic(state: MetaState, name: str) -> tuple[Event, ...]:
    """Return the event that deletes topic `name`; raises `NotFound`, or `Refused` for a system name."""
    check_client_topic(name)
    topic = state.topic(name)
    return (TopicDeleted(name=name, id=topic.id, epoch=state.routes_epoch + 1),)
