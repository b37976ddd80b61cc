"""`readStream.format("mq")` as Spark calls it (SPEC SPARK-2).

    planner process, one for each query                     tasks
    latestOffset(start): commit `start` to the group,
        wait for news, take as many messages as the limits allow
    partitions(start, end): ranges of offsets  ---------->  parquet -> Arrow batches, every byte checked -> Spark

Progress is the offsets of the log (`mq.streams`) in the query's own checkpoint folder. So a batch that a
kill interrupts is planned and read again unchanged, and a sink that is idempotent by batch, such as Delta's, stores it
once. The planner keeps its logs open; after a kill it is built again from the checkpoint. Reading writes the claim on
the checkpoint, which each position names (SPARK-22), and nothing else. With the option `group`, progress is also
recorded for that group after each finished batch (`jobs.stream.group_progress`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from deltamq.jobs.read.offset_range import split
from deltamq.jobs.read.options import ReadOptions, Strategy
from deltamq.jobs.read.range_reader import ROWS_PER_TASK_MAX, RangePartition, RangeRows
from deltamq.jobs.stream.group_progress import GroupProgress
from deltamq.jobs.stream.planner import StreamPlanner
from deltamq.jobs.tasks.checkpoint_claims import CheckpointClaims, Claimant
from deltamq.jobs.tasks.first_lines import errors_in_one_line, in_one_line
from deltamq.mq.errors import DeltaMQError
from deltamq.mq.streams import StreamOffset
from deltamq.tables.failpoints import failpoint


class MessageStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One stream. It is pickled for the tasks before it plans anything, so planning opens files on demand."""

    def __init__(self, options: ReadOptions, schema: StructType, *, cluster: str, claimant: Claimant) -> None:
        self._options = options
        self._claimant = claimant
        self._rows = RangeRows(options, schema)
        self._cluster = cluster
        self._opened: StreamPlanner | None = None
        self._claimed: CheckpointClaims | None = None
        self._progress: GroupProgress | None = None

    def __repr__(self) -> str:
        options = self._options
        what = {
            Strategy.SUBSCRIBE: ",".join(options.topics),
            Strategy.PATTERN: f"/{options.pattern}/",
            Strategy.ASSIGN: ",".join(name for names in options.assigned.values() for name in names),
        }
        return f"mq[{what[options.strategy]}] in {options.warehouse}"

    @property
    def _planner(self) -> StreamPlanner:
        if self._opened is None:
            self._opened = StreamPlanner(self._options)
            if self._options.group is not None:
                self._progress = GroupProgress(
                    self._options.warehouse, self._options.group, self._cluster, self._opened.followed
                )
        return self._opened

    @property
    def _claims(self) -> CheckpointClaims:
        if self._claimed is None:
            self._claimed = CheckpointClaims(self._planner.followed.store, self._claimant)
        return self._claimed

    # What Spark's planner process calls.

    @in_one_line
    def initialOffset(self) -> dict[str, Any]:
        """Return the position where a new query begins."""
        return self._planner.initial().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the query's own limit; a trigger may override it."""
        limits = self._options.limits
        if limits.messages_max is not None:
            return ReadMaxRows(limits.messages_max)
        return ReadAllAvailable() if limits.messages_min is None else ReadMinRows(limits.messages_min)

    @in_one_line
    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the position where the query ends."""
        self._planner.fix_target()

    @in_one_line
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the position where the next batch ends; exactly `start` if there is nothing to read.

        Everything before `start` is done, so the group's progress is committed here.

        Raises
        ------
        CheckpointTaken
            Another application goes on from the same checkpoint.
        """
        planner, begin = self._planner, StreamOffset.from_json(start)
        planner.check_ours(begin)
        if self._progress is not None:
            self._progress.commit(begin)
        failpoint("stream.before_latest")
        messages_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        end = planner.next_end(begin, messages_max=messages_max, unlimited=isinstance(limit, ReadAllAvailable))
        self._claims.check(begin, idle=end is None)
        failpoint("stream.after_latest")
        return start if end is None else end.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the end position as of the last look, for the query's progress."""
        return None if self._opened is None else self._opened.latest().to_json()

    @in_one_line
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a batch; raise `CheckpointTaken` if another application goes on from the checkpoint."""
        options, planner, until = self._options, self._planner, StreamOffset.from_json(end)
        self._claims.begin(until)
        ranges = planner.ranges(StreamOffset.from_json(start), until)
        rows_max = min(options.records_per_partition_max or ROWS_PER_TASK_MAX, ROWS_PER_TASK_MAX)
        tasks = [RangePartition(r) for r in split(ranges, partitions_min=options.partitions_min, rows_max=rows_max)]
        failpoint("stream.after_plan")
        return tasks

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: Spark calls this a batch late, and never for the last one; `latestOffset` commits."""

    def stop(self) -> None:
        """Close the opened files."""
        if self._progress is not None:
            self._progress.close()
        if self._claimed is not None:
            self._claimed.close()

    # What tasks call.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one range, in offset order."""
        with errors_in_one_line():
            for batch in self._rows.read(partition):
                failpoint("stream.task")
                yield batch


class RefusedStream(DataSourceStreamReader):
    """The reader of a stream that was refused before it began: each call raises the reason (SPEC SPARK-23).

    An error while Spark makes the reader reaches the driver as another error: its process then fails to stop the reader
    that it has not made, and the sentence is lost in two tracebacks.
    """

    def __init__(self, error: DeltaMQError) -> None:
        self._error = error

    @in_one_line
    def _refuse(self) -> NoReturn:
        raise self._error

    def initialOffset(self) -> dict[str, Any]:
        """Raise the error."""
        self._refuse()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Raise the error."""
        self._refuse()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Raise the error."""
        self._refuse()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raise the error."""
        self._refuse()
