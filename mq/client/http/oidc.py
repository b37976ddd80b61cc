"""Tokens of an identity provider for programs: OAuth's client credentials, as OIDC providers and Databricks have them.

     fetched                refresh begins                expires
────────┼──── used ─────────────┼──── used, while one thread ─┼──── everybody waits for a new one
                          REFRESH_S before the end,             fetches the next; if that fails, it
                          or at 4/5 of a short life             is tried again every RETRY_S
"""

from __future__ import annotations

import base64
import ssl
import threading
import time
from collections.abc import Callable
from typing import Final
from urllib.parse import quote_plus, urlencode

import msgspec
import urllib3
from urllib3.exceptions import HTTPError, LocationParseError

from mq.client.http.credentials import TOKEN_UNAVAILABLE, check_token
from mq.errors import Refused, Unauthenticated, Unavailable
from mq.limits import TOKEN_ANSWER_BYTES_MAX
from mq.loopback import is_loopback

__all__ = ["OidcClientCredentials"]

#: Seconds before a token's end at which the next one is fetched, and the part of a life after which a shorter one is.
REFRESH_S: Final = 60.0
REFRESH_PART: Final = 0.8
#: Seconds between two tries to fetch the next token while the present one is valid.
RETRY_S: Final = 5.0
#: Life of a token whose provider does not tell it, in seconds.
_LIFE_S: Final = 300.0
_OK: Final = 200


class _Granted(msgspec.Struct):
    access_token: str
    expires_in: float = _LIFE_S


class OidcClientCredentials:
    """Gets tokens from a provider's token endpoint by a client's id and secret; pass it to a client as `token`.

    The token is kept until shortly before it expires, and the next one is fetched while the present one is still in
    use. Safe for any number of threads, and for any number of clients.

    Parameters
    ----------
    url
        The provider's token endpoint, `https://...`; on Databricks `https://WORKSPACE/oidc/v1/token`.
    client_id, client_secret
        The client at the provider. The secret is sent to that URL and nowhere else.
    scope
        What is asked for, for example `all-apis`.
    audience
        The service that the token is for, for providers that ask for it.
    ssl_context
        Which certificates of the provider are trusted; by default the system's.
    """

    def __init__(
        self,
        url: str,
        client_id: str,
        client_secret: str,
        scope: str = "",
        *,
        audience: str = "",
        timeout_s: float = 10.0,
        ssl_context: ssl.SSLContext | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.url = _checked(url)
        form = {"grant_type": "client_credentials", "scope": scope, "audience": audience}
        self._form = urlencode({name: value for name, value in form.items() if value}).encode()
        pair = f"{quote_plus(client_id)}:{quote_plus(client_secret)}".encode()
        self._headers = {
            "Authorization": "Basic " + base64.b64encode(pair).decode(),
            "Content-Type": "application/x-www-form-urlencoded",
            "Accept": "application/json",
        }
        self._pool = urllib3.PoolManager(1, timeout=timeout_s, retries=False, ssl_context=ssl_context)
        self._now_s = now_s
        self._lock = threading.Lock()
        self._token: str | None = None
        self._refresh_at = self._ends_at = float("-inf")

    def __repr__(self) -> str:
        return f"OidcClientCredentials({self.url!r})"

    def __call__(self) -> str:
        """Return a token that is valid now.

        Raises
        ------
        Unauthenticated
            `token_refused`: the provider refused the client.
        Unavailable
            `token_unavailable`: the provider does not answer, and the last token has expired.
        """
        now, token = self._now_s(), self._token
        if token is not None and now < self._refresh_at:
            return token
        if token is not None and now < self._ends_at:
            return self._renewed_early(token)
        with self._lock:
            if self._token is None or self._now_s() >= self._ends_at:
                self._fetch()
            assert self._token is not None, "fetched just now"
            return self._token

    def reject(self, token: str) -> None:
        """Forget a token that a service refused, although it has not expired."""
        with self._lock:
            if self._token == token:
                self._token = None

    def _renewed_early(self, token: str) -> str:
        """Fetch the next token, unless another thread does; if that fails, the present one is used on."""
        if not self._lock.acquire(blocking=False):
            return token
        try:
            if self._now_s() >= self._refresh_at:
                self._refresh_at = self._now_s() + RETRY_S
                self._fetch()
            return self._token or token
        except (Unavailable, Unauthenticated):
            return token
        finally:
            self._lock.release()

    def _fetch(self) -> None:
        asked_at = self._now_s()
        granted = self._granted()
        life_s = max(granted.expires_in, 1.0)
        self._token = check_token(granted.access_token)
        self._ends_at = asked_at + life_s
        self._refresh_at = asked_at + max(life_s - REFRESH_S, life_s * REFRESH_PART)

    def _granted(self) -> _Granted:
        try:
            response = self._pool.request(
                "POST", self.url, body=self._form, headers=self._headers, redirect=False, preload_content=False
            )
            try:
                body = response.read(TOKEN_ANSWER_BYTES_MAX + 1)
            finally:
                response.close()
        except (HTTPError, OSError) as error:
            detail = f"the provider of tokens at {self.url} cannot be reached: {type(error).__name__}"
            raise Unavailable(detail, code=TOKEN_UNAVAILABLE) from error
        if response.status in (400, 401, 403):
            detail = f"{self.url} refused the client's id, secret or scope with status {response.status}"
            raise Unauthenticated(detail, code="token_refused", field="token")
        if response.status != _OK or len(body) > TOKEN_ANSWER_BYTES_MAX:
            detail = f"{self.url} answered with status {response.status} and no token"
            raise Unavailable(detail, code=TOKEN_UNAVAILABLE)
        try:
            return msgspec.json.decode(body, type=_Granted, strict=False)
        except (msgspec.MsgspecError, ValueError):
            # Without the cause: its text may show a part of the token.
            detail = f"the answer of {self.url} is no answer of a token endpoint"
            raise Unavailable(detail, code=TOKEN_UNAVAILABLE) from None


def _checked(url: str) -> str:
    """Return the URL; a secret is sent there, so it must be encrypted, unless it stays on this machine."""
    try:
        parsed = urllib3.util.parse_url(url)
    except LocationParseError:
        parsed = urllib3.util.Url()
    private = parsed.scheme == "https" or (parsed.scheme == "http" and is_loopback(parsed.host or ""))
    if parsed.host and not parsed.auth and private:
        return url
    raise Refused("a token endpoint's URL looks like https://HOST/PATH", code="invalid_url", field="url")
