"""Two formats for views over the queue: `mq_partitions` and `mq_space`. Each query reads them again.

| format          | a row for each                                   | options                                  |
|-----------------|--------------------------------------------------|------------------------------------------|
| `mq_partitions` | partition of any space, with its offsets         | `warehouse`                              |
| `mq_space`      | message of the groups' retry or dead-letter logs | `warehouse`, `space` (`retry` or `dlq`)  |
|                 | (a dead letter with its state, from its marks)   |                                          |
|                 | delayed message that waits, from its marks       | `space` = `delay`, `cluster`             |
|                 | record of the audit                              | `warehouse`, `space` = `audit`           |

A group's logs are created and deleted with the group, so no fixed list of Delta tables covers them. The audit
has one table, created with its first record.
"""

from __future__ import annotations

import uuid
import zlib
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from deltamq.jobs.spark.datasource import register_sources
from deltamq.jobs.sql.jobs_source import JobsSource
from deltamq.jobs.tasks.query_values import agreed_rows, current_query
from deltamq.jobs.tasks.warehouse_files import storage
from deltamq.jobs.tasks.worker import keep_imports
from deltamq.mq.errors import Refused
from deltamq.mq.names import broker_of
from deltamq.mq.queue.dead_letters import LetterMarks
from deltamq.mq.queue.retry import RetryTopic
from deltamq.tables.delta.reader import FileReader, RowCache
from deltamq.tables.delta.snapshot import PartitionNotFound, load, load_made
from deltamq.tables.log.warehouse import refs
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.queue.dead_marks import LETTER_STATES, add_marks, states_at
from deltamq.tables.queue.delay_marks import FoldedMarks
from deltamq.tables.queue.refs import (
    AUDIT,
    DELAY,
    DELAY_MARKS,
    HISTORY,
    dead_marks_ref,
    is_dead_marks,
    system_ref,
)
from deltamq.tables.schema import MESSAGE_SCHEMA, TIME
from deltamq.tables.store.store import Store

_CACHE_BYTES: Final = 0
_SYSTEM: Final = {"audit": AUDIT, "history": HISTORY}
PARTITION_ROW: Final = pa.schema(
    [
        ("space", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.string()),
        ("broker", pa.string()),
        ("generation", pa.int64()),
        ("min_offset", pa.int64()),
        ("end_offset", pa.int64()),
        ("bytes", pa.int64()),
        ("last_append_time", TIME),
        ("location", pa.string()),
    ]
)
SPACE_ROW: Final = pa.schema(
    [
        ("group", pa.string()),
        # The user's topic, for a retried message; a dead letter has it in `origin`.
        ("topic", pa.string()),
        ("partition", pa.string()),
        # The generation of the log: it grows when the group or the topic is deleted and created again.
        ("generation", pa.int64()),
        *MESSAGE_SCHEMA,
    ]
)

#: A dead letter with its state (SPEC RETRY-8).
DEAD_ROW: Final = pa.schema(
    [*SPACE_ROW, ("state", pa.string()), ("sent_back_time", TIME), ("sent_back_by", pa.string())]
)
#: A delayed message that waits (SPEC RETRY-4).
DELAY_ROW: Final = SPACE_ROW.append(pa.field("is_cancelled", pa.bool_()))
_DELAY: Final = "delay"
_ROWS: Final = {Space.DLQ.value: DEAD_ROW, _DELAY: DELAY_ROW}


#: The columns that identify a partition.
_REF: Final = pa.schema([PARTITION_ROW.field(name) for name in ("space", "topic", "partition", "generation")])


def register_queue_sources(spark: SparkSession) -> None:
    """Register these formats and `mq_jobs` with a session."""
    register_sources(spark, PartitionsSource, SpaceSource, JobsSource)


@dataclass
class _Share(InputPartition):
    """A task's share: the partitions whose folders have this remainder when its query runs (SPEC SPARK-13).

    It is not every `count`-th of a list, which grows between the jobs in which Spark computes a cached DataFrame.
    """

    plan: str
    number: int
    count: int


