"""The client at the other end of a connection, from its first call to its last, and how it authenticates (KAFKA-11).

    ApiVersions* --SaslHandshake--> mechanism --SaslAuthenticate*--> known --any call--> ...
                                        ^                              |
                                        '------ again, as the same ----'   before the credential ends (KIP-368)

    PLAIN           user, key             the key goes over the wire: with TLS only, or on the machine itself
    OAUTHBEARER     key or token          as HTTP's `Authorization: Bearer`; likewise
    SCRAM-SHA-*     user, proof           the key does not go over the wire, and the service proves that it knows it
    GSSAPI          Kerberos ticket       its key does not go over the wire (`kerberos.py`); if there is a keytab

A user is the name of a principal, or the id of one of its keys. A refusal does not say whether the user exists.
By SCRAM a principal's name means its password, if it has one for the mechanism (KAFKA-27): both sides must agree
on one salt before a proof is sent, and a password's is not that of the keys. A key is then proved by its id.
A connection whose credential is revoked or over is closed, whatever it waits for. So is every one while nobody can tell
whether it is (SPEC SEC-45); who then authenticates is told an error after which Kafka's clients try again.
"""

from __future__ import annotations

import binascii
import hmac
import logging
import secrets
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, Protocol

from deltamq.api.auth.caller import EVERYBODY
from deltamq.api.auth.gate import Gate
from deltamq.api.kafka.access.needs import Asker
from deltamq.api.kafka.messages.cluster_messages import ApiVersionsRequest
from deltamq.api.kafka.messages.codec import Message
from deltamq.api.kafka.messages.errors import ErrorCode, error_code_of
from deltamq.api.kafka.messages.user_messages import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from deltamq.mq.auth.callers import Credential
from deltamq.mq.auth.keys import (
    SCRAM_HASHES,
    SCRAM_ITERATIONS,
    Key,
    Password,
    Scram,
    is_proof,
    salt_of,
    signature_of,
)
from deltamq.mq.errors import Unauthenticated, Unavailable

log = logging.getLogger("deltamq.api")

_OPEN: Final = (ApiVersionsRequest, SaslHandshakeRequest, SaslAuthenticateRequest)
_NONCE_BYTES: Final = 18


