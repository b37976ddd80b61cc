"""The service at one URL: requests over a pool of kept connections, failures as exceptions of `mq.errors`.

The exception says whether the failed request may have been applied:

    failed while                    raised                                  may have been applied
    ------------------------------  --------------------------------------  ---------------------
    connecting                      Unavailable `connect_failed`            no
    asking for the certificate      Unavailable `certificate_not_trusted`   no
    sending, waiting, reading       Unknown `no_answer`, `connection_lost`  yes
    answered with a problem         the exception of its code               as its class says

`Tls` holds what a client trusts and shows on connections with TLS.
"""

from __future__ import annotations

import os
import ssl
import threading
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, urlencode

import urllib3
from urllib3.exceptions import LocationParseError

from deltamq.mq.client.http.answers import error_of
from deltamq.mq.client.http.credentials import Credentials
from deltamq.mq.client.shells.blocking_transport import CONNECTION_LOST
from deltamq.mq.client.shells.forks import in_child
from deltamq.mq.client.shells.shell import Answer, Body, Shell
from deltamq.mq.client.shells.threads import ThreadShell
from deltamq.mq.client.tracing.tracing import Tracing
from deltamq.mq.errors import Refused, Unauthenticated, Unknown

CA_ENV: Final = "DELTAMQ_CLIENT_CA"
CERT_ENV: Final = "DELTAMQ_CLIENT_CERT"
KEY_ENV: Final = "DELTAMQ_CLIENT_KEY"


