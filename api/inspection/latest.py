"""`GET /v1/topics/{topic}/latest/{key}`: the newest value of a key (SPEC TYPE-47)."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Response
from fastapi import Path as PathParameter

from deltamq.api.host.global_topics import refuse_global
from deltamq.api.routes.topics import TopicName
from deltamq.api.service.dependencies import Running
from deltamq.api.wire.fields import json_answer, moment_us
from deltamq.api.wire.openapi_parts import answers
from deltamq.mq.errors import NotFound
from deltamq.mq.limits import ASKED_KEY_BYTES_MAX
from deltamq.mq.wire.stored import LatestValue
from deltamq.tables.typed.json.rendering import rendered

router = APIRouter(prefix="/v1/topics", tags=["messages"])


@router.get(
    "/{topic}/latest/{key:path}",
    summary="The newest value of a key, as of what was acknowledged before",
    responses=answers(LatestValue, 400, 404, 409, 422, 429, 500, 503),
)
async def show_latest(
    topic: TopicName,
    key: Annotated[str, PathParameter(description="The messages' key.", max_length=ASKED_KEY_BYTES_MAX)],
    service: Running,
) -> Response:
    hosted = await service.topics.require(topic)
    refuse_global(hosted.topic, "a lookup")
    newest = await service.latest_values.of(hosted, key)
    if newest is None:
        raise NotFound(f"topic {topic} has no value of this key", code="key_not_found", field="key")
    partition, offset = service.topics.shown_at(topic, newest.partition, newest.offset)
    [text] = rendered(newest.value).to_pylist()
    return json_answer(
        LatestValue(
            topic=topic,
            key=key,
            partition=partition,
            offset=offset,
            append_time=moment_us(newest.append_us),
            value=msgspec.Raw(text),
            rescued=msgspec.UNSET if newest.rescued is None else msgspec.Raw(newest.rescued.encode()),
        )
    )
