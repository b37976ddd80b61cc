"""The columns of records, and the gathering of pieces of one buffer without a Python object for each record.

buffer  ..|key 0|..|value 0|....|key 1|..|value 1|..
offsets   a     b  c       d    e     f  ...           monotonic: one Arrow array whose values are pieces and gaps
take      ^0       ^2           ^4                     every piece of one kind, next to each other
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from deltamq.api.kafka.records.varints import Int64s


@dataclass(frozen=True, slots=True)
class Records:
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
