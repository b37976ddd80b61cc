"""Where the elements of Arrow columns with offsets begin and end, read from their buffers.

Arrow's own functions would release the interpreter's lock, or count what lies outside a slice.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def ends_of(column: pa.Array) -> npt.NDArray[np.int32]:
    """Return where the elements of a column begin and end, one number more than it has rows.

    A foreign buffer may be longer than its column, by any number of bytes.
    """
    if not len(column):  # then there may be no buffer
        return np.zeros(1, np.int32)
    return np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, 4 * column.offset)


def text_bytes(column: pa.Array) -> int:
    """Return the bytes of all texts of a column."""
    ends = ends_of(column)
    return int(ends[-1] - ends[0])
