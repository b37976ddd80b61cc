"""Topics over REST: create, change, show, find offsets by time, delete."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi import Path as PathParameter
from msgspec import Meta
from pydantic import BaseModel

from api.host import HostedTopic
from api.log import Partition
from api.service import Service
from api.wire import TOPIC_PATTERN, After, JsonBody, Limit, page, problems
from mq.errors import Corrupt, Refused, Unavailable, Unprocessable
from mq.limits import (
    LOGICAL_PARTITIONS,
    MESSAGE_TYPE_LENGTH_MAX,
    PARTITIONS_MAX,
    RETENTION_MS_MAX,
    RETENTION_MS_MIN,
)
from mq.meta import FlushMode, OrderStrategy, TopicRequest
from mq.names import broker_of, check_client_topic
from tables.log import PartitionLog, Warehouse

__all__ = ["brought_up", "router", "service_of"]

router = APIRouter(prefix="/v1/topics", tags=["topics"])

_TIME: Final = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d(?:\.\d{1,9})?)(?:[Zz]|[+ -]\d\d:\d\d)")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

TopicName = Annotated[str, PathParameter(json_schema_extra={"pattern": TOPIC_PATTERN}, examples=["flights"])]


async def service_of(request: Request) -> Service:
    """Return the running service."""
    service: Service | None = request.app.state.service
    if service is None:
        raise Unavailable("the service is starting or stopping", code="starting")
    return service


Running = Annotated[Service, Depends(service_of)]


_NO_STATIC: Final = "There are no static topics yet."
#: A field of static topics (SPEC STATIC).
_OfStatic = Annotated[Any, Meta(description=_NO_STATIC, extra_json_schema={"type": "null"})]


class TopicPutRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The settings of a topic; one that is left out stays as it is, or gets its default in a new topic."""

    # The route refuses numbers out of bounds, with a code of its own.
    partitions: Annotated[
        Annotated[int, Meta(extra_json_schema={"minimum": 1, "maximum": PARTITIONS_MAX})] | None,
        Meta(description="Number of partitions; it can only grow."),
    ] = None
    order_strategy: OrderStrategy | None = None
    retention_ms: Annotated[int, Meta(ge=RETENTION_MS_MIN, le=RETENTION_MS_MAX)] | None = None
    message_type: Annotated[str, Meta(min_length=1, max_length=MESSAGE_TYPE_LENGTH_MAX)] | None = None
    flush: FlushMode | None = None
    static: Annotated[Any, Meta(description=_NO_STATIC, extra_json_schema={"enum": [False, None]})] = None
    total_queues: _OfStatic = None
    brokers: _OfStatic = None


_PUT: Final = JsonBody(TopicPutRequest, {"partitions": 4, "order_strategy": "best_tried"}, required=False)


def _wanted_of(asked: TopicPutRequest) -> TopicRequest:
    """Return the request for the metadata; refuse static topics, and a message type with unprintable characters."""
    static = None if asked.static is False else asked.static
    for name, value in (("static", static), ("total_queues", asked.total_queues), ("brokers", asked.brokers)):
        if value is not None:
            raise Unprocessable(
                f"`{name}` asks for a static topic, and this service has no static topics yet",
                code="static_topics_unavailable",
                field=name,
            )
    if asked.message_type is not None and not asked.message_type.isprintable():
        raise Unprocessable("message_type must be of printable characters", field="message_type")
    return TopicRequest(
        partitions=asked.partitions,
        order_strategy=asked.order_strategy,
        retention_ms=asked.retention_ms,
        message_type=asked.message_type,
        flush=asked.flush,
    )


