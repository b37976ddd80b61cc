"""Topics over REST: create, change, show, find offsets by time, delete."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Final, Literal

import msgspec
from fastapi import APIRouter, Query, Request, Response
from fastapi import Path as PathParameter
from msgspec import Meta
from msgspec.structs import replace

from deltamq.api.auth.caller import permit_put
from deltamq.api.host.clusters import from_cluster
from deltamq.api.host.hosted_topic import HostedTopic, Topics
from deltamq.api.host.peers import Call
from deltamq.api.host.static_topics import UNSERVED, queue_states
from deltamq.api.host.typed_topics import WantedSchema, wanted_schema
from deltamq.api.log.partition import Partition
from deltamq.api.progress.times import brought_up
from deltamq.api.service.dependencies import Asking, Running
from deltamq.api.wire.fields import After, Limit, access_fields, json_answer, moment, moment_us, page, parse_time
from deltamq.api.wire.json_body import JsonBody
from deltamq.api.wire.openapi_parts import TOPIC_PATTERN, answers, answers_or_makes, problems
from deltamq.mq.errors import Unprocessable
from deltamq.mq.limits import (
    BROKERS_NAMED_MAX,
    COMMIT_WINDOW_MS_MAX,
    JSON_INTEGER_MAX,
    LOGICAL_PARTITIONS,
    MESSAGE_TYPE_LENGTH_MAX,
    PARTITIONS_MAX,
    RETENTION_MS_MAX,
    RETENTION_MS_MIN,
)
from deltamq.mq.meta.access import Access, AccessState
from deltamq.mq.meta.static_topics import StaticRequest
from deltamq.mq.meta.topic_settings import (
    NO_LIMIT,
    FlushMode,
    OrderStrategy,
    TopicRequest,
    limit_of,
    schema_of,
    window_of,
)
from deltamq.mq.meta.topics import MetaState, Topic
from deltamq.mq.names import broker_of, check_client_topic
from deltamq.mq.partitioners import Partitioner
from deltamq.mq.schemas.registry import Reference, RegistryState
from deltamq.mq.static.global_queues import GlobalQueues
from deltamq.mq.static.queue_names import global_queue_name
from deltamq.mq.wire.schemas import SchemaPut
from deltamq.mq.wire.topics import OffsetsByTime, PartitionInfo, QueueInfo, SchemaInfo, TopicInfo, TopicList
from deltamq.tables.log.warehouse import Warehouse

router = APIRouter(prefix="/v1/topics", tags=["topics"])

TopicName = Annotated[str, PathParameter(json_schema_extra={"pattern": TOPIC_PATTERN}, examples=["flights"])]


class TopicPutRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The settings of a topic; one that is left out stays as it is, or gets its default in a new topic.

    A static topic is asked for with `static` and `total_queues`, and its settings change only together with these.
    """

    # The route refuses numbers out of bounds, with a code of its own.
    partitions: Annotated[
        Annotated[int, Meta(extra_json_schema={"minimum": 1, "maximum": PARTITIONS_MAX})] | None,
        Meta(description="Number of partitions; it can only grow."),
    ] = None
    routes: Annotated[
        Annotated[list[str], Meta(min_length=1, max_length=PARTITIONS_MAX)] | None,
        Meta(description="All partitions by hand, `NAME@BROKER`, in route order: present ones first, then new ones."),
    ] = None
    order_strategy: OrderStrategy | None = None
    retention_ms: Annotated[int, Meta(ge=RETENTION_MS_MIN, le=RETENTION_MS_MAX)] | None = None
    retention_bytes: Annotated[
        Annotated[int, Meta(ge=NO_LIMIT, le=JSON_INTEGER_MAX)] | None,
        Meta(
            description="Older messages also go while each partition keeps so many bytes; -1 for no limit.",
            extra_json_schema={"not": {"const": 0}},
        ),
    ] = None
    message_type: Annotated[str, Meta(min_length=1, max_length=MESSAGE_TYPE_LENGTH_MAX)] | None = None
    flush: FlushMode | None = None
    commit_window_ms: Annotated[
        Annotated[int, Meta(ge=0, le=COMMIT_WINDOW_MS_MAX)] | None,
        Meta(description="How long messages wait for others that share their commit; 0: they are committed at once."),
    ] = None
    partitioner: Annotated[
        Partitioner | None,
        Meta(
            description="The hash that takes keys to partitions: `lp` (the default) as in Spark SQL, `kafka` as in "
            "Kafka's default partitioner. Set when the topic is made, and never changed; not with `static`."
        ),
    ] = None
    schema: Annotated[
        SchemaPut | None,
        Meta(description="What messages are written in: their fields are columns of the partitions' tables."),
    ] = None
    static: Annotated[bool | None, Meta(description="Whether the topic has logical queues.")] = None
    total_queues: Annotated[
        Annotated[int, Meta(extra_json_schema={"minimum": 1, "maximum": PARTITIONS_MAX})] | None,
        Meta(description="Number of logical queues of a static topic; it can only grow."),
    ] = None
    scope: Annotated[
        Literal["cluster", "global"] | None,
        Meta(description="With `static`: whether the topic is only of this cluster, or covers several clusters."),
    ] = None
    clusters: Annotated[
        Annotated[list[str], Meta(min_length=1, max_length=BROKERS_NAMED_MAX)] | None,
        Meta(description="With `scope: global`: the clusters that get the queues, evenly."),
    ] = None
    brokers: Annotated[
        Annotated[list[str], Meta(min_length=1, max_length=BROKERS_NAMED_MAX)] | None,
        Meta(description="The brokers for new logical queues; by default the brokers that have some, or all."),
    ] = None


