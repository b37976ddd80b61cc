"""When a job that the queue needs runs nowhere (SPEC RETRY-7)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamq.mq.jobs import is_missing

NOW = 1_800_000_000_000
MINUTE = 60_000


@pytest.mark.parametrize(
    ("ok_ago", "running_ago", "every", "missing"),
    [
        (None, None, 0, True),
        (MINUTE, None, 250, False),
        (MINUTE + 1, None, 250, True),
        (10 * MINUTE, None, 5 * MINUTE, False),
        (15 * MINUTE + 1, None, 5 * MINUTE, True),
        (None, 30 * MINUTE, 250, False),
        (None, 61 * MINUTE, 250, True),
        (61 * MINUTE, 61 * MINUTE, 250, True),
    ],
    ids=["never", "a minute ago", "over a minute", "slow", "slow and late", "under way", "killed", "killed and late"],
)
def test_retry_7_a_job_is_missing_a_minute_after_its_last_good_run(
    ok_ago: int | None, running_ago: int | None, every: int, missing: bool
) -> None:
    ok = None if ok_ago is None else NOW - ok_ago
    running = None if running_ago is None else NOW - running_ago
    assert is_missing(ok_ms=ok, running_ms=running, every_ms=every, now_ms=NOW) is missing


@given(st.integers(0, 10**9), st.integers(0, 10**7))
def test_retry_7_a_clock_that_was_set_back_makes_no_job_missing(ahead_ms: int, every_ms: int) -> None:
    assert not is_missing(ok_ms=NOW + ahead_ms, running_ms=None, every_ms=every_ms, now_ms=NOW)
