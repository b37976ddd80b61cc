"""Calls about the quotas of users and clients (SPEC KAFKA-28).

    producer_byte_rate    bytes in, of what is produced      consumer_byte_rate    bytes out, of what is fetched

For one user alone they are the bounds of its principal's quota, which counts all calls.

Kafka's other keys, and quotas of addresses, bound nothing here, so they are refused. To remove what is not there is no
fault: Strimzi's operator removes all keys that it does not set.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from deltamq.api.audit.audit import Audit
from deltamq.api.host.hosted_meta import HostedMeta
from deltamq.api.host.owners import Owners
from deltamq.api.kafka.access.needs import Asker, recorded
from deltamq.api.kafka.messages.errors import ErrorCode, error_code_of
from deltamq.api.kafka.messages.user_messages import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlteredQuota,
    AlteringQuota,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribedQuota,
    QuotaChange,
    QuotaEntity,
    QuotaFilter,
    QuotaValue,
)
from deltamq.api.principals.auth_changes import AuthChanges
from deltamq.mq.auth.changes import decide_change_quota
from deltamq.mq.auth.client_quotas import DEFAULT, ClientQuota
from deltamq.mq.auth.principals import Quota
from deltamq.mq.auth.state import AuthEvent, AuthState
from deltamq.mq.errors import DeltaMQError, Unprocessable
from deltamq.mq.limits import QUOTA_MAX
from deltamq.mq.meta.features import CLIENT_QUOTAS

_USER: Final = "user"
_CLIENT_ID: Final = "client-id"
_IP: Final = "ip"
#: The bound that each key sets.
_KEYS: Final = {"producer_byte_rate": "bytes_in_per_s", "consumer_byte_rate": "bytes_out_per_s"}
#: Kafka's numbers for how a filter matches a name.
_EXACT, _DEFAULT, _ANY = range(3)
#: How far from a whole number a rate may be, as in Kafka.
_FRACTION_MAX: Final = 1e-6

#: The name of each type of an entity; None is the default.
_Names: TypeAlias = Mapping[str, str | None]


class ClientQuotaCalls:
    """The calls about quotas; used on the event loop."""

    def __init__(self, meta: HostedMeta, owners: Owners, audit: Audit | None) -> None:
        self._meta = meta
        self._owners = owners
        self._audit = audit

    def described(self, request: DescribeClientQuotasRequest, asker: Asker) -> DescribeClientQuotasResponse:
        """Return the quotas whose entities fit the filter, those of principals among them."""
        try:
            asker.check(DescribeClientQuotasRequest)
            wanted = _checked_filter(request.components)
        except DeltaMQError as error:
            code, detail = error_code_of(error), error.detail
            return DescribeClientQuotasResponse(error_code=code, error_message=detail, entries=None)
        entries = [
            DescribedQuota([QuotaEntity(*pair) for pair in names.items()], values)
            for names, values in _all_quotas(self._meta.now.auth)
            if _fits(names, wanted, is_strict=request.strict)
        ]
        return DescribeClientQuotasResponse(entries=entries)

    async def altered(self, request: AlterClientQuotasRequest, asker: Asker) -> AlterClientQuotasResponse:
        """Set and remove bounds, entity by entity; each entity's are changed together or not at all."""
        counts = Counter(_identity(entry) for entry in request.entries)
        once = {_identity(entry): entry for entry in request.entries}
        answers = [
            await self._altered(entry, counts[identity], asker, validate_only=request.validate_only)
            for identity, entry in once.items()
        ]
        return AlterClientQuotasResponse(entries=answers)

    async def _altered(self, entry: AlteringQuota, count: int, asker: Asker, *, validate_only: bool) -> AlteredQuota:
        try:
            asker.check(AlterClientQuotasRequest)
            if count > 1:
                raise Unprocessable("each entity may be in the request once")
            whose, changes = _whose(entry.entity), _changes(entry.changes)

            def decide(state: AuthState) -> Sequence[AuthEvent]:
                return decide_change_quota(state, whose, changes)

            if validate_only:
                decide(self._meta.now.auth)
            else:
                is_of_clients = any(changes.values()) and not whose.is_principals
                async with recorded(self._audit, asker, "quota", whose.whose, changes):
                    changes_of = AuthChanges(self._meta, self._owners, asker.caller, asker.to_others)
                    await changes_of.store(decide, uses=CLIENT_QUOTAS if is_of_clients else None)
        except DeltaMQError as error:
            return AlteredQuota(error_code_of(error), error.detail, entry.entity)
        return AlteredQuota(ErrorCode.NONE, None, entry.entity)


