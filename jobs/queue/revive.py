"""The job `revive`: delivers messages again that were not acknowledged in time (SPEC POP-11, POP-12).

Two engines carry it out by the same rules and the same `ReviveBatch`, and may run at once:

    local   `Reviver`: follows the logs in the memory of one process, so it knows what is due without looking: the least
            delay, on one machine
    spark   `TaskReviver`: tasks look for what is due, queue by queue, in the merged table and the log behind it; they
            follow nothing: grows with the cluster, and starts cold
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from jobs.queue.batch_bounds import BOUNDS, BatchBounds
from jobs.queue.brokers import broker_shards, brokers_of
from jobs.queue.cadence import revive_every_s
from jobs.queue.due_followed import DueCheckpoints
from jobs.queue.revive_batch import ReviveBatch
from jobs.queue.revive_case import Outcome
from jobs.queue.revive_in_tasks import TaskReviver
from jobs.queue.revive_task import batches
from jobs.run import Facts, job, with_spark_engine
from jobs.tasks import run_in_tasks, warehouse_of
from mq.errors import DeltaMQError
from mq.queue import Due
from tables.config import Config
from tables.log import Warehouse
from tables.queue import Follower, MetaLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Reviver", "revive"]

T = TypeVar("T", "Reviver", TaskReviver)

#: Interval at which new brokers are looked for, in milliseconds.
_BROKERS_EVERY_MS: Final = 5_000
_TROUBLES_SHOWN: Final = 3


class Reviver:
    """The state of the job between its runs; all of it can be rebuilt from the tables. For one thread."""

    def __init__(self, warehouse: Warehouse, conf: Config, bounds: BatchBounds = BOUNDS) -> None:
        self._warehouse = warehouse
        self._conf = conf
        self._bounds = bounds
        self._meta = MetaLog(warehouse)
        self._brokers: dict[str, DueCheckpoints] = {}
        self._brokers_ms = -_BROKERS_EVERY_MS
        #: Brokers with a log that cannot be read, and since when.
        self._held: dict[str, int] = {}

    def run(self, now_ms: int, brokers: Sequence[str] | None = None) -> Facts:
        """Deliver again what is due at `now_ms`, which must have been taken before the call.

        `brokers` are the brokers that this application has; None: all.
        """
        self._find_brokers(now_ms, brokers)
        total, troubles = Outcome(), []
        for broker, due in self._brokers.items():
            try:
                due.refresh()
                self._held.pop(broker, None)
            except DeltaMQError as error:
                # What was acknowledged there is not known: to deliver it again would be worse than to deliver it late.
                self._held.setdefault(broker, now_ms)
                troubles.append(f"{broker} is held: {type(error).__name__}: {error}")
        self._meta.refresh()
        late_ms = 0
        for broker, due in self._brokers.items():
            if broker not in self._held:
                taken = sorted(due.take(now_ms), key=_order)
                if taken:
                    late_ms = max(late_ms, now_ms - taken[0].checkpoint.revive_time_ms)
                    self._deliver(due, taken, now_ms, total)
        return self._facts(total, sorted(total.troubles) + troubles, now_ms, late_ms)

    def _deliver(self, due: DueCheckpoints, taken: Sequence[Due], now_ms: int, total: Outcome) -> None:
        """Deliver again what is due on one broker."""
        batch = ReviveBatch(
            self._warehouse,
            self._conf.warehouse.cluster,
            self._meta.meta,
            now_ms,
            lambda one: due.failures(one.checkpoint.key),
            bounds=self._bounds,
        )
        try:
            for part in batches(taken, self._bounds.messages):
                outcome = batch.run(part)
                for one, at_ms in outcome.later:
                    due.again_at(one.checkpoint.key, at_ms)
                for one in outcome.settled:
                    due.settled(one.checkpoint.key)
                total.add(outcome)
        except BaseException:
            for one in taken:
                due.put_back(one.checkpoint.key, now_ms)
            raise

    def _find_brokers(self, now_ms: int, mine: Sequence[str] | None) -> None:
        if mine is not None:
            # Another application has the others now; when this one gets one back, it reads its state from the tables.
            for broker in self._brokers.keys() - set(mine):
                del self._brokers[broker]
                self._held.pop(broker, None)
        elif 0 <= now_ms - self._brokers_ms < _BROKERS_EVERY_MS:
            return
        self._brokers_ms = now_ms
        queue, cluster = self._conf.queue, self._conf.warehouse.cluster
        for broker in brokers_of(self._warehouse, self._conf) if mine is None else mine:
            if broker not in self._brokers:
                follower = Follower(self._warehouse, cluster, [broker])
                self._brokers[broker] = DueCheckpoints(follower, stay_buffer_ms=queue.stay_buffer_ms)

    def _facts(self, total: Outcome, troubles: Sequence[str], now_ms: int, late_ms: int) -> Facts:
        waiting = [at for due in self._brokers.values() if (at := due.oldest_ms()) is not None]
        waiting += self._held.values()
        facts: dict[str, int | str] = {
            "rows": total.revived + total.dead,
            "dead": total.dead,
            "lost": total.lost,
            "skipped": total.skipped,
            "late_ms": late_ms,
            "behind_ms": max(0, now_ms - min(waiting)) if waiting else 0,
            "checkpoints": sum(len(due) for due in self._brokers.values()),
        }
        if total.later:
            facts["waiting"] = len(total.later)
        if troubles:
            facts["trouble"] = "; ".join(troubles[:_TROUBLES_SHOWN])
        return facts


def _order(due: Due) -> tuple[int, str, int]:
    """Return a sort key: the oldest first, and neighbours together."""
    checkpoint = due.checkpoint
    return checkpoint.revive_time_ms, checkpoint.pop.partition, checkpoint.span.start_offset


_lock: Final = threading.Lock()
_revivers: Final[dict[tuple[Warehouse, type], Reviver | TaskReviver]] = {}


def _reviver(conf: Config, kind: type[T]) -> T:
    warehouse = warehouse_of(conf)
    with _lock:
        found = _revivers.get((warehouse, kind))
        if not isinstance(found, kind):
            for known in [one for one in _revivers if one[0] is not warehouse]:
                del _revivers[known]  # its warehouse was closed
            found = kind(warehouse, conf)
            _revivers[warehouse, kind] = found
        return found


@job(name="revive", every_s=revive_every_s, needs_spark=with_spark_engine, shards=broker_shards)
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
    the tries, the Spark engine goes by the time since it was due (`mq.jobs.tries`). A broker (local), or a queue of a
    broker (Spark), whose log cannot be read is held until it can, because what was acknowledged there is not known.
    `behind_ms` is the time since the oldest of all these was due.
    """
    now_ms = int(now.timestamp() * 1000)
    if spark is None:
        return _reviver(conf, Reviver).run(now_ms, shards)
    return _reviver(conf, TaskReviver).run(partial(run_in_tasks, spark), now_ms, shards)
