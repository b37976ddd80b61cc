"""Authorization times of exclusive clients (SPEC ORDER-3)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from deltamq.mq.meta.brokers import OwnLease
from deltamq.mq.meta.online import Member
from deltamq.mq.order.authorization import Authorization, Authorizations

A, B = Member("billing", "a", 1), Member("billing", "b", 2)
LEASE = OwnLease(1_000_000)


def test_order_03_a_client_is_offline_when_its_authorization_is_over() -> None:
    meta = Authorizations(LEASE, {A}, 0, length_ms=100)
    assert meta.over({A}, 99) == set()
    assert meta.grant(A, 60) == 100
    assert meta.until_ms(A) == 160
    assert meta.over({A}, 159) == set()
    assert meta.over({A}, 160) == {A}


def test_order_03_who_is_being_called_offline_is_granted_nothing_until_that_is_decided() -> None:
    meta = Authorizations(LEASE, {A}, 0, length_ms=100)
    assert meta.over({A}, 100) == {A}
    assert meta.grant(A, 101) == 0
    meta.decided({A})
    assert meta.grant(A, 102) == 100, "the decision failed: it is still online"
    meta.decided(set())
    assert meta.until_ms(A) is None


def test_order_03_who_takes_the_meta_role_over_gives_everybody_a_whole_length() -> None:
    meta = Authorizations(LEASE, {A}, 500, length_ms=100)
    assert meta.over({A, B}, 599) == set()
    assert meta.over({A, B}, 600) == {A}
    assert meta.over({B}, 699) == {B}, "a client that is found in the log later has it from then on"


def test_order_03_a_leaving_client_is_not_authorized_anew() -> None:
    meta = Authorizations(LEASE, {A}, 0, length_ms=100)
    assert meta.rest(A, 30) == 70
    assert meta.rest(A, 130) == 0


def test_meta_01_no_authorization_is_given_after_the_own_lease() -> None:
    meta = Authorizations(OwnLease(0, lease_ms=50, margin_ms=10), {A}, 0, length_ms=100)
    assert (meta.grant(A, 39), meta.grant(A, 40)) == (100, 0)
    assert meta.until_ms(A) == 139


def test_order_03_answers_in_any_order_leave_the_longest_authorization() -> None:
    mine = Authorization(margin_ms=10)
    mine.granted(200, 100, 205)
    mine.granted(100, 100, 210)
    assert mine.until_ms == 290 and mine.lapses == 1
    assert mine.holds(289) and not mine.holds(290)


def test_order_10_an_authorization_that_comes_back_is_another_one() -> None:
    mine = Authorization(margin_ms=10)
    mine.granted(0, 100, 5)
    mine.granted(50, 100, 89)
    assert mine.lapses == 1
    mine.granted(120, 100, 140)
    assert mine.lapses == 2


@given(
    offset=st.integers(-(10**9), 10**9),
    rate=st.floats(0.97, 1.03),
    sent=st.integers(0, 60_000),
    there=st.integers(0, 40_000),
    back=st.integers(0, 40_000),
)
def test_order_03_a_client_stops_before_the_meta_role_calls_it_offline(
    offset: int, rate: float, sent: int, there: int, back: int
) -> None:
    """Whatever their clocks show, at rates 3 % apart, and however long request and answer take."""
    meta = Authorizations(OwnLease(10**9), (), 0)
    received = sent + there
    length_ms = meta.grant(A, received)
    client = Authorization()
    client.granted(round(offset + sent * rate), length_ms, round(offset + (received + back) * rate))
    offline = meta.until_ms(A)
    assert offline is not None
    assert not client.holds(round(offset + offline * rate))
