"""The producer's side of the third table, beside a count row by row."""

from __future__ import annotations

import json
import zlib
from collections import defaultdict

import pyarrow as pa
import pytest
from msgspec.structs import asdict, replace

from deltamq.jobs.flights.agreement import compare_streams
from deltamq.jobs.flights.events import events_of, read_airports, read_flights
from deltamq.jobs.flights.streaming import expected_stream


@pytest.fixture(scope="module")
def bodies() -> pa.ChunkedArray:
    """Some of the real events; cancellations, which have no delay, among them."""
    return events_of(read_flights().slice(0, 2_500), read_airports())["body"]


def test_the_sums_are_those_of_a_count_row_by_row(bodies: pa.ChunkedArray) -> None:
    hours: defaultdict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    kinds = ("arrival", "departure", "cancellation")
    for body in map(json.loads, bodies.to_pylist()):
        sums = hours[body["carrier"], body["time"][:13]]
        sums[kinds.index(body["event"])] += 1
        sums[3] += body["delay_min"] or 0 if body["event"] == "departure" else 0
    found = expected_stream(bodies)
    assert found.events == len(bodies)
    totals = [found.arrivals, found.departures, found.cancellations, found.delay_min]
    assert totals == [sum(one) for one in zip(*hours.values(), strict=True)]
    assert min(totals[:3]) > 0
    assert (found.carriers, found.carrier_hours) == (len({carrier for carrier, _ in hours}), len(hours))
    written = ["|".join([*key, *map(str, sums)]) for key, sums in hours.items()]
    assert found.hours_crc == sum(zlib.crc32(line.encode()) for line in written)


def test_any_number_that_differs_is_a_line_that_disagrees(bodies: pa.ChunkedArray) -> None:
    right = expected_stream(bodies)
    assert all(line.agree for line in compare_streams(right, right, right))
    for name, value in asdict(right).items():
        wrong = replace(right, **{name: value + 1})
        assert [line.agree for line in compare_streams(right, right, wrong)].count(False) == 1
        assert [line.agree for line in compare_streams(right, wrong, right)].count(False) == 1
