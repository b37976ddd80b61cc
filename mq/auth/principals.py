"""Principals: who calls, what each may do by access rules, and how much it may ask of one process (SPEC SEC-2, SEC-9).

    allow  reports  subscribe  on topic   orders.*      prefix: every name that begins with `orders.`
    allow  reports  subscribe  on group   reports       literal
    deny   reports  subscribe  on topic   orders.secret

A pattern is a whole name, or the beginning of names and a `*` at its end. Names have no `*`, so the two cannot be
confused. The cluster has no name: its pattern is `*`.

A quota is a balance:

    balance  grows by `rate` a second, up to a second's worth
    request  is admitted while the balance is not below zero, and is then taken from it, whatever its size

So a request larger than a second's worth passes, too, and the next one waits for as long as it was too large.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Final, Literal, cast, get_args

import msgspec
from msgspec import UNSET, UnsetType

from deltamq.mq.errors import Refused, Unprocessable
from deltamq.mq.limits import GROUP_LENGTH_MAX, NOTE_LENGTH_MAX, PRINCIPAL_LENGTH_MAX, QUOTA_MAX, TOPIC_LENGTH_MAX
from deltamq.mq.names import begins_group

#: What a principal's name may be: also an e-mail address, or the subject of a token of an identity provider.
PRINCIPAL_PATTERN: Final = rf"^[A-Za-z0-9._@:+|\-]{{1,{PRINCIPAL_LENGTH_MAX}}}$"
_NAME: Final = re.compile(PRINCIPAL_PATTERN.strip("^$"))
#: How the name of a group of the identity provider begins, where rules name it.
GROUP_PREFIX: Final = "group:"


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """A person or a program that has keys and access."""

    name: str
    #: Whom to ask about it, in the words of an administrator.
    note: str = ""
    created_ms: int
    #: Stored only where there is something in it; see `disabled_since_ms`.
    disabled_ms: int | UnsetType = UNSET

    @property
    def disabled_since_ms(self) -> int | None:
        """Since when it may do nothing, whatever its rules say, in milliseconds since 1970; None if it is enabled."""
        return None if self.disabled_ms is UNSET else self.disabled_ms

    @property
    def is_disabled(self) -> bool:
        """Whether it may do nothing until it is enabled again."""
        return self.disabled_ms is not UNSET


def check_principal(name: str) -> str:
    """Return `name` if it is a legal name of a principal, else raise `Refused`."""
    if _NAME.fullmatch(name) is None or name in (".", ".."):
        raise Refused(
            f"principal must be 1 to {PRINCIPAL_LENGTH_MAX} characters of A-Z a-z 0-9 . _ @ : + | -, not '.' or '..'",
            code="invalid_principal_name",
            field="principal",
            extra={"limit": PRINCIPAL_LENGTH_MAX},
        )
    return name


def is_group(name: str) -> bool:
    """Whether this is a group: rules name it, tokens say which principals are in it, and it calls nothing itself."""
    return name.startswith(GROUP_PREFIX)


def check_caller(name: str) -> str:
    """Return `name` if it may be a caller's: a legal name, and no group."""
    check_principal(name)
    if is_group(name):
        detail = (
            f"principal: {name} is a group, which rules may name, but which calls nothing itself: it has no keys and"
            " no quota of its own, and cannot be disabled"
        )
        raise Unprocessable(detail, field="principal")
    return name


def check_note(note: str) -> str:
    """Return `note` if it may be stored, else raise `Unprocessable`."""
    if len(note) > NOTE_LENGTH_MAX or not note.isprintable():
        detail = f"note must be at most {NOTE_LENGTH_MAX} printable characters"
        raise Unprocessable(detail, field="note", extra={"limit": NOTE_LENGTH_MAX})
    return note


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    """What a principal may use of each process, per second; None is without a bound."""

    principal: str
    requests_per_s: int | None = None
    bytes_in_per_s: int | None = None
    bytes_out_per_s: int | None = None

    @property
    def is_open(self) -> bool:
        """Whether nothing is bounded."""
        return self.requests_per_s is self.bytes_in_per_s is self.bytes_out_per_s is None


def quota_of(
    principal: str,
    *,
    requests_per_s: int | None = None,
    bytes_in_per_s: int | None = None,
    bytes_out_per_s: int | None = None,
) -> Quota:
    """Return the quota with these bounds; raise `Unprocessable`, which names the one that is wrong."""
    bounds = {
        "requests_per_s": requests_per_s,
        "bytes_in_per_s": bytes_in_per_s,
        "bytes_out_per_s": bytes_out_per_s,
    }
    for name, value in bounds.items():
        if value is not None and not 1 <= value <= QUOTA_MAX:
            raise Unprocessable(f"{name}: must be from 1 to {QUOTA_MAX}", field=name, extra={"limit": QUOTA_MAX})
    return Quota(principal=principal, **bounds)


class Bucket:
    """A token bucket."""

    __slots__ = ("_at_ms", "_balance", "rate")

    def __init__(self, rate: int, now_ms: int) -> None:
        """`rate` is the number of tokens a second; the bucket begins full."""
        self.rate = rate
        self._balance = float(rate)
        self._at_ms = now_ms

    def wait_s(self, now_ms: int) -> float:
        """Return the seconds until something may be taken; 0 if it may be now."""
        # A clock that goes back gives nothing, and takes nothing.
        grown = self._balance + max(0, now_ms - self._at_ms) * self.rate / 1_000
        self._balance = min(float(self.rate), grown)
        self._at_ms = max(self._at_ms, now_ms)
        return max(0.0, -self._balance / self.rate)

    def take(self, count: int) -> None:
        """Take tokens, even more than the bucket has."""
        self._balance -= count


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


class AccessRule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule. `rule_of` makes it."""

    #: A digest of the other fields, so that a rule that is put twice is one rule.
    id: str
    principal: str
    effect: Effect
    resource: Resource
    pattern: str
    #: Sorted, each once.
    verbs: tuple[Verb, ...]

    def covers(self, name: str) -> bool:
        """Whether the rule is about this name."""
        return self.pattern == name if self.prefix is None else name.startswith(self.prefix)

    @property
    def prefix(self) -> str | None:
        """The prefix of the names that the rule covers; None if it covers one name."""
        return self.pattern[:-1] if self.pattern.endswith("*") else None


def rule_of(*, principal: str, effect: str, resource: str, pattern: str, verbs: Iterable[str]) -> AccessRule:
    """Return the rule with these parts; raise `Refused` or `Unprocessable`, which name the part that is wrong.

    An empty pattern is the cluster, which has no names, and no topic and no group: who means all of them writes `*`.
    """
    check_principal(principal)
    if not pattern and resource == "cluster":
        pattern = CLUSTER
    checked_effect = cast(Effect, _one_of("effect", effect, get_args(Effect)))
    checked_resource = cast(Resource, _one_of("resource", resource, get_args(Resource)))
    named = {_one_of("verbs", verb, VERBS[checked_resource]) for verb in verbs}
    if not named:
        raise Unprocessable(f"verbs: name at least one of {', '.join(VERBS[checked_resource])}", field="verbs")
    sorted_verbs = tuple(cast(Verb, verb) for verb in sorted(named))
    _check_pattern(checked_resource, pattern)
    parts = "\0".join((principal, checked_effect, checked_resource, pattern, *sorted_verbs))
    return AccessRule(
        id=hashlib.sha256(parts.encode()).hexdigest()[:16],
        principal=principal,
        effect=checked_effect,
        resource=checked_resource,
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
