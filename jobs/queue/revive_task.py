"""A task of `revive`: processes some queues of one broker, each from its due checkpoints to the `Done` records.

A task may run twice, at once or one after another, or beside the local engine, and may be killed anywhere: it works by
`ReviveBatch`, whose appends are requests that are named after the messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from deltamq.jobs.queue.revive_batch import ReviveBatch
from deltamq.jobs.queue.revive_case import BatchOutcome
from deltamq.jobs.queue.shard_counts import TROUBLES_MAX, shard_counts
from deltamq.jobs.queue.task_memory import TaskMemory, WarehouseAddress, memory_of
from deltamq.jobs.queue.turns import are_tried
from deltamq.mq.jobs import tries_until
from deltamq.mq.limits import ACK_SETTLE_MS
from deltamq.mq.queue.revive import DueCheckpoint
from deltamq.tables.state.rows import states_of_rows

COUNTS: Final = shard_counts("revived", "dead", "lost", "skipped", "waiting")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviveItem:
    """The work for one queue; small, and without secrets."""

    address: WarehouseAddress
    broker: str
    queue: int
    #: The time of the run, taken by the driver before anything is read.
    now_ms: int
    #: When a task of this driver last finished with the shard; 0 for never.
    since_ms: int


def revive_shards(items: Sequence[ReviveItem]) -> Iterator[pa.RecordBatch]:
    """Carry out a task's items on an executor, one after another; yield a row of COUNTS for each."""
    for item in items:
        yield run_shard(memory_of(item.address), item)


def run_shard(memory: TaskMemory, item: ReviveItem) -> pa.RecordBatch:
    """Deliver again what is due; return counts. An error is reported in them, so that other shards' work goes on."""
    shard = _Shard(memory, item)
    try:
        shard.run()
    except Exception as error:  # any error holds only this shard
        shard.hold(error)
    return shard.counts()


class _Shard:
    def __init__(self, memory: TaskMemory, item: ReviveItem) -> None:
        self._memory = memory
        self._item = item
        self._total = BatchOutcome()
        self._held = False
        self._waiting = 0
        self._late_ms = 0
        self._behind_ms = 0
        self._log_end = 0
        self._next_ms: int | None = 0

    def hold(self, error: Exception) -> None:
        item = self._item
        self._held = True
        self._total.troubles.add(f"{item.broker} is held in queue {item.queue}: {type(error).__name__}: {error}")

    def run(self) -> None:
        item, memory = self._item, self._memory
        due_found = memory.shard.due(item.address.cluster, item.broker, item.queue, item.now_ms)
        if not due_found.rows.num_rows:
            self._log_end, self._next_ms = due_found.log_end, due_found.next_ms
            return
        due = self._tried(due_found.rows)
        # After the logs: a group or topic that they refer to and that is missing here has been deleted.
        memory.meta.refresh()
        meta, bounds = memory.meta.meta, memory.bounds
        batch = ReviveBatch(memory.warehouse, item.address.cluster, meta, item.now_ms, self._failures, bounds=bounds)
        for start in range(0, due.num_rows, bounds.checkpoints):
            for part in batches(_dues(due.slice(start, bounds.checkpoints)), bounds.queue_messages):
                outcome = batch.run(part)
                self._waiting += len(outcome.later)
                for late, _ in outcome.later:
                    self._behind(late.checkpoint.revive_time_ms)
                outcome.later.clear()
                outcome.settled.clear()
                self._total.add(outcome)

    def _tried(self, due: pa.Table) -> pa.Table:
        """Leave out the checkpoints that failed before and whose next try is not due."""
        item = self._item
        times = due.column("revive_time").cast(pa.int64()).to_numpy() // 1_000
        tried = are_tried(times + ACK_SETTLE_MS, since_ms=item.since_ms, now_ms=item.now_ms)
        if tried.any():
            self._late_ms = item.now_ms - int(times[tried].min())
        if not tried.all():
            self._waiting += int((~tried).sum())
            self._behind(int(times[~tried].min()))
        return due.filter(pa.array(tried))

    def _behind(self, revive_ms: int) -> None:
        self._behind_ms = max(self._behind_ms, self._item.now_ms - revive_ms - ACK_SETTLE_MS)

    def _failures(self, due: DueCheckpoint) -> int:
        """The greatest number of tries that there may have been before."""
        return max(0, tries_until(self._item.now_ms - due.checkpoint.revive_time_ms - ACK_SETTLE_MS) - 1)

    def counts(self) -> pa.RecordBatch:
        total = self._total
        row = {
            "broker": self._item.broker,
            "queue": self._item.queue,
            "held": self._held,
            "revived": total.revived,
            "dead": total.dead,
            "lost": total.lost,
            "skipped": total.skipped,
            "waiting": self._waiting,
            "late_ms": self._late_ms,
            "behind_ms": self._behind_ms,
            "log_end": self._log_end,
            "next_ms": self._next_ms,
            "troubles": sorted(total.troubles)[:TROUBLES_MAX],
        }
        return pa.RecordBatch.from_pylist([row], schema=COUNTS)


def _dues(rows: pa.Table) -> list[DueCheckpoint]:
    dues = []
    for _, state in states_of_rows(rows):
        assert state.checkpoint is not None, "only a checkpoint can be due"
        dues.append(DueCheckpoint(state.checkpoint, state.open))
    return dues


def batches(taken: Iterable[DueCheckpoint], messages_max: int) -> Iterator[Sequence[DueCheckpoint]]:
    """Yield batches of at most `messages_max` messages."""
    batch: list[DueCheckpoint] = []
    messages = 0
    for due in taken:
        count = due.bits.bit_count()
        if batch and messages + count > messages_max:
            yield batch
            batch, messages = [], 0
        batch.append(due)
        messages += count
    if batch:
        yield batch
