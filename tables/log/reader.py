"""Reads of one partition: rows from an offset on, from memory if they are there, else from the file.

Readers take no lock: they use the list of live files as it is at that moment, which writers replace rather than change.
A file that is gone when a reader opens it was rolled up or removed by another process, or the partition is damaged; the
newest log shows which.

Appends have the order of their times, births do not: clients set them. The latest birth up to each file ascends, so
that the first file with a birth at or after a time is found without a look into others:

    file              0    1    2    3    4
    latest birth      10   12   11   30   20
    latest so far     10   12   12   30   30        at or after 11: file 1; at or after 15: file 3
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec.structs import replace

from deltamq.mq.errors import Corrupt
from deltamq.mq.limits import TIME_US_MAX
from deltamq.tables.delta.actions import DataFile
from deltamq.tables.delta.reader import FileReader
from deltamq.tables.log.fetch import Fetched, Weighed, cut_to_bytes, fetched, status_of
from deltamq.tables.log.state import LogState
from deltamq.tables.log.tail import Tail
from deltamq.tables.schema import MESSAGE_COLUMNS, MESSAGE_SCHEMA
from deltamq.tables.typed.json.rendering import with_bodies
from deltamq.tables.typed_row import VALUE, conformed_rows

T = TypeVar("T")
Int64s = npt.NDArray[np.int64]
#: Most rows whose columns are made on an event loop.
_MADE_ROWS_MAX: Final = 8_192
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
#: In a file's statistics, what stands before its latest birth, which is the last birth there.
_BORN: Final = '"born_time":"'
_TIME_CHARS: Final = len("2026-01-01T00:00:00.000Z")
#: Stands for a birth that is not known: later than all.
_LATE: Final = "~"


class Born(NamedTuple):
    """Where a message is, and when it was born."""

    offset: int
    time_us: int


class _Births(NamedTuple):
    """The latest birth up to each of these files, as their statistics write it: in milliseconds, rounded up."""

    files: Sequence[DataFile]
    latest: Sequence[str]


class LogReader:
    """Reads one open partition. Safe for threads."""

    def __init__(self, state: LogState, files: FileReader, tail: Tail) -> None:
        self._state = state
        self._files = files
        self._tail = tail
        self._births = _Births((), ())

    def in_memory(self, offset: int, rows_max: int) -> bool:
        """Return whether a read at `offset` is cheap enough for an event loop: no store, and few columns to be made."""
        if offset >= self._state.end_offset or offset < self._state.min_offset:
            return True  # offsets that retention removed are refused without a read
        pieces = self._tail.pieces
        return bool(pieces and offset >= pieces[0].start) and self._tail.unmade(offset, rows_max) <= _MADE_ROWS_MAX

    def read(self, offset: int, *, max_messages: int, max_bytes: int, columns: Sequence[str] | None = None) -> Fetched:
        """Read rows from `offset` on: at most `max_messages`, about `max_bytes`, and at least one if there is any.

        With `columns`, rows have only these.

        Raises
        ------
        Corrupt
            A file does not hold what the log says; the partition stops.
        """
        wanted = self._state.picked(columns)
        fetched = self._on_live_files(
            lambda files, end: self._fetch(files, end, offset, max_messages, max_bytes, wanted)
        )
        # The value was read for the body only.
        is_extra = wanted is not MESSAGE_SCHEMA and len(wanted) > len(columns or MESSAGE_COLUMNS)
        return replace(fetched, rows=fetched.rows.drop_columns([VALUE])) if is_extra else fetched

    def _fetch(
        self,
        files: Sequence[DataFile],
        end: int,
        offset: int,
        max_messages: int,
        max_bytes: int,
        wanted: pa.Schema,
    ) -> Fetched:
        low = files[0].start if files else end
        # The end was read before the files: appends and retention together may have passed it since.
        end = max(low, end)
        status = status_of(offset, low, end)
        if status is not None:
            return Fetched(status, wanted.empty_table(), min(max(offset, low), end), low, end)
        return fetched(self._rows(files, offset, min(end, offset + max_messages), max_bytes, wanted), offset, low, end)

    def _on_live_files(self, read: Callable[[Sequence[DataFile], int], T]) -> T:
        """Run `read(files, end offset)`; damage stops the partition, unless the log no longer names all of these files.

        Another process may have rolled files up and removed the old ones since this process last refreshed.
        """
        while True:
            # The end first: the log only grows, so the files that are taken after it reach at least as far.
            end = self._state.end_offset
            files = self._state.files
            try:
                return read(files, end)
            except Corrupt as error:
                self._state.refresh()
                if self._state.are_live(files):
                    self._state.stop(error)
                    raise

    def _rows(self, files: Sequence[DataFile], start: int, stop: int, max_bytes: int, wanted: pa.Schema) -> Weighed:
        tables: list[pa.Table] = []
        at, weight = start, 0
        while at < stop and max_bytes > 0:
            rows = self._tail.rows(at, stop, max_bytes, wanted)
            if rows is None:
                rows = self._from_file(files, at, stop, wanted)
            if self._state.is_rendered:
                rows = with_bodies(rows)
            kept, kept_weight = cut_to_bytes(rows, max_bytes, at_least=0 if tables else 1)
            tables.append(kept)
            weight += kept_weight
            at += kept.num_rows
            if at >= stop or kept.num_rows < rows.num_rows:
                break
            max_bytes -= kept.nbytes
        return Weighed(tables[0] if len(tables) == 1 else pa.concat_tables(tables), weight)

    def _from_file(self, files: Sequence[DataFile], start: int, stop: int, wanted: pa.Schema) -> pa.Table:
        """Read rows from `start` on from the file that holds it, up to the end of the row group at most."""
        at = bisect_left(files, start + 1, key=lambda f: f.end)
        file = files[at]
        pieces = self._tail.pieces
        edge = pieces[0].start if pieces and pieces[0].start > start else stop
        end = min(stop, file.end, edge)
        return conformed_rows(self._files.rows_of_group(file, start, end, _names(wanted)), wanted)

    def offset_at(self, time_us: int) -> int:
        """Return the first offset whose append time is at or after `time_us`; the end offset if there is none."""
        return self._on_live_files(lambda files, end: offset_at(files, self._files, time_us, end))

    def append_us_at(self, offset: int) -> int | None:
        """Return the append time of a stored message; None if it is not stored (any more)."""
        return self._on_live_files(lambda files, _: self._append_us_at(files, offset))

    def _append_us_at(self, files: Sequence[DataFile], offset: int) -> int | None:
        at = bisect_left(files, offset + 1, key=lambda f: f.end)
        if at == len(files) or offset < files[at].start:
            return None
        file = files[at]
        if file.append_min_us == file.append_max_us:
            return file.append_min_us
        rows = self._tail.rows(offset, offset + 1)
        if rows is None:
            rows = next(self._files.groups(file, offset, offset + 1, ["append_time"], by_page=True))
        time_us: int = rows.column("append_time").cast(pa.int64())[0].as_py()
        return time_us

    def born_at(self, time_us: int) -> Born | None:
        """Return the first message whose born time is at or after `time_us`; None if there is none."""
        return self._on_live_files(lambda files, _: self._born_at(files, time_us))

    def last_born_ms(self) -> int | None:
        """Return the latest born time in whole milliseconds, rounded down; None if there is no message."""
        return self._on_live_files(lambda files, _: self._last_born_ms(files))

    def _born_at(self, files: Sequence[DataFile], time_us: int) -> Born | None:
        if time_us >= TIME_US_MAX:
            return None
        latest, wanted = self._latest(files), _written(time_us)
        for at in range(bisect_left(latest, wanted), len(latest)):
            # a second file is opened only if the first one's latest birth is in the same millisecond, and before
            born = self._born_in(files[at], time_us) if _latest_of(files[at]) >= wanted else None
            if born is not None:
                return born
        return None

    def _born_in(self, file: DataFile, time_us: int) -> Born | None:
        at = file.start
        for times in self._births_in(file):
            late = times >= time_us
            first = int(late.argmax())
            if late[first]:
                return Born(at + first, int(times[first]))
            at += len(times)
        return None

    def _last_born_ms(self, files: Sequence[DataFile]) -> int | None:
        latest = self._latest(files)
        if not latest:
            return None
        greatest, last_ms = latest[-1], -1
        for file in files[bisect_left(latest, greatest) : len(latest)]:
            # of files whose latest births are in the same millisecond, or in part of it, another one's may be later
            if _latest_of(file) == greatest:
                last_ms = max(last_ms, *(int(times.max()) // 1_000 for times in self._births_in(file)))
                if _written(last_ms * 1_000) == greatest:
                    break
        return last_ms

    def _births_in(self, file: DataFile) -> Iterator[Int64s]:
        """Yield the born times of a file by row group, from memory if they are there; others are not cached."""
        rows = self._tail.rows(file.start, file.end)
        groups = self._files.groups(file, file.start, file.end, ["born_time"], by_page=True)
        for group in groups if rows is None else [rows]:
            yield group.column("born_time").cast(pa.int64()).to_numpy()

    def _latest(self, files: Sequence[DataFile]) -> Sequence[str]:
        """Return the latest birth up to each file; earlier results are kept while the list only grows."""
        known, count = self._births, len(files)
        is_same = known.files is files
        if is_same and len(known.latest) >= count:
            return known.latest
        latest = [*known.latest] if is_same else []
        for file in files[len(latest) : count]:
            born = _latest_of(file)
            latest.append(max(latest[-1], born) if latest else born)
        self._births = _Births(files, latest)
        return latest

    def rows_of(self, files: Sequence[DataFile]) -> pa.Table:
        """Return all rows of adjacent live files, from memory if they are there."""
        return pa.concat_tables(self.tables_of(files))

    def tables_of(self, files: Sequence[DataFile]) -> Iterator[pa.Table]:
        """Yield all rows of adjacent live files: as one table if they are all in memory, else by file or row group.

        They have the typed columns that the table has.
        """
        first, last = files[0], files[-1]
        wanted = self._state.row_schema
        rows = self._tail.rows(first.start, last.end, wanted=wanted)
        if rows is not None:
            yield rows
        elif first is last:
            groups = self._files.groups(first, first.start, first.end, _names(wanted))
            yield from (conformed_rows(group, wanted) for group in groups)
        else:
            for file in files:
                yield from self.tables_of([file])

    def file_columns(self, file: DataFile, columns: Sequence[str]) -> pa.Table:
        """Return a few columns of all rows of a live file, from memory if they are there; rows read are not cached."""
        wanted = self._state.picked(columns)
        rows = self._tail.rows(file.start, file.end, wanted=wanted)
        if rows is not None:
            return rows
        groups = self._files.groups(file, file.start, file.end, columns)
        return pa.concat_tables(conformed_rows(group, wanted) for group in groups)

    def verify(self) -> None:
        """Read and check every byte of every live file; raise `Corrupt`, which names the first bad file."""
        for file in list(self._state.files):
            try:
                self._files.verify(file)
            except Corrupt:
                self._state.refresh()
                if self._state.are_live([file]):
                    raise


def _names(wanted: pa.Schema) -> Sequence[str] | None:
    """Return the columns to be read; None for those of every message, whose order need not be looked at."""
    return None if wanted is MESSAGE_SCHEMA else wanted.names


def offset_at(files: Sequence[DataFile], reader: FileReader, time_us: int, end: int) -> int:
    """Return the first offset in `files` that was appended at or after `time_us`; `end` if there is none."""
    at = bisect_left(files, time_us, key=lambda f: f.append_max_us)
    if at == len(files):
        return end
    file = files[at]
    if file.append_min_us >= time_us:
        return file.start
    times = reader.rows(file, file.start, file.end).column("append_time").cast(pa.int64()).to_numpy()
    return file.start + int(np.searchsorted(times, time_us, side="left"))


def _latest_of(file: DataFile) -> str:
    """Return the latest birth in a file, as its statistics write it."""
    at = file.stats.rfind(_BORN)
    return _LATE if at < 0 else file.stats[at + len(_BORN) :][:_TIME_CHARS]


def _written(time_us: int) -> str:
    """Return a time as statistics write it, rounded down."""
    time = _EPOCH + timedelta(milliseconds=max(0, time_us) // 1_000)
    return f"{time:%Y-%m-%dT%H:%M:%S}.{time.microsecond // 1_000:03d}Z"
