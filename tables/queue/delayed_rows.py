"""Rows of a delay partition: a message with the time it waits for and the place it then goes to (SPEC RETRY-4)."""

from __future__ import annotations

import pyarrow as pa

from mq.meta import Topic
from tables.schema import ORIGIN, TIME

__all__ = ["producer_in_delay", "with_destination"]


def producer_in_delay(topic_id: str, producer_id: str) -> str:
    """Return a producer's name in delay partitions, which all topics share: each topic counts its requests alone."""
    return f"{topic_id}/{producer_id}"


def with_destination(rows: pa.RecordBatch, topic: Topic, partitions: pa.Array, at_ms: pa.Array) -> pa.RecordBatch:
    """Return messages as rows of a delay partition.

    Parameters
    ----------
    partitions, at_ms
        For each message where it goes, and when, in milliseconds since 1970.
    """
    count = rows.num_rows
    origin = pa.StructArray.from_arrays(
        [
            pa.repeat(pa.scalar(f"{topic.id}/{topic.name}"), count),
            partitions,
            pa.repeat(pa.scalar(-1, pa.int64()), count),
        ],
        fields=list(ORIGIN),
    )
    at_us = pa.array(at_ms.to_numpy(zero_copy_only=False) * 1000, pa.int64())
    rows = rows.append_column(pa.field("deliver_time", TIME), at_us.cast(TIME))
    return rows.append_column(pa.field("origin", ORIGIN), origin)
