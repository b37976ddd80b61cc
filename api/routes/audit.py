"""The audit log over REST: who did what, and what was refused (SPEC SEC-42)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import APIRouter, Query
from pydantic import BaseModel

from deltamq.api.audit.audit import ActView, Audit, read_acts, read_refusals
from deltamq.api.log.partition import Partitions
from deltamq.api.service.dependencies import Running
from deltamq.api.wire.fields import parse_time, rfc3339
from deltamq.api.wire.openapi_parts import problems
from deltamq.mq.audit import ActBegun, RefusalCount
from deltamq.mq.errors import Conflict
from deltamq.mq.limits import ACTS_DEFAULT, ACTS_MAX, OFFSET_MAX
from deltamq.tables.log.log import PartitionLog

R = TypeVar("R")

router = APIRouter(prefix="/v1/audit", tags=["audit"])

_Since = Annotated[str | None, Query(description="RFC 3339: only what was recorded from then on.")]
_OfPrincipal = Annotated[str | None, Query(description="Only of this principal.", max_length=256)]
_Limit = Annotated[int, Query(ge=1, le=ACTS_MAX, description="How many at most.")]
_After = Annotated[int | None, Query(ge=0, le=OFFSET_MAX, description="The `next` of the page before.")]


class ActInfo(BaseModel):
    """An administrative act.

    `outcome` is `done`, `refused` (the caller's fault, nothing was done), `failed` (an error, and no change of the
    metadata) or `unknown` (also while it is carried out). `before` and `after` are the states that it changed.
    """

    id: str
    time: str
    principal: str
    address: str
    process: str
    call: str
    resource: str
    name: str
    asked: Any
    outcome: str
    status: int | None
    code: str | None
    detail: str | None
    before: Any
    after: Any


class ActList(BaseModel):
    """Acts, the oldest first; `next` is given if more follow: send it as `after` to get them."""

    acts: list[ActInfo]
    next: int | None = None


class RefusalInfo(BaseModel):
    """How often a principal was refused a call in a minute, by one process; `address` is where the last came from."""

    minute: str
    principal: str
    call: str
    status: int
    code: str
    count: int
    address: str
    process: str


class RefusalList(BaseModel):
    """Refusals by minute, the oldest first; `next` is given if more follow: send it as `after` to get them."""

    refusals: list[RefusalInfo]
    next: int | None = None


@router.get(
    "",
    summary="What administrators did, the oldest first",
    response_model=ActList,
    responses=problems(400, 409, 422, 500),
)
async def list_acts(
    service: Running,
    since: _Since = None,
    principal: _OfPrincipal = None,
    limit: _Limit = ACTS_DEFAULT,
    after: _After = None,
) -> Any:
    def wanted(begun: ActBegun) -> bool:
        return principal in (None, begun.principal) and begun.time_ms >= since_ms

    since_us = _since_us(since)
    since_ms = 0 if since_us is None else since_us // 1_000
    found, following = await _read(
        service.audit, service.partitions, since_us, after, partial(read_acts, wanted=wanted, limit=limit)
    )
    return {"acts": [_act(one) for one in found], "next": following}


@router.get(
    "/refusals",
    summary="What was refused, by minute, the oldest first",
    response_model=RefusalList,
    responses=problems(400, 409, 422, 500),
)
async def list_refusals(
    service: Running,
    since: _Since = None,
    principal: _OfPrincipal = None,
    limit: _Limit = ACTS_DEFAULT,
    after: _After = None,
) -> Any:
    def wanted(one: RefusalCount) -> bool:
        return principal in (None, one.principal)

    found, following = await _read(
        service.audit, service.partitions, _since_us(since), after, partial(read_refusals, wanted=wanted, limit=limit)
    )
    return {"refusals": [_refusal(one) for one in found], "next": following}


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


def _act(view: ActView) -> dict[str, Any]:
    begun, ended = view.begun, view.ended
    return {
        "id": begun.id,
        "time": rfc3339(begun.time_ms * 1_000),
        "principal": begun.principal,
        "address": begun.address,
        "process": begun.process,
        "call": begun.call,
        "resource": begun.resource,
        "name": begun.name,
        "asked": _json(begun.asked),
        "outcome": "unknown" if ended is None else ended.outcome,
        "status": None if ended is None else ended.status or None,
        "code": None if ended is None else ended.code or None,
        "detail": None if ended is None else ended.detail or None,
        "before": None if ended is None else _json(ended.before),
        "after": None if ended is None else _json(ended.after),
    }


def _json(text: str) -> Any:
    return msgspec.json.decode(text) if text else None


def _refusal(one: RefusalCount) -> dict[str, Any]:
    return {
        "minute": rfc3339(one.minute_ms * 1_000),
        "principal": one.principal,
        "call": one.call,
        "status": one.status,
        "code": one.code,
        "count": one.count,
        "address": one.address,
        "process": one.process,
    }
