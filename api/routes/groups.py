"""Groups over REST: create, change, show with progress, delete."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Request, Response
from fastapi import Path as PathParameter
from pydantic import BaseModel, ConfigDict, Field

from api.host import Call, is_forwarded
from api.routes.group_clients import AllocationView, ClientView, allocation_views, client_views, seen_views
from api.routes.lane_views import LaneView, Others, ask_others, lane_views
from api.routes.topics import Running, rfc3339
from api.service import Service
from api.wire import TOPIC_PATTERN, After, Limit, json_object, page, problems
from mq.errors import NotFound
from mq.meta import STRATEGIES, Group, GroupRequest, InvisibleBounds
from mq.names import check_group
from mq.queue_limits import INVISIBLE_MS_MAX, INVISIBLE_MS_MIN, MAX_ATTEMPTS_MAX, RETRY_WAIT_MS_MAX, RETRY_WAITS_MAX

__all__ = ["GroupName", "StartView", "router"]

router = APIRouter(prefix="/v1/groups", tags=["groups"])

GroupName = Annotated[str, PathParameter(json_schema_extra={"pattern": TOPIC_PATTERN}, examples=["billing"])]
#: `first`, `last`, or an RFC 3339 time.
StartView = Literal["first", "last"] | Annotated[str, Field(json_schema_extra={"format": "date-time"})]
_Wait = Annotated[int, Field(ge=0, le=RETRY_WAIT_MS_MAX)]


class FixedWait(BaseModel):
    """Always the same wait."""

    model_config = ConfigDict(extra="forbid")
    fixed_ms: _Wait


class GrowingWaits(BaseModel):
    """`initial_ms`, then `multiplier` times as long each time, never over `max_ms`, give or take `jitter`."""

    model_config = ConfigDict(extra="forbid")
    initial_ms: _Wait = 5_000
    multiplier: Annotated[float, Field(ge=1, le=100)] = 2.0
    max_ms: _Wait = 7_200_000
    jitter: Annotated[float, Field(ge=0, le=1)] = 0.0


class ExponentialWaits(BaseModel):
    """Waits that grow."""

    model_config = ConfigDict(extra="forbid")
    exponential: GrowingWaits


RetryPolicyView = Annotated[list[_Wait], Field(min_length=1, max_length=RETRY_WAITS_MAX)] | FixedWait | ExponentialWaits


class GroupPutRequest(BaseModel):
    """What a group shall be; what is left out stays as it is, or gets its default when the group is new."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"max_attempts": 5, "retry_policy": {"fixed_ms": 1000}}]}
    )

    consume_strategy: Annotated[
        str | None, Field(json_schema_extra={"enum": ["shared", "exclusive", None]}, description="By default shared.")
    ] = None
    allocation_strategy: Annotated[
        str | None,
        Field(
            json_schema_extra={"enum": [*STRATEGIES, None]},
            description="Who gets which partition of an exclusive group. By default sticky.",
        ),
    ] = None
    order: Annotated[
        bool | Literal["key"] | None, Field(description='true: partitions in order; "key": each key in order.')
    ] = None
    consume_from: Annotated[
        StartView | None,
        Field(
            description="Where the group begins in a partition: `first`, `last`, or a time. In one that is added after"
            " it has begun in the topic it begins at the first message."
        ),
    ] = None
    max_attempts: Annotated[int | None, Field(ge=1, le=MAX_ATTEMPTS_MAX)] = None
    retry_policy: RetryPolicyView | None = None
    invisible_ms: Annotated[
        int | None, Field(ge=INVISIBLE_MS_MIN, le=INVISIBLE_MS_MAX, description="For pops that do not say.")
    ] = None


class TopicProgress(BaseModel):
    """How far a group is in a topic; `lag` counts the messages of all its partitions."""

    topic: str
    lag: int
    partitions: list[LaneView]


class GroupView(BaseModel):
    """A group's settings, who consumes for it, and where it is in each topic that it has consumed or shall consume.

    The latter are those that a client of it subscribes to: before the first pop or commit a backlog is lag, too.
    `allocation` is that of an exclusive group. Clients of a shared one come and go without a word: `clients` are those
    that have named themselves in pops or heartbeats within the time of an authorization.
    """

    group: str
    epoch: int
    consume_strategy: str
    allocation_strategy: str
    order: bool | Literal["key"]
    consume_from: str
    max_attempts: int
    retry_policy: RetryPolicyView
    invisible_ms: int
    created_time: str
    clients: list[ClientView]
    allocation: dict[str, AllocationView]
    topics: list[TopicProgress]


