"""Makes the source of the MERGE into `state/pop_checkpoints` from records of the revive logs: a row per checkpoint.

    spans --a task each--> folded by checkpoint --where a log is divided: shuffled by key--> folded once more --> source
    the table --rows that may be finished--> a task each: forgettable --without the batch's keys--> source

The service stores all records about a checkpoint in one queue of its revive log. A shuffle costs more than everything
else here, so it is made only if a log is divided among tasks. The caller that evaluates the source counts the keys, and
makes it again with `MergeInput.mixed` if two logs have records about the same checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.functions import col, lit, timestamp_millis

from deltamq.jobs.merge import checkpoint_batch
from deltamq.jobs.merge.batch import MergeInput, marked
from deltamq.jobs.merge.checkpoint_batch import BATCH_SCHEMA
from deltamq.jobs.merge.forget import COLUMNS, RECORD_LATE_MS, Lives, forgettable
from deltamq.jobs.merge.log_spans import LogSpan, decoded, shares
from deltamq.jobs.merge.offsets import known_progress
from deltamq.jobs.tasks.tasks import frame_of_tasks, in_tasks
from deltamq.jobs.tasks.warehouse_files import storage
from deltamq.tables.state.rows import Progress
from deltamq.tables.state.schema import CHECKPOINT_KEY, POP_CHECKPOINTS_SCHEMA

_STATE_SCHEMA: Final = pa.schema([POP_CHECKPOINTS_SCHEMA.field(name) for name in COLUMNS])

Batches = Iterator[pa.RecordBatch]


class _Task(msgspec.Struct, frozen=True, kw_only=True):
    """The work of a task: some logs, or a part of one."""

    warehouse: str
    spans: tuple[LogSpan, ...]


def checkpoint_source(batch: MergeInput) -> DataFrame:
    """Return the source's rows, not evaluated yet."""
    if not batch.clean:
        return marked(_folded(batch), batch, forget=False)
    gone = _gone(batch)
    if not batch.spans:
        return marked(gone, batch, forget=True)
    folded = batch.keep(_folded(batch))
    untouched = gone.join(folded, list(CHECKPOINT_KEY), "left_anti").select(*BATCH_SCHEMA.names)
    return marked(folded, batch, forget=False).union(marked(untouched, batch, forget=True))


def _folded(batch: MergeInput) -> DataFrame:
    divided = shares(batch.spans, share_records=batch.share_records, span_records_max=batch.span_records_max)
    tasks = [_Task(warehouse=batch.warehouse, spans=spans) for spans in divided]
    rows = frame_of_tasks(batch.session, tasks, _fold_logs, BATCH_SCHEMA)
    logs = [span.ref for spans in divided for span in spans]
    if len(tasks) == 1 or (not batch.mixed and len(logs) == len(set(logs))):
        return rows
    return in_tasks(rows.repartition(len(tasks), *CHECKPOINT_KEY), _fold_rows, BATCH_SCHEMA)


def _fold_logs(task: _Task) -> Batches:
    parts = decoded(storage(task.warehouse), task.spans, checkpoint_batch.decode)
    yield from checkpoint_batch.fold(list(parts)).to_batches()


def _fold_rows(batches: Batches) -> Batches:
    """Fold the rows of one partition, which has all rows about its checkpoints."""
    parts = [pa.Table.from_batches([batch]).cast(BATCH_SCHEMA) for batch in batches]
    yield from checkpoint_batch.fold(parts).to_batches()


class _Forgetting(msgspec.Struct, frozen=True, kw_only=True):
    """Yields the rows of the table that may go; called in a task with a part of them."""

    warehouse: str
    lives: Lives
    now_ms: int
    stay_buffer_ms: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Batches:
        progress: Progress | None = None
        for batch in batches:
            if progress is None:
                progress = known_progress(storage(self.warehouse))
            rows = pa.Table.from_batches([batch]).cast(_STATE_SCHEMA)
            mask = forgettable(rows, self.lives, progress, self.now_ms, stay_buffer_ms=self.stay_buffer_ms)
            yield from _widened(rows.filter(mask)).to_batches()


def _widened(rows: pa.Table) -> pa.Table:
    arrays = [
        rows.column(column.name) if column.name in rows.column_names else pa.nulls(rows.num_rows, column.type)
        for column in BATCH_SCHEMA
    ]
    return pa.table(arrays, schema=BATCH_SCHEMA)


def _gone(batch: MergeInput) -> DataFrame:
    """Select the rows that may go.

    Only finished rows can go, and only when they are old enough: Delta skips the files that have none of them. If a
    group, topic or epoch may have ended, all rows are examined.
    """
    rows = batch.session.read.format("delta").load(batch.location)
    if not batch.ended:
        late = timestamp_millis(lit(batch.now_ms - RECORD_LATE_MS))
        rows = rows.where(col("due_time").isNull() & (col("pop_time") <= late))
        rows = rows.where(col("revive_time").isNull() | (col("revive_time") <= late))
    forgetting = _Forgetting(
        warehouse=batch.warehouse,
        lives=Lives.of(batch.meta),
        now_ms=batch.now_ms,
        stay_buffer_ms=batch.stay_buffer_ms,
    )
    return in_tasks(rows.select(*COLUMNS), forgetting, BATCH_SCHEMA)
