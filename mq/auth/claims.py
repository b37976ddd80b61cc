"""Claims: what a token whose signature, issuer and audience are right says about its caller (SPEC SEC-15).

    {"sub": "reports", "groups": ["analysts"], "nbf": 1700000000, "exp": 1700003600}
        -> principal `reports`, groups `group:analysts`, good between the two times, each a minute wider

The times are compared with the clock of this process, and the provider's clock is another: hence the minute.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from deltamq.mq.auth.credential import Credential
from deltamq.mq.auth.principal import GROUP_PREFIX, check_caller, check_principal
from deltamq.mq.auth_limits import TOKEN_GROUPS_MAX, TOKEN_SKEW_MS
from deltamq.mq.errors import Refused, Unprocessable

#: The times before which a token is not good.
_BEGINNINGS: Final = ("nbf", "iat")
#: A time that is further away is no time; nor is one that is no number.
_SECONDS_MAX: Final = 2**40


def credential_of(
    claims: Mapping[str, object], *, principal_claim: str, groups_claim: str = "", signer: str = ""
) -> Credential:
    """Return what the claims say, whenever that is good; `signer` is the key that signed them.

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
    for one in listed:
        if not isinstance(one, str):
            raise Unprocessable("the token's groups must be texts")
        try:
            named.add(check_principal(GROUP_PREFIX + one))
        except Refused:
            continue
    return tuple(sorted(named))