_PUT: Final = JsonBody(TopicPutRequest, {"partitions": 4, "order_strategy": "best_tried"}, required=False)


def _wanted_of(asked: TopicPutRequest) -> TopicRequest:
    if asked.message_type is not None and not asked.message_type.isprintable():
        raise Unprocessable("message_type must be of printable characters", field="message_type")
    if asked.retention_bytes == 0:
        raise Unprocessable("retention_bytes must be 1 or more, or -1 for no limit", field="retention_bytes")
    if asked.routes is not None and asked.partitions is not None:
        raise Unprocessable("routes: give either the partitions themselves or their number", field="routes")
    return TopicRequest(
        partitions=asked.partitions,
        routes=None if asked.routes is None else tuple(asked.routes),
        order_strategy=asked.order_strategy,
        retention_ms=asked.retention_ms,
        retention_bytes=asked.retention_bytes,
        message_type=asked.message_type,
        flush=asked.flush,
        commit_window_ms=asked.commit_window_ms,
        partitioner=asked.partitioner,
    )


def _static_of(asked: TopicPutRequest) -> StaticRequest | None:
    """Return the request for a static topic; None if it is one for a plain topic."""
    wanted = _wanted_of(asked)
    if not asked.static:
        for name in ("total_queues", "brokers", "scope", "clusters"):
            value = getattr(asked, name)
            if value is not None:
                raise Unprocessable(f"{name} is for static topics: give `static: true` with it", field=name)
        return None
    for name, given in (("partitions", asked.partitions), ("routes", asked.routes)):
        if given is not None:
            raise Unprocessable(f"{name}: a static topic has total_queues instead", field=name)
    if asked.total_queues is None:
        raise Unprocessable("total_queues: a static topic is changed together with it", field="total_queues")
    if (asked.scope == "global") != (asked.clusters is not None):
        raise Unprocessable("clusters: a topic of scope global names its clusters, and no other does", field="clusters")
    if asked.clusters is not None and asked.brokers is not None:
        raise Unprocessable("brokers: each cluster of a global topic spreads its queues itself", field="brokers")
    brokers = None if asked.brokers is None else tuple(asked.brokers)
    return StaticRequest(total_queues=asked.total_queues, brokers=brokers, settings=wanted)


def _schema_of(topic: str, asked: TopicPutRequest) -> Callable[[MetaState], WantedSchema] | None:
    """Return what schema the request asks for, by the topics that are there; None if it asks for none."""
    given = asked.schema
    if given is None:
        return None
    references = tuple(Reference(used.name, used.subject, used.version) for used in given.references)

    def wanted(topics: MetaState) -> WantedSchema:
        present = topics.topics.get(topic)
        return wanted_schema(
            topic,
            None if present is None else schema_of(present.settings),
            format=given.format,
            subject=given.subject,
            schema=given.schema,
            references=references,
            message=given.message,
            wire=given.wire,
            on_invalid=given.on_invalid,
            unwrap=given.unwrap,
        )

    return wanted


