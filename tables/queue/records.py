"""Conversion of the records of the queue's own logs to message rows, and back: the body is JSON, the tag is the kind.

revive log       checkpoint, acknowledgement, done      deliver_time: when it falls due
offsets          a group's progress in a lane
lost             offsets that a group can no longer get
statistics       what a group did in a minute
delay marks      cancelled, ended
dead marks       sent back, deleted
audit            an act begun, an act ended, refusals of a minute; the key is the record's id
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import pyarrow as pa

from deltamq.mq.audit import AuditRecord
from deltamq.mq.audit import record_from_json as audit_from_json
from deltamq.mq.audit import record_to_json as audit_to_json
from deltamq.mq.errors import Corrupt
from deltamq.mq.history import HistoryRecord
from deltamq.mq.queue.dead_letters import DeadMark, dead_mark_from_json, dead_mark_to_json
from deltamq.mq.queue.delay import DelayMark, mark_from_json, mark_to_json
from deltamq.mq.queue.progress import OffsetRecord
from deltamq.mq.queue.revive import LostRecord
from deltamq.mq.queue.revive_log import Record, record_from_json, record_to_json
from deltamq.mq.statistics import StatisticsRecord
from deltamq.tables.schema import INGEST_SCHEMA, TIME

T = TypeVar("T")

_OFFSET: Final = "offset"
_LOST: Final = "lost"
_STATISTICS: Final = "statistics"
_SCHEMA: Final = pa.schema([INGEST_SCHEMA.field(name) for name in ("tag", "body")])
_KEYED_SCHEMA: Final = pa.schema([INGEST_SCHEMA.field(name) for name in ("key", "tag", "body")])
_DUE_SCHEMA: Final = pa.schema([INGEST_SCHEMA.field(name) for name in ("tag", "body", "deliver_time")])


def rows_of_records(records: Sequence[Record]) -> pa.RecordBatch:
    """Return records as rows for one queue of the revive log (SPEC POP-6)."""
    tags, bodies = _columns([record_to_json(record) for record in records])
    due = pa.array([record.due_time_ms * 1_000 for record in records], TIME)
    return pa.RecordBatch.from_arrays([tags, bodies, due], schema=_DUE_SCHEMA)


def records_of(rows: pa.Table) -> list[Record]:
    """Return the records in rows of the revive log; each checkpoint gets its offset in the log.

    Raises
    ------
    Corrupt
        A row does not hold a record; the detail names its offset. The other functions here raise it, too.
    """
    return _decoded(rows, lambda tag, body, offset: record_from_json(tag, body, revive_offset=offset))


def rows_of_offset_records(records: Sequence[OffsetRecord]) -> pa.RecordBatch:
    """Return offset commits as rows for the offsets log."""
    return _plain([(_OFFSET, record.to_json()) for record in records])


def offset_records_of(rows: pa.Table) -> list[OffsetRecord]:
    """Return the offset commits in rows of the offsets log."""
    return _decoded(rows, lambda _, body, __: OffsetRecord.from_json(body))


def rows_of_lost_records(records: Sequence[LostRecord]) -> pa.RecordBatch:
    """Return losses as rows for the log of losses."""
    return _plain([(_LOST, record.to_json()) for record in records])


def lost_records_of(rows: pa.Table) -> list[LostRecord]:
    """Return the losses in rows of the log of losses."""
    return _decoded(rows, lambda _, body, __: LostRecord.from_json(body))


def rows_of_statistics(records: Sequence[StatisticsRecord]) -> pa.RecordBatch:
    """Return statistics as rows for their log."""
    return _plain([(_STATISTICS, record.to_json()) for record in records])


def statistics_of(rows: pa.Table) -> list[StatisticsRecord]:
    """Return the statistics in rows of their log."""
    return _decoded(rows, lambda _, body, __: StatisticsRecord.from_json(body))


def rows_of_delay_marks(marks: Sequence[DelayMark]) -> pa.RecordBatch:
    """Return marks as rows for the log of delay marks."""
    return _plain([mark_to_json(mark) for mark in marks])


def delay_marks_of(rows: pa.Table) -> list[DelayMark]:
    """Return the marks in rows of the log of delay marks."""
    return _decoded(rows, lambda tag, body, _: mark_from_json(tag, body))


def rows_of_dead_marks(marks: Sequence[DeadMark]) -> pa.RecordBatch:
    """Return marks as rows for the log of marks of dead letters."""
    return _plain([dead_mark_to_json(mark) for mark in marks])


def dead_marks_of(rows: pa.Table) -> list[DeadMark]:
    """Return the marks in rows of the log of marks of dead letters."""
    return _decoded(rows, lambda tag, body, _: dead_mark_from_json(tag, body))


def rows_of_audit(records: Sequence[AuditRecord]) -> pa.RecordBatch:
    """Return records of the audit as rows for its partition."""
    tags, bodies = _columns([audit_to_json(record) for record in records])
    keys = pa.array([record.id for record in records], pa.string())
    return pa.RecordBatch.from_arrays([keys, tags, bodies], schema=_KEYED_SCHEMA)


def audit_records_of(rows: pa.Table) -> list[AuditRecord]:
    """Return the records in rows of the audit."""
    return _decoded(rows, lambda tag, body, _: audit_from_json(tag, body))


def rows_of_history(records: Sequence[HistoryRecord]) -> pa.RecordBatch:
    """Return samples as rows for their partition; the tag is the metric."""
    return _plain([(record.metric, record.to_json()) for record in records])


def history_of(rows: pa.Table) -> list[HistoryRecord]:
    """Return the samples in rows of their partition."""
    return _decoded(rows, lambda _, body, __: HistoryRecord.from_json(body))


def _plain(tagged: Sequence[tuple[str, bytes]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(_columns(tagged)), schema=_SCHEMA)


def _columns(tagged: Sequence[tuple[str, bytes]]) -> tuple[pa.Array, pa.Array]:
    return pa.array([tag for tag, _ in tagged], pa.string()), pa.array([body for _, body in tagged], pa.binary())


def _decoded(rows: pa.Table, decode: Callable[[str, bytes, int], T]) -> list[T]:
    columns = [rows.column(name).to_pylist() for name in ("tag", "body", "offset")]
    records = []
    for tag, body, offset in zip(*columns, strict=True):
        try:
            records.append(decode(tag, body, offset))
        except Corrupt as error:
            raise Corrupt(f"the record at offset {offset} is damaged: {error}", code="record_corrupt") from error
    return records
