"""Makes the source of the MERGE into `state/lost_messages` from records of lost messages: one row for each range."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame

from deltamq.jobs.merge import lost_batch
from deltamq.jobs.merge.batch import MergeInput
from deltamq.jobs.merge.log_spans import LogSpan, decoded
from deltamq.jobs.tasks.tasks import frame_of_tasks
from deltamq.jobs.tasks.warehouse_files import storage
from deltamq.tables.schema import TIME

SOURCE_SCHEMA: Final = lost_batch.BATCH_SCHEMA.append(pa.field("merged_at", TIME)).append(
    pa.field("forget", pa.bool_())
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """All logs of losses in one task: losses are exceptions, and rarely many."""

    warehouse: str
    spans: tuple[LogSpan, ...]
    now: datetime


def loss_source(batch: MergeInput) -> DataFrame:
    """Return the source's rows, not evaluated yet."""
    task = _Task(warehouse=batch.warehouse, spans=tuple(batch.spans), now=batch.now)
    return frame_of_tasks(batch.session, [task], _lost, SOURCE_SCHEMA)


def _lost(task: _Task) -> Iterator[pa.RecordBatch]:
    rows = lost_batch.BATCH_SCHEMA.empty_table()
    for part in decoded(storage(task.warehouse), task.spans, lost_batch.decode):
        rows = lost_batch.fold([rows, part])
    columns = [*rows.columns, pa.array([task.now] * rows.num_rows, TIME), pa.array([False] * rows.num_rows, pa.bool_())]
    yield from pa.table(columns, schema=SOURCE_SCHEMA).to_batches()
