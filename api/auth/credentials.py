"""From a key or token to its principal: one place for HTTP, and for every other protocol (SPEC SEC-1).

    mqk_<id>_<secret>    a key        the metadata has its SHA-256
    anything else        a token      `tokens` knows the keys of the identity provider that signs them

Nothing is remembered here. Callers may keep a credential for as long as its `is_good` is true.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from deltamq.mq.auth.callers import Credential
from deltamq.mq.auth.keys import Key, Password, is_right, key_id_of
from deltamq.mq.auth.state import AuthState
from deltamq.mq.errors import Forbidden, Unauthenticated

_NOT_VALID: Final = "the key or token is not valid: unknown, revoked or expired"


class SignerUnknown(Unauthenticated):
    """The token's signing key is not known here; it may be after the provider's keys were read again.

    To the caller it looks like any other token that is not valid.
    """

    def __init__(self, detail: str = _NOT_VALID) -> None:
        super().__init__(detail, field="Authorization")


class Tokens(Protocol):
    """Tokens of an identity provider."""

    def credential(self, token: str, now_ms: int) -> Credential:
        """Return the credential that a token proves; raise `Unauthenticated`, or `SignerUnknown`."""

    def trusts(self, signer: str) -> bool:
        """Whether the provider still has the key that signed a token."""

    async def read_keys(self) -> None:
        """Read the provider's keys again, or wait for the read under way; return also if it has failed."""

    def tend(self) -> None:
        """Read the keys again if that is due; forget keys that are too old. Called often."""


class Credentials:
    """Checks keys, tokens and certificates; used on the event loop."""

    def __init__(self, state: Callable[[], AuthState], now_ms: Callable[[], int], tokens: Tokens | None = None) -> None:
        """`state` returns the newest state that this process knows; without `tokens` only keys are valid."""
        self._newest = state
        self._now_ms = now_ms
        self._tokens = tokens

    def of(self, token: str) -> Credential:
        """Return the credential that a key or a token proves, by what this process knows now.

        Raises
        ------
        Unauthenticated
            It is no valid key or token. `SignerUnknown`: it may be valid after `read_keys`.
        """
        id_, now_ms, state = key_id_of(token), self._now_ms(), self._newest()
        if id_ is not None:
            key = state.keys.get(id_)
            if not is_right(key, token) or key is None or not key.is_live(now_ms):
                raise not_valid()
            return Credential(principal=key.principal, until_ms=key.until_ms, key=key)
        if self._tokens is None:
            raise not_valid()
        credential = self._tokens.credential(token, now_ms)
        if not credential.is_good(state, now_ms):
            raise not_valid()
        return credential

    def checked(self, shown: Credential) -> Credential:
        """Return a certificate's credential if its principal exists and it has not ended; else raise as `of`."""
        if not shown.is_good(self._newest(), self._now_ms()):
            raise not_valid()
        return shown

    def tend(self) -> None:
        """Keep the keys of the identity provider young; called often."""
        if self._tokens is not None:
            self._tokens.tend()

    async def read_keys(self) -> None:
        """Read the keys of the identity provider again, at most once in a while."""
        if self._tokens is not None:
            await self._tokens.read_keys()

    async def of_any(self, token: str) -> Credential:
        """Do as `of`, and read the provider's keys if the token needs that."""
        try:
            return self.of(token)
        except SignerUnknown:
            await self.read_keys()
            return self.of(token)

    def keys_of(self, user: str) -> Sequence[Key]:
        """Return the live keys of a user, which is a principal or the id of one key."""
        state, now_ms = self._newest(), self._now_ms()
        keys = [state.keys[user]] if user in state.keys else state.keys_of(user)
        return [key for key in keys if key.is_live(now_ms)]

    def password(self, principal: str, mechanism: str) -> Password | None:
        """Return a principal's password for a mechanism of SCRAM; None if it has none."""
        return self._newest().password(principal, mechanism)

    def refusal(self, credential: Credential) -> Unauthenticated | Forbidden | None:
        """Return why a kept credential opens nothing now, None if it does: ask before each use.

        `Unauthenticated` if it is not valid any more, `Forbidden` if its principal is disabled.
        """
        state = self._newest()
        if credential.signer and (self._tokens is None or not self._tokens.trusts(credential.signer)):
            return not_valid()
        if not credential.is_good(state, self._now_ms()):
            return not_valid()
        return disabled(credential.principal) if state.is_disabled(credential.principal) else None


def disabled(principal: str) -> Forbidden:
    """Return the error for an authenticated principal that is disabled."""
    return Forbidden(
        f"principal {principal} is disabled, with all its keys, tokens and certificates, until an administrator"
        " enables it",
        code="principal_disabled",
        field="principal",
    )


def not_valid() -> Unauthenticated:
    """Return the error for anything but a valid credential; it does not say why."""
    return Unauthenticated(_NOT_VALID, field="Authorization")


class KeyTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Times of a provider's keys, in milliseconds."""

    #: Age of the keys at which they are read again.
    fresh_ms: int = 300_000
    #: Age at which they are forgotten: a provider that is away for longer signs nothing any more.
    stale_ms: int = 6 * 3_600_000
    #: Shortest time between the beginnings of two reads.
    retry_ms: int = 5_000
    #: Longest time of one read.
    read_ms: int = 5_000
    #: Longest time for which a request waits for keys.
    wait_ms: int = 12_000
