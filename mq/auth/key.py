"""Keys: `mqk_<id>_<secret>`, 256 random bits that a principal shows with each call (SPEC SEC-1).

    mqk_ 9f86d081884c7d65 _ kJ3...43 characters...
         '- 8 bytes, hex    '- 32 bytes, base64url

The whole key is shown once, when it is made. What is stored is its SHA-256: 256 random bits cannot be guessed, so a
slow hash, which is for passwords, would only cost time. What SCRAM needs is stored beside it (`mq.auth.scram`).
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from msgspec import UNSET, UnsetType

from deltamq.mq.auth.scram import SCRAM_HASHES, Scram, scram_of
from deltamq.mq.auth_limits import KEY_ID_BYTES, SECRET_BYTES

_TOKEN: Final = re.compile(rf"mqk_([0-9a-f]{{{2 * KEY_ID_BYTES}}})_[A-Za-z0-9_\-]{{43}}")
#: What a key that does not exist is compared with, so that the answer takes as long as for one that does.
_NOBODYS: Final = "0" * 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
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
    """Return a key of a principal, and its text, which nobody can find out again; takes some milliseconds."""
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
    found = _TOKEN.fullmatch(token)
    return None if found is None else found[1]


def digest_of(token: str) -> str:
    """Return what is stored of a key."""
    return hashlib.sha256(token.encode()).hexdigest()


def is_right(key: Key | None, token: str) -> bool:
    """Whether `token` is this key; the time that it takes does not depend on how much of the token is right."""
    stored = _NOBODYS if key is None else key.digest
    return hmac.compare_digest(stored, digest_of(token)) and key is not None
