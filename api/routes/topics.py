"""Topics over REST: create, change, show, find offsets by time, delete."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, Final, Literal

import msgspec
from fastapi import APIRouter, Query, Request, Response
from fastapi import Path as PathParameter
from msgspec import Meta
from pydantic import BaseModel

from deltamq.api.auth.caller import permit_put
from deltamq.api.host.clusters import from_cluster
from deltamq.api.host.hosted_topic import HostedTopic, Topics
from deltamq.api.host.peers import Call
from deltamq.api.host.static_topics import QueueState, queue_states
from deltamq.api.log.partition import Partition
from deltamq.api.progress.group_progress import QueueProgress
from deltamq.api.service.dependencies import Asking, Running
from deltamq.api.wire.fields import AccessFields, After, Limit, page, parse_time, rfc3339
from deltamq.api.wire.json_body import JsonBody
from deltamq.api.wire.openapi_parts import TOPIC_PATTERN, problems
from deltamq.mq.errors import Corrupt, Unprocessable
from deltamq.mq.limits import (
    BROKERS_NAMED_MAX,
    LOGICAL_PARTITIONS,
    MESSAGE_TYPE_LENGTH_MAX,
    PARTITIONS_MAX,
    RETENTION_MS_MAX,
    RETENTION_MS_MIN,
)
from deltamq.mq.meta.access import Access, AccessState
from deltamq.mq.meta.static_topics import StaticRequest
from deltamq.mq.meta.topic_settings import FlushMode, OrderStrategy, TopicRequest
from deltamq.mq.names import broker_of, check_client_topic
from deltamq.mq.partitioners import Partitioner
from deltamq.mq.static.global_queues import GlobalQueues, global_queue_name
from deltamq.tables.log.log import PartitionLog
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
    message_type: Annotated[str, Meta(min_length=1, max_length=MESSAGE_TYPE_LENGTH_MAX)] | None = None
    flush: FlushMode | None = None
    partitioner: Annotated[
        Partitioner | None,
        Meta(
            description="By which hash keys go to partitions: `lp` (the default) that of Spark SQL, `kafka` that of "
            "Kafka's default partitioner. Set when the topic is made, and never changed; not with `static`."
        ),
    ] = None
    static: Annotated[bool | None, Meta(description="Whether the topic has logical queues.")] = None
    total_queues: Annotated[
        Annotated[int, Meta(extra_json_schema={"minimum": 1, "maximum": PARTITIONS_MAX})] | None,
        Meta(description="Number of logical queues of a static topic; it can only grow."),
    ] = None
    scope: Annotated[
        Literal["cluster", "global"] | None,
        Meta(description="With `static`: whether the topic is of this cluster alone, or covers several clusters."),
    ] = None
    clusters: Annotated[
        Annotated[list[str], Meta(min_length=1, max_length=BROKERS_NAMED_MAX)] | None,
        Meta(description="With `scope: global`: the clusters that get the queues, evenly."),
    ] = None
    brokers: Annotated[
        Annotated[list[str], Meta(min_length=1, max_length=BROKERS_NAMED_MAX)] | None,
        Meta(description="The brokers for new logical queues; by default those that have some, or all."),
    ] = None


_PUT: Final = JsonBody(TopicPutRequest, {"partitions": 4, "order_strategy": "best_tried"}, required=False)


def _wanted_of(asked: TopicPutRequest) -> TopicRequest:
    """Return the settings for the metadata; refuse a message type with unprintable characters."""
    if asked.message_type is not None and not asked.message_type.isprintable():
        raise Unprocessable("message_type must be of printable characters", field="message_type")
    if asked.routes is not None and asked.partitions is not None:
        raise Unprocessable("routes: give either the partitions themselves or their number", field="routes")
    return TopicRequest(
        partitions=asked.partitions,
        routes=None if asked.routes is None else tuple(asked.routes),
        order_strategy=asked.order_strategy,
        retention_ms=asked.retention_ms,
        message_type=asked.message_type,
        flush=asked.flush,
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


class PartitionView(AccessFields):
    """One physical partition; `max_offset` is the next offset to be written.

    `state` is `serving`, or the code of the error that stopped it. Unknown values of a damaged partition are null.
    What may not be read or written to follows from the partition's broker and from itself.
    """

    partition: str
    broker: str
    state: str
    logical_partitions: list[tuple[int, int]]
    location: str
    min_offset: int | None = None
    max_offset: int | None = None
    messages: int | None = None
    bytes: int | None = None
    files: int | None = None
    last_append_time: str | None = None
    version: int | None = None


class SegmentView(BaseModel):
    """One segment of a logical queue: a physical partition, and the logical offset of its first message.

    `logic_offset` is -1 while it is not decided, `end_offset` until the segment is sealed. `state` is `sealed`,
    `sealing`, `leader` or `undecided`.
    """

    gen: int
    partition: str
    broker: str
    logic_offset: int
    start_offset: int
    end_offset: int
    state: str


class StayView(BaseModel):
    """A global topic's queue in one cluster: its own offsets `local_start` to `local_end`, from `logic_offset` on.

    -1 stands for what is not decided yet.
    """

    cluster: str
    local_start: int
    logic_offset: int
    local_end: int
    at_once: bool
    start_ms: int
    end_ms: int


class LogicalQueueView(BaseModel):
    """One logical queue in logical offsets; `holes` counts those between its segments that no message has.

    `state` is `serving`, or the code of the error that stopped one of its partitions; of a queue that cannot be had it
    is `queue_unserved`, and the values are null. Of a global topic's queue, `cluster` takes its messages, `stays` say
    where they lie, and `segments` are those of this cluster; what a cluster would have to tell that is away is null.
    """

    queue: int
    partition: str
    state: str
    logical_partitions: list[tuple[int, int]]
    min_offset: int | None = None
    max_offset: int | None = None
    messages: int | None = None
    holes: int | None = None
    epoch: int | None = None
    segments: list[SegmentView] = []
    cluster: str | None = None
    stays: list[StayView] | None = None


class TopicView(BaseModel):
    """A topic with its route; `logical_partitions` of a partition are half-open ranges within 0 to 1024.

    With the `partitioner` `kafka` there are none: keys go to the partition whose place in the route is their hash
    modulo the number of partitions.

    Clients of a static topic name its logical queues; its partitions are their segments, sealed ones included.
    """

    topic: str
    id: str
    order_strategy: str
    retention_ms: int
    message_type: str
    flush: str | None
    created_time: str
    routes_epoch: int
    partitioner: Partitioner
    logical_partitions: int
    static: bool = False
    total_queues: int | None = None
    scope: str | None = None
    home: str | None = None
    clusters: list[str] | None = None
    partitions: list[PartitionView]
    logical_queues: list[LogicalQueueView] | None = None


class TopicList(BaseModel):
    """Names of topics, sorted; `next` is given if more follow: send it as `after` to get them."""

    topics: list[str]
    next: str | None = None


class PartitionOffset(BaseModel):
    """The first offset whose append time is at or after the requested time; the end offset if there is none."""

    partition: str
    offset: int
    #: Between clusters alone: whether it is a message's, and not the end.
    found: bool | None = None


class OffsetsByTime(BaseModel):
    """One offset for each partition."""

    topic: str
    time: str
    offsets: list[PartitionOffset]


@router.get(
    "",
    summary="Names of all topics, or a page of them",
    response_model=TopicList,
    response_model_exclude_none=True,
    responses=problems(400, 422, 500),
)
async def list_topics(service: Running, caller: Asking, limit: Limit = None, after: After = None) -> Any:
    names, following = page(filter(caller.filter("topic", "describe"), service.topics.state.topics), limit, after)
    return {"topics": names, "next": following}


@router.get("/{topic}", summary="One topic with its route", response_model=TopicView, responses=problems(400, 404, 500))
async def show_topic(topic: TopicName, service: Running, caller: Asking, request: Request) -> Any:
    hosted = await service.topics.require(topic)
    view = await _view(hosted, service.topics, service.warehouse, service.settings.refresh_ms)
    if hosted.topic.world is not None and not from_cluster(request.scope["headers"]):
        _add_parts(view, await service.global_topics.views(hosted.topic, caller.name))
    return view


@router.put(
    "/{topic}",
    summary="Create or change a topic",
    response_model=TopicView,
    responses={
        201: {"model": TopicView, "description": "Created"},
        **problems(400, 409, 413, 415, 422, 500, 503, 507),
    },
    openapi_extra=_PUT.described,
)
async def put_topic(topic: TopicName, service: Running, caller: Asking, request: Request, response: Response) -> Any:
    check_client_topic(topic)
    asked = await _PUT.read(request)
    static = _static_of(asked)
    permit = permit_put(caller, topic)
    if static is None:
        hosted, created = await service.topics.put(topic, _wanted_of(asked), permit=permit)
        await service.sealer.seal(hosted)
    elif asked.clusters is not None:
        clusters = list(dict.fromkeys(asked.clusters))
        hosted, created = await service.global_topics.create(topic, static, clusters, permit)
    else:
        hosted, created = await service.static_topics.put(topic, static, permit)
    response.status_code = 201 if created else 200
    return await _view(hosted, service.topics, service.warehouse, service.settings.refresh_ms)


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
    response_model=OffsetsByTime,
    response_model_exclude_none=True,
    responses=problems(400, 404, 500, 503),
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
) -> Any:
    time_us = parse_time(time)
    hosted = await service.topics.require(topic)
    if hosted.topic.world is not None:
        await service.meta.refresh()
        found = await service.global_times.offsets_at(hosted, time_us, Call.of(request.scope))
        return {"topic": topic, "time": rfc3339(time_us), "offsets": msgspec.to_builtins(found)}
    if hosted.topic.static is not None:
        await service.meta.refresh()  # the newest segments count
        offsets = await _queue_offsets(hosted, service.topics, service.progress, time_us)
        return {"topic": topic, "time": rfc3339(time_us), "offsets": offsets}
    logs = await brought_up(hosted, service.settings.refresh_ms)
    offsets = []
    for name in hosted.route.partitions:
        if name not in logs:
            raise Corrupt(f"partition {name} is damaged; its offsets are not known")
        offset = await service.partitions.run(partial(logs[name].offset_at, time_us))
        offsets.append({"partition": name, "offset": offset})
    return {"topic": topic, "time": rfc3339(time_us), "offsets": offsets}


async def _queue_offsets(
    hosted: HostedTopic, topics: Topics, progress: QueueProgress, time_us: int
) -> list[dict[str, object]]:
    """Return for each logical queue the first logical offset at or after a time (SPEC STATIC-15)."""
    queues = [topics.require_queue(hosted, name, "topic") for name in hosted.topic.client_partitions]
    return [
        {"partition": queue.name, "offset": await progress.offset_at(hosted.topic, queue, time_us)} for queue in queues
    ]


async def brought_up(hosted: HostedTopic, refresh_ms: int) -> Mapping[str, PartitionLog]:
    """Return the topic's logs, refreshed if older than `refresh_ms`: an end offset must not seem to go back."""
    logs = await hosted.logs()
    since = asyncio.get_running_loop().time() - refresh_ms / 1000
    old = [partition for partition in hosted.partitions if partition.name in logs and partition.refreshed_at < since]
    # A damaged partition is shown with its error.
    await asyncio.gather(*(partition.refresh() for partition in old), return_exceptions=True)
    return logs


