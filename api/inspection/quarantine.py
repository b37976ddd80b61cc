"""A typed topic's quarantine over REST: list, send again with the newest schema, delete (SPEC TYPE-6 to TYPE-8).

A call looks at `_BYTES_MAX` bytes or for `_LOOK_S` seconds, whichever comes first, and says where the next one goes on.
Files without a message that did not fit are not read. `api.sending.quarantine` has rows and marks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any, Final

import numpy as np
import pyarrow.compute as pc
from fastapi import APIRouter, Query, Request, Response

from deltamq.api.host.global_topics import refuse_global
from deltamq.api.host.hosted_topic import HostedTopic, Topics
from deltamq.api.inspection.search import LIMIT_MAX
from deltamq.api.routes.topics import TopicName
from deltamq.api.sending.quarantine import Int64s, Outcome, Piece, Place, Quarantines
from deltamq.api.service.dependencies import Asking, Running
from deltamq.api.wire.fields import is_offset, json_answer
from deltamq.api.wire.json_body import JsonBody
from deltamq.api.wire.message_json import shown_origins, stored_messages
from deltamq.api.wire.openapi_parts import answers
from deltamq.mq.errors import Conflict, Refused
from deltamq.mq.limits import MIB
from deltamq.mq.meta.topics import no_partition
from deltamq.mq.wire.quarantine import Misfit, Quarantine, QuarantinedMessage, QuarantineDone, QuarantineRequest
from deltamq.tables.typed_row import INVALID

router = APIRouter(prefix="/v1/topics/{topic}/quarantine", tags=["messages"])

#: What one call looks at, at most: bytes of messages that did not fit, and seconds.
_BYTES_MAX: Final = 64 * MIB
_LOOK_S: Final = 2.0

_EXAMPLE: Final = {"offsets": {"flights@broker-a": [0, 7]}}
_REPLAY: Final = JsonBody(QuarantineRequest, _EXAMPLE, required=False)
_DELETE: Final = JsonBody(QuarantineRequest, _EXAMPLE)


@router.get(
    "",
    summary="A topic's messages that did not fit its schema, page by page",
    responses=answers(Quarantine, 400, 404, 409, 422, 429, 500, 503),
)
async def list_quarantine(
    topic: TopicName,
    service: Running,
    limit: Annotated[int, Query(ge=1, le=LIMIT_MAX, description="How many to return at most.")] = 100,
    partition: Annotated[str | None, Query(description="With `offset`: only the message there.")] = None,
    offset: Annotated[int | None, Query(ge=0, description="An offset of `partition`.")] = None,
    code: Annotated[str | None, Query(description="Only those whose `invalid.code` is this.", max_length=64)] = None,
    cursor: Annotated[str | None, Query(description="The `cursor` of the answer before.")] = None,
) -> Response:
    hosted = await _required(topic, service.topics, service.quarantines)
    if (partition is None) is not (offset is None):
        raise Refused("offset: name a message by partition and offset, both", field="offset")
    named = None if partition is None or offset is None else {partition: [offset]}
    asked = QuarantineRequest(offsets=named, code=code, cursor=cursor)
    messages: list[QuarantinedMessage] = []
    following: Place | None = None
    with service.answers.enter() as ticket:
        async for piece in _pieces(asked, hosted, service.topics, service.quarantines, Outcome()):
            kept = piece.only(~piece.have_left())
            room, following = limit - len(messages), piece.following
            if kept.rows.num_rows > room:
                following = Place(kept.ref.name, int(kept.offsets[room]))
                kept = kept._replace(rows=kept.rows.slice(0, room))
            ticket.grow(kept.rows.nbytes)
            messages += _shown(kept, service.topics)
            if len(messages) >= limit:
                break
        return json_answer(Quarantine(topic=topic, messages=messages, cursor=_cursor(hosted, following)))


@router.post(
    "/replay",
    summary="Send messages in quarantine again, decoded with the newest schema; what does not fit stays",
    responses=answers(QuarantineDone, 400, 404, 409, 413, 415, 422, 500, 503, 507),
    openapi_extra=_REPLAY.described,
)
async def replay_quarantine(topic: TopicName, service: Running, caller: Asking, request: Request) -> Response:
    asked = await _REPLAY.read(request)
    await service.meta.refresh()  # the newest schema may be another process's
    hosted = await _required(topic, service.topics, service.quarantines)
    codec, outcome, following = service.quarantines.codec(hosted), Outcome(), None
    async for piece in _pieces(asked, hosted, service.topics, service.quarantines, outcome):
        await service.quarantines.replay(piece, codec, caller, outcome)
        following = piece.following
    return json_answer(_done(outcome, _cursor(hosted, following)))


@router.delete(
    "",
    summary="Delete messages in quarantine: lists show them no more, nothing sends them again",
    responses=answers(QuarantineDone, 400, 404, 409, 413, 415, 422, 500, 503, 507),
    openapi_extra=_DELETE.described,
)
async def delete_quarantine(topic: TopicName, service: Running, caller: Asking, request: Request) -> Response:
    asked = await _DELETE.read(request)
    if asked.all is not (asked.offsets is None and asked.code is None):
        wrong = "nothing else with it" if asked.all else "which: offsets or code; or all: true"
        raise Refused(f"all: say {wrong}", field="all")
    hosted = await _required(topic, service.topics, service.quarantines)
    outcome, following = Outcome(), None
    async for piece in _pieces(asked, hosted, service.topics, service.quarantines, outcome):
        await service.quarantines.delete(piece, caller, outcome)
        following = piece.following
    return json_answer(_done(outcome, _cursor(hosted, following)))


async def _required(topic: str, topics: Topics, quarantines: Quarantines) -> HostedTopic:
    hosted = await topics.require(topic)
    refuse_global(hosted.topic, "a quarantine")
    quarantines.codec(hosted)
    return hosted


def _done(outcome: Outcome, cursor: str | None) -> QuarantineDone:
    return QuarantineDone(
        done=outcome.done,
        duplicates=outcome.duplicates,
        failed=outcome.failed,
        failed_total=outcome.failed_total,
        cursor=cursor,
    )


async def _pieces(
    asked: QuarantineRequest, hosted: HostedTopic, topics: Topics, quarantines: Quarantines, outcome: Outcome
) -> AsyncIterator[Piece]:
    """Yield what a request is about, up to the bounds of one call."""
    if asked.offsets is not None:
        for name, offsets in _physical(asked.offsets, hosted, topics).items():
            async for piece in quarantines.at(hosted, name, offsets, outcome):
                yield _with_code(piece, asked.code)
        return
    start = None if asked.cursor is None else _place(hosted, asked.cursor)
    loop, looked = asyncio.get_running_loop(), 0
    until = loop.time() + _LOOK_S
    async for piece in quarantines.walk(hosted, start):
        yield _with_code(piece, asked.code)
        looked += piece.rows.nbytes
        if looked >= _BYTES_MAX or loop.time() >= until:
            return


def _with_code(piece: Piece, code: str | None) -> Piece:
    if code is None or not piece.rows.num_rows:
        return piece
    codes = pc.struct_field(piece.rows.column(INVALID), "code")
    return piece._replace(rows=piece.rows.filter(pc.equal(codes, code)))


def _physical(asked: dict[str, list[int]], hosted: HostedTopic, topics: Topics) -> dict[str, Int64s]:
    """Return the offsets of a request by partition, ascending; of a static topic by its segments."""
    places: dict[str, set[int]] = {}
    for name, offsets in asked.items():
        if hosted.topic.static is None:
            if name not in hosted.topic.client_partitions:
                raise no_partition(hosted.name, name)
            places.setdefault(name, set()).update(offsets)
            continue
        queue = topics.require_queue(hosted, name, f"offsets.{name}")
        for offset in offsets:
            segment = queue.segment_at(offset)
            places.setdefault(segment.partition, set()).add(segment.physical(offset))
    return {name: np.array(sorted(some), dtype=np.int64) for name, some in places.items()}


def _shown(piece: Piece, topics: Topics) -> list[QuarantinedMessage]:
    """Return the rows as clients know them."""
    rows = piece.rows
    if not rows.num_rows:
        return []
    misfits: Sequence[dict[str, Any]] = rows.column(INVALID).to_pylist()
    shown = stored_messages(shown_origins(rows.drop_columns([INVALID]), topics.shown_queue_of))
    messages = []
    for message, misfit in zip(shown, misfits, strict=True):
        fields = {name: getattr(message, name) for name in message.__struct_fields__}
        partition, fields["offset"] = topics.shown_at(piece.ref.topic, piece.ref.name, message.offset)
        messages.append(QuarantinedMessage(**fields, partition=partition, invalid=Misfit(**misfit)))
    return messages


# Cursors: the life of the topic, then offset and partition.


def _cursor(hosted: HostedTopic, following: Place | None) -> str | None:
    return None if following is None else f"{hosted.topic.id}.{following.offset}.{following.partition}"


def _place(hosted: HostedTopic, cursor: str) -> Place:
    topic_id, _, rest = cursor.partition(".")
    offset, _, partition = rest.partition(".")
    if not is_offset(offset) or not partition:
        raise Refused("cursor: send the cursor of the answer before as it is", field="cursor")
    if topic_id != hosted.topic.id:
        raise Conflict(
            "cursor: the topic was deleted and made again since; begin again",
            code="topic_made_again",
            field="cursor",
        )
    return Place(partition, int(offset))
