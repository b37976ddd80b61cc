"""`GET /v1/topics/{topic}/partitions/{partition}/messages/{offset}/deliveries`: what groups did with it (SPEC LOOK-6).

    group's progress, messages in flight      in memory      --> waiting, held, overdue, done
    the group's retry partition               rows           --> retried: a later attempt, which has its own state
    the group's dead letters                  rows           --> dead, with the reason

The process that serves the message's broker answers: it knows what is in flight there. Rows are searched by their
origin, without the bodies, the newest files first, for `_LOOK_S` seconds at most.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from fastapi import APIRouter, Request, Response
from fastapi import Path as PathParameter

from deltamq.api.host.global_topics import refuse_global
from deltamq.api.host.hosted_topic import Topics
from deltamq.api.log.partition import Partitions
from deltamq.api.queue.lanes import Lanes
from deltamq.api.routes.topics import TopicName
from deltamq.api.sending.letters import DeadLetterLogs
from deltamq.api.service.dependencies import Asking, Running
from deltamq.api.wire.fields import json_answer, moment, moment_us
from deltamq.api.wire.openapi_parts import answers
from deltamq.mq.errors import DeltaMQError, NotFound
from deltamq.mq.limits import OFFSET_MAX
from deltamq.mq.meta.group import Group
from deltamq.mq.meta.topics import Topic, no_partition
from deltamq.mq.names import broker_of
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.queue.lane import InFlight
from deltamq.mq.queue.retry import DEAD_REASON_HEADER, retry_lane
from deltamq.mq.wire.groups import DeliveriesAnswer, DeliveryInfo, DeliveryState
from deltamq.tables.log.log import PartitionLog

router = APIRouter(prefix="/v1/topics/{topic}/partitions/{partition}/messages", tags=["messages"])

#: Seconds for which the rows of one group's retries, or dead letters, are searched.
_LOOK_S: Final = 1.0
_COLUMNS: Final = ("offset", "origin", "append_time", "reconsume_times", "headers")


class _Message(NamedTuple):
    """The message that is asked about: its topic, and the partition and offset where it is stored."""

    topic: Topic
    partition: str
    offset: int


class _Copy(NamedTuple):
    """A copy of the message in a group's retry partition, or among its dead letters."""

    partition: str
    offset: int
    stored_us: int
    #: Deliveries before this copy was stored.
    attempts: int
    reason: str | None


@router.get(
    "/{offset}/deliveries",
    summary="What each group did with a message: deliveries, retries, dead letters",
    responses=answers(DeliveriesAnswer, 400, 404, 422, 500, 503),
)
async def show_deliveries(
    topic: TopicName,
    partition: Annotated[str, PathParameter(examples=["flights@broker-a"])],
    offset: Annotated[int, PathParameter(ge=0, le=OFFSET_MAX, examples=[120])],
    service: Running,
    caller: Asking,
    request: Request,
) -> Response:
    message = await _message(service.topics, topic, partition, offset)
    elsewhere: Response | None = await service.peers.elsewhere_as_response(broker_of(message.partition), request, b"")
    if elsewhere is not None:
        return elsewhere
    may_describe = caller.filter("group", "describe")
    groups = [
        group
        for name, group in sorted(service.groups.state.groups.items())
        if may_describe is None or may_describe(name)
    ]
    rooms = _Rooms(service.partitions, service.lanes, service.dead_letters, service.now_ms())
    deliveries = [delivery for group in groups for delivery in await _of_group(rooms, group, message)]
    return json_answer(DeliveriesAnswer(topic=topic, partition=partition, offset=offset, deliveries=tuple(deliveries)))


class _Rooms(NamedTuple):
    """What knows of deliveries."""

    partitions: Partitions
    lanes: Lanes
    dead_letters: DeadLetterLogs
    now_ms: int


async def _message(topics: Topics, topic: str, partition: str, offset: int) -> _Message:
    """Return where the message is stored; raise `NotFound` if it is not there."""
    hosted = await topics.require(topic)
    refuse_global(hosted.topic, "a message's deliveries")
    stored, at = partition, offset
    if hosted.topic.static is not None:
        segment = topics.require_queue(hosted, partition, "partition").segment_at(offset)
        stored, at = segment.partition, segment.physical(offset)
    elif partition not in hosted.route.partitions:
        raise no_partition(topic, partition)
    log = await hosted.partition(stored).look()
    if log is None or not log.min_offset <= at < log.end_offset:
        low, end = (0, 0) if log is None else (log.min_offset, log.end_offset)
        detail = f"offset: {partition} has no message at {offset}"
        raise NotFound(detail, code="message_not_found", field="offset", extra={"min_offset": low, "end_offset": end})
    return _Message(hosted.topic, stored, at)


