"""Messages for tests of the log, and functions that read a log."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pyarrow as pa

from deltamq.tables.delta.stamped import ProducerStamp
from deltamq.tables.log.batch import Batch
from deltamq.tables.log.fetch import FetchStatus
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.paths import PartitionRef, Space

__all__ = ["REF", "all_bodies", "all_rows", "batch", "next_millisecond", "numbered_bodies", "rows"]

REF = PartitionRef(Space.TOPICS, "orders", "orders@broker-a")
_BODY = pa.schema([("body", pa.binary())])


def rows(bodies: Sequence[bytes]) -> pa.RecordBatch:
    """Return a producer's rows with nothing but bodies."""
    return pa.RecordBatch.from_arrays([pa.array(bodies, pa.binary())], schema=_BODY)


def batch(*bodies: bytes, producer: str | None = None, seq: int = 0) -> Batch:
    """Return one request, of an idempotent producer if `producer` is given."""
    stamp = ProducerStamp(producer, seq, None, len(bodies)) if producer else None
    return Batch(rows(bodies), stamp)


def numbered_bodies(prefix: str, count: int) -> list[bytes]:
    """Return `count` bodies of prefix and number."""
    return [f"{prefix}-{i}".encode() for i in range(count)]


def next_millisecond() -> None:
    """Return in a later millisecond: what is appended from now on has a later time than what is there."""
    began = time.time_ns() // 1_000_000
    while time.time_ns() // 1_000_000 <= began:
        pass


def all_rows(log: PartitionLog, *, step: int = 1_000_000) -> pa.Table:
    """Return all rows from the first offset to the end, read as a consumer would, at most `step` messages at once."""
    found = []
    at = log.min_offset
    while True:
        answer = log.read(at, max_messages=step, max_bytes=1 << 30)
        if answer.status is not FetchStatus.FOUND:
            assert answer.status is FetchStatus.NO_NEW_MESSAGE, answer.status
            break
        assert answer.rows.column("offset").to_pylist() == list(range(at, answer.next_offset))
        found.append(answer.rows)
        at = answer.next_offset
    return pa.concat_tables(found) if found else answer.rows


def all_bodies(log: PartitionLog, *, step: int = 1_000_000) -> list[bytes]:
    """Return the bodies of `all_rows`: position `i` is offset `min_offset + i`."""
    return [bytes(body) for body in all_rows(log, step=step).column("body").to_pylist()]
