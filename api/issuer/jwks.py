"""A provider's answer with its keys (RFC 7517), and which of them may sign tokens.

    {"keys": [{"kid": "a", "kty": "RSA", "n": ..., "e": ...}, ...]}  ->  {"a": SigningKey}

A key is left out if it is not for signatures, too short or too long, of a kind that no allowed algorithm has, private
(then it is no secret any more), or symmetric (then anybody who reads it could sign). So are all keys of an id that is
there twice: which of them is meant is not told.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from deltamq.mq.limits import JWKS_KEYS_MAX, RSA_BITS_MAX, RSA_BITS_MIN

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


@dataclass(frozen=True, slots=True)
class SigningKey:
    """One key of a provider."""

    #: Tells it from every other key, also of the same id.
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
    """
    try:
        listed = msgspec.json.decode(body, type=_Set).keys
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise JwksInvalid(f"no JSON of a key set: {type(error).__name__}") from None
    if len(listed) > JWKS_KEYS_MAX:
        raise JwksInvalid(f"more than {JWKS_KEYS_MAX} keys")
    ids = Counter(one["kid"] for one in listed if isinstance(one.get("kid"), str))
    found, left_out = dict[str, SigningKey](), dict[str, str]()
    for one in listed:
        kid = one.get("kid")
        if not isinstance(kid, str) or not kid:
            continue
        try:
            if ids[kid] > 1:
                raise JwksInvalid("its id is there twice")
            found[kid] = _signing_key(one, algorithms)
        except JwksInvalid as error:
            left_out[kid] = str(error)
    if not found:
        reasons = "; ".join(f"{kid[:64]}: {reason}" for kid, reason in left_out.items())
        raise JwksInvalid(f"none of its keys may sign tokens here: {reasons}")
    return KeySet(found, left_out)


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
    except Exception as error:  # what a wrong number makes of it differs
        raise JwksInvalid(f"it cannot be read: {type(error).__name__}") from None
    for one in made.values():
        if isinstance(one.key, RSAPublicKey) and not RSA_BITS_MIN <= one.key.key_size <= RSA_BITS_MAX:
            raise JwksInvalid(f"it has {one.key.key_size} bits, and may have {RSA_BITS_MIN} to {RSA_BITS_MAX}")
    told = [kind, *((name, jwk.get(name)) for name in ("n", "e", "x", "y"))]
    return SigningKey(hashlib.sha256(repr(told).encode()).hexdigest(), made)
