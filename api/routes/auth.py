"""Principals, keys and access rules over REST (SPEC SEC-1 to SEC-3, SEC-5).

A change is stored, and the other processes that can be reached know it, when it is answered. Without authentication
these calls are refused: else anyone could make a key that is good when authentication is turned on.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi import Path as PathParameter
from msgspec import Meta as Field
from pydantic import BaseModel

from api.host import Call
from api.routes.topics import Asking, Running
from api.service import Service
from api.wire import After, JsonBody, Limit, page, parse_time, problems, rfc3339
from mq.auth import (
    CLUSTER,
    PRINCIPAL_PATTERN,
    AccessRule,
    AuthEvent,
    AuthState,
    Effect,
    Key,
    Principal,
    Resource,
    Verb,
    decide_disable_principal,
    decide_enable_principal,
    decide_put_key,
    decide_put_principal,
    decide_put_quota,
    decide_put_rule,
    decide_remove_principal,
    decide_remove_rule,
    decide_revoke_key,
    new_key,
    quota_of,
    rule_of,
)
from mq.auth_limits import KEY_ID_BYTES, NOTE_LENGTH_MAX, QUOTA_MAX, SECRET_BYTES
from mq.errors import Conflict

__all__ = ["router"]

log = logging.getLogger("deltamq.api")


async def _with_authentication(service: Running) -> None:
    if service.gate is None:
        raise Conflict(
            "this service has no authentication: make the first key with `deltamq auth init`, and set service.auth",
            code="auth_off",
        )


router = APIRouter(prefix="/v1/auth", tags=["auth"], dependencies=[Depends(_with_authentication)])

PrincipalName = Annotated[str, PathParameter(json_schema_extra={"pattern": PRINCIPAL_PATTERN}, examples=["reports"])]
_Name = Annotated[str, Field(extra_json_schema={"pattern": PRINCIPAL_PATTERN})]
_OfPrincipal = Annotated[str | None, Query(description="Only those of this principal.", examples=["reports"])]


class PrincipalPutRequest(msgspec.Struct, forbid_unknown_fields=True):
    """What is to be known of a principal."""

    note: Annotated[str, Field(max_length=NOTE_LENGTH_MAX, description="Whom to ask about it.")] = ""


class KeyRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A new key for a principal."""

    principal: _Name
    until: Annotated[str | None, Field(description="When the key ends, RFC 3339; by default never.")] = None


class AclRequest(msgspec.Struct, forbid_unknown_fields=True):
    """An access rule."""

    principal: _Name
    resource: Resource
    verbs: Annotated[
        list[Verb],
        Field(
            min_length=1,
            description="topic: publish, subscribe, create, alter, delete, describe. group: subscribe, alter, reset, "
            "delete, describe. cluster: admin, metrics, audit.",
        ),
    ]
    pattern: Annotated[str, Field(description="A name, or the beginning of names and a `*`: `orders.*`.")] = CLUSTER
    effect: Effect = "allow"


_Rate = Annotated[int, Field(ge=1, le=QUOTA_MAX)] | None


class QuotaRequest(msgspec.Struct, forbid_unknown_fields=True):
    """What a principal may use of each process, per second."""

    requests_per_s: _Rate = None
    bytes_in_per_s: Annotated[_Rate, Field(description="Bytes of request bodies.")] = None
    bytes_out_per_s: Annotated[_Rate, Field(description="Bytes of answers' bodies.")] = None


_QUOTA: Final = JsonBody(QuotaRequest, {"requests_per_s": 100, "bytes_in_per_s": 1_048_576}, required=False)
_PRINCIPAL: Final = JsonBody(PrincipalPutRequest, {"note": "nightly reports, team blue"}, required=False)
_KEY: Final = JsonBody(KeyRequest, {"principal": "reports", "until": "2030-01-01T00:00:00Z"})
_ACL: Final = JsonBody(
    AclRequest, {"principal": "reports", "resource": "topic", "pattern": "orders.*", "verbs": ["subscribe"]}
)


