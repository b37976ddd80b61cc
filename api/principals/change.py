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

from deltamq.api.host.hosted_meta import HostedMeta
from deltamq.api.host.owners import Owners
from deltamq.api.host.peers import Call
from deltamq.api.service.dependencies import Running
from deltamq.mq.auth.principals import PRINCIPAL_PATTERN
from deltamq.mq.auth.state import AuthEvent, AuthState
from deltamq.mq.errors import Conflict

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


class AuthChanges:
    """Changes who may do what; used on the event loop."""

    def __init__(self, meta: HostedMeta, owners: Owners) -> None:
        self._meta = meta
        self._owners = owners

    async def store(self, request: Request, decide: Callable[[AuthState], Sequence[AuthEvent]]) -> AuthState:
        """Store what `decide` returns for the newest state, and let other processes read it; return the new state."""
        meta = await self._meta.submit_any(lambda meta: decide(meta.auth))
        await self._owners.tell(meta.brokers.brokers, Call.of(request.scope))
        return meta.auth


async def _changes_of(service: Running) -> AuthChanges:
    return AuthChanges(service.meta, service.owners)


Changes = Annotated[AuthChanges, Depends(_changes_of)]
