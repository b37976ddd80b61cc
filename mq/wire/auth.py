"""Answers about who may do what, and what was done: principals, keys, access rules, quotas, the audit."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from deltamq.mq.wire.answers import NamePage, Page, Time


class SignInInfo(msgspec.Struct, frozen=True, kw_only=True):
    """How people sign in to the console at the identity provider; all null if they do not, or it was not read yet.

    It is the code flow with PKCE, as the public client `client_id`, which asks for `scope`, and for `audience` unless
    that is null.
    """

    issuer: str | None = None
    client_id: str | None = None
    scope: str | None = None
    audience: str | None = None
    authorization_endpoint: str | None = None
    token_endpoint: str | None = None
    end_session_endpoint: str | None = None


class KeyInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A key without its secret. One that is over is not `live`."""

    key_id: str
    principal: str
    created_time: Time
    until_time: Time | None = None
    live: bool = True


class NewKey(KeyInfo, frozen=True, kw_only=True):
    """A new key. `key` is what the principal sends as `Authorization: Bearer`; it is shown here and never again."""

    key: str

    def __repr__(self) -> str:
        return f"NewKey(key_id={self.key_id!r}, principal={self.principal!r})"


class PasswordInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A password, which a client of Kafka has set: it is proved by this mechanism of SCRAM, to the Kafka port alone."""

    mechanism: str
    iterations: int
    created_time: Time


class KeyList(Page, frozen=True, kw_only=True):
    """Keys by id; `next` is given if more follow: send it as `after` to get them."""

    keys: list[KeyInfo]
    next: str | None = None


class AclInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An access rule: any that denies wins, and nothing is allowed that is not granted."""

    acl_id: str
    principal: str
    effect: str
    resource: str
    pattern: str
    verbs: list[str]
    #: How many topics or groups the pattern covers now, and the first of them.
    matches: int = 0
    matched: list[str] = []


class Explained(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a principal may do something, and by which rules: those that deny it, else those that allow it.

    Without a rule it may not; nor if it is disabled since `disabled_time`.
    """

    principal: str
    resource: str
    name: str
    verb: str
    allowed: bool
    rules: list[AclInfo]
    disabled_time: Time | None = None


class AclList(Page, frozen=True, kw_only=True):
    """Access rules by id; `next` is given if more follow: send it as `after` to get them."""

    acls: list[AclInfo]
    next: str | None = None


class Allowed(msgspec.Struct, frozen=True, kw_only=True):
    """The verbs that the caller may do on the cluster, and on the topic and group that were named, or on all of them.

    `principal` is the caller; null without authentication, when everybody may do everything.
    """

    principal: str | None
    cluster: tuple[str, ...]
    topic: tuple[str, ...]
    group: tuple[str, ...]


class QuotaInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a principal may use of each process, per second; null is without a bound."""

    principal: str
    requests_per_s: int | None = None
    bytes_in_per_s: int | None = None
    bytes_out_per_s: int | None = None


class QuotaList(Page, frozen=True, kw_only=True):
    """Quotas by principal; `next` is given if more follow: send it as `after` to get them."""

    quotas: list[QuotaInfo]
    next: str | None = None


class PrincipalInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A principal with its keys, passwords and access rules. While it is disabled, it may do nothing.

    `disabled_time` is since when; null if it is not.
    """

    principal: str
    note: str
    created_time: Time
    disabled_time: Time | None = None
    keys: list[KeyInfo]
    passwords: list[PasswordInfo] = []
    acls: list[AclInfo]


class PrincipalList(NamePage, frozen=True, kw_only=True, omit_defaults=True):
    """Names of principals, sorted, and those of them that are `disabled`.

    `next` is given if more follow: send it as `after` to get them.
    """

    principals: list[str]
    disabled: list[str]


class ActInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An administrative act: who did what, from where, and what became of it.

    `address` is the host and port from which it was asked for, `process` the id of the process that carried it out.
    `refused` is the caller's fault, and nothing was done; `failed` an error of the service, without a change of the
    metadata; `unknown` may have been done, in whole or in part, or is still under way. `status` is that of the answer,
    `code` and `detail` are those of its problem. `before` and `after` are the states of what it changed in the
    metadata, null for no change.
    """

    id: str
    time: Time
    principal: str
    address: str
    process: str
    call: str
    resource: str
    name: str
    asked: Any = None
    outcome: Literal["done", "refused", "failed", "unknown"]
    status: int | None = None
    code: str | None = None
    detail: str | None = None
    before: Any = None
    after: Any = None


class ActList(Page, frozen=True, kw_only=True):
    """Acts, the oldest first; `next` is given if more follow: send it as `after` to get them."""

    acts: list[ActInfo]
    next: int | None = None


class RefusalInfo(msgspec.Struct, frozen=True, kw_only=True):
    """How often a principal was refused a call in a minute, by one process; `address` is where the last came from."""

    minute: Time
    principal: str
    call: str
    status: int
    code: str
    count: int
    address: str
    process: str


class RefusalList(Page, frozen=True, kw_only=True):
    """Refusals by minute, the oldest first; `next` is given if more follow: send it as `after` to get them."""

    refusals: list[RefusalInfo]
    next: int | None = None