def _queue_view(queue: QueueState, world: GlobalQueues | None) -> dict[str, object]:
    """Return a queue as it is shown; one of a global topic in global offsets, with its stays."""
    view = asdict(queue)
    if world is None:
        return view
    index, stays = queue.queue, world.queues[queue.queue]
    begins, ends = stays[0].cluster == world.here, world.taker(index) == world.here
    return view | {
        "partition": global_queue_name(index),
        "min_offset": world.shown(index, queue.min_offset) if begins and queue.min_offset is not None else None,
        "max_offset": world.shown(index, queue.max_offset) if ends and queue.max_offset is not None else None,
        "holes": None,
        "cluster": world.taker(index),
        "stays": [asdict(stay) for stay in stays],
    }


def _add_parts(view: dict[str, Any], others: Sequence[Mapping[str, Any] | None]) -> None:
    """Add what other clusters say of their parts of a global topic's queues; None stands for one that is away."""
    for at, queue in enumerate(view["logical_queues"]):
        for other in others:
            part = {} if other is None else other["logical_queues"][at]
            for name in ("min_offset", "max_offset"):
                queue[name] = part.get(name) if queue[name] is None else queue[name]
            counted = (queue["messages"], part.get("messages"))
            queue["messages"] = None if None in counted else sum(counted)
        if queue["max_offset"] is None:
            queue["state"] = "queue_unserved"


