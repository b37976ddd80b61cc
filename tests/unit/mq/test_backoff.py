"""The waits between tries."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from deltamq.mq.backoff import Backoff


def test_waits_double_up_to_the_longest() -> None:
    waits = Backoff(0.01, 1.0)
    assert [waits.after(failures) for failures in (1, 2, 3)] == [0.01, 0.02, 0.04]
    assert waits.after(8) == waits.after(1_000_000) == 1.0


@given(st.floats(0, 1e6), st.floats(0, 1e9), st.floats(1, 100), st.integers(1, 2**40))
def test_waits_never_shrink_and_never_pass_the_longest(first: float, most: float, by: float, failures: int) -> None:
    waits = Backoff(first, most, by)
    assert waits.after(failures) <= waits.after(failures + 1) <= most
