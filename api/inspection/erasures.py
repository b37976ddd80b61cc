"""Requests to erase keys, and how far they are (SPEC ERASE-5); the job `erase` carries them out."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final

from fastapi import APIRouter, Request, Response
from fastapi import Path as PathParameter

from deltamq.api.routes.topics import TopicName
from deltamq.api.service.dependencies import Asking, Running
from deltamq.api.wire.fields import json_answer, moment, moment_us
from deltamq.api.wire.json_body import JsonBody
from deltamq.api.wire.openapi_parts import answers
from deltamq.mq.errors import NotFound
from deltamq.mq.wire.stored import ErasedExportInfo, EraseRequest, ErasureAsked, ErasureInfo
from deltamq.tables.ops.erasures import ask, read_erasure

router = APIRouter(prefix="/v1", tags=["topics"])

_ERASE: Final = JsonBody(EraseRequest, {"keys": ["ada@example.org"]})


@router.post(
    "/topics/{topic}/erase",
    summary="Erase what messages of some keys say, in the topic and its copies",
    responses=answers(ErasureAsked, 400, 404, 409, 413, 415, 422, 500, 503, 507),
    openapi_extra=_ERASE.described,
)
async def erase(topic: TopicName, service: Running, request: Request) -> Response:
    asked = await _ERASE.read(request)
    await service.topics.require(topic)
    keys, now_us = tuple(dict.fromkeys(asked.keys)), service.warehouse.clock.wall_us()
    erasure = await service.partitions.run(partial(ask, service.warehouse.store, topic, keys, now_us))
    return json_answer(ErasureAsked(erasure=erasure.id))


@router.get(
    "/erasures/{erasure}",
    summary="How far a request to erase is, or its receipt",
    responses=answers(ErasureInfo, 400, 404, 500, 503),
)
async def show_erasure(
    erasure: Annotated[str, PathParameter(description="The id that the request was answered with.", max_length=64)],
    service: Running,
    caller: Asking,
) -> Response:
    stored = await service.partitions.run(partial(read_erasure, service.warehouse.store, erasure))
    if not caller.allows("topic", stored.topic, "delete"):
        raise NotFound(f"there is no erasure {erasure!r}", code="erasure_not_found")
    return json_answer(
        ErasureInfo(
            erasure=stored.id,
            topic=stored.topic,
            state=stored.state,
            keys=stored.count,
            rows=stored.rows,
            copies=stored.copies,
            exports=[
                ErasedExportInfo(
                    name=export.name,
                    rows=export.rows,
                    gone_time=None if export.gone_ms is None else moment(export.gone_ms),
                    failure=export.failure or None,
                )
                for export in sorted(stored.exports.values(), key=lambda export: export.name)
            ],
            asked_time=moment_us(stored.asked_us),
            gone_time=None if stored.gone_ms is None else moment(stored.gone_ms),
        )
    )
