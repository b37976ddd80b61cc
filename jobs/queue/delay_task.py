"""The job `delay` in tasks: forwards what is due in the delay log of one broker, and marks that it has ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

from deltamq.jobs.queue.delay_batch import DelayBatch, DelayOutcome
from deltamq.jobs.queue.delay_queue import keep_marks_up, mark_ended
from deltamq.jobs.queue.shard_work import ShardItem, ShardReport, ShardWork
from deltamq.jobs.queue.task_driver import TaskDriver
from deltamq.jobs.queue.task_memory import TaskMemory
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.paths import PartitionRef
from deltamq.tables.queue.delay_marks import DelayMarks
from deltamq.tables.queue.refs import DELAY, DELAY_MARKS, system_ref

Int64s = npt.NDArray[np.int64]


class _DelayLog:
    """The delay log of a broker for `DelayBatch`; keeps nothing for another run."""

    def __init__(
        self, memory: TaskMemory, item: ShardItem, log: PartitionLog, marks: DelayMarks, report: ShardReport
    ) -> None:
        self.log = log
        self.marks = marks
        self._warehouse = memory.warehouse
        self._marks_ref = system_ref(DELAY_MARKS, item.address.cluster, item.broker)
        self._report = report

    def put_off(self, times: Iterable[int], offsets: Sequence[int], now_ms: int) -> None:
        """Count messages that wait for a later try."""
        self._report.wait(list(times))

    def end(self, offsets: Int64s) -> None:
        """Record that messages have ended."""
        if len(offsets):
            mark_ended(self._warehouse, self._marks_ref, self.marks.delay_partition, offsets)

    def keep_up(self) -> None:
        keep_marks_up(self._warehouse, self._marks_ref)


def _carry_out(memory: TaskMemory, item: ShardItem, report: ShardReport) -> None:
    cluster = item.address.cluster
    # Marks first: only this job can have ended a message that is read after them.
    marks = memory.marks(cluster, item.broker)
    marks.refresh()
    log = memory.delay_log(cluster, item.broker)
    if log is None:
        return
    times, offsets = memory.deliver_times.due(log, marks, item.now_ms)
    if not len(offsets):
        report.log_end = log.end_offset
        report.next_ms = memory.deliver_times.next_due_ms(log, marks, item.now_ms)
        return
    memory.meta.refresh()
    queue = _DelayLog(memory, item, log, marks, report)
    tried = item.tried(times)
    report.wait(times[~tried].tolist())
    if tried.any():
        _forward(memory, queue, times[tried], offsets[tried], report)


def _forward(memory: TaskMemory, queue: _DelayLog, times: Int64s, offsets: Int64s, report: ShardReport) -> None:
    now_ms, bounds = report.now_ms, memory.bounds
    report.late_ms = now_ms - int(times[0])
    outcome = DelayOutcome(troubles=report.troubles)
    try:
        for start in range(0, len(offsets), bounds.messages):
            part = slice(start, start + bounds.messages)
            batch = DelayBatch(memory.warehouse, queue, memory.meta, now_ms, outcome, bounds=bounds)
            batch.run(times[part], offsets[part])
        queue.keep_up()
    finally:
        report.counts |= outcome.counts()


def _log(cluster: str, _: int, broker: str) -> PartitionRef:
    return system_ref(DELAY, cluster, broker)


DELAY_WORK: Final = ShardWork(
    carry_out=_carry_out, counts=("rows", "cancelled", "dropped", "lost", "waiting"), queues=1, log=_log
)
#: Makes the driver's state for one warehouse.
TaskForwarder: Final = partial(TaskDriver, DELAY_WORK)
