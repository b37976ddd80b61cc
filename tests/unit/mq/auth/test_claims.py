"""Claims of tokens: whose they are, of which groups, and when (SPEC SEC-15)."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamq.mq.auth.callers import Credential, credential_of
from deltamq.mq.auth.changes import decide_put_principal, decide_remove_principal
from deltamq.mq.auth.state import AuthState
from deltamq.mq.errors import Refused
from deltamq.mq.limits import TOKEN_GROUPS_MAX

GOOD = {"sub": "reports", "exp": 1_000}


def told(**claims: object) -> Credential:
    return credential_of({**GOOD, **claims}, principal_claim="sub", groups_claim="groups")


def test_sec_15_a_token_names_its_principal_its_groups_and_its_times() -> None:
    found = told(groups=["b", "a", "b"], nbf=500, iat=510.5)
    assert found == Credential(
        principal="reports", groups=("group:a", "group:b"), from_ms=510_500 - 60_000, until_ms=1_060_000
    )
    assert told(groups="one").groups == ("group:one",)
    assert told().groups == told(groups=None).groups == told(groups=[]).groups == ()
    assert credential_of({**GOOD, "groups": ["a"]}, principal_claim="sub").groups == ()
    assert credential_of({**GOOD, "azp": "app"}, principal_claim="azp").principal == "app"


@given(st.integers(-10, 2_000), st.integers(-10, 2_000), st.integers(-100_000, 3_000_000))
def test_sec_15_a_token_is_good_between_its_times_each_a_minute_wider(begin: int, end: int, now_ms: int) -> None:
    found = told(nbf=begin, exp=end)
    assert found.is_live(now_ms) == (begin * 1_000 - 60_000 <= now_ms < end * 1_000 + 60_000)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"sub": one} for one in (None, 5, ["reports"], "", "..", "a b", "a\n", "größe", "a" * 128)),
        *({"sub": one} for one in ("group:analysts", "group:")),
        *({"exp": one} for one in (None, "1000", True, math.nan, math.inf, [1_000], 10**400)),
        *({"nbf": one} for one in (None, "5", True, math.nan, -math.inf)),
        {"iat": {}},
        *({"groups": one} for one in ({}, 5, [5], [["a"]], [None])),
        {"groups": [str(number) for number in range(TOKEN_GROUPS_MAX + 1)]},
    ],
)
def test_sec_15_claims_of_a_wrong_kind_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(Refused):
        told(**wrong)


@pytest.mark.parametrize("missing", ["sub", "exp"])
def test_sec_15_a_token_must_name_somebody_and_must_end(missing: str) -> None:
    claims = {name: value for name, value in GOOD.items() if name != missing}
    with pytest.raises(Refused):
        credential_of(claims, principal_claim="sub")


def test_sec_15_a_group_that_no_rule_can_name_is_left_out() -> None:
    assert told(groups=["/staff", "a b", "", "staff", "x" * 127]).groups == ("group:", "group:staff")


def test_sec_15_a_token_is_good_as_long_as_its_principal_is_there() -> None:
    state = AuthState().apply_all(decide_put_principal(AuthState(), "reports", "", 1))
    assert told().is_good(state, 0) and not told().is_good(state, 2_000_000)
    assert not told().is_good(AuthState(), 0)
    assert not told().is_good(state.apply_all(decide_remove_principal(state, "reports")), 0)