class KeyView(BaseModel):
    """A key without its secret. One that is over is not `live`."""

    key_id: str
    principal: str
    created_time: str
    until_time: str | None
    live: bool


class NewKeyView(KeyView):
    """A new key. `key` is what the principal sends as `Authorization: Bearer`; it is shown here and never again."""

    key: str


class AclView(BaseModel):
    """An access rule: any that denies wins, and nothing is allowed that is not granted."""

    acl_id: str
    principal: str
    effect: str
    resource: str
    pattern: str
    verbs: list[str]


class QuotaView(BaseModel):
    """What a principal may use of each process, per second; null is without a bound."""

    principal: str
    requests_per_s: int | None
    bytes_in_per_s: int | None
    bytes_out_per_s: int | None


class QuotaList(BaseModel):
    """Quotas by principal; `next` is given if more follow: send it as `after` to get them."""

    quotas: list[QuotaView]
    next: str | None = None


class PrincipalView(BaseModel):
    """A principal with its keys and access rules. One that is disabled may do nothing, whatever its rules say."""

    principal: str
    note: str
    created_time: str
    disabled_time: str | None
    keys: list[KeyView]
    acls: list[AclView]


class PrincipalList(BaseModel):
    """Names of principals, sorted; `next` is given if more follow: send it as `after` to get them."""

    principals: list[str]
    #: Those of them that may do nothing until they are enabled.
    disabled: list[str]
    next: str | None = None


class KeyList(BaseModel):
    """Keys by id; `next` is given if more follow: send it as `after` to get them."""

    keys: list[KeyView]
    next: str | None = None


class AclList(BaseModel):
    """Access rules by id; `next` is given if more follow: send it as `after` to get them."""

    acls: list[AclView]
    next: str | None = None


async def _change(service: Service, request: Request, decide: Callable[[AuthState], Sequence[AuthEvent]]) -> AuthState:
    """Store what `decide` returns for the newest state, and let other processes read it; return the state after it."""
    meta = await service.meta.submit_any(lambda meta: decide(meta.auth))
    await service.owners.tell(meta.brokers.brokers, Call.of(request.scope))
    return meta.auth


# Principals -----------------------------------------------------------------------------------------------------------


@router.get(
    "/principals",
    summary="Names of all principals, or a page of them",
    response_model=PrincipalList,
    response_model_exclude_none=True,
    responses=problems(400, 409, 422, 500),
)
async def list_principals(service: Running, limit: Limit = None, after: After = None) -> Any:
    state = service.meta.now.auth
    names, following = page(state.principals, limit, after)
    return {"principals": names, "disabled": [one for one in names if state.is_disabled(one)], "next": following}


@router.get(
    "/principals/{principal}",
    summary="One principal with its keys and access rules",
    response_model=PrincipalView,
    responses=problems(404, 409, 500),
)
async def show_principal(principal: PrincipalName, service: Running) -> Any:
    state = service.meta.now.auth
    return _principal_view(state, state.principal(principal), service.now_ms())


@router.put(
    "/principals/{principal}",
    summary="Make a principal, or change its note",
    response_model=PrincipalView,
    responses={
        201: {"model": PrincipalView, "description": "Created"},
        **problems(400, 409, 413, 415, 422, 500, 507),
    },
    openapi_extra=_PRINCIPAL.described,
)
async def put_principal(
    principal: PrincipalName, service: Running, caller: Asking, request: Request, response: Response
) -> Any:
    note, now_ms = (await _PRINCIPAL.read(request)).note, service.now_ms()
    is_new = [False]

    def decide(state: AuthState) -> Sequence[AuthEvent]:
        is_new[0] = principal not in state.principals
        return decide_put_principal(state, principal, note, now_ms)

    state = await _change(service, request, decide)
    log.info("event=principal_put principal=%r created=%s by=%r", principal, is_new[0], caller.name)
    response.status_code = 201 if is_new[0] else 200
    return _principal_view(state, state.principal(principal), now_ms)


