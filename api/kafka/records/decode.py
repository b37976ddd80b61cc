"""Record batches to columns: numpy and Arrow for all records of several batches together.

    length  attributes  time  offset  key length  key  value length  value  header count  headers

Only the lengths must be read one after another: each says where the next record begins. A run of records whose lengths
are the same bytes is read in one step; other records take a Python step of two additions each. All other numbers are
read as columns, from the positions that the numbers before them leave. Nothing is trusted: each record must end where
its length says, and the last one where the data ends, so no position was ever outside.

A pass over columns costs the same for a hundred records as for one: so batches that wait for the same commit are
decoded together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec.structs import replace
from numpy.typing import NDArray

from deltamq.api.kafka.records.batch import RECORD_BYTES_MIN, BatchHeader, Compression, expanded
from deltamq.api.kafka.records.columns import Int64s, Records, corrupt, pieces, read_varints
from deltamq.api.kafka.records.few import FEW_RECORDS, decode_few
from deltamq.api.kafka.records.native import NativeDecoder
from deltamq.mq.errors import Unprocessable
from deltamq.mq.limits import HEADERS_MAX

#: Records from which on the compiled decoder is faster than reading them one by one.
_NATIVE_MIN: Final = 5
#: Records of one length from which on numpy finds them faster than a loop, and the most that one step looks at.
_RUN_MIN: Final = 24
_RUN_MAX: Final = 1_024
#: Most bytes of lengths that are compared between two batches: of records below 8 KiB.
_LENGTH_BYTES: Final = 2
#: Records until the next look for a run, after one that was none.
_LOOK_AGAIN: Final = 8


def expanded_batch(batch: BatchHeader, bytes_max: int) -> BatchHeader:
    """Return the batch without compression; `bytes_max` bounds its records.

    Raises
    ------
    Refused
        `corrupt_records`: the data is not compressed as it says, or cannot hold so many records.
    TooLarge
        `message_too_large`: the records take more than `bytes_max`.
    """
    records = expanded(batch.records, batch.compression, bytes_max)
    if batch.compression is Compression.NONE:
        return batch
    if batch.count * RECORD_BYTES_MIN > len(records):
        raise corrupt(f"{len(records)} bytes cannot hold {batch.count} records")
    return replace(batch, compression=Compression.NONE, records=records)


def decode_batches(batches: Sequence[BatchHeader], native: NativeDecoder | None = None) -> Records:
    """Return the records of batches without compression, in their order, as one; `native` does it faster.

    Raises
    ------
    Refused
        `corrupt_records`: the bytes of some batch are not its records.
    """
    count = sum([batch.count for batch in batches])
    records = native.decode(batches) if native is not None and count >= _NATIVE_MIN else None
    if records is None and count <= FEW_RECORDS:
        records = decode_few(batches)
    return records or decode_in_columns(batches)


def decode_in_columns(batches: Sequence[BatchHeader]) -> Records:
    """Do what `decode_batches` does, for any number of records."""
    counts = [batch.count for batch in batches]
    raw = b"".join([batch.records for batch in batches])
    data = np.frombuffer(raw, dtype=np.uint8)
    begins, ends = _bounds(raw, data, batches)
    time_delta, at = read_varints(data, begins + 1)  # behind the attributes, which no version uses
    offset_delta, at = read_varints(data, at)
    if (offset_delta != _dense(counts)).any():
        raise corrupt("the offsets of a batch are not 0, 1, 2 and so on")
    key_at, key_end, key_null, at = _piece(data, at, ends)
    value_at, value_end, value_null, at = _piece(data, at, ends)
    header_count, at = read_varints(data, at)
    headers = None
    if header_count.any():
        headers, at = _headers(data, header_count, at, ends)
    if (at != ends).any():
        raise corrupt("a record does not end where it says")
    return Records(
        key=pieces(data, key_at, key_end, null=key_null),
        value=pieces(data, value_at, value_end, null=value_null),
        headers=headers,
        time_ms=np.repeat(np.array([batch.first_time_ms for batch in batches], dtype=np.int64), counts) + time_delta,
    )


def _dense(counts: Sequence[int]) -> Int64s:
    """Return 0, 1, 2 and so on for each batch."""
    if len(counts) == 1:
        return np.arange(counts[0])
    return np.concatenate([np.arange(count) for count in counts])


def _bounds(raw: bytes, data: NDArray[np.uint8], batches: Sequence[BatchHeader]) -> tuple[Int64s, Int64s]:
    """Return where each record begins, behind its length, and where it ends."""
    bounds: list[tuple[Int64s, Int64s, Int64s]] = []
    at, before = 0, (0, 0)
    for batch in batches:
        shape = batch.count, len(batch.records)
        known = _shifted(data, bounds[-1], shape[1]) if shape == before else None
        bounds.append(known or _scanned(raw, data, at, at + shape[1], batch.count))
        at, before = at + shape[1], shape
    if len(bounds) == 1:
        return bounds[0][1:]
    return np.concatenate([begins for _, begins, _ in bounds]), np.concatenate([ends for _, _, ends in bounds])


def _shifted(
    data: NDArray[np.uint8], known: tuple[Int64s, Int64s, Int64s], shift: int
) -> tuple[Int64s, Int64s, Int64s] | None:
    """Return the bounds of a batch's records if it has the lengths of the batch before, byte for byte, else None."""
    firsts, begins, ends = known
    if int((begins - firsts).max()) > _LENGTH_BYTES:
        return None
    for i in range(_LENGTH_BYTES):
        if (data.take(firsts + i) != data.take(firsts + (shift + i))).any():
            return None
    return firsts + shift, begins + shift, ends + shift


