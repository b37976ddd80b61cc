"""Static topics over REST: move queues to other brokers, check the mappings, repair them (SPEC STATIC-5 to 11).

Clusters make the calls below `/global` to each other (SPEC STATIC-19); users need none of them.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from fastapi import APIRouter, Request, Response
from fastapi import Path as PathParameter
from msgspec import Meta
from msgspec.structs import replace

from deltamq.api.host.clusters import from_cluster, global_epoch_of
from deltamq.api.host.global_copies import ClusterCopy, ClusterState, RememberedNumbers
from deltamq.api.host.global_topics import GlobalTopics
from deltamq.api.host.hosted_topic import Topics
from deltamq.api.host.peers import Call, as_response
from deltamq.api.routes.topics import TopicName
from deltamq.api.service.dependencies import Running
from deltamq.api.wire.fields import json_answer
from deltamq.api.wire.json_body import JsonBody
from deltamq.api.wire.openapi_parts import answers
from deltamq.mq.errors import Refused, Unprocessable
from deltamq.mq.limits import BROKERS_NAMED_MAX, PARTITIONS_MAX, PRODUCER_ID_LENGTH_MAX
from deltamq.mq.meta.global_topics import GlobalCopy, require_world
from deltamq.mq.meta.static_topics import RemapMode
from deltamq.mq.meta.topic_settings import TopicSettings
from deltamq.mq.static.global_queues import GlobalQueues
from deltamq.mq.wire.static_topics import MovedQueue, Remapping, TopicCheck, TopicRepair

router = APIRouter(prefix="/v1/topics", tags=["topics"])

#: The route refuses queues that the topic does not have, with a code of its own.
_Queue = Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": PARTITIONS_MAX - 1})]


class RemapRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Which brokers shall lead the logical queues; as few queues move as possible, evenly."""

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
    plan: Annotated[bool, Meta(description="Return what would move, and change nothing.")] = False


class RepairRequest(msgspec.Struct, forbid_unknown_fields=True):
    """How to repair."""

    plan: Annotated[bool, Meta(description="Return what is wrong and would be made again, change nothing.")] = False


_REMAP: Final = JsonBody(RemapRequest, {"brokers": ["broker-a", "broker-b"], "mode": "strict"})
_REPAIR: Final = JsonBody(RepairRequest, {"plan": True}, required=False)


@router.post(
    "/{topic}/remap",
    summary="Move the logical queues of a static topic to other brokers",
    responses=answers(Remapping, 400, 404, 409, 413, 415, 422, 500, 503, 507),
    openapi_extra=_REMAP.described,
)
async def remap(topic: TopicName, service: Running, request: Request) -> Response:
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
    return json_answer(await change(topic, asked.brokers, asked.mode, asked.queues))


async def _remap_clusters(
    topic: str, topics: Topics, of_clusters: GlobalTopics, request: Request, asked: RemapRequest, clusters: list[str]
) -> Response:
    """Move queues of a global topic between clusters; its home does it, whatever cluster is asked."""
    elsewhere = await _at_home(topic, topics, of_clusters, request)
    if elsewhere is not None:
        return elsewhere
    if asked.plan:
        moves = await of_clusters.plan_remap(topic, clusters, asked.queues)
    else:
        moves = await of_clusters.remap(topic, clusters, asked.mode, asked.queues)
    moved = tuple(
        MovedQueue(queue=move.queue, source=move.source, target=move.target, logic_offset=move.logic_offset)
        for move in moves
    )
    return json_answer(Remapping(topic=topic, plan=asked.plan, mode=asked.mode, moved=moved))


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
    responses=answers(TopicCheck, 400, 404, 409, 500),
)
async def check(topic: TopicName, service: Running) -> Response:
    checked = await service.static_topics.check(topic)
    known_topic = (await service.topics.require(topic)).topic
    if known_topic.world is not None:
        faults = (*checked.faults, *await service.global_topics.faults(known_topic))
        checked = replace(checked, faults=faults, complete=not faults)
    return json_answer(checked)


@router.post(
    "/{topic}/repair",
    summary="Make the mappings of a static topic again from the copies that survive",
    responses=answers(TopicRepair, 400, 404, 409, 413, 415, 422, 500, 503, 507),
    openapi_extra=_REPAIR.described,
)
async def repair(topic: TopicName, service: Running, request: Request) -> Response:
    asked = await _REPAIR.read(request)
    change = service.static_topics.plan_repair if asked.plan else service.static_topics.repair
    repaired = await change(topic)
    known_topic = (await service.topics.require(topic)).topic
    between = [] if known_topic.world is None else await service.global_topics.faults(known_topic)
    if between and not asked.plan:
        await service.global_topics.repair(topic)
    return json_answer(replace(repaired, faults=(*repaired.faults, *between)))


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


@router.get(
    "/{topic}/global",
    summary="This cluster's copy of a global topic",
    responses=answers(ClusterCopy, 400, 404, 409, 500),
)
async def show_copy(topic: TopicName, service: Running, starts: bool = False) -> Response:
    return json_answer(await service.global_copies.copy_of(topic, starts=starts))


@router.put(
    "/{topic}/global",
    summary="Take over a copy of a global topic, if it is newer",
    responses=answers(ClusterState, 400, 409, 413, 415, 422, 500, 503, 507),
    openapi_extra=_COPY.described,
)
async def put_copy(topic: TopicName, service: Running, request: Request) -> Response:
    asked = await _COPY.read(request)
    return json_answer(await service.global_copies.adopt(topic, GlobalCopy(world=asked.world, settings=asked.settings)))


@router.get(
    "/{topic}/global/producers/{producer_id}",
    summary="The requests of an idempotent producer that this cluster remembers",
    responses=answers(RememberedNumbers, 400, 404, 409, 422, 500, 503),
)
async def show_numbers(topic: TopicName, producer_id: ProducerName, service: Running, request: Request) -> Response:
    epoch = global_epoch_of(request.scope["headers"])
    return json_answer(await service.global_copies.remembered(topic, producer_id, epoch))
