"""Principals, keys, passwords and access rules as a fold of events in the metadata log (SPEC SEC-3).

A state is never modified. So its mappings are copied once, when changes begin (`Holdings`), and no event visits keys or
rules of other principals.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from deltamq.mq.auth.client_quotas import ClientQuota, Entity
from deltamq.mq.auth.keys import Key, Password
from deltamq.mq.auth.principals import AccessRule, Principal, Quota
from deltamq.mq.errors import NotFound
from deltamq.mq.stored_json import Form, forms_of


class Holding(Protocol):
    """What a principal has: a key or an access rule."""

    @property
    def id(self) -> str: ...

    @property
    def principal(self) -> str: ...


H = TypeVar("H", bound=Holding)
W = TypeVar("W")
Q = TypeVar("Q", Quota, ClientQuota)


def by_principal(owned: Iterable[H]) -> dict[str, dict[str, H]]:
    """Return what each principal has, by id, in the given order."""
    holdings: dict[str, dict[str, H]] = {}
    for holding in owned:
        holdings.setdefault(holding.principal, {})[holding.id] = holding
    return holdings


class Holdings(Generic[H]):
    """Keys or access rules that are being changed.

        by_id          {id: holding}
        by_principal   {principal: {id: holding}}    the same holdings; a principal without any has no entry

    The outer mappings are copied once, when the changes begin, and a principal's mapping when it is first changed: the
    time of a fold grows only with its events.
    """

    def __init__(self, by_id: Mapping[str, H], by_principal: Mapping[str, Mapping[str, H]]) -> None:
        """Begin with the mappings of a state, which are not modified."""
        self.by_id = dict(by_id)
        self.by_principal = dict(by_principal)
        #: The mappings of principals that were changed: our own copies.
        self._copies: dict[str, dict[str, H]] = {}

    def of(self, principal: str) -> list[H]:
        """Return what a principal has now."""
        return list(self.by_principal.get(principal, {}).values())

    def put(self, holding: H) -> None:
        """Add a holding, or replace the one with its id."""
        before = self.by_id.get(holding.id)
        if before is not None and before.principal != holding.principal:
            self.remove(holding.id)
        self.by_id[holding.id] = holding
        self._mine(holding.principal)[holding.id] = holding

    def remove(self, id_: str) -> None:
        """Remove the holding with this id, if there is one."""
        holding = self.by_id.pop(id_, None)
        if holding is None:
            return
        mine = self._mine(holding.principal)
        del mine[id_]
        if not mine:
            self._forget(holding.principal)

    def remove_all_of(self, principal: str) -> None:
        """Remove all that a principal has."""
        for holding in self.of(principal):
            del self.by_id[holding.id]
        self._forget(principal)

    def _mine(self, principal: str) -> dict[str, H]:
        """Return a principal's mapping, which may be modified."""
        mine = self._copies.get(principal)
        if mine is None:
            mine = self._copies[principal] = dict(self.by_principal.get(principal, {}))
            self.by_principal[principal] = mine
        return mine

    def _forget(self, principal: str) -> None:
        self.by_principal.pop(principal, None)
        self._copies.pop(principal, None)


class PrincipalPut(msgspec.Struct, frozen=True, kw_only=True):
    """A principal was made, or its note changed."""

    kind: ClassVar[str] = "principal_put"
    principal: Principal

    @property
    def key(self) -> str:
        return f"auth/{self.principal.name}"


class PrincipalRemoved(msgspec.Struct, frozen=True, kw_only=True):
    """A principal was removed, with its keys and rules."""

    kind: ClassVar[str] = "principal_removed"
    name: str

    @property
    def key(self) -> str:
        return f"auth/{self.name}"


class PrincipalDisabled(msgspec.Struct, frozen=True, kw_only=True):
    """A principal may do nothing until it is enabled; its keys and rules stay."""

    kind: ClassVar[str] = "principal_disabled"
    name: str
    at_ms: int

    @property
    def key(self) -> str:
        return f"auth/{self.name}"


class PrincipalEnabled(msgspec.Struct, frozen=True, kw_only=True):
    """A principal that was disabled may do again what its rules grant."""

    kind: ClassVar[str] = "principal_enabled"
    name: str

    @property
    def key(self) -> str:
        return f"auth/{self.name}"


