"""What the caller may do, so that a program shows only that, and how people sign in (SPEC LOOK-10, SEC-50)."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from deltamq.api.auth.caller import Caller
from deltamq.api.auth.calls import named_by
from deltamq.api.service.dependencies import Asking, Running
from deltamq.api.wire.fields import json_answer
from deltamq.api.wire.openapi_parts import answers
from deltamq.mq.auth.principals import CLUSTER, VERBS, Resource
from deltamq.mq.wire.auth import Allowed, SignInInfo

router = APIRouter(prefix="/v1/auth", tags=["auth"])

_NAME_LENGTH_MAX = 256


@router.get("/may", summary="What the caller may do", responses=answers(Allowed, 400, 422, 500))
async def may(
    caller: Asking,
    topic: Annotated[str | None, Query(max_length=_NAME_LENGTH_MAX, examples=["flights"])] = None,
    group: Annotated[str | None, Query(max_length=_NAME_LENGTH_MAX, examples=["billing"])] = None,
) -> Response:
    return json_answer(
        Allowed(
            principal=caller.name or None,
            cluster=_verbs(caller, "cluster", CLUSTER),
            topic=_verbs(caller, "topic", topic),
            group=_verbs(caller, "group", group),
        )
    )


@router.get("/sign-in", summary="How people sign in at the identity provider", responses=answers(SignInInfo, 500))
async def sign_in(service: Running) -> Response:
    return json_answer(SignInInfo() if service.gate is None else service.gate.sign_in())


def _verbs(caller: Caller, resource: Resource, name: str | None) -> tuple[str, ...]:
    if name is None:
        return tuple(verb for verb in VERBS[resource] if caller.filter(resource, verb) is None)
    name = named_by(resource, name)
    return tuple(verb for verb in VERBS[resource] if caller.allows(resource, name, verb))