class _Reader(DataSourceReader):
    """Reads the partitions of some spaces, bundle by bundle.

    Spark plans this once for all queries of a view, so the plan has only the number of shares. All scans of a query see
    the partitions and their ends as its first task of each bundle saw them.
    """

    #: About as many partitions are in one bundle.
    step = 64
    #: The columns of a partition's state on which the tasks agree.
    state_row = PARTITION_ROW

    def __init__(
        self, warehouse: str, spaces: tuple[Space, ...] = tuple(Space), only: PartitionRef | None = None
    ) -> None:
        self._warehouse = warehouse
        self._spaces = spaces
        self._only = only

    def partitions(self) -> list[InputPartition]:
        """Return as many shares as the existing partitions need."""
        plan, count = uuid.uuid4().hex, self._bundles(len(self._refs(storage(self._warehouse))))
        return [_Share(plan, number, count) for number in range(count)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a share."""
        if not isinstance(partition, _Share):
            return  # Spark passes a placeholder when there is nothing to read
        keep_imports()
        store, query = storage(self._warehouse), current_query(partition.plan)
        what = f"partitions {[space.value for space in self._spaces]} {self._only}"
        refs = agreed_rows(store, query, what, lambda: _table(self._refs(store))).to_pylist()
        bundles = self._bundles(len(refs))
        bundled: dict[int, list[PartitionRef]] = {}
        for ref in map(_ref, refs):
            if _remainder(ref, min(bundles, partition.count)) == partition.number % bundles:
                bundled.setdefault(_remainder(ref, bundles), []).append(ref)
        for bundle, bundle_refs in bundled.items():
            state = agreed_rows(store, query, f"{what} {bundles} {bundle}", partial(self._states, store, bundle_refs))
            mine = [_remainder(_ref(row), partition.count) == partition.number for row in state.to_pylist()]
            yield from self.rows(store, state.filter(pa.array(mine, pa.bool_())))

    def _bundles(self, partitions: int) -> int:
        """A power of two: the remainder by the larger of two such numbers determines the remainder by the smaller."""
        return 1 << max(0, -(-partitions // self.step) - 1).bit_length()

    def _refs(self, store: Store) -> list[PartitionRef]:
        return [self._only] if self._only is not None else [ref for space in self._spaces for ref in refs(store, space)]

    def _states(self, store: Store, partitions: Sequence[PartitionRef]) -> pa.Table:
        """A partition that was deleted meanwhile has no row."""
        rows = [row for ref in partitions if (row := self._state(store, ref)) is not None]
        return pa.Table.from_pylist(rows, schema=self.state_row)

    def _state(self, store: Store, ref: PartitionRef) -> dict[str, Any] | None:
        return _state(store, ref)

    @abstractmethod
    def rows(self, store: Store, state: pa.Table) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some partitions, whose states have columns of PARTITION_ROW."""


def _table(partitions: Sequence[PartitionRef]) -> pa.Table:
    names = [(ref.space.value, ref.topic, ref.name, ref.generation) for ref in partitions]
    return pa.Table.from_pylist([dict(zip(_REF.names, values, strict=True)) for values in names], schema=_REF)


def _ref(row: Mapping[str, Any]) -> PartitionRef:
    return PartitionRef(Space(row["space"]), row["topic"], row["partition"], row["generation"])


def _remainder(ref: PartitionRef, count: int) -> int:
    return zlib.crc32(ref.folder.encode()) % count


def _state(store: Store, ref: PartitionRef) -> dict[str, Any] | None:
    snapshot = load_made(store, ref.folder)
    if snapshot is None:
        return None
    files = snapshot.files
    return {
        "space": ref.space.value,
        "topic": ref.topic,
        "partition": ref.name,
        "broker": broker_of(ref.name),
        "generation": ref.generation,
        "min_offset": snapshot.min_offset,
        "end_offset": snapshot.end_offset,
        "bytes": sum(file.size for file in files),
        "last_append_time": files[-1].append_max_us if files else None,
        "location": store.uri(ref.folder),
    }


class PartitionsReader(_Reader):
    """Yields a row for each partition, with its offsets."""

    def rows(self, store: Store, state: pa.Table) -> Iterator[pa.RecordBatch]:
        """Yield the states themselves."""
        yield from state.to_batches()


class SpaceReader(_Reader):
    """Yields the messages of retry or dead-letter logs, or the records of the audit."""

    step = 1

    def rows(self, store: Store, state: pa.Table) -> Iterator[pa.RecordBatch]:
        """Yield the messages, with their group, topic and partition."""
        for row in state.to_pylist():
            ref = _ref(row)
            retry = RetryTopic.of_storage_name(ref.topic)
            topic = retry.topic if ref.space is Space.RETRY else None
            labels = [retry.group, topic, ref.name, ref.generation]
            for rows in _stored(store, ref, row["end_offset"]):
                columns = [
                    pa.array([value] * rows.num_rows, kind)
                    for value, kind in zip(labels, SPACE_ROW.types[: len(labels)], strict=True)
                ]
                yield from self._shown(store, row, pa.table([*columns, *rows.columns], schema=SPACE_ROW)).to_batches()

    def _shown(self, store: Store, state: Mapping[str, Any], rows: pa.Table) -> pa.Table:
        """Add the columns that only a subclass shows."""
        return rows


class _MarkedReader(SpaceReader):
    """Yields messages that marks in another log are about. All scans of a query see the same marks."""

    state_row = PARTITION_ROW.append(pa.field("marks_end", pa.int64()))

    @abstractmethod
    def _marks_ref(self, ref: PartitionRef) -> PartitionRef:
        """Return the log of the marks about a partition."""

    def _state(self, store: Store, ref: PartitionRef) -> dict[str, Any] | None:
        state, marks = super()._state(store, ref), _state(store, self._marks_ref(ref))
        return None if state is None else {**state, "marks_end": None if marks is None else marks["end_offset"]}


class DeadReader(_MarkedReader):
    """Yields dead letters with their states."""

    def __init__(self, warehouse: str) -> None:
        super().__init__(warehouse, (Space.DLQ,))
        #: The marks of the partition that was read last, by its folder and their end.
        self._marks: tuple[tuple[str, int | None], LetterMarks] | None = None

    def _refs(self, store: Store) -> list[PartitionRef]:
        return [ref for ref in super()._refs(store) if not is_dead_marks(ref)]

    def _marks_ref(self, ref: PartitionRef) -> PartitionRef:
        return dead_marks_ref(ref.topic, ref.generation, broker_of(ref.name))

    def _shown(self, store: Store, state: Mapping[str, Any], rows: pa.Table) -> pa.Table:
        marks = self._marks_of(store, _ref(state), state["marks_end"])
        offsets = rows.column("offset").to_numpy()
        numbers = pa.array(states_at(marks, offsets))
        is_any_sent = len(offsets) and any(marks.sent_ranges(int(offsets[0]), int(offsets[-1]) + 1))
        sent = [marks.sent(offset) for offset in offsets.tolist()] if is_any_sent else []
        nothing = [None] * rows.num_rows
        columns = [
            pa.array(LETTER_STATES, pa.string()).take(numbers),
            pa.array([mark and mark[0] * 1_000 for mark in sent] or nothing, TIME),
            pa.array([mark and (mark[1] or None) for mark in sent] or nothing, pa.string()),
        ]
        return pa.table([*rows.columns, *columns], schema=DEAD_ROW)

    def _marks_of(self, store: Store, ref: PartitionRef, end: int | None) -> LetterMarks:
        key = ref.folder, end
        if self._marks is None or self._marks[0] != key:
            marks = LetterMarks()
            for rows in _stored(store, self._marks_ref(ref), end or 0):
                add_marks(marks, rows)
            self._marks = key, marks
        return self._marks[1]


class DelayReader(_MarkedReader):
    """Yields the delayed messages that were neither forwarded nor dropped."""

    def __init__(self, warehouse: str, cluster: str) -> None:
        super().__init__(warehouse, (Space.SYS,))
        self._cluster = cluster

    def _refs(self, store: Store) -> list[PartitionRef]:
        return [ref for ref in super()._refs(store) if ref.topic == f"{DELAY}_{self._cluster}"]

    def _marks_ref(self, ref: PartitionRef) -> PartitionRef:
        return system_ref(DELAY_MARKS, self._cluster, broker_of(ref.name))

    def rows(self, store: Store, state: pa.Table) -> Iterator[pa.RecordBatch]:
        """Yield the messages of each log, of which the marks are read once."""
        for row in state.to_pylist():
            ref = _ref(row)
            self._marks = FoldedMarks(ref.name)
            for marks in _stored(store, self._marks_ref(ref), row["marks_end"] or 0):
                self._marks.fold(marks)
            yield from super().rows(store, pa.Table.from_pylist([row], schema=state.schema))

    def _shown(self, store: Store, state: Mapping[str, Any], rows: pa.Table) -> pa.Table:
        offsets = rows.column("offset").to_numpy()
        left = rows.filter(pa.array(np.isin(offsets, self._marks.not_ended(offsets))))
        cancelled = [offset in self._marks.cancelled for offset in left.column("offset").to_pylist()]
        return pa.table([*left.columns, pa.array(cancelled, pa.bool_())], schema=DELAY_ROW)


def _stored(store: Store, ref: PartitionRef, end: int) -> Iterator[pa.Table]:
    """Yield the rows of a log below `end`; none if it was deleted meanwhile with its group or topic."""
    try:
        snapshot = load(store, ref.folder)
    except PartitionNotFound:
        return
    reader = FileReader(store, ref.folder, RowCache(_CACHE_BYTES))
    for file in snapshot.files:
        if file.start >= end:
            return
        yield from reader.groups(file, file.start, min(file.end, end), MESSAGE_SCHEMA.names)


class PartitionsSource(DataSource):
    """`format("mq_partitions")`."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "mq_partitions"

    def schema(self) -> StructType:
        """Return the columns."""
        return from_arrow_schema(PARTITION_ROW)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader."""
        return PartitionsReader(_warehouse(self.options))


class SpaceSource(DataSource):
    """`format("mq_space")`."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "mq_space"

    def schema(self) -> StructType:
        """Return the columns."""
        return from_arrow_schema(_ROWS.get(self.options.get("space", ""), SPACE_ROW))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader."""
        space = self.options.get("space", "")
        if space in _SYSTEM:
            return SpaceReader(_warehouse(self.options), (Space.SYS,), _SYSTEM[space])
        if space == _DELAY:
            return DelayReader(_warehouse(self.options), self.options.get("cluster", ""))
        if space not in (Space.RETRY.value, Space.DLQ.value):
            raise Refused(f"option space must be retry, dlq, delay, audit or history, not {space!r}", field="space")
        if space == Space.DLQ.value:
            return DeadReader(_warehouse(self.options))
        return SpaceReader(_warehouse(self.options), (Space.RETRY,))


def _warehouse(options: Mapping[str, str]) -> str:
    warehouse = options.get("warehouse")
    if not warehouse:
        raise Refused("option warehouse is missing", field="warehouse")
    return warehouse
