"""Tokens of an identity provider, by OAuth's client credentials as OIDC providers and Databricks have them.

 fetched                refresh begins                expires
────┼──── used ─────────────┼──── used, while one thread ─┼──── all threads wait for a new one
                          REFRESH_S before the end,       fetches the next; if that fails, it
                          or at 4/5 of a short life       is tried again every RETRY_S
"""

from __future__ import annotations

import base64
import os
import ssl
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final
from urllib.parse import quote_plus, urlencode

import msgspec
import urllib3
from urllib3.exceptions import HTTPError, LocationParseError

from deltamq.mq.client.http.tokens import OIDC_ENV, TOKEN_UNAVAILABLE, check_token
from deltamq.mq.client.shells.forks import in_child
from deltamq.mq.errors import Refused, Unauthenticated, Unavailable
from deltamq.mq.limits import TOKEN_ANSWER_BYTES_MAX
from deltamq.mq.request_values import is_loopback

#: The next token is fetched this many seconds before the end of the present one, or after this part of a short life.
REFRESH_S: Final = 60.0
REFRESH_PART: Final = 0.8
#: Seconds between two tries to fetch the next token while the present one is valid.
RETRY_S: Final = 5.0
#: Life of a token if its provider does not state it, in seconds.
_LIFE_S: Final = 300.0
_OK: Final = 200
_DISCOVERY: Final = "/.well-known/openid-configuration"
_ENV_BEGIN: Final = OIDC_ENV.removesuffix("ISSUER")


class _Discovered(msgspec.Struct):
    issuer: str
    token_endpoint: str


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
        The provider's token endpoint, `https://...`; on Databricks `https://WORKSPACE/oidc/v1/token`. Leave it out if
        you give `issuer`.
    client_id, client_secret
        The client at the provider. The secret is sent to that URL and nowhere else.
    scope
        The scope to ask for, for example `all-apis`.
    audience
        The service that the token is for, if the provider requires it.
    issuer
        The provider, `https://...`, in place of `url`: its discovery document names the token endpoint.
    ssl_context
        Which certificates of the provider are trusted; by default the system's.
    """

    def __init__(
        self,
        url: str = "",
        client_id: str = "",
        client_secret: str = "",
        scope: str = "",
        *,
        issuer: str = "",
        audience: str = "",
        timeout_s: float = 10.0,
        ssl_context: ssl.SSLContext | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        if bool(url) == bool(issuer):
            raise Refused("give either the token endpoint (url) or the issuer", field="url")
        if not client_id or not client_secret:
            raise Refused("give the client's id and secret at the provider", field="client_id")
        #: The token endpoint; empty until the issuer has named it.
        self.url = _checked(url) if url else ""
        self.issuer = _checked(issuer, "issuer") if issuer else ""
        form = {"grant_type": "client_credentials", "scope": scope, "audience": audience}
        self._form = urlencode({name: value for name, value in form.items() if value}).encode()
        pair = f"{quote_plus(client_id)}:{quote_plus(client_secret)}".encode()
        self._headers = {
            "Authorization": "Basic " + base64.b64encode(pair).decode(),
            "Content-Type": "application/x-www-form-urlencoded",
            "Accept": "application/json",
        }
        self._make_pool = partial(urllib3.PoolManager, 1, timeout=timeout_s, retries=False, ssl_context=ssl_context)
        self._pool = self._make_pool()
        self._now_s = now_s
        self._lock = threading.Lock()
        in_child(self._renew)
        self._token: str | None = None
        self._refresh_at = self._ends_at = float("-inf")

    def _renew(self) -> None:
        self._lock, self._pool = threading.Lock(), self._make_pool()

    def __repr__(self) -> str:
        return f"OidcClientCredentials({(self.issuer or self.url)!r})"

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
        """Fetch the next token, unless another thread does; if that fails, go on with the present one."""
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
        if not self.url:
            self.url = self._discovered()
        status, body = self._ask("POST", self.url, self._form, self._headers)
        if status in (400, 401, 403):
            detail = f"{self.url} refused the client's id, secret or scope with status {status}"
            raise Unauthenticated(detail, code="token_refused", field="token")
        if status != _OK or len(body) > TOKEN_ANSWER_BYTES_MAX:
            detail = f"{self.url} answered with status {status} and no token"
            raise Unavailable(detail, code=TOKEN_UNAVAILABLE)
        try:
            return msgspec.json.decode(body, type=_Granted, strict=False)
        except (msgspec.MsgspecError, ValueError):
            # Without the cause: its text may show a part of the token.
            detail = f"{self.url} did not answer as a token endpoint does"
            raise Unavailable(detail, code=TOKEN_UNAVAILABLE) from None

    def _discovered(self) -> str:
        address = self.issuer.rstrip("/") + _DISCOVERY
        status, body = self._ask("GET", address, None, {"Accept": "application/json"})
        try:
            document = msgspec.json.decode(body[:TOKEN_ANSWER_BYTES_MAX], type=_Discovered)
            # The secret must not go to another issuer's endpoint, nor to one without TLS.
            is_right = status == _OK and document.issuer == self.issuer
            url = _checked(document.token_endpoint) if is_right else ""
            if self.issuer.startswith("https://") and not url.startswith("https://"):
                url = ""
        except (msgspec.MsgspecError, ValueError, RecursionError, Refused):
            url = ""
        if not url:
            detail = f"{address} (status {status}) is not a discovery document of {self.issuer} with a token endpoint"
            raise Unavailable(detail, code=TOKEN_UNAVAILABLE)
        return url

    def _ask(self, method: str, url: str, body: bytes | None, headers: dict[str, str]) -> tuple[int, bytes]:
        """Return status and body of the provider's answer; the body has at most one byte more than the limit."""
        try:
            response = self._pool.request(
                method, url, body=body, headers=headers, redirect=False, preload_content=False
            )
            try:
                return response.status, response.read(TOKEN_ANSWER_BYTES_MAX + 1)
            finally:
                response.close()
        except (HTTPError, OSError) as error:
            detail = f"the provider of tokens at {url} cannot be reached: {type(error).__name__}"
            raise Unavailable(detail, code=TOKEN_UNAVAILABLE) from error


def from_environment() -> OidcClientCredentials:
    """Return the credentials that the variables `DELTAMQ_CLIENT_OIDC_...` name."""
    names = ("ISSUER", "CLIENT_ID", "CLIENT_SECRET", "SCOPE", "AUDIENCE", "CA")
    issuer, client_id, secret, scope, audience, ca = (os.environ.get(f"{_ENV_BEGIN}{name}", "") for name in names)
    if not client_id or not secret:
        raise Refused(f"set {_ENV_BEGIN}CLIENT_ID and {_ENV_BEGIN}CLIENT_SECRET, too", field="client_id")
    context = ssl.create_default_context(cafile=ca) if ca else None
    return OidcClientCredentials(
        client_id=client_id, client_secret=secret, scope=scope, issuer=issuer, audience=audience, ssl_context=context
    )


def _checked(url: str, field: str = "url") -> str:
    """Return the URL if a secret may be sent there: over TLS, or within this machine."""
    try:
        parsed = urllib3.util.parse_url(url)
    except LocationParseError:
        parsed = urllib3.util.Url()
    private = parsed.scheme == "https" or (parsed.scheme == "http" and is_loopback(parsed.host or ""))
    if parsed.host and not parsed.auth and private:
        return url
    raise Refused("the URL of a provider of tokens looks like https://HOST/PATH", code="invalid_url", field=field)