class GroupList(BaseModel):
    """Names of groups, sorted; `next` is there when more follow, and is what to send as `after` for them."""

    groups: list[str]
    next: str | None = None


@router.get(
    "",
    summary="Names of all groups, or a page of them",
    response_model=GroupList,
    response_model_exclude_none=True,
    responses=problems(400, 422, 500),
)
async def list_groups(service: Running, limit: Limit = None, after: After = None) -> Any:
    names, following = page(service.groups.state.groups, limit, after)
    return {"groups": names, "next": following}


@router.get(
    "/{group}", summary="One group with its progress", response_model=GroupView, responses=problems(400, 404, 500)
)
async def show_group(group: GroupName, service: Running, request: Request) -> Any:
    return await _view(service, await service.groups.require(group), Call.of(request.scope))


_PUT_SCHEMA: Final = GroupPutRequest.model_json_schema(ref_template="#/components/schemas/{model}")
_PUT_SCHEMA.pop("$defs", None)  # the answer's schema has them


@router.put(
    "/{group}",
    summary="Create or change a group",
    response_model=GroupView,
    responses={
        201: {"model": GroupView, "description": "Created"},
        **problems(400, 409, 413, 415, 422, 500, 507),
    },
    openapi_extra={
        "requestBody": {"required": False, "content": {"application/json": {"schema": _PUT_SCHEMA}}},
    },
)
async def put_group(group: GroupName, service: Running, request: Request, response: Response) -> Any:
    check_group(group)
    queue = service.config.queue
    bounds = InvisibleBounds(queue.invisible_ms_min, queue.invisible_ms_max)
    wanted = GroupRequest.from_json(await json_object(request), bounds)
    found, created = await service.groups.put(group, wanted)
    response.status_code = 201 if created else 200
    shown = Call("GET", Call.of(request.scope).target, [], b"")
    return await _view(service, found, shown)


@router.delete(
    "/{group}",
    summary="Remove a group with its progress, retried and dead messages",
    status_code=204,
    responses=problems(400, 404, 500, 507),
)
async def delete_group(group: GroupName, service: Running) -> None:
    await service.groups.delete(group)
    service.seen.forget(group)


async def _view(service: Service, group: Group, call: Call) -> dict[str, object]:
    """The group; other processes are asked by `call` for what they know of it, unless one of them asks."""
    topics = []
    others, heard = (None, []) if is_forwarded(call.headers) else await _others(service, call)
    exclusive = group.settings.consume_strategy == "exclusive"
    clients = client_views(service, group.name) if exclusive else seen_views(service, group.name, heard)
    allocation = allocation_views(service, group.name)
    wanted = {*allocation, *(topic for client in clients for topic in client.topics)}
    touched, told = service.lanes.topics_of(group.name), others.topics if others is not None else set()
    for topic in sorted(service.topics.state.topics.values(), key=lambda one: one.name):
        if topic.id not in touched and topic.name not in wanted and topic.name not in told:
            continue
        try:
            consumed = topic.name not in wanted
            lanes = await lane_views(service, group.name, topic, consumed=consumed, others=others)
        except NotFound:  # the topic was deleted meanwhile
            continue
        if lanes:
            lag = sum(lane.lag or 0 for lane in lanes)
            topics.append(TopicProgress(topic=topic.name, lag=lag, partitions=lanes))
    return {
        "group": group.name,
        "epoch": group.epoch,
        **group.settings.to_json(),
        "created_time": rfc3339(group.created_ms * 1000),
        "clients": clients,
        "allocation": allocation,
        "topics": topics,
    }


async def _others(service: Service, call: Call) -> tuple[Others, list[ClientView]]:
    """What other processes know of the group: who cannot be asked shall not keep it from being shown."""
    others, heard = Others(), list[ClientView]()
    if not service.hosting.alone:
        brokers = service.meta.now.brokers.brokers
        for answer in await ask_others(service, brokers, call, all_of_them=False):
            for topic in answer["topics"]:
                others.add(topic["topic"], topic["partitions"])
            heard += map(ClientView.model_validate, answer["clients"])
    return others, heard
