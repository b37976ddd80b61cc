"""The messages that the workers' handlers got, with their verdicts: one row for each delivery of a message.

A message is identified by its origin, the place where it was stored first, whichever partition it came from this time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from deltamq.jobs.flights.account import body_crcs

DELIVERIES_SCHEMA: Final = pa.schema(
    [
        pa.field("partition", pa.string()),
        pa.field("offset", pa.int64()),
        pa.field("attempt", pa.int32()),
        # The handler's verdict.
        pa.field("ok", pa.bool_()),
        # The CRC-32 of the body of a failed message; its dead letter must have the same.
        pa.field("body_crc", pa.int64()),
    ]
)


def deliveries_of(rows: pa.Table, ok: NDArray[np.bool_]) -> pa.Table:
    """Return one delivery for each popped row."""
    crcs = np.zeros(len(rows), dtype=np.int64)
    crcs[~ok] = body_crcs(rows["body"].filter(pa.array(~ok)))
    origin = rows["origin"].combine_chunks()
    columns = [
        pc.coalesce(pc.struct_field(origin, "partition"), rows["partition"]),
        pc.coalesce(pc.struct_field(origin, "offset"), rows["offset"]),
        rows["delivery_attempt"],
        pa.array(ok),
        pa.array(crcs),
    ]
    return pa.table(columns, schema=DELIVERIES_SCHEMA)


class Deliveries:
    """The deliveries of one worker."""

    def __init__(self) -> None:
        self._parts: list[pa.Table] = []

    def note(self, part: pa.Table) -> None:
        """Add a batch of `DELIVERIES_SCHEMA`."""
        self._parts.append(part)

    def write(self, file: Path) -> None:
        """Write them all as an Arrow file."""
        rows = pa.concat_tables(self._parts) if self._parts else DELIVERIES_SCHEMA.empty_table()
        with pa.ipc.new_file(file, DELIVERIES_SCHEMA) as sink:
            sink.write_table(rows)


def read_deliveries(file: Path) -> pa.Table:
    """Return the deliveries that `write` wrote."""
    with pa.ipc.open_file(file) as source:
        return source.read_all()
