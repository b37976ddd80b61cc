"""`GET /v1/groups/{group}/retries`: messages that are delivered again, the next due first (SPEC LOOK-16).

    given back as failed, until the retry policy's time   in memory           --> waiting
    its invisible time is over                            in memory           --> overdue: the job `revive` brings it
    brought by `revive`                                   retry partition     --> ready: a consumer gets it next

Each process knows what comes again at its brokers; the one that is asked asks the others.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Annotated, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from fastapi import APIRouter, Query, Request, Response

from deltamq.api.host.hosted_topic import Topics
from deltamq.api.host.hosting import Hosting
from deltamq.api.host.peers import Call
from deltamq.api.log.partition import Partitions
from deltamq.api.queue.lanes import Lanes
from deltamq.api.queue.redelivered import settle_overdue
from deltamq.api.routes.groups import ReaderName
from deltamq.api.routes.lane_views import ask_reachable
from deltamq.api.service.dependencies import Asking, Running
from deltamq.api.wire.fields import json_answer, moment, moment_us
from deltamq.api.wire.openapi_parts import answers
from deltamq.mq.errors import DeltaMQError
from deltamq.mq.limits import NAME_LENGTH_MAX, ORDERED_REVIVE_QUEUE
from deltamq.mq.meta.reset import lanes_of
from deltamq.mq.meta.topics import Topic
from deltamq.mq.names import broker_of
from deltamq.mq.offset_ranges import OffsetRanges
from deltamq.mq.queue.checkpoint import LaneKey, Pop, Span
from deltamq.mq.queue.handle import mint
from deltamq.mq.queue.lane import InFlight
from deltamq.mq.wire.groups import RetriesAnswer, RetryCount, RetryMessage, RetryState
from deltamq.mq.wire.stored import MessageOrigin
from deltamq.tables.log.log import PartitionLog

router = APIRouter(prefix="/v1/groups/{group}/retries", tags=["groups"])

LIMIT_MAX: Final = 1_000
#: Messages of retry partitions, the oldest of each first, whose rows a call reads.
_READ_MAX: Final = 10_000
_COLUMNS: Final = ("offset", "origin", "append_time", "reconsume_times")


class _Rooms(NamedTuple):
    """What knows of retries."""

    topics: Topics
    lanes: Lanes
    hosting: Hosting
    partitions: Partitions
    now_ms: int
    #: Whether the caller gets handles.
    may_settle: bool


@router.get(
    "",
    summary="Messages that are delivered again, the next due first",
    responses=answers(RetriesAnswer, 400, 404, 422, 500),
)
async def show_retries(
    group: ReaderName,
    service: Running,
    caller: Asking,
    request: Request,
    topic: Annotated[str | None, Query(description="Only messages of this topic.", max_length=NAME_LENGTH_MAX)] = None,
    limit: Annotated[int, Query(ge=1, le=LIMIT_MAX, description="How many messages at most.")] = 100,
) -> Response:
    await service.groups.reader(group)
    may_describe = caller.filter("topic", "describe")
    rooms = _Rooms(
        service.topics,
        service.lanes,
        service.hosting,
        service.partitions,
        service.now_ms(),
        caller.allows("group", group, "subscribe"),
    )
    begun = service.lanes.topics_of(group)
    topics = [
        found
        for found in service.topics.state.topics.values()
        if found.id in begun and topic in (None, found.name) and (may_describe is None or may_describe(found.name))
    ]
    parts = [await _here(rooms, group, topics, limit)]
    brokers, call = service.meta.now.brokers.brokers, Call.of(request.scope)
    parts += await ask_reachable(service.hosting, service.owners, brokers, call, RetriesAnswer)
    return json_answer(_joined(group, parts, limit))


async def _here(rooms: _Rooms, group: str, topics: Iterable[Topic], limit: int) -> RetriesAnswer:
    """Return what this process knows: the first `limit` messages of memory, and of each retry partition."""
    lanes = rooms.lanes
    keys = {
        key: topic
        for topic in topics
        for key in lanes_of(group, lanes.topic(topic.name) or topic)
        if rooms.hosting.hosts(broker_of(key.partition))
    }
    await settle_overdue(lanes, keys)
    flights = [flight for flight in lanes.flights_of(group) if flight.lane in keys and _comes_again(rooms, flight)]
    counts = Counter((flight.attempt + 1, _state(rooms, flight)) for flight in flights)
    total, left, messages = len(flights), _READ_MAX, list[RetryMessage]()
    first: dict[LaneKey, list[InFlight]] = {}
    for flight in heapq.nsmallest(limit, flights, key=lambda one: one.visible_ms):
        first.setdefault(flight.lane, []).append(flight)
    for key, topic in keys.items():
        held = first.get(key, [])
        if not key.retry:
            messages += [_in_memory(rooms, topic, flight, None) for flight in held]
            continue
        log = await _log(lanes, key, topic)
        ready = [] if log is None else list(_ready(lanes, key, log))
        total += sum(high - low for low, high in ready)
        offsets = list(islice((at for low, high in ready for at in range(low, high)), left))
        left -= len(offsets)
        rows = await _rows(rooms, log, [*(flight.offset for flight in held), *offsets])
        copies = [row for at in offsets if (row := rows.get(at)) is not None]
        counts.update((row.deliveries + 1, "ready") for row in copies)
        messages += [_in_memory(rooms, topic, flight, rows.get(flight.offset)) for flight in held]
        messages += [_stored(rooms, topic, key, row) for row in copies[:limit]]
    by_attempt = tuple(RetryCount(attempt, state, count) for (attempt, state), count in counts.items())
    return RetriesAnswer(group=group, total=total, messages=tuple(messages), by_attempt=by_attempt)


def _comes_again(rooms: _Rooms, flight: InFlight) -> bool:
    return not flight.is_condemned and (flight.given_back or flight.visible_ms <= rooms.now_ms)


def _state(rooms: _Rooms, flight: InFlight) -> RetryState:
    return "waiting" if rooms.now_ms < flight.visible_ms else "overdue"


async def _log(lanes: Lanes, key: LaneKey, topic: Topic) -> PartitionLog | None:
    """Return the group's retry partition; None if there is none, or it is damaged."""
    try:
        return await lanes.partition_of(key, topic.name).look()
    except DeltaMQError:
        return None


