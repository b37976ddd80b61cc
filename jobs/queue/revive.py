"""The job `revive`: delivers messages again that were not acknowledged in time (SPEC POP-11, POP-12).

Two engines carry it out by the same rules and the same `ReviveBatch`, and may run at once:

    local   `Reviver`: follows the logs in the memory of one process, so it knows what is due without looking: the least
            delay, on one machine
    spark   `TaskReviver`: tasks look for what is due, queue by queue, in the merged table and the log behind it; they
            follow nothing: grows with the cluster, and starts cold
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from deltamq.jobs.queue.batch_bounds import BOUNDS, BatchBounds
from deltamq.jobs.queue.brokers import FollowedBrokers, broker_shards, look_every_s, trouble_of
from deltamq.jobs.queue.due_followed import DueCheckpoints
from deltamq.jobs.queue.revive_batch import ReviveBatch
from deltamq.jobs.queue.revive_case import BatchOutcome
from deltamq.jobs.queue.revive_task import TaskReviver, batches
from deltamq.jobs.run.registry import Facts, job, with_spark_engine
from deltamq.jobs.tasks.items import runner_of
from deltamq.jobs.tasks.warehouses import state_of
from deltamq.mq.queue.revive import DueCheckpoint
from deltamq.tables.config import Config
from deltamq.tables.log.appearing import Appearing
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.queue.metadata import MetaLog
from deltamq.tables.queue.recovery import Follower

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Reviver:
    """The state of the job between its runs; all of it can be rebuilt from the tables. For one thread."""

    def __init__(self, warehouse: Warehouse, conf: Config, bounds: BatchBounds = BOUNDS) -> None:
        self._warehouse = warehouse
        self._conf = conf
        self._bounds = bounds
        self._meta = MetaLog(warehouse)
        self._brokers = FollowedBrokers(warehouse, conf, self._follow)

    def _follow(self, broker: str) -> DueCheckpoints:
        is_there = Appearing(self._warehouse).is_there
        follower = Follower(self._warehouse, self._conf.warehouse.cluster, [broker], is_there=is_there)
        return DueCheckpoints(follower, stay_buffer_ms=self._conf.queue.stay_buffer_ms)

    def run(self, now_ms: int, brokers: Sequence[str] | None = None) -> Facts:
        """Deliver again what is due at `now_ms`, which must have been taken before the call.

        `brokers` are the brokers that this application has; None: all.
        """
        total = BatchOutcome(troubles=set(self._brokers.look(now_ms, brokers)))
        self._meta.refresh()
        late_ms = 0
        for _, due in self._brokers.readable():
            taken = sorted(due.take(now_ms), key=_order)
            if taken:
                late_ms = max(late_ms, now_ms - taken[0].checkpoint.revive_time_ms)
                self._deliver(due, taken, now_ms, total)
        return {
            **total.counts(),
            "late_ms": late_ms,
            "behind_ms": self._brokers.behind_ms(now_ms),
            "checkpoints": self._brokers.remembered(),
            "waiting": len(total.later),
            **trouble_of(total.troubles),
        }

    def _deliver(self, due: DueCheckpoints, taken: Sequence[DueCheckpoint], now_ms: int, total: BatchOutcome) -> None:
        batch = ReviveBatch(
            self._warehouse,
            self._conf.warehouse.cluster,
            self._meta.meta,
            now_ms,
            lambda late: due.failures(late.checkpoint.key),
            bounds=self._bounds,
        )
        try:
            for part in batches(taken, self._bounds.messages):
                outcome = batch.run(part)
                for late, at_ms in outcome.later:
                    due.again_at(late.checkpoint.key, at_ms)
                for finished in outcome.settled:
                    due.settled(finished.checkpoint.key)
                total.add(outcome)
        except BaseException:
            for interrupted in taken:
                due.put_back(interrupted.checkpoint.key, now_ms)
            raise


def _order(due: DueCheckpoint) -> tuple[int, str, int]:
    checkpoint = due.checkpoint
    return checkpoint.revive_time_ms, checkpoint.pop.partition, checkpoint.span.start_offset


@job(
    name="revive",
    every_s=lambda conf: look_every_s(conf, conf.jobs.revive_every_ms),
    needs_spark=with_spark_engine,
    shards=broker_shards,
)
def revive(spark: SparkSession | None, conf: Config, now: datetime, shards: Sequence[str] | None = None) -> Facts:
    """Deliver again what was not acknowledged in time, or dead-letter it after its last attempt.

    Input: the revive logs of every broker and the state tables that are merged from them, the metadata, and the
    messages in the partitions that they were popped from. The local engine follows the logs from the end of its last
    run (after a start: from the tables); a task of the Spark engine reads what is due in its queues from the table, and
    the logs behind the watermark.

    Output: copies in the groups' retry topics and dead letters, one commit for each destination of a batch; records
    of messages that retention removed before (`LOST`); then `Done` records in the revive logs.

    Idempotent: `now` is taken before anything is read, and an acknowledgement that was accepted in time is in the logs
    300 ms after the revive time, when the checkpoint is looked at. Copies are requests of producers that are named
    after the messages' offsets and numbered with a bit map of them, so each is stored once at its destination, whatever
    the sender or the lease. What a destination was found to hold is confirmed in the commit itself: an append that
    another task, driver or engine has overtaken is refused. `Done` and loss may be stored twice. If this machine's
    clock is ahead of the service's, messages come early by the difference.

    A kill at any line, of the driver or of a task, leaves at most copies without a `Done` record: the next run finds
    them at their destinations and writes the record, even if the destinations no longer remember the producers.

    What cannot be read or written is retried at growing intervals and holds up nothing else: the local engine counts
    the tries, the Spark engine goes by the time since it was due (`mq.jobs`). A broker (local), or a broker's
    queue (Spark), is held while its log cannot be read, because it is not known which messages were acknowledged.
    `behind_ms` is the time since the oldest of all these was due.
    """
    now_ms = int(now.timestamp() * 1000)
    if spark is None:
        return state_of(conf, Reviver).run(now_ms, shards)
    return state_of(conf, TaskReviver).run(runner_of(spark), now_ms, shards)
