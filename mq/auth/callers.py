"""Callers: their credentials, whose these are and when, and what a principal may do (SPEC SEC-1, SEC-2, SEC-15).

    key            its principal        while the key is known, until its own end
    password       its principal        while it is the principal's for its mechanism
    token          its principal        while there is this principal, from and until the times in the token
                   and its groups
    certificate    its principal        while there is this principal

    allowed  =  (what the allowing rules grant, with what that implies)  -  (what any denying rule names)

No rule, no access. The order of rules and the length of their patterns mean nothing: one that denies wins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from deltamq.mq.auth.keys import Key, Password
from deltamq.mq.auth.principals import (
    GROUP_PREFIX,
    IMPLIED,
    VERBS,
    AccessRule,
    Resource,
    Verb,
    check_caller,
    check_principal,
)
from deltamq.mq.auth.state import AuthState
from deltamq.mq.errors import Refused, Unprocessable
from deltamq.mq.limits import DECISIONS_CACHED_MAX, GROUP_LENGTH_MAX, TOKEN_GROUPS_MAX, TOKEN_SKEW_MS


class Credential(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller has shown, after it was checked."""

    principal: str
    #: The groups that a token names, as the principals that rules know (`group:NAME`): sorted, each once.
    groups: tuple[str, ...] = ()
    #: When it begins, in milliseconds since 1970; None if it always was.
    from_ms: int | None = None
    #: When it ends; None if that is not known before.
    until_ms: int | None = None
    #: The key; None for a password, a token or a certificate.
    key: Key | None = None
    #: The password, which only SCRAM proves.
    password: Password | None = None
    #: What signed the token; empty for a key or a certificate.
    signer: str = ""

    @property
    def is_timed(self) -> bool:
        """Whether it begins or ends at a known time."""
        return self.until_ms is not None or self.from_ms is not None

    def is_live(self, now_ms: int) -> bool:
        """Whether it has begun and has not ended."""
        return (self.until_ms is None or now_ms < self.until_ms) and (self.from_ms is None or now_ms >= self.from_ms)

    def is_good(self, state: AuthState, now_ms: int) -> bool:
        """Whether it still identifies the caller: it was not revoked, and its time is not over.

        A disabled principal (`AuthState.is_disabled`) is still identified.
        """
        if self.key is not None:
            return state.keys.get(self.key.id) == self.key and self.is_live(now_ms)
        if self.password is not None and state.password(self.principal, self.password.mechanism) != self.password:
            return False
        return self.principal in state.principals and self.is_live(now_ms)


#: The times before which a token is not good.
_BEGINNINGS: Final = ("nbf", "iat")
#: A time that is further away is no time; nor is one that is no number.
_SECONDS_MAX: Final = 2**40


def credential_of(
    claims: Mapping[str, object], *, principal_claim: str, groups_claim: str = "", signer: str = ""
) -> Credential:
    """Return the credential of a token whose signature, issuer and audience are valid (SPEC SEC-15).

        {"sub": "reports", "groups": ["analysts"], "nbf": 1700000000, "exp": 1700003600}
            -> principal `reports`, groups `group:analysts`, good between the two times, each a minute wider

    The times are compared with the clock of this process, and the provider's clock is another: hence the minute.
    `signer` is the key that signed them.

    Groups with names that no rule can have are left out. Raises `Refused` for claims of a wrong type, for a principal
    without a legal name, for one that is called like a group, and for more groups than are looked at: a rule that
    denies one of them must not be missed.
    """
    name = claims.get(principal_claim)
    if not isinstance(name, str):
        raise Unprocessable(f"the token has no text in {principal_claim}", field=principal_claim)
    begins = [moment for claim in _BEGINNINGS if (moment := _moment_ms(claims, claim)) is not None]
    ends = _moment_ms(claims, "exp")
    if ends is None:
        raise Unprocessable("the token never expires", field="exp")
    return Credential(
        principal=check_caller(name),
        groups=_groups(claims.get(groups_claim)) if groups_claim else (),
        from_ms=max(begins) - TOKEN_SKEW_MS if begins else None,
        until_ms=ends + TOKEN_SKEW_MS,
        signer=signer,
    )


def _moment_ms(claims: Mapping[str, object], claim: str) -> int | None:
    """Return a time in milliseconds since 1970, which tokens have in seconds; None without it."""
    value = claims.get(claim)
    if value is None and claim not in claims:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -_SECONDS_MAX <= value <= _SECONDS_MAX:
        raise Unprocessable(f"the token's {claim} is no time", field=claim)
    return int(value * 1000)


def _groups(value: object) -> tuple[str, ...]:
    """Return the groups as principals; the claim is a text, a list of texts, or missing."""
    listed = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or len(listed) > TOKEN_GROUPS_MAX:
        raise Unprocessable(f"the token's groups must be a list of at most {TOKEN_GROUPS_MAX} texts")
    named = set()
    for group in listed:
        if not isinstance(group, str):
            raise Unprocessable("the token's groups must be texts")
        try:
            named.add(check_principal(GROUP_PREFIX + group))
        except Refused:
            continue
    return tuple(sorted(named))


