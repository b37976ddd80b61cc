"""Columns of few rows, made from their bytes.

Each of Arrow's makers (`array`, `scalar`, `repeat`, `take`) gives the interpreter's lock away up to four times, and in
a busy service a thread waits longer to get it back than the making takes. A column from buffers does so once, a slice
of a kept column never.
"""

from __future__ import annotations

import functools
from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

import pyarrow as pa

__all__ = ["FEW_ROWS_MAX", "binary_column", "int64_column", "repeated_text", "text_column", "zeros"]

#: Most rows that count as few: with more, joining pieces row by row costs as much as Arrow's own ways.
FEW_ROWS_MAX: Final = 400
#: Number of repeated texts that are kept, for the producers of a process.
_TEXTS_KEPT: Final = 1_024
_INT32_MAX: Final = 2**31 - 1


def int64_column(values: Sequence[int], kind: pa.DataType) -> pa.Array:
    """Return numbers as a column of a type with 64 bits, such as times in microseconds."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(array("q", values))])


def text_column(values: Sequence[str | None]) -> pa.StringArray:
    """Return texts as a column."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return pa.array(values, pa.string())
    return _from_bytes([value.encode() for value in known], pa.string())


def binary_column(values: Sequence[bytes | None]) -> pa.BinaryArray:
    """Return byte strings as a column."""
    known = [value for value in values if value is not None]
    if len(known) < len(values) or sum(map(len, known)) > _INT32_MAX:
        return pa.array(values, pa.binary())
    return _from_bytes(known, pa.binary())


def _from_bytes(values: Sequence[bytes], kind: pa.DataType) -> pa.Array:
    ends = array("i", (0, *accumulate(map(len, values))))
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(values))])


def zeros(count: int) -> pa.Int32Array:
    """Return a column of at most `FEW_ROWS_MAX` zeros."""
    return _zeros().slice(0, count)


@functools.cache
def _zeros() -> pa.Int32Array:
    return pa.repeat(pa.scalar(0, pa.int32()), FEW_ROWS_MAX)


@functools.lru_cache(maxsize=_TEXTS_KEPT)
def repeated_text(text: str, count: int) -> pa.StringArray:
    """Return a column of the same text; those that were asked for last are kept."""
    return _from_bytes([text.encode()] * count, pa.string())
