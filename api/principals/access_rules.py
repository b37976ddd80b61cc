"""Access rules and quotas over REST, and helpers of all calls under `/v1/auth` (SEC-2, 3, 9).

Without authentication these calls are refused (SPEC SEC-5): else anyone could make a key that is valid when
authentication is turned on.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from typing import Annotated, Final

import msgspec
from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi import Path as PathParameter
from msgspec import Meta as Field

from deltamq.api.auth.calls import named_by
from deltamq.api.host.peers import Call
from deltamq.api.principals.auth_changes import AuthChanges
from deltamq.api.service.dependencies import Asking, Running
from deltamq.api.wire.fields import After, Limit, json_answer, moment, page
from deltamq.api.wire.json_body import JsonBody
from deltamq.api.wire.openapi_parts import answers, problems
from deltamq.mq.auth.callers import deciding
from deltamq.mq.auth.changes import decide_put_quota, decide_put_rule, decide_remove_rule
from deltamq.mq.auth.principals import (
    CLUSTER,
    PRINCIPAL_PATTERN,
    VERBS,
    AccessRule,
    Effect,
    Quota,
    Resource,
    Verb,
    quota_of,
    rule_of,
)
from deltamq.mq.errors import Conflict, Unprocessable
from deltamq.mq.limits import NAME_LENGTH_MAX, QUOTA_MAX
from deltamq.mq.meta.fold import Meta
from deltamq.mq.wire.auth import AclInfo, AclList, Explained, QuotaInfo, QuotaList

PrincipalName = Annotated[str, PathParameter(json_schema_extra={"pattern": PRINCIPAL_PATTERN}, examples=["reports"])]
NameInBody = Annotated[str, Field(extra_json_schema={"pattern": PRINCIPAL_PATTERN})]
OfPrincipal = Annotated[str | None, Query(description="Only this principal's.", examples=["reports"])]


async def _with_authentication(service: Running) -> None:
    if service.gate is None:
        raise Conflict(
            "this service has no authentication: make the first key with `deltamq auth init`, and set service.auth",
            code="auth_off",
        )


def auth_router() -> APIRouter:
    """Return a router for calls under `/v1/auth`."""
    return APIRouter(prefix="/v1/auth", tags=["auth"], dependencies=[Depends(_with_authentication)])


async def _changes_of(service: Running, caller: Asking, request: Request) -> AuthChanges:
    return AuthChanges(service.meta, service.owners, caller, Call.of(request.scope))


Changes = Annotated[AuthChanges, Depends(_changes_of)]


log = logging.getLogger("deltamq.api")

#: Length of a query with groups: a token may name a hundred.
_GROUPS_LENGTH_MAX: Final = 16_384
#: Names that are shown of those that a rule covers.
_NAMES_SHOWN: Final = 3

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
    pattern: Annotated[
        str, Field(description="A name, or the beginning of names and a `*`: `orders.*`. Leave it out for the cluster.")
    ] = ""
    effect: Effect = "allow"


_Rate = Annotated[int, Field(ge=1, le=QUOTA_MAX)] | None


class QuotaRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A principal's quota in each process, per second."""

    requests_per_s: _Rate = None
    bytes_in_per_s: Annotated[_Rate, Field(description="Bytes of request bodies.")] = None
    bytes_out_per_s: Annotated[_Rate, Field(description="Bytes of answers' bodies.")] = None


_QUOTA: Final = JsonBody(QuotaRequest, {"requests_per_s": 100, "bytes_in_per_s": 1_048_576}, required=False)
_ACL: Final = JsonBody(
    AclRequest, {"principal": "reports", "resource": "topic", "pattern": "orders.*", "verbs": ["subscribe"]}
)


class Names:
    """The topics and groups that there are now, for the patterns of rules."""

    def __init__(self, meta: Meta) -> None:
        self._by_resource = {"topic": sorted(meta.topics.topics), "group": sorted(meta.groups.groups)}

    def covered(self, rule: AccessRule) -> tuple[int, list[str]]:
        """Return how many names a rule covers, and the first of them; the cluster has none."""
        names = self._by_resource.get(rule.resource, [])
        low = bisect_left(names, rule.pattern if rule.prefix is None else rule.prefix)
        high = bisect_left(names, True, lo=low, key=lambda name: not rule.covers(name))
        return high - low, names[low : min(high, low + _NAMES_SHOWN)]


def acl_info(rule: AccessRule, names: Names) -> AclInfo:
    """Return a rule's form in answers."""
    matches, matched = names.covered(rule)
    return AclInfo(
        acl_id=rule.id,
        principal=rule.principal,
        effect=rule.effect,
        resource=rule.resource,
        pattern=rule.pattern,
        verbs=list(rule.verbs),
        matches=matches,
        matched=matched,
    )


# Access rules ---------------------------------------------------------------------------------------------------------


