"""Which small files to roll up into one: a pure plan over the live files.

Files are classed by rows, a factor of `fanout` apart. A run of adjacent files of a class or below becomes one file of
a higher class as soon as `fanout` of them are of that very class, so a row is rewritten about once a class, and the
number of live files grows with the logarithm of the log until a file is large enough to be final.

    rows:   [final] [final] [900] [800] [31] [32] ... [32] [1] [1] ... [1]
                                         \\___ fanout ___/    \\_ fanout _/
                                          -> one of ~1,000     -> one of 32

Smaller files in between do not count: one large file and a few small ones would be merged again and again, each time
for the sake of the small ones. Where sizes alternate so that no class ever fills, a run of `RUN_FACTOR` times the
length is merged, if that at least doubles its largest file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from tables.delta import DataFile

__all__ = ["plan_rollup"]

#: The plan looks at this many of the newest files: older ones had their turn.
_WINDOW_FILES: Final = 4_096
#: A run this many times longer than `fanout` is merged though no class of it is full.
RUN_FACTOR: Final = 4


def plan_rollup(files: Sequence[DataFile], *, fanout: int, bytes_max: int) -> Sequence[DataFile]:
    """Adjacent files that should become one now, in offset order; empty when nothing is due.

    A file of half of `bytes_max` or more is final. What is chosen holds at most `bytes_max` together.
    """
    recent = files[-_WINDOW_FILES:]
    classes = [_class(f, fanout=fanout, final_bytes=bytes_max // 2) for f in recent]
    for level in sorted({c for c in classes if c is not None}):
        for low, high in _runs(classes, level):
            if _is_due(recent[low:high], classes[low:high], level, fanout):
                return _within(recent[low:high], bytes_max)
    return ()


def _is_due(run: Sequence[DataFile], classes: Sequence[int | None], level: int, fanout: int) -> bool:
    if classes.count(level) >= fanout:
        return True
    counts = [f.count for f in run]
    return len(run) >= RUN_FACTOR * fanout and sum(counts) >= 2 * max(counts)


def _class(file: DataFile, *, fanout: int, final_bytes: int) -> int | None:
    """Return the size class of a file, None for a final one."""
    if file.size >= final_bytes:
        return None
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
