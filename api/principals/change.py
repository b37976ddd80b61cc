"""What the calls about principals, keys, access rules and quotas share (SPEC SEC-3, SEC-5).

A change is stored, and the other processes that can be reached know it, when it is answered. Without authentication
these calls are refused: else anyone could make a key that is good when authentication is turned on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi import Path as PathParameter
from msgspec import Meta as Field

from api.host import Call
from api.service import Running, Service
from mq.auth import PRINCIPAL_PATTERN, AuthEvent, AuthState
from mq.errors import Conflict

__all__ = ["NameInBody", "OfPrincipal", "PrincipalName", "auth_router", "change"]

PrincipalName = Annotated[str, PathParameter(json_schema_extra={"pattern": PRINCIPAL_PATTERN}, examples=["reports"])]
NameInBody = Annotated[str, Field(extra_json_schema={"pattern": PRINCIPAL_PATTERN})]
OfPrincipal = Annotated[str | None, Query(description="Only those of this principal.", examples=["reports"])]


async def _with_authentication(service: Running) -> None:
    if service.gate is None:
        raise Conflict(
            "this service has no authentication: make the first key with `deltamq auth init`, and set service.auth",
            code="auth_off",
        )


def auth_router() -> APIRouter:
    """Return a router for calls under `/v1/auth`."""
    return APIRouter(prefix="/v1/auth", tags=["auth"], dependencies=[Depends(_with_authentication)])


async def change(service: Service, request: Request, decide: Callable[[AuthState], Sequence[AuthEvent]]) -> AuthState:
    """Store what `decide` returns for the newest state, and let other processes read it; return the state after it."""
    meta = await service.meta.submit_any(lambda meta: decide(meta.auth))
    await service.owners.tell(meta.brokers.brokers, Call.of(request.scope))
    return meta.auth