@router.delete(
    "/principals/{principal}",
    summary="Remove a principal with its keys and access rules",
    status_code=204,
    responses=problems(404, 409, 500, 507),
)
async def remove_principal(principal: PrincipalName, service: Running, caller: Asking, request: Request) -> None:
    await _change(service, request, lambda state: decide_remove_principal(state, principal))
    log.info("event=principal_removed principal=%r by=%r", principal, caller.name)


@router.post(
    "/principals/{principal}/disable",
    summary="Refuse all that a principal asks for, until it is enabled; its keys and access rules stay",
    response_model=PrincipalView,
    responses=problems(404, 409, 422, 500, 507),
)
async def disable_principal(principal: PrincipalName, service: Running, caller: Asking, request: Request) -> Any:
    now_ms = service.now_ms()
    state = await _change(service, request, lambda state: decide_disable_principal(state, principal, now_ms))
    log.info("event=principal_disabled principal=%r by=%r", principal, caller.name)
    return _principal_view(state, state.principal(principal), now_ms)


@router.post(
    "/principals/{principal}/enable",
    summary="Let a principal that was disabled do again what its access rules grant",
    response_model=PrincipalView,
    responses=problems(404, 409, 500, 507),
)
async def enable_principal(principal: PrincipalName, service: Running, caller: Asking, request: Request) -> Any:
    state = await _change(service, request, lambda state: decide_enable_principal(state, principal))
    log.info("event=principal_enabled principal=%r by=%r", principal, caller.name)
    return _principal_view(state, state.principal(principal), service.now_ms())


# Keys -----------------------------------------------------------------------------------------------------------------


@router.get(
    "/keys",
    summary="All keys without their secrets, or a page of them",
    response_model=KeyList,
    responses=problems(400, 409, 422, 500),
)
async def list_keys(service: Running, principal: _OfPrincipal = None, limit: Limit = None, after: After = None) -> Any:
    keys, now_ms = service.meta.now.auth.keys, service.now_ms()
    ids, following = page((id_ for id_, key in keys.items() if principal in (None, key.principal)), limit, after)
    return {"keys": [_key_view(keys[id_], now_ms) for id_ in ids], "next": following}


@router.post(
    "/keys",
    summary="Make a key; its secret is answered once",
    status_code=201,
    response_model=NewKeyView,
    responses=problems(400, 404, 409, 413, 415, 422, 500, 507),
    openapi_extra=_KEY.described,
)
async def make_key(service: Running, caller: Asking, request: Request, response: Response) -> Any:
    asked, now_ms = await _KEY.read(request), service.now_ms()
    until_ms = None if asked.until is None else parse_time(asked.until) // 1000
    id_, secret = secrets.token_bytes(KEY_ID_BYTES), secrets.token_bytes(SECRET_BYTES)
    # What is stored for SCRAM takes some milliseconds.
    key, token = await asyncio.to_thread(new_key, asked.principal, id_, secret, now_ms, until_ms)
    await _change(service, request, lambda state: decide_put_key(state, key))
    log.info("event=key_made key=%s principal=%r by=%r", key.id, key.principal, caller.name)
    response.headers["cache-control"] = "no-store"
    return {**_key_view(key, now_ms), "key": token}


@router.delete("/keys/{key_id}", summary="Revoke a key", status_code=204, responses=problems(404, 409, 500, 507))
async def revoke_key(
    key_id: Annotated[str, PathParameter(examples=["9f86d081884c7d65"])],
    service: Running,
    caller: Asking,
    request: Request,
) -> None:
    await _change(service, request, lambda state: decide_revoke_key(state, key_id))
    log.info("event=key_revoked key=%s by=%r", key_id, caller.name)


# Access rules ---------------------------------------------------------------------------------------------------------


