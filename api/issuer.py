"""Tokens of an identity provider: its keys, fetched and kept, and the check of a token by them (SPEC SEC-15, SEC-16).

    GET ISSUER/.well-known/openid-configuration  ->  {"issuer": ISSUER, "jwks_uri": URL}     unless a setting names URL
    GET URL                                      ->  {"keys": [...]}                         JWKS, RFC 7517
    header.claims.signature  ──►  the key that the header names, and an algorithm that it may be used with
                             ──►  signature, issuer, audience: PyJWT
                             ──►  principal, groups, times: mq.auth

The sender of a token writes its header: of its members only the key's id and the algorithm are read, and the settings
and the provider must name both.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import httpx
import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from deltamq.api.auth.credentials import KeyTimes, SignerUnknown, not_valid
from deltamq.api.outward import fetched, trusting
from deltamq.mq.auth.callers import Credential, credential_of
from deltamq.mq.errors import Refused
from deltamq.mq.limits import JWKS_BYTES_MAX, JWKS_KEYS_MAX, KEY_WAITERS_MAX, RSA_BITS_MAX, RSA_BITS_MIN
from deltamq.mq.request_values import is_loopback
from deltamq.mq.wire.auth import SignInInfo
from deltamq.tables.oidc_settings import OidcSettings, is_private

_FORM: Final = re.compile(r"([A-Za-z0-9_-]+)\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+", re.ASCII)
#: Times are checked elsewhere, at each use of a token, by the clock of the service.
_OPTIONS: Final[Any] = {
    "require": ["exp", "iss", "aud"],
    **dict.fromkeys(("verify_exp", "verify_nbf", "verify_iat", "verify_sub", "verify_jti"), False),
}


class _Header(msgspec.Struct):
    alg: str
    kid: str


class IssuerTokens:
    """The tokens of one provider; used on the event loop."""

    def __init__(self, settings: OidcSettings, *, now_ms: Callable[[], int], times: KeyTimes) -> None:
        """`now_ms` is a monotonic clock, for the age of keys.

        Raises
        ------
        ConfigInvalid
            The file `oidc.ca` is not right.
        """
        self._provider = provider = Provider(settings, within_s=times.read_ms / 1000)
        self._settings = settings
        #: The provider's keys.
        self.keys = IssuerKeys(provider.read, settings.algorithms, now_ms=now_ms, times=times)

    def credential(self, token: str, now_ms: int) -> Credential:
        """Return the credential that a token proves.

        Raises
        ------
        Unauthenticated
            It is not valid; the error does not say why. `SignerUnknown`: its key may be one that was not read yet.
        """
        header = _header_of(token)
        if header is None or header.alg not in self._settings.algorithms:
            raise not_valid()
        signing = self.keys.get(header.kid)
        if signing is None:
            raise SignerUnknown
        key = signing.by_algorithm.get(header.alg)
        if key is None:
            raise not_valid()
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=[header.alg],
                audience=self._settings.audience,
                issuer=self._settings.issuer,
                options=_OPTIONS,
            )
            credential = credential_of(
                claims,
                principal_claim=self._settings.principal_claim,
                groups_claim=self._settings.groups_claim,
                signer=signing.thumbprint,
            )
        except (jwt.PyJWTError, Refused, ValueError, TypeError, ArithmeticError, RecursionError):
            raise not_valid() from None
        if not credential.is_live(now_ms):
            raise not_valid()
        return credential

    def sign_in(self) -> SignInInfo:
        """Return how people sign in to the console, by the provider's document as it was last read."""
        return self._provider.sign_in

    def trusts(self, signer: str) -> bool:
        """Whether the provider still has the key that signed a token."""
        return self.keys.has(signer)

    async def read_keys(self) -> None:
        """Read the keys again, or wait for the read under way."""
        await self.keys.read()

    def tend(self) -> None:
        """Keep the keys young."""
        self.keys.tend()

    async def stop(self) -> None:
        """End the read under way."""
        await self.keys.stop()


def _header_of(token: str) -> _Header | None:
    """Return the members of a token's header that are read; None if it is no token."""
    parts = _FORM.fullmatch(token)
    if parts is None:
        return None
    try:
        text = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        return msgspec.json.decode(text, type=_Header)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


log = logging.getLogger("deltamq.api")


