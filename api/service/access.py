"""Who may call a service with authentication: its gate, and the tokens of an identity provider."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from deltamq.api.auth.credentials import Credentials, KeyTimes
from deltamq.api.auth.gate import Gate
from deltamq.mq.auth.state import AuthState
from deltamq.mq.errors import Unavailable
from deltamq.tables.config import Config

if TYPE_CHECKING:
    from deltamq.api.issuer import IssuerTokens


class ServiceAccess:
    """The gate of a service with authentication, and the tokens' issuer; without authentication both are None."""

    def __init__(
        self,
        config: Config,
        state: Callable[[], AuthState],
        *,
        now_ms: Callable[[], int],
        boot_ms: Callable[[], int],
        key_times: KeyTimes,
        unread: Callable[[], Unavailable | None],
    ) -> None:
        """`now_ms` is the clock by which keys and tokens end, `boot_ms` a monotonic clock.

        `unread` returns why `state` may be out of date, None if it is not.
        """
        self.gate: Gate | None = None
        self._tokens: IssuerTokens | None = None
        if not config.service.auth:
            return
        if config.oidc.issuer:
            # Importing it takes a quarter of a second, which a service without an issuer saves.
            from deltamq.api.issuer import IssuerTokens

            self._tokens = IssuerTokens(config.oidc, now_ms=boot_ms, times=key_times)
        self.gate = Gate(state, now_ms, Credentials(state, now_ms, self._tokens), unread)
        if self._tokens is not None:
            self._tokens.keys.changed = self.gate.recheck
            self.gate.sign_in = self._tokens.sign_in

    async def stop(self) -> None:
        """End the read of keys under way."""
        if self._tokens is not None:
            await self._tokens.stop()