@router.get(
    "/acls",
    summary="All access rules, or a page of them",
    responses=answers(AclList, 400, 409, 422, 500),
)
async def list_acls(
    service: Running, principal: OfPrincipal = None, limit: Limit = None, after: After = None
) -> Response:
    rules, names = service.meta.now.auth.rules, Names(service.meta.now)
    ids, following = page((id_ for id_, rule in rules.items() if principal in (None, rule.principal)), limit, after)
    return json_answer(AclList(acls=[acl_info(rules[id_], names) for id_ in ids], next=following))


@router.post(
    "/acls",
    summary="Add an access rule; an equal rule stays",
    status_code=201,
    responses=answers(AclInfo, 400, 404, 409, 413, 415, 422, 500, 507, status=201),
    openapi_extra=_ACL.described,
)
async def put_acl(service: Running, changes: Changes, caller: Asking, request: Request) -> Response:
    asked = await _ACL.read(request)
    rule = rule_of(
        principal=asked.principal,
        effect=asked.effect,
        resource=asked.resource,
        pattern=asked.pattern,
        verbs=asked.verbs,
    )
    await changes.store(lambda state: decide_put_rule(state, rule))
    log.info("event=acl_put acl=%s principal=%r by=%r", rule.id, rule.principal, caller.name)
    return json_answer(acl_info(rule, Names(service.meta.now)), 201)


@router.get(
    "/explain",
    summary="Whether a principal may do something, and by which rules",
    responses=answers(Explained, 400, 404, 409, 422, 500),
)
async def explain(
    service: Running,
    principal: Annotated[str, Query(examples=["reports"])],
    resource: Annotated[Resource, Query(examples=["topic"])],
    verb: Annotated[Verb, Query(examples=["publish"])],
    name: Annotated[
        str, Query(max_length=NAME_LENGTH_MAX, description="The topic or group; the cluster has none.")
    ] = "",
    groups: Annotated[
        str, Query(max_length=_GROUPS_LENGTH_MAX, description="Groups of its token: `group:analysts,group:eu`.")
    ] = "",
) -> Response:
    if verb not in VERBS[resource]:
        raise Unprocessable(f"verb: on a {resource} there are {', '.join(VERBS[resource])}", field="verb")
    if not name and resource != "cluster":
        raise Unprocessable(f"name: which {resource}?", field="name")
    state, names = service.meta.now.auth, Names(service.meta.now)
    asked = named_by(resource, name or CLUSTER)
    rules = deciding(state.rules.values(), principal, resource, asked, verb, tuple(filter(None, groups.split(","))))
    known = state.principals.get(principal)
    disabled_ms = None if known is None else known.disabled_since_ms
    return json_answer(
        Explained(
            principal=principal,
            resource=resource,
            name=asked,
            verb=verb,
            allowed=disabled_ms is None and bool(rules) and rules[0].effect == "allow",
            rules=[acl_info(rule, names) for rule in rules],
            disabled_time=None if disabled_ms is None else moment(disabled_ms),
        )
    )


@router.delete(
    "/acls/{acl_id}", summary="Remove an access rule", status_code=204, responses=problems(404, 409, 500, 507)
)
async def remove_acl(
    acl_id: Annotated[str, PathParameter(examples=["5b1f0c2a9d3e4f60"])],
    changes: Changes,
    caller: Asking,
) -> None:
    await changes.store(lambda state: decide_remove_rule(state, acl_id))
    log.info("event=acl_removed acl=%s by=%r", acl_id, caller.name)


# Quotas ---------------------------------------------------------------------------------------------------------------


@router.get(
    "/quotas",
    summary="All quotas, or a page of them",
    responses=answers(QuotaList, 400, 409, 422, 500),
)
async def list_quotas(service: Running, limit: Limit = None, after: After = None) -> Response:
    quotas = service.meta.now.auth.quotas
    names, following = page(quotas, limit, after)
    return json_answer(QuotaList(quotas=[_quota(quotas[name]) for name in names], next=following))


@router.put(
    "/quotas/{principal}",
    summary="Set a principal's quota in each process; a missing rate has no bound",
    responses=answers(QuotaInfo, 400, 404, 409, 413, 415, 422, 500, 507),
    openapi_extra=_QUOTA.described,
)
async def put_quota(principal: PrincipalName, changes: Changes, caller: Asking, request: Request) -> Response:
    asked = await _QUOTA.read(request)
    quota = quota_of(
        principal,
        requests_per_s=asked.requests_per_s,
        bytes_in_per_s=asked.bytes_in_per_s,
        bytes_out_per_s=asked.bytes_out_per_s,
    )
    await changes.store(lambda state: decide_put_quota(state, quota))
    log.info("event=quota_put principal=%r by=%r", principal, caller.name)
    return json_answer(_quota(quota))


def _quota(quota: Quota) -> QuotaInfo:
    return QuotaInfo(**msgspec.structs.asdict(quota))
