"""The plan of roll-ups: which small files become one, as a pure function of the live files.

Files are put into classes by their number of rows; each class is a factor of `fanout` larger than the one before. A run
of adjacent files of a class or below becomes one file of a higher class as soon as `fanout` of them are of that class.
So a row is rewritten about once in each class, and the number of live files grows with the logarithm of the log until
a file is large enough to be final.

    rows:   [final] [final] [900] [800] [31] [32] ... [32] [1] [1] ... [1]
                                         \\___ fanout ___/    \\_ fanout _/
                                          -> one of ~1,000     -> one of 32

Smaller files in between do not count: otherwise one large file would be merged with a few small ones again and again.
Where sizes alternate so that no class ever fills, a run that is `RUN_FACTOR` times as long is merged, if the result is
at least twice as large as its largest file. A run that fills a file of `bytes_max` is merged at once: the result is
final, and its rows are still in memory.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final

from deltamq.tables.delta.actions import DataFile

#: Number of newest files that are planned for: older ones had their turn.
WINDOW_FILES: Final = 4_096
#: A run that is this many times longer than `fanout` is merged even if none of its classes is full.
RUN_FACTOR: Final = 4


def plan_rollup(files: Sequence[DataFile], *, fanout: int, bytes_max: int, since: int = 0) -> Sequence[DataFile]:
    """Return adjacent files that should become one now, in offset order; an empty sequence if nothing is due.

    A file of half of `bytes_max` or more is final. The chosen files have at most `bytes_max` together. Files before the
    offset `since` are not considered; see `final_end`.
    """
    recent = files[bisect_left(files, since, key=lambda f: f.start) :]
    classes = [None if _is_final(f, bytes_max) else _class(f, fanout) for f in recent]
    for level in sorted({c for c in classes if c is not None}):
        for low, high in _runs(classes, level):
            if _is_due(recent[low:high], classes[low:high], level, fanout, bytes_max):
                return _within(recent[low:high], bytes_max)
    return ()


def final_end(files: Sequence[DataFile], *, bytes_max: int) -> int:
    """Return the end offset of the newest final file; 0 if there is none.

    No run of files reaches over it. So if nothing is due now, nothing before this offset will be.
    """
    return next((f.end for f in reversed(files) if _is_final(f, bytes_max)), 0)


def _is_final(file: DataFile, bytes_max: int) -> bool:
    return file.size >= bytes_max // 2


def _is_due(run: Sequence[DataFile], classes: Sequence[int | None], level: int, fanout: int, bytes_max: int) -> bool:
    if classes.count(level) >= fanout or sum(f.size for f in run) >= bytes_max:
        return True
    counts = [f.count for f in run]
    return len(run) >= RUN_FACTOR * fanout and sum(counts) >= 2 * max(counts)


def _class(file: DataFile, fanout: int) -> int:
    level, bound = 0, fanout
    while file.count >= bound:
        level, bound = level + 1, bound * fanout
    return level


def _runs(classes: Sequence[int | None], level: int) -> Iterator[tuple[int, int]]:
    """Yield the longest runs `[low, high)` of adjacent files of class `level` or below, newest first."""
    high = len(classes)
    while high > 0:
        low = high
        while low > 0 and (found := classes[low - 1]) is not None and found <= level:
            low -= 1
        if low < high:
            yield low, high
        high = min(low, high - 1)


def _within(files: Sequence[DataFile], bytes_max: int) -> Sequence[DataFile]:
    total = 0
    for count, file in enumerate(files):
        total += file.size
        if total > bytes_max and count >= 2:
            return files[:count]
    return files
