"""The answer of a read: rows, status and the next offset."""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from deltamq.tables.column_ends import ends_of, text_bytes

#: Bytes that a row takes in an answer besides its body, key and headers.
_ROW_BYTES: Final = 64


class FetchStatus(enum.Enum):
    """The answer's status, as the REST contract spells it."""

    FOUND = "found"
    NO_NEW_MESSAGE = "no_new_message"
    OFFSET_TOO_SMALL = "offset_too_small"
    OFFSET_TOO_LARGE = "offset_too_large"


class Weighed(NamedTuple):
    """Rows, and their approximate size in an answer, in bytes."""

    rows: pa.Table
    weight: int


class Fetched(msgspec.Struct, frozen=True):
    """Rows (MESSAGE_SCHEMA, or the columns asked for), and the offset from which the next read continues."""

    status: FetchStatus
    rows: pa.Table
    next_offset: int
    min_offset: int
    max_offset: int
    #: The approximate size of the rows in an answer, in bytes; None if they were not weighed.
    weight: int | None = None


def status_of(offset: int, low: int, end: int) -> FetchStatus | None:
    """Return the status of a read at `offset` if it finds no rows; None if it finds some."""
    if offset > end:
        return FetchStatus.OFFSET_TOO_LARGE
    if offset == end:
        return FetchStatus.NO_NEW_MESSAGE
    if offset < low:
        return FetchStatus.OFFSET_TOO_SMALL
    return None


def fetched(weighed: Weighed, offset: int, low: int, end: int) -> Fetched:
    """Return the answer with these rows, which begin at `offset`."""
    rows = weighed.rows
    return Fetched(FetchStatus.FOUND, rows, offset + rows.num_rows, low, end, weighed.weight)


def weight_of(rows: pa.Table) -> int:
    """Return the approximate size of rows in an answer, in bytes: Arrow's own count takes longer than slicing them."""
    weight = _ROW_BYTES * int(rows.num_rows)
    for name in ("body", "key"):
        for chunk in rows.column(name).chunks:
            weight += text_bytes(chunk)
    at = rows.schema.get_field_index("headers")
    return weight if at < 0 else weight + sum(map(_header_bytes, rows.column(at).chunks))


def weight_of_batch(rows: pa.RecordBatch) -> int:
    """Return what `weight_of` does for a batch, which may lack keys."""
    weight = _ROW_BYTES * int(rows.num_rows)
    for name in ("body", "key"):
        at = rows.schema.get_field_index(name)
        weight += text_bytes(rows.column(at)) if at >= 0 else 0
    at = rows.schema.get_field_index("headers")
    return weight if at < 0 else weight + _header_bytes(rows.column(at))


def _header_bytes(column: pa.Array) -> int:
    if column.null_count == len(column):
        return 0
    ends = _header_ends(column)
    return int(ends[-1] - ends[0])


def _header_ends(column: pa.MapArray) -> npt.NDArray[np.int64]:
    """Return the bytes of names and values before each row, and before the end."""
    rows = ends_of(column)
    return ends_of(column.keys)[rows].astype(np.int64) + ends_of(column.items)[rows]


def weights_of(rows: pa.Table) -> npt.NDArray[np.int64]:
    """Return the approximate size of each row in an answer, in bytes."""
    weights = np.full(rows.num_rows, _ROW_BYTES, dtype=np.int64)
    for name in ("body", "key"):
        at = 0
        for chunk in rows.column(name).chunks:
            weights[at : at + len(chunk)] += np.diff(ends_of(chunk))
            at += len(chunk)
    at = 0
    for chunk in rows.column("headers").chunks if "headers" in rows.schema.names else ():
        if chunk.null_count < len(chunk):
            weights[at : at + len(chunk)] += np.diff(_header_ends(chunk))
        at += len(chunk)
    return weights


def cut_to_bytes(rows: pa.Table, bytes_max: int, *, at_least: int) -> Weighed:
    """Return the first rows that take at most `bytes_max` together, but never fewer than `at_least` rows."""
    weight = weight_of(rows)
    if weight <= bytes_max or rows.nbytes <= bytes_max:
        return Weighed(rows, weight)
    rows = rows.slice(0, max(at_least, bytes_max // _ROW_BYTES + 1))
    total = np.cumsum(weights_of(rows))
    count = min(max(at_least, int(np.searchsorted(total, bytes_max, side="right"))), len(total))
    return Weighed(rows.slice(0, count), int(total[count - 1]) if count else 0)


def one_record_batch(rows: pa.Table) -> pa.RecordBatch:
    """Return a table's rows as one record batch."""
    batches = rows.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=rows.schema)
