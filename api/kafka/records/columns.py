"""The columns of records: varints of whole columns, and pieces of one buffer, without a Python object for each record.

    buffer  ..|key 0|..|value 0|....|key 1|..|value 1|..
    offsets   a     b  c       d    e     f  ...           monotonic: one Arrow array whose values are pieces and gaps
    take      ^0       ^2           ^4                     every piece of one kind, next to each other

A variable-length integer is zigzag-encoded (0, -1, 1, -2, ... become 0, 1, 2, 3, ...) and cut into groups of seven
bits, lowest first; the top bit of a byte says that another one follows. One numpy pass is made for each byte of the
longest one, none for each record.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from deltamq.mq.errors import Refused

Int64s: TypeAlias = NDArray[np.int64]

#: The code of the error for bytes that are no record batch.
CORRUPT: Final = "corrupt_records"
#: Most bytes of a number of 64 bits.
VARINT_BYTES_MAX: Final = 10
#: The bit that says that another byte follows.
_MORE: Final = 0x80


def corrupt(detail: str) -> Refused:
    """Return the error for bytes that contradict the format."""
    return Refused(f"records: {detail}", code=CORRUPT, field="records")


def read_varints(data: NDArray[np.uint8], at: Int64s) -> tuple[Int64s, Int64s]:
    """Return the numbers that begin at the positions `at`, and the positions behind them.

    Positions may lie beyond the data: the caller finds that the last position is not where it must be.

    Raises
    ------
    Refused
        `corrupt_records`: a number has more than 64 bits.
    """
    byte = data.take(at, mode="clip")
    ends = at + 1
    if int(byte.max(initial=0)) < _MORE:
        return _ONE_BYTE.take(byte), ends
    more = byte >= _MORE
    second = np.where(more, data.take(ends, mode="clip"), 0)
    raw = (byte & 0x7F).astype(np.uint64)
    raw |= (second & 0x7F).astype(np.uint64) << np.uint64(7)
    ends += more
    longer = np.flatnonzero(second >= _MORE)
    if longer.size:
        _read_longer(data, raw, ends, longer)
    return _unzigzag(raw), ends


def _read_longer(data: NDArray[np.uint8], raw: NDArray[np.uint64], ends: Int64s, more: NDArray[np.intp]) -> None:
    """Add the third and later bytes of the numbers at the indexes `more`."""
    for shift in range(14, 7 * VARINT_BYTES_MAX, 7):
        byte = data.take(ends[more], mode="clip")
        raw[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        ends[more] += 1
        more = more[byte >= _MORE]
        if not more.size:
            return
    raise corrupt("a number is longer than 64 bits")


def _unzigzag(raw: NDArray[np.uint64]) -> Int64s:
    return (raw >> np.uint64(1)).view(np.int64) ^ -(raw & np.uint64(1)).view(np.int64)


def zigzag(values: Int64s) -> NDArray[np.uint64]:
    """Return numbers of which small ones, also negative, have few bits."""
    return ((values << np.int64(1)) ^ (values >> np.int64(63))).astype(np.uint64)


def varint_sizes(values: Int64s) -> Int64s:
    """Return the number of bytes of each number."""
    raw = zigzag(values)
    sizes = np.ones(len(values), dtype=np.int64)
    for shift in range(7, 7 * VARINT_BYTES_MAX, 7):
        longer = raw >= np.uint64(1) << np.uint64(shift)
        if not longer.any():
            break
        sizes += longer
    return sizes


def write_varints(columns: list[Int64s]) -> tuple[NDArray[np.uint8], Int64s]:
    """Return the numbers of each row one after another, and the position at which each row begins, and the end."""
    sizes = [varint_sizes(column) for column in columns]
    widths = [int(size.max(initial=1)) for size in sizes]
    rows = len(columns[0])
    matrix = np.empty((rows, sum(widths)), dtype=np.uint8)
    filled = np.empty(matrix.shape, dtype=np.bool_)
    at = 0
    for column, size, width in zip(columns, sizes, widths, strict=True):
        raw = zigzag(column)
        for i in range(width):
            follows = np.where(size > i + 1, 0x80, 0).astype(np.uint8)
            matrix[:, at + i] = ((raw >> np.uint64(7 * i)) & np.uint64(0x7F)).astype(np.uint8) | follows
            filled[:, at + i] = size > i
        at += width
    starts = np.zeros(rows + 1, dtype=np.int64)
    np.cumsum(sum(sizes), out=starts[1:])
    return matrix[filled], starts


#: The numbers that one byte holds.
_ONE_BYTE: Final = _unzigzag(np.arange(_MORE, dtype=np.uint64))


class Records(msgspec.Struct, frozen=True):
    """Records column by column: `key` and `value` binary, `headers` lists of (name, value), `time_ms` integers.

    Nulls are kept, and so are header names that repeat.
    """

    key: pa.BinaryArray
    value: pa.BinaryArray
    headers: pa.MapArray | None
    time_ms: Int64s

    @property
    def count(self) -> int:
        return len(self.time_ms)


def binary(data: object, offsets: Int64s) -> pa.BinaryArray:
    """Return the pieces of a buffer between offsets, which ascend."""
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    )


def pieces(data: object, starts: Int64s, ends: Int64s, *, null: np.ndarray | None = None) -> pa.BinaryArray:
    """Return the pieces `[start, end)` of a buffer, which ascend, as a column; `null` says which are null."""
    count = len(starts)
    if null is not None and null.all():
        return pa.nulls(count, pa.binary())
    offsets = np.empty(2 * count, dtype=np.int64)
    offsets[0::2], offsets[1::2] = starts, ends
    if not count:
        return pa.array([], pa.binary())
    wanted = pa.array(np.arange(0, 2 * count, 2), mask=null)
    return binary(data, offsets).take(wanted)
