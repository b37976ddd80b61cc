"""Columns to a record batch.

Records without headers are written by a compiled function, if there is one (`native`). Otherwise records of few shapes
become blocks of bytes (`blocks_of`); of others all numbers become columns of bytes, and one `take` puts pieces and
numbers in turn.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from deltamq.api.kafka.records.batch import NO_PRODUCER, Compression, compressed, pack_header
from deltamq.api.kafka.records.columns import Int64s, Records, binary, varint_sizes, write_varints, zigzag
from deltamq.api.kafka.records.few import FEW_RECORDS, encode_few
from deltamq.api.kafka.records.native import NativeEncoder

_NO_HEADERS: Final = b"\x00"


def encode_records(
    records: Records,
    *,
    base_offset: int,
    deltas: Int64s | None = None,
    compression: Compression = Compression.NONE,
    producer: tuple[int, int, int] = (NO_PRODUCER, -1, -1),
    native: NativeEncoder | None = None,
) -> bytes:
    """Return the records as one batch, whose offsets are dense from `base_offset` on, or have these distances to it."""
    assert records.count > 0, "a batch has at least one record"
    first_ms = int(records.time_ms[0])
    body = _body(records, first_ms, native) if deltas is None else _with_gaps(records, first_ms, deltas)
    if compression is not Compression.NONE:
        body = compressed(body, compression)
    header = pack_header(
        body,
        base_offset=base_offset,
        count=records.count,
        times_ms=(first_ms, int(records.time_ms.max())),
        compression=compression,
        producer=producer,
        last_delta=None if deltas is None else int(deltas[-1]),
    )
    return header + body


def _body(records: Records, first_ms: int, native: NativeEncoder | None) -> bytes:
    if native is not None and records.headers is None and (written := native.encode(records)) is not None:
        return written
    times = records.time_ms - first_ms
    if records.headers is None and records.count <= FEW_RECORDS:
        return encode_few(records, times.tolist())
    key_length, value_length = _lengths(records.key), _lengths(records.value)
    if records.headers is None:
        blocks = blocks_of(records.key, records.value, times, key_length, value_length)
        if blocks is not None:
            return b"".join(block.data for block in blocks)
    return _woven_records(records, times, key_length, value_length, np.arange(records.count))


def _with_gaps(records: Records, first_ms: int, deltas: Int64s) -> bytes:
    times = records.time_ms - first_ms
    return _woven_records(records, times, _lengths(records.key), _lengths(records.value), deltas)


def _woven_records(records: Records, times: Int64s, key_length: Int64s, value_length: Int64s, offsets: Int64s) -> bytes:
    count = records.count
    zeros = np.zeros(count, dtype=np.int64)
    tail = _tails(records.headers, count)
    total = 1 + varint_sizes(times) + varint_sizes(offsets) + _lengths(tail)
    for length in (key_length, value_length):
        total += varint_sizes(length) + np.maximum(length, 0)
    prefix = _numbers([total, zeros, times, offsets, key_length])
    return _in_turn([prefix, _filled(records.key), _numbers([value_length]), _filled(records.value), tail])


def _lengths(column: pa.BinaryArray) -> Int64s:
    """Return the length of each value, -1 for a null."""
    lengths = pc.fill_null(pc.binary_length(column), -1)
    return np.asarray(lengths).astype(np.int64)


def _filled(column: pa.BinaryArray) -> pa.BinaryArray:
    return pc.fill_null(column, b"") if column.null_count else column


def _numbers(columns: list[Int64s]) -> pa.BinaryArray:
    data, starts = write_varints(columns)
    return binary(data, starts)


def _in_turn(columns: list[pa.BinaryArray]) -> bytes:
    """Return the first value of each column, then the second of each, and so on, as one run of bytes."""
    return bytes(_buffer(_woven(columns)))


def _woven(columns: list[pa.BinaryArray]) -> pa.BinaryArray:
    count = len(columns[0])
    turns = np.arange(len(columns) * count).reshape(len(columns), count).T.ravel()
    return pa.concat_arrays(columns).take(pa.array(turns))


def _buffer(column: pa.BinaryArray) -> pa.Buffer:
    ends = np.frombuffer(column.buffers()[1], dtype=np.int32)[column.offset : column.offset + len(column) + 1]
    data = column.buffers()[2]
    return pa.py_buffer(b"") if data is None else data.slice(int(ends[0]), int(ends[-1] - ends[0]))


def _tails(headers: pa.MapArray | None, count: int) -> pa.BinaryArray:
    """Return what follows the value of each record: the number of its headers, and the headers."""
    if headers is None:
        return binary(_NO_HEADERS * count, np.arange(count + 1))
    starts = np.asarray(headers.offsets).astype(np.int64)
    first, last = int(starts[0]), int(starts[-1])
    names, values = headers.keys.slice(first, last - first), headers.items.slice(first, last - first)
    numbers = _numbers([np.diff(starts)])
    if first == last:
        return numbers
    woven = _woven([_numbers([_lengths(names)]), names, _numbers([_lengths(values)]), _filled(values)])
    ends = np.frombuffer(woven.buffers()[1], dtype=np.int32)[woven.offset :].astype(np.int64)
    of_record = binary(_buffer(woven), ends[4 * (starts - first)] - ends[0])
    both = _woven([numbers, of_record])
    joined = np.frombuffer(both.buffers()[1], dtype=np.int32)[both.offset :].astype(np.int64)
    return binary(_buffer(both), joined[: 2 * count + 1 : 2] - joined[0])


#: Fewest records of a block on average, below which it is not worth its dozen calls.
_BLOCK_MIN: Final = 32

_Bytes: TypeAlias = NDArray[np.uint8]


def blocks_of(
    key: pa.BinaryArray, value: pa.BinaryArray, times: Int64s, key_length: Int64s, value_length: Int64s
) -> list[_Bytes] | None:
    """Return records without headers as blocks that follow each other; None if there were too many of them.

    `times` are relative to the batch, and a length is -1 for a null.

        length | 0 | time | offset | key length | key | value length | value | 0   a row for each record, of one width

    Records that follow each other have one shape if each number takes as many bytes in all of them, and keys and values
    have one length. Most producers send such records. Where the shape changes often, other ways are faster.
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
    blocks = []
    for low, high in pairwise(edges):
        numbers = [(times[low:high], int(time_sizes[low])), (offsets[low:high], int(offset_sizes[low]))]
        texts = [keys.rows(low, high, int(key_length[low])), values.rows(low, high, int(value_length[low]))]
        blocks.append(_block(high - low, numbers, texts))
    return blocks


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
    """Return records of one shape; `numbers` are columns with their widths in bytes."""
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
