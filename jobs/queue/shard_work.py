"""What a task of `revive` or `delay` does: the work of some shards, and a report about each.

A task may run twice, at once or one after another, or beside the local engine, and may be killed anywhere: it works by
`ReviveBatch` or `DelayBatch`, whose appends are requests that are named after the messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from deltamq.jobs.queue.task_memory import TaskMemory, WarehouseAddress, memory_of
from deltamq.mq.jobs import is_tried
from deltamq.tables.paths import PartitionRef

Int64s = NDArray[np.int64]

#: Troubles that a task reports for a shard.
_TROUBLES_MAX: Final = 3


class ShardItem(msgspec.Struct, frozen=True, kw_only=True):
    """The work for one shard; small, and without secrets."""

    address: WarehouseAddress
    broker: str
    #: The revive queue; a broker has one delay log, number 0.
    queue: int
    #: The time of the run, taken by the driver before anything is read.
    now_ms: int
    #: When a task of this driver last finished with the shard; 0 for never.
    since_ms: int

    def tried(self, due_ms: Int64s) -> NDArray[np.bool_]:
        """Return `is_tried` of each time; computed once for each distinct time, of which a burst has few."""
        times, which = np.unique(due_ms, return_inverse=True)
        verdicts = (is_tried(time, since_ms=self.since_ms, now_ms=self.now_ms) for time in times.tolist())
        tried: NDArray[np.bool_] = np.fromiter(verdicts, dtype=bool, count=len(times))[which]
        return tried


class ShardReport(msgspec.Struct):
    """What a task found and did in a shard at `now_ms`; small, since the driver gets it."""

    broker: str
    queue: int
    now_ms: int
    #: Messages by name of the job's counts; `waiting` wait for a later try.
    counts: dict[str, int]
    troubles: set[str] = msgspec.field(default_factory=set)
    #: The shard's records could not be read, or the task was interrupted: it must be looked at again.
    held: bool = False
    late_ms: int = 0
    behind_ms: int = 0
    #: Unless the log grows past this end, nothing is due before `next_ms`; 0: look again at once, None: only a new
    #: append can bring work.
    log_end: int = 0
    next_ms: int | None = 0

    def wait(self, due_ms: Sequence[int]) -> None:
        """Count messages, or checkpoints, that were due at these times and wait for a later try."""
        self.counts["waiting"] += len(due_ms)
        self.behind_ms = max([self.behind_ms, *(self.now_ms - time for time in due_ms)])


class ShardWork(msgspec.Struct, frozen=True, kw_only=True):
    """The work of a job in tasks. Executors import its functions by name."""

    #: Carries out an item, and notes in the report what it does.
    carry_out: Callable[[TaskMemory, ShardItem, ShardReport], None]
    #: The names of the job's counts; `rows` and `waiting` are among them.
    counts: tuple[str, ...]
    #: The number of a broker's shards.
    queues: int
    #: Returns the log of a cluster, a queue and a broker.
    log: Callable[[str, int, str], PartitionRef]

    def __call__(self, items: Sequence[ShardItem]) -> list[ShardReport]:
        """Carry out a task's items on an executor, one after another."""
        return [self.report(memory_of(item.address), item) for item in items]

    def report(self, memory: TaskMemory, item: ShardItem) -> ShardReport:
        """Carry out an item; an error is reported, so that the work of other shards goes on."""
        report = ShardReport(item.broker, item.queue, item.now_ms, dict.fromkeys(self.counts, 0))
        try:
            self.carry_out(memory, item, report)
        except Exception as error:  # any error holds only this shard
            report.held = True
            queue = f" in queue {item.queue}" if self.queues > 1 else ""
            report.troubles.add(f"{item.broker} is held{queue}: {type(error).__name__}: {error}")
        report.troubles = set(sorted(report.troubles)[:_TROUBLES_MAX])
        return report
