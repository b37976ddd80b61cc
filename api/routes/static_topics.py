"""Static topics over REST: move queues to other brokers, check the mappings, repair them (SPEC STATIC-5 to 11)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Request
from msgspec import Meta
from pydantic import BaseModel, Field

from api.routes.topics import Running, TopicName
from api.wire import JsonBody, problems
from mq.limits import BROKERS_NAMED_MAX, PARTITIONS_MAX
from mq.meta import RemapMode
from mq.static import MappingFault

__all__ = ["router"]

router = APIRouter(prefix="/v1/topics", tags=["topics"])

#: The route refuses queues that the topic does not have, with a code of its own.
_Queue = Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": PARTITIONS_MAX - 1})]


class RemapRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Which brokers shall lead the logical queues; as few queues move as can be, evenly."""

    brokers: Annotated[list[str], Meta(min_length=1, max_length=BROKERS_NAMED_MAX)]
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
    source: str = Field(alias="from", description="The broker that led the queue.")
    target: str = Field(alias="to", description="The broker that leads it now.")
    old_partition: str
    new_partition: str
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


@router.post(
    "/{topic}/check",
    summary="Check the mappings of a static topic",
    response_model=CheckView,
    responses=problems(400, 404, 409, 500),
)
async def check(topic: TopicName, service: Running) -> Any:
    checked = await service.static_topics.check(topic)
    return {
        "topic": topic,
        "epoch": checked.static.epoch,
        "total_queues": checked.static.total,
        "complete": not checked.faults,
        "faults": _faults(checked.faults),
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
    return {
        "topic": topic,
        "plan": asked.plan,
        "faults": _faults(repaired.faults),
        "repaired": list(repaired.brokers),
    }


def _faults(faults: Sequence[MappingFault]) -> list[dict[str, object]]:
    return [
        {"kind": fault.kind, "broker": fault.broker, "queue": fault.queue, "detail": fault.detail} for fault in faults
    ]