async def _view(hosted: HostedTopic, topics: Topics, warehouse: Warehouse, refresh_ms: int) -> dict[str, object]:
    topic = hosted.topic
    await brought_up(hosted, refresh_ms)
    queues = queue_states(hosted, topics.queues(hosted))
    return {
        "topic": topic.name,
        "id": topic.id if topic.world is None else topic.world.id,
        "order_strategy": topic.settings.order_strategy,
        "retention_ms": topic.settings.retention_ms,
        "message_type": topic.settings.message_type,
        "flush": topic.settings.flush,
        "created_time": rfc3339(topic.created_ms * 1000),
        "routes_epoch": topic.route.epoch,
        "partitioner": topic.settings.partitioner,
        "logical_partitions": LOGICAL_PARTITIONS if topic.settings.partitioner == "lp" else 0,
        "static": topic.static is not None,
        "total_queues": None if topic.static is None else topic.static.total,
        "partitions": _partition_views(hosted, warehouse, topics.access),
        "scope": None if topic.static is None else "cluster" if topic.world is None else "global",
        "home": None if topic.world is None else topic.world.home,
        "clusters": None if topic.world is None else list(topic.world.clusters),
        "logical_queues": None if queues is None else [_queue_view(queue, topic.world) for queue in queues],
    }


