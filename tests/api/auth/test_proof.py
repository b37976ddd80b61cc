"""Proofs that a process of the cluster forwarded a request (SPEC SEC-6)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from deltamq.api.auth.forwarded import PROOF_MS_MAX, Prover, derived

SECRET = b"0123456789abcdef" * 2
NOW = 1_700_000_000_000
parts = st.lists(st.binary(max_size=8), min_size=1, max_size=5).map(tuple)


def prover(secret: bytes = SECRET, now_ms: int = NOW) -> Prover:
    return Prover(secret, lambda: now_ms)


@given(parts, parts)
def test_sec_06_a_proof_is_good_for_the_parts_that_it_was_made_for(
    made: tuple[bytes, ...], shown: tuple[bytes, ...]
) -> None:
    proof = prover().make(*made)
    assert prover().is_right(proof, *made)
    assert prover().is_right(proof, *shown) == (made == shown)
    assert not prover(b"another secret" * 3).is_right(proof, *made)


def test_sec_06_a_proof_is_good_for_a_minute() -> None:
    proof = prover().make(b"a")
    for apart in (-PROOF_MS_MAX, PROOF_MS_MAX):
        assert prover(now_ms=NOW + apart).is_right(proof, b"a")
    for apart in (-PROOF_MS_MAX - 1, PROOF_MS_MAX + 1):
        assert not prover(now_ms=NOW + apart).is_right(proof, b"a")


@given(st.binary(max_size=90))
def test_sec_06_anything_else_is_no_proof(proof: bytes) -> None:
    assert not prover().is_right(proof, b"a")


def test_sec_06_a_proof_cannot_be_given_another_time() -> None:
    _, _, digest = prover().make(b"a").partition(b".")
    assert not prover().is_right(b"%d.%s" % (NOW + 1, digest), b"a")


def test_sec_06_keys_for_different_uses_differ() -> None:
    assert derived(SECRET, b"handles") != derived(SECRET, b"forwarded requests") != SECRET
