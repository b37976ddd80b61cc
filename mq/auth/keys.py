"""Keys: `mqk_<id>_<secret>`, 256 random bits that a principal shows with each call (SPEC SEC-1).

    mqk_ 9f86d081884c7d65 _ kJ3...43 characters...
         '- 8 bytes, hex    '- 32 bytes, base64url

The whole key is shown once, when it is made. What is stored is its SHA-256: 256 random bits cannot be guessed, so a
slow hash, which is for passwords, would only cost time. Beside it is what a service needs so that the holder can prove
by SCRAM that it has the key, without showing it (RFC 5802, RFC 7677; KAFKA-11). Of a password, which Kafka's clients
salt themselves, nothing else is stored (KAFKA-27):

    salted key  = PBKDF2(key, salt, iterations)
    stored key  = H(HMAC(salted key, "Client Key"))        server key = HMAC(salted key, "Server Key")

The key itself cannot be found from these, and a reader of them cannot pass for the holder: a proof needs the client
key, of which only the hash is kept. A thief of the server key could pass for the service, only to that holder. A
password can be guessed from what is stored, as far as people choose it badly; a key cannot.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import b64decode, b64encode, urlsafe_b64encode
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from deltamq.mq.errors import Unprocessable
from deltamq.mq.limits import KEY_ID_BYTES, PASSWORD_ITERATIONS_MAX, PASSWORD_SALT_BYTES_MAX, SECRET_BYTES

#: Rounds of the slow hash: the fewest that Kafka takes. More would only cost time, as the key is random.
SCRAM_ITERATIONS: Final = 4_096
_SALT_BYTES: Final = 16
#: The hash function of each mechanism.
SCRAM_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


class Scram(msgspec.Struct, frozen=True, kw_only=True):
    """What is stored of a key for one mechanism; the keys are in base64."""

    iterations: int
    stored_key: str
    server_key: str


class Password(Scram, frozen=True, kw_only=True):
    """What is stored of a principal's password for one mechanism; the salt is in base64, too."""

    principal: str
    mechanism: str
    salt: str
    created_ms: int


def password_of(
    principal: str, mechanism: str, *, salt: bytes, iterations: int, salted: bytes, now_ms: int
) -> Password:
    """Return what is stored of a password that a client has salted (SPEC KAFKA-27).

    Raises
    ------
    Unprocessable
        `unacceptable_password`: nobody could prove it, or it would be too easy to guess.
    """
    if not SCRAM_ITERATIONS <= iterations <= PASSWORD_ITERATIONS_MAX:
        detail = f"iterations: must be from {SCRAM_ITERATIONS} to {PASSWORD_ITERATIONS_MAX}"
        raise Unprocessable(detail, code="unacceptable_password", field="iterations")
    if not 1 <= len(salt) <= PASSWORD_SALT_BYTES_MAX:
        detail = f"salt: must have 1 to {PASSWORD_SALT_BYTES_MAX} bytes"
        raise Unprocessable(detail, code="unacceptable_password", field="salt")
    if not salted:
        raise Unprocessable("the salted password is empty", code="unacceptable_password", field="salted_password")
    scram = _verifier(mechanism, salted, iterations)
    return Password(
        principal=principal,
        mechanism=mechanism,
        salt=b64encode(salt).decode(),
        iterations=iterations,
        stored_key=scram.stored_key,
        server_key=scram.server_key,
        created_ms=now_ms,
    )


def salt_of(name: str) -> bytes:
    """Return the salt of a principal, also of one that does not exist.

    It follows from the name, so that all keys of a principal share it: the service must send it before it knows which
    key the client has. A salt keeps common passwords from being guessed once for all; 256 random bits need none.
    """
    return hashlib.sha256(b"deltamq/scram/" + name.encode()).digest()[:_SALT_BYTES]


def scram_of(mechanism: str, principal: str, token: str) -> Scram:
    """Return what is stored of a principal's key; takes some milliseconds."""
    salted = hashlib.pbkdf2_hmac(SCRAM_HASHES[mechanism], token.encode(), salt_of(principal), SCRAM_ITERATIONS)
    return _verifier(mechanism, salted, SCRAM_ITERATIONS)


