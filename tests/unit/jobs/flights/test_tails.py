"""Which aircraft the group `repairs` cannot deal with: the worker's answer for a batch is the one for each tail."""

from __future__ import annotations

import zlib

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from deltamq.jobs.flights.events import read_flights
from deltamq.jobs.flights.group_account import ONE_IN, REMAINDER, failing, fails


@given(st.lists(st.none() | st.text(max_size=6)))
def test_a_batch_fails_where_its_tails_fail(tails: list[str | None]) -> None:
    bad = next(f"N{n}" for n in range(100_000) if zlib.crc32(f"N{n}".encode()) % ONE_IN == REMAINDER)
    column = pa.chunked_array([tails, [bad, None, bad]], pa.string())
    assert failing(column).tolist() == [*map(fails, tails), True, False, True]


def test_an_empty_batch_has_no_failures() -> None:
    assert failing(pa.chunked_array([[]], pa.string())).tolist() == []


def test_about_one_aircraft_in_a_thousand_fails() -> None:
    tails = read_flights()["tailnum"].unique().drop_null().to_pylist()
    assert 1 <= sum(map(fails, tails)) <= 3 * len(tails) / ONE_IN
    assert not fails(None)
