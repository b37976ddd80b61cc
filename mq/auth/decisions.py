"""Decisions: whether a principal may do something, from its access rules (SPEC SEC-2).

    allowed  =  (what the allowing rules grant, with what that implies)  -  (what any denying rule names)

No rule, no access. The order of rules and the length of their patterns mean nothing: one that denies wins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from deltamq.mq.auth.rule import IMPLIED, VERBS, AccessRule, Resource, Verb
from deltamq.mq.auth_limits import DECISIONS_CACHED_MAX
from deltamq.mq.limits import GROUP_LENGTH_MAX

Verbs = frozenset[Verb]
Groups = tuple[str, ...]

_NONE: Final[Verbs] = frozenset()


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
        found = self._names if prefix is None else self._prefixes.setdefault(len(prefix), {})
        pattern = rule.pattern if prefix is None else prefix
        granted, denied = found.get(pattern, (_NONE, _NONE))
        if rule.effect == "allow":
            implied = (one for verb in rule.verbs for one in IMPLIED.get(verb, ()))
            found[pattern] = granted.union(rule.verbs, implied), denied
        else:
            found[pattern] = granted, denied.union(rule.verbs)

    def on(self, name: str) -> Verbs:
        """Return what is allowed on a name."""
        granted, denied = self._names.get(name, (_NONE, _NONE))
        for length, prefixes in self._prefixes.items():
            found = prefixes.get(name[:length])
            if found is not None:
                granted, denied = granted | found[0], denied | found[1]
        return granted - denied if denied else granted

    def on_all(self, verb: Verb) -> bool:
        """Whether the verb is allowed on every name."""
        everything, _ = self._prefixes.get(0, {}).get("", (_NONE, _NONE))
        patterns = [self._names, *self._prefixes.values()]
        return verb in everything and not any(verb in denied for one in patterns for _, denied in one.values())


_NOTHING: Final = _Grants()


class Decisions:
    """What the rules of one state of the metadata allow; remembers what was asked. For one thread.

    Who asks is a principal, with the groups that its token names: what is granted to any of them is granted, and what
    is denied to any of them is denied.
    """

    def __init__(self, rules: Iterable[AccessRule] = (), *, cached_max: int = DECISIONS_CACHED_MAX) -> None:
        self._rules: dict[tuple[str, Resource], list[AccessRule]] = {}
        for rule in rules:
            self._rules.setdefault((rule.principal, rule.resource), []).append(rule)
        #: Those of principals, and of their groups, that called since the rules changed.
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
        mine = (self._rules.get((one, resource), ()) for one in (principal, *groups) for resource in VERBS)
        return any(rule.effect == "allow" for rules in mine for rule in rules)

    def _of(self, principal: str, groups: Groups, resource: Resource) -> _Grants:
        whose = (principal, groups, resource)
        found = self._grants.get(whose)
        if found is None:
            rules = [rule for one in (principal, *groups) for rule in self._rules.get((one, resource), ())]
            if not rules:
                return _NOTHING
            if len(self._grants) >= self._cached_max:
                self._grants.clear()
            found = self._grants[whose] = _Grants(rules)
        return found
