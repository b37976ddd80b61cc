"""Changes of principals, keys, passwords and access rules: what may be done now, as events (SPEC SEC-1 to SEC-3)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from msgspec.structs import replace

from deltamq.mq.auth.client_quotas import ClientQuota, check_client_id
from deltamq.mq.auth.keys import Key, Password
from deltamq.mq.auth.principals import (
    CLUSTER,
    VERBS,
    AccessRule,
    Principal,
    Quota,
    check_caller,
    check_note,
    check_principal,
    rule_of,
)
from deltamq.mq.auth.state import (
    AclPut,
    AclRemoved,
    AuthEvent,
    AuthState,
    ClientQuotaPut,
    KeyPut,
    KeyRevoked,
    PasswordPut,
    PasswordRemoved,
    PrincipalDisabled,
    PrincipalEnabled,
    PrincipalPut,
    PrincipalRemoved,
    QuotaPut,
)
from deltamq.mq.errors import Conflict, NotFound, Unprocessable
from deltamq.mq.limits import CLIENT_QUOTAS_MAX, KEYS_LIVE_MAX, PRINCIPALS_MAX, RULES_MAX, RULES_OF_PRINCIPAL_MAX

Q = TypeVar("Q", Quota, ClientQuota)


def decide_put_principal(state: AuthState, name: str, note: str, now_ms: int) -> Sequence[AuthEvent]:
    """Return the events that make a principal, or change its note; none if it is so already."""
    check_principal(name)
    check_note(note)
    present = state.principals.get(name)
    if present is None and len(state.principals) >= PRINCIPALS_MAX:
        raise Conflict(f"there are {PRINCIPALS_MAX} principals already; remove some", code="too_many_principals")
    known = present or Principal(name=name, created_ms=now_ms)
    wanted = replace(known, note=note)
    return () if wanted == present else (PrincipalPut(principal=wanted),)


def decide_remove_principal(state: AuthState, name: str) -> Sequence[AuthEvent]:
    """Return the events that remove a principal with its keys and rules.

    Raises
    ------
    Conflict
        `last_administrator`: no other principal may administer the cluster.
    """
    state.principal(name)
    _check_other_administrator(state, name)
    return (PrincipalRemoved(name=name),)


def decide_disable_principal(state: AuthState, name: str, now_ms: int) -> Sequence[AuthEvent]:
    """Return the events by which a principal may do nothing, and keeps its keys and rules; none if it is so already.

    Raises
    ------
    Conflict
        `last_administrator`: no other principal may administer the cluster.
    """
    if state.principal(check_caller(name)).is_disabled:
        return ()
    _check_other_administrator(state, name)
    return (PrincipalDisabled(name=name, at_ms=now_ms),)


def decide_enable_principal(state: AuthState, name: str) -> Sequence[AuthEvent]:
    """Return the events by which a principal may do again what its rules grant; none if it may."""
    return (PrincipalEnabled(name=name),) if state.principal(name).is_disabled else ()


def _check_other_administrator(state: AuthState, name: str) -> None:
    if is_last_administrator(name, state.rules.values(), state.is_disabled):
        raise last_administrator(name)


def is_last_administrator(name: str, rules: Iterable[AccessRule], is_disabled: Callable[[str], bool]) -> bool:
    """Return whether a principal may administer the cluster by these rules, and no other may that is enabled."""
    about = [rule for rule in rules if rule.resource == "cluster" and "admin" in rule.verbs]
    denied = {rule.principal for rule in about if rule.effect == "deny"}
    granted = {rule.principal for rule in about if rule.effect == "allow"} - denied
    return name in granted and not any(other != name and not is_disabled(other) for other in granted)


def last_administrator(name: str) -> Conflict:
    """Return the refusal to disable or remove the last administrator."""
    return Conflict(
        f"principal {name} is the last administrator: grant admin on the cluster to another one first",
        code="last_administrator",
        field="principal",
    )


def decide_put_key(state: AuthState, key: Key) -> Sequence[AuthEvent]:
    """Return the events that give a principal a key made now.

    Raises
    ------
    Conflict
        `too_many_keys`: it has two live keys already, which is what a change of keys needs.
    """
    check_caller(state.principal(key.principal).name)
    if not key.is_live(key.created_ms):
        raise Unprocessable("until: a key must end in the future", field="until")
    live = [other for other in state.keys_of(key.principal) if other.is_live(key.created_ms)]
    if len(live) >= KEYS_LIVE_MAX:
        names = " and ".join(other.id for other in live)
        raise Conflict(
            f"principal {key.principal} has {KEYS_LIVE_MAX} live keys, {names}: revoke one first",
            code="too_many_keys",
            field="principal",
            extra={"limit": KEYS_LIVE_MAX},
        )
    return (KeyPut(made=key),)


def decide_rotate_key(state: AuthState, key: Key, overlap_ms: int) -> Sequence[AuthEvent]:
    """Return the events that give a principal a key in place of its live one, which ends `overlap_ms` after it is made.

    Raises
    ------
    Conflict
        `too_many_keys`: it has two live keys already.
    """
    made = decide_put_key(state, key)
    ends_ms = key.created_ms + overlap_ms
    ending = [
        KeyPut(made=replace(old, until_ms=ends_ms))
        for old in state.keys_of(key.principal)
        if old.is_live(key.created_ms) and (old.until_ms is None or old.until_ms > ends_ms)
    ]
    return (*ending, *made)


def decide_revoke_key(state: AuthState, key_id: str) -> Sequence[AuthEvent]:
    """Return the events that revoke a key."""
    key = state.keys.get(key_id)
    if key is None:
        raise NotFound(f"there is no key {key_id}", code="key_not_found", field="key")
    return (KeyRevoked(id=key_id, principal=key.principal),)


def decide_put_password(state: AuthState, password: Password) -> Sequence[AuthEvent]:
    """Return the events that give a user a password, and make the principal; none if it is so already.

    While there is no principal nobody has to authenticate, and none is made: the first one guards the warehouse.
    """
    name = check_caller(password.principal)
    is_new = name not in state.principals and bool(state.principals)
    made = decide_put_principal(state, name, "", password.created_ms) if is_new else ()
    if name not in state.passwords and len(state.passwords) >= PRINCIPALS_MAX:
        raise Conflict(f"{PRINCIPALS_MAX} users have passwords already; remove some", code="too_many_passwords")
    present = state.password(name, password.mechanism)
    if present is not None and replace(present, created_ms=password.created_ms) == password:
        return ()
    return (*made, PasswordPut(password=password))


def decide_remove_password(state: AuthState, principal: str, mechanism: str) -> Sequence[AuthEvent]:
    """Return the events that remove a principal's password for a mechanism of SCRAM.

    Raises
    ------
    NotFound
        `password_not_found`: it has none.
    """
    if state.password(principal, mechanism) is None:
        detail = f"principal {principal} has no password for {mechanism}"
        raise NotFound(detail, code="password_not_found", field="principal")
    return (PasswordRemoved(principal=principal, mechanism=mechanism),)


def decide_put_rule(state: AuthState, rule: AccessRule) -> Sequence[AuthEvent]:
    """Return the events that put a rule; none if it is there already."""
    state.principal(rule.principal)
    if rule.id in state.rules:
        return ()
    if len(state.rules) >= RULES_MAX or len(state.rules_of(rule.principal)) >= RULES_OF_PRINCIPAL_MAX:
        raise Conflict(
            f"at most {RULES_OF_PRINCIPAL_MAX} rules of a principal and {RULES_MAX} of all: use prefix patterns",
            code="too_many_rules",
            field="principal",
        )
    return (AclPut(rule=rule),)


def decide_remove_rule(state: AuthState, rule_id: str) -> Sequence[AuthEvent]:
    """Return the events that remove a rule."""
    rule = state.rules.get(rule_id)
    if rule is None:
        raise NotFound(f"there is no access rule {rule_id}", code="acl_not_found", field="acl")
    return (AclRemoved(id=rule_id, principal=rule.principal),)


def decide_put_quota(state: AuthState, quota: Quota) -> Sequence[AuthEvent]:
    """Return the events that set a principal's quota; none if it is so already."""
    check_caller(state.principal(quota.principal).name)
    present = state.quotas.get(quota.principal, Quota(principal=quota.principal))
    return () if quota == present else (QuotaPut(quota=quota),)


