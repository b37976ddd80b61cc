"""Parses stored JSON records into columns, without Python code for each record.

The bodies of a page are one block of newline-delimited JSON for Arrow's reader. If anything differs from what
`mq.queue.revive_log` and similar modules write, the reader of `tables.queue.records` examines each record and names
the damaged one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from numpy.typing import NDArray

from deltamq.mq.errors import Corrupt
from deltamq.mq.limits import MIB

Ints = NDArray[np.int64]

_BLOCK_BYTES = 8 * MIB


class Damaged(ValueError):
    """A record is not as it was written."""


def columns_of(bodies: pa.Array, schema: pa.Schema) -> pa.Table:
    """Return the fields `schema` of JSON objects, null where one is missing; raise `Damaged` for anything else."""
    if not len(bodies):
        return schema.empty_table()
    empty, newline = (pa.scalar(text, pa.large_binary()) for text in (b"", b"\n"))
    lines = pc.binary_join_element_wise(bodies.cast(pa.large_binary()), empty, newline)
    length = pc.sum(pc.binary_length(lines)).as_py()
    try:
        fields = pj.read_json(
            pa.BufferReader(lines.buffers()[2].slice(0, length)),
            read_options=pj.ReadOptions(block_size=_BLOCK_BYTES),
            parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
        )
    except pa.ArrowInvalid as error:
        raise Damaged(str(error)) from error
    if fields.num_rows != len(bodies):
        raise Damaged("a record is not one JSON object")
    return fields.combine_chunks()


def required(fields: pa.Table, *names: str) -> None:
    """Raise `Damaged` unless each of these columns has a value in every row."""
    for name in names:
        if fields.column(name).null_count:
            raise Damaged(f"a record without {name!r}")


def lists_of(column: pa.ChunkedArray) -> pa.ListArray:
    """Return a column of lists as one array."""
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def tuples_of(column: pa.ChunkedArray, width: int) -> tuple[Ints, Ints]:
    """Return the row number of each tuple in a column of lists of tuples of `width` numbers, and all tuples.

    Raises
    ------
    Damaged
        A list contains something else.
    """
    there = pc.indices_nonzero(pc.is_valid(column)).to_numpy().astype(np.int64)
    outer = lists_of(column.drop_null())
    inner = outer.flatten()
    if inner.null_count or (pc.list_value_length(inner).to_numpy() != width).any():
        raise Damaged(f"no {width} numbers")
    values = inner.flatten()
    if values.null_count:
        raise Damaged("null instead of a number")
    rows = np.repeat(there, pc.list_value_length(outer).to_numpy())
    return rows, values.to_numpy().reshape(-1, width).astype(np.int64)


def checked(rows: pa.Table, fast: Callable[[pa.Table], pa.Table], slow: Callable[[pa.Table], object]) -> pa.Table:
    """Return `fast(rows)`; if it finds damage, call `slow(rows)`, which raises `Corrupt` with the record's offset."""
    try:
        return fast(rows)
    except Damaged as error:
        slow(rows)
        raise Corrupt(f"a record is damaged: {error}", code="record_corrupt") from error