async def _of_group(rooms: _Rooms, group: Group, message: _Message) -> list[DeliveryInfo]:
    """Return what a group did with the message; nothing if it has not begun in the partition."""
    lanes, now_ms = rooms.lanes, rooms.now_ms
    lane = LaneKey(message.topic.id, group.name, False, message.partition)
    is_passed = lanes.has_passed(lane, message.offset)
    if is_passed is None:
        return []
    retry = retry_lane(lane, message.topic.name)
    retries = await _copies(rooms, message, retry)
    dead = await _letters(rooms, group, message)
    flights = {(flight.lane, flight.offset): flight for flight in lanes.flights_of(group.name)}
    first = flights.get((lane, message.offset))
    later = [*retries, *dead]
    found = [_first(group.name, first, is_passed, later, now_ms)]
    for copy in retries:
        flight = flights.get((retry, copy.offset))
        is_done = bool(lanes.has_passed(retry, copy.offset))
        behind = [one for one in later if one.stored_us > copy.stored_us]
        found.append(_again(group.name, copy, flight, is_done, behind, now_ms))
    found += [
        DeliveryInfo(
            group=group.name,
            attempt=copy.attempts,
            state="dead",
            time=moment_us(copy.stored_us),
            moved_to=_place(copy),
            reason=copy.reason,
        )
        for copy in dead
    ]
    return found


def _first(group: str, flight: InFlight | None, is_passed: bool, later: Sequence[_Copy], now_ms: int) -> DeliveryInfo:
    """Return the first delivery, of the message itself."""
    if flight is not None and not later:
        return _held(group, flight, now_ms)
    if later:
        return DeliveryInfo(group=group, attempt=1, state="failed", moved_to=_place(later[0]))
    state: DeliveryState = "done" if is_passed else "waiting"
    return DeliveryInfo(group=group, attempt=1 if is_passed else 0, state=state)


def _again(
    group: str, copy: _Copy, flight: InFlight | None, is_done: bool, behind: Sequence[_Copy], now_ms: int
) -> DeliveryInfo:
    """Return a later delivery, of a copy in the retry partition."""
    attempt, stored = copy.attempts + 1, moment_us(copy.stored_us)
    if behind:
        return DeliveryInfo(group=group, attempt=attempt, state="failed", time=stored, moved_to=_place(behind[0]))
    if flight is not None:
        return _held(group, flight, now_ms)
    return DeliveryInfo(group=group, attempt=attempt, state="done" if is_done else "retried", time=stored)


def _held(group: str, flight: InFlight, now_ms: int) -> DeliveryInfo:
    ahead: DeliveryState = "failed" if flight.given_back else "held"
    return DeliveryInfo(
        group=group,
        attempt=flight.attempt,
        state=ahead if now_ms < flight.visible_ms else "overdue",
        time=moment(flight.since_ms),
        client_id=flight.client_id or None,
        due_time=moment(flight.visible_ms),
    )


def _place(copy: _Copy) -> str:
    return f"{copy.partition}:{copy.offset}"


async def _copies(rooms: _Rooms, message: _Message, retry: LaneKey) -> list[_Copy]:
    """Return the copies in the group's retry partition, the oldest first."""
    log = await rooms.lanes.partition_of(retry, message.topic.name).look()
    return [] if log is None else await rooms.partitions.run(partial(_with_origin, log, message))


async def _letters(rooms: _Rooms, group: Group, message: _Message) -> list[_Copy]:
    copies = []
    for letters in (await rooms.dead_letters.of(group)).values():
        if letters is not None:
            copies += await rooms.partitions.run(partial(_with_origin, letters.log, message))
    return copies


def _with_origin(log: PartitionLog, message: _Message) -> list[_Copy]:
    """Return the rows of a log that are copies of the message. Blocks."""
    until, copies = time.monotonic() + _LOOK_S, list[_Copy]()
    for file in reversed(tuple(log.files)):
        if time.monotonic() > until:
            break
        try:
            rows = log.file_columns(file, _COLUMNS)
        except DeltaMQError:  # rolled up meanwhile: its rows are in a file that is looked at, or will be next time
            continue
        origin = rows.column("origin")
        mask = pc.and_(
            pc.equal(pc.struct_field(origin, "partition"), message.partition),
            pc.equal(pc.struct_field(origin, "offset"), message.offset),
        )
        mask = pc.and_(mask, pc.equal(pc.struct_field(origin, "topic"), message.topic.name))
        copies += [_copy(log.ref.name, row) for row in rows.filter(pc.fill_null(mask, False)).to_pylist()]
    return sorted(copies, key=lambda copy: copy.offset)


def _copy(partition: str, row: dict[str, object]) -> _Copy:
    stored, headers = row["append_time"], row["headers"]
    reason = dict(headers).get(DEAD_REASON_HEADER) if isinstance(headers, list) else None
    us = pa.scalar(stored, pa.timestamp("us", tz="UTC")).value
    return _Copy(partition, int(str(row["offset"])), us, int(str(row["reconsume_times"])), reason)