class Session:
    """The caller of one connection; used on the event loop."""

    def __init__(
        self,
        gate: Gate | None,
        now_ms: Callable[[], int],
        *,
        is_private: bool,
        kerberos: Callable[[], Exchange] | None = None,
    ) -> None:
        """`gate` is None without authentication; `now_ms` is its clock.

        `is_private`: the connection cannot be overheard, so that keys may be sent as they are. `kerberos` begins an
        exchange by GSSAPI; None if that is not offered.
        """
        self._now_ms = now_ms
        self._gate = gate
        self._kerberos = kerberos
        self._mechanisms = mechanisms_of(is_private=is_private, has_kerberos=kerberos is not None)
        self._mechanism = ""
        self._exchange: Exchange | None = None
        self._credential: Credential | None = None
        #: Requests under way.
        self._asking: set[Asker] = set()
        #: Why authentication failed, None if it did not: there is one answer more.
        self.refusal: Unauthenticated | Unavailable | None = None

    @property
    def is_open(self) -> bool:
        """Whether the client may call: it has authenticated, or need not."""
        return self._gate is None or self._credential is not None

    @property
    def is_unknown(self) -> bool:
        """Whether nobody can tell if the client may still call: it may not, until that is known."""
        return self._gate is not None and self._credential is not None and self._gate.unread() is not None

    @property
    def principal(self) -> str:
        """The client's principal; empty before authentication, and if there is none."""
        return "" if self._credential is None else self._credential.principal

    # Requests.

    def asker(self, request: Message) -> Asker:
        """Return the caller.

        Raises
        ------
        Unauthenticated
            The client has not authenticated, its credential is over, or its principal is disabled.
        """
        if self._gate is None or isinstance(request, _OPEN):
            return Asker(EVERYBODY)
        if self._credential is None:
            raise Unauthenticated("the client must authenticate first (security.protocol SASL_SSL or SASL_PLAINTEXT)")
        self._check(self._credential)
        return Asker(self._gate.caller(self._credential), self._credential)

    def begin(self, asker: Asker) -> None:
        """Note that a request is under way."""
        if not asker.is_anybody:
            self._asking.add(asker)

    def end(self, asker: Asker) -> None:
        """Note that a request was answered."""
        self._asking.discard(asker)

    def is_over(self) -> bool:
        """Whether the connection must end: its access has, that of a request under way has, or nobody can tell."""
        if self._gate is None or self._credential is None:
            return False
        if self.is_unknown:
            return True
        if self._gate.credentials.refusal(self._credential) is not None:
            return True
        return not all(asker.is_allowed_still() for asker in self._asking)

    # Authentication.

    def handshake(self, request: SaslHandshakeRequest, version: int) -> SaslHandshakeResponse:
        """Begin to authenticate by a mechanism; on the same connection again only by the same one."""
        if not version:  # it would be followed by messages without frames of their own
            return self._shaken(ErrorCode.UNSUPPORTED_VERSION)
        if self._gate is None:
            return self._shaken(ErrorCode.ILLEGAL_SASL_STATE)
        wanted = request.mechanism
        if wanted not in self._mechanisms or (self._credential is not None and wanted != self._mechanism):
            return self._shaken(ErrorCode.UNSUPPORTED_SASL_MECHANISM)
        self._mechanism = wanted
        if wanted == GSSAPI and self._kerberos is not None:
            self._exchange = self._kerberos()
        else:
            self._exchange = exchange_of(wanted, self, lambda: secrets.token_urlsafe(_NONCE_BYTES))
        return self._shaken(ErrorCode.NONE)

    def _shaken(self, error: ErrorCode) -> SaslHandshakeResponse:
        return SaslHandshakeResponse(error_code=error, mechanisms=self._mechanisms if self._gate else [])

    async def authenticate(self, request: SaslAuthenticateRequest) -> SaslAuthenticateResponse:
        """Take the client's next message; what follows a refusal is not read any more."""
        if self._gate is None or self._exchange is None:
            return self._refused(ErrorCode.ILLEGAL_SASL_STATE, Unauthenticated("SaslHandshake must come first"))
        unread = self._gate.unread()
        if unread is not None:
            return self._refused(error_code_of(unread), unread)
        try:
            answer, credential = await self._exchange.step(bytes(request.auth_bytes))
            lifetime_ms = 0 if credential is None else self._known(credential)
        except (Unauthenticated, Unavailable) as error:
            return self._refused(ErrorCode.SASL_AUTHENTICATION_FAILED, error)
        return SaslAuthenticateResponse(error_code=ErrorCode.NONE, auth_bytes=answer, session_lifetime_ms=lifetime_ms)

    def _known(self, credential: Credential) -> int:
        """Take the caller's credential; return for how many milliseconds it is good, 0 if it has no end."""
        assert self._gate is not None
        self._exchange = None
        if self._credential is not None and self._credential.principal != credential.principal:
            raise Unauthenticated("this connection is already authenticated; open a new one for another principal")
        self._check(credential)
        self._credential = credential
        return 0 if credential.until_ms is None else max(1, credential.until_ms - self._now_ms())

    def _check(self, credential: Credential) -> None:
        """Raise `Unauthenticated` if a credential is not valid now: Kafka has no other error that ends a connection."""
        assert self._gate is not None
        refusal = self._gate.credentials.refusal(credential)
        if refusal is not None:
            raise Unauthenticated(refusal.detail, code=refusal.code)

    def _refused(self, code: ErrorCode, error: Unauthenticated | Unavailable) -> SaslAuthenticateResponse:
        self.refusal, self._exchange = error, None
        log.info("event=kafka_authentication_refused mechanism=%r detail=%r", self._mechanism, error.detail)
        return SaslAuthenticateResponse(error_code=code, error_message=error.detail)

    # Keys and tokens.

    async def of_token(self, token: str) -> Credential:
        """Return the credential of a key or token, or raise `Unauthenticated`."""
        assert self._gate is not None
        return await self._gate.credentials.of_any(token)

    def keys_of(self, user: str) -> Sequence[Key]:
        """Return the live keys of a principal, or the key with this id."""
        assert self._gate is not None
        return self._gate.credentials.keys_of(user)

    def password(self, user: str, mechanism: str) -> Password | None:
        """Return the password of a principal; None if it has none for this mechanism."""
        assert self._gate is not None
        return self._gate.credentials.password(user, mechanism)


