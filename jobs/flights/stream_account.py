"""The account of the streams: the sums by carrier and hour, expected and in their tables, as a few numbers.

The producer's side is computed here, from the events that were acknowledged; Spark computes its own in SQL
(`stream.sql`), from the typed table and from the table of carriers and hours.
"""

from __future__ import annotations

import zlib
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from deltamq.jobs.flights.events import ARRIVAL, CANCELLATION, DEPARTURE

#: The fields of a body that the sums need; `time` stays text, which begins with the hour.
_FIELDS: Final = pa.schema(
    [("event", pa.string()), ("time", pa.string()), ("carrier", pa.string()), ("delay_min", pa.int64())]
)
_HOUR_LENGTH: Final = len("2013-01-01T05")
_SUMS: Final = ("arrivals", "departures", "cancellations", "delay_min")


class StreamAccount(msgspec.Struct, frozen=True, kw_only=True):
    """The flights by carrier and hour, as one side has them."""

    events: int
    arrivals: int
    departures: int
    cancellations: int
    #: Total delay of the departures in minutes.
    delay_min: int
    carriers: int
    #: Hours in which a carrier had an event, over all carriers.
    carrier_hours: int
    #: The sum of the CRC-32 of `carrier|hour|arrivals|departures|cancellations|delay` of each.
    hours_crc: int


def expected_stream(bodies: pa.ChunkedArray) -> StreamAccount:
    """Return the account that the streams must have for these events (see `jobs.flights.events.BODY_FIELDS`)."""
    lines = b"\n".join(bodies.to_pylist())
    options = pa.json.ParseOptions(explicit_schema=_FIELDS, unexpected_field_behavior="ignore")
    flights = pa.json.read_json(pa.BufferReader(lines), parse_options=options)
    departed = pc.equal(flights["event"], DEPARTURE)
    columns = {
        "carrier": flights["carrier"],
        "hour": pc.utf8_slice_codeunits(flights["time"], 0, _HOUR_LENGTH),
        "arrivals": pc.equal(flights["event"], ARRIVAL).cast(pa.int64()),
        "departures": departed.cast(pa.int64()),
        "cancellations": pc.equal(flights["event"], CANCELLATION).cast(pa.int64()),
        "delay_min": pc.if_else(departed, pc.fill_null(flights["delay_min"], 0), 0),
    }
    summed = pa.table(columns).group_by(["carrier", "hour"]).aggregate([(name, "sum") for name in _SUMS])
    hours = [summed[name] for name in ("carrier", "hour", *(f"{name}_sum" for name in _SUMS))]
    written = pc.binary_join_element_wise(*[column.cast(pa.string()) for column in hours], "|")
    totals = {name: pc.sum(summed[f"{name}_sum"]).as_py() or 0 for name in _SUMS}
    return StreamAccount(
        events=len(bodies),
        **totals,
        carriers=len(summed["carrier"].unique()),
        carrier_hours=summed.num_rows,
        hours_crc=sum(zlib.crc32(text.encode()) for text in written.to_pylist()),
    )
