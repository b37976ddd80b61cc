"""Columns of few rows, made from their bytes.

Each of Arrow's makers (`array`, `scalar`, `repeat`, `take`) releases the interpreter's lock up to four times, and in
a busy service a thread waits longer to get it back than the making takes. A column from buffers does so once, a slice
of a kept column never.
"""

from __future__ import annotations

import functools
from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

import numpy as np
import pyarrow as pa

#: Most rows that count as few: with more, joining pieces row by row costs as much as Arrow's own ways.
FEW_ROWS_MAX: Final = 400
_INT32_MAX: Final = 2**31 - 1
#: Rows of the column of zeros that is kept.
_ZEROS: Final = 1_024


def repeated_int64s(values: Sequence[int], counts: Sequence[int], kind: pa.DataType) -> pa.Array:
    """Return a column of a type with 64 bits that has each value as often as its count says."""
    data = np.repeat(np.array(values, np.int64), counts)
    return pa.Array.from_buffers(kind, len(data), [None, pa.py_buffer(data)])


def repeated_texts(values: Sequence[str], counts: Sequence[int]) -> pa.StringArray:
    """Return a column that has each text as often as its count says; all of it takes less than 2 GiB."""
    raw = [value.encode() for value in values]
    lengths = np.repeat(np.array([len(text) for text in raw], np.int32), counts)
    ends = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=ends[1:])
    data = b"".join([text * count for text, count in zip(raw, counts, strict=True)])
    return pa.Array.from_buffers(pa.string(), len(lengths), [None, pa.py_buffer(ends), pa.py_buffer(data)])


def text_column(values: Sequence[str | None]) -> pa.StringArray:
    """Return texts as a column; if they are many, or some are None, as Arrow makes it."""
    known = [value for value in values[: FEW_ROWS_MAX + 1] if value is not None]
    if len(known) < len(values) or len(known) > FEW_ROWS_MAX:
        return pa.array(values, pa.string())
    return _from_bytes([value.encode() for value in known], pa.string())


def binary_column(values: Sequence[bytes | None]) -> pa.BinaryArray:
    """Return byte strings as a column; if they are many, or some are None, as Arrow makes it."""
    known = [value for value in values[: FEW_ROWS_MAX + 1] if value is not None]
    if len(known) < len(values) or len(known) > FEW_ROWS_MAX or sum(map(len, known)) > _INT32_MAX:
        return pa.array(values, pa.binary())
    return _from_bytes(known, pa.binary())


def _from_bytes(values: Sequence[bytes], kind: pa.DataType) -> pa.Array:
    ends = array("i", (0, *accumulate(map(len, values))))
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(values))])


def zeros(count: int) -> pa.Int32Array:
    """Return a column of zeros; unless it is long, it is a slice of a column that is kept."""
    return _kept_zeros().slice(0, count) if count <= _ZEROS else _made_zeros(count)


@functools.cache
def _kept_zeros() -> pa.Int32Array:
    return _made_zeros(_ZEROS)


def _made_zeros(count: int) -> pa.Int32Array:
    return pa.repeat(pa.scalar(0, pa.int32()), count)
