"""The provider's answers over HTTP: where its keys are, and the keys.

    GET ISSUER/.well-known/openid-configuration  ->  {"issuer": ISSUER, "jwks_uri": URL}     unless a setting names URL
    GET URL                                      ->  {"keys": [...]}

Each read has a time and a size beyond which it has failed. No redirect is followed, so that nobody else is asked; and
what is not encrypted is asked on this machine alone.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Final
from urllib.parse import urlsplit

import httpx
import msgspec

from deltamq.api.issuer.jwks import JwksInvalid
from deltamq.mq.limits import JWKS_BYTES_MAX
from deltamq.mq.request_values import is_loopback
from deltamq.tables.config import ConfigInvalid
from deltamq.tables.oidc_settings import OidcSettings, is_private

_OK: Final = 200
_DISCOVERY: Final = "/.well-known/openid-configuration"


class _Discovered(msgspec.Struct):
    issuer: str
    jwks_uri: str


class Provider:
    """An identity provider, as its settings name it."""

    def __init__(self, settings: OidcSettings, *, within_s: float) -> None:
        """Take the longest time of one read, in seconds; raise `ConfigInvalid` if the file `oidc.ca` is not right."""
        self._issuer = settings.issuer
        self._jwks_url = settings.jwks_url
        self._within_s = within_s
        try:
            self._tls = ssl.create_default_context(cafile=settings.ca or None)
        except (OSError, ssl.SSLError) as error:
            detail = f"oidc.ca: {settings.ca} is no readable file of certificates in PEM: {error}"
            raise ConfigInvalid(detail, field="oidc.ca") from error
        self._tls.minimum_version = ssl.TLSVersion.TLSv1_2

    async def read(self) -> bytes:
        """Return the answer with the keys.

        Raises
        ------
        JwksInvalid
            There was none in time, or it is too long; the text tells which, for the log.
        """
        try:
            async with asyncio.timeout(self._within_s):
                return await self._get(self._jwks_url or await self._discovered())
        except TimeoutError:
            raise JwksInvalid(f"no answer within {self._within_s:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise JwksInvalid(f"cannot be reached: {type(error).__name__}") from None

    async def _discovered(self) -> str:
        body = await self._get(self._issuer.rstrip("/") + _DISCOVERY)
        try:
            found = msgspec.json.decode(body, type=_Discovered)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            raise JwksInvalid("the discovery document is none") from None
        if found.issuer != self._issuer:
            raise JwksInvalid(f"the discovery document is of another issuer, {found.issuer[:200]!r}")
        # An issuer elsewhere must not send this process to itself.
        is_elsewhere = not is_loopback(urlsplit(self._issuer).hostname or "")
        if not is_private(found.jwks_uri) or (is_elsewhere and not found.jwks_uri.startswith("https://")):
            raise JwksInvalid("jwks_uri in the discovery document is not https://HOST/PATH")
        return found.jwks_uri

    async def _get(self, url: str) -> bytes:
        # A proxy of the environment leads outwards, not to this machine.
        through_proxy = not is_loopback(urlsplit(url).hostname or "")
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        async with (
            httpx.AsyncClient(
                verify=self._tls, trust_env=through_proxy, follow_redirects=False, timeout=None
            ) as client,
            client.stream("GET", url, headers=headers) as answer,
        ):
            if answer.status_code != _OK:
                raise JwksInvalid(f"status {answer.status_code}")
            body = b""
            async for piece in answer.aiter_raw():
                body += piece
                if len(body) > JWKS_BYTES_MAX:
                    raise JwksInvalid(f"more than {JWKS_BYTES_MAX} bytes")
            return body
