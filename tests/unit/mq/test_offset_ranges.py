"""Offsets as ranges agree with a set of offsets."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from deltamq.mq.offset_ranges import OffsetRanges

ranges = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=12)


def offsets_of(given_ranges: list[tuple[int, int]]) -> set[int]:
    return {offset for low, high in given_ranges for offset in range(low, high)}


@given(ranges, st.integers(0, 45), st.integers(0, 45))
def test_ranges_are_a_set(added: list[tuple[int, int]], dropped: int, at: int) -> None:
    held, plain = OffsetRanges(added), offsets_of(added)
    held.drop_below(dropped)
    plain = {offset for offset in plain if offset >= dropped}
    assert offsets_of(list(held)) == plain
    assert (at in held) == (at in plain)
    assert held.gap_from(at) == next(offset for offset in range(at, 100) if offset not in plain)
    assert held.next_from(at) == min((offset for offset in plain if offset >= at), default=None)


@given(ranges, st.integers(0, 45), st.integers(0, 45))
def test_gaps_are_what_is_not_in_the_set(added: list[tuple[int, int]], low: int, high: int) -> None:
    gaps = list(OffsetRanges(added).gaps(low, high))
    assert [offset for one in gaps for offset in range(*one)] == sorted({*range(low, high)} - offsets_of(added))
    assert all(one[0] < one[1] for one in gaps)


@given(ranges)
def test_ranges_ascend_and_do_not_touch(added: list[tuple[int, int]]) -> None:
    held = list(OffsetRanges(added))
    assert all(low < high for low, high in held)
    assert all(one[1] < other[0] for one, other in pairwise(held))
    assert len(OffsetRanges(added)) == len(held)
    assert list(OffsetRanges(reversed(added))) == held
