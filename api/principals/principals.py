"""Principals with their keys and passwords over REST (SPEC SEC-1, SEC-3, SEC-19, KAFKA-27)."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from fastapi import Path as PathParameter
from fastapi import Request, Response
from msgspec import Meta as Field

from deltamq.api.principals.access_rules import (
    Changes,
    NameInBody,
    Names,
    OfPrincipal,
    PrincipalName,
    acl_info,
    auth_router,
)
from deltamq.api.service.dependencies import Asking, Running
from deltamq.api.wire.fields import After, Limit, json_answer, moment, page, parse_time
from deltamq.api.wire.json_body import JsonBody
from deltamq.api.wire.openapi_parts import answers, answers_or_makes, problems
from deltamq.mq.auth.changes import (
    decide_disable_principal,
    decide_enable_principal,
    decide_put_key,
    decide_put_principal,
    decide_remove_password,
    decide_remove_principal,
    decide_revoke_key,
    decide_rotate_key,
)
from deltamq.mq.auth.keys import Key, new_key
from deltamq.mq.auth.principals import Principal
from deltamq.mq.auth.state import AuthEvent, AuthState
from deltamq.mq.limits import KEY_ID_BYTES, NOTE_LENGTH_MAX, RETENTION_MS_MAX, SECRET_BYTES
from deltamq.mq.meta.features import GUARDED
from deltamq.mq.wire.auth import KeyInfo, KeyList, NewKey, PasswordInfo, PrincipalInfo, PrincipalList

log = logging.getLogger("deltamq.api")

router = auth_router()


class PrincipalPutRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The note about a principal."""

    note: Annotated[str, Field(max_length=NOTE_LENGTH_MAX, description="Whom to ask about it.")] = ""


class KeyRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A new key for a principal."""

    principal: NameInBody
    until: Annotated[str | None, Field(description="When the key ends, RFC 3339; by default never.")] = None
    overlap_ms: Annotated[
        Annotated[int, Field(ge=0, le=RETENTION_MS_MAX)] | None,
        Field(description="The principal's live key ends so long after this one is made; by default it stays."),
    ] = None


_PRINCIPAL: Final = JsonBody(PrincipalPutRequest, {"note": "nightly reports, team blue"}, required=False)
_KEY: Final = JsonBody(KeyRequest, {"principal": "reports", "until": "2030-01-01T00:00:00Z"})


# Principals -----------------------------------------------------------------------------------------------------------


@router.get(
    "/principals",
    summary="Names of all principals, or a page of them",
    responses=answers(PrincipalList, 400, 409, 422, 500),
)
async def list_principals(service: Running, limit: Limit = None, after: After = None) -> Response:
    state = service.meta.now.auth
    names, following = page(state.principals, limit, after)
    disabled = [name for name in names if state.is_disabled(name)]
    return json_answer(PrincipalList(principals=names, disabled=disabled, next=following))


@router.get(
    "/principals/{principal}",
    summary="One principal with its keys and access rules",
    responses=answers(PrincipalInfo, 404, 409, 500),
)
async def show_principal(principal: PrincipalName, service: Running) -> Response:
    state = service.meta.now.auth
    return json_answer(_principal(state, state.principal(principal), service.now_ms(), Names(service.meta.now)))


@router.put(
    "/principals/{principal}",
    summary="Make a principal, or change its note",
    responses=answers_or_makes(PrincipalInfo, 400, 409, 413, 415, 422, 500, 507),
    openapi_extra=_PRINCIPAL.described,
)
async def put_principal(
    principal: PrincipalName, service: Running, changes: Changes, caller: Asking, request: Request
) -> Response:
    note, now_ms = (await _PRINCIPAL.read(request)).note, service.now_ms()
    is_new = [False]

    def decide(state: AuthState) -> Sequence[AuthEvent]:
        is_new[0] = principal not in state.principals
        return decide_put_principal(state, principal, note, now_ms)

    state = await changes.store(decide)
    log.info("event=principal_put principal=%r created=%s by=%r", principal, is_new[0], caller.name)
    return json_answer(
        _principal(state, state.principal(principal), now_ms, Names(service.meta.now)), 201 if is_new[0] else 200
    )


@router.delete(
    "/principals/{principal}",
    summary="Remove a principal with its keys and access rules",
    status_code=204,
    responses=problems(404, 409, 500, 507),
)
async def remove_principal(principal: PrincipalName, changes: Changes, caller: Asking) -> None:
    await changes.store(lambda state: decide_remove_principal(state, principal))
    log.info("event=principal_removed principal=%r by=%r", principal, caller.name)


@router.post(
    "/principals/{principal}/disable",
    summary="Refuse all requests of a principal until it is enabled; its keys and access rules stay",
    responses=answers(PrincipalInfo, 404, 409, 422, 500, 507),
)
async def disable_principal(principal: PrincipalName, service: Running, changes: Changes, caller: Asking) -> Response:
    now_ms = service.now_ms()
    state = await changes.store(lambda state: decide_disable_principal(state, principal, now_ms), uses=GUARDED)
    log.info("event=principal_disabled principal=%r by=%r", principal, caller.name)
    return json_answer(_principal(state, state.principal(principal), now_ms, Names(service.meta.now)))


@router.post(
    "/principals/{principal}/enable",
    summary="Enable a disabled principal, with its keys and access rules",
    responses=answers(PrincipalInfo, 404, 409, 500, 507),
)
async def enable_principal(principal: PrincipalName, service: Running, changes: Changes, caller: Asking) -> Response:
    state = await changes.store(lambda state: decide_enable_principal(state, principal))
    log.info("event=principal_enabled principal=%r by=%r", principal, caller.name)
    return json_answer(_principal(state, state.principal(principal), service.now_ms(), Names(service.meta.now)))


# Keys -----------------------------------------------------------------------------------------------------------------


@router.get(
    "/keys",
    summary="All keys without their secrets, or a page of them",
    responses=answers(KeyList, 400, 409, 422, 500),
)
async def list_keys(
    service: Running, principal: OfPrincipal = None, limit: Limit = None, after: After = None
) -> Response:
    keys, now_ms = service.meta.now.auth.keys, service.now_ms()
    ids, following = page((id_ for id_, key in keys.items() if principal in (None, key.principal)), limit, after)
    return json_answer(KeyList(keys=[_key(keys[id_], now_ms) for id_ in ids], next=following))


@router.post(
    "/keys",
    summary="Make a key; only this answer has its secret",
    status_code=201,
    responses=answers(NewKey, 400, 404, 409, 413, 415, 422, 500, 507, status=201),
    openapi_extra=_KEY.described,
)
async def make_key(service: Running, changes: Changes, caller: Asking, request: Request) -> Response:
    asked, now_ms = await _KEY.read(request), service.now_ms()
    until_ms = None if asked.until is None else parse_time(asked.until) // 1000
    id_, secret = secrets.token_bytes(KEY_ID_BYTES), secrets.token_bytes(SECRET_BYTES)
    # Hashing for SCRAM takes some milliseconds.
    key, token = await asyncio.to_thread(new_key, asked.principal, id_, secret, now_ms, until_ms)
    overlap_ms = asked.overlap_ms

    def decide(state: AuthState) -> Sequence[AuthEvent]:
        return decide_put_key(state, key) if overlap_ms is None else decide_rotate_key(state, key, overlap_ms)

    await changes.store(decide)
    log.info("event=key_made key=%s principal=%r by=%r", key.id, key.principal, caller.name)
    response = json_answer(NewKey(**msgspec.structs.asdict(_key(key, now_ms)), key=token), 201)
    response.headers["cache-control"] = "no-store"
    return response


@router.delete("/keys/{key_id}", summary="Revoke a key", status_code=204, responses=problems(404, 409, 500, 507))
async def revoke_key(
    key_id: Annotated[str, PathParameter(examples=["9f86d081884c7d65"])],
    changes: Changes,
    caller: Asking,
) -> None:
    await changes.store(lambda state: decide_revoke_key(state, key_id))
    log.info("event=key_revoked key=%s by=%r", key_id, caller.name)


# Passwords, which Kafka's clients set ---------------------------------------------------------------------------------


@router.delete(
    "/principals/{principal}/passwords/{mechanism}",
    summary="Remove a principal's password for a mechanism of SCRAM, which a client of Kafka has set",
    status_code=204,
    responses=problems(404, 409, 500, 507),
)
async def remove_password(
    principal: PrincipalName,
    mechanism: Annotated[str, PathParameter(examples=["SCRAM-SHA-512"])],
    changes: Changes,
    caller: Asking,
) -> None:
    await changes.store(lambda state: decide_remove_password(state, principal, mechanism))
    log.info("event=password_removed principal=%r mechanism=%r by=%r", principal, mechanism, caller.name)


def _principal(state: AuthState, principal: Principal, now_ms: int, names: Names) -> PrincipalInfo:
    since_ms = principal.disabled_since_ms
    return PrincipalInfo(
        principal=principal.name,
        note=principal.note,
        created_time=moment(principal.created_ms),
        disabled_time=None if since_ms is None else moment(since_ms),
        keys=[_key(key, now_ms) for key in state.keys_of(principal.name)],
        passwords=[
            PasswordInfo(mechanism=mechanism, iterations=password.iterations, created_time=moment(password.created_ms))
            for mechanism, password in sorted(state.passwords.get(principal.name, {}).items())
        ],
        acls=[acl_info(rule, names) for rule in state.rules_of(principal.name)],
    )


def _key(key: Key, now_ms: int) -> KeyInfo:
    return KeyInfo(
        key_id=key.id,
        principal=key.principal,
        created_time=moment(key.created_ms),
        until_time=None if key.until_ms is None else moment(key.until_ms),
        live=key.is_live(now_ms),
    )
