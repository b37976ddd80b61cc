"""Quotas: what a bucket lets through over time (SPEC SEC-9)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamq.mq.auth.principals import Bucket, quota_of
from deltamq.mq.errors import Unprocessable


@given(
    st.integers(1, 10**9), st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 10**9)), min_size=1, max_size=50)
)
def test_sec_09_over_time_no_more_passes_than_the_rate(rate: int, asked: list[tuple[int, int]]) -> None:
    bucket, now_ms, passed, largest = Bucket(rate, 0), 0, 0, 0
    for later_ms, count in asked:
        now_ms += later_ms
        if bucket.wait_s(now_ms) == 0:
            bucket.take(count)
            passed, largest = passed + count, max(largest, count)
    assert passed <= (rate * (1 + now_ms / 1_000) + largest) * 1.000001


@given(st.integers(1, 10**9), st.integers(0, 10**9))
def test_sec_09_who_waits_as_long_as_told_is_let_through(rate: int, count: int) -> None:
    bucket = Bucket(rate, 0)
    bucket.take(rate + count)
    wait_s = bucket.wait_s(0)
    assert wait_s == pytest.approx(count / rate)
    assert bucket.wait_s(int(wait_s * 1_000) + 1) == 0


def test_sec_09_a_clock_that_goes_back_gives_nothing() -> None:
    bucket = Bucket(10, 5_000)
    bucket.take(20)
    assert bucket.wait_s(1_000) == bucket.wait_s(5_000) == 1


@pytest.mark.parametrize("wrong", [0, -1, 2**53])
@pytest.mark.parametrize("name", ["requests_per_s", "bytes_in_per_s", "bytes_out_per_s"])
def test_sec_09_a_bound_that_is_none_is_refused_by_its_name(name: str, wrong: int) -> None:
    with pytest.raises(Unprocessable) as refused:
        quota_of("reports", **{name: wrong})
    assert refused.value.field == name
    assert quota_of("reports").is_open and not quota_of("reports", **{name: 1}).is_open
