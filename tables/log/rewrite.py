"""Rearrangements of a partition's files: a roll-up replaces many files by one, retention removes the oldest.

Retention removes whole files. To remove exactly what lies before an offset, one file is divided first (SPEC KAFKA-19):

    [0 ......... 100) [100 ..... 180)          delete_before(120)
    [0 ......... 100) [100, 120) [120, 180)    1  a rewrite; offsets and rows stay
                                 [120, 180)    2  `delete_below`

A kill between the two leaves one file more, which a roll-up takes.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Protocol, Self

import msgspec
import pyarrow as pa

from deltamq.mq.errors import Corrupt
from deltamq.mq.producer import Part
from deltamq.tables.clock import Clock
from deltamq.tables.delta.actions import ERASE, DataFile, NewCommit, encode_rewrite
from deltamq.tables.delta.encode import Encoded
from deltamq.tables.delta.large_file import encode_large_file
from deltamq.tables.log.publish import Publisher
from deltamq.tables.log.state import LogState


class Rewrite:
    """One rearrangement: its files are stored on construction; `attempt` is called until it is committed or void."""

    def __init__(
        self,
        state: LogState,
        publisher: Publisher,
        clock: Clock,
        adds: Sequence[Encoded],
        removes: Sequence[DataFile],
        *,
        operation: str,
    ) -> None:
        self._state = state
        self._publisher = publisher
        self._adds = adds
        self._removes = removes
        self._operation = operation
        assert _keeps_offsets(adds, removes), f"{state.ref.name}: a {operation} would lose or move offsets"
        self._began_ms = clock.boot_ms()
        for encoded in adds:
            publisher.put(encoded, durable=True)
        self._batch_id = uuid.uuid4().hex
        self._now_ms = clock.wall_us() // 1000

    async def attempt(self) -> bool:
        """Try to commit once, against the newest known state; return False if one of the old files is no longer live.

        The owner of the log holds its append lock.

        Raises
        ------
        LostRace
            Another writer committed first, and the log's state includes the other commit.
        Unknown
            The rearrangement may be committed; calling again is safe.
        """
        await self._publisher.sync_earlier()
        if not self._state.are_live(self._removes):
            return False
        oldest = self._state.files[: len(self._removes)]
        assert self._adds or {file.path for file in oldest} == {file.path for file in self._removes}, "it leaves a hole"
        await self._publisher.commit(
            self._encode, self._adds, batch_id=self._batch_id, durable=True, began_ms=self._began_ms
        )
        return True

    def _encode(self, version: int) -> NewCommit:
        return encode_rewrite(
            table_id=self._state.table_id,
            version=version,
            batch_id=self._batch_id,
            operation=self._operation,
            adds=[encoded.file for encoded in self._adds],
            removes=self._removes,
            data_change=not self._adds or self._operation == ERASE,
            now_ms=self._now_ms,
        )


def _keeps_offsets(adds: Sequence[Encoded], removes: Sequence[DataFile]) -> bool:
    """Return whether both are adjacent files, and the new files, if there are any, hold the offsets of the old ones."""
    added = [(encoded.file.start, encoded.file.end) for encoded in adds]
    removed = [(file.start, file.end) for file in removes]
    if not removed or any(before[1] != after[0] for files in (added, removed) for before, after in pairwise(files)):
        return False
    return not added or (added[0][0], added[-1][1]) == (removed[0][0], removed[-1][1])


class Removed(msgspec.Struct, frozen=True):
    """Counts of what retention removed."""

    files: int = 0
    messages: int = 0
    bytes: int = 0

    @classmethod
    def of(cls, files: Sequence[DataFile]) -> Self:
        """Return the counts of these files."""
        return cls(len(files), sum(file.count for file in files), sum(file.size for file in files))

    def __add__(self, other: Removed) -> Removed:
        return Removed(self.files + other.files, self.messages + other.messages, self.bytes + other.bytes)


class LiveLog(Protocol):
    """What the removal of messages needs of a partition's log."""

    @property
    def min_offset(self) -> int:
        """The first offset that is still stored."""

    @property
    def end_offset(self) -> int:
        """The next offset to be written."""

    @property
    def files(self) -> Sequence[DataFile]:
        """The live files in offset order."""

    def refresh(self) -> bool:
        """Apply the commits of other writers."""

    def are_live(self, files: Sequence[DataFile]) -> bool:
        """Return whether the newest known state still has all of these files."""

    def tables_of(self, files: Sequence[DataFile]) -> Iterator[pa.Table]:
        """Yield all rows of adjacent live files."""

    def parts_of(self, file: DataFile) -> list[Part]:
        """Return the producers' requests in a live file that are still remembered."""

    def rewrite(self, adds: Sequence[Encoded], removes: Sequence[DataFile], *, operation: str) -> bool:
        """Commit a rearrangement of files; return False if one of `removes` is no longer live."""

    def delete_below(self, offset: int) -> Removed:
        """Remove all files that end at or below `offset`."""


def delete_before(log: LiveLog, offset: int, *, now_ms: int, row_group_rows: int) -> Removed:
    """Remove all messages before `offset`, and return what this call removed; the end offset stays.

    Raises
    ------
    Unknown
        They may be removed; calling again is safe.
    """
    log.refresh()
    removed = Removed()
    while log.min_offset < min(offset, log.end_offset):
        # A roll-up of another process may put the two halves together again before they are removed: then divide again.
        across = next((file for file in log.files if file.start < offset < file.end), None)
        if across is not None and not _divided(log, across, offset, now_ms, row_group_rows):
            continue
        removed += log.delete_below(offset)
    return removed


def _divided(log: LiveLog, file: DataFile, offset: int, now_ms: int, row_group_rows: int) -> bool:
    """Replace a file by two that meet at `offset`; return False if another process was faster."""
    parts = log.parts_of(file)

    def half(low: int, high: int) -> Encoded:
        return encode_large_file(
            _between(log.tables_of([file]), low, high),
            [part for part in parts if low <= part.base_offset < high],
            batch_id=f"r{uuid.uuid4().hex[1:]}",
            now_ms=now_ms,
            row_group_rows=row_group_rows,
        )

    try:
        halves = [half(file.start, offset), half(offset, file.end)]
    except Corrupt:
        log.refresh()
        if log.are_live([file]):
            raise
        return False  # it was replaced, and deleted before this process knew
    return log.rewrite(halves, [file], operation="OPTIMIZE")


def _between(tables: Iterable[pa.Table], low: int, high: int) -> Iterator[pa.Table]:
    """Yield the rows with offsets in `[low, high)` of tables of adjacent rows."""
    for table in tables:
        start = int(table.column("offset")[0].as_py()) if table.num_rows else high
        first, last = max(low - start, 0), min(high - start, table.num_rows)
        if first < last:
            yield table.slice(first, last - first)
