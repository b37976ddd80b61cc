"""The job `revive` in tasks: processes queues of one broker, each from its due checkpoints to the `Done` records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Final

import pyarrow as pa

from deltamq.jobs.queue.revive_batch import ReviveBatch
from deltamq.jobs.queue.revive_case import BatchOutcome
from deltamq.jobs.queue.shard_work import ShardItem, ShardReport, ShardWork
from deltamq.jobs.queue.task_driver import TaskDriver
from deltamq.jobs.queue.task_memory import TaskMemory
from deltamq.mq.jobs import tries_until
from deltamq.mq.limits import ACK_SETTLE_MS, REVIVE_QUEUES
from deltamq.mq.queue.revive import DueCheckpoint
from deltamq.tables.queue.refs import revive_ref
from deltamq.tables.state.rows import states_of_rows


def _carry_out(memory: TaskMemory, item: ShardItem, report: ShardReport) -> None:
    due_found = memory.shard.due(item.address.cluster, item.broker, item.queue, item.now_ms)
    if not due_found.rows.num_rows:
        report.log_end, report.next_ms = due_found.log_end, due_found.next_ms
        return
    due = _tried(due_found.rows, item, report)

    def failures(checkpoint: DueCheckpoint) -> int:
        """The greatest number of tries that there may have been before."""
        return max(0, tries_until(item.now_ms - _due_ms(checkpoint)) - 1)

    # After the logs: a group or topic that they refer to and that is missing here has been deleted.
    memory.meta.refresh()
    meta, bounds = memory.meta.meta, memory.bounds
    batch = ReviveBatch(memory.warehouse, item.address.cluster, meta, item.now_ms, failures, bounds=bounds)
    total = BatchOutcome(troubles=report.troubles)
    try:
        for start in range(0, due.num_rows, bounds.checkpoints):
            for part in batches(_dues(due.slice(start, bounds.checkpoints)), bounds.queue_messages):
                outcome = batch.run(part)
                report.wait([_due_ms(late) for late, _ in outcome.later])
                total.add(outcome)
                total.later.clear()
    finally:
        report.counts |= total.counts()


def _tried(due: pa.Table, item: ShardItem, report: ShardReport) -> pa.Table:
    """Leave out the checkpoints that failed before and whose next try is not due."""
    times = due.column("revive_time").cast(pa.int64()).to_numpy() // 1_000
    tried = item.tried(times + ACK_SETTLE_MS)
    if tried.any():
        report.late_ms = item.now_ms - int(times[tried].min())
    report.wait((times[~tried] + ACK_SETTLE_MS).tolist())
    return due.filter(pa.array(tried))


def _due_ms(due: DueCheckpoint) -> int:
    return due.checkpoint.revive_time_ms + ACK_SETTLE_MS


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


REVIVE_WORK: Final = ShardWork(
    carry_out=_carry_out, counts=("rows", "dead", "lost", "skipped", "waiting"), queues=REVIVE_QUEUES, log=revive_ref
)
#: Makes the driver's state for one warehouse.
TaskReviver: Final = partial(TaskDriver, REVIVE_WORK)