def _ready(lanes: Lanes, key: LaneKey, log: PartitionLog) -> Iterable[tuple[int, int]]:
    """Return the ranges of offsets of a retry partition that no client of the group has had."""
    progress, held = lanes.progress(key), lanes.buffer.lane(key)
    passed = OffsetRanges()
    if progress is not None:
        passed.add(0, progress.offset)
        for low, high in progress.done:
            passed.add(low, high)
        if held is not None and held.epoch == progress.epoch:
            passed.add(0, held.latest)
            for low, high in held.covered:
                passed.add(low, high)
    return passed.gaps(log.min_offset, log.end_offset)


class _Row(NamedTuple):
    """What a retry partition has of a message, without its body."""

    offset: int
    origin: MessageOrigin
    stored_us: int
    #: Deliveries before this copy was stored.
    deliveries: int


async def _rows(rooms: _Rooms, log: PartitionLog | None, offsets: Sequence[int]) -> dict[int, _Row]:
    if log is None or not offsets:
        return {}
    return await rooms.partitions.run(partial(_read, log, np.array(sorted(offsets), np.int64)))


def _read(log: PartitionLog, offsets: np.ndarray[tuple[int], np.dtype[np.int64]]) -> dict[int, _Row]:
    """Return the rows at ascending offsets; those that cannot be read are left out. Blocks."""
    rows = {}
    for file in tuple(log.files):
        wanted = offsets[np.searchsorted(offsets, file.start) : np.searchsorted(offsets, file.end)]
        if not len(wanted):
            continue
        try:
            table = log.file_columns(file, _COLUMNS)
        except DeltaMQError:  # rolled up or removed meanwhile: the next call sees it
            continue
        picked = table.filter(pc.is_in(table.column("offset"), value_set=pa.array(wanted)))
        stored = picked.column("append_time").cast(pa.int64()).to_pylist()
        names = ("offset", "origin", "reconsume_times")
        columns = zip(*(picked.column(name).to_pylist() for name in names), stored, strict=True)
        for offset, origin, times, stored_us in columns:
            where = MessageOrigin(*((origin or {}).get(name) for name in ("topic", "partition", "offset")))
            rows[offset] = _Row(offset, where, stored_us, times)
    return rows


