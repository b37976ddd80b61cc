"""Bodies and requests. A body is random capital letters, as Kafka's ProducerPerformance sends: hard to compress."""

from __future__ import annotations

import json
from typing import Final

import numpy as np
import pyarrow as pa

__all__ = ["arrow_stream", "bodies", "json_request", "ndjson", "record_batch"]

_SEED: Final = 20131


def bodies(count: int, size: int) -> pa.Array:
    """`count` bodies of `size` bytes each."""
    letters = np.random.default_rng(_SEED + count).integers(65, 91, count * size, dtype=np.uint8)
    ends = np.arange(0, (count + 1) * size, size, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(letters)])


def record_batch(count: int, size: int, *, keys: int = 0) -> pa.RecordBatch:
    """Messages with a body, and with one of `keys` keys if asked for."""
    columns = {"body": bodies(count, size)}
    if keys:
        drawn = np.random.default_rng(_SEED).integers(0, keys, count)
        columns["key"] = pa.array([f"aircraft-{key:05d}" for key in drawn])
    return pa.RecordBatch.from_pydict(columns)


def arrow_stream(batch: pa.RecordBatch) -> bytes:
    """The batch as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def _messages(count: int, size: int) -> list[dict[str, str]]:
    return [{"body": body.as_py().decode()} for body in bodies(count, size)]


def json_request(count: int, size: int) -> bytes:
    """A JSON request of `count` messages."""
    return json.dumps({"messages": _messages(count, size)}, separators=(",", ":")).encode()


def ndjson(count: int, size: int) -> bytes:
    """`count` messages, a line each."""
    return b"".join(json.dumps(m, separators=(",", ":")).encode() + b"\n" for m in _messages(count, size))
