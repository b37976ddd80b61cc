"""The token of a client's requests: a text, or a function, which is called again when its token is refused.

    request ──► token known, younger than TOKEN_KEPT_S ──► sent ──► 401 ──► `renew`: ask again, once ──► sent again
                    └── no ──► ask the function

A token goes into the header `Authorization` and nowhere else: no error, log line or `repr` shows it. One such function
gets tokens of an identity provider, by OAuth's client credentials as OIDC providers and Databricks have them:

     fetched                refresh begins                expires
    ────┼──── used ─────────────┼──── used, while one thread ─┼──── all threads wait for a new one
                              REFRESH_S before the end,       fetches the next; if that fails, it
                              or at 4/5 of a short life       is tried again every RETRY_S
"""

from __future__ import annotations

import base64
import logging
import os
import re
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

from deltamq.mq.client.http.threads import in_child
from deltamq.mq.errors import DeltaMQError, Refused, Unauthenticated, Unavailable
from deltamq.mq.limits import TOKEN_ANSWER_BYTES_MAX, TOKEN_BYTES_MAX
from deltamq.mq.request_values import is_loopback

log = logging.getLogger("deltamq.client")

#: Code of a request that was not sent, because there was no token for it.
TOKEN_UNAVAILABLE: Final = "token_unavailable"
#: The form of a token: nothing that could end the header's line.
_FORM: Final = re.compile(r"[A-Za-z0-9\-._~+/]+=*", re.ASCII)


def check_token(token: object) -> str:
    """Return a token without the white space around it; raises `invalid_token`, which does not show it."""
    text = token.strip() if isinstance(token, str) else ""
    if len(text) > TOKEN_BYTES_MAX or _FORM.fullmatch(text) is None:
        raise Refused(
            f"a token is a text of 1 to {TOKEN_BYTES_MAX:,} letters, digits and - . _ ~ + / =",
            code="invalid_token",
            field="token",
        )
    return text


Token = str | Callable[[], str]

#: The variable with the token of a client that is made without one.
TOKEN_ENV: Final = "DELTAMQ_CLIENT_TOKEN"
#: Seconds for which the result of a function is used: a token that is replaced in its file is seen this soon.
TOKEN_KEPT_S: Final = 30.0


def _from_environment() -> Token:
    """Return the environment's token, or a function that gets tokens from its provider; empty for neither."""
    text = os.environ.get(TOKEN_ENV, "")
    if text:
        return text
    return from_environment() or ""


class Credentials:
    """The token of one client. Safe for any number of threads.

    Parameters
    ----------
    token
        A text or a function. None: the text in `DELTAMQ_CLIENT_TOKEN`, else tokens of the provider that
        `DELTAMQ_CLIENT_OIDC_ISSUER` names. An empty text sends no token.
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
            # The error's text may hold a secret, so it is not repeated here.
            detail = f"the function that gets the token raised {type(error).__name__}"
            raise Unavailable(detail, code=TOKEN_UNAVAILABLE) from error
        self._asked_at = time.monotonic()
        return token


#: The variable with the provider of a client that has no token; the provider's other variables begin alike.
OIDC_ENV: Final = "DELTAMQ_CLIENT_OIDC_ISSUER"

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


def from_environment() -> OidcClientCredentials | None:
    """Return the credentials that the variables `DELTAMQ_CLIENT_OIDC_...` name; None without an issuer."""
    names = ("ISSUER", "CLIENT_ID", "CLIENT_SECRET", "SCOPE", "AUDIENCE", "CA")
    issuer, client_id, secret, scope, audience, ca = (os.environ.get(f"{_ENV_BEGIN}{name}", "") for name in names)
    if not issuer:
        return None
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