@router.get(
    "",
    summary="Names of all topics, or a page of them",
    responses=answers(TopicList, 400, 422, 500),
)
async def list_topics(service: Running, caller: Asking, limit: Limit = None, after: After = None) -> Response:
    names, following = page(filter(caller.filter("topic", "describe"), service.topics.state.topics), limit, after)
    return json_answer(TopicList(topics=names, next=following))


@router.get("/{topic}", summary="One topic with its route", responses=answers(TopicInfo, 400, 404, 500))
async def show_topic(topic: TopicName, service: Running, caller: Asking, request: Request) -> Response:
    hosted = await service.topics.require(topic)
    shown = await _shown(hosted, service.topics, service.warehouse, service.settings.refresh_ms)
    if hosted.topic.world is not None and not from_cluster(request.scope["headers"]):
        others = await service.global_topics.views(hosted.topic, caller.name)
        shown = replace(shown, logical_queues=tuple(_with_parts(queue, others) for queue in shown.queues))
    return json_answer(shown)


@router.put(
    "/{topic}",
    summary="Create or change a topic",
    responses=answers_or_makes(TopicInfo, 400, 409, 413, 415, 422, 500, 503, 507),
    openapi_extra=_PUT.described,
)
async def put_topic(topic: TopicName, service: Running, caller: Asking, request: Request) -> Response:
    check_client_topic(topic)
    asked = await _PUT.read(request)
    static = _static_of(asked)
    permit, schema = permit_put(caller, topic), _schema_of(topic, asked)
    if schema is not None:
        await service.registry.register_for(topic, schema, caller, Call.of(request.scope))
    if static is None:
        hosted, created = await service.topics.put(topic, _wanted_of(asked), permit=permit, schema=schema)
        await service.sealer.seal(hosted)
    elif asked.clusters is not None:
        clusters = list(dict.fromkeys(asked.clusters))
        if schema is not None:
            raise Unprocessable("schema: a topic of scope global has none; leave it out", field="schema")
        hosted, created = await service.global_topics.create(topic, static, clusters, permit)
    else:
        hosted, created = await service.static_topics.put(topic, static, permit, schema)
    shown = await _shown(hosted, service.topics, service.warehouse, service.settings.refresh_ms)
    return json_answer(shown, 201 if created else 200)


@router.delete(
    "/{topic}",
    summary="Delete a topic with its routes and data",
    status_code=204,
    responses=problems(400, 404, 409, 500, 503, 507),
)
async def delete_topic(topic: TopicName, service: Running, request: Request) -> None:
    check_client_topic(topic)
    await service.delete_topic(topic, by_cluster=from_cluster(request.scope["headers"]))


@router.get(
    "/{topic}/offsets",
    summary="For each partition the first offset at or after a time",
    responses=answers(OffsetsByTime, 400, 404, 500, 503),
)
async def offsets_by_time(
    topic: TopicName,
    service: Running,
    time: Annotated[
        str,
        Query(
            description="RFC 3339, for example 2013-01-01T05:15:00Z",
            examples=["2013-01-01T05:15:00Z"],
            json_schema_extra={"format": "date-time"},
        ),
    ],
    request: Request,
) -> Response:
    time_us = parse_time(time)
    hosted = await service.topics.require(topic)
    if hosted.topic.world is not None:
        await service.meta.refresh()
        offsets = await service.global_times.offsets_at(hosted, time_us, Call.of(request.scope))
    else:
        offsets = await service.times.offsets_at(hosted, time_us)
    return json_answer(OffsetsByTime(topic=topic, time=moment_us(time_us), offsets=offsets))


def _in_clusters(queue: QueueInfo, world: GlobalQueues) -> QueueInfo:
    """Return a global topic's queue in global offsets, with its stays."""
    index, stays = queue.queue, world.queues[queue.queue]
    begins, ends = stays[0].cluster == world.here, world.taker(index) == world.here
    return replace(
        queue,
        partition=global_queue_name(index),
        min_offset=world.shown(index, queue.min_offset) if begins and queue.min_offset is not None else None,
        max_offset=world.shown(index, queue.max_offset) if ends and queue.max_offset is not None else None,
        holes=None,
        cluster=world.taker(index),
        stays=stays,
    )


