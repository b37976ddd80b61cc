"""Parts of logs as the work of tasks: which offsets each task gets, and how it reads them.

    logs of a batch --shares--> a few logs together, or a part of a large one --log_rows--> pages of rows

A task gets only offsets and the names of the files that hold them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

import msgspec
import pyarrow as pa

from deltamq.jobs.tasks.tasks import task_failpoint
from deltamq.mq.errors import Corrupt
from deltamq.tables.delta.actions import DataFile
from deltamq.tables.delta.reader import FileReader, RowCache
from deltamq.tables.delta.snapshot import load
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.paths import PartitionRef
from deltamq.tables.queue.merge_plan import MergePlan
from deltamq.tables.store.store import Store

#: Logs with fewer records in a batch than this share a task: a task costs as much as reading a few thousand.
SHARE_RECORDS: Final = 20_000
#: A log with more records in a batch than this is divided; about as many fill 100 MB of a task's memory.
SPAN_RECORDS_MAX: Final = 100_000
#: Records that a task decodes at once: commits may be small, and each page costs a start of Arrow's JSON reader.
_PAGE_RECORDS: Final = 20_000
_COLUMNS: Final = ("tag", "body", "offset")
#: Tries of a read: a roll-up may replace the files meanwhile; each further try sees the newer ones.
_TRIES: Final = 5


class LogSpan(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets `[start, stop)` of one log, and the files that held them when the batch was planned."""

    ref: PartitionRef
    start: int
    stop: int
    files: tuple[DataFile, ...]

    @property
    def records(self) -> int:
        """The number of records in the span."""
        return self.stop - self.start

    def cut(self, records_max: int) -> list[LogSpan]:
        """Return the span in parts of about the same size, none larger than `records_max`."""
        parts = -(-self.records // records_max)
        edges = [self.start + self.records * at // parts for at in range(parts + 1)]
        return [
            LogSpan(
                ref=self.ref,
                start=low,
                stop=high,
                files=tuple(file for file in self.files if file.start < high and file.end > low),
            )
            for low, high in pairwise(edges)
        ]


def spans_of(plan: MergePlan, logs: Iterable[PartitionLog]) -> list[LogSpan]:
    """Return the records of a batch by log, without logs that have none; raise `Corrupt` if a log lacks some."""
    by_ref = {log.ref: log for log in logs}
    spans = []
    for ref, span in plan.logs.items():
        if span.stop > span.start:
            log = by_ref[ref]
            _check_there(ref, span.start, span.stop, log.min_offset, log.end_offset)
            files = tuple(file for file in tuple(log.files) if file.start < span.stop and file.end > span.start)
            spans.append(LogSpan(ref=ref, start=span.start, stop=span.stop, files=files))
    return spans


def shares(
    spans: Sequence[LogSpan], *, share_records: int, span_records_max: int | None = None
) -> list[tuple[LogSpan, ...]]:
    """Divide the spans among tasks: large ones are cut, if `span_records_max` is given, and small ones share a task."""
    parts = [part for span in spans for part in span.cut(span_records_max or span.records)]
    parts.sort(key=lambda part: -part.records)
    tasks: list[list[LogSpan]] = []
    room = 0
    for part in parts:
        if part.records > room:
            tasks.append([])
            room = max(share_records, part.records)
        tasks[-1].append(part)
        room -= part.records
    return [tuple(task) for task in tasks]


def log_rows(store: Store, span: LogSpan) -> Iterator[pa.Table]:
    """Yield the rows `tag, body, offset` of a span by row group; raise `Corrupt` if some are gone or damaged."""
    folder, at, files = span.ref.folder, span.start, span.files
    reader = FileReader(store, folder, RowCache(0))
    for _ in range(_TRIES):
        try:
            for file in files:
                if file.start <= at < file.end and at < span.stop:
                    for rows in reader.groups(file, at, min(span.stop, file.end), _COLUMNS):
                        at += rows.num_rows
                        yield rows
        except Corrupt:
            # A missing file was rolled up or removed by retention; the newest state of the log shows which.
            if store.exists(f"{folder}/{file.path}"):
                raise
        if at == span.stop:
            return
        now = load(store, folder)
        _check_there(span.ref, at, span.stop, now.min_offset, now.end_offset)
        files = tuple(now.files)
    raise Corrupt(f"{span.ref.name}: its files change faster than offset {at} can be read")


def _check_there(ref: PartitionRef, start: int, stop: int, low: int, end: int) -> None:
    if start < low:
        raise Corrupt(f"{ref.name}: offsets [{start}, {low}) were not merged and are gone", code="merge_gap")
    if end < stop:
        raise Corrupt(f"{ref.name} ends at {end}; a planned batch reaches to {stop}", code="merge_gap")


def decoded(store: Store, spans: Iterable[LogSpan], decode: Callable[[pa.Table], pa.Table]) -> Iterator[pa.Table]:
    """Yield the result of `decode` for the rows of the spans, page by page.

    Raises
    ------
    Corrupt
        As for `log_rows`, or a record is damaged; the detail names log and offset.
    """
    for span in spans:
        for page in _pages(log_rows(store, span)):
            try:
                part = decode(page)
            except Corrupt as error:
                raise Corrupt(f"{span.ref.name}: {error.detail}", code=error.code) from error
            yield part
            task_failpoint("merge.in_task")


def _pages(rows: Iterator[pa.Table]) -> Iterator[pa.Table]:
    page: list[pa.Table] = []
    records = 0
    for piece in rows:
        page.append(piece)
        records += piece.num_rows
        if records >= _PAGE_RECORDS:
            yield pa.concat_tables(page)
            page, records = [], 0
    if page:
        yield pa.concat_tables(page)
