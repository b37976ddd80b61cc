"""Hashing of a key column to logical partitions: one pass over its buffers, without Python objects (SPEC ROUTE-4)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mq.routing import logical_partitions

__all__ = ["lps_of_keys"]


def lps_of_keys(key: pa.StringArray) -> NDArray[np.int16]:
    """Return the logical partition of each key, -1 for null."""
    _, offsets, data = key.buffers()
    # A foreign buffer may be longer than its column, by any number of bytes.
    ends = np.frombuffer(offsets, dtype=np.int32, count=key.offset + len(key) + 1)[key.offset :]
    raw = np.frombuffer(data, dtype=np.uint8) if data is not None and data.size else np.empty(0, dtype=np.uint8)
    lps = logical_partitions(ends, raw)
    if key.null_count:
        lps[np.asarray(key.is_null())] = -1
    return lps
