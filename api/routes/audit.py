"""The audit log over REST: who did what, and what was refused (SPEC SEC-42)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import APIRouter, Query, Response
from msgspec.structs import replace

from deltamq.api.audit.audit import ActView, Audit, read_acts, read_refusals
from deltamq.api.log.partition import Partitions
from deltamq.api.service.dependencies import Running
from deltamq.api.wire.fields import json_answer, moment, parse_time
from deltamq.api.wire.openapi_parts import answers
from deltamq.mq.audit import ActBegun, RefusalCount
from deltamq.mq.errors import Conflict
from deltamq.mq.limits import ACTS_DEFAULT, ACTS_MAX, OFFSET_MAX
from deltamq.mq.wire.auth import ActInfo, ActList, RefusalInfo, RefusalList
from deltamq.tables.log.log import PartitionLog

R = TypeVar("R")

router = APIRouter(prefix="/v1/audit", tags=["audit"])

_Since = Annotated[str | None, Query(description="RFC 3339: only what was recorded from then on.")]
_OfPrincipal = Annotated[str | None, Query(description="Only of this principal.", max_length=256)]
_Limit = Annotated[int, Query(ge=1, le=ACTS_MAX, description="How many at most.")]
_After = Annotated[int | None, Query(ge=0, le=OFFSET_MAX, description="The `next` of the page before.")]


@router.get(
    "",
    summary="What administrators did, the oldest first",
    responses=answers(ActList, 400, 409, 422, 500),
)
async def list_acts(
    service: Running,
    since: _Since = None,
    principal: _OfPrincipal = None,
    limit: _Limit = ACTS_DEFAULT,
    after: _After = None,
) -> Response:
    def wanted(begun: ActBegun) -> bool:
        return principal in (None, begun.principal) and begun.time_ms >= since_ms

    since_us = _since_us(since)
    since_ms = 0 if since_us is None else since_us // 1_000
    acts, following = await _read(
        service.audit, service.partitions, since_us, after, partial(read_acts, wanted=wanted, limit=limit)
    )
    return json_answer(ActList(acts=[_act(act) for act in acts], next=following))


@router.get(
    "/refusals",
    summary="What was refused, by minute, the oldest first",
    responses=answers(RefusalList, 400, 409, 422, 500),
)
async def list_refusals(
    service: Running,
    since: _Since = None,
    principal: _OfPrincipal = None,
    limit: _Limit = ACTS_DEFAULT,
    after: _After = None,
) -> Response:
    def wanted(refusal: RefusalCount) -> bool:
        return principal in (None, refusal.principal)

    refusals, following = await _read(
        service.audit, service.partitions, _since_us(since), after, partial(read_refusals, wanted=wanted, limit=limit)
    )
    return json_answer(RefusalList(refusals=[_refusal(refusal) for refusal in refusals], next=following))


def _since_us(since: str | None) -> int | None:
    return None if since is None else parse_time(since, "since")


async def _read(
    audit: Audit | None,
    partitions: Partitions,
    since_us: int | None,
    after: int | None,
    read: Callable[[PartitionLog, int], tuple[list[R], int | None]],
) -> tuple[list[R], int | None]:
    """Read a page that begins at `after`, or else at `since_us`."""
    if audit is None:
        raise Conflict("this service records no acts: set service.audit", code="audit_off")
    opened = await audit.partition.look()
    if opened is None:
        return [], None
    log = opened

    def page() -> tuple[list[R], int | None]:
        start = log.min_offset if since_us is None else log.offset_at(since_us)
        return read(log, start if after is None else after)

    return await partitions.run(page)


def _act(view: ActView) -> ActInfo:
    begun, ended = view.begun, view.ended
    shown = ActInfo(
        id=begun.id,
        time=moment(begun.time_ms),
        principal=begun.principal,
        address=begun.address,
        process=begun.process,
        call=begun.call,
        resource=begun.resource,
        name=begun.name,
        asked=_json(begun.asked),
        outcome="unknown",
    )
    if ended is None:
        return shown
    return replace(
        shown,
        outcome=ended.outcome,
        status=ended.status or None,
        code=ended.code or None,
        detail=ended.detail or None,
        before=_json(ended.before),
        after=_json(ended.after),
    )


def _json(text: str) -> Any:
    return msgspec.json.decode(text) if text else None


def _refusal(refusal: RefusalCount) -> RefusalInfo:
    return RefusalInfo(
        minute=moment(refusal.minute_ms),
        principal=refusal.principal,
        call=refusal.call,
        status=refusal.status,
        code=refusal.code,
        count=refusal.count,
        address=refusal.address,
        process=refusal.process,
    )
