"""Static topics over REST: move queues to other brokers, check the mappings, repair them (SPEC STATIC-5 to 11).

The calls below `/global` are those of clusters among each other (SPEC STATIC-19); users need none of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Request, Response
from fastapi import Path as PathParameter
from msgspec import Meta
from pydantic import BaseModel, Field

from deltamq.api.host.clusters import from_cluster, global_epoch_of
from deltamq.api.host.global_topics import GlobalTopics
from deltamq.api.host.hosted_topic import Topics
from deltamq.api.host.peers import Call, as_response
from deltamq.api.routes.topics import StayView, TopicName
from deltamq.api.service.dependencies import Running
from deltamq.api.wire.json_body import JsonBody
from deltamq.api.wire.openapi_parts import problems
from deltamq.mq.errors import Refused, Unprocessable
from deltamq.mq.limits import BROKERS_NAMED_MAX, PARTITIONS_MAX, PRODUCER_ID_LENGTH_MAX
from deltamq.mq.meta.global_topics import GlobalCopy, require_world
from deltamq.mq.meta.static_topics import RemapMode
from deltamq.mq.meta.topic_settings import TopicSettings
from deltamq.mq.static.completeness import MappingFault
from deltamq.mq.static.global_queues import GlobalQueues

router = APIRouter(prefix="/v1/topics", tags=["topics"])

#: The route refuses queues that the topic does not have, with a code of its own.
_Queue = Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": PARTITIONS_MAX - 1})]


class RemapRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Which brokers shall lead the logical queues; as few queues move as can be, evenly."""

    brokers: Annotated[list[str], Meta(min_length=1, max_length=BROKERS_NAMED_MAX)] | None = None
    clusters: Annotated[
        Annotated[list[str], Meta(min_length=1, max_length=BROKERS_NAMED_MAX)] | None,
        Meta(description="In place of brokers, of a global topic: the clusters that take all messages, evenly."),
    ] = None
    mode: Annotated[
        RemapMode,
        Meta(
            description="`strict`: a queue stops for a moment and its offsets go on without a hole. `available`: it"
            " never stops, and its offsets jump."
        ),
    ] = "strict"
    queues: Annotated[
        Annotated[list[_Queue], Meta(min_length=1, max_length=PARTITIONS_MAX)] | None,
        Meta(description="Only these logical queues may move; by default all."),
    ] = None
    plan: Annotated[bool, Meta(description="Tell what would move, and change nothing.")] = False


class RepairRequest(msgspec.Struct, forbid_unknown_fields=True):
    """How to repair."""

    plan: Annotated[bool, Meta(description="Tell what is wrong and would be made anew, change nothing.")] = False


_REMAP: Final = JsonBody(RemapRequest, {"brokers": ["broker-a", "broker-b"], "mode": "strict"})
_REPAIR: Final = JsonBody(RepairRequest, {"plan": True}, required=False)


class MovedQueueView(BaseModel):
    """A logical queue that moved; `end_offset` is the physical one at which its old partition was sealed.

    `logic_offset` is where the new partition begins. Both are null in a plan, and as long as the seal failed.
    """

    queue: int
    source: str = Field(alias="from", description="The broker that led the queue, or its cluster.")
    target: str = Field(alias="to", description="The broker that leads it now, or its cluster.")
    old_partition: str | None = None
    new_partition: str | None = None
    end_offset: int | None = None
    logic_offset: int | None = None


class RemappedView(BaseModel):
    """The queues that moved; `seal_ms` is how long messages of one queue waited for its seal at most."""

    topic: str
    plan: bool
    mode: str
    moved: list[MovedQueueView]
    seal_ms: float | None = None


class FaultView(BaseModel):
    """What is missing or torn; `broker` and `queue` are null if it is in no single mapping or queue."""

    kind: str
    broker: str | None = None
    queue: int | None = None
    detail: str


class MappingView(BaseModel):
    """The mapping that a broker holds: the number of queues that it leads, and of its copies of others."""

    broker: str
    epoch: int
    total_queues: int
    hosted: int
    copies: int


