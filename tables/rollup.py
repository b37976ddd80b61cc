"""Which small files to roll up into one: a pure plan over the live files.

Files are classed by rows, a factor of `fanout` apart. A run of at least `fanout` adjacent files of a class (or
below) becomes one file of a higher class, so each row is rewritten at most once a class, and the number of live
files grows with the logarithm of the log until a file is large enough to be final.

    rows:   [final] [final] [900] [800] [31] [32] ... [32] [1] [1] ... [1]
                                         \\___ fanout ___/    \\_ fanout _/
                                          -> one of ~1,000     -> one of 32
"""

from __future__ import annotations

from collections.abc import Sequence

from tables.actions import DataFile

__all__ = ["plan_rollup"]

#: The plan looks at this many of the newest files: older ones had their turn.
_WINDOW_FILES = 4_096


def plan_rollup(files: Sequence[DataFile], *, fanout: int, bytes_max: int) -> Sequence[DataFile]:
    """Adjacent files that should become one now, in offset order; empty when nothing is due.

    A file of half of `bytes_max` or more is final. What is chosen holds at most `bytes_max` together.
    """
    recent = files[-_WINDOW_FILES:]
    classes = [_class(f, fanout=fanout, final_bytes=bytes_max // 2) for f in recent]
    for level in sorted({c for c in classes if c is not None}):
        run = _longest_due(classes, level, fanout)
        if run is not None:
            return _within(recent[run[0] : run[1]], bytes_max)
    return ()


def _class(file: DataFile, *, fanout: int, final_bytes: int) -> int | None:
    """The size class of a file, None for a final one."""
    if file.size >= final_bytes:
        return None
    level, bound = 0, fanout
    while file.count >= bound:
        level, bound = level + 1, bound * fanout
    return level


def _longest_due(classes: Sequence[int | None], level: int, fanout: int) -> tuple[int, int] | None:
    """The newest run `[low, high)` of at least `fanout` adjacent files of class `level` or below."""
    high = len(classes)
    while high > 0:
        low = high
        while low > 0 and (found := classes[low - 1]) is not None and found <= level:
            low -= 1
        if high - low >= fanout:
            return low, high
        high = low - 1 if low == high else low
    return None


def _within(files: Sequence[DataFile], bytes_max: int) -> Sequence[DataFile]:
    total = 0
    for count, file in enumerate(files):
        total += file.size
        if total > bytes_max and count >= 2:
            return files[:count]
    return files
