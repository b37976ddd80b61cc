"""Flights as events, in the order of real time.

The source has clock readings (in New York when a flight left, at its destination when it landed), and of dates only
that of the scheduled departure. So:

|     | the source has                               | the events have                                                 |
|-----|----------------------------------------------|-----------------------------------------------------------------|
| F1  | scheduled departure and delay                | it left at the sum of both, across days                         |
| F2  | the clock at the landing, no day             | it landed when that clock first had this reading after it left  |
| F3  | no time zone for BQN, PSE, SJU, STT          | that of Puerto Rico, which applies to all four                  |
| F4  | a clock reading that came twice (November 3) | the first of the two                                            |
| F5  | no departure time: cancelled                 | a cancellation, at the scheduled departure: no other time known |
| F6  | a departure, no arrival time (diverted)      | a departure only: no arrival is made up                         |
| F7  | an arrival time, no arrival delay (diverted) | an arrival whose delay is null                                  |
| F8  | no tail number (all of these are cancelled)  | no key: any partition, no order                                 |
| F9  | the clock at the scheduled landing           | as F2, from the scheduled departure                             |
| F10 | events of one minute                         | arrivals, departures, cancellations; each in the source's order |

Each event is a row: `key` is the tail number, `tag` the kind of event, `body` one JSON object, `time` its instant.
Tests check F1, F2 and F9 against redundant columns of the source (`dep_time`, `time_hour`, `air_time`, `arr_delay`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from deltamq.jobs.flights.data.instants import Times, at, clock_minutes, first_reading, to_utc
from deltamq.jobs.flights.failure import JobFailed

ARRIVAL: Final = "arrival"
DEPARTURE: Final = "departure"
CANCELLATION: Final = "cancellation"
#: The kinds in the order of F10.
KINDS: Final = (ARRIVAL, DEPARTURE, CANCELLATION)

#: The airports of F3.
ZONES_NOT_IN_SOURCE: Final = dict.fromkeys(("BQN", "PSE", "SJU", "STT"), "America/Puerto_Rico")

#: The fields of a body, in order, with their Spark SQL types.
BODY_FIELDS: Final = {
    "event": "STRING",
    "time": "TIMESTAMP",
    "scheduled": "TIMESTAMP",
    "delay_min": "INT",
    "carrier": "STRING",
    "flight": "INT",
    "aircraft": "STRING",
    "origin": "STRING",
    "dest": "STRING",
    "distance_miles": "INT",
}


def events_of(flights: pa.Table, zones: Mapping[str, str]) -> pa.Table:
    """Return the events of `flights`: columns key, tag, body, time, in the order of time."""
    scheduled = scheduled_departures(flights, zones)
    due = scheduled_arrivals(flights, zones)
    departed = departure_times(flights, zones)
    arrived = arrival_times(flights, zones)
    cancelled = np.where(np.isnat(departed), scheduled, np.datetime64("NaT"))
    parts = [
        _part(flights, ARRIVAL, arrived, scheduled=due, delay=flights["arr_delay"]),
        _part(flights, DEPARTURE, departed, scheduled=scheduled, delay=flights["dep_delay"]),
        _part(flights, CANCELLATION, cancelled, scheduled=scheduled, delay=flights["dep_delay"]),
    ]
    return _in_order(parts)


def scheduled_departures(flights: pa.Table, zones: Mapping[str, str]) -> Times:
    """Return the scheduled departure of each flight."""
    months = (flights["year"].to_numpy() - 1970) * 12 + flights["month"].to_numpy() - 1
    days = months.astype("datetime64[M]").astype("datetime64[D]") + (flights["day"].to_numpy() - 1)
    wall = at(days, clock_minutes(flights["sched_dep_time"].to_numpy()))
    scheduled = _unknown(len(flights))
    for zone, rows in _by_zone(flights["origin"], zones).items():
        scheduled[rows] = to_utc(wall[rows], zone)
    return scheduled


def scheduled_arrivals(flights: pa.Table, zones: Mapping[str, str]) -> Times:
    """Return the scheduled landing of each flight (F9)."""
    return _landings(flights, zones, scheduled_departures(flights, zones), flights["sched_arr_time"])


def departure_times(flights: pa.Table, zones: Mapping[str, str]) -> Times:
    """Return when each flight left (F1); NaT if it was cancelled (F5)."""
    delay = flights["dep_delay"]
    minutes = pc.fill_null(delay, 0).to_numpy().astype("timedelta64[m]")
    return np.where(pc.is_valid(delay).to_numpy(), scheduled_departures(flights, zones) + minutes, np.datetime64("NaT"))


def arrival_times(flights: pa.Table, zones: Mapping[str, str]) -> Times:
    """Return when each flight landed (F2, F4); NaT if it did not (F5, F6)."""
    return _landings(flights, zones, departure_times(flights, zones), flights["arr_time"])


def _landings(flights: pa.Table, zones: Mapping[str, str], departed: Times, clock: pa.ChunkedArray) -> Times:
    """Return when the destination's clock first reads `clock` after `departed`; NaT if either is unknown."""
    known = pc.is_valid(clock).to_numpy() & ~np.isnat(departed)
    minutes = clock_minutes(pc.fill_null(clock, 0).to_numpy())
    landed = _unknown(len(flights))
    for zone, at_zone in _by_zone(flights["dest"], zones).items():
        rows = at_zone & known
        landed[rows] = first_reading(departed[rows], minutes[rows], zone)
    return landed


