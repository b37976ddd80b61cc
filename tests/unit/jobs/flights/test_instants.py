"""Clock readings and instants: days, time zones, summer time."""

from __future__ import annotations

import numpy as np
import pytest

from deltamq.jobs.flights.events import Times, at, clock_minutes, first_reading, to_utc, to_wall

NEW_YORK, DENVER = "America/New_York", "America/Denver"


def times(*written: str) -> Times:
    return np.array(written, dtype="datetime64[s]")


@pytest.mark.parametrize(("reading", "minutes"), [(1, 1), (517, 317), (2359, 1439), (2400, 0), (0, 0)])
def test_a_published_reading_as_minutes(reading: int, minutes: int) -> None:
    assert clock_minutes(np.array([reading])).tolist() == [minutes]


def test_a_day_and_minutes_are_a_reading() -> None:
    assert at(times("2013-01-01T23:00"), np.array([317])).tolist() == times("2013-01-01T05:17").tolist()


@pytest.mark.parametrize(
    ("wall", "utc"),
    [
        ("2013-01-01T05:15", "2013-01-01T10:15"),
        ("2013-07-01T05:15", "2013-07-01T09:15"),
        ("2013-11-03T01:30", "2013-11-03T05:30"),  # shown twice: the first
        ("2013-03-10T02:30", "2013-03-10T07:00"),  # never shown: when it was skipped
    ],
)
def test_flight_f4_readings_in_new_york(wall: str, utc: str) -> None:
    assert to_utc(times(wall), NEW_YORK).tolist() == times(utc).tolist()


def test_unknown_stays_unknown() -> None:
    assert np.isnat(to_utc(times("NaT"), NEW_YORK)).all()
    assert np.isnat(to_wall(times("NaT"), NEW_YORK)).all()


@pytest.mark.parametrize(
    ("after_utc", "clock", "landed_utc"),
    [
        ("2013-01-01T10:17", 830, "2013-01-01T15:30"),  # the same day
        ("2013-01-02T03:00", 15, "2013-01-02T07:15"),  # 20:00 in Denver; lands after midnight
        ("2013-01-02T03:00", 2400, "2013-01-02T07:00"),  # the midnight that ends the day
        ("2013-01-01T15:30", 830, "2013-01-02T15:30"),  # it is 8:30 now: the next one
        ("2013-03-10T04:00", 330, "2013-03-10T09:30"),  # summer time begins on the way: an hour earlier
    ],
)
def test_flight_f2_first_reading_in_denver(after_utc: str, clock: int, landed_utc: str) -> None:
    found = first_reading(times(after_utc), clock_minutes(np.array([clock])), DENVER)
    assert found.tolist() == times(landed_utc).tolist()
