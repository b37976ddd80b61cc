"""Delayed messages of a topic over REST: those that wait, the next due first, and cancelling one (SPEC LOOK-5)."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Query, Response

from deltamq.api.host.global_topics import refuse_global
from deltamq.api.queue.waiting_list import WaitingPlace
from deltamq.api.routes.cancel import MessageId, cancel_message
from deltamq.api.routes.topics import TopicName
from deltamq.api.service.dependencies import Running
from deltamq.api.wire.fields import is_offset, json_answer, moment
from deltamq.api.wire.message_json import stored_messages
from deltamq.api.wire.openapi_parts import answers, problems
from deltamq.mq.errors import Refused
from deltamq.mq.wire.stored import DelayedList, DelayedMessage, StoredMessage

router = APIRouter(prefix="/v1/topics/{topic}/delayed", tags=["messages"])

LIMIT_MAX: Final = 1_000


@router.get(
    "",
    summary="Messages that wait for their deliver time, the next due first",
    responses=answers(DelayedList, 400, 404, 409, 422, 429, 500, 503),
)
async def list_delayed(
    topic: TopicName,
    service: Running,
    limit: Annotated[int, Query(ge=1, le=LIMIT_MAX, description="How many messages at most.")] = 100,
    cursor: Annotated[str | None, Query(description="The `cursor` of the page before.")] = None,
) -> Response:
    found = (await service.topics.require(topic)).topic
    refuse_global(found, "a delay")
    after = None if cursor is None else _place(cursor)
    with service.answers.enter() as ticket:
        page = await service.waiting_list.page(found, after, limit)
        ticket.grow(page.rows.nbytes)
        last = page.last
        shown = DelayedList(
            topic=topic,
            now_time=moment(service.now_ms()),
            messages=[_shown(message) for message in stored_messages(page.rows)],
            cursor=None if last is None else f"{last.due_ms}:{last.offset}:{last.broker}",
        )
        return json_answer(shown)


@router.delete(
    # An id may hold a slash.
    "/{message_id:path}",
    summary="Cancel a delayed message before it is due",
    status_code=204,
    responses=problems(400, 404, 409, 500, 507),
)
async def cancel_delayed(topic: TopicName, message_id: MessageId, service: Running) -> None:
    await cancel_message(topic, message_id, service)


def _shown(message: StoredMessage) -> DelayedMessage:
    """Return a waiting message with its target in place of its origin, which tells the same."""
    target = message.origin
    assert target is not None and target.partition is not None, "what waits has a target"
    fields = {name: getattr(message, name) for name in message.__struct_fields__ if name != "origin"}
    return DelayedMessage(**fields, partition=target.partition)


def _place(cursor: str) -> WaitingPlace:
    due, _, rest = cursor.partition(":")
    offset, _, broker = rest.partition(":")
    if not broker or not is_offset(due) or not is_offset(offset):
        raise Refused("cursor: send the cursor of the page before as it is", field="cursor")
    return WaitingPlace(int(due), broker, int(offset))