def _identity(entry: AlteringQuota) -> frozenset[tuple[str, str | None]]:
    return frozenset((one.entity_type, one.entity_name) for one in entry.entity)


# What is asked.


def _whose(entity: Sequence[QuotaEntity]) -> ClientQuota:
    """Return an entity's quota without bounds; raise `Unprocessable` if it is none that can have one."""
    names: dict[str, str] = {}
    for one in entity:
        kind, name = one.entity_type, one.entity_name
        if kind == _IP:
            raise Unprocessable("ip: connection_creation_rate is not enforced here, so addresses have no quotas")
        if kind not in (_USER, _CLIENT_ID):
            raise Unprocessable(f"{kind!r} is none of {_USER}, {_CLIENT_ID}")
        if kind in names:
            raise Unprocessable(f"{kind} may be in an entity once")
        if name == "":
            raise Unprocessable(f"{kind}: an empty name is none; the default has null")
        names[kind] = DEFAULT if name is None else name
    if not names:
        raise Unprocessable("whose quota? The entity is empty")
    return ClientQuota(user=names.get(_USER), client_id=names.get(_CLIENT_ID))


def _changes(asked: Sequence[QuotaChange]) -> dict[str, int | None]:
    """Return the bounds that change, None for one that is removed; raise `Unprocessable`, which names the wrong key."""
    keys = Counter(change.key for change in asked)
    twice = next((key for key, count in keys.items() if count > 1), None)
    if twice is not None:
        raise Unprocessable(f"{twice} may be in an entry once")
    changes: dict[str, int | None] = {}
    for change in asked:
        if change.key in _KEYS:
            changes[_KEYS[change.key]] = None if change.remove else _rate(change.key, change.value)
        elif not change.remove:
            raise Unprocessable(f"{change.key} is not enforced here, so it cannot be set: there are {', '.join(_KEYS)}")
    return changes


def _rate(key: str, value: float) -> int:
    if not math.isfinite(value) or not 1 <= round(value) <= QUOTA_MAX or abs(value - round(value)) > _FRACTION_MAX:
        raise Unprocessable(f"{key}: must be a whole number of bytes a second from 1 to {QUOTA_MAX}")
    return round(value)


# What there is.


def _all_quotas(state: AuthState) -> Iterator[tuple[_Names, list[QuotaValue]]]:
    """Yield the names of each entity that has bounds, and these."""
    for principal, of_principal in state.quotas.items():
        if values := _values(of_principal):
            yield {_USER: principal}, values
    for quota in state.client_quotas.values():
        entity = ((_USER, quota.user), (_CLIENT_ID, quota.client_id))
        yield {kind: name or None for kind, name in entity if name is not None}, _values(quota)


def _values(quota: Quota | ClientQuota) -> list[QuotaValue]:
    bounds = {key: getattr(quota, bound) for key, bound in _KEYS.items()}
    return [QuotaValue(key, float(bound)) for key, bound in bounds.items() if bound is not None]


def _checked_filter(components: Sequence[QuotaFilter]) -> Mapping[str, QuotaFilter]:
    """Return the filter of each type of an entity; raise `Unprocessable` if it is none."""
    wanted: dict[str, QuotaFilter] = {}
    for one in components:
        if not one.entity_type:
            raise Unprocessable("an entity's type is empty")
        if one.entity_type not in (_USER, _CLIENT_ID, _IP):
            raise Unprocessable(f"there is no entity of type {one.entity_type}", code="resource_type_unknown")
        if one.entity_type in wanted:
            raise Unprocessable(f"{one.entity_type} may be in a filter once")
        if one.match_type not in (_EXACT, _DEFAULT, _ANY):
            raise Unprocessable(f"there is no match of type {one.match_type}")
        if (one.match is None) == (one.match_type == _EXACT):
            raise Unprocessable(f"{one.entity_type}: an exact match has a name, and no other match has one")
        wanted[one.entity_type] = one
    if _IP in wanted and len(wanted) > 1:
        raise Unprocessable("ip does not go together with other types")
    return wanted


def _fits(names: _Names, wanted: Mapping[str, QuotaFilter], *, is_strict: bool) -> bool:
    if is_strict and len(names) != len(wanted):
        return False
    return all(
        kind in names and (one.match_type == _ANY or names[kind] == one.match)  # null is the default's name
        for kind, one in wanted.items()
    )