def _scanned(raw: bytes, data: NDArray[np.uint8], at: int, end: int, count: int) -> tuple[Int64s, Int64s, Int64s]:
    """Return where the length of each record of a batch begins, where the record begins, and where it ends."""
    parts: list[tuple[Int64s, Int64s, Int64s]] = []
    firsts: list[int] = []
    begins: list[int] = []
    ends: list[int] = []
    left = look_at = count
    try:
        while left:
            first = at
            length, begin = _length(raw, at)
            at = begin + length
            if at > end:
                break
            firsts.append(first)
            begins.append(begin)
            ends.append(at)
            left -= 1
            if _RUN_MIN < left <= look_at:
                size = at - first
                run = _run(raw, data, first, begin, at, min(left, _RUN_MAX, (end - at) // size))
                look_at = left - run - (0 if run else _LOOK_AGAIN)
                if run:
                    parts.append(_arrays(firsts, begins, ends))
                    firsts, begins, ends = [], [], []
                    run_firsts = np.arange(at, at + size * run, size)
                    parts.append((run_firsts, run_firsts + (begin - first), run_firsts + size))
                    at += size * run
                    left -= run
    except IndexError:
        raise corrupt(f"{count} records are not there") from None
    if at != end or left:
        raise corrupt(f"{count} records do not take {end} bytes")
    parts.append(_arrays(firsts, begins, ends))
    a, b, c = zip(*parts, strict=True)
    return np.concatenate(a), np.concatenate(b), np.concatenate(c)


def _arrays(*lists: list[int]) -> tuple[Int64s, Int64s, Int64s]:
    a, b, c = (np.array(column, dtype=np.int64) for column in lists)
    return a, b, c


def _length(raw: bytes, at: int) -> tuple[int, int]:
    """Return the length that stands at a position, and where its record begins."""
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
    if length & 1:
        raise corrupt("the length of a record is negative")
    if length >> 1 < RECORD_BYTES_MIN - 1:  # all but the length itself
        raise corrupt("a record is shorter than an empty one")
    return length >> 1, at


def _run(raw: bytes, data: NDArray[np.uint8], first: int, begin: int, at: int, most: int) -> int:
    """Return how many records, of `most`, have the length of the one before, byte for byte; 0 for fewer than a run.

    `first` is where the length of that record begins, `begin` where the record begins, and `at` where it ends.
    """
    size, length = at - first, raw[first:begin]
    if most < _RUN_MIN or not raw.startswith(length, at + (_RUN_MIN - 1) * size):
        return 0
    rows = data[at : at + most * size].reshape(most, size)
    same = rows[:, 0] == length[0]
    for i in range(1, len(length)):
        same &= rows[:, i] == length[i]
    run = most if same.all() else int(same.argmin())
    return run if run >= _RUN_MIN else 0


def _piece(
    data: NDArray[np.uint8], at: Int64s, ends: Int64s, *, nullable: bool = True
) -> tuple[Int64s, Int64s, NDArray[np.bool_] | None, Int64s]:
    """Return where the pieces behind their lengths begin and end, which are null, and where the rest begins."""
    length, start = read_varints(data, at)
    least, most = int(length.min()), int(length.max())
    if least < 0 and (not nullable or least < -1):
        raise corrupt("a length is negative")
    end = start + (length if least >= 0 else np.maximum(length, 0))
    if most > len(data) or (end > ends).any():
        raise corrupt("a key, value or header is longer than its record")
    return start, end, length < 0 if least < 0 else None, end


def _headers(data: NDArray[np.uint8], counts: Int64s, at: Int64s, ends: Int64s) -> tuple[pa.MapArray, Int64s]:
    """Return the headers of all records, and where the records end: the first header of each, then the second, ..."""
    if int(counts.min()) < 0:
        raise corrupt("a count of headers is negative")
    most = int(counts.max())
    if most > HEADERS_MAX:
        detail = f"headers: a message has at most {HEADERS_MAX} headers"
        raise Unprocessable(detail, code="invalid_record", field="headers", extra={"limit": HEADERS_MAX})
    rows, columns = [], []
    at = at.copy()
    for number in range(most):
        has = np.flatnonzero(counts > number)
        name_at, name_end, _, behind = _piece(data, at[has], ends[has], nullable=False)
        value_at, value_end, null, behind = _piece(data, behind, ends[has])
        at[has] = behind
        rows.append(has)
        nulls = np.zeros(len(has), dtype=np.bool_) if null is None else null
        columns.append(np.stack([name_at, name_end, value_at, value_end, nulls.astype(np.int64)]))
    order = np.argsort(np.concatenate(rows), kind="stable")
    name_at, name_end, value_at, value_end, nulls = np.concatenate(columns, axis=1)[:, order]
    starts = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=starts[1:])
    names, values = pieces(data, name_at, name_end), pieces(data, value_at, value_end, null=nulls.astype(np.bool_))
    return pa.MapArray.from_arrays(pa.array(starts), names, values), at