class PartitionView(BaseModel):
    """One physical partition; `max_offset` is the next offset to be written.

    `state` is `serving`, or the code of the error that stopped it. Unknown values of a damaged partition are null.
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


class TopicView(BaseModel):
    """A topic with its route; `logical_partitions` of a partition are half-open ranges within 0 to 1024."""

    topic: str
    id: str
    order_strategy: str
    retention_ms: int
    message_type: str
    flush: str | None
    created_time: str
    routes_epoch: int
    logical_partitions: int
    partitions: list[PartitionView]


class TopicList(BaseModel):
    """Names of topics, sorted; `next` is given if more follow: send it as `after` to get them."""

    topics: list[str]
    next: str | None = None


class PartitionOffset(BaseModel):
    """The first offset whose append time is at or after the requested time; the end offset if there is none."""

    partition: str
    offset: int


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
async def list_topics(service: Running, limit: Limit = None, after: After = None) -> Any:
    names, following = page(service.topics.state.topics, limit, after)
    return {"topics": names, "next": following}


@router.get("/{topic}", summary="One topic with its route", response_model=TopicView, responses=problems(400, 404, 500))
async def show_topic(topic: TopicName, service: Running) -> Any:
    return await _view(await service.topics.require(topic), service.warehouse, service.settings.refresh_ms)


@router.put(
    "/{topic}",
    summary="Create or change a topic",
    response_model=TopicView,
    responses={
        201: {"model": TopicView, "description": "Created"},
        **problems(400, 409, 413, 415, 422, 500, 507),
    },
    openapi_extra=_PUT.described,
)
async def put_topic(topic: TopicName, service: Running, request: Request, response: Response) -> Any:
    check_client_topic(topic)
    wanted = _wanted_of(await _PUT.read(request))
    hosted, created = await service.topics.put(topic, wanted)
    await service.sealer.seal(hosted)
    response.status_code = 201 if created else 200
    return await _view(hosted, service.warehouse, service.settings.refresh_ms)


@router.delete(
    "/{topic}",
    summary="Delete a topic with its routes and data",
    status_code=204,
    responses=problems(400, 404, 500, 507),
)
async def delete_topic(topic: TopicName, service: Running) -> None:
    check_client_topic(topic)
    await service.delete_topic(topic)


@router.get(
    "/{topic}/offsets",
    summary="For each partition the first offset at or after a time",
    response_model=OffsetsByTime,
    responses=problems(400, 404, 500),
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
) -> Any:
    time_us = parse_time(time)
    hosted = await service.topics.require(topic)
    if hosted.topic.static is not None:
        offsets = await _queue_offsets(service, hosted, time_us)
        return {"topic": topic, "time": rfc3339(time_us), "offsets": offsets}
    logs = await brought_up(hosted, service.settings.refresh_ms)
    offsets = []
    for name in hosted.route.partitions:
        if name not in logs:
            raise Corrupt(f"partition {name} is damaged; its offsets are not known")
        offset = await service.partitions.run(partial(logs[name].offset_at, time_us))
        offsets.append({"partition": name, "offset": offset})
    return {"topic": topic, "time": rfc3339(time_us), "offsets": offsets}


async def _queue_offsets(service: Service, hosted: HostedTopic, time_us: int) -> list[dict[str, object]]:
    """Return for each logical queue the first logical offset at or after a time (SPEC STATIC-15)."""
    await service.meta.refresh()  # the newest segments count
    queues = [service.topics.require_queue(hosted, name, "topic") for name in hosted.topic.client_partitions]
    return [
        {"partition": queue.name, "offset": await service.progress.offset_at(hosted.topic, queue, time_us)}
        for queue in queues
    ]


async def brought_up(hosted: HostedTopic, refresh_ms: int) -> Mapping[str, PartitionLog]:
    """Return the topic's logs, refreshed if older than `refresh_ms`: an end offset must not seem to go back."""
    logs = await hosted.logs()
    since = asyncio.get_running_loop().time() - refresh_ms / 1000
    old = [partition for partition in hosted.partitions if partition.name in logs and partition.refreshed_at < since]
    # A damaged partition is shown with its error.
    await asyncio.gather(*(partition.refresh() for partition in old), return_exceptions=True)
    return logs


def rfc3339(time_us: int) -> str:
    """Return microseconds since 1970 as RFC 3339 in UTC."""
    seconds, micros = divmod(time_us, 1_000_000)
    return f"{(_EPOCH + timedelta(seconds=seconds)).replace(tzinfo=None).isoformat()}.{micros:06d}Z"


def parse_time(text: str) -> int:
    """Return RFC 3339 as microseconds since 1970; a `+` that the query's encoding made a space is accepted."""
    try:
        if not _TIME.fullmatch(text):
            raise ValueError
        time = datetime.fromisoformat((text[:-6] + text[-6:].replace(" ", "+")).upper())
        return (time - _EPOCH) // _EPOCH.resolution
    except (ValueError, OverflowError):
        raise Refused("time: write RFC 3339, for example 2013-01-01T05:15:00Z", field="time") from None


async def _view(hosted: HostedTopic, warehouse: Warehouse, refresh_ms: int) -> dict[str, object]:
    topic = hosted.topic
    await brought_up(hosted, refresh_ms)
    return {
        "topic": topic.name,
        "id": topic.id,
        "order_strategy": topic.settings.order_strategy,
        "retention_ms": topic.settings.retention_ms,
        "message_type": topic.settings.message_type,
        "flush": topic.settings.flush,
        "created_time": rfc3339(topic.created_ms * 1000),
        "routes_epoch": topic.route.epoch,
        "logical_partitions": LOGICAL_PARTITIONS,
        "partitions": [_partition_view(hosted, partition, warehouse) for partition in hosted.partitions],
    }


def _partition_view(hosted: HostedTopic, partition: Partition, warehouse: Warehouse) -> dict[str, object]:
    index = hosted.route.partitions.index(partition.name)
    view: dict[str, object] = {
        "partition": partition.name,
        "broker": broker_of(partition.name),
        "state": partition.fault or "serving",
        "logical_partitions": [(low, high) for low, high, owner in hosted.route.owners if owner == index],
        "location": warehouse.location(partition.ref),
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
