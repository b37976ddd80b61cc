"""A partition as readers see it, and the content of its tables: one table, or the segments of a logical queue.

    offsets that readers see  --StoredOffsets-->  stored offsets of each table  -->  OffsetRange: one table, its files

A range never crosses a table, so a task reads one table; `partition.delta` turns its offsets into the readers' offsets.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Final

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from deltamq.jobs.read.topics import TopicPartition
from deltamq.mq.limits import MIB
from deltamq.mq.static.reading import StoredOffsets, Stretch
from deltamq.tables.delta.actions import DataFile
from deltamq.tables.delta.reader import FileReader, RowCache
from deltamq.tables.delta.snapshot import load_made
from deltamq.tables.delta.typed_stats import INVALID_MARK
from deltamq.tables.log.reader import offset_at
from deltamq.tables.store.store import Store
from deltamq.tables.typed_row import schema_of, value_type

#: Cache of row groups for finding an offset by time.
_CACHE_BYTES: Final = 64 * MIB


class OffsetRange(msgspec.Struct, frozen=True, kw_only=True):
    """The stored offsets `[start, stop)` of a table, and the live files that hold them."""

    partition: TopicPartition
    start: int
    stop: int
    files: tuple[DataFile, ...]
    #: Whether the table has the columns of a schema, and whether rows with a value have no body (SPEC TYPE-4).
    is_typed: bool = False
    is_rendered: bool = False

    @property
    def rows(self) -> int:
        """The number of rows in the range."""
        return self.stop - self.start

    def part(self, start: int, stop: int) -> OffsetRange:
        """Return the part `[start, stop)` of this range."""
        assert self.start <= start <= stop <= self.stop
        files = tuple(f for f in self.files if f.start < stop and f.end > start)
        return replace(self, start=start, stop=stop, files=files)


class TimeSearch:
    """Finds offsets by time; caches the rows that it reads for that."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._cache = RowCache(_CACHE_BYTES)

    def offset(self, table: StoredTable, time_us: int) -> int:
        """Return the first stored offset that was appended at or after the time; the table's end if there is none."""
        reader = FileReader(self._store, table.partition.ref.folder, self._cache)
        return offset_at(table.files, reader, time_us, table.end)


class StoredTable(msgspec.Struct, frozen=True):
    """A table with its stored offsets `[low, end)` and its live files, in offset order."""

    partition: TopicPartition
    low: int
    end: int
    files: Sequence[DataFile]
    exists: bool = True
    #: The schema of the rows, as Delta's JSON; empty for a table that does not exist.
    schema_json: str = ""
    #: Whether rows with a value have no body.
    is_rendered: bool = False

    @property
    def value(self) -> pa.StructType | None:
        """The type of the rows' values; None for a table without."""
        return value_type(schema_of(self.schema_json)) if self.schema_json else None

    @classmethod
    def load(cls, store: Store, partition: TopicPartition) -> StoredTable | None:
        """Return a table as it is now; None if it does not exist (yet).

        Raises
        ------
        Corrupt
            There are data files without a log: a topic whose log is gone is not empty.
        """
        folder = partition.ref.folder
        snapshot = load_made(store, folder)
        if snapshot is None:
            return None
        return cls(
            partition,
            snapshot.min_offset,
            snapshot.end_offset,
            snapshot.files,
            schema_json=snapshot.schema_json,
            is_rendered=snapshot.is_rendered,
        )

    def as_of(self, state: tuple[int, int] | None) -> StoredTable:
        """Return the table as it was when it stored the offsets `[low, end)`; None: when it did not exist."""
        if state is None:
            return self.without_files(self.partition)
        low, end = state
        files = [file for file in self.files if file.start < end]
        return replace(self, low=low, end=end, files=files)

    @classmethod
    def without_files(cls, partition: TopicPartition) -> StoredTable:
        """Return a table that does not exist yet, or whose messages are all removed if it is sealed."""
        end = partition.sealed_end or 0
        return cls(partition, end, end, (), exists=False)

    def range(self, start: int, stop: int) -> OffsetRange:
        """Return a range of the table's stored offsets."""
        first = bisect_right(self.files, start, key=lambda file: file.end)
        last = bisect_left(self.files, stop, key=lambda file: file.start)
        # Statistics are for other engines, and a task need not carry them; but whether some messages did not fit.
        files = tuple(
            replace(file, stats=INVALID_MARK if INVALID_MARK in file.stats else "") for file in self.files[first:last]
        )
        return OffsetRange(
            partition=self.partition,
            start=start,
            stop=stop,
            files=files,
            is_typed=self.value is not None,
            is_rendered=self.is_rendered,
        )


class OpenedTables:
    """Tables that were opened for one read: on an object store, opening one gets each commit since its checkpoint."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._tables: dict[TopicPartition, StoredTable] = {}

    def up_to(self, partition: TopicPartition, end: int = 0) -> StoredTable | None:
        """Return a table that reaches the offset `end` at least, opened again if it did not; None if there is none."""
        table = self._tables.get(partition)
        if table is None or table.end < end:
            table = StoredTable.load(self.store, partition)
            if table is None:
                return None
            self._tables[partition] = table
        return table


# Without slots, because `cached_property` needs an instance dictionary.
class StoredPartition(msgspec.Struct, frozen=True, dict=True):
    """A partition as readers see it; at least one table, oldest first. Its offsets are the readers' offsets."""

    tables: tuple[StoredTable, ...]

    @property
    def partition(self) -> TopicPartition:
        """The newest table, which has the partition's names."""
        return self.tables[-1].partition

    @property
    def topic(self) -> str:
        return self.partition.ref.topic

    @property
    def name(self) -> str:
        return self.partition.name

    @cached_property
    def offsets(self) -> StoredOffsets:
        """The stored offsets."""
        return StoredOffsets(tuple(Stretch(table.partition.delta, table.low, table.end) for table in self.tables))

    @property
    def has_messages(self) -> bool:
        return any(table.files for table in self.tables)

    def offset_at(self, time_us: int, search: TimeSearch) -> int:
        """Return the first offset that was appended at or after the time; the end if there is none (SPEC STATIC-15)."""
        for table in self.tables:
            offset = search.offset(table, time_us)
            if offset < table.end:
                return offset + table.partition.delta
        return self.offsets.end

    def ranges(self, start: int, stop: int, *, empty: bool = False) -> Iterator[OffsetRange]:
        """Yield the range of each table with messages in `[start, stop)`; with `empty`, always the newest table's.

        A table that does not exist has no range.
        """
        for table, (low, high) in zip(self.tables, self.offsets.cut(start, stop), strict=True):
            if low < high or (empty and table.exists and table is self.tables[-1]):
                yield table.range(low, high)