def _by_zone(airports: pa.ChunkedArray, zones: Mapping[str, str]) -> dict[str, NDArray[np.bool_]]:
    """Return for each time zone a mask of the rows whose airport lies in it."""
    coded = airports.combine_chunks().dictionary_encode()
    known = {**ZONES_NOT_IN_SOURCE, **zones}
    zone_of = [known.get(code) for code in coded.dictionary.to_pylist()]
    if None in zone_of:
        code = coded.dictionary[zone_of.index(None)].as_py()
        raise JobFailed(f"unknown time zone of airport {code}")
    row_zones = np.array(zone_of, dtype=object)[coded.indices.to_numpy()]
    return {zone: row_zones == zone for zone in dict.fromkeys(zone_of) if zone is not None}


def _unknown(count: int) -> Times:
    return np.full(count, np.datetime64("NaT"), dtype="datetime64[s]")


# Rows ----------------------------------------------------------------------------------------------------------


def _part(flights: pa.Table, kind: str, time: Times, *, scheduled: Times, delay: pa.ChunkedArray) -> pa.Table:
    """Return the events of one kind, in the source's order, with the columns by which `_in_order` sorts."""
    rows = np.flatnonzero(~np.isnat(time))
    of = flights.take(pa.array(rows))
    instants = time[rows]
    values = {
        "event": _text(pa.repeat(kind, len(rows))),
        "time": _text(_written(instants)),
        "scheduled": _text(_written(scheduled[rows])),
        "delay_min": delay.take(pa.array(rows)).cast(pa.string()),
        "carrier": _text(of["carrier"]),
        "flight": of["flight"].cast(pa.string()),
        "aircraft": _text(of["tailnum"]),
        "origin": _text(of["origin"]),
        "dest": _text(of["dest"]),
        "distance_miles": of["distance"].cast(pa.string()),
    }
    assert list(values) == list(BODY_FIELDS)
    return pa.table(
        {
            "key": of["tailnum"].combine_chunks(),
            "tag": pa.repeat(kind, len(rows)),
            "body": _objects(values).cast(pa.binary()),
            "time": pa.array(instants).cast(pa.timestamp("us")).cast(pa.timestamp("us", "UTC")),
            "rank": pa.repeat(KINDS.index(kind), len(rows)),
            "row": rows,
        }
    )


def _in_order(parts: list[pa.Table]) -> pa.Table:
    """Return all events by time, kind and row of the source (F10)."""
    events = pa.concat_tables(parts)
    order = events.sort_by([("time", "ascending"), ("rank", "ascending"), ("row", "ascending")])
    return order.select(["key", "tag", "body", "time"]).combine_chunks()


def _written(instants: Times) -> pa.Array:
    """Return instants as RFC 3339 text, null for NaT."""
    return pc.strftime(pa.array(instants), format="%Y-%m-%dT%H:%M:%SZ")


def _text(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return text in quotes, after a check that it contains nothing that JSON would escape."""
    if pc.any(pc.match_substring_regex(values, r'["\\\x00-\x1f]')).as_py():
        raise JobFailed("the source contains a text that JSON would have to escape")
    return pc.binary_join_element_wise('"', values, '"', "")


def _objects(values: Mapping[str, pa.Array]) -> pa.Array:
    """Return one JSON object for each row."""
    pieces: list[pa.Array | str] = []
    for name, written in values.items():
        pieces += [f'{"," if pieces else "{"}"{name}":', pc.coalesce(written, "null")]
    joined = pc.binary_join_element_wise(*pieces, "}", "")
    return joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined
