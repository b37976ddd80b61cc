"""What cannot be done is tried less and less often, and by nobody's memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamq.mq.jobs import TRY_EVERY_MS_MAX, TRY_FIRST_MS, is_tried, tries_until

times = st.integers(0, 10_000_000)


@pytest.mark.parametrize(
    ("overdue_s", "tries"),
    [(-1, 0), (0, 1), (0.999, 1), (1, 2), (2.999, 2), (3, 3), (7, 4), (31, 6), (62.999, 6), (63, 7), (123, 8)],
)
def test_tries_come_at_doubling_distances_then_every_minute(overdue_s: float, tries: int) -> None:
    assert tries_until(int(overdue_s * 1_000)) == tries


@given(times, times)
def test_each_is_tried_by_the_first_run_that_sees_it_due(due_ms: int, later_ms: int) -> None:
    assert is_tried(due_ms, since_ms=0, now_ms=due_ms + later_ms) or due_ms == 0
    assert is_tried(due_ms, since_ms=due_ms - 1, now_ms=due_ms + later_ms)
    assert not is_tried(due_ms, since_ms=0, now_ms=due_ms - 1)


@given(times, st.lists(st.integers(1, 50_000), min_size=1, max_size=60))
def test_whoever_runs_however_seldom_tries_each_as_often_as_its_times_came(due_ms: int, waits: list[int]) -> None:
    """Several times that came between two runs are one try."""
    since_ms = due_ms - 1
    for wait in waits:
        now_ms = since_ms + wait
        came = tries_until(now_ms - due_ms) > tries_until(since_ms - due_ms)
        assert is_tried(due_ms, since_ms=since_ms, now_ms=now_ms) == came
        since_ms = now_ms


@given(times)
def test_no_wait_is_longer_than_a_minute_and_none_is_shorter_than_the_first(overdue_ms: int) -> None:
    assert tries_until(overdue_ms + TRY_EVERY_MS_MAX) > tries_until(overdue_ms)
    assert tries_until(overdue_ms + TRY_FIRST_MS) <= tries_until(overdue_ms) + 1


def test_a_clock_that_was_set_back_stops_nothing() -> None:
    assert is_tried(1_000, since_ms=900_000, now_ms=2_000)
