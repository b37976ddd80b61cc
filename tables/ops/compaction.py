"""Which adjacent files of a partition become one large file: a pure plan over its live files (SPEC SPARK-8).

    [final] [12 MiB] [15 MiB] ... [14 MiB] [9 MiB] ... [16 MiB] [300 KiB] [20 KiB] ...
            \\____ together at most the target ____/ \\_ waits: more comes _/ \\_ the service's _/

A file of half the target or more is final. A run of others is cut from its oldest file on into groups of at most the
target; since two that are not final fit into one target, each group but the last of a run is final when it is written,
so a row is rewritten once. The last group of the log waits for more. Files whose ages differ by more than a part of the
retention stay apart: retention removes whole files, and one that spans weeks would keep its oldest row for as long.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tables.delta import DataFile

__all__ = ["RETENTION_PART", "TAIL_FILES_MAX", "Target", "plan_compaction"]

#: A file holds messages of at most this part of the time that they are kept.
RETENTION_PART: Final = 8
#: So many small files at the end of a log are left to roll-ups, which leave fewer.
TAIL_FILES_MAX: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What compaction aims at in one partition."""

    #: The size of a finished file.
    bytes: int
    #: Smaller files at the end of the log are rolled up by who appends.
    tail_bytes: int
    #: How far apart the append times of a file's rows may be; None: any time.
    span_ms: int | None = None


def plan_compaction(files: Sequence[DataFile], target: Target) -> list[Sequence[DataFile]]:
    """Return the groups of adjacent files that should become one file each, oldest first."""
    settled = files[: len(files) - _tail_count(files, target)]
    found: list[Sequence[DataFile]] = []
    for run, ended in _runs(settled, target):
        groups = list(_groups(run, target))
        found += groups if ended else groups[:-1]
    return [group for group in found if len(group) > 1]


def _tail_count(files: Sequence[DataFile], target: Target) -> int:
    """How many files at the end are left to roll-ups; if nobody does them, only the newest are."""
    count = 0
    for file in reversed(files):
        if file.size >= target.tail_bytes or count == TAIL_FILES_MAX:
            break
        count += 1
    return count


def _runs(files: Sequence[DataFile], target: Target) -> Iterator[tuple[Sequence[DataFile], bool]]:
    """Runs of adjacent files that are not final, and whether a final one ends them."""
    low = 0
    for at, file in enumerate(files):
        if file.size >= target.bytes // 2:
            if low < at:
                yield files[low:at], True
            low = at + 1
    if low < len(files):
        yield files[low:], False


def _groups(run: Sequence[DataFile], target: Target) -> Iterator[Sequence[DataFile]]:
    low = size = 0
    for at, file in enumerate(run):
        if low < at and not (size + file.size <= target.bytes and _is_close(run[low], file, target)):
            yield run[low:at]
            low, size = at, 0
        size += file.size
    yield run[low:]


def _is_close(first: DataFile, last: DataFile, target: Target) -> bool:
    """Return whether one file may hold the rows of both."""
    return target.span_ms is None or last.append_max_us - first.append_min_us <= target.span_ms * 1_000
