"""Access rules and quotas over REST (SPEC SEC-2, SEC-3, SEC-9)."""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import Annotated, Any, Final

import msgspec
from fastapi import Path as PathParameter
from fastapi import Request
from msgspec import Meta as Field
from pydantic import BaseModel

from deltamq.api.principals.change import Changes, NameInBody, OfPrincipal, PrincipalName, auth_router
from deltamq.api.service.dependencies import Asking, Running
from deltamq.api.wire.fields import After, Limit, page
from deltamq.api.wire.json_body import JsonBody
from deltamq.api.wire.openapi_parts import problems
from deltamq.mq.auth.changes import decide_put_quota, decide_put_rule, decide_remove_rule
from deltamq.mq.auth.principals import CLUSTER, AccessRule, Effect, Resource, Verb, quota_of, rule_of
from deltamq.mq.limits import QUOTA_MAX

log = logging.getLogger("deltamq.api")

router = auth_router()


class AclRequest(msgspec.Struct, forbid_unknown_fields=True):
    """An access rule."""

    principal: NameInBody
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
_ACL: Final = JsonBody(
    AclRequest, {"principal": "reports", "resource": "topic", "pattern": "orders.*", "verbs": ["subscribe"]}
)


class AclView(BaseModel):
    """An access rule: any that denies wins, and nothing is allowed that is not granted."""

    acl_id: str
    principal: str
    effect: str
    resource: str
    pattern: str
    verbs: list[str]


class AclList(BaseModel):
    """Access rules by id; `next` is given if more follow: send it as `after` to get them."""

    acls: list[AclView]
    next: str | None = None


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


def acl_view(rule: AccessRule) -> dict[str, object]:
    """Return a rule as it is answered."""
    return {
        "acl_id": rule.id,
        "principal": rule.principal,
        "effect": rule.effect,
        "resource": rule.resource,
        "pattern": rule.pattern,
        "verbs": list(rule.verbs),
    }


# Access rules ---------------------------------------------------------------------------------------------------------


@router.get(
    "/acls",
    summary="All access rules, or a page of them",
    response_model=AclList,
    responses=problems(400, 409, 422, 500),
)
async def list_acls(service: Running, principal: OfPrincipal = None, limit: Limit = None, after: After = None) -> Any:
    rules = service.meta.now.auth.rules
    ids, following = page((id_ for id_, rule in rules.items() if principal in (None, rule.principal)), limit, after)
    return {"acls": [acl_view(rules[id_]) for id_ in ids], "next": following}


@router.post(
    "/acls",
    summary="Add an access rule; one that is there already stays",
    status_code=201,
    response_model=AclView,
    responses=problems(400, 404, 409, 413, 415, 422, 500, 507),
    openapi_extra=_ACL.described,
)
async def put_acl(changes: Changes, caller: Asking, request: Request) -> Any:
    asked = await _ACL.read(request)
    rule = rule_of(
        principal=asked.principal,
        effect=asked.effect,
        resource=asked.resource,
        pattern=asked.pattern,
        verbs=asked.verbs,
    )
    await changes.store(request, lambda state: decide_put_rule(state, rule))
    log.info("event=acl_put acl=%s principal=%r by=%r", rule.id, rule.principal, caller.name)
    return acl_view(rule)


@router.delete(
    "/acls/{acl_id}", summary="Remove an access rule", status_code=204, responses=problems(404, 409, 500, 507)
)
async def remove_acl(
    acl_id: Annotated[str, PathParameter(examples=["5b1f0c2a9d3e4f60"])],
    changes: Changes,
    caller: Asking,
    request: Request,
) -> None:
    await changes.store(request, lambda state: decide_remove_rule(state, acl_id))
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
async def put_quota(principal: PrincipalName, changes: Changes, caller: Asking, request: Request) -> Any:
    asked = await _QUOTA.read(request)
    quota = quota_of(
        principal,
        requests_per_s=asked.requests_per_s,
        bytes_in_per_s=asked.bytes_in_per_s,
        bytes_out_per_s=asked.bytes_out_per_s,
    )
    await changes.store(request, lambda state: decide_put_quota(state, quota))
    log.info("event=quota_put principal=%r by=%r", principal, caller.name)
    return asdict(quota)