def decide_change_quota(state: AuthState, whose: ClientQuota, changes: Mapping[str, int | None]) -> Sequence[AuthEvent]:
    """Return the events that change bounds of the quota of an entity, which `whose` names; none if they are so already.

    `changes` has bounds by their names, None for one that is removed. The quota of a user alone is the principal's.
    """
    if whose.user and whose.is_principals:
        of_principal = state.quotas.get(whose.user, Quota(principal=whose.user))
        wanted = _with_bounds(of_principal, changes)
        return () if wanted == of_principal else decide_put_quota(state, wanted)
    check_client_id(whose.client_id or "")
    present = state.client_quotas.get(whose.entity, whose)
    changed = _with_bounds(present, changes)
    if changed == present:
        return ()
    if whose.user:
        check_caller(state.principal(whose.user).name)
    if whose.entity not in state.client_quotas and len(state.client_quotas) >= CLIENT_QUOTAS_MAX:
        raise Conflict(f"there are {CLIENT_QUOTAS_MAX} quotas of clients already; remove some", code="too_many_quotas")
    return (ClientQuotaPut(quota=changed),)


def _with_bounds(quota: Q, changes: Mapping[str, int | None]) -> Q:
    return replace(
        quota,
        bytes_in_per_s=changes.get("bytes_in_per_s", quota.bytes_in_per_s),
        bytes_out_per_s=changes.get("bytes_out_per_s", quota.bytes_out_per_s),
    )


def decide_first_administrator(state: AuthState, key: Key) -> Sequence[AuthEvent]:
    """Return the events that make a principal which may do everything, with this key.

    Before there is a principal anybody may set passwords: none of them outlives that.

    Raises
    ------
    Conflict
        `principal_exists`: there is a principal of this name.
    """
    name = check_caller(key.principal)
    if name in state.principals:
        raise Conflict(
            f"there is a principal {name} already: choose another name, which can then give it a new key",
            code="principal_exists",
            field="principal",
        )
    made = decide_put_principal(state, name, "", key.created_ms)
    rules = [
        rule_of(principal=name, effect="allow", resource=resource, pattern=CLUSTER, verbs=verbs)
        for resource, verbs in VERBS.items()
    ]
    earlier = [
        PasswordRemoved(principal=user, mechanism=mechanism)
        for user, passwords in state.passwords.items()
        for mechanism in passwords
        if not state.principals
    ]
    return (*earlier, *made, KeyPut(made=key), *(AclPut(rule=rule) for rule in rules))
