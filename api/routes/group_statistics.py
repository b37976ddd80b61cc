"""`GET /v1/groups/{group}/statistics`: what all clients of a group did in the last minutes (SPEC CONS-6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel

from deltamq.api.host.peers import Call, is_forwarded
from deltamq.api.routes.groups import GroupName
from deltamq.api.routes.lane_views import ask_others
from deltamq.api.service.dependencies import Asking, Running
from deltamq.api.wire.fields import rfc3339
from deltamq.api.wire.openapi_parts import problems
from deltamq.mq.statistics import KEPT_MINUTES, Consumed, sums_of

router = APIRouter(prefix="/v1/groups/{group}/statistics", tags=["groups"])

Minutes = Annotated[
    int, Query(ge=1, lt=KEPT_MINUTES, description="Whole minutes to count, besides the one that is running.")
]


class TopicStatistics(BaseModel):
    """What the group did with a topic's messages.

    `delivered` messages were popped, or pulled under a lock; `redelivered` ones of them not for the first time. Clients
    acknowledged or committed those that `succeeded`, gave `failed` ones back, and sent `dead` ones to the dead letters;
    `success_rate` is null if there are none of these. `age_ms` is the sum of the ages of messages when they were
    delivered, by their born time; `handling_ms` the sum of the times from delivery to outcome. Means are null if there
    is nothing to count.
    """

    topic: str
    delivered: int
    redelivered: int
    succeeded: int
    failed: int
    dead: int
    age_ms: int
    age_max_ms: int
    handling_ms: int
    handling_max_ms: int
    delivered_per_s: float
    succeeded_per_s: float
    failed_per_s: float
    success_rate: float | None
    age_mean_ms: float | None
    handling_mean_ms: float | None


class GroupStatisticsView(BaseModel):
    """Statistics since `since_time`, as `processes` service processes counted them; one that is new counts from its
    start. SQL has older minutes.
    """

    group: str
    since_time: str
    seconds: float
    processes: int
    topics: list[TopicStatistics]


@router.get(
    "",
    summary="What a group did in the last minutes: rates, ages of messages, handling times",
    response_model=GroupStatisticsView,
    responses=problems(400, 404, 422, 500),
)
async def show_statistics(
    group: GroupName, service: Running, caller: Asking, request: Request, minutes: Minutes = 5
) -> Any:
    await service.groups.require(group)
    call = Call.of(request.scope)
    since_ms, counted = service.statistics.since(group, minutes)
    told: list[Mapping[str, Consumed]] = [counted]
    if not is_forwarded(call.headers) and not service.hosting.alone:
        for answer in await ask_others(service.owners, service.meta.now.brokers.brokers, call, all_of_them=False):
            told.append({one["topic"]: _counts(one) for one in answer["topics"]})
    seconds = (service.now_ms() - since_ms) / 1_000
    return {
        "group": group,
        "since_time": rfc3339(since_ms * 1_000),
        "seconds": seconds,
        "processes": len(told),
        "topics": [
            _view(topic, one, seconds)
            for topic, one in sorted(sums_of(told).items())
            if caller.allows("topic", topic, "describe")
        ],
    }


def _counts(told: Mapping[str, int]) -> Consumed:
    return Consumed(**{name: told[name] for name in Consumed.__struct_fields__})


def _view(topic: str, one: Consumed, seconds: float) -> TopicStatistics:
    outcomes = one.succeeded + one.failed + one.dead
    return TopicStatistics(
        topic=topic,
        delivered=one.delivered,
        redelivered=one.redelivered,
        succeeded=one.succeeded,
        failed=one.failed,
        dead=one.dead,
        age_ms=one.age_ms,
        age_max_ms=one.age_max_ms,
        handling_ms=one.handling_ms,
        handling_max_ms=one.handling_max_ms,
        delivered_per_s=round(one.delivered / seconds, 3),
        succeeded_per_s=round(one.succeeded / seconds, 3),
        failed_per_s=round((one.failed + one.dead) / seconds, 3),
        success_rate=one.succeeded / outcomes if outcomes else None,
        age_mean_ms=round(one.age_ms / one.delivered, 1) if one.delivered else None,
        handling_mean_ms=round(one.handling_ms / outcomes, 1) if outcomes else None,
    )
