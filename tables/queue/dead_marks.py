"""The states of a group's dead letters on a broker: their marks, followed and folded (SPEC RETRY-8).

    dead letters    %DLQ%{group}@{broker}          never changed before retention removes them
    marks           %DLQ_MARKS%{group}@{broker}    sent back, deleted: appended after the fact

What a topic has in quarantine has marks of the same form (SPEC TYPE-7), one log for each partition.

The marks lie beside the dead letters, in the same life of the group, and go with it. Retention calls
`void_dead_marks_below` before it removes the beginning of the marks: no mark goes before the dead letters it is about.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from deltamq.mq.queue.dead_letters import DeadMark, LetterMarks
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.paging import pages
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import PartitionRef
from deltamq.tables.queue.delay_marks import LogTail
from deltamq.tables.queue.records import dead_marks_of

Int64s = npt.NDArray[np.int64]
Int8s = npt.NDArray[np.int8]
M = TypeVar("M", bound=DeadMark)

#: The states, by the numbers that `states_between` returns.
LETTER_STATES: Final = ("new", "sent_back", "deleted")
#: Ranges in one mark; each takes about 20 bytes.
_RANGES_MAX: Final = 5_000


class DeadMarks:
    """Follows the marks of one partition of dead letters; any thread."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._marks = LetterMarks()
        self._next = 0

    def follow(self, log: PartitionLog | None, min_offset: int = 0) -> LetterMarks:
        """Return the marks up to the end that `log` knows; later calls do not change them.

        `min_offset` is where the dead letters begin: marks of earlier ones are forgotten.

        Raises
        ------
        Corrupt
            A row of the log is not a mark.
        """
        with self._turn:
            if log is not None and self._next < log.end_offset:
                marks, at = self._marks.copy(), self._next
                for page in pages(log, max(at, log.min_offset)):
                    add_marks(marks, page.rows)
                    at = page.next_offset
                marks.drop_below(min_offset)
                self._marks, self._next = marks, at
            return self._marks


def add_marks(marks: LetterMarks, rows: pa.Table) -> None:
    """Add the marks in rows of their log."""
    for mark in dead_marks_of(rows):
        marks.add(mark)


def states_between(marks: LetterMarks, low: int, high: int) -> Int8s:
    """Return the states of the dead letters `[low, high)`, as indexes of `LETTER_STATES`."""
    states = np.zeros(max(0, high - low), dtype=np.int8)
    for number, ranges in ((1, marks.sent_ranges(low, high)), (2, marks.deleted_ranges(low, high))):
        for begin, end in ranges:
            states[begin - low : end - low] = number
    return states


def states_at(marks: LetterMarks, offsets: Int64s) -> Int8s:
    """Return the states of the dead letters at offsets that ascend, as indexes of `LETTER_STATES`."""
    if not len(offsets):
        return np.zeros(0, dtype=np.int8)
    low = int(offsets[0])
    return states_between(marks, low, int(offsets[-1]) + 1)[offsets - low]


def mark_ranges(offsets: Int64s, mark: Callable[[tuple[tuple[int, int], ...]], M]) -> Sequence[M]:
    """Return marks for these offsets, which ascend; `mark` makes one of ranges, and each is small enough to store."""
    starts = np.flatnonzero(np.diff(offsets, prepend=offsets[0] - 2) > 1) if len(offsets) else np.zeros(0, np.int64)
    lows = offsets[starts].tolist()
    highs = (offsets[np.append(starts[1:], len(offsets)) - 1] + 1).tolist() if lows else []
    ranges = list(zip(lows, highs, strict=True))
    return [mark(tuple(ranges[at : at + _RANGES_MAX])) for at in range(0, len(ranges), _RANGES_MAX)]


def void_dead_marks_below(warehouse: Warehouse, marks_ref: PartitionRef, about: PartitionRef) -> int:
    """Return the offset of the first mark that is not void: the marks may begin there.

    A mark is void when the messages of `about` that it names are removed.
    """
    letters = LogTail(warehouse, about).log
    tail = LogTail(warehouse, marks_ref)
    if letters is None or tail.log is None:
        return 0
    letters.refresh()
    for rows in tail.new_rows():
        for at, mark in enumerate(dead_marks_of(rows)):
            if max((high for _, high in mark.ranges), default=0) > letters.min_offset:
                return tail.offset + at
    return tail.offset