def _with_parts(queue: QueueInfo, others: Sequence[TopicInfo | None]) -> QueueInfo:
    """Add what other clusters say of their parts of a global topic's queue; None stands for a cluster that is away."""
    low, high, messages = queue.min_offset, queue.max_offset, queue.messages
    for other in others:
        part = None if other is None else other.queues[queue.queue]
        if part is not None:
            low = part.min_offset if low is None else low
            high = part.max_offset if high is None else high
        counted = None if part is None else part.messages
        messages = None if messages is None or counted is None else messages + counted
    state = UNSERVED if high is None else queue.state
    return replace(queue, min_offset=low, max_offset=high, messages=messages, state=state)


async def _shown(hosted: HostedTopic, topics: Topics, warehouse: Warehouse, refresh_ms: int) -> TopicInfo:
    topic = hosted.topic
    await brought_up(hosted, refresh_ms)
    queues, world = queue_states(hosted, topics.queues(hosted)), topic.world
    if queues is not None and world is not None:
        queues = [_in_clusters(queue, world) for queue in queues]
    return TopicInfo(
        topic=topic.name,
        id=topic.id if world is None else world.id,
        order_strategy=topic.settings.order_strategy,
        retention_ms=topic.settings.retention_ms,
        retention_bytes=limit_of(topic.settings),
        message_type=topic.settings.message_type,
        flush=topic.settings.flush,
        commit_window_ms=window_of(topic.settings),
        created_time=moment(topic.created_ms),
        routes_epoch=topic.route.epoch,
        partitioner=topic.settings.partitioner,
        logical_partitions=LOGICAL_PARTITIONS if topic.settings.partitioner == "lp" else 0,
        static=topic.static is not None,
        total_queues=None if topic.static is None else topic.static.total,
        partitions=_partitions(hosted, warehouse, topics.access),
        scope=None if topic.static is None else "cluster" if world is None else "global",
        home=None if world is None else world.home,
        clusters=None if world is None else world.clusters,
        logical_queues=None if queues is None else tuple(queues),
        schema=_schema_info(topic, topics.schemas),
    )


def _schema_info(topic: Topic, registry: RegistryState) -> SchemaInfo | None:
    setting = schema_of(topic.settings)
    if setting is None:
        return None
    versions = registry.versions(setting.subject)
    return SchemaInfo(
        format=setting.format,
        subject=setting.subject,
        wire=setting.wire,
        on_invalid=setting.on_invalid,
        message=setting.message,
        unwrap=setting.unwrap,
        version=versions[-1].version if versions else None,
        schema_id=versions[-1].id if versions else None,
    )


def _partitions(hosted: HostedTopic, warehouse: Warehouse, access: AccessState) -> tuple[PartitionInfo, ...]:
    owned: dict[int, list[tuple[int, int]]] = {}
    for low, high, owner in hosted.route.owners if hosted.settings.partitioner == "lp" else ():
        owned.setdefault(owner, []).append((low, high))
    return tuple(
        _partition(partition, warehouse, tuple(owned.get(at, ())), access.of(hosted.topic.id, partition.name))
        for at, partition in enumerate(hosted.partitions)
    )


def _partition(
    partition: Partition, warehouse: Warehouse, owned: tuple[tuple[int, int], ...], access: Access
) -> PartitionInfo:
    shown = PartitionInfo(
        partition=partition.name,
        broker=broker_of(partition.name),
        state=partition.fault or "serving",
        logical_partitions=owned,
        location=warehouse.location(partition.ref),
        **access_fields(access),
    )
    if partition.log is None:
        return shown
    stats = partition.log.stats()
    last_us = stats.last_append_time_us
    return replace(
        shown,
        min_offset=stats.min_offset,
        max_offset=stats.max_offset,
        messages=stats.messages,
        bytes=stats.bytes,
        files=stats.files,
        last_append_time=None if last_us is None else moment_us(last_us),
        version=stats.version,
        quarantined=partition.log.state.misfits() or None,
    )
