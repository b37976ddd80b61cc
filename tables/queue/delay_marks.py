"""The progress of a broker's delay log: its marks, folded (SPEC RETRY-4, RETRY-5).

    delay log    0  1  2  3  4  5  6        marks: ended [0, 2), ended [4, 5), cancelled 5
                 x  x  .  .  x  c  .        everything below 2 has ended: the log may begin there

Retention calls `ended_below` before it removes the beginning of the delay log, and `void_marks_below` for the marks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from deltamq.mq.offset_ranges import OffsetRanges
from deltamq.mq.queue.delay import Cancelled, DelayMark
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.paging import pages
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import PartitionRef
from deltamq.tables.queue.records import delay_marks_of
from deltamq.tables.queue.refs import DELAY, DELAY_MARKS, system_ref

Int64s = npt.NDArray[np.int64]


class LogTail:
    """Follows a log that may not exist yet, and from which only rows that no reader needs are removed."""

    def __init__(
        self, warehouse: Warehouse, ref: PartitionRef, is_there: Callable[[PartitionRef], bool] | None = None
    ) -> None:
        """`is_there` tells whether the log exists; by default it is looked for at each call."""
        self.ref = ref
        #: The next offset to be read.
        self.offset = 0
        self._warehouse = warehouse
        self._is_there = is_there or warehouse.exists
        self._log: PartitionLog | None = None

    @property
    def log(self) -> PartitionLog | None:
        """The open log; None while it does not exist."""
        if self._log is None and self._is_there(self.ref):
            self._log = self._warehouse.open_partition(self.ref)
        return self._log

    def new_rows(self) -> Iterator[pa.Table]:
        """Yield the rows appended since, page by page; `offset` passes a page when the next one is requested."""
        log = self.log
        if log is None:
            return
        log.refresh()
        self.offset = max(self.offset, log.min_offset)
        for page in pages(log, self.offset):
            yield page.rows
            self.offset = page.next_offset


class FoldedMarks:
    """What the marks of one broker's delay log say of it."""

    def __init__(self, delay_partition: str) -> None:
        self.delay_partition = delay_partition
        #: Offsets of the delay log that were forwarded, or that are not to be delivered.
        self.ended = OffsetRanges()
        #: Offsets that are cancelled but have not ended yet.
        self.cancelled: set[int] = set()

    def fold(self, rows: pa.Table) -> None:
        """Fold rows of the marks' log, in order.

        Raises
        ------
        Corrupt
            A row of the log is not a mark; the marks folded before stay.
        """
        for mark in delay_marks_of(rows):
            self._add(mark)

    def _add(self, mark: DelayMark) -> None:
        if mark.delay_partition != self.delay_partition:
            return
        if isinstance(mark, Cancelled):
            if mark.offset not in self.ended:
                self.cancelled.add(mark.offset)
            return
        for low, high in mark.ranges:
            self.ended.add(low, high)
            if self.cancelled:
                few = self.cancelled if len(self.cancelled) < high - low else range(low, high)
                self.cancelled.difference_update([offset for offset in few if low <= offset < high])

    def not_ended(self, offsets: Int64s) -> Int64s:
        """Return the offsets that have not ended."""
        if not len(self.ended):
            return offsets
        ranges = np.array(list(self.ended), dtype=np.int64)
        at = np.minimum(np.searchsorted(ranges[:, 1], offsets, side="right"), len(ranges) - 1)
        waiting: Int64s = offsets[(offsets < ranges[at, 0]) | (offsets >= ranges[at, 1])]
        return waiting


class DelayMarks(FoldedMarks):
    """Follows the marks of one broker. For one thread, blocking."""

    def __init__(self, warehouse: Warehouse, cluster: str, broker: str) -> None:
        super().__init__(system_ref(DELAY, cluster, broker).name)
        self._tail = LogTail(warehouse, system_ref(DELAY_MARKS, cluster, broker))

    def refresh(self) -> None:
        """Fold the marks that were stored since the last call; raises what `fold` does."""
        for rows in self._tail.new_rows():
            self.fold(rows)


def ended_below(warehouse: Warehouse, cluster: str, broker: str) -> int:
    """Return the first offset of the broker's delay log that still waits: the log may begin there."""
    marks = DelayMarks(warehouse, cluster, broker)
    marks.refresh()
    log = LogTail(warehouse, system_ref(DELAY, cluster, broker)).log
    if log is None:
        return 0
    log.refresh()
    return min(marks.ended.gap_from(log.min_offset), log.end_offset)


def void_marks_below(warehouse: Warehouse, cluster: str, broker: str) -> int:
    """Return the offset of the broker's first delay mark that is not void: the marks may begin there.

    A mark is void when the delay log no longer holds the offsets that it is about.
    """
    delay = LogTail(warehouse, system_ref(DELAY, cluster, broker)).log
    tail = LogTail(warehouse, system_ref(DELAY_MARKS, cluster, broker))
    if delay is None or tail.log is None:
        return 0
    delay.refresh()
    for rows in tail.new_rows():
        for at, mark in enumerate(delay_marks_of(rows)):
            if _last(mark) >= delay.min_offset:
                return tail.offset + at
    return tail.offset


def _last(mark: DelayMark) -> int:
    """Return the last offset of the delay log that a mark is about."""
    return mark.offset if isinstance(mark, Cancelled) else max((high for _, high in mark.ranges), default=0) - 1
