"""The job `delay`: forwards delayed messages to their targets when they are due (SPEC RETRY-4, RETRY-5).

Two engines carry it out by the same rules and the same `DelayBatch`, and may run at once:

    local   `Forwarder`: one process keeps the deliver times of all waiting messages in memory
    spark   `TaskForwarder`: a task for each delay log finds what is due by the statistics of its files, and keeps
            nothing between runs
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from deltamq.jobs.queue.batch_bounds import BOUNDS, BatchBounds
from deltamq.jobs.queue.brokers import FollowedBrokers, broker_shards, look_every_s, trouble_of
from deltamq.jobs.queue.delay_batch import DelayBatch, DelayOutcome
from deltamq.jobs.queue.delay_queue import DelayQueue
from deltamq.jobs.queue.delay_task import TaskForwarder
from deltamq.jobs.run.registry import Facts, job, with_spark_engine
from deltamq.jobs.tasks.items import runner_of
from deltamq.jobs.tasks.warehouses import state_of
from deltamq.mq.errors import DeltaMQError
from deltamq.tables.config import Config
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.queue.metadata import MetaLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Forwarder:
    """The state of the job between its runs; all of it can be rebuilt from the tables. For one thread."""

    def __init__(self, warehouse: Warehouse, conf: Config, bounds: BatchBounds = BOUNDS) -> None:
        self._warehouse = warehouse
        self._conf = conf
        self._bounds = bounds
        self._meta = MetaLog(warehouse)
        self._queues = FollowedBrokers(warehouse, conf, partial(DelayQueue, warehouse, conf.warehouse.cluster))

    def run(self, now_ms: int, brokers: Sequence[str] | None = None) -> Facts:
        """Forward what is due at `now_ms`; `now_ms` must have been taken before the call (see `mq.queue.delay`).

        `brokers` are the brokers that this application has; None: all.
        """
        outcome = DelayOutcome(troubles=set(self._queues.look(now_ms, brokers)))
        self._meta.refresh()
        for broker, queue in self._queues.readable():
            try:
                self._run_queue(queue, now_ms, outcome)
            except (DeltaMQError, OSError) as error:
                self._queues.held[broker] = now_ms
                outcome.troubles.add(f"{broker}: {type(error).__name__}: {error}")
        return {
            **outcome.counts(),
            "late_ms": outcome.late_ms,
            "behind_ms": self._queues.behind_ms(now_ms),
            "waiting": self._queues.remembered(),
            **trouble_of(outcome.troubles),
        }

    def _run_queue(self, queue: DelayQueue, now_ms: int, outcome: DelayOutcome) -> None:
        times, offsets = queue.take(now_ms)
        if not len(offsets):
            return
        outcome.late_ms = max(outcome.late_ms, now_ms - int(times[0]))
        done = 0
        try:
            while done < len(offsets):
                part = slice(done, done + self._bounds.messages)
                batch = DelayBatch(self._warehouse, queue, self._meta, now_ms, outcome, bounds=self._bounds)
                batch.run(times[part], offsets[part])
                done = part.stop
            queue.keep_up()
        except BaseException:
            queue.put_back(times[done:], offsets[done:])
            raise


@job(
    name="delay",
    every_s=lambda conf: look_every_s(conf, conf.jobs.delay_every_ms),
    needs_spark=with_spark_engine,
    shards=broker_shards,
)
def delay(spark: SparkSession | None, conf: Config, now: datetime, shards: Sequence[str] | None = None) -> Facts:
    """Deliver delayed messages whose time has come.

    Input: the delay log of every broker and its marks; the topics. The local engine follows the logs from the end of
    its last run (after a start: from the first message that is not marked as ended); a task of the Spark engine opens
    the files in which something is due.

    Output: the messages in their target partitions, in order of deliver time, one commit for each target of a batch;
    then a mark that they have ended. Cancelled messages, and those whose topic was deleted, are only marked.

    Idempotent: `now` is taken before the cancellations are read. Each message is a request of a producer that is named
    after the message's place in the delay log, so its target stores it once, whichever run sends it and however often;
    an append to a target that may have forgotten the request meanwhile is refused. An end may be marked twice.

    A kill at any line, of the driver or of a task, leaves at most delivered messages without a mark: the next run
    sends them again, the target recognizes them, and they are marked. If the target has forgotten them, after a day or
    very many requests, its rows are searched for them.

    What cannot be read or written is retried at growing intervals and delays nothing else: the local engine counts the
    tries, the Spark engine goes by the time since it was due (`mq.jobs`). `behind_ms` is the time since the
    oldest of these was due. A broker whose delay log or marks cannot be read is held: none of its messages are
    forwarded.
    """
    now_ms = int(now.timestamp() * 1000)
    if spark is None:
        return state_of(conf, Forwarder).run(now_ms, shards)
    return state_of(conf, TaskForwarder).run(runner_of(spark), now_ms, shards)
