"""`GET /v1/history`: samples of lag, rates and other gauges over the last day (SPEC CONS-13).

Each process answers for its own samples; the one that is asked asks the others, and adds what processes have stored
that are gone, or that did not answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request, Response

from deltamq.api.auth.caller import Caller
from deltamq.api.host.peers import Call, is_forwarded
from deltamq.api.routes.lane_views import ask_others
from deltamq.api.service.dependencies import Asking, Running
from deltamq.api.wire.fields import json_answer, moment, parse_time
from deltamq.api.wire.openapi_parts import answers
from deltamq.mq.auth.principals import CLUSTER
from deltamq.mq.errors import Unprocessable
from deltamq.mq.history import KEPT_MS, POINTS_MAX, SAMPLE_MS, Metric, Point, Series, default_step_ms, merged
from deltamq.mq.limits import NAME_LENGTH_MAX
from deltamq.mq.wire.cluster import HistoryAnswer, HistorySeries

router = APIRouter(prefix="/v1/history", tags=["service"])

#: The range without a `from_time`.
_RANGE_MS: Final = 3_600_000


@router.get(
    "",
    summary="Samples of lag, rates and other gauges over the last day",
    responses=answers(HistoryAnswer, 400, 422, 500),
)
async def show_history(
    service: Running,
    caller: Asking,
    request: Request,
    metric: Annotated[Metric, Query(description="What was sampled; `sent`, `sent_bytes`, `consumed` are rates.")],
    group: Annotated[str | None, Query(description="Only this group.", max_length=NAME_LENGTH_MAX)] = None,
    topic: Annotated[str | None, Query(description="Only this topic.", max_length=NAME_LENGTH_MAX)] = None,
    from_time: Annotated[str | None, Query(description="RFC 3339; by default an hour before `to_time`.")] = None,
    to_time: Annotated[str | None, Query(description="RFC 3339; by default now.")] = None,
    step_ms: Annotated[
        int | None,
        Query(ge=SAMPLE_MS, le=KEPT_MS, multiple_of=SAMPLE_MS, description="Time between two points of a series."),
    ] = None,
) -> Response:
    now_ms = service.now_ms()
    to_ms = now_ms + 1 if to_time is None else parse_time(to_time, "to_time") // 1_000
    from_ms = to_ms - _RANGE_MS if from_time is None else parse_time(from_time, "from_time") // 1_000
    if from_ms >= to_ms:
        raise Unprocessable("from_time must be before to_time", field="from_time")
    from_ms, to_ms = max(from_ms, now_ms - KEPT_MS), min(to_ms, now_ms + 1)
    step_ms = step_ms or default_step_ms(from_ms, to_ms)
    if (to_ms - from_ms) // step_ms > POINTS_MAX:
        raise Unprocessable(f"step_ms: at most {POINTS_MAX} points; ask for larger steps", field="step_ms")
    samples, process = service.samples, service.hosting.id
    parts = samples.own(metric, group, topic, from_ms, to_ms, step_ms)
    call = Call.of(request.scope)
    if not is_forwarded(call.headers):
        reached = {process}
        if not service.hosting.alone:
            brokers = service.meta.now.brokers.brokers
            for answer in await ask_others(service.owners, brokers, call, HistoryAnswer, all_of_them=False):
                reached.add(answer.process)
                parts += map(_part, answer.series)
        parts += samples.stored(metric, group, topic, from_ms, to_ms, step_ms, but=reached)
    may_see = _visible_to(caller)
    shown = merged(metric, (part for part in parts if may_see(part[0])))
    return json_answer(
        HistoryAnswer(
            process=process,
            metric=metric,
            step_ms=step_ms,
            series=tuple(_shown(series, points) for series, points in shown.items() if points),
        )
    )


def _visible_to(caller: Caller) -> Callable[[Series], bool]:
    """Return whether a series is about groups and topics that the caller may describe, or it sees all metrics."""
    if caller.allows("cluster", CLUSTER, "metrics"):
        return lambda series: True
    return lambda series: (
        bool(series.group or series.topic)
        and (not series.group or caller.allows("group", series.group, "describe"))
        and (not series.topic or caller.allows("topic", series.topic, "describe"))
    )


def _shown(series: Series, points: Iterable[Point]) -> HistorySeries:
    labels = {name: value for name, value in (("group", series.group), ("topic", series.topic)) if value}
    return HistorySeries(
        metric=series.metric, labels=labels, points=tuple((moment(time_ms), value) for time_ms, value in points)
    )


def _part(shown: HistorySeries) -> tuple[Series, dict[int, float]]:
    """Return another process's series."""
    labels = shown.labels
    points = {round(time.timestamp() * 1_000): value for time, value in shown.points}
    return Series(shown.metric, labels.get("group", ""), labels.get("topic", "")), points
