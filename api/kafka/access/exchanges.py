"""The mechanisms of SASL that the door has: from what a client sends to whose it is (SPEC KAFKA-11).

    PLAIN           user, key             the key goes over the wire: with TLS only, or on the machine itself
    OAUTHBEARER     key or token          as HTTP's `Authorization: Bearer`; likewise
    SCRAM-SHA-*     user, proof           the key does not go over the wire, and the service proves that it knows it

A user is the name of a principal, or the id of one of its keys. A refusal does not say whether there is such a user.
"""

from __future__ import annotations

import binascii
import hmac
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, Protocol

from deltamq.mq.auth.callers import Credential
from deltamq.mq.auth.keys import SCRAM_HASHES, SCRAM_ITERATIONS, Key, Scram, is_proof, salt_of, signature_of
from deltamq.mq.errors import Unauthenticated

PLAIN: Final = "PLAIN"
BEARER: Final = "OAUTHBEARER"
#: All mechanisms, the best first.
MECHANISMS: Final = (*reversed(SCRAM_HASHES), BEARER, PLAIN)
#: Most bytes of one message: a token has at most half of it.
MESSAGE_BYTES_MAX: Final = 16 * 1024
_KEY_VALUE_END: Final = b"\x01"
_WRONG: Final = "the user or the key is wrong: unknown, revoked or over"


class Identities(Protocol):
    """Whose a key or a token is."""

    async def of_token(self, token: str) -> Credential:
        """Return whose a key or token is, or raise `Unauthenticated`."""

    def keys_of(self, user: str) -> Sequence[Key]:
        """Return the live keys of a principal, or the one with this id."""


class Step(NamedTuple):
    """The answer to one message of a client; `credential` is there when it has proved who it is."""

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
            raise _malformed(PLAIN)
        as_whom, user, token = parts
        found = await self._identities.of_token(token)
        its_id = None if found.key is None else found.key.id
        if user not in (found.principal, its_id) or as_whom not in ("", user):
            raise Unauthenticated(_WRONG)
        return Step(b"", found)


class _Bearer:
    """RFC 7628: `n,[a=authzid],` and then `auth=Bearer <token>` among pairs that end with a byte 1."""

    def __init__(self, identities: Identities) -> None:
        self._identities = identities

    async def step(self, message: bytes) -> Step:
        head, _, rest = message.partition(_KEY_VALUE_END)
        binding, _, as_whom = _text(head).partition(",")
        if binding not in ("n", "y"):
            raise _malformed(BEARER)
        pairs = [_text(pair).partition("=") for pair in rest.split(_KEY_VALUE_END) if pair]
        sent = [value for name, _, value in pairs if name == "auth"]
        scheme, _, token = sent[0].partition(" ") if len(sent) == 1 else ("", "", "")
        if scheme.lower() != "bearer":
            raise _malformed(BEARER)
        found = await self._identities.of_token(token.strip())
        if as_whom.rstrip(",") not in ("", f"a={found.principal}"):
            raise Unauthenticated("a caller can act for itself alone: send no other authorization id")
        return Step(b"", found)


class _Scram:
    """RFC 5802, without channel binding: first, challenge, proof, and the service's own proof."""

    def __init__(self, mechanism: str, identities: Identities, nonce: Callable[[], str]) -> None:
        self._mechanism = mechanism
        self._identities = identities
        self._own_nonce = nonce
        #: The keys that the client may mean, each with what proves it; None before the first message.
        self._keys: list[tuple[Key, Scram]] | None = None
        self._header = self._nonce = ""
        self._said = b""

    async def step(self, message: bytes) -> Step:
        return self._first(_text(message)) if self._keys is None else self._final(_text(message), self._keys)

    def _first(self, message: str) -> Step:
        binding, as_whom, bare = [*message.split(",", 2), "", ""][:3]
        said = _pairs(bare, self._mechanism)
        user, theirs = said.get("n", ""), said.get("r", "")
        if binding not in ("n", "y") or not user or not theirs or "m" in said or "tokenauth" in said:
            raise _malformed(self._mechanism)
        user = user.replace("=2C", ",").replace("=3D", "=")
        if as_whom not in ("", f"a={user}"):
            raise Unauthenticated("a caller can act for itself alone: send no other authorization id")
        keys = self._identities.keys_of(user)
        proofs = [(key, key.scram_for(self._mechanism)) for key in keys]
        self._keys = [(key, scram) for key, scram in proofs if scram is not None]
        self._header = f"{binding},{as_whom},"
        self._nonce = theirs + self._own_nonce()
        # A user that does not exist is asked for a proof, too.
        salt = b64encode(salt_of(keys[0].principal if keys else user)).decode()
        iterations = self._keys[0][1].iterations if self._keys else SCRAM_ITERATIONS
        challenge = f"r={self._nonce},s={salt},i={iterations}"
        self._said = f"{bare},{challenge}".encode()
        return Step(challenge.encode())

    def _final(self, message: str, keys: list[tuple[Key, Scram]]) -> Step:
        said = _pairs(message, self._mechanism)
        bare = message.rpartition(",p=")[0]
        signed = self._said + b"," + bare.encode()
        try:
            header = b64decode(said.get("c", ""), validate=True)
            proof = b64decode(said.get("p", ""), validate=True)
        except binascii.Error:
            raise _malformed(self._mechanism) from None
        is_ours = header == self._header.encode() and hmac.compare_digest(said.get("r", ""), self._nonce)
        for key, scram in keys if is_ours else ():
            if is_proof(self._mechanism, scram, signed, proof):
                signature = b64encode(signature_of(self._mechanism, scram, signed))
                return Step(b"v=" + signature, Credential(principal=key.principal, until_ms=key.until_ms, key=key))
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
    pairs = [one.partition("=") for one in message.split(",")]
    found = {name: value for name, _, value in pairs}
    if len(found) != len(pairs) or not message.isascii():
        raise _malformed(mechanism)
    return found


def _malformed(mechanism: str) -> Unauthenticated:
    return Unauthenticated(f"SASL: this is no message of {mechanism}")
