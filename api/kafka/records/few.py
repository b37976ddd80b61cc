"""A few records, read one by one: what a client sends that waits for each answer.

A pass over columns has some forty calls, however many records there are; below a dozen records a loop takes less.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

import numpy as np
import pyarrow as pa

from deltamq.api.kafka.records.batch import BatchHeader
from deltamq.api.kafka.records.columns import VARINT_BYTES_MAX, Records, corrupt

#: Most records that are read one by one.
FEW_RECORDS: Final = 10


def decode_few(batches: Sequence[BatchHeader]) -> Records | None:
    """Return the records of batches without compression; None if any has headers.

    Raises
    ------
    Refused
        `corrupt_records`: the bytes of some batch are not its records.
    """
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    times: list[int] = []
    for batch in batches:
        data = bytes(batch.records)
        at = 0
        try:
            for number in range(batch.count):
                size, at = _number(data, at)
                end = at + size
                if size < 0 or end > len(data):
                    raise corrupt("a record does not end where it says")
                delta, at = _number(data, at + 1)  # behind the attributes, which no version uses
                offset, at = _number(data, at)
                if offset != number:
                    raise corrupt("the offsets of a batch are not 0, 1, 2 and so on")
                key, at = _piece(data, at, end)
                value, at = _piece(data, at, end)
                headers, at = _number(data, at)
                if headers:
                    return None
                if at != end:
                    raise corrupt("a record does not end where it says")
                keys.append(key)
                values.append(value)
                times.append(batch.first_time_ms + delta)
        except IndexError:
            raise corrupt(f"{batch.count} records are not there") from None
        if at != len(data):
            raise corrupt("a batch does not end where its last record does")
    return Records(
        key=_column(keys),
        value=_column(values),
        headers=None,
        time_ms=np.array([(time + _HALF) % (2 * _HALF) - _HALF for time in times], dtype=np.int64),
    )


def _column(values: Sequence[bytes | None]) -> pa.BinaryArray:
    """Return keys or values as a column; Arrow's `array` would release the interpreter's lock four times."""
    known = [value for value in values if value is not None]
    if not known:
        return pa.nulls(len(values), pa.binary())
    if len(known) < len(values):
        return pa.array(values, pa.binary())
    ends = array("i", (0, *accumulate(map(len, known))))
    return pa.Array.from_buffers(pa.binary(), len(known), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(known))])


#: Sums of 64-bit numbers wrap, as numpy's do.
_HALF: Final = 1 << 63


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at a position, and the position behind it."""
    raw = shift = 0
    for i in range(at, at + VARINT_BYTES_MAX):
        byte = data[i]
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            raw &= 2 * _HALF - 1
            return (raw >> 1) ^ -(raw & 1), i + 1
        shift += 7
    raise corrupt("a number is longer than 64 bits")


def _piece(data: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    """Return a key or value behind its length, and the position behind it."""
    size, at = _number(data, at)
    if size == -1:
        return None, at
    if size < 0 or at + size > end:
        raise corrupt("a key, value or header is longer than its record, or its length is negative")
    return data[at : at + size], at + size


def encode_few(records: Records, times: Sequence[int]) -> bytes:
    """Return records without headers, as they stand in a batch; `times` are relative to it."""
    out = bytearray()
    pairs = zip(times, records.key.to_pylist(), records.value.to_pylist(), strict=True)
    for number, (time, key, value) in enumerate(pairs):
        body = bytearray(b"\x00")
        _write(body, time)
        _write(body, number)
        for text in (key, value):
            _write(body, -1 if text is None else len(text))
            body += text or b""
        body.append(0)
        _write(out, len(body))
        out += body
    return bytes(out)


def _write(out: bytearray, number: int) -> None:
    raw = (number << 1) ^ (number >> 63)
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
