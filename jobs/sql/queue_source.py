"""Two formats for views over the queue: `mq_partitions` and `mq_space`. Each query reads both anew.

| format          | a row for each                                   | options                                  |
|-----------------|--------------------------------------------------|------------------------------------------|
| `mq_partitions` | partition of any space, with its offsets         | `warehouse`                              |
| `mq_space`      | message of the groups' retry or dead-letter logs | `warehouse`, `space` (`retry` or `dlq`)  |
|                 | record of the audit                              | `warehouse`, `space` = `audit`           |

A group's logs are created and deleted with the group, so no fixed list of Delta tables could stand for them. The audit
has one table, created with its first record.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from jobs.sql.jobs_source import JobsSource
from jobs.tasks import keep_imports, storage
from mq.errors import Refused
from mq.names import broker_of
from mq.queue import RetryTopic
from tables.delta import FileReader, PartitionNotFound, RowCache, Snapshot, load
from tables.log import refs
from tables.paths import PartitionRef, Space
from tables.queue import AUDIT
from tables.schema import MESSAGE_SCHEMA, TIME
from tables.store import Store

__all__ = ["register_queue_sources"]

_CACHE_BYTES: Final = 0
_AUDIT: Final = "audit"
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


def register_queue_sources(spark: SparkSession) -> None:
    """Register these formats and `mq_jobs` with a session."""
    spark.dataSource.register(PartitionsSource)
    spark.dataSource.register(SpaceSource)
    spark.dataSource.register(JobsSource)


@dataclass
class _Refs(InputPartition):
    """The partitions that one task reads."""

    refs: list[PartitionRef]


class _Reader(DataSourceReader):
    """Reads the partitions of some spaces."""

    spaces: tuple[Space, ...] = tuple(Space)
    #: Partitions in one task.
    step = 64

    def __init__(self, warehouse: str) -> None:
        self._warehouse = warehouse

    def partitions(self) -> list[InputPartition]:
        """Return the tasks, for the partitions that exist now."""
        store = storage(self._warehouse)
        found = [ref for space in self.spaces for ref in refs(store, space)]
        return [_Refs(found[at : at + self.step]) for at in range(0, len(found), self.step)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""
        if not isinstance(partition, _Refs):
            return  # Spark passes a placeholder when there is nothing to read
        keep_imports()
        store = storage(self._warehouse)
        for ref in partition.refs:
            try:
                snapshot = load(store, ref.folder)
            except PartitionNotFound:
                continue  # deleted meanwhile, with its group or topic
            yield from self.rows(store, ref, snapshot)

    @abstractmethod
    def rows(self, store: Store, ref: PartitionRef, snapshot: Snapshot) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition."""


class PartitionsReader(_Reader):
    """Yields a row for each partition, with its offsets."""

    def rows(self, store: Store, ref: PartitionRef, snapshot: Snapshot) -> Iterator[pa.RecordBatch]:
        """Yield one row."""
        files = snapshot.files
        row = {
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
        yield pa.RecordBatch.from_pylist([row], schema=PARTITION_ROW)


class SpaceReader(_Reader):
    """Yields the messages of retry or dead-letter logs."""

    step = 1

    def __init__(self, warehouse: str, space: Space, only: PartitionRef | None = None) -> None:
        super().__init__(warehouse)
        self.spaces = (space,)
        self._only = only

    def partitions(self) -> list[InputPartition]:
        """Return the tasks, for the partitions that exist now."""
        return super().partitions() if self._only is None else [_Refs([self._only])]

    def rows(self, store: Store, ref: PartitionRef, snapshot: Snapshot) -> Iterator[pa.RecordBatch]:
        """Yield the messages, with their group, topic and partition."""
        retry = RetryTopic.of_storage_name(ref.topic)
        topic = retry.topic if ref.space is Space.RETRY else None
        reader = FileReader(store, ref.folder, RowCache(_CACHE_BYTES))
        for file in snapshot.files:
            for found in reader.groups(file, file.start, file.end, MESSAGE_SCHEMA.names):
                places = [retry.group, topic, ref.name, ref.generation]
                columns = [
                    pa.array([value] * found.num_rows, kind)
                    for value, kind in zip(places, SPACE_ROW.types[: len(places)], strict=True)
                ]
                rows = pa.table([*columns, *found.columns], schema=SPACE_ROW)
                yield from rows.to_batches()


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
        return from_arrow_schema(SPACE_ROW)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader."""
        space = self.options.get("space", "")
        if space == _AUDIT:
            return SpaceReader(_warehouse(self.options), Space.SYS, AUDIT)
        if space not in (Space.RETRY.value, Space.DLQ.value):
            raise Refused(f"option space must be retry, dlq or audit, not {space!r}", field="space")
        return SpaceReader(_warehouse(self.options), Space(space))


def _warehouse(options: Mapping[str, str]) -> str:
    warehouse = options.get("warehouse")
    if not warehouse:
        raise Refused("option warehouse is missing", field="warehouse")
    return warehouse