def _in_memory(rooms: _Rooms, topic: Topic, flight: InFlight, row: _Row | None) -> RetryMessage:
    """Return a message that was delivered and not acknowledged; `row` is its copy in the retry partition, if it is."""
    state = _state(rooms, flight)
    partition, offset = flight.lane.partition, flight.offset
    origin: MessageOrigin | None = MessageOrigin(topic.name, partition, offset)
    if flight.lane.retry:
        origin = None if row is None else row.origin
    return RetryMessage(
        topic=topic.name,
        partition=partition,
        offset=offset,
        origin=_logical(rooms.topics, origin),
        attempt=flight.attempt + 1,
        state=state,
        due_time=moment(flight.visible_ms),
        handle=_handle(rooms.lanes, topic, flight) if state == "waiting" and rooms.may_settle else None,
    )


def _stored(rooms: _Rooms, topic: Topic, key: LaneKey, row: _Row) -> RetryMessage:
    return RetryMessage(
        topic=topic.name,
        partition=key.partition,
        offset=row.offset,
        origin=_logical(rooms.topics, row.origin),
        attempt=row.deliveries + 1,
        state="ready",
        due_time=moment_us(row.stored_us),
    )


def _logical(topics: Topics, origin: MessageOrigin | None) -> MessageOrigin | None:
    """Return where clients know a message: in a static topic by its logical queue."""
    if origin is None or origin.topic is None or origin.partition is None or origin.offset is None:
        return origin
    return MessageOrigin(origin.topic, *topics.shown_at(origin.topic, origin.partition, origin.offset))


def _handle(lanes: Lanes, topic: Topic, flight: InFlight) -> str | None:
    """Return the handle of a message that was given back, as the call that gave it back has made it."""
    key, lane = flight.lane, lanes.buffer.lane(flight.lane)
    in_order = flight.revive_queue == ORDERED_REVIVE_QUEUE
    if not in_order and lane is None:
        return None
    pop = Pop(
        topic=topic.name,
        topic_id=topic.id,
        group=key.group,
        epoch=flight.epoch,
        partition=key.partition,
        retry=key.retry,
        pop_time_ms=flight.since_ms,
        invisible_ms=flight.visible_ms - flight.since_ms,
        revive_queue=flight.revive_queue,
    )
    tenure = 0 if in_order or lane is None else lane.tenure
    (text,) = mint(lanes.logs.keys, pop, [Span(flight.offset, 1, None, flight.attempt)], tenure=tenure)
    return text


def _joined(group: str, parts: list[RetriesAnswer], limit: int) -> RetriesAnswer:
    """Return what all processes know."""
    counts = Counter[tuple[int, RetryState]]()
    for part in parts:
        counts.update({(count.attempt, count.state): count.messages for count in part.by_attempt})
    messages = (message for part in parts for message in part.messages)
    return RetriesAnswer(
        group=group,
        total=sum(part.total for part in parts),
        messages=tuple(heapq.nsmallest(limit, messages, key=_due)),
        by_attempt=tuple(RetryCount(attempt, state, counts[attempt, state]) for attempt, state in sorted(counts)),
    )


def _due(message: RetryMessage) -> tuple[object, ...]:
    return (message.due_time, message.partition, message.offset)
