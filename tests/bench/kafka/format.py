"""How many bytes Kafka's log takes for some messages: record format v2, uncompressed, computed.

A batch has 61 bytes of header; a record has varints (zigzag) for its length, time and offset within the batch, the
lengths of key and value, and the number of headers, and one byte of attributes.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

__all__ = ["log_bytes"]

BATCH_HEADER_BYTES: Final = 61
#: The producer's `batch.size`: what the peers' scripts set, four times Kafka's default, which favours Kafka.
BATCH_BYTES: Final = 65_536

Sizes = NDArray[np.int64]


def _varint_bytes(values: Sizes) -> Sizes:
    """Bytes of zigzag varints of non-negative values."""
    bits = np.zeros(len(values), dtype=np.int64)
    left = values * 2
    while (left > 0).any():
        bits += left > 0
        left >>= 7
    return np.maximum(bits, 1)


def log_bytes(key: pa.Array, value: pa.Array) -> int:
    """Bytes of all records and batches of one partition: key, value and time only, no headers."""
    keys = np.asarray(pc.fill_null(pc.binary_length(key), 0), dtype=np.int64)
    null = np.asarray(key.is_null())
    values = np.asarray(pc.binary_length(value), dtype=np.int64)
    key_field = np.where(null, 1, _varint_bytes(keys) + keys)
    # attributes, one byte each for the time's delta and the number of headers; a typical batch's offset delta
    rest = 1 + 1 + 1
    per_batch = max(1, int(BATCH_BYTES // (np.mean(keys + values) + 10)))
    deltas = _varint_bytes(np.arange(len(values), dtype=np.int64) % per_batch)
    body = rest + deltas + key_field + _varint_bytes(values) + values
    records = int((_varint_bytes(body) + body).sum())
    return records + BATCH_HEADER_BYTES * -(-len(values) // per_batch)