class IssuerKeys:
    """The keys of one provider; used on the event loop.

        read ──► fresh_ms: read again, in the background ──► stale_ms without a read that worked: forgotten
                 a token of an unknown key: read again at once, but retry_ms after the last read began at the earliest

    Between two reads there are `retry_ms`, whatever callers send. A token whose key the provider has published is
    therefore valid after `retry_ms` and one read at the latest: its request waits, and no caller notices a change of
    keys.
    """

    def __init__(
        self,
        read: Callable[[], Awaitable[bytes]],
        algorithms: Collection[str],
        *,
        now_ms: Callable[[], int],
        times: KeyTimes,
    ) -> None:
        """`read` returns the provider's answer; `now_ms` is a monotonic clock."""
        self._read = read
        self._algorithms = frozenset(algorithms)
        self._now_ms = now_ms
        self._times = times
        self._keys: Mapping[str, SigningKey] = {}
        #: When the last read that worked began, and the last of all.
        self._worked_ms: int | None = None
        self._began_ms: int | None = None
        self._reading: asyncio.Task[None] | None = None
        self._waiters = 0
        #: Called after the keys have changed.
        self.changed: Callable[[], None] = _nothing

    def get(self, kid: str) -> SigningKey | None:
        """Return the key of this id; None if it is not known."""
        return self._keys.get(kid)

    def has(self, thumbprint: str) -> bool:
        """Whether this very key is still one of the provider's."""
        return any(key.thumbprint == thumbprint for key in self._keys.values())

    async def read(self) -> None:
        """Wait for the end of a read that begins now or later; return also if it failed, or took too long."""
        if self._waiters >= KEY_WAITERS_MAX:
            return
        asked_ms = self._now_ms()
        self._waiters += 1
        try:
            async with asyncio.timeout(self._times.wait_ms / 1000):
                while True:
                    # A read under way may have been answered before the token was signed.
                    await asyncio.shield(self._begin())
                    if self._began_ms is not None and self._began_ms >= asked_ms:
                        return
        except TimeoutError:
            return
        finally:
            self._waiters -= 1

    def tend(self) -> None:
        """Begin a read if the keys are old, and forget them if they are too old."""
        now_ms = self._now_ms()
        if self._worked_ms is None or now_ms - self._worked_ms >= self._times.fresh_ms:
            self._begin()
        if self._keys and self._worked_ms is not None and now_ms - self._worked_ms >= self._times.stale_ms:
            log.error("event=issuer_keys_forgotten detail='they could not be read for too long'")
            self._set({})

    async def stop(self) -> None:
        """End the read under way."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait({self._reading})

    def _begin(self) -> asyncio.Task[None]:
        """Return the read under way, or the next one, which waits until it may begin."""
        # Waiting for an ended task would never let the event loop go on.
        if self._reading is None or self._reading.done():
            self._reading = asyncio.get_running_loop().create_task(self._run())
        return self._reading

    async def _run(self) -> None:
        if self._began_ms is not None:
            await asyncio.sleep(max(0, self._began_ms + self._times.retry_ms - self._now_ms()) / 1000)
        self._began_ms = began_ms = self._now_ms()
        try:
            body = await self._read()
            # Making keys from numbers would hold the event loop.
            answer = await asyncio.to_thread(partial(signing_keys, body, self._algorithms))
        except Exception as error:  # whatever a provider answers: requests go on with the present keys
            detail = str(error) if isinstance(error, JwksInvalid) else repr(error)
            log.error("event=issuer_keys_not_read detail=%r earlier_keys=%d", detail[:500], len(self._keys))
            return
        self._worked_ms = began_ms
        for kid, reason in answer.left_out.items():
            log.warning("event=issuer_key_left_out kid=%r detail=%r", kid[:64], reason)
        self._set(answer.keys)

    def _set(self, keys: Mapping[str, SigningKey]) -> None:
        before, self._keys = self._keys, keys
        if {kid: key.thumbprint for kid, key in before.items()} != {kid: key.thumbprint for kid, key in keys.items()}:
            log.info("event=issuer_keys count=%d", len(keys))
            self.changed()


def _nothing() -> None:
    pass


_OK: Final = 200
_DISCOVERY: Final = "/.well-known/openid-configuration"


#: An origin that may stand in a content security policy.
_ORIGIN: Final = re.compile(r"https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?", re.ASCII)


class _Discovered(msgspec.Struct):
    issuer: str
    jwks_uri: str
    authorization_endpoint: str | None = None
    token_endpoint: str | None = None
    end_session_endpoint: str | None = None


def origin_of(url: str) -> str | None:
    """Return the origin of an endpoint that a page may ask; None if it is not https, or http on this machine."""
    if not is_private(url):
        return None
    parts = urlsplit(url)
    origin = f"{parts.scheme}://{parts.netloc}"
    return origin if _ORIGIN.fullmatch(origin) else None


class Provider:
    """An identity provider, as its settings name it.

    A read that takes too long or returns too much has failed. No redirect is followed, so that no other server is
    asked; a URL without TLS is read only on this machine.
    """

    def __init__(self, settings: OidcSettings, *, within_s: float) -> None:
        """Take the longest time of one read, in seconds; raise `ConfigInvalid` if the file `oidc.ca` is not right."""
        self._settings = settings
        self._issuer = settings.issuer
        self._jwks_url = settings.jwks_url
        #: How people sign in to the console.
        self.sign_in = SignInInfo()
        self._within_s = within_s
        self._tls = trusting(settings.ca, "oidc.ca")

    async def read(self) -> bytes:
        """Return the answer with the keys.

        Raises
        ------
        JwksInvalid
            There was none in time, or it is too long; the text says which, for the log.
        """
        try:
            async with asyncio.timeout(self._within_s):
                return await self._get(await self._keys_url())
        except TimeoutError:
            raise JwksInvalid(f"no answer within {self._within_s:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise JwksInvalid(f"cannot be reached: {type(error).__name__}") from None

    async def _keys_url(self) -> str:
        if self._jwks_url and not self._settings.console_client_id:
            return self._jwks_url
        try:
            document = await self._discovered()
        except (JwksInvalid, httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            if not self._jwks_url:
                raise
            log.warning("event=issuer_not_discovered detail=%r", str(error)[:500])
            return self._jwks_url
        self.sign_in = self._sign_in(document)
        return self._jwks_url or document.jwks_uri

    def _sign_in(self, document: _Discovered) -> SignInInfo:
        settings, begins, gives = self._settings, document.authorization_endpoint, document.token_endpoint
        if not settings.console_client_id:
            return SignInInfo()
        if begins is None or gives is None or None in (origin_of(begins), origin_of(gives)):
            log.warning(
                "event=issuer_without_sign_in detail='no authorization_endpoint and token_endpoint for browsers'"
            )
            return SignInInfo()
        ends = document.end_session_endpoint
        return SignInInfo(
            issuer=self._issuer,
            client_id=settings.console_client_id,
            scope=settings.console_scope,
            audience=settings.console_audience or None,
            authorization_endpoint=begins,
            token_endpoint=gives,
            end_session_endpoint=ends if ends is not None and origin_of(ends) is not None else None,
        )

    async def _discovered(self) -> _Discovered:
        body = await self._get(self._issuer.rstrip("/") + _DISCOVERY)
        try:
            document = msgspec.json.decode(body, type=_Discovered)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            raise JwksInvalid("the discovery document cannot be read") from None
        if document.issuer != self._issuer:
            raise JwksInvalid(f"the discovery document is of another issuer, {document.issuer[:200]!r}")
        # An issuer elsewhere must not send this process to itself.
        is_elsewhere = not is_loopback(urlsplit(self._issuer).hostname or "")
        if not is_private(document.jwks_uri) or (is_elsewhere and not document.jwks_uri.startswith("https://")):
            raise JwksInvalid("jwks_uri in the discovery document is not https://HOST/PATH")
        return document

    async def _get(self, url: str) -> bytes:
        answer = await fetched(url, self._tls, bytes_max=JWKS_BYTES_MAX, headers={"Accept": "application/json"})
        if answer.status != _OK:
            raise JwksInvalid(f"status {answer.status}")
        if len(answer.body) > JWKS_BYTES_MAX:
            raise JwksInvalid(f"more than {JWKS_BYTES_MAX} bytes")
        return answer.body


#: The algorithms of each kind of key, by its type and curve.
_ALGORITHMS: Final[Mapping[tuple[str, str], frozenset[str]]] = {
    ("RSA", ""): frozenset(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")),
    ("EC", "P-256"): frozenset(("ES256",)),
    ("EC", "P-384"): frozenset(("ES384",)),
    ("EC", "P-521"): frozenset(("ES512",)),
    ("OKP", "Ed25519"): frozenset(("EdDSA",)),
}


class JwksInvalid(Exception):
    """The answer has no keys that could be used."""


class SigningKey(msgspec.Struct, frozen=True):
    """One key of a provider."""

    #: Differs from every other key's, also from keys of the same id.
    thumbprint: str
    #: The key as PyJWT takes it, for each algorithm that it may be used with.
    by_algorithm: Mapping[str, jwt.PyJWK]


class _Set(msgspec.Struct):
    keys: list[dict[str, Any]]


class KeySet(NamedTuple):
    """The keys of one answer, by their ids."""

    keys: Mapping[str, SigningKey]
    #: Why others were left out.
    left_out: Mapping[str, str]


def signing_keys(body: bytes, algorithms: Collection[str]) -> KeySet:
    """Return the keys of an answer that may sign with one of `algorithms`.

    Raises
    ------
    JwksInvalid
        It is no set of keys, or none of them is usable.

        {"keys": [{"kid": "a", "kty": "RSA", "n": ..., "e": ...}, ...]}  ->  {"a": SigningKey}

    A key is left out if it is not for signatures, too short or too long, of a kind that no allowed algorithm has,
    private (then it is no secret any more), or symmetric (then whoever reads it could sign). So are all keys of an
    id that occurs twice: it does not say which of them is meant.
    """
    try:
        listed = msgspec.json.decode(body, type=_Set).keys
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise JwksInvalid(f"no JSON key set: {type(error).__name__}") from None
    if len(listed) > JWKS_KEYS_MAX:
        raise JwksInvalid(f"more than {JWKS_KEYS_MAX} keys")
    ids = Counter(jwk["kid"] for jwk in listed if isinstance(jwk.get("kid"), str))
    usable, left_out = dict[str, SigningKey](), dict[str, str]()
    for jwk in listed:
        kid = jwk.get("kid")
        if not isinstance(kid, str) or not kid:
            continue
        try:
            if ids[kid] > 1:
                raise JwksInvalid("its id occurs twice")
            usable[kid] = _signing_key(jwk, algorithms)
        except JwksInvalid as error:
            left_out[kid] = str(error)
    if not usable:
        reasons = "; ".join(f"{kid[:64]}: {reason}" for kid, reason in left_out.items())
        raise JwksInvalid(f"none of its keys may sign tokens here: {reasons}")
    return KeySet(usable, left_out)


def _signing_key(jwk: Mapping[str, Any], algorithms: Collection[str]) -> SigningKey:
    if "d" in jwk or "k" in jwk or jwk.get("kty") == "oct":
        raise JwksInvalid("it is no public key: whoever read it can sign with it")
    operations = jwk.get("key_ops", ["verify"])
    if jwk.get("use", "sig") != "sig" or not isinstance(operations, list) or "verify" not in operations:
        raise JwksInvalid("it is not for signatures")
    kind = str(jwk.get("kty")), str(jwk.get("crv", ""))
    fitting = _ALGORITHMS.get(kind, frozenset()).intersection(algorithms)
    if "alg" in jwk:
        fitting = fitting.intersection((str(jwk["alg"]),))
    if not fitting:
        raise JwksInvalid("it fits none of oidc.algorithms")
    try:
        made = {name: jwt.PyJWK.from_dict(dict(jwk), algorithm=name) for name in sorted(fitting)}
    except Exception as error:  # the error depends on what is wrong
        raise JwksInvalid(f"it cannot be read: {type(error).__name__}") from None
    for key in made.values():
        if isinstance(key.key, RSAPublicKey) and not RSA_BITS_MIN <= key.key.key_size <= RSA_BITS_MAX:
            raise JwksInvalid(f"it has {key.key.key_size} bits, and may have {RSA_BITS_MIN} to {RSA_BITS_MAX}")
    identity = [kind, *((name, jwk.get(name)) for name in ("n", "e", "x", "y"))]
    return SigningKey(hashlib.sha256(repr(identity).encode()).hexdigest(), made)
