"""Stored rows of static topics as clients see them: logical queues and logical offsets (SPEC STATIC-2).

    row at offset 7 of orders#3@broker-a    segment, from 400 on    --> 407 of 3@__logical_queue_broker__
                                            of a global topic       --> 907 of 3@__global_logical_queue_broker__

Rows are stored with the physical places, which never change; a column of offsets is shown with one addition.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from deltamq.mq.static.logical_queue import UNDECIDED, ShownPlace, not_decided

#: Returns the place of a topic's partition in a logical queue. It is None for plain topics, and for a segment that was
#: dropped: then the row is shown as it is stored.
PlaceOf: TypeAlias = Callable[[str, str], ShownPlace | None]


def shown_offsets(rows: pa.Table, place: ShownPlace) -> pa.Table:
    """Return the rows of a segment with the offsets that clients see.

    Raises
    ------
    Unavailable
        `logic_offset_undecided`: they have none yet (SPEC STATIC-10).
    """
    at = rows.schema.get_field_index("offset")
    if not rows.num_rows:
        return rows
    first: int = rows.column(at)[0].as_py()
    shown = place.shown(first)
    if shown == UNDECIDED:
        raise not_decided(place.name)
    delta = shown - first
    return rows if not delta else rows.set_column(at, rows.schema.field(at), pc.add(rows.column(at), delta))


def shown_origins(rows: pa.Table, place_of: PlaceOf) -> pa.Table:
    """Return the rows with origins in logical queues; there are few places, however many rows."""
    at = rows.schema.get_field_index("origin")
    origins = rows.column(at)
    if not rows.num_rows or origins.null_count == rows.num_rows:
        return rows
    field = rows.schema.field(at)
    return rows.set_column(at, field, pa.chunked_array([_shown(chunk, place_of) for chunk in origins.chunks]))


def _shown(origins: pa.StructArray, place_of: PlaceOf) -> pa.StructArray:
    topics, partitions, offsets = (origins.field(name) for name in ("topic", "partition", "offset"))
    pairs = list(zip(topics.to_pylist(), partitions.to_pylist(), strict=True))
    places = {pair: place_of(*pair) for pair in set(pairs) if None not in pair}
    found = [places.get(pair) for pair in pairs]
    if not any(found):
        return origins
    names = [stored if place is None else place.name for (_, stored), place in zip(pairs, found, strict=True)]
    moved = [
        at if place is None or at is None else place.shown(at)
        for at, place in zip(offsets.to_pylist(), found, strict=True)
    ]
    return pa.StructArray.from_arrays(
        [topics, pa.array(names, partitions.type), pa.array(moved, offsets.type)],
        fields=list(origins.type),
        mask=origins.is_null(),
    )
