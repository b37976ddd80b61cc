"""`GET /v1/groups/{group}/in-flight`: who holds which message, since when (SPEC LOOK-4).

Each process knows what is in flight at its brokers; the one that is asked asks the others.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request, Response

from deltamq.api.host.hosted_topic import Topics
from deltamq.api.host.peers import Call
from deltamq.api.routes.groups import ReaderName
from deltamq.api.routes.lane_views import ask_reachable
from deltamq.api.service.dependencies import Asking, Running
from deltamq.api.wire.fields import json_answer, moment
from deltamq.api.wire.openapi_parts import answers
from deltamq.mq.limits import NAME_LENGTH_MAX
from deltamq.mq.meta.topics import Topic
from deltamq.mq.queue.lane import InFlight
from deltamq.mq.wire.groups import HeldMessage, HolderInfo, InFlightAnswer

router = APIRouter(prefix="/v1/groups/{group}/in-flight", tags=["groups"])

LIMIT_MAX: Final = 1_000
#: Clients that an answer names: those with the most messages.
_CLIENTS_MAX: Final = 1_000


@router.get(
    "",
    summary="Messages that clients hold, the oldest delivery first",
    responses=answers(InFlightAnswer, 400, 404, 422, 500),
)
async def show_in_flight(
    group: ReaderName,
    service: Running,
    caller: Asking,
    request: Request,
    topic: Annotated[str | None, Query(description="Only messages of this topic.", max_length=NAME_LENGTH_MAX)] = None,
    limit: Annotated[int, Query(ge=1, le=LIMIT_MAX, description="How many messages at most.")] = 100,
) -> Response:
    await service.groups.reader(group)
    may_describe = caller.filter("topic", "describe")
    topics = {
        found.id: found
        for found in service.topics.state.topics.values()
        if topic in (None, found.name) and (may_describe is None or may_describe(found.name))
    }
    flights = [flight for flight in service.lanes.flights_of(group) if flight.lane.topic_id in topics]
    first = heapq.nsmallest(limit, flights, key=lambda flight: flight.since_ms)
    messages = tuple(_shown(service.topics, topics[flight.lane.topic_id], flight) for flight in first)
    parts = [InFlightAnswer(group=group, total=len(flights), messages=messages, by_client=_holders(flights))]
    brokers, call = service.meta.now.brokers.brokers, Call.of(request.scope)
    parts += await ask_reachable(service.hosting, service.owners, brokers, call, InFlightAnswer)
    return json_answer(_joined(group, parts, limit))


def _shown(topics: Topics, topic: Topic, flight: InFlight) -> HeldMessage:
    """Return a message as clients know it."""
    partition, offset = flight.lane.partition, flight.offset
    if not flight.lane.retry:
        partition, offset = topics.shown_at(topic.name, partition, offset)
    return HeldMessage(
        topic=topic.name,
        partition=partition,
        offset=offset,
        client_id=flight.client_id or None,
        since_time=moment(flight.since_ms),
        visible_time=moment(flight.visible_ms),
        attempt=flight.attempt,
        retry=flight.lane.retry,
        given_back=flight.given_back,
    )


def _oldest(messages: Iterable[HeldMessage], limit: int) -> tuple[HeldMessage, ...]:
    return tuple(heapq.nsmallest(limit, messages, key=lambda held: (held.since_time, held.partition, held.offset)))


def _holders(flights: Iterable[InFlight]) -> tuple[HolderInfo, ...]:
    """Return what each client holds, of this process."""
    oldest: dict[str, int] = {}
    counts = Counter[str]()
    for flight in flights:
        if not flight.given_back:
            client = flight.client_id
            counts[client] += 1
            oldest[client] = min(flight.since_ms, oldest.get(client, flight.since_ms))
    return tuple(
        HolderInfo(client_id=client or None, messages=count, since_time=moment(oldest[client]))
        for client, count in counts.items()
    )


def _add(holders: dict[str | None, HolderInfo], more: HolderInfo) -> None:
    before = holders.get(more.client_id)
    holders[more.client_id] = (
        more
        if before is None
        else HolderInfo(
            client_id=more.client_id,
            messages=before.messages + more.messages,
            since_time=min(before.since_time, more.since_time),
        )
    )


def _joined(group: str, parts: list[InFlightAnswer], limit: int) -> InFlightAnswer:
    """Return what all processes know."""
    holders: dict[str | None, HolderInfo] = {}
    for part in parts:
        for holder in part.by_client:
            _add(holders, holder)
    most = sorted(holders.values(), key=lambda holder: (-holder.messages, holder.client_id or ""))
    return InFlightAnswer(
        group=group,
        total=sum(part.total for part in parts),
        messages=_oldest((held for part in parts for held in part.messages), limit),
        by_client=tuple(most[:_CLIENTS_MAX]),
    )
