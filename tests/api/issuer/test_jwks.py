"""Which keys of a provider's answer may sign tokens (SPEC SEC-16)."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from hypothesis import example, given
from hypothesis import strategies as st

from deltamq.api.issuer import JwksInvalid, signing_keys
from deltamq.mq.limits import JWKS_KEYS_MAX
from deltamq.tables.oidc_settings import OIDC_ALGORITHMS
from tests.identity_provider import elliptic, jwk_of, rsa_key

GOOD = jwk_of(rsa_key("one"), "one")


def keys_of(*jwks: Any, algorithms: tuple[str, ...] = OIDC_ALGORITHMS) -> dict[str, set[str]]:
    """The algorithms of the keys that are taken, by their ids."""
    found = signing_keys(json.dumps({"keys": jwks}).encode(), algorithms).keys
    return {kid: set(key.by_algorithm) for kid, key in found.items()}


def test_sec_16_a_key_signs_with_what_fits_it_the_settings_and_itself() -> None:
    ed = ed25519.Ed25519PrivateKey.generate().public_key().public_bytes_raw()
    edwards = {"kty": "OKP", "crv": "Ed25519", "x": base64.urlsafe_b64encode(ed).rstrip(b"=").decode(), "kid": "c"}
    curve = jwk_of(elliptic("one"), "b")
    assert keys_of(GOOD, curve, edwards) == {
        "one": {one for one in OIDC_ALGORITHMS if one[:2] in ("RS", "PS")},
        "b": {"ES256"},
        "c": {"EdDSA"},
    }
    assert keys_of(GOOD, curve, algorithms=("RS256", "ES256")) == {"one": {"RS256"}, "b": {"ES256"}}
    assert keys_of({**GOOD, "alg": "PS256"}) == {"one": {"PS256"}}
    without_use = {name: value for name, value in GOOD.items() if name != "use"}
    assert keys_of(without_use, {**GOOD, "kid": "v", "key_ops": ["verify"]}).keys() == {"one", "v"}


LEFT_OUT = {
    "private": jwk_of(rsa_key("two"), "x", private=True),
    "symmetric": {"kty": "oct", "k": "c2VjcmV0", "kid": "x"},
    "symmetric in disguise": {**GOOD, "kid": "x", "k": "c2VjcmV0"},
    "of another use": {**GOOD, "kid": "x", "use": "enc"},
    "of other operations": {**GOOD, "kid": "x", "key_ops": ["encrypt"]},
    "of an algorithm with a shared secret": {**GOOD, "kid": "x", "alg": "HS256"},
    "of an algorithm that does not fit": {**GOOD, "kid": "x", "alg": "ES256"},
    "short": jwk_of(rsa_key("short", 1_024), "x"),
    "without an id": {**GOOD, "kid": None},
    "with an empty id": {**GOOD, "kid": ""},
    "of an unknown kind": {"kty": "lattice", "kid": "x"},
    "without numbers": {"kty": "RSA", "kid": "x"},
    "with numbers that are none": {**GOOD, "kid": "x", "n": "*", "e": 3},
    "off its curve": {**jwk_of(elliptic("one"), "x"), "y": jwk_of(elliptic("two"), "x")["y"]},
    "of a curve that is not checked": {**jwk_of(elliptic("one"), "x"), "crv": "secp256k1"},
}


@pytest.mark.parametrize("how", LEFT_OUT)
def test_sec_16_a_key_that_must_not_sign_is_left_out(how: str) -> None:
    assert keys_of(GOOD, LEFT_OUT[how]).keys() == {"one"}
    with pytest.raises(JwksInvalid):
        keys_of(LEFT_OUT[how])


def test_sec_16_an_id_that_is_there_twice_is_nobodys() -> None:
    other = jwk_of(rsa_key("two"), "one")
    assert keys_of(GOOD, other, {**GOOD, "kid": "two"}).keys() == {"two"}
    with pytest.raises(JwksInvalid):
        keys_of(GOOD, other)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no JSON",
        b"[]",
        b"{}",
        b'{"keys": {}}',
        b'{"keys": []}',
        b'{"keys": ["a"]}',
        b"[" * 100_000,
        b'{"keys": [' + b"[" * 100_000,
        json.dumps({"keys": [{**GOOD, "kid": str(number)} for number in range(JWKS_KEYS_MAX + 1)]}).encode(),
    ],
)
def test_sec_16_what_is_no_set_of_keys_is_refused(body: bytes) -> None:
    with pytest.raises(JwksInvalid):
        signing_keys(body, OIDC_ALGORITHMS)


@example({"key_ops": None})
@example({"kty": ["RSA"], "alg": 5})
@given(
    st.dictionaries(
        st.sampled_from(sorted({*GOOD, "crv", "d", "x", "y", "alg", "key_ops"})),
        st.one_of(st.none(), st.text(), st.integers(), st.lists(st.text())),
    )
)
def test_sec_16_any_key_is_taken_or_left_out(jwk: dict[str, object]) -> None:
    found = keys_of({**GOOD, "kid": "sure"}, {**GOOD, **jwk})
    assert found.keys() >= ({"sure"} if jwk.get("kid") != "sure" else set())
