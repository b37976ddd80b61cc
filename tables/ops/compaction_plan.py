"""The plan of a compaction: which adjacent files become one large file; a pure function of live files (SPEC SPARK-8).

    [final] [12 MiB] [15 MiB] ... [14 MiB] [9 MiB] ... [16 MiB] [300 KiB] [20 KiB] ...
            \\____ together at most the target ____/ \\_ waits: more comes _/ \\_ the service's _/

A file of half the target or more is final. A run of other files is divided, from its oldest file on, into groups of at
most the target. Two files that are not final fit into one target, so each group but the last of a run is final when it
is written, and a row is rewritten once. The last group of the log waits for more files. Files whose ages differ by more
than a part of the retention stay apart: retention removes whole files, and a file that spans weeks would keep its
oldest row for weeks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from deltamq.tables.delta.actions import DataFile

#: A compacted file spans at most the retention time divided by this.
RETENTION_PART: Final = 8
#: Most small files at the end of a log that are left to roll-ups; working roll-ups leave fewer.
TAIL_FILES_MAX: Final = 256


class CompactionTargets(msgspec.Struct, frozen=True, kw_only=True):
    """The targets of compaction in one partition."""

    #: The size of a finished file.
    bytes: int
    #: Files smaller than this at the end of the log are left to the roll-ups of the appending process.
    tail_bytes: int
    #: Largest distance of the append times of a file's rows; None for no bound.
    span_ms: int | None = None


def plan_compaction(files: Sequence[DataFile], target: CompactionTargets) -> list[Sequence[DataFile]]:
    """Return the groups of adjacent files that should become one file each, oldest first."""
    settled = files[: len(files) - _tail_count(files, target)]
    planned: list[Sequence[DataFile]] = []
    for run, ended in _runs(settled, target):
        groups = list(_groups(run, target))
        planned += groups if ended else groups[:-1]
    return [group for group in planned if len(group) > 1]


def _tail_count(files: Sequence[DataFile], target: CompactionTargets) -> int:
    """Return how many files at the end are left to roll-ups: at most TAIL_FILES_MAX, if no process rolls them up."""
    count = 0
    for file in reversed(files):
        if file.size >= target.tail_bytes or count == TAIL_FILES_MAX:
            break
        count += 1
    return count


def _runs(files: Sequence[DataFile], target: CompactionTargets) -> Iterator[tuple[Sequence[DataFile], bool]]:
    """Yield runs of adjacent files that are not final, each with whether a final file ends it."""
    low = 0
    for at, file in enumerate(files):
        if file.size >= target.bytes // 2:
            if low < at:
                yield files[low:at], True
            low = at + 1
    if low < len(files):
        yield files[low:], False


def _groups(run: Sequence[DataFile], target: CompactionTargets) -> Iterator[Sequence[DataFile]]:
    low = size = 0
    for at, file in enumerate(run):
        if low < at and not (size + file.size <= target.bytes and _is_close(run[low], file, target)):
            yield run[low:at]
            low, size = at, 0
        size += file.size
    yield run[low:]


def _is_close(first: DataFile, last: DataFile, target: CompactionTargets) -> bool:
    return target.span_ms is None or last.append_max_us - first.append_min_us <= target.span_ms * 1_000
