"""Tokens of the provider: who they are of (SPEC SEC-15).

    header.claims.signature  ──►  the key that the header names, and an algorithm that it may be used with
                             ──►  signature, issuer, audience: PyJWT
                             ──►  principal, groups, times: mq.auth

The header of a token is what its sender wrote: of all in it only the key's id and the algorithm are looked at, and both
must be ones that the settings and the provider name.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from typing import Any, Final

import jwt
import msgspec

from deltamq.api.auth.credentials import SignerUnknown, not_valid
from deltamq.api.auth.key_times import KeyTimes
from deltamq.api.issuer.keys import IssuerKeys
from deltamq.api.issuer.provider import Provider
from deltamq.mq.auth.callers import Credential, credential_of
from deltamq.mq.errors import Refused
from deltamq.tables.oidc_settings import OidcSettings

_FORM: Final = re.compile(r"([A-Za-z0-9_-]+)\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+", re.ASCII)
#: The times are looked at elsewhere, each time when a token is used, by the clock of the service.
_OPTIONS: Final[Any] = {
    "require": ["exp", "iss", "aud"],
    **dict.fromkeys(("verify_exp", "verify_nbf", "verify_iat", "verify_sub", "verify_jti"), False),
}


class _Header(msgspec.Struct):
    alg: str
    kid: str


class IssuerTokens:
    """The tokens of one provider; used on the event loop."""

    def __init__(self, settings: OidcSettings, *, now_ms: Callable[[], int], times: KeyTimes) -> None:
        """`now_ms` is a clock that nobody sets, for the age of keys.

        Raises
        ------
        ConfigInvalid
            The file `oidc.ca` is not right.
        """
        provider = Provider(settings, within_s=times.read_ms / 1000)
        self._settings = settings
        #: The provider's keys.
        self.keys = IssuerKeys(provider.read, settings.algorithms, now_ms=now_ms, times=times)

    def credential(self, token: str, now_ms: int) -> Credential:
        """Return who a token is of.

        Raises
        ------
        Unauthenticated
            It is not valid; nothing tells why. `SignerUnknown`: its key may be one that was not read yet.
        """
        header = _header_of(token)
        if header is None or header.alg not in self._settings.algorithms:
            raise not_valid()
        signing = self.keys.get(header.kid)
        if signing is None:
            raise SignerUnknown
        key = signing.by_algorithm.get(header.alg)
        if key is None:
            raise not_valid()
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=[header.alg],
                audience=self._settings.audience,
                issuer=self._settings.issuer,
                options=_OPTIONS,
            )
            found = credential_of(
                claims,
                principal_claim=self._settings.principal_claim,
                groups_claim=self._settings.groups_claim,
                signer=signing.thumbprint,
            )
        except (jwt.PyJWTError, Refused, ValueError, TypeError, ArithmeticError, RecursionError):
            raise not_valid() from None
        if not found.is_live(now_ms):
            raise not_valid()
        return found

    def trusts(self, signer: str) -> bool:
        """Whether the provider still has the key that signed a token."""
        return self.keys.has(signer)

    async def read_keys(self) -> None:
        """Read the keys again, or wait for those who do."""
        await self.keys.read()

    def tend(self) -> None:
        """Keep the keys young."""
        self.keys.tend()

    async def stop(self) -> None:
        """End what is under way."""
        await self.keys.stop()


def _header_of(token: str) -> _Header | None:
    """Return the two members of a token's header that are looked at; None if it is no token."""
    parts = _FORM.fullmatch(token)
    if parts is None:
        return None
    try:
        text = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        return msgspec.json.decode(text, type=_Header)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
