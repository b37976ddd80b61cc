"""`DELETE /v1/topics/{topic}/messages/{message_id}`: cancel a delayed message (SPEC RETRY-4).

find where it waits  ->  not due yet?  ->  a mark, durable  ->  still not due: 204, else unknown: 503
"""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter
from fastapi import Path as PathParameter

from deltamq.api.host.global_topics import refuse_global
from deltamq.api.routes.topics import TopicName
from deltamq.api.service.dependencies import Running
from deltamq.api.wire.openapi_parts import problems
from deltamq.mq.errors import NotFound
from deltamq.mq.limits import MESSAGE_ID_BYTES_MAX
from deltamq.mq.names import check_client_topic
from deltamq.mq.queue.delay import check_cancel, confirm_cancel, is_due

router = APIRouter(prefix="/v1/topics", tags=["messages"])

MessageId = Annotated[
    str,
    PathParameter(
        description="The id that the producer gave, or one of the produce answer's `message_ids`.",
        json_schema_extra={"maxLength": MESSAGE_ID_BYTES_MAX},
        examples=["reminder-17"],
    ),
]


@router.delete(
    # An id may hold a slash.
    "/{topic}/messages/{message_id:path}",
    summary="Cancel a delayed message before it is due",
    status_code=204,
    responses=problems(400, 404, 409, 500, 507),
)
async def cancel_message(topic: TopicName, message_id: MessageId, service: Running) -> None:
    hosted = await service.topics.require(check_client_topic(topic))
    refuse_global(hosted.topic, "a delay")
    messages = await service.waiting.find(hosted.topic, message_id, service.now_ms())
    if not messages:
        raise NotFound(f"no delayed message {message_id!r} waits", code="message_not_found", field="message_id")
    now_ms = service.now_ms()
    cancelled = [message for message in messages if not is_due(message, now_ms)]
    if not cancelled and all(map(service.waiting.is_cancelled, messages)):
        return
    for message in cancelled or messages:
        check_cancel(message, now_ms)
    await asyncio.gather(*map(service.waiting.cancel, cancelled))
    stored_ms = service.now_ms()
    for message in cancelled:
        confirm_cancel(message, stored_ms)
        service.waiting.note(message)