PLAIN: Final = "PLAIN"
BEARER: Final = "OAUTHBEARER"
GSSAPI: Final = "GSSAPI"
#: The mechanisms for keys and tokens, the best first.
MECHANISMS: Final = (*reversed(SCRAM_HASHES), BEARER, PLAIN)
#: Most bytes of one message: a token has at most half of it.
MESSAGE_BYTES_MAX: Final = 16 * 1024
_KEY_VALUE_END: Final = b"\x01"
_WRONG: Final = "the user or the key is wrong: unknown, revoked or over"


def mechanisms_of(*, is_private: bool, has_kerberos: bool) -> list[str]:
    """Return the mechanisms that a connection is offered, the best first."""
    for_keys = [mechanism for mechanism in MECHANISMS if is_private or mechanism not in (PLAIN, BEARER)]
    return [GSSAPI, *for_keys] if has_kerberos else for_keys


class Identities(Protocol):
    """Finds the principals of keys and tokens."""

    async def of_token(self, token: str) -> Credential:
        """Return the credential of a key or token, or raise `Unauthenticated`."""

    def keys_of(self, user: str) -> Sequence[Key]:
        """Return the live keys of a principal, or the key with this id."""

    def password(self, user: str, mechanism: str) -> Password | None:
        """Return the password of a principal; None if it has none for this mechanism."""


class Step(NamedTuple):
    """The answer to one message of a client; with `credential`, the client has authenticated."""

    answer: bytes
    credential: Credential | None = None


class Exchange(Protocol):
    """One authentication, message by message."""

    def step(self, message: bytes) -> Awaitable[Step]:
        """Take a client's message; raise `Unauthenticated` if it proves nothing."""


def exchange_of(mechanism: str, identities: Identities, nonce: Callable[[], str]) -> Exchange:
    """Return a new exchange; `nonce` makes a random text without commas."""
    if mechanism == PLAIN:
        return _Plain(identities)
    if mechanism == BEARER:
        return _Bearer(identities)
    return _Scram(mechanism, identities, nonce)


class _Plain:
    """RFC 4616: `authzid NUL user NUL key`."""

    def __init__(self, identities: Identities) -> None:
        self._identities = identities

    async def step(self, message: bytes) -> Step:
        parts = _text(message).split("\0")
        if len(parts) != 3:
            raise malformed(PLAIN)
        as_whom, user, token = parts
        credential = await self._identities.of_token(token)
        key_id = None if credential.key is None else credential.key.id
        if user not in (credential.principal, key_id) or as_whom not in ("", user):
            raise Unauthenticated(_WRONG)
        return Step(b"", credential)


class _Bearer:
    """RFC 7628: `n,[a=authzid],` and then `auth=Bearer <token>` among pairs that end with a byte 1."""

    def __init__(self, identities: Identities) -> None:
        self._identities = identities

    async def step(self, message: bytes) -> Step:
        head, _, rest = message.partition(_KEY_VALUE_END)
        binding, _, as_whom = _text(head).partition(",")
        if binding not in ("n", "y"):
            raise malformed(BEARER)
        pairs = [_text(pair).partition("=") for pair in rest.split(_KEY_VALUE_END) if pair]
        sent = [value for name, _, value in pairs if name == "auth"]
        scheme, _, token = sent[0].partition(" ") if len(sent) == 1 else ("", "", "")
        if scheme.lower() != "bearer":
            raise malformed(BEARER)
        credential = await self._identities.of_token(token.strip())
        if as_whom.rstrip(",") not in ("", f"a={credential.principal}"):
            raise Unauthenticated("a caller can act only for itself: send no other authorization id")
        return Step(b"", credential)


