"""The token of a client's requests: a text, or a function that gets one, which is asked again when one is refused.

    request ──► token known, younger than TOKEN_KEPT_S ──► sent ──► 401 ──► `renew`: ask again, once ──► sent again
                    └── no ──► ask the function

A token goes into the header `Authorization` and nowhere else: no error, log line or `repr` shows it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Final

from deltamq.mq.client.http.bearer_token import TOKEN_UNAVAILABLE, check_token
from deltamq.mq.client.http.forks import in_child
from deltamq.mq.client.http.oidc import from_environment
from deltamq.mq.errors import DeltaMQError, Unavailable

log = logging.getLogger("deltamq.client")

Token = str | Callable[[], str]

#: The variable that gives the token of a client that is not given one.
TOKEN_ENV: Final = "DELTAMQ_CLIENT_TOKEN"
#: Seconds for which the result of a function is used. A token that others replace (in a file, say) is seen this soon.
TOKEN_KEPT_S: Final = 30.0


def _from_environment() -> Token:
    """Return the token of the environment, or a function that gets tokens as it says; empty for neither."""
    text = os.environ.get(TOKEN_ENV, "")
    if text:
        return text
    return from_environment() or ""


class Credentials:
    """The token of one client. Safe for any number of threads.

    Parameters
    ----------
    token
        A text, a function, or None for what `DELTAMQ_CLIENT_TOKEN` says, else for tokens of the provider that
        `DELTAMQ_CLIENT_OIDC_ISSUER` names; an empty text sends no token.
    """

    def __init__(self, token: Token | None = None) -> None:
        given = _from_environment() if token is None else token
        self._ask = given if callable(given) else None
        self._token = check_token(given) if isinstance(given, str) and given else None
        self._lock = threading.Lock()
        self._asked_at = float("-inf")
        in_child(self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Credentials({'none' if self._token is None and self._ask is None else '***'})"

    @property
    def are_none(self) -> bool:
        """True if no token is ever sent."""
        return self._ask is None and self._token is None

    def token(self) -> str | None:
        """Return the token to send now, None for none.

        Raises
        ------
        Unavailable
            `token_unavailable`: the function raised.
        """
        if self._ask is None:
            return self._token
        if time.monotonic() - self._asked_at >= TOKEN_KEPT_S:
            with self._lock:
                # Another thread may have asked while this one waited.
                if time.monotonic() - self._asked_at >= TOKEN_KEPT_S:
                    self._token = self._asked(self._ask)
        return self._token

    def renew(self, refused: str | None) -> bool:
        """Return whether there is another token than the one that the service refused, after asking the function."""
        if self._ask is None:
            return False
        with self._lock:
            if self._token == refused:
                reject = getattr(self._ask, "reject", None)
                if callable(reject) and refused is not None:
                    reject(refused)
                self._token = self._asked(self._ask)
            return self._token != refused

    def _asked(self, ask: Callable[[], str]) -> str:
        try:
            token = check_token(ask())
        except DeltaMQError:
            raise
        except Exception as error:
            # What the error says may hold a secret, so only its cause does.
            detail = f"the function that gets the token raised {type(error).__name__}"
            raise Unavailable(detail, code=TOKEN_UNAVAILABLE) from error
        self._asked_at = time.monotonic()
        return token
