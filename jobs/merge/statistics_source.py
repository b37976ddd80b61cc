"""Makes the source of the MERGE into `state/group_statistics`: the minutes in a batch, and old ones to be forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.functions import col, lit

from deltamq.jobs.merge import statistics_batch
from deltamq.jobs.merge.batch import MergeInput
from deltamq.jobs.merge.log_spans import LogSpan, decoded
from deltamq.jobs.merge.statistics_batch import BATCH_SCHEMA
from deltamq.jobs.tasks.tasks import frame_of_tasks
from deltamq.jobs.tasks.warehouse_files import storage

#: How long the table keeps a minute.
KEPT: Final = timedelta(days=7)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """All logs of statistics in one task: a group in a topic makes one record a minute for each broker."""

    warehouse: str
    spans: tuple[LogSpan, ...]


def statistics_source(batch: MergeInput) -> DataFrame:
    """Return the source's rows, not evaluated yet."""
    task = _Task(warehouse=batch.warehouse, spans=tuple(batch.spans))
    oldest = lit(batch.now - KEPT)
    new = frame_of_tasks(batch.session, [task], _folded, BATCH_SCHEMA).where(col("minute") >= oldest)
    gone = batch.session.read.format("delta").load(batch.location).where(col("minute") < oldest)
    rows = new.withColumn("forget", lit(False))
    if not gone.isEmpty():
        rows = rows.union(gone.select(*BATCH_SCHEMA.names).withColumn("forget", lit(True)))
    return rows.withColumn("merged_at", lit(batch.now))


def _folded(task: _Task) -> Iterator[pa.RecordBatch]:
    rows = BATCH_SCHEMA.empty_table()
    for part in decoded(storage(task.warehouse), task.spans, statistics_batch.decode):
        rows = statistics_batch.fold([rows, part])
    yield from rows.to_batches()
