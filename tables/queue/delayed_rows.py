"""Rows of a delay partition: a message with its deliver time and the partition it then goes to (SPEC RETRY-4)."""

from __future__ import annotations

import pyarrow as pa

from deltamq.mq.meta.topics import Topic
from deltamq.tables.schema import ORIGIN, TIME
from deltamq.tables.typed_row import untyped


def producer_in_delay(topic_id: str, producer_id: str) -> str:
    """Return a producer's id in delay partitions: all topics share these, but each numbers its requests by itself."""
    return f"{topic_id}/{producer_id}"


def with_destination(rows: pa.RecordBatch, topic: Topic, partitions: pa.Array, at_ms: pa.Array) -> pa.RecordBatch:
    """Return messages as rows of a delay partition.

    Parameters
    ----------
    partitions, at_ms
        The target partition and the deliver time of each message, in milliseconds since 1970.
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
    rows = untyped(rows).append_column(pa.field("deliver_time", TIME), at_us.cast(TIME))
    return rows.append_column(pa.field("origin", ORIGIN), origin)
