"""What a service keeps of a key so that its holder can prove by SCRAM that it has it (RFC 5802, RFC 7677; KAFKA-11).

    salted key  = PBKDF2(key, salt, iterations)
    stored key  = H(HMAC(salted key, "Client Key"))        server key = HMAC(salted key, "Server Key")

The key itself cannot be found from these, and a reader of them cannot pass for the holder: a proof needs the client
key, of which only the hash is kept. A thief of the server key could pass for the service, to that holder alone.

The salt follows from the principal, so that all keys of one have the same: a client that gives its principal's name is
told a salt before it is known which of the keys it has. A salt keeps passwords that many have from being guessed once
for all; keys are 256 random bits, which nobody guesses.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import Final

#: Rounds of the slow hash: the fewest that Kafka's clients take. More would only cost time, as the key is random.
SCRAM_ITERATIONS: Final = 4_096
_SALT_BYTES: Final = 16
#: The hash function of each mechanism.
SCRAM_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scram:
    """What is stored of a key for one mechanism; the keys are in base64."""

    iterations: int
    stored_key: str
    server_key: str


def salt_of(name: str) -> bytes:
    """Return the salt of a principal; one that does not exist has one, too."""
    return hashlib.sha256(b"deltamq/scram/" + name.encode()).digest()[:_SALT_BYTES]


def scram_of(mechanism: str, principal: str, token: str) -> Scram:
    """Return what is stored of a principal's key; takes some milliseconds."""
    name = SCRAM_HASHES[mechanism]
    salted = hashlib.pbkdf2_hmac(name, token.encode(), salt_of(principal), SCRAM_ITERATIONS)
    client_key = hmac.digest(salted, b"Client Key", name)
    stored = hashlib.new(name, client_key).digest()
    server = hmac.digest(salted, b"Server Key", name)
    return Scram(
        iterations=SCRAM_ITERATIONS, stored_key=b64encode(stored).decode(), server_key=b64encode(server).decode()
    )


def is_proof(mechanism: str, scram: Scram, message: bytes, proof: bytes) -> bool:
    """Whether `proof` shows that its sender has the key: `message` is what both sides have said."""
    name = SCRAM_HASHES[mechanism]
    stored = b64decode(scram.stored_key)
    signature = hmac.digest(stored, message, name)
    if len(proof) != len(signature):
        return False
    client_key = bytes(one ^ other for one, other in zip(proof, signature, strict=True))
    return hmac.compare_digest(hashlib.new(name, client_key).digest(), stored)


def signature_of(mechanism: str, scram: Scram, message: bytes) -> bytes:
    """Return the service's proof that it knows the key's verifier."""
    return hmac.digest(b64decode(scram.server_key), message, SCRAM_HASHES[mechanism])