class CheckView(BaseModel):
    """Whether the mappings of all brokers are complete and of one epoch."""

    topic: str
    epoch: int
    total_queues: int
    complete: bool
    faults: list[FaultView]
    mappings: list[MappingView]


class RepairedView(BaseModel):
    """The faults that were found, and the brokers whose mappings were made anew or removed."""

    topic: str
    plan: bool
    faults: list[FaultView]
    repaired: list[str]


@router.post(
    "/{topic}/remap",
    summary="Move the logical queues of a static topic to other brokers",
    response_model=RemappedView,
    responses=problems(400, 404, 409, 413, 415, 422, 500, 503, 507),
    openapi_extra=_REMAP.described,
)
async def remap(topic: TopicName, service: Running, request: Request) -> Any:
    asked = await _REMAP.read(request)
    if asked.brokers is None and asked.clusters is None:
        detail = "brokers: name the brokers, or the clusters of a global topic"
        raise Refused(detail, code="missing_field", field="brokers")
    if asked.brokers is not None and asked.clusters is not None:
        raise Unprocessable("clusters: name either the brokers or the clusters", field="clusters")
    if asked.clusters is not None:
        return await _remap_clusters(topic, service.topics, service.global_topics, request, asked, asked.clusters)
    assert asked.brokers is not None, "one of both is given"
    change = service.static_topics.plan_remap if asked.plan else service.static_topics.remap
    found = await change(topic, asked.brokers, asked.mode, asked.queues)
    moved = [
        {
            "queue": one.queue,
            "from": one.source,
            "to": one.target,
            "old_partition": one.old_partition,
            "new_partition": one.new_partition,
            "end_offset": one.end_offset,
            "logic_offset": one.logic_offset,
        }
        for one in found.moved
    ]
    return {"topic": topic, "plan": asked.plan, "mode": asked.mode, "moved": moved, "seal_ms": found.seal_ms}


async def _remap_clusters(
    topic: str, topics: Topics, of_clusters: GlobalTopics, request: Request, asked: RemapRequest, clusters: list[str]
) -> Any:
    """Move queues of a global topic between clusters; its home does it, whatever cluster is asked."""
    elsewhere = await _at_home(topic, topics, of_clusters, request)
    if elsewhere is not None:
        return elsewhere
    if asked.plan:
        found = await of_clusters.plan_remap(topic, clusters, asked.queues)
    else:
        found = await of_clusters.remap(topic, clusters, asked.mode, asked.queues)
    moved = [
        {"queue": one.queue, "from": one.source, "to": one.target, "logic_offset": one.logic_offset} for one in found
    ]
    return {"topic": topic, "plan": asked.plan, "mode": asked.mode, "moved": moved}


async def _at_home(topic: str, topics: Topics, of_clusters: GlobalTopics, request: Request) -> Response | None:
    """Return the answer of a global topic's home; None if it is this cluster."""
    world = require_world((await topics.require(topic)).topic)
    if world.home == of_clusters.clusters.here or from_cluster(request.scope["headers"]):
        return None
    call = Call.of(request.scope, await request.body())
    return as_response(await of_clusters.clusters.ask(world.home, call, epoch=world.epoch))


@router.post(
    "/{topic}/check",
    summary="Check the mappings of a static topic",
    response_model=CheckView,
    responses=problems(400, 404, 409, 500),
)
async def check(topic: TopicName, service: Running) -> Any:
    checked = await service.static_topics.check(topic)
    found = (await service.topics.require(topic)).topic
    between = [] if found.world is None else await service.global_topics.faults(found)
    return {
        "topic": topic,
        "epoch": checked.static.epoch,
        "total_queues": checked.static.total,
        "complete": not checked.faults and not between,
        "faults": _faults([*checked.faults, *between]),
        "mappings": [
            {
                "broker": holder,
                "epoch": mapping.epoch,
                "total_queues": mapping.total_queues,
                "hosted": len(mapping.hosted),
                "copies": len(mapping.copies),
            }
            for holder, mapping in sorted(checked.mappings.items())
        ],
    }