class _Scram:
    """RFC 5802, without channel binding: first, challenge, proof, and the service's own proof."""

    def __init__(self, mechanism: str, identities: Identities, nonce: Callable[[], str]) -> None:
        self._mechanism = mechanism
        self._identities = identities
        self._own_nonce = nonce
        #: What the client may prove, each with its verifier; None before the first message.
        self._known: list[tuple[Credential, Scram]] | None = None
        self._header = self._nonce = ""
        self._said = b""

    async def step(self, message: bytes) -> Step:
        return self._first(_text(message)) if self._known is None else self._final(_text(message), self._known)

    def _first(self, message: str) -> Step:
        binding, as_whom, bare = [*message.split(",", 2), "", ""][:3]
        said = _pairs(bare, self._mechanism)
        user, theirs = said.get("n", ""), said.get("r", "")
        if binding not in ("n", "y") or not user or not theirs or "m" in said or "tokenauth" in said:
            raise malformed(self._mechanism)
        user = user.replace("=2C", ",").replace("=3D", "=")
        if as_whom not in ("", f"a={user}"):
            raise Unauthenticated("a caller can act only for itself: send no other authorization id")
        salt, self._known = self._provable(user)
        self._header = f"{binding},{as_whom},"
        self._nonce = theirs + self._own_nonce()
        iterations = self._known[0][1].iterations if self._known else SCRAM_ITERATIONS
        challenge = f"r={self._nonce},s={salt},i={iterations}"
        self._said = f"{bare},{challenge}".encode()
        return Step(challenge.encode())

    def _provable(self, user: str) -> tuple[str, list[tuple[Credential, Scram]]]:
        """Return the salt, and what a user can prove: its password, or one of its keys."""
        password = self._identities.password(user, self._mechanism)
        if password is not None:
            return password.salt, [(Credential(principal=user, password=password), password)]
        keys = self._identities.keys_of(user)
        proofs = [(key, key.scram_for(self._mechanism)) for key in keys]
        # A user that does not exist is asked for a proof, too.
        return b64encode(salt_of(keys[0].principal if keys else user)).decode(), [
            (Credential(principal=key.principal, until_ms=key.until_ms, key=key), scram)
            for key, scram in proofs
            if scram is not None
        ]

    def _final(self, message: str, known: list[tuple[Credential, Scram]]) -> Step:
        said = _pairs(message, self._mechanism)
        bare = message.rpartition(",p=")[0]
        signed = self._said + b"," + bare.encode()
        try:
            header = b64decode(said.get("c", ""), validate=True)
            proof = b64decode(said.get("p", ""), validate=True)
        except binascii.Error:
            raise malformed(self._mechanism) from None
        is_ours = header == self._header.encode() and hmac.compare_digest(said.get("r", ""), self._nonce)
        for credential, scram in known if is_ours else ():
            if is_proof(self._mechanism, scram, signed, proof):
                signature = b64encode(signature_of(self._mechanism, scram, signed))
                return Step(b"v=" + signature, credential)
        raise Unauthenticated(
            f"{_WRONG}, or made before this service knew SCRAM: make a new key, or use PLAIN over TLS"
        )


def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise Unauthenticated("SASL: what was sent is not UTF-8") from None


def _pairs(message: str, mechanism: str) -> dict[str, str]:
    """Return `name=value` pairs between commas; each name once, in ASCII."""
    pairs = [pair.partition("=") for pair in message.split(",")]
    values = {name: value for name, _, value in pairs}
    if len(values) != len(pairs) or not message.isascii():
        raise malformed(mechanism)
    return values


def malformed(mechanism: str) -> Unauthenticated:
    """Return the error for what is no message of a mechanism."""
    return Unauthenticated(f"SASL: this is no message of {mechanism}")
