"""The messages of a delay log that are due, found file by file, so that no process has to follow the log.

    files --all ended? nothing due by their statistics?--> remaining files --deliver times--> offsets that are due

A data file never changes. The deliver times of its waiting messages are kept, sorted, in a bounded cache; for a file
that is not in the cache, that one column is read again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from deltamq.mq.errors import Corrupt, Unavailable
from deltamq.tables.delta.actions import DataFile
from deltamq.tables.delta.file_stats import decoded_stats, time_ms
from deltamq.tables.delta.reader import RowCache
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.queue.delay_marks import DelayMarks

Int64s = npt.NDArray[np.int64]

#: Tries of a search: roll-ups may replace files while they are read.
_LOOKS: Final = 10
#: From this many due messages in a file on, if most of them have ended, the ended ones are dropped from the cache.
_TRIM_ROWS: Final = 1_024


class _Waiting(msgspec.Struct, frozen=True):
    """The waiting messages of a file: times in milliseconds, ascending, with offsets relative to the file's first."""

    times: Int64s
    rows: npt.NDArray[np.int32]


class DeliverTimes:
    """The deliver times of delay logs. For one thread."""

    def __init__(self, cache: RowCache) -> None:
        self._cache = cache

    def due(self, log: PartitionLog, marks: DelayMarks, until_ms: int) -> tuple[Int64s, Int64s]:
        """Return the times and offsets of messages that are due at `until_ms` and have not ended, ascending by both.

        Raises
        ------
        Corrupt
            A file cannot be read.
        """
        for _ in range(_LOOKS):
            files = tuple(log.files)
            try:
                return self._due(log, files, marks, until_ms)
            except Corrupt:
                # Rolled up and removed by another process, or damaged: the newest log shows which.
                log.refresh()
                if log.are_live(files):
                    raise
        raise Unavailable(f"{log.ref.name}: files are replaced faster than they can be read", code="contention")

    def next_due_ms(self, log: PartitionLog, marks: DelayMarks, after_ms: int) -> int | None:
        """Return a time after `after_ms` before which nothing else is due; None if nothing waits. Call `due` first."""
        times = []
        for file in log.files:
            if marks.ended.gap_from(file.start) >= file.end:
                continue
            if (least := _least_ms(file.stats)) is not None and least > after_ms:
                times.append(least)
                continue
            waiting = self._waiting(log, file, marks).times
            if (count := int(np.searchsorted(waiting, after_ms, side="right"))) < len(waiting):
                times.append(int(waiting[count]))
        return min(times, default=None)

    def _due(
        self, log: PartitionLog, files: Sequence[DataFile], marks: DelayMarks, until_ms: int
    ) -> tuple[Int64s, Int64s]:
        times, offsets = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
        for file in files:
            if marks.ended.gap_from(file.start) < file.end and _may_be_due(file.stats, until_ms):
                due = self._of_file(log, file, marks, until_ms)
                times.append(due[0])
                offsets.append(due[1])
        all_times, all_offsets = np.concatenate(times), np.concatenate(offsets)
        order = np.lexsort((all_offsets, all_times))
        return all_times[order], all_offsets[order]

    def _of_file(self, log: PartitionLog, file: DataFile, marks: DelayMarks, until_ms: int) -> tuple[Int64s, Int64s]:
        waiting = self._waiting(log, file, marks)
        count = int(np.searchsorted(waiting.times, until_ms, side="right"))
        offsets = waiting.rows[:count].astype(np.int64) + file.start
        left = np.isin(offsets, marks.not_ended(np.sort(offsets)))
        if count >= _TRIM_ROWS and 2 * int(left.sum()) < count:
            kept = np.concatenate([left, np.ones(len(waiting.times) - count, dtype=bool)])
            self._keep(log, file, _Waiting(waiting.times[kept], waiting.rows[kept]))
        return waiting.times[:count][left], offsets[left]

    def _waiting(self, log: PartitionLog, file: DataFile, marks: DelayMarks) -> _Waiting:
        kept = self._cache.get((log.ref.folder, file.path))
        if isinstance(kept, _Waiting):
            return kept
        column = log.file_columns(file, ["deliver_time"]).column("deliver_time")
        # A row without a time is due at once; what else is wrong with it shows then.
        micros = pc.fill_null(column.cast(pa.int64()), 0).to_numpy()
        rows = marks.not_ended(np.arange(file.start, file.end)) - file.start
        # Rounded up: a message is never delivered before its time.
        times = -(-micros[rows] // 1_000)
        order = np.argsort(times, kind="stable")
        return self._keep(log, file, _Waiting(times[order], rows[order].astype(np.int32)))

    def _keep(self, log: PartitionLog, file: DataFile, waiting: _Waiting) -> _Waiting:
        size = 256 + waiting.times.nbytes + waiting.rows.nbytes
        self._cache.put((log.ref.folder, file.path), waiting, size)
        return waiting


def _may_be_due(stats: str, until_ms: int) -> bool:
    least = _least_ms(stats)
    return least is None or least <= until_ms


def _least_ms(stats: str) -> int | None:
    """Return the least deliver time of a file, rounded down; None if its statistics do not have it."""
    known = decoded_stats(stats)
    return time_ms(known.minValues.get("deliver_time")) if known.nullCount.get("deliver_time") == 0 else None