def _partition_views(hosted: HostedTopic, warehouse: Warehouse, access: AccessState) -> list[dict[str, object]]:
    owned: dict[int, list[tuple[int, int]]] = {}
    for low, high, owner in hosted.route.owners if hosted.settings.partitioner == "lp" else ():
        owned.setdefault(owner, []).append((low, high))
    return [
        _partition_view(one, warehouse, owned.get(at, []), access.of(hosted.topic.id, one.name))
        for at, one in enumerate(hosted.partitions)
    ]


def _partition_view(
    partition: Partition, warehouse: Warehouse, owned: list[tuple[int, int]], access: Access
) -> dict[str, object]:
    view: dict[str, object] = {
        "partition": partition.name,
        "broker": broker_of(partition.name),
        "state": partition.fault or "serving",
        "logical_partitions": owned,
        "location": warehouse.location(partition.ref),
        **AccessFields.of(access),
    }
    if partition.log is not None:
        stats = partition.log.stats()
        last_us = stats.last_append_time_us
        view |= {
            "min_offset": stats.min_offset,
            "max_offset": stats.max_offset,
            "messages": stats.messages,
            "bytes": stats.bytes,
            "files": stats.files,
            "last_append_time": None if last_us is None else rfc3339(last_us),
            "version": stats.version,
        }
    return view