def _verifier(mechanism: str, salted: bytes, iterations: int) -> Scram:
    name = SCRAM_HASHES[mechanism]
    client_key = hmac.digest(salted, b"Client Key", name)
    stored = hashlib.new(name, client_key).digest()
    server = hmac.digest(salted, b"Server Key", name)
    return Scram(iterations=iterations, stored_key=b64encode(stored).decode(), server_key=b64encode(server).decode())


def is_proof(mechanism: str, scram: Scram, message: bytes, proof: bytes) -> bool:
    """Whether `proof` shows that its sender has the key: `message` is what both sides have said."""
    name = SCRAM_HASHES[mechanism]
    stored = b64decode(scram.stored_key)
    signature = hmac.digest(stored, message, name)
    if len(proof) != len(signature):
        return False
    client_key = bytes(left ^ right for left, right in zip(proof, signature, strict=True))
    return hmac.compare_digest(hashlib.new(name, client_key).digest(), stored)


def signature_of(mechanism: str, scram: Scram, message: bytes) -> bytes:
    """Return the service's proof that it knows the key's verifier."""
    return hmac.digest(b64decode(scram.server_key), message, SCRAM_HASHES[mechanism])


#: How long before its end a key is warned of: a week.
_ENDS_SOON_MS: Final = 7 * 24 * 3_600_000
_TOKEN: Final = re.compile(rf"mqk_([0-9a-f]{{{2 * KEY_ID_BYTES}}})_[A-Za-z0-9_\-]{{43}}")
#: What a key that does not exist is compared with, so that the answer takes as long as for one that does.
_NO_DIGEST: Final = "0" * 64


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """A key of a principal, without its secret."""

    id: str
    principal: str
    #: SHA-256 of the whole key, in hexadecimal digits.
    digest: str
    created_ms: int
    #: When it ends, in milliseconds since 1970; None for one that stays until it is revoked.
    until_ms: int | None = None
    #: What proves the key by SCRAM, by mechanism; keys of earlier releases have none, and cannot be proved so.
    scram: Mapping[str, Scram] | UnsetType = UNSET

    def scram_for(self, mechanism: str) -> Scram | None:
        """Return what proves the key by a mechanism of SCRAM; None if it cannot be proved so."""
        return None if self.scram is UNSET else self.scram.get(mechanism)

    def is_live(self, now_ms: int) -> bool:
        """Whether it has not ended."""
        return self.until_ms is None or now_ms < self.until_ms


def token_of(id_bytes: bytes, secret: bytes) -> str:
    """Return the key with this id and these random bytes, as its principal sends it."""
    assert len(id_bytes) == KEY_ID_BYTES and len(secret) == SECRET_BYTES, "keys are of fixed length"
    return f"mqk_{id_bytes.hex()}_{urlsafe_b64encode(secret).rstrip(b'=').decode()}"


def new_key(
    principal: str, id_bytes: bytes, secret: bytes, now_ms: int, until_ms: int | None = None
) -> tuple[Key, str]:
    """Return a key of a principal, and its text, which cannot be recovered later; takes some milliseconds."""
    token = token_of(id_bytes, secret)
    key = Key(
        id=id_bytes.hex(),
        principal=principal,
        digest=digest_of(token),
        created_ms=now_ms,
        until_ms=until_ms,
        scram={mechanism: scram_of(mechanism, principal, token) for mechanism in SCRAM_HASHES},
    )
    return key, token


def key_id_of(token: str) -> str | None:
    """Return the id in a key; None if the text is no key."""
    match = _TOKEN.fullmatch(token)
    return None if match is None else match[1]


def digest_of(token: str) -> str:
    """Return what is stored of a key."""
    return hashlib.sha256(token.encode()).hexdigest()


def is_right(key: Key | None, token: str) -> bool:
    """Whether `token` is this key; the time that it takes does not depend on how much of the token is right."""
    stored = _NO_DIGEST if key is None else key.digest
    return hmac.compare_digest(stored, digest_of(token)) and key is not None


def ending_keys(keys: Iterable[Key], now_ms: int) -> list[Key]:
    """Return the live keys that end within a week."""
    return [key for key in keys if key.until_ms is not None and now_ms < key.until_ms <= now_ms + _ENDS_SOON_MS]
