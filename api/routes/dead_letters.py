"""A group's dead letters over REST: list them, and replay them (SPEC RETRY-3)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Annotated, Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from fastapi import APIRouter, Query, Request, Response
from numpy.typing import NDArray
from pydantic import BaseModel

from api.host import HostedMeta
from api.log import Partitions
from api.routes.groups import GroupName
from api.sending import Replayer
from api.service import Asking, Running
from api.wire import JsonBody, dead_letters, problems, shown_origins
from mq.errors import NotFound
from mq.limits import MIB, OFFSET_MAX
from mq.meta import Group
from mq.names import broker_of
from mq.wire import DeadLetter, DeadLetters, ReplayRequest
from tables.delta import DataFile
from tables.log import FetchStatus, PartitionLog
from tables.queue import dead_ref

__all__ = [
    "router",
]

router = APIRouter(prefix="/v1/groups/{group}/dead-letters", tags=["groups"])

LIST_MAX: Final = 1_000
_LIST_DEFAULT: Final = 100
_LIST_BYTES: Final = 16 * MIB
#: Files of dead letters whose topics are remembered, and the number of letters of each.
_COUNTED_MAX: Final = 10_000
_COUNTED: Final[dict[tuple[str, str], Mapping[str | None, int]]] = {}


_REPLAY: Final = JsonBody(ReplayRequest, {"offsets": {"%DLQ%billing@broker-a": [0, 7]}, "to": "retry"}, required=False)


class FailedReplay(BaseModel):
    """A dead letter that could not be sent back; `code` is `topic_not_found`, `offset_out_of_range` or another code."""

    partition: str
    offset: int
    code: str


class ReplayAnswer(BaseModel):
    """`replayed` dead letters were sent to their target; an earlier copy of the request had sent `duplicates` others.

    `failed` names the first thousand of `failed_total`.
    """

    replayed: int
    duplicates: int
    failed: list[FailedReplay]
    failed_total: int


# List -----------------------------------------------------------------------------------------------------------------


@router.get(
    "",
    summary="A group's dead letters, broker by broker, oldest first",
    response_class=Response,
    responses={
        200: {
            "description": "A page of dead letters",
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/DeadLetters"}}},
        },
        **problems(400, 404, 422, 429, 500),
    },
)
async def list_dead_letters(
    group: GroupName,
    service: Running,
    caller: Asking,
    limit: Annotated[int, Query(ge=1, le=LIST_MAX)] = _LIST_DEFAULT,
    offset: Annotated[
        int, Query(ge=0, le=OFFSET_MAX, description="Number to skip; with `partition`, the first offset there.")
    ] = 0,
    partition: Annotated[str | None, Query(description="Only this one: `%DLQ%{group}@{broker}`.")] = None,
) -> Response:
    found = await service.groups.require(group)
    logs = await _logs(service.partitions, service.meta, service.settings.brokers, found)
    may_read = caller.filter("topic", "subscribe")
    total = await service.partitions.run(partial(_total, [log for log in logs.values() if log is not None], may_read))
    if partition is not None:
        logs = {partition: _named(logs, partition, "partition")}
    with service.answers.enter() as ticket:
        rows = await service.partitions.run(partial(_read, logs, offset, limit, here=partition is not None))
        ticket.grow(sum(page.nbytes for _, page in rows))
        place_of = service.topics.place_of
        messages = [letter for name, page in rows for letter in dead_letters(name, shown_origins(page, place_of))]
        following = _following(logs, offset, len(messages), messages, here=partition is not None)
        # Others of the group may have consumed topics that this caller may not.
        messages = [one for one in messages if one.topic is None or caller.allows("topic", one.topic, "subscribe")]
        answer = DeadLetters(group, total, messages, following)
        return Response(msgspec.json.encode(answer), media_type="application/json")


async def _logs(
    partitions: Partitions, meta: HostedMeta, brokers: Iterable[str], group: Group
) -> dict[str, PartitionLog | None]:
    """Return the log of each broker's dead letters, None if there are none yet; in the same order at every process.

    It includes, besides `brokers`, all that ever existed, whose topics and processes may be gone.
    """
    routes = [topic.route.partitions for topic in meta.now.topics.topics.values()]
    known = {*brokers, *meta.now.brokers.brokers, *(broker_of(name) for route in routes for name in route)}
    dead = [partitions.of(dead_ref(group.name, group.epoch, broker)) for broker in sorted(known)]
    return {one.name: await one.look() for one in dead}


def _total(logs: Iterable[PartitionLog], may_read: Callable[[str], bool] | None) -> int:
    """Return how many dead letters the caller may read; None for all of them, which need not be looked at."""
    if may_read is None:
        return sum(log.end_offset - log.min_offset for log in logs)
    return sum(
        count
        for log in logs
        for file in log.files
        for topic, count in _by_topic(log, file).items()
        if topic is None or may_read(topic)
    )


def _by_topic(log: PartitionLog, file: DataFile) -> Mapping[str | None, int]:
    """Return how many dead letters of a file come from each topic; files do not change, so it is remembered."""
    key = log.ref.folder, file.path
    found = _COUNTED.get(key)
    if found is None:
        topics = pc.struct_field(log.file_columns(file, ["origin"]).column("origin"), "topic")
        found = {one["values"]: one["counts"] for one in pc.value_counts(topics).to_pylist()}
        while len(_COUNTED) >= _COUNTED_MAX:
            _COUNTED.pop(next(iter(_COUNTED)), None)
        _COUNTED[key] = found
    return found


def _named(logs: dict[str, PartitionLog | None], partition: str, field: str) -> PartitionLog | None:
    if partition not in logs:
        raise NotFound(
            f"{field}: there are no dead letters in {partition!r}, but in {', '.join(logs)}",
            code="partition_not_found",
            field=field,
        )
    return logs[partition]


def _read(logs: dict[str, PartitionLog | None], offset: int, limit: int, *, here: bool) -> list[tuple[str, pa.Table]]:
    """Return at most `limit` rows from `offset` on, which is an offset if `here`, else a count over all partitions."""
    found: list[tuple[str, pa.Table]] = []
    room = _LIST_BYTES
    for name, log in logs.items():
        if log is None:
            continue
        at = max(offset, log.min_offset) if here else log.min_offset + offset
        offset = max(0, offset - (log.end_offset - log.min_offset))
        while at < log.end_offset and limit and (room > 0 or not found):
            page = log.read(at, max_messages=limit, max_bytes=max(1, room))
            if page.status is not FetchStatus.FOUND:  # retention took it meanwhile
                at = max(at + 1, page.min_offset)
                continue
            found.append((name, page.rows))
            at = page.next_offset
            limit -= page.rows.num_rows
            room -= page.rows.nbytes
    return found


def _following(
    logs: dict[str, PartitionLog | None], offset: int, count: int, messages: list[DeadLetter], *, here: bool
) -> int | None:
    """Return the `next_offset` of the answer."""
    held = [log for log in logs.values() if log is not None]
    if here:
        following = messages[-1].offset + 1 if messages else offset
        return following if held and following < held[0].end_offset else None
    return offset + count if offset + count < sum(log.end_offset - log.min_offset for log in held) else None


# Replay ---------------------------------------------------------------------------------------------------------------


@router.post(
    "/replay",
    summary="Send dead letters back; a repeated request stores nothing twice",
    response_model=ReplayAnswer,
    responses=problems(400, 404, 409, 413, 415, 422, 500, 507),
    openapi_extra=_REPLAY.described,
)
async def replay_dead_letters(group: GroupName, service: Running, caller: Asking, request: Request) -> Any:
    asked = await _REPLAY.read(request)
    found = await service.groups.require(group)
    logs = await _logs(service.partitions, service.meta, service.settings.brokers, found)
    chosen: dict[PartitionLog, NDArray[np.int64]] = {}
    failed: list[dict[str, object]] = []
    if asked.offsets is None:
        chosen = {log: np.arange(log.min_offset, log.end_offset) for log in logs.values() if log is not None}
    else:
        for partition, offsets in asked.offsets.items():
            log = _named(logs, partition, f"offsets.{partition}")
            if log is not None:
                chosen[log] = np.unique(np.array(offsets, dtype=np.int64))
            else:
                failed += [_failure(partition, offset, "offset_out_of_range") for offset in sorted(set(offsets))]
    replayer = Replayer(service.topics, service.partitions, service.meta, service.fencing, service.sealer)
    done = await replayer.replay(found, chosen, asked.to or "origin", caller)
    return {
        "replayed": done.replayed,
        "duplicates": done.duplicates,
        "failed": [*failed, *(_failure(*one) for one in done.failed)],
        "failed_total": len(failed) + done.failed_total,
    }


def _failure(partition: str, offset: int, code: str) -> dict[str, object]:
    return {"partition": partition, "offset": offset, "code": code}
