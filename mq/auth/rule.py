"""Access rules: what a principal may do, and what it may not (SPEC SEC-2).

    allow  reports  subscribe  on topic   orders.*      prefix: every name that begins with `orders.`
    allow  reports  subscribe  on group   reports       literal
    deny   reports  subscribe  on topic   orders.secret

A pattern is a whole name, or the beginning of names and a `*` at its end. Names have no `*`, so the two cannot be
confused. The cluster has no name: its pattern is `*`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, cast, get_args

from deltamq.mq.auth.principal import check_principal
from deltamq.mq.errors import Refused, Unprocessable
from deltamq.mq.limits import GROUP_LENGTH_MAX, TOPIC_LENGTH_MAX
from deltamq.mq.names import begins_group

Effect = Literal["allow", "deny"]
Resource = Literal["topic", "group", "cluster"]
Verb = Literal["publish", "subscribe", "create", "alter", "reset", "delete", "describe", "admin", "metrics", "audit"]

#: The verbs of each kind of resource.
VERBS: Final[Mapping[Resource, tuple[Verb, ...]]] = {
    "topic": ("publish", "subscribe", "create", "alter", "delete", "describe"),
    "group": ("subscribe", "alter", "reset", "delete", "describe"),
    "cluster": ("admin", "metrics", "audit"),
}
#: A principal that may do one of these may also describe: a producer must see the route, a consumer its progress.
IMPLIED: Final[Mapping[Verb, tuple[Verb, ...]]] = {
    "publish": ("describe",),
    "subscribe": ("describe",),
    "alter": ("describe",),
    "reset": ("describe",),
    "delete": ("describe",),
}
#: The name and the pattern of the cluster.
CLUSTER: Final = "*"
_PATTERN: Final = re.compile(rf"[A-Za-z0-9._%|\-]{{0,{TOPIC_LENGTH_MAX}}}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRule:
    """One rule. `rule_of` makes it."""

    #: Made from all the rest, so that a rule that is put twice is one rule.
    id: str
    principal: str
    effect: Effect
    resource: Resource
    pattern: str
    #: Sorted, each once.
    verbs: tuple[Verb, ...]

    @property
    def prefix(self) -> str | None:
        """The beginning of the names that it is about; None if it is about one name."""
        return self.pattern[:-1] if self.pattern.endswith("*") else None


def rule_of(*, principal: str, effect: str, resource: str, pattern: str, verbs: Iterable[str]) -> AccessRule:
    """Return the rule with these parts; raise `Refused` or `Unprocessable`, which name the part that is wrong."""
    check_principal(principal)
    its_effect = cast(Effect, _one_of("effect", effect, get_args(Effect)))
    its_resource = cast(Resource, _one_of("resource", resource, get_args(Resource)))
    named = {_one_of("verbs", verb, VERBS[its_resource]) for verb in verbs}
    if not named:
        raise Unprocessable(f"verbs: name at least one of {', '.join(VERBS[its_resource])}", field="verbs")
    sorted_verbs = tuple(cast(Verb, verb) for verb in sorted(named))
    _check_pattern(its_resource, pattern)
    parts = "\0".join((principal, its_effect, its_resource, pattern, *sorted_verbs))
    return AccessRule(
        id=hashlib.sha256(parts.encode()).hexdigest()[:16],
        principal=principal,
        effect=its_effect,
        resource=its_resource,
        pattern=pattern,
        verbs=sorted_verbs,
    )


def _one_of(field: str, given: str, choices: tuple[str, ...]) -> str:
    if given not in choices:
        raise Unprocessable(f"{field}: {given!r} is none of {', '.join(choices)}", field=field)
    return given


def _check_pattern(resource: Resource, pattern: str) -> None:
    if resource == "cluster":
        if pattern != CLUSTER:
            raise Unprocessable("pattern: the cluster has no names; leave it out, or give `*`", field="pattern")
        return
    name = pattern.removesuffix("*")
    is_group = resource == "group"
    longest = GROUP_LENGTH_MAX if is_group else TOPIC_LENGTH_MAX
    fits = begins_group(name) if is_group else _PATTERN.fullmatch(name) is not None
    if not pattern or not fits:
        raise Refused(
            f"pattern must be a name of at most {longest} characters, or the beginning of names with a `*` at"
            " its end, for example orders.*",
            code="invalid_pattern",
            field="pattern",
            extra={"limit": longest + 1},
        )
