"""A task of `delay`: forwards what is due in the delay log of one broker, and marks that it has ended.

A task may run twice, at once or one after another, or beside the local engine, and may be killed anywhere: it works by
`DelayBatch`, whose appends are requests that are named after the messages' places in the delay log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from deltamq.jobs.queue.delay_batch import DelayBatch, DelayOutcome
from deltamq.jobs.queue.delay_queue import keep_marks_up, mark_ended
from deltamq.jobs.queue.shard_counts import TROUBLES_MAX, shard_counts
from deltamq.jobs.queue.task_memory import TaskMemory, WarehouseAddress, memory_of
from deltamq.jobs.queue.turns import are_tried
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.queue.delay_marks import DelayMarks
from deltamq.tables.queue.refs import DELAY_MARKS, system_ref

Int64s = npt.NDArray[np.int64]

DELAY_COUNTS: Final = shard_counts("forwarded", "cancelled", "dropped", "lost", "waiting")


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayItem:
    """The work of one task; small, and without secrets."""

    address: WarehouseAddress
    broker: str
    #: The time of the run, taken by the driver before anything is read.
    now_ms: int
    #: When a task of this driver last finished with the shard; 0 for never.
    since_ms: int


def forward_shard(item: DelayItem) -> Iterator[pa.RecordBatch]:
    """Carry out an item on an executor; yield one row of DELAY_COUNTS."""
    yield run_delay_shard(memory_of(item.address), item)


def run_delay_shard(memory: TaskMemory, item: DelayItem) -> pa.RecordBatch:
    """Forward what is due; return counts. An error is reported in them, so that the work of other shards goes on."""
    shard = _Shard(memory, item)
    try:
        shard.run()
    except Exception as error:  # any error holds only this shard
        shard.hold(error)
    return shard.counts()


class _DelayLog:
    """The delay log of a broker for `DelayBatch`; keeps nothing for another run."""

    def __init__(self, warehouse: Warehouse, cluster: str, broker: str, log: PartitionLog, marks: DelayMarks) -> None:
        self.log = log
        self.marks = marks
        #: The number of messages that could not be forwarded, and the due time of the oldest.
        self.waiting = 0
        self.oldest_ms: int | None = None
        self._warehouse = warehouse
        self._marks_ref = system_ref(DELAY_MARKS, cluster, broker)

    def put_off(self, times: Iterable[int], offsets: Sequence[int], now_ms: int) -> None:
        """Count messages that wait for a later try."""
        self.waiting += len(offsets)
        self.oldest_ms = min([*times, *([] if self.oldest_ms is None else [self.oldest_ms])], default=None)

    def end(self, offsets: Int64s) -> None:
        """Record that messages have ended."""
        if len(offsets):
            mark_ended(self._warehouse, self._marks_ref, self.marks.delay_partition, offsets)

    def keep_up(self) -> None:
        keep_marks_up(self._warehouse, self._marks_ref)


class _Shard:
    def __init__(self, memory: TaskMemory, item: DelayItem) -> None:
        self._memory = memory
        self._item = item
        self._outcome = DelayOutcome()
        self._held = False
        self._queue: _DelayLog | None = None
        self._log_end = 0
        self._next_ms: int | None = 0

    def hold(self, error: Exception) -> None:
        self._held = True
        self._outcome.troubles.add(f"{self._item.broker} is held: {type(error).__name__}: {error}")

    def run(self) -> None:
        item, memory = self._item, self._memory
        # Marks first: only this job can have ended a message that is read after them.
        marks = memory.marks(item.address.cluster, item.broker)
        marks.refresh()
        log = memory.delay_log(item.address.cluster, item.broker)
        if log is None:
            return
        times, offsets = memory.deliver_times.due(log, marks, item.now_ms)
        if not len(offsets):
            self._log_end = log.end_offset
            self._next_ms = memory.deliver_times.next_due_ms(log, marks, item.now_ms)
            return
        memory.meta.refresh()
        queue = self._queue = _DelayLog(memory.warehouse, item.address.cluster, item.broker, log, marks)
        tried = are_tried(times, since_ms=item.since_ms, now_ms=item.now_ms)
        queue.put_off(times[~tried].tolist(), offsets[~tried].tolist(), item.now_ms)
        self._forward(queue, times[tried], offsets[tried])

    def _forward(self, queue: _DelayLog, times: Int64s, offsets: Int64s) -> None:
        if not len(offsets):
            return
        item, memory = self._item, self._memory
        self._outcome.late_ms = item.now_ms - int(times[0])
        bounds = memory.bounds
        for start in range(0, len(offsets), bounds.messages):
            part = slice(start, start + bounds.messages)
            batch = DelayBatch(memory.warehouse, queue, memory.meta, item.now_ms, self._outcome, bounds=bounds)
            batch.run(times[part], offsets[part])
        queue.keep_up()

    def counts(self) -> pa.RecordBatch:
        outcome, queue = self._outcome, self._queue
        oldest_ms = queue.oldest_ms if queue is not None else None
        row = {
            "broker": self._item.broker,
            "queue": 0,
            "held": self._held,
            "forwarded": outcome.forwarded,
            "cancelled": outcome.cancelled,
            "dropped": outcome.dropped,
            "lost": outcome.lost,
            "waiting": queue.waiting if queue is not None else 0,
            "late_ms": outcome.late_ms,
            "behind_ms": 0 if oldest_ms is None else self._item.now_ms - oldest_ms,
            "log_end": self._log_end,
            "next_ms": self._next_ms,
            "troubles": sorted(outcome.troubles)[:TROUBLES_MAX],
        }
        return pa.RecordBatch.from_pylist([row], schema=DELAY_COUNTS)
