"""`GET /v1/groups/{group}/statistics`: what all clients of a group did in the last minutes (SPEC CONS-6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from deltamq.api.host.peers import Call
from deltamq.api.routes.groups import GroupName
from deltamq.api.routes.lane_views import ask_reachable
from deltamq.api.service.dependencies import Asking, Running
from deltamq.api.wire.fields import json_answer, moment
from deltamq.api.wire.openapi_parts import answers
from deltamq.mq.statistics import KEPT_MINUTES, Consumed, sums_of
from deltamq.mq.wire.groups import GroupStatistics, TopicStatistics

router = APIRouter(prefix="/v1/groups/{group}/statistics", tags=["groups"])

Minutes = Annotated[
    int, Query(ge=1, lt=KEPT_MINUTES, description="Whole minutes to count, besides the one that is running.")
]


@router.get(
    "",
    summary="What a group did in the last minutes: rates, ages of messages, handling times",
    responses=answers(GroupStatistics, 400, 404, 422, 500),
)
async def show_statistics(
    group: GroupName, service: Running, caller: Asking, request: Request, minutes: Minutes = 5
) -> Response:
    await service.groups.require(group)
    brokers, call = service.meta.now.brokers.brokers, Call.of(request.scope)
    since_ms, counted = service.statistics.since(group, minutes)
    counts: list[Mapping[str, Consumed]] = [counted]
    for answer in await ask_reachable(service.hosting, service.owners, brokers, call, GroupStatistics):
        counts.append({statistics.topic: _counts(statistics) for statistics in answer.topics})
    seconds = (service.now_ms() - since_ms) / 1_000
    shown = GroupStatistics(
        group=group,
        since_time=moment(since_ms),
        seconds=seconds,
        processes=len(counts),
        topics=tuple(
            _shown(topic, consumed, seconds)
            for topic, consumed in sorted(sums_of(counts).items())
            if caller.allows("topic", topic, "describe")
        ),
    )
    return json_answer(shown)


def _counts(statistics: TopicStatistics) -> Consumed:
    return Consumed(**{name: getattr(statistics, name) for name in Consumed.__struct_fields__})


def _shown(topic: str, consumed: Consumed, seconds: float) -> TopicStatistics:
    outcomes = consumed.succeeded + consumed.failed + consumed.dead
    return TopicStatistics(
        topic=topic,
        delivered=consumed.delivered,
        redelivered=consumed.redelivered,
        succeeded=consumed.succeeded,
        failed=consumed.failed,
        dead=consumed.dead,
        age_ms=consumed.age_ms,
        age_max_ms=consumed.age_max_ms,
        handling_ms=consumed.handling_ms,
        handling_max_ms=consumed.handling_max_ms,
        delivered_per_s=round(consumed.delivered / seconds, 3),
        succeeded_per_s=round(consumed.succeeded / seconds, 3),
        failed_per_s=round((consumed.failed + consumed.dead) / seconds, 3),
        success_rate=consumed.succeeded / outcomes if outcomes else None,
        age_mean_ms=round(consumed.age_ms / consumed.delivered, 1) if consumed.delivered else None,
        handling_mean_ms=round(consumed.handling_ms / outcomes, 1) if outcomes else None,
    )