class Tls:
    """The TLS context of one client, made when it is first needed. Safe for any number of threads.

    Parameters
    ----------
    ca
        Certificates of the authorities that sign the service's, a file in PEM; by default what `DELTAMQ_CLIENT_CA`
        names, else the system's.
    cert, key
        The certificate that the client shows, and its key, files in PEM; by default `DELTAMQ_CLIENT_CERT` and
        `DELTAMQ_CLIENT_KEY`. Without `key`, the key is in `cert`.
    context
        A context of the caller's own, in place of all of these.
    """

    def __init__(
        self,
        ca: str | None = None,
        cert: str | None = None,
        key: str | None = None,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._ca = os.environ.get(CA_ENV, "") if ca is None else ca
        self._cert = os.environ.get(CERT_ENV, "") if cert is None else cert
        self._key = os.environ.get(KEY_ENV, "") if key is None else key
        self._context = context
        self._lock = threading.Lock()
        in_child(self._renew)
        if context is not None and (ca or cert or key):
            raise Refused("give an ssl_context, or ca, cert and key, but not both", field="ssl_context")
        if self._key and not self._cert:
            raise Refused("a key needs its certificate: give cert, too", field="cert")

    def _renew(self) -> None:
        self._lock = threading.Lock()

    def context(self) -> ssl.SSLContext:
        """Return the context.

        Raises
        ------
        Refused
            `tls_files_invalid`: a file is missing or not what it should be; the error names it.
        """
        with self._lock:
            if self._context is None:
                self._context = self._made()
            return self._context

    def _made(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self._ca or None)
        except (OSError, ssl.SSLError) as error:
            detail = f"ca: {self._ca} is not a readable file of certificates in PEM: {error}"
            raise Refused(detail, code="tls_files_invalid", field="ca") from error
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self._cert:
            try:
                context.load_cert_chain(self._cert, self._key or None, password=_no_password)
            except (OSError, ssl.SSLError) as error:
                detail = f"cert, key: {self._cert} {self._key} are not a certificate in PEM with its key: {error}"
                raise Refused(detail, code="tls_files_invalid", field="cert") from error
        return context


def _no_password() -> str:
    # Otherwise OpenSSL asks for the passphrase on the terminal.
    raise Refused("the key is encrypted: decrypt it, or pass an ssl_context", code="tls_files_invalid", field="key")


REQUEST_TIMEOUT_S: Final = 10.0
_OK_STATUS_END: Final = 300
_NO_CONTENT: Final = 204

Query = Mapping[str, str | int]


def path_of(*parts: str) -> str:
    """Return `/v1/...` with each part percent-encoded, so that no name can change the path."""
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


def is_cut_short(status: int, headers: Mapping[str, str]) -> bool:
    """Return whether an answer was cut off within its headers: they name neither a length nor an encoding."""
    return status != _NO_CONTENT and "content-length" not in headers and "transfer-encoding" not in headers


class Endpoint:
    """One service process; with threads, safe for any number of them."""

    def __init__(
        self,
        url: str,
        *,
        shell: Shell | None = None,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
        agent: str = "deltamq",
        tracing: Tracing | None = None,
    ) -> None:
        parsed = _parse(url)
        self.url = url.rstrip("/")
        self.scheme: str = parsed.scheme or "http"
        self.host: str = parsed.host or ""
        self.port: int = parsed.port or (443 if self.scheme == "https" else 80)
        self.prefix = (parsed.path or "").rstrip("/")
        #: None if the connections are not encrypted.
        self.ssl_context = (tls or Tls()).context() if self.scheme == "https" else None
        self.credentials = credentials if credentials is not None else Credentials("")
        self._plain: Mapping[str, str] = {"User-Agent": agent}
        self._tracing = tracing or Tracing()
        self._transport = (shell or ThreadShell()).transport(self.scheme, self.host, self.port, self.ssl_context)

    def __repr__(self) -> str:
        # The token stays out of logs and tracebacks.
        return f"Endpoint({self.url!r})"

    def headers(self, token: str | None, more: Mapping[str, str] | None = None) -> Mapping[str, str]:
        """Return the headers of a request that is sent with this token: the client's own, and `more`.

        If the caller traces, they name its current span, unless `more` names another.
        """
        if (spans := self._tracing.spans) is not None:
            more = spans.with_current(more)
        if token is None:
            return {**self._plain, **more} if more else self._plain
        return {**self._plain, "Authorization": f"Bearer {token}", **(more or {})}

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        headers: Mapping[str, str] | None = None,
        body: Body | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> Answer:
        """Send one request and return its answer; raises for everything but a success.

        Parameters
        ----------
        timeout_s
            Seconds of the attempt; with threads, of connecting (at most three), and again of each wait for bytes.
        """
        target, token = self.target(path, query), await self.credentials.token()
        answer = await self._transport.send(method, target, self.headers(token, headers), body, timeout_s)
        if answer.status == Unauthenticated.status and await self.credentials.renew(token):
            fresh = self.headers(await self.credentials.token(), headers)
            answer = await self._transport.send(method, target, fresh, body, timeout_s)
        if is_cut_short(answer.status, answer.headers):
            raise Unknown(f"the connection to {self.url} was lost in the middle of an answer", code=CONNECTION_LOST)
        if answer.status >= _OK_STATUS_END:
            raise error_of(*answer)
        return answer

    def connection(self, timeout_s: float) -> urllib3.connection.HTTPConnection:
        """Return a new connection outside the pool, for callers that wait for several answers at once."""
        if self.scheme == "https":
            return urllib3.connection.HTTPSConnection(
                self.host, self.port, timeout=timeout_s, ssl_context=self.ssl_context
            )
        return urllib3.connection.HTTPConnection(self.host, self.port, timeout=timeout_s)

    def target(self, path: str, query: Query | None = None) -> str:
        """Return the request target of `path`."""
        if query:
            return f"{self.prefix}{path}?{urlencode(query)}"
        return self.prefix + path

    async def close(self) -> None:
        """Close the kept connections."""
        await self._transport.close()


def _parse(url: str) -> urllib3.util.Url:
    try:
        parsed = urllib3.util.parse_url(url if "://" in url else f"http://{url}")
    except LocationParseError as error:
        raise Refused(f"not a URL: {url}", code="invalid_url", field="url") from error
    # urllib3 before 2.8 takes spaces for a part of the host
    if parsed.scheme not in ("http", "https") or not parsed.host or " " in parsed.host:
        raise Refused(f"a service's URL looks like http://HOST:PORT, not {url}", code="invalid_url", field="url")
    return parsed
