"""Columns of few rows are what Arrow's own makers would make."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamq.tables.few_rows import (
    FEW_ROWS_MAX,
    binary_column,
    repeated_int64s,
    repeated_texts,
    text_column,
    zeros,
)
from deltamq.tables.schema import TIME

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(st.lists(TEXTS | st.none(), max_size=20))
def test_texts_are_what_arrow_makes_of_them(values: list[str | None]) -> None:
    made = text_column(values)
    made.validate(full=True)
    assert made.equals(pa.array(values, pa.string()))


@given(st.lists(st.binary(max_size=20) | st.none(), max_size=20))
def test_byte_strings_are_what_arrow_makes_of_them(values: list[bytes | None]) -> None:
    made = binary_column(values)
    made.validate(full=True)
    assert made.equals(pa.array(values, pa.binary()))


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20))
def test_numbers_are_what_arrow_makes_of_them(values: list[int]) -> None:
    once = [1] * len(values)
    assert repeated_int64s(values, once, pa.int64()).equals(pa.array(values, pa.int64()))
    assert repeated_int64s(values, once, TIME).cast(pa.int64()).equals(pa.array(values, pa.int64()))


@given(TEXTS, st.integers(1, 2 * FEW_ROWS_MAX))
def test_one_text_many_times_and_zeros_are_what_arrow_repeats(text: str, count: int) -> None:
    assert text_column([text] * count).equals(pa.repeat(text, count))
    assert binary_column([text.encode()] * count).equals(pa.repeat(text.encode(), count))
    assert zeros(count).equals(pa.repeat(pa.scalar(0, pa.int32()), count))


@given(st.lists(st.tuples(TEXTS, st.integers(-(2**63), 2**63 - 1), st.integers(0, 30)), max_size=10))
def test_texts_and_numbers_that_repeat_are_what_arrow_makes_of_them(runs: list[tuple[str, int, int]]) -> None:
    counts = [count for _, _, count in runs]
    texts = repeated_texts([text for text, _, _ in runs], counts)
    texts.validate(full=True)
    assert texts.equals(pa.array([text for text, _, count in runs for _ in range(count)], pa.string()))
    numbers = [number for _, number, count in runs for _ in range(count)]
    for kind in (pa.int64(), TIME):
        made = repeated_int64s([number for _, number, _ in runs], counts, kind)
        assert made.cast(pa.int64()).equals(pa.array(numbers, pa.int64()))


def test_a_text_that_is_none_raises_as_arrow_does() -> None:
    with pytest.raises(UnicodeEncodeError):
        text_column(["\ud800"])
    with pytest.raises(UnicodeEncodeError):
        pa.array(["\ud800"], pa.string())
