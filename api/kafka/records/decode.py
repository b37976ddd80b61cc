"""Record batches to columns: a Python step of two additions for each record's length, numpy and Arrow for the rest.

    length  attributes  time  offset  key length  key  value length  value  header count  headers

Only the lengths must be read one after another: each says where the next record begins. All other numbers are read as
columns, from the positions that the numbers before them leave. Nothing is trusted: each record must end where its
length says, and the last one where the data ends, so no position was ever outside.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from api.kafka.records.batch import BatchHeader
from api.kafka.records.columns import Records, pieces
from api.kafka.records.compression import expanded
from api.kafka.records.varints import Int64s, corrupt, read_varints
from mq.errors import Unprocessable
from mq.limits import HEADERS_MAX

__all__ = ["decode_records"]


def decode_records(batch: BatchHeader, *, bytes_max: int) -> Records:
    """Return the records of a batch; `bytes_max` bounds them when they are expanded.

    Raises
    ------
    Refused
        `corrupt_records`: the bytes are not `batch.count` records.
    TooLarge
        `message_too_large`: they take more than `bytes_max`.
    """
    raw = expanded(batch.records, batch.compression, bytes_max)
    data = np.frombuffer(raw, dtype=np.uint8)
    begins, ends = _bounds(raw, batch.count)
    time_delta, at = read_varints(data, begins + 1)  # behind the attributes, which no version uses
    offset_delta, at = read_varints(data, at)
    if not np.array_equal(offset_delta, np.arange(batch.count)):
        raise corrupt("the offsets of a batch are not 0, 1, 2 and so on")
    key_at, key_end, key_null, at = _piece(data, at, ends)
    value_at, value_end, value_null, at = _piece(data, at, ends)
    header_count, at = read_varints(data, at)
    headers = None
    if header_count.any():
        headers, at = _headers(data, header_count, at, ends)
    if not np.array_equal(at, ends):
        raise corrupt("a record does not end where it says")
    return Records(
        key=pieces(data, key_at, key_end, null=key_null),
        value=pieces(data, value_at, value_end, null=value_null),
        headers=headers,
        time_ms=_times(batch.first_time_ms, time_delta),
    )


def _times(first_ms: int, delta: Int64s) -> Int64s:
    return np.int64(first_ms) + delta


def _bounds(raw: memoryview, count: int) -> tuple[Int64s, Int64s]:
    """Return where each record begins, behind its length, and where it ends."""
    begins, ends = [], []
    at, end = 0, len(raw)
    try:
        for _ in range(count):
            byte = raw[at]
            at += 1
            length = byte & 0x7F
            shift = 7
            while byte & 0x80:
                byte = raw[at]
                at += 1
                length |= (byte & 0x7F) << shift
                shift += 7
                if shift > 35:
                    raise corrupt("the length of a record is too long")
            begins.append(at)
            if length & 1:
                raise corrupt("the length of a record is negative")
            at += length >> 1
            if at > end:
                break
            ends.append(at)
    except IndexError:
        raise corrupt(f"{count} records are not there") from None
    if at != end or len(ends) != count:
        raise corrupt(f"{count} records do not take {end} bytes")
    return np.array(begins, dtype=np.int64), np.array(ends, dtype=np.int64)


def _piece(
    data: NDArray[np.uint8], at: Int64s, ends: Int64s, *, nullable: bool = True
) -> tuple[Int64s, Int64s, NDArray[np.bool_] | None, Int64s]:
    """Return where pieces begin and end that stand behind their lengths, which are null, and where the rest begins."""
    length, start = read_varints(data, at)
    null = length < 0
    any_null = bool(null.any())
    if any_null and (not nullable or int(length.min()) < -1):
        raise corrupt("a length is negative")
    end = start + np.maximum(length, 0)
    if (length > len(data)).any() or (end > ends).any():
        raise corrupt("a key, value or header is longer than its record")
    return start, end, null if any_null else None, end


def _headers(data: NDArray[np.uint8], counts: Int64s, at: Int64s, ends: Int64s) -> tuple[pa.MapArray, Int64s]:
    """Return the headers of all records, and where the records end: the first header of each, then the second, ..."""
    if int(counts.min()) < 0:
        raise corrupt("a count of headers is negative")
    most = int(counts.max())
    if most > HEADERS_MAX:
        detail = f"headers: a message has at most {HEADERS_MAX} headers"
        raise Unprocessable(detail, code="invalid_record", field="headers", extra={"limit": HEADERS_MAX})
    rows, found = [], []
    at = at.copy()
    for number in range(most):
        has = np.flatnonzero(counts > number)
        name_at, name_end, _, behind = _piece(data, at[has], ends[has], nullable=False)
        value_at, value_end, null, behind = _piece(data, behind, ends[has])
        at[has] = behind
        rows.append(has)
        nulls = np.zeros(len(has), dtype=np.bool_) if null is None else null
        found.append(np.stack([name_at, name_end, value_at, value_end, nulls.astype(np.int64)]))
    order = np.argsort(np.concatenate(rows), kind="stable")
    name_at, name_end, value_at, value_end, nulls = np.concatenate(found, axis=1)[:, order]
    starts = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=starts[1:])
    names, values = pieces(data, name_at, name_end), pieces(data, value_at, value_end, null=nulls.astype(np.bool_))
    return pa.MapArray.from_arrays(pa.array(starts), names, values), at