@router.post(
    "/{topic}/repair",
    summary="Make the mappings of a static topic anew from the copies that survive",
    response_model=RepairedView,
    responses=problems(400, 404, 409, 413, 415, 422, 500, 503, 507),
    openapi_extra=_REPAIR.described,
)
async def repair(topic: TopicName, service: Running, request: Request) -> Any:
    asked = await _REPAIR.read(request)
    change = service.static_topics.plan_repair if asked.plan else service.static_topics.repair
    repaired = await change(topic)
    found = (await service.topics.require(topic)).topic
    between = [] if found.world is None else await service.global_topics.faults(found)
    if between and not asked.plan:
        await service.global_topics.repair(topic)
    return {
        "topic": topic,
        "plan": asked.plan,
        "faults": _faults([*repaired.faults, *between]),
        "repaired": list(repaired.brokers),
    }


def _faults(faults: Sequence[MappingFault]) -> list[dict[str, object]]:
    return [
        {"kind": fault.kind, "broker": fault.broker, "queue": fault.queue, "detail": fault.detail} for fault in faults
    ]


# Between clusters ----------------------------------------------------------------------------------------------------


ProducerName = Annotated[str, PathParameter(min_length=1, max_length=PRODUCER_ID_LENGTH_MAX)]


class CopyRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A copy of a global topic: where its queues are, and its settings."""

    world: GlobalQueues
    settings: TopicSettings


_COPY: Final = JsonBody(
    CopyRequest,
    {
        "world": {
            "id": "5f6c",
            "home": "east",
            "here": "east",
            "epoch": 1,
            "clusters": ["east", "west"],
            "queues": [[{"cluster": "west", "local_start": 0, "logic_offset": 0, "start_ms": 1}]],
        },
        "settings": {"order_strategy": "best_tried"},
    },
)


class WorldView(BaseModel):
    """Where the queues of a global topic are, as the copy of the cluster `here` says."""

    id: str
    home: str
    here: str
    epoch: int
    clusters: list[str]
    queues: list[list[StayView]]
    held_by: list[str]


class SettingsView(BaseModel):
    """The settings of a global topic, the same in all its clusters."""

    order_strategy: str
    retention_ms: int
    message_type: str
    flush: str | None = None
    partitioner: str = "lp"


class CopyView(BaseModel):
    """A copy of a global topic."""

    world: WorldView
    settings: SettingsView


class StateView(BaseModel):
    """What a cluster tells of its part: `ends` are its own offsets at which queues that are elsewhere were closed."""

    cluster: str
    id: str
    epoch: int
    ends: dict[str, int]


class ToldView(BaseModel):
    """A cluster's copy of a global topic, and its state.

    With `starts`, also the first of its own offsets that are stored, of queues with stays there that may be forgotten.
    """

    held: CopyView
    state: StateView
    starts: dict[str, int] = {}


class NumbersView(BaseModel):
    """The numbers of a producer's requests that are stored in this cluster."""

    numbers: list[int]


@router.get(
    "/{topic}/global",
    summary="This cluster's copy of a global topic",
    response_model=None,
    responses={200: {"model": ToldView}, **problems(400, 404, 409, 500)},
)
async def show_copy(topic: TopicName, service: Running, starts: bool = False) -> Any:
    return _json(await service.global_copies.told(topic, starts=starts))


@router.put(
    "/{topic}/global",
    summary="Take over a copy of a global topic, if it is newer",
    response_model=None,
    responses={200: {"model": StateView}, **problems(400, 409, 413, 415, 422, 500, 503, 507)},
    openapi_extra=_COPY.described,
)
async def put_copy(topic: TopicName, service: Running, request: Request) -> Any:
    asked = await _COPY.read(request)
    state = await service.global_copies.adopt(topic, GlobalCopy(world=asked.world, settings=asked.settings))
    return _json(msgspec.json.encode(state))


@router.get(
    "/{topic}/global/producers/{producer_id}",
    summary="The requests of an idempotent producer that this cluster remembers",
    response_model=None,
    responses={200: {"model": NumbersView}, **problems(400, 404, 409, 422, 500, 503)},
)
async def show_numbers(topic: TopicName, producer_id: ProducerName, service: Running, request: Request) -> Any:
    epoch = global_epoch_of(request.scope["headers"])
    return _json(msgspec.json.encode(await service.global_copies.remembered(topic, producer_id, epoch)))


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")
