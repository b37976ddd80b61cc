"""`/v1/applied`: what `deltamq apply` brought the warehouse to last, and what differs from it now (SPEC LOOK-19).

PUT  what files say --> applied/desired.json
GET  the same, beside the metadata that this process knows --> differences, field by field
"""

from __future__ import annotations

import threading
from functools import partial
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request, Response

from deltamq.api.service.dependencies import Asking, Running
from deltamq.api.wire.fields import json_answer, moment
from deltamq.api.wire.json_body import JsonBody
from deltamq.api.wire.openapi_parts import answers
from deltamq.mq.meta.desired import Change, Desired, Does, held_by, joined, normal, plan
from deltamq.mq.meta.fold import Meta
from deltamq.mq.wire.cluster import AppliedAnswer, Difference, DifferenceState, DifferingField
from deltamq.tables.ops.applied import Applied, read_applied, write_applied
from deltamq.tables.store.store import Store

router = APIRouter(prefix="/v1/applied", tags=["service"])

_EXAMPLE: Final = {"topics": {"flights": {"partitions": 4, "retention_ms": 86_400_000}}}
_BODY: Final = JsonBody(Desired, _EXAMPLE, required=False)
_STATES: Final[dict[Does, DifferenceState]] = {"create": "missing", "change": "changed", "delete": "extra"}
#: Held while a record is read and written again: of two calls at a time, none must lose what the other names.
_recording: Final = threading.Lock()


@router.get("", summary="What was applied from files, and what differs from it", responses=answers(AppliedAnswer, 500))
async def show_applied(service: Running) -> Response:
    await service.meta.refresh()
    applied = await service.partitions.run(partial(read_applied, service.warehouse.store))
    return json_answer(_answer(applied, service.meta.now))


@router.put(
    "",
    summary="Record what was applied from files",
    responses=answers(AppliedAnswer, 400, 413, 415, 422, 500, 507),
    openapi_extra=_BODY.described,
)
async def put_applied(
    service: Running,
    caller: Asking,
    request: Request,
    replace: Annotated[
        bool, Query(description="Forget what was recorded before and is not in the body; else that stays.")
    ] = False,
) -> Response:
    desired = normal(await _BODY.read(request))
    _changes(desired, service.meta.now)  # what cannot be compared is refused, not recorded: else each look would fail
    record = partial(_record, service.warehouse.store, desired, service.now_ms(), caller.name, replace)
    applied = await service.partitions.run(record)
    await service.meta.refresh()
    return json_answer(_answer(applied, service.meta.now))


def _record(store: Store, desired: Desired, now_ms: int, by: str, replaces: bool) -> Applied:
    """Store what was applied, beside what was recorded before unless this replaces it; return all of it. Blocks."""
    with _recording:
        before = None if replaces else read_applied(store)
        whole = desired if before is None else joined(before.desired, desired)
        applied = Applied(desired=whole, applied_ms=now_ms, by=by)
        write_applied(store, applied)
    return applied


def _answer(applied: Applied | None, meta: Meta) -> AppliedAnswer:
    if applied is None:
        return AppliedAnswer()
    wanted = applied.desired
    return AppliedAnswer(
        applied_time=moment(applied.applied_ms),
        applied_by=applied.by or None,
        names=len(wanted.topics) + len(wanted.groups) + len(wanted.principals),
        differences=tuple(map(_difference, _changes(wanted, meta))),
    )


def _changes(wanted: Desired, meta: Meta) -> list[Change]:
    # Only what was applied is compared, so all that `prune` adds are rules that its principals should not have.
    return plan(wanted, held_by(meta, wanted), prune=True)


def _difference(change: Change) -> Difference:
    return Difference(
        kind=change.kind,
        name=change.name,
        state=_STATES[change.does],
        fields={
            field: DifferingField(applied=applied, present=present)
            for field, (present, applied) in change.fields.items()
        },
    )