Verbs = frozenset[Verb]
Groups = tuple[str, ...]

_NO_VERBS: Final[Verbs] = frozenset()


class _Grants:
    """One principal's rules about one kind of resource, so that looking a name up does not visit each of them."""

    def __init__(self, rules: Iterable[AccessRule] = ()) -> None:
        #: What is granted and what is denied, by whole name.
        self._names: dict[str, tuple[Verbs, Verbs]] = {}
        #: The same by the beginning of names, by its length.
        self._prefixes: dict[int, dict[str, tuple[Verbs, Verbs]]] = {}
        for rule in rules:
            self._add(rule)

    def _add(self, rule: AccessRule) -> None:
        prefix = rule.prefix
        patterns = self._names if prefix is None else self._prefixes.setdefault(len(prefix), {})
        pattern = rule.pattern if prefix is None else prefix
        granted, denied = patterns.get(pattern, (_NO_VERBS, _NO_VERBS))
        if rule.effect == "allow":
            implied = (implied_verb for verb in rule.verbs for implied_verb in IMPLIED.get(verb, ()))
            patterns[pattern] = granted.union(rule.verbs, implied), denied
        else:
            patterns[pattern] = granted, denied.union(rule.verbs)

    def on(self, name: str) -> Verbs:
        """Return what is allowed on a name."""
        granted, denied = self._names.get(name, (_NO_VERBS, _NO_VERBS))
        for length, prefixes in self._prefixes.items():
            verbs = prefixes.get(name[:length])
            if verbs is not None:
                granted, denied = granted | verbs[0], denied | verbs[1]
        return granted - denied if denied else granted

    def on_all(self, verb: Verb) -> bool:
        """Whether the verb is allowed on every name."""
        everything, _ = self._prefixes.get(0, {}).get("", (_NO_VERBS, _NO_VERBS))
        patterns = [self._names, *self._prefixes.values()]
        return verb in everything and not any(verb in denied for names in patterns for _, denied in names.values())


_NOTHING: Final = _Grants()


def deciding(
    rules: Iterable[AccessRule], principal: str, resource: Resource, name: str, verb: Verb, groups: Groups = ()
) -> list[AccessRule]:
    """Return the rules by which a principal may do this or may not: all that deny it, else all that allow it."""
    mine = [
        rule
        for rule in rules
        if rule.principal in (principal, *groups) and rule.resource == resource and rule.covers(name)
    ]
    denying = [rule for rule in mine if rule.effect == "deny" and verb in rule.verbs]
    implying = {verb, *(other for other, implied in IMPLIED.items() if verb in implied)}
    return denying or [rule for rule in mine if rule.effect == "allow" and implying.intersection(rule.verbs)]


class Decisions:
    """What the rules of one state of the metadata allow; remembers what was asked. For one thread.

    A caller is a principal with the groups that its token names: a grant to any of them counts, and so does a denial.
    """

    def __init__(self, rules: Iterable[AccessRule] = (), *, cached_max: int = DECISIONS_CACHED_MAX) -> None:
        self._rules: dict[tuple[str, Resource], list[AccessRule]] = {}
        for rule in rules:
            self._rules.setdefault((rule.principal, rule.resource), []).append(rule)
        #: The grants of the principals, with their groups, that called since the rules changed.
        self._grants: dict[tuple[str, Groups, Resource], _Grants] = {}
        self._cached: dict[tuple[str, Groups, Resource, str], Verbs] = {}
        self._cached_max = cached_max

    def allows(self, principal: str, resource: Resource, name: str, verb: Verb, groups: Groups = ()) -> bool:
        """Whether a principal may do this to the topic or group of this name, or to the cluster (`CLUSTER`)."""
        if len(name) > GROUP_LENGTH_MAX:  # nothing has such a name, and it would be remembered
            return False
        asked = (principal, groups, resource, name)
        verbs = self._cached.get(asked)
        if verbs is None:
            if len(self._cached) >= self._cached_max:
                self._cached.clear()
            verbs = self._cached[asked] = self._of(principal, groups, resource).on(name)
        return verb in verbs

    def filter(
        self, principal: str, resource: Resource, verb: Verb, groups: Groups = ()
    ) -> Callable[[str], bool] | None:
        """Return a function that says of a name whether the verb is allowed; None if it is on all names."""
        grants = self._of(principal, groups, resource)
        return None if grants.on_all(verb) else lambda name: verb in grants.on(name)

    def has_grants(self, principal: str, groups: Groups = ()) -> bool:
        """Whether any rule allows the principal anything."""
        mine = (self._rules.get((name, resource), ()) for name in (principal, *groups) for resource in VERBS)
        return any(rule.effect == "allow" for rules in mine for rule in rules)

    def _of(self, principal: str, groups: Groups, resource: Resource) -> _Grants:
        whose = (principal, groups, resource)
        grants = self._grants.get(whose)
        if grants is None:
            rules = [rule for name in (principal, *groups) for rule in self._rules.get((name, resource), ())]
            if not rules:
                return _NOTHING
            if len(self._grants) >= self._cached_max:
                self._grants.clear()
            grants = self._grants[whose] = _Grants(rules)
        return grants
