"""Conversion of rows of the state tables to the core's values, and back.

A row does not store which checkpoint its checkpoint replaced (`Checkpoint.replaces`), so a converted checkpoint lacks
it: the row of the replaced checkpoint holds it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from deltamq.mq.names import broker_of
from deltamq.mq.queue.checkpoint import Attempts, Checkpoint, CheckpointKey, LaneKey, Pop, Span
from deltamq.mq.queue.progress import CommitNote, Committed, Delivered
from deltamq.mq.queue.revive_log import CheckpointState
from deltamq.tables.schema import TIME
from deltamq.tables.state.schema import CONSUMER_OFFSETS_SCHEMA

OFFSET_COLUMNS: Final = (
    "topic_id",
    "group",
    "retry",
    "partition",
    "topic",
    "epoch",
    "committed_offset",
    "done",
    "delivered",
    "metadata",
    "metadata_number",
)
CHECKPOINT_COLUMNS: Final = (
    "topic_id",
    "group",
    "retry",
    "partition",
    "epoch",
    "start_offset",
    "pop_time",
    "topic",
    "num",
    "diffs",
    "attempts",
    "invisible_ms",
    "revive_time",
    "acked",
    "replaced",
    "done",
    "dead_reason",
    "given_back",
    "revive_queue",
    "revive_offset",
)

#: The topic and the group's progress, by lane.
Progress = Mapping[LaneKey, tuple[str, Committed]]


def committed_of_rows(rows: pa.Table) -> dict[LaneKey, tuple[str, Committed]]:
    """Return the progress in rows of `state/consumer_offsets` with at least `OFFSET_COLUMNS`."""
    columns = [rows.column(name).to_pylist() for name in OFFSET_COLUMNS]
    progress = {}
    for topic_id, group, retry, partition, topic, epoch, offset, done, delivered, *noted in zip(*columns, strict=True):
        ranges = tuple((span["low"], span["high"]) for span in done or ())
        leases = tuple(Delivered(**lease) for lease in delivered or ())
        progress[LaneKey(topic_id, group, retry, partition)] = (
            topic,
            Committed(epoch, offset, ranges, leases, _note(*noted)),
        )
    return progress


def _note(text: str | None, number: int | None) -> CommitNote | None:
    return None if number is None else CommitNote(number, text or "")


def rows_of_committed(progress: Progress, merged_at: datetime) -> pa.Table:
    """Return the progress as rows of `state/consumer_offsets`."""
    rows = [
        {
            **lane._asdict(),
            "topic": topic,
            "broker": broker_of(lane.partition),
            "epoch": committed.epoch,
            "committed_offset": committed.offset,
            "done": [{"low": low, "high": high} for low, high in committed.done] or None,
            "delivered": [lease._asdict() for lease in committed.delivered] or None,
            "merged_at": merged_at,
            "metadata": committed.metadata or None,
            "metadata_number": None if committed.note is None else committed.note.number,
        }
        for lane, (topic, committed) in progress.items()
    ]
    return pa.Table.from_pylist(rows, schema=CONSUMER_OFFSETS_SCHEMA)


def states_of_rows(rows: pa.Table) -> Iterator[tuple[CheckpointKey, CheckpointState]]:
    """Yield the checkpoints in rows of `state/pop_checkpoints` with at least `CHECKPOINT_COLUMNS`."""
    columns = [_plain(rows.column(name)) for name in CHECKPOINT_COLUMNS]
    for row in zip(*columns, strict=True):
        topic_id, group, retry, partition, epoch, start, pop_ms, topic, num, diffs, attempts, invisible_ms = row[:12]
        revive_ms, acked, replaced, done, reason, given_back, queue, offset = row[12:]
        checkpoint = None
        if num is not None:
            pop = Pop(
                topic=topic,
                topic_id=topic_id,
                group=group,
                epoch=epoch,
                partition=partition,
                retry=retry,
                pop_time_ms=pop_ms,
                invisible_ms=invisible_ms,
                revive_queue=queue,
                given_back=bool(given_back),
                is_condemned=reason is not None,
            )
            span = Span(start, num, None if diffs is None else tuple(diffs), _attempts(attempts))
            checkpoint = Checkpoint(pop=pop, span=span, dead_reason=reason, revive_offset=offset)
        key = CheckpointKey(topic_id, group, epoch, retry, partition, start, pop_ms)
        yield key, CheckpointState(checkpoint, acked, replaced, done, revive_ms or 0)


def _plain(column: pa.ChunkedArray) -> list[object]:
    """Return the values of a column, with times in milliseconds."""
    if column.type == TIME:
        column = pc.divide(column.cast(pa.int64()), 1_000)
    values: list[object] = column.to_pylist()
    return values


def _attempts(each: list[int]) -> Attempts:
    return each[0] if len(set(each)) == 1 else tuple(each)
