"""Messages that move on to another partition, as columns: retried messages, dead letters, delayed messages.

What the producer gave is kept: id, key, tag, headers, body, born time (SPEC RETRY-1). The append to the new partition
sets offset, append time and producer. No row becomes a Python object, so a million messages are moved in seconds.

Rows that wait also keep which schema wrote them, in the column `value` (SPEC TYPE-51, `tables.queue.waiting_rows`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from deltamq.mq.meta.topics import Topic
from deltamq.mq.queue.retry import DEAD_REASON_HEADER, without_reason
from deltamq.tables.schema import HEADERS, INGEST_SCHEMA, INTERNAL_SCHEMA, ORIGIN, TIME
from deltamq.tables.typed_row import VALUE

_KEPT: Final = ("message_id", "key", "tag", "headers", "body", "born_time")
_AGAIN: Final = pa.schema([INTERNAL_SCHEMA.field(name) for name in (*_KEPT, "reconsume_times", "origin")])
_FORWARDED: Final = pa.schema([INGEST_SCHEMA.field(name) for name in (*_KEPT, "deliver_time")])


def again(rows: pa.RecordBatch, topic: str, partition: str, reconsume_times: Sequence[int]) -> pa.RecordBatch:
    """Return rows of messages to be delivered again, each with the number of its failed deliveries so far.

    The messages were popped from `partition` of `topic`; a message that was retried before keeps its origin.
    """
    columns = [rows.column(name) for name in _KEPT]
    times = pa.array(reconsume_times, pa.int32())
    made = pa.RecordBatch.from_arrays([*columns, times, _origins(rows, topic, partition)], schema=_AGAIN)
    return _with_writers(made, rows)


def _with_writers(made: pa.RecordBatch, rows: pa.RecordBatch) -> pa.RecordBatch:
    at = rows.schema.get_field_index(VALUE)
    return made if at < 0 else made.append_column(rows.schema.field(at), rows.column(at))


def _origins(rows: pa.RecordBatch, topic: str, partition: str) -> pa.Array:
    origin = rows.column("origin")
    if len(origin) and origin.null_count == 0:
        return origin
    here = pa.StructArray.from_arrays(
        [
            pa.repeat(pa.scalar(topic, pa.string()), rows.num_rows),
            pa.repeat(pa.scalar(partition, pa.string()), rows.num_rows),
            rows.column("offset"),
        ],
        fields=list(ORIGIN),
    )
    return here if origin.null_count == len(origin) else pc.if_else(origin.is_valid(), origin, here)


def with_reason(rows: pa.RecordBatch, reasons: Sequence[str]) -> pa.RecordBatch:
    """Return the rows with the reason why each is a dead letter in its headers, which replaces an earlier reason."""
    at = rows.schema.get_field_index("headers")
    return rows.set_column(at, INTERNAL_SCHEMA.field("headers"), _with_header(rows.column(at), reasons))


def _with_header(headers: pa.MapArray, values: Sequence[str]) -> pa.MapArray:
    """Return the headers with DEAD_REASON_HEADER as the last entry of each row, which replaces an earlier one."""
    rows = len(headers)
    given = headers.offsets.to_numpy()
    owner = np.repeat(np.arange(rows), np.diff(given))
    entries = np.arange(given[0], given[-1]) if rows else np.zeros(0, dtype=np.int64)
    names, texts = headers.keys.take(pa.array(entries)), headers.items.take(pa.array(entries))
    # Entries under a row that is null do not count.
    kept = np.asarray(headers.is_valid())[owner] & np.asarray(pc.not_equal(names, DEAD_REASON_HEADER))
    ends = np.zeros(rows + 1, dtype=np.int32)
    np.cumsum(np.bincount(owner[kept], minlength=rows) + 1, out=ends[1:])
    added = np.zeros(int(ends[-1]), dtype=bool)
    added[ends[1:] - 1] = True
    positions = np.empty(len(added), dtype=np.int64)
    positions[~added] = np.flatnonzero(kept)
    positions[added] = len(entries)
    all_names = pa.concat_arrays([names, pa.array([DEAD_REASON_HEADER], pa.string())]).take(pa.array(positions))
    positions[added] = len(entries) + np.arange(rows)
    all_texts = pa.concat_arrays([texts, pa.array(values, pa.string())]).take(pa.array(positions))
    return pa.MapArray.from_arrays(pa.array(ends), all_names, all_texts, type=HEADERS)


def forwarded(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return delayed messages as rows for their target: they keep their deliver time, and have no origin."""
    made = pa.RecordBatch.from_arrays([rows.column(name) for name in _FORWARDED.names], schema=_FORWARDED)
    return _with_writers(made, rows)


def sent_back(rows: pa.RecordBatch, *, to_retry: bool) -> pa.RecordBatch:
    """Return dead letters as rows of messages that start again: without the reason, with no failed deliveries.

    A message that goes to its group's retry partition keeps its origin; one that goes back to its origin has none.
    """
    columns = {name: rows.column(name) for name in _KEPT}
    kept = (without_reason(dict(entries or ())) for entries in columns["headers"].to_pylist())
    columns["headers"] = pa.array([list(headers.items()) or None for headers in kept], HEADERS)
    if to_retry:
        columns["reconsume_times"] = pa.repeat(pa.scalar(0, pa.int32()), rows.num_rows)
        columns["origin"] = rows.column("origin")
    schema = pa.schema([INTERNAL_SCHEMA.field(name) for name in columns])
    return _with_writers(pa.RecordBatch.from_arrays(list(columns.values()), schema=schema), rows)


def producer_in_delay(topic_id: str, producer_id: str) -> str:
    """Return a producer's id in delay partitions: all topics share these, but each numbers its requests by itself."""
    return f"{topic_id}/{producer_id}"


def with_destination(rows: pa.RecordBatch, topic: Topic, partitions: pa.Array, at_ms: pa.Array) -> pa.RecordBatch:
    """Return rows that wait as rows of a delay partition, with deliver time and target (SPEC RETRY-4).

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
    rows = rows.append_column(pa.field("deliver_time", TIME), at_us.cast(TIME))
    return rows.append_column(pa.field("origin", ORIGIN), origin)