@router.get(
    "/acls",
    summary="All access rules, or a page of them",
    response_model=AclList,
    responses=problems(400, 409, 422, 500),
)
async def list_acls(service: Running, principal: _OfPrincipal = None, limit: Limit = None, after: After = None) -> Any:
    rules = service.meta.now.auth.rules
    ids, following = page((id_ for id_, rule in rules.items() if principal in (None, rule.principal)), limit, after)
    return {"acls": [_acl_view(rules[id_]) for id_ in ids], "next": following}


@router.post(
    "/acls",
    summary="Add an access rule; one that is there already stays",
    status_code=201,
    response_model=AclView,
    responses=problems(400, 404, 409, 413, 415, 422, 500, 507),
    openapi_extra=_ACL.described,
)
async def put_acl(service: Running, caller: Asking, request: Request) -> Any:
    asked = await _ACL.read(request)
    rule = rule_of(
        principal=asked.principal,
        effect=asked.effect,
        resource=asked.resource,
        pattern=asked.pattern,
        verbs=asked.verbs,
    )
    await _change(service, request, lambda state: decide_put_rule(state, rule))
    log.info("event=acl_put acl=%s principal=%r by=%r", rule.id, rule.principal, caller.name)
    return _acl_view(rule)


@router.delete(
    "/acls/{acl_id}", summary="Remove an access rule", status_code=204, responses=problems(404, 409, 500, 507)
)
async def remove_acl(
    acl_id: Annotated[str, PathParameter(examples=["5b1f0c2a9d3e4f60"])],
    service: Running,
    caller: Asking,
    request: Request,
) -> None:
    await _change(service, request, lambda state: decide_remove_rule(state, acl_id))
    log.info("event=acl_removed acl=%s by=%r", acl_id, caller.name)


# Quotas ---------------------------------------------------------------------------------------------------------------


@router.get(
    "/quotas",
    summary="All quotas, or a page of them",
    response_model=QuotaList,
    responses=problems(400, 409, 422, 500),
)
async def list_quotas(service: Running, limit: Limit = None, after: After = None) -> Any:
    quotas = service.meta.now.auth.quotas
    names, following = page(quotas, limit, after)
    return {"quotas": [asdict(quotas[name]) for name in names], "next": following}


@router.put(
    "/quotas/{principal}",
    summary="Set what a principal may use of each process; what is left out has no bound",
    response_model=QuotaView,
    responses=problems(400, 404, 409, 413, 415, 422, 500, 507),
    openapi_extra=_QUOTA.described,
)
async def put_quota(principal: PrincipalName, service: Running, caller: Asking, request: Request) -> Any:
    asked = await _QUOTA.read(request)
    quota = quota_of(
        principal,
        requests_per_s=asked.requests_per_s,
        bytes_in_per_s=asked.bytes_in_per_s,
        bytes_out_per_s=asked.bytes_out_per_s,
    )
    await _change(service, request, lambda state: decide_put_quota(state, quota))
    log.info("event=quota_put principal=%r by=%r", principal, caller.name)
    return asdict(quota)


def _principal_view(state: AuthState, principal: Principal, now_ms: int) -> dict[str, object]:
    since_ms = principal.disabled_since_ms
    return {
        "principal": principal.name,
        "note": principal.note,
        "created_time": rfc3339(principal.created_ms * 1000),
        "disabled_time": None if since_ms is None else rfc3339(since_ms * 1000),
        "keys": [_key_view(key, now_ms) for key in state.keys_of(principal.name)],
        "acls": [_acl_view(rule) for rule in state.rules_of(principal.name)],
    }


def _key_view(key: Key, now_ms: int) -> dict[str, object]:
    return {
        "key_id": key.id,
        "principal": key.principal,
        "created_time": rfc3339(key.created_ms * 1000),
        "until_time": None if key.until_ms is None else rfc3339(key.until_ms * 1000),
        "live": key.is_live(now_ms),
    }


def _acl_view(rule: AccessRule) -> dict[str, object]:
    return {
        "acl_id": rule.id,
        "principal": rule.principal,
        "effect": rule.effect,
        "resource": rule.resource,
        "pattern": rule.pattern,
        "verbs": list(rule.verbs),
    }
