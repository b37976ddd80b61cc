"""Credentials: by what a caller is known, whose it is, and when (SPEC SEC-1).

key            its principal        while the key is known, until its own end
token          its principal        while there is this principal, from and until the times in the token
               and its groups
certificate    its principal        while there is this principal
"""

from __future__ import annotations

from dataclasses import dataclass

from deltamq.mq.auth.key import Key
from deltamq.mq.auth.state import AuthState


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """What a caller has shown, after it was checked."""

    principal: str
    #: The groups that a token names, as the principals that rules know (`group:NAME`): sorted, each once.
    groups: tuple[str, ...] = ()
    #: When it begins, in milliseconds since 1970; None if it always was.
    from_ms: int | None = None
    #: When it ends; None if that is not known before.
    until_ms: int | None = None
    #: The key; None for a token or a certificate.
    key: Key | None = None
    #: What signed the token; empty for a key or a certificate.
    signer: str = ""

    @property
    def is_timed(self) -> bool:
        """Whether the time alone may end it."""
        return self.until_ms is not None or self.from_ms is not None

    def is_live(self, now_ms: int) -> bool:
        """Whether it has begun and has not ended."""
        return (self.until_ms is None or now_ms < self.until_ms) and (self.from_ms is None or now_ms >= self.from_ms)

    def is_good(self, state: AuthState, now_ms: int) -> bool:
        """Whether it still says who calls: nothing of it was revoked, and its time is not over.

        Whether its principal is disabled is another question (`AuthState.is_disabled`): it is known who calls.
        """
        if self.key is not None:
            return state.keys.get(self.key.id) == self.key and self.is_live(now_ms)
        return self.principal in state.principals and self.is_live(now_ms)
