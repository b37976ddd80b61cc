"""The token of a client's requests: a text, or a function, which is called again when its token is refused.

    request ──► token known, younger than TOKEN_KEPT_S ──► sent ──► 401 ──► `renew`: ask again, once ──► sent again
                    └── no ──► ask the function

A token goes into the header `Authorization` and nowhere else: no error, log line or `repr` shows it. One such function
is `OidcClientCredentials` (`mq/client/http/oidc.py`).
"""

from __future__ import annotations

import inspect
import logging
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from deltamq.mq.client.http.tokens import OIDC_ENV, TOKEN_UNAVAILABLE, Token, check_token
from deltamq.mq.client.shells.forks import in_child
from deltamq.mq.client.shells.shell import Shell
from deltamq.mq.client.shells.threads import ThreadShell
from deltamq.mq.errors import DeltaMQError, Refused, Unavailable

log = logging.getLogger("deltamq.client")

#: The variable with the token of a client that is made without one.
TOKEN_ENV: Final = "DELTAMQ_CLIENT_TOKEN"
#: Seconds for which the result of a function is used: a token that is replaced in its file is seen this soon.
TOKEN_KEPT_S: Final = 30.0


def _from_environment() -> Token:
    """Return the environment's token, or a function that gets tokens from its provider; empty for neither."""
    text = os.environ.get(TOKEN_ENV, "")
    if text:
        return text
    if not os.environ.get(OIDC_ENV):
        return ""
    from deltamq.mq.client.http.oidc import from_environment

    return from_environment()


class Credentials:
    """The token of one client. Safe for any number of threads.

    Parameters
    ----------
    token
        A text or a function. None: the text in `DELTAMQ_CLIENT_TOKEN`, else tokens of the provider that
        `DELTAMQ_CLIENT_OIDC_ISSUER` names. An empty text sends no token.
    """

    def __init__(self, token: Token | None = None, shell: Shell | None = None) -> None:
        given = _from_environment() if token is None else token
        if inspect.iscoroutinefunction(given):
            raise Refused("token must be a plain function: on an event loop, a thread calls it", field="token")
        self._shell = ThreadShell() if shell is None else shell
        self._ask = given if callable(given) else None
        self._token = check_token(given) if isinstance(given, str) and given else None
        self._lock = threading.Lock()
        self._asked_at = float("-inf")
        in_child(self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Credentials({'none' if self._token is None and self._ask is None else '***'})"

    async def token(self) -> str | None:
        """Return the token to send now, None for none.

        Raises
        ------
        Unavailable
            `token_unavailable`: the function raised.
        """
        if self._ask is None or time.monotonic() - self._asked_at < TOKEN_KEPT_S:
            return self._token
        return await self._shell.blocking(partial(self._kept_or_asked, self._ask))

    def _kept_or_asked(self, ask: Callable[[], str]) -> str | None:
        with self._lock:
            # Another thread may have asked while this one waited.
            if time.monotonic() - self._asked_at >= TOKEN_KEPT_S:
                self._token = self._asked(ask)
            return self._token

    async def renew(self, refused: str | None) -> bool:
        """Return whether there is another token than the one that the service refused, after asking the function."""
        if self._ask is None:
            return False
        return await self._shell.blocking(partial(self._renewed, self._ask, refused))

    def _renewed(self, ask: Callable[[], str], refused: str | None) -> bool:
        with self._lock:
            if self._token == refused:
                reject = getattr(ask, "reject", None)
                if callable(reject) and refused is not None:
                    reject(refused)
                self._token = self._asked(ask)
            return self._token != refused

    def _asked(self, ask: Callable[[], str]) -> str:
        try:
            token = check_token(ask())
        except DeltaMQError:
            raise
        except Exception as error:
            # The error's text may hold a secret, so it is not repeated here.
            detail = f"the function that gets the token raised {type(error).__name__}"
            raise Unavailable(detail, code=TOKEN_UNAVAILABLE) from error
        self._asked_at = time.monotonic()
        return token
