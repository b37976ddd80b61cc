"""The delayed messages of one broker: which wait, which are due, and which have ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from deltamq.mq.queue.delay import Ended
from deltamq.tables.failpoints import failpoint
from deltamq.tables.log.appearing import Appearing
from deltamq.tables.log.batch import Batch
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import PartitionRef
from deltamq.tables.queue.delay_marks import DelayMarks, LogTail
from deltamq.tables.queue.records import rows_of_delay_marks
from deltamq.tables.queue.refs import DELAY, DELAY_MARKS, system_ref
from deltamq.tables.settings import Flush

Int64s = npt.NDArray[np.int64]

#: Retry interval of messages that cannot be forwarded, in milliseconds; it doubles up to the maximum.
_RETRY_MS: Final = 1_000
_RETRY_MS_MAX: Final = 60_000


class DelayQueue:
    """Follows the delay log of a broker and its marks. For one thread."""

    def __init__(self, warehouse: Warehouse, cluster: str, broker: str) -> None:
        self._warehouse = warehouse
        self._marks_ref = system_ref(DELAY_MARKS, cluster, broker)
        self._tail = LogTail(warehouse, system_ref(DELAY, cluster, broker), Appearing(warehouse).is_there)
        self._waiting = WaitingOffsets()
        #: Messages that could not be forwarded: the number of tries, and the original due time.
        self._failed: dict[int, tuple[int, int]] = {}
        self._unsure = False
        self.marks = DelayMarks(warehouse, cluster, broker)

    def __len__(self) -> int:
        """Return the number of waiting messages."""
        return len(self._waiting)

    @property
    def log(self) -> PartitionLog | None:
        """The delay log; None if it does not exist yet."""
        return self._tail.log

    def refresh(self) -> None:
        """Read new messages and new marks.

        Marks come first: only this job can have ended a message that is read after them. Without messages they are
        about nothing.
        """
        if self.log is None:
            return
        self.marks.refresh()
        for rows in self._tail.new_rows():
            # A row without a deliver time counts as due; other faults of a row show when it is forwarded.
            micros = pc.fill_null(rows.column("deliver_time").cast(pa.int64()), 0).to_numpy()
            first = self._tail.offset
            offsets = self.marks.not_ended(np.arange(first, first + rows.num_rows))
            # Rounded up: a message is never delivered before its time.
            self._waiting.add(-(-micros[offsets - first] // 1_000), offsets)

    def take(self, now_ms: int) -> tuple[Int64s, Int64s]:
        """Remove what is due; return due times and offsets, in order. The caller must `end` or `put_off` each."""
        times, offsets = self._waiting.take(now_ms)
        if self._unsure:
            # Some may have ended, or be in here twice.
            self._unsure = False
            kept = self.marks.not_ended(np.unique(offsets))
            times = times[np.argsort(offsets, kind="stable")][np.searchsorted(np.sort(offsets), kept)]
            offsets = kept
        if self._failed:
            due = [self._failed.get(int(offset), (0, int(time)))[1] for time, offset in np.stack([times, offsets]).T]
            times = np.array(due, dtype=np.int64)
        order = np.lexsort((offsets, times))
        return times[order], offsets[order]

    def put_off(self, times: Iterable[int], offsets: Sequence[int], now_ms: int) -> None:
        """Keep messages that could not be forwarded for a later try; each waits longer after each try."""
        again = []
        for time, offset in zip(times, offsets, strict=True):
            tries = self._failed.get(offset, (0, time))[0]
            self._failed[offset] = (tries + 1, time)
            again.append(now_ms + min(_RETRY_MS << min(tries, 10), _RETRY_MS_MAX))
        self._waiting.add(np.array(again, dtype=np.int64), np.array(offsets, dtype=np.int64))

    def put_back(self, times: Int64s, offsets: Int64s) -> None:
        """Return messages of an interrupted run; the next `take` leaves out what has ended meanwhile."""
        self._waiting.add(times, offsets)
        self._unsure = True

    def end(self, offsets: Int64s) -> None:
        """Record that messages have ended."""
        if not len(offsets):
            return
        mark_ended(self._warehouse, self._marks_ref, self.marks.delay_partition, offsets)
        if self._failed:
            for offset in offsets.tolist():
                self._failed.pop(offset, None)

    def keep_up(self) -> None:
        """Do the upkeep of the marks, most of which this job writes."""
        keep_marks_up(self._warehouse, self._marks_ref)

    def oldest_ms(self) -> int | None:
        """Return the due time of the oldest message that could not be forwarded; None if there is none."""
        return min((time for _, time in self._failed.values()), default=None)


def mark_ended(warehouse: Warehouse, marks: PartitionRef, delay_partition: str, offsets: Int64s) -> None:
    """Store that messages have ended; durable when this returns."""
    log = warehouse.create(marks)
    log.append([Batch(rows_of_delay_marks([Ended(delay_partition, ranges_of(offsets))]))], flush=Flush.SYNC)
    failpoint("delay.after_mark")


def keep_marks_up(warehouse: Warehouse, marks: PartitionRef) -> None:
    """Do the upkeep of a broker's marks."""
    if warehouse.exists(marks):
        warehouse.open_partition(marks).maintain()


