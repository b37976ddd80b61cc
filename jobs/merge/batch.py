"""One batch of the merge job: the records it covers, the state by which they are judged, and the rows made of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit

from deltamq.jobs.merge.log_spans import LogSpan, decoded
from deltamq.jobs.tasks.connect import is_connect, local_checkpoint
from deltamq.jobs.tasks.tasks import frame_of_tasks
from deltamq.jobs.tasks.warehouse_files import storage
from deltamq.mq.meta.fold import Meta

#: Makes columns of a log's rows, and joins such parts to one row for each key; functions of modules.
Decode: TypeAlias = Callable[[pa.Table], pa.Table]
Fold: TypeAlias = Callable[[Sequence[pa.Table]], pa.Table]


class MergeInput(msgspec.Struct, frozen=True, kw_only=True):
    """The input of the source of a MERGE."""

    session: SparkSession
    #: The URI by which tasks open the warehouse.
    warehouse: str
    #: The location of the table that is merged into, for Spark.
    location: str
    #: The records of the logs in this batch.
    spans: Sequence[LogSpan]
    #: Read after the ends of the spans: a group or topic that the records refer to and that is missing here has ended.
    meta: Meta
    now: datetime
    #: Whether rows that may be forgotten are deleted.
    clean: bool
    #: Whether a topic, group or epoch may have ended, so that unfinished rows may be forgotten as well.
    ended: bool
    #: The longest time for which a checkpoint may be only in the service's memory, in milliseconds.
    stay_buffer_ms: int
    share_records: int
    span_records_max: int
    #: Whether rows of several logs may have the same key, so that a shuffle is needed to join them.
    mixed: bool = False
    _kept: list[DataFrame] = msgspec.field(default_factory=list)

    @property
    def now_ms(self) -> int:
        """The time of the run in milliseconds."""
        return int(self.now.timestamp() * 1000)

    def keep(self, frame: DataFrame) -> DataFrame:
        """Return a frame that the executors keep once it is evaluated, until the batch is released.

        Delta refuses a cached source of a MERGE, since it could be evaluated again in between; this one cannot.
        """
        kept = local_checkpoint(frame)
        self._kept.append(kept)
        return kept

    def release(self) -> None:
        """Release the kept frames; errors are ignored, since a context that died keeps nothing."""
        while self._kept:
            kept: Any = self._kept.pop()
            # Over Spark Connect, the server releases it when the object here is gone.
            if not is_connect(self.session):
                with suppress(Exception):
                    kept._jdf.queryExecution().logical().rdd().unpersist(False)


def marked(rows: DataFrame, batch: MergeInput, *, forget: bool) -> DataFrame:
    """Return rows of a source: additions to the table's rows, or with `forget` rows that may go."""
    return rows.withColumns({"forget": lit(forget), "merged_at": lit(batch.now)})


def folded_in_one_task(batch: MergeInput, decode: Decode, fold: Fold, schema: pa.Schema) -> DataFrame:
    """Return all records of a batch as `fold` joins them, not evaluated yet: for logs with few records."""
    task = _FoldTask(warehouse=batch.warehouse, spans=tuple(batch.spans), decode=decode, fold=fold)
    return frame_of_tasks(batch.session, [task], _folded, schema)


class _FoldTask(msgspec.Struct, frozen=True, kw_only=True):
    warehouse: str
    spans: tuple[LogSpan, ...]
    decode: Decode
    fold: Fold


def _folded(task: _FoldTask) -> Iterator[pa.RecordBatch]:
    """Only one part is in memory at a time."""
    rows = task.fold([])
    for part in decoded(storage(task.warehouse), task.spans, task.decode):
        rows = task.fold([rows, part])
    yield from rows.to_batches()
