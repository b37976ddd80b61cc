"""The job `revive`: messages that nobody acknowledged in time are delivered again (SPEC POP-11, POP-12).

It needs no Spark session. What it matches, checkpoints with their acknowledgements, is a few thousand new records a
second against a state that it already has in memory; a Spark query would read all open checkpoints again at each of
its four runs a second, and takes longer to plan than a run may last. What it moves are ranges of Arrow columns.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

from jobs.queue.brokers import brokers_of
from jobs.queue.due_checkpoints import DueCheckpoints
from jobs.queue.revive_batch import ReviveBatch
from jobs.queue.revive_case import Outcome
from jobs.run.registry import Facts, job
from jobs.run.warehouses import warehouse_of
from mq.errors import DeltaMQError
from mq.queue_limits import JOB_BATCH_MESSAGES_MAX
from mq.revive import Due
from tables.config import Config
from tables.metadata import MetaLog
from tables.recovery import Follower
from tables.warehouse import Warehouse

__all__ = ["Reviver", "revive"]

#: How often it looks for brokers that are new, in milliseconds.
_BROKERS_EVERY_MS: Final = 5_000
_TROUBLES_SHOWN: Final = 3


class Reviver:
    """The state of the job between its runs; all of it can be rebuilt from the tables. For one thread."""

    def __init__(self, warehouse: Warehouse, conf: Config) -> None:
        self._warehouse = warehouse
        self._conf = conf
        self._meta = MetaLog(warehouse)
        self._brokers: dict[str, DueCheckpoints] = {}
        self._brokers_ms = -_BROKERS_EVERY_MS
        #: Brokers of which a log cannot be read, since when.
        self._held: dict[str, int] = {}

    def run(self, now_ms: int) -> Facts:
        """Deliver again what is due at `now_ms`; `now_ms` must have been taken before the call."""
        self._find_brokers(now_ms)
        total, troubles = Outcome(), []
        for broker, due in self._brokers.items():
            try:
                due.refresh()
                self._held.pop(broker, None)
            except DeltaMQError as error:
                # What was acknowledged there is not known: delivering it again would be worse than late.
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
        """Deliver what is due on one broker."""
        batch = ReviveBatch(
            self._warehouse,
            self._conf.warehouse.cluster,
            self._meta.meta,
            now_ms,
            lambda one: due.failures(one.checkpoint.key),
        )
        try:
            for part in _batches(taken):
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

    def _find_brokers(self, now_ms: int) -> None:
        if 0 <= now_ms - self._brokers_ms < _BROKERS_EVERY_MS:
            return
        self._brokers_ms = now_ms
        queue, cluster = self._conf.queue, self._conf.warehouse.cluster
        for broker in brokers_of(self._warehouse, self._conf):
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
    """The oldest first, and neighbours together."""
    checkpoint = due.checkpoint
    return checkpoint.revive_time_ms, checkpoint.pop.partition, checkpoint.span.start_offset


def _batches(taken: Sequence[Due]) -> Iterator[list[Due]]:
    """Cut into batches whose messages a destination's duplicate window surely remembers."""
    batch: list[Due] = []
    messages = 0
    for due in taken:
        count = due.bits.bit_count()
        if messages + count > JOB_BATCH_MESSAGES_MAX:
            yield batch
            batch, messages = [], 0
        batch.append(due)
        messages += count
    if batch:
        yield batch


_lock: Final = threading.Lock()
_revivers: Final[dict[Warehouse, Reviver]] = {}


def _reviver(conf: Config) -> Reviver:
    warehouse = warehouse_of(conf)
    with _lock:
        found = _revivers.get(warehouse)
        if found is None:
            _revivers.clear()  # those of warehouses that were closed
            found = _revivers[warehouse] = Reviver(warehouse, conf)
        return found


@job(name="revive", every_s=lambda conf: conf.jobs.revive_every_ms / 1000, needs_spark=lambda conf: False)
def revive(spark: None, conf: Config, now: datetime, shards: Sequence[str] | None = None) -> Facts:
    """Deliver again what nobody acknowledged in time, or dead-letter it after its last attempt.

    Input: the revive logs of every broker, followed from where the last run of this application ended (all of them, or
    the state tables and what follows, after a start); the metadata; the messages where they were popped.

    Output: copies in the groups' retry topics and dead letters, one commit for each destination of a batch; records
    of what retention took before (`LOST`); then `Done` records in the revive logs.

    Idempotent: `now` is taken before anything is read, and an acknowledgement that was accepted in time is in the logs
    300 ms after the revive time, when the checkpoint is looked at. Copies are requests of producers that are named
    after where the messages lie and numbered with a bit map of them, so each is stored once at its destination, whoever
    sends it because of which lease; a batch is smaller than what a destination remembers. `Done` and loss may be stored
    twice. Where its clock is ahead of the service's, messages come so much early.

    A kill at any line leaves copies without a `Done` record at most: the next run finds them at their destinations and
    writes the record, also when the job was down for longer than a destination remembers its producers.

    What cannot be read waits 10 s, 30 s, ... in its checkpoint, a destination that cannot be written 1 s, 2 s, ...; all
    else goes on. A broker whose revive log cannot be read is held until it can: nobody knows what was acknowledged
    there. `behind_ms` says how long the oldest of all those has been due.
    """
    return _reviver(conf).run(int(now.timestamp() * 1000))