class KeyPut(msgspec.Struct, frozen=True, kw_only=True):
    """A principal got a key. Its keys that had ended when this one was made are forgotten."""

    kind: ClassVar[str] = "key_put"
    made: Key

    @property
    def key(self) -> str:
        return f"auth/{self.made.principal}"


class KeyRevoked(msgspec.Struct, frozen=True, kw_only=True):
    """A key was revoked."""

    kind: ClassVar[str] = "key_revoked"
    id: str
    principal: str

    @property
    def key(self) -> str:
        return f"auth/{self.principal}"


class PasswordPut(msgspec.Struct, frozen=True, kw_only=True):
    """A principal got a password for a mechanism, in place of the one that it had."""

    kind: ClassVar[str] = "password_put"
    password: Password

    @property
    def key(self) -> str:
        return f"auth/{self.password.principal}"


class PasswordRemoved(msgspec.Struct, frozen=True, kw_only=True):
    """A principal's password for a mechanism was removed."""

    kind: ClassVar[str] = "password_removed"
    principal: str
    mechanism: str

    @property
    def key(self) -> str:
        return f"auth/{self.principal}"


class AclPut(msgspec.Struct, frozen=True, kw_only=True):
    """An access rule was put."""

    kind: ClassVar[str] = "acl_put"
    rule: AccessRule

    @property
    def key(self) -> str:
        return f"auth/{self.rule.principal}"


class AclRemoved(msgspec.Struct, frozen=True, kw_only=True):
    """An access rule was removed."""

    kind: ClassVar[str] = "acl_removed"
    id: str
    principal: str

    @property
    def key(self) -> str:
        return f"auth/{self.principal}"


class QuotaPut(msgspec.Struct, frozen=True, kw_only=True):
    """The quota of a principal was set; one that bounds nothing is forgotten."""

    kind: ClassVar[str] = "quota_put"
    quota: Quota

    @property
    def key(self) -> str:
        return f"auth/{self.quota.principal}"


class ClientQuotaPut(msgspec.Struct, frozen=True, kw_only=True):
    """A quota of Kafka's clients was set; one that bounds nothing is forgotten."""

    kind: ClassVar[str] = "client_quota_put"
    quota: ClientQuota

    @property
    def key(self) -> str:
        return f"quota/{self.quota.whose}"


AuthEvent = (
    PrincipalPut
    | PrincipalRemoved
    | PrincipalDisabled
    | PrincipalEnabled
    | KeyPut
    | KeyRevoked
    | PasswordPut
    | PasswordRemoved
    | AclPut
    | AclRemoved
    | QuotaPut
    | ClientQuotaPut
)

#: The stored form of each kind of event.
AUTH_EVENTS: Final[Mapping[str, Form[Any]]] = forms_of(
    PrincipalPut,
    PrincipalRemoved,
    PrincipalDisabled,
    PrincipalEnabled,
    KeyPut,
    KeyRevoked,
    PasswordPut,
    PasswordRemoved,
    AclPut,
    AclRemoved,
    QuotaPut,
    ClientQuotaPut,
)


