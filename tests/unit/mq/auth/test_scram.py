"""What is stored of a key for SCRAM (SPEC KAFKA-11), against the examples of RFC 5802's family."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamq.mq.auth.changes import decide_put_key, decide_put_principal
from deltamq.mq.auth.keys import (
    SCRAM_HASHES,
    SCRAM_ITERATIONS,
    Scram,
    is_proof,
    new_key,
    password_of,
    salt_of,
    scram_of,
    signature_of,
)
from deltamq.mq.auth.state import AuthState, KeyPut, PasswordPut
from deltamq.mq.errors import Unprocessable
from deltamq.mq.meta.fold import event_from_json, event_to_json

#: RFC 7677: user `user` with password `pencil`.
MESSAGE = (
    b"n=user,r=rOprNGfwEbeRWgbNEkqO,"
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,"
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
)
PROOF = b64decode("dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
SIGNATURE = b64decode("6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


def pencil() -> Scram:
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="), 4_096)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server = hmac.digest(salted, b"Server Key", "sha256")
    return Scram(iterations=4_096, stored_key=b64encode(stored).decode(), server_key=b64encode(server).decode())


def test_kafka_11_the_example_of_the_rfc_is_proved() -> None:
    assert is_proof("SCRAM-SHA-256", pencil(), MESSAGE, PROOF)
    assert signature_of("SCRAM-SHA-256", pencil(), MESSAGE) == SIGNATURE


@given(at=st.integers(0, 8 * 32 - 1), extra=st.binary(max_size=3))
def test_kafka_11_a_proof_with_one_wrong_bit_proves_nothing(at: int, extra: bytes) -> None:
    wrong = (int.from_bytes(PROOF, "big") ^ 1 << at).to_bytes(32, "big")
    assert not is_proof("SCRAM-SHA-256", pencil(), MESSAGE, wrong + extra)
    assert not is_proof("SCRAM-SHA-256", pencil(), MESSAGE, PROOF[: at % 32])
    assert not is_proof("SCRAM-SHA-256", pencil(), MESSAGE + b"x", PROOF)


def test_kafka_11_a_new_key_can_be_proved_by_scram_and_nothing_stored_tells_it() -> None:
    key, token = new_key("reports", b"k" * 8, b"s" * 32, 1)
    for mechanism, name in SCRAM_HASHES.items():
        scram = key.scram_for(mechanism)
        assert scram == scram_of(mechanism, "reports", token)
        salted = hashlib.pbkdf2_hmac(name, token.encode(), salt_of("reports"), SCRAM_ITERATIONS)
        client_key = hmac.digest(salted, b"Client Key", name)
        signature = hmac.digest(hashlib.new(name, client_key).digest(), b"said", name)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        assert is_proof(mechanism, scram, b"said", proof)
    stored = event_to_json(KeyPut(made=key))
    assert token.encode() not in stored and event_from_json("key_put", stored) == KeyPut(made=key)


def test_kafka_11_a_key_of_an_earlier_release_is_read_and_stays_as_it_is() -> None:
    body = {"made": {"id": "00" * 8, "principal": "reports", "digest": "ab" * 32, "created_ms": 5, "until_ms": None}}
    event = event_from_json("key_put", msgspec.json.encode(body))
    assert isinstance(event, KeyPut)
    assert event.made.scram_for("SCRAM-SHA-256") is None
    assert msgspec.json.decode(event_to_json(event)) == body


def test_kafka_27_a_password_is_proved_by_what_is_stored_of_it_which_is_not_the_salted_password() -> None:
    salt = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", salt, 4_096)
    stored = password_of("user", "SCRAM-SHA-256", salt=salt, iterations=4_096, salted=salted, now_ms=5)
    assert is_proof("SCRAM-SHA-256", stored, MESSAGE, PROOF)
    assert signature_of("SCRAM-SHA-256", stored, MESSAGE) == SIGNATURE
    event = PasswordPut(password=stored)
    assert event_from_json("password_put", event_to_json(event)) == event
    assert b64encode(salted) not in event_to_json(event)


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"iterations": 4_095}, "iterations"),
        ({"iterations": 16_385}, "iterations"),
        ({"salt": b""}, "salt"),
        ({"salt": b"s" * 1_025}, "salt"),
        ({"salted": b""}, "salted password"),
    ],
)
def test_kafka_27_a_password_that_nobody_should_have_is_refused(wrong: dict[str, Any], what: str) -> None:
    right = {"salt": b"s", "iterations": 16_384, "salted": b"p", "now_ms": 5}
    assert password_of("user", "SCRAM-SHA-512", **right).iterations == 16_384
    with pytest.raises(Unprocessable, match=what) as refused:
        password_of("user", "SCRAM-SHA-512", **right | wrong)
    assert refused.value.code == "unacceptable_password"


def test_kafka_11_all_keys_of_a_principal_have_one_salt() -> None:
    state = AuthState().apply_all(decide_put_principal(AuthState(), "reports", "", 1))
    for number in (1, 2):
        state = state.apply_all(decide_put_key(state, new_key("reports", bytes([number] * 8), b"s" * 32, 1)[0]))
    assert len({salt_of(one.principal) for one in state.keys.values()}) == 1
    assert salt_of("reports") != salt_of("others") and len(salt_of("x")) == 16