def ranges_of(offsets: Int64s) -> tuple[tuple[int, int], ...]:
    """Return offsets as ranges `[low, high)`."""
    ascending = np.sort(offsets)
    gaps = np.flatnonzero(np.diff(ascending) > 1)
    lows = ascending[np.concatenate([[0], gaps + 1])]
    highs = ascending[np.concatenate([gaps, [len(ascending) - 1]])] + 1
    return tuple(zip(lows.tolist(), highs.tolist(), strict=True))


class _Block(msgspec.Struct):
    times: Int64s
    offsets: Int64s

    @classmethod
    def of(cls, times: Int64s, offsets: Int64s) -> _Block:
        order = np.lexsort((offsets, times))
        return cls(times[order], offsets[order])

    def cut(self, time_ms: int) -> _Block:
        """Remove what is due from this block and return it."""
        at = int(np.searchsorted(self.times, time_ms, side="right"))
        due = _Block(self.times[:at], self.offsets[:at])
        self.times, self.offsets = self.times[at:], self.offsets[at:]
        return due

    def __len__(self) -> int:
        return len(self.times)


class WaitingOffsets:
    """The offsets of one log that wait for their time, with sixteen bytes for each. For one thread.

    Sorted blocks, each at least twice as large as the next, as in a log-structured merge tree: an offset that is added
    is moved a logarithmic number of times, and what is due stands at the head of each block.
    """

    def __init__(self) -> None:
        self._blocks: list[_Block] = []

    def __len__(self) -> int:
        return sum(map(len, self._blocks))

    def add(self, times_ms: Int64s, offsets: Int64s) -> None:
        """Add offsets, each with the time at which it falls due."""
        if not len(offsets):
            return
        self._blocks.append(_Block.of(times_ms, offsets))
        while len(self._blocks) > 1 and len(self._blocks[-2]) < 2 * len(self._blocks[-1]):
            last, before = self._blocks.pop(), self._blocks.pop()
            times = np.concatenate([before.times, last.times])
            self._blocks.append(_Block.of(times, np.concatenate([before.offsets, last.offsets])))

    def take(self, now_ms: int) -> tuple[Int64s, Int64s]:
        """Remove what is due; return times and offsets, ascending by both."""
        due = [block.cut(now_ms) for block in self._blocks]
        self._blocks = [block for block in self._blocks if len(block)]
        if not due:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        sorted_due = _Block.of(
            np.concatenate([block.times for block in due]), np.concatenate([block.offsets for block in due])
        )
        return sorted_due.times, sorted_due.offsets
