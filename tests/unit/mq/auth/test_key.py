"""Keys: their form, what is stored of them, and what is compared (SPEC SEC-1)."""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamq.mq.auth.keys import Key, digest_of, is_right, key_id_of, token_of

ids, secrets = st.binary(min_size=8, max_size=8), st.binary(min_size=32, max_size=32)


def key_of(token: str, **given: int) -> Key:
    return Key(id=token[4:20], principal="reports", digest=digest_of(token), created_ms=5, **given)


@given(ids, secrets)
def test_sec_01_a_key_has_its_id_and_256_random_bits(id_bytes: bytes, secret: bytes) -> None:
    token = token_of(id_bytes, secret)
    assert re.fullmatch(r"mqk_[0-9a-f]{16}_[A-Za-z0-9_-]{43}", token)
    assert urlsafe_b64decode(token[-43:] + "=") == secret
    assert key_id_of(token) == id_bytes.hex()


@given(ids, secrets, st.integers(0, 63), st.sampled_from("Aa0_-"))
def test_sec_01_a_key_is_right_as_a_whole_or_not_at_all(id_bytes: bytes, secret: bytes, at: int, other: str) -> None:
    token = token_of(id_bytes, secret)
    changed = token[:at] + other + token[at + 1 :]
    assert is_right(key_of(token), token)
    assert is_right(key_of(token), changed) == (changed == token)
    assert not is_right(None, token)


def test_sec_01_nothing_of_the_secret_is_stored() -> None:
    token = token_of(b"12345678", b"s" * 32)
    stored = key_of(token)
    assert token[-43:] not in repr(stored) and re.fullmatch("[0-9a-f]{64}", stored.digest)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "mqk_",
        "mqk_0011223344556677_short",
        "MQK_0011223344556677_" + "a" * 43,
        "mqk_001122334455667Z_" + "a" * 43,
        "mqk_0011223344556677_" + "a" * 44,
        "mqk_0011223344556677_" + "a" * 42 + "=",
        "mqk_0011223344556677_" + "a" * 42 + "ä",
        "mqk_0011223344556677_" + "a" * 43 + "\n",
        " mqk_0011223344556677_" + "a" * 43,
        "eyJhbGciOiJub25lIn0.e30.",
    ],
)
def test_sec_01_other_text_is_no_key(text: str) -> None:
    assert key_id_of(text) is None


def test_sec_01_a_key_may_end_at_a_time() -> None:
    token = token_of(b"12345678", b"s" * 32)
    assert key_of(token).is_live(2**60)
    ends = key_of(token, until_ms=100)
    assert ends.is_live(99) and not ends.is_live(100)
