"""Records of one shape as blocks of bytes: rows of a table, written column by column.

    length | 0 | time | offset | key length | key | value length | value | 0     a row for each record, all of one width

Records that follow each other have one shape if each of their numbers takes as many bytes as that of the others, and
keys and values have one length. Most producers send such records. Where the shape changes often, other ways are faster
(`encode`).
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from deltamq.api.kafka.records.varints import Int64s, varint_sizes, zigzag

#: Fewest records of a block on average, below which it is not worth its dozen calls.
_BLOCK_MIN: Final = 32

_Bytes: TypeAlias = NDArray[np.uint8]


def blocks_of(
    key: pa.BinaryArray, value: pa.BinaryArray, times: Int64s, key_length: Int64s, value_length: Int64s
) -> list[_Bytes] | None:
    """Return records without headers as blocks that follow each other; None if there were too many of them.

    `times` are relative to the batch, and a length is -1 for a null.
    """
    count = len(times)
    offsets = np.arange(count)
    time_sizes, offset_sizes = varint_sizes(times), varint_sizes(offsets)
    changes = np.zeros(count - 1, dtype=np.bool_)
    for column in (time_sizes, offset_sizes, key_length, value_length):
        changes |= column[1:] != column[:-1]
    edges = [0, *(np.flatnonzero(changes) + 1).tolist(), count]
    if (len(edges) - 2) * _BLOCK_MIN > count:
        return None
    keys, values = _Texts(key), _Texts(value)
    found = []
    for low, high in pairwise(edges):
        numbers = [(times[low:high], int(time_sizes[low])), (offsets[low:high], int(offset_sizes[low]))]
        texts = [keys.rows(low, high, int(key_length[low])), values.rows(low, high, int(value_length[low]))]
        found.append(_block(high - low, numbers, texts))
    return found


class _Texts:
    """A column of keys or values as bytes."""

    def __init__(self, column: pa.BinaryArray) -> None:
        _, ends, data = column.buffers()
        stop = column.offset + len(column) + 1
        self._ends = np.frombuffer(ends, dtype=np.int32, count=stop)[column.offset :]
        self._data = np.frombuffer(b"" if data is None else data, dtype=np.uint8)

    def rows(self, low: int, high: int, length: int) -> tuple[int, _Bytes]:
        """Return texts of one length, and that length."""
        if length <= 0:
            return length, np.empty((high - low, 0), dtype=np.uint8)
        start = int(self._ends[low])
        return length, self._data[start : start + (high - low) * length].reshape(high - low, length)


def _block(count: int, numbers: list[tuple[Int64s, int]], texts: list[tuple[int, _Bytes]]) -> _Bytes:
    """Return records of one shape; `numbers` have as many bytes as they say."""
    lengths = [_varint(length) for length, _ in texts]
    size = 2 + sum(width for _, width in numbers) + sum(map(len, lengths)) + sum(rows.shape[1] for _, rows in texts)
    head = _varint(size)
    block = np.empty((count, len(head) + size), dtype=np.uint8)
    at = len(head)
    block[:, :at] = head
    block[:, at] = 0
    at += 1
    for column, width in numbers:
        raw = zigzag(column)
        for i in range(width):
            block[:, at + i] = (raw >> np.uint64(7 * i)) & np.uint64(0x7F) | np.uint64(0x80 if i + 1 < width else 0)
        at += width
    for length, (_, rows) in zip(lengths, texts, strict=True):
        block[:, at : at + len(length)] = length
        at += len(length)
        block[:, at : at + rows.shape[1]] = rows
        at += rows.shape[1]
    block[:, at] = 0
    return block


def _varint(number: int) -> _Bytes:
    raw = (number << 1) ^ (number >> 63)
    out = bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return np.frombuffer(out, dtype=np.uint8)
