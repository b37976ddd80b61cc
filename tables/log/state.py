"""The state of one open partition: the newest known state of its log, whether it may be used, and its statistics.

The parts of an open partition (appender, reader, fences, rewrites) share this state, and do not know each other.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Self

import msgspec
import pyarrow as pa

from deltamq.mq.errors import Corrupt
from deltamq.tables.delta.actions import DataFile
from deltamq.tables.delta.checkpoint import LogCheckpoint
from deltamq.tables.delta.commit import CommitLog
from deltamq.tables.delta.protocol import may_write
from deltamq.tables.delta.snapshot import Snapshot
from deltamq.tables.delta.typed_stats import INVALID_MARK, fitting_of
from deltamq.tables.paths import PartitionRef
from deltamq.tables.schema import MESSAGE_COLUMNS, MESSAGE_SCHEMA
from deltamq.tables.stop import StopOnCorrupt
from deltamq.tables.turn import Turn
from deltamq.tables.typed_row import (
    VALUE,
    conformed_rows,
    delta_json_of,
    joined,
    picked,
    row_schema,
    schema_of,
    value_type,
)


class LogState:
    """The state of one partition's log. Readers take no lock: lists and tuples are replaced rather than changed."""

    __slots__ = ("_commits", "_stop", "_turn", "ref")

    def __init__(self, ref: PartitionRef, commits: CommitLog, turn: Turn, stop: StopOnCorrupt) -> None:
        self.ref = ref
        self._commits = commits
        self._turn = turn
        self._stop = stop

    @property
    def version(self) -> int:
        """The newest known Delta version."""
        return self._commits.snapshot.version

    @property
    def min_offset(self) -> int:
        """The first offset that is still stored."""
        return self._commits.snapshot.min_offset

    @property
    def end_offset(self) -> int:
        """The next offset to be written."""
        return self._commits.snapshot.end_offset

    @property
    def table_id(self) -> str:
        """The table's own id: a partition that is deleted and created again gets another one."""
        return self._commits.snapshot.table_id

    @property
    def may_write(self) -> bool:
        """Whether this release knows all writer features of the table (SPEC META-9)."""
        return may_write(self._commits.snapshot.writer_features)

    @property
    def fences(self) -> Mapping[str, int]:
        """The highest epoch of each fence (see `tables.log.fences`)."""
        return self._commits.snapshot.fences

    @property
    def row_schema(self) -> pa.Schema:
        """The schema of the rows, with the typed columns that the table has."""
        return schema_of(self._commits.snapshot.schema_json)

    def picked(self, columns: Sequence[str] | None) -> pa.Schema:
        """Return the schema of these columns; without `columns`, of those that every message has.

        The value is among them if bodies are made of it.
        """
        if self.is_rendered and (columns is None or ("body" in columns and VALUE not in columns)):
            columns = [*(columns or MESSAGE_COLUMNS), VALUE]
        return MESSAGE_SCHEMA if columns is None else picked(self._commits.snapshot.schema_json, tuple(columns))

    @property
    def is_rendered(self) -> bool:
        """Whether rows with a value have no body."""
        return self._commits.snapshot.is_rendered

    def widened(self, rows: pa.RecordBatch) -> dict[str, object] | None:
        """Return the table's metadata with room for the typed columns of `rows`; None if it has room (SPEC TYPE-1).

        Raises
        ------
        Conflict
            `schema_conflict`: a field of theirs has another type in the table.
        """
        more = value_type(rows.schema)
        if more is None:
            return None
        known = value_type(self.row_schema)
        kind = more if known is None else joined(known, more)
        body = rows.schema.get_field_index("body")
        lacks_bodies = body < 0 or rows.column(body).null_count > 0
        if kind == known and (not lacks_bodies or self.is_rendered):
            return None
        rendered = lacks_bodies or self.is_rendered
        return self._commits.snapshot.with_schema(delta_json_of(row_schema(kind)), rendered=rendered)

    def has_invalid(self, start: int, stop: int) -> bool:
        """Whether rows `[start, stop)` may include some whose bodies did not fit (SPEC TYPE-3)."""
        if value_type(self.row_schema) is None:
            return False
        files = self.files
        at = bisect_left(files, start + 1, key=lambda file: file.end)
        while at < len(files) and files[at].start < stop:
            if INVALID_MARK in files[at].stats:
                return True
            at += 1
        return False

    def misfits(self) -> int:
        """Return the number of stored rows whose bodies did not fit."""
        return sum(file.end - file.start - fitting_of(file.stats) for file in self.files if INVALID_MARK in file.stats)

    def conformed(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows to be appended with all typed fields of the table, so that its newer files have the same type."""
        more, known = value_type(rows.schema), value_type(self.row_schema)
        if more is None or known is None or more == known:
            return rows
        kind = joined(known, more)
        fields = [field.with_type(kind) if field.name == VALUE else field for field in rows.schema]
        return conformed_rows(pa.Table.from_batches([rows]), pa.schema(fields)).to_batches()[0]

    @property
    def files(self) -> Sequence[DataFile]:
        """The live files in offset order; callers must not change the list."""
        return self._commits.snapshot.files

    @property
    def checkpoint_version(self) -> int:
        """The newest checkpoint that this process knows, -1 for none."""
        return self._commits.snapshot.checkpoint_version

    def are_live(self, files: Sequence[DataFile]) -> bool:
        """Return whether the newest known state still has all of these files."""
        return {f.path for f in files} <= {f.path for f in self.files}

    def keep_ms(self, name: str, default: int) -> int:
        """Return a keep time of the table's configuration, in milliseconds (see `tables.delta.snapshot`)."""
        return self._commits.snapshot.keep_ms(name, default)

    def checkpoint(self) -> LogCheckpoint:
        """Return the newest known state as a checkpoint: it is consistent, and later appends do not change it."""
        with self._turn:
            return self._commits.snapshot.checkpoint()

    def checkpointed(self, version: int) -> None:
        """Note that a checkpoint of `version` is stored."""
        with self._turn:
            self._commits.snapshot.checkpoint_version = max(version, self._commits.snapshot.checkpoint_version)
            self._commits.missing = tuple(v for v in self._commits.missing if v > version)

    @property
    def missing(self) -> Sequence[int]:
        """The versions of commits that are gone and that no checkpoint stands for yet (SPEC RELY-9)."""
        return self._commits.missing

    def look_back(self) -> None:
        """Find commits that are gone, by one listing."""
        with self._turn:
            self._commits.look_back()

    def refresh(self) -> bool:
        """Apply the commits of other writers; return whether there were any."""
        self._stop.check()
        with self._turn, self._stop:
            return self._commits.refresh()

    def stop(self, error: Corrupt) -> None:
        """Refuse all further calls: the stored data contradicts itself."""
        self._stop.stop(error)


class PartitionStats(msgspec.Struct, frozen=True, kw_only=True):
    """The statistics that the service shows of a partition. `max_offset` is the next offset to be written."""

    min_offset: int
    max_offset: int
    messages: int
    bytes: int
    files: int
    last_append_time_us: int | None
    location: str
    version: int

    @classmethod
    def of(cls, snapshot: Snapshot, *, bytes: int, location: str) -> Self:
        """Return the statistics of a snapshot, without touching the store."""
        files = snapshot.files
        return cls(
            min_offset=snapshot.min_offset,
            max_offset=snapshot.end_offset,
            messages=snapshot.end_offset - snapshot.min_offset,
            bytes=bytes,
            files=len(files),
            last_append_time_us=files[-1].append_max_us if files else None,
            location=location,
            version=snapshot.version,
        )