class AuthState(msgspec.Struct, frozen=True):
    """All principals, and what each may do. Immutable: `apply_all` returns the next one."""

    #: By name; never modified.
    principals: Mapping[str, Principal] = msgspec.field(default_factory=dict)
    #: By id; never modified.
    keys: Mapping[str, Key] = msgspec.field(default_factory=dict)
    #: By id; never modified.
    rules: Mapping[str, AccessRule] = msgspec.field(default_factory=dict)
    #: By principal; never modified.
    quotas: Mapping[str, Quota] = msgspec.field(default_factory=dict)
    #: By user, then by mechanism; never modified. A user without any has no entry. All are of principals, but for a
    #: warehouse that is not guarded yet: it has no principals.
    passwords: Mapping[str, Mapping[str, Password]] = msgspec.field(default_factory=dict)
    #: By entity; never modified.
    client_quotas: Mapping[Entity, ClientQuota] = msgspec.field(default_factory=dict)
    # The keys and the rules of each principal, by id; never modified. They follow from the above.
    _keys_of: Mapping[str, Mapping[str, Key]] = msgspec.field(default_factory=dict)
    _rules_of: Mapping[str, Mapping[str, AccessRule]] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        # Made from a snapshot, the two derived maps are missing: build them here.
        if self.keys and not self._keys_of:
            msgspec.structs.force_setattr(self, "_keys_of", by_principal(self.keys.values()))
        if self.rules and not self._rules_of:
            msgspec.structs.force_setattr(self, "_rules_of", by_principal(self.rules.values()))

    def apply_all(self, events: Iterable[AuthEvent]) -> AuthState:
        """Return the state after `events`."""
        principals, quotas, passwords = dict(self.principals), dict(self.quotas), dict(self.passwords)
        client_quotas = dict(self.client_quotas)
        keys, rules = Holdings(self.keys, self._keys_of), Holdings(self.rules, self._rules_of)
        for event in events:
            match event:
                case PrincipalPut():
                    principals[event.principal.name] = event.principal
                case PrincipalRemoved():
                    principals.pop(event.name, None)
                    quotas.pop(event.name, None)
                    client_quotas = {whose: one for whose, one in client_quotas.items() if one.user != event.name}
                    passwords.pop(event.name, None)
                    keys.remove_all_of(event.name)
                    rules.remove_all_of(event.name)
                case PrincipalDisabled() | PrincipalEnabled():
                    _switch(principals, event)
                case KeyPut():
                    _put_key(keys, event.made)
                case KeyRevoked():
                    keys.remove(event.id)
                case PasswordPut() | PasswordRemoved():
                    _change_password(passwords, event)
                case AclPut():
                    rules.put(event.rule)
                case AclRemoved():
                    rules.remove(event.id)
                case QuotaPut():
                    _put_quota(quotas, event.quota.principal, event.quota)
                case ClientQuotaPut():
                    _put_quota(client_quotas, event.quota.entity, event.quota)
        return AuthState(
            principals,
            keys.by_id,
            rules.by_id,
            quotas,
            passwords,
            client_quotas,
            keys.by_principal,
            rules.by_principal,
        )

    def principal(self, name: str) -> Principal:
        """Return the principal, or raise `NotFound`."""
        principal = self.principals.get(name)
        if principal is None:
            raise NotFound(f"there is no principal {name}", code="principal_not_found", field="principal")
        return principal

    def is_disabled(self, name: str) -> bool:
        """Whether there is this principal, and it may do nothing now."""
        principal = self.principals.get(name)
        return principal is not None and principal.is_disabled

    def keys_of(self, principal: str) -> list[Key]:
        """Return the keys of a principal, ended ones too, the oldest first."""
        keys = self._keys_of.get(principal, {}).values()
        return sorted(keys, key=lambda key: (key.created_ms, key.id))

    def password(self, principal: str, mechanism: str) -> Password | None:
        """Return a principal's password for a mechanism; None if it has none."""
        return self.passwords.get(principal, {}).get(mechanism)

    def rules_of(self, principal: str) -> list[AccessRule]:
        """Return the rules of a principal."""
        return list(self._rules_of.get(principal, {}).values())


def _switch(principals: dict[str, Principal], event: PrincipalDisabled | PrincipalEnabled) -> None:
    principal = principals.get(event.name)
    if principal is not None:
        since_ms = event.at_ms if isinstance(event, PrincipalDisabled) else UNSET
        principals[event.name] = replace(principal, disabled_ms=since_ms)


def _put_key(keys: Holdings[Key], made: Key) -> None:
    for key in keys.of(made.principal):
        if not key.is_live(made.created_ms):
            keys.remove(key.id)
    keys.put(made)


def _change_password(passwords: dict[str, Mapping[str, Password]], event: PasswordPut | PasswordRemoved) -> None:
    whose = event.password if isinstance(event, PasswordPut) else event
    others = {name: one for name, one in passwords.pop(whose.principal, {}).items() if name != whose.mechanism}
    if isinstance(event, PasswordPut):
        passwords[whose.principal] = {**others, whose.mechanism: event.password}
    elif others:
        passwords[whose.principal] = others


def _put_quota(quotas: dict[W, Q], whose: W, quota: Q) -> None:
    quotas.pop(whose, None)
    if not quota.is_open:
        quotas[whose] = quota
