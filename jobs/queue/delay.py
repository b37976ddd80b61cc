"""The job `delay`: delayed messages go to their targets when they are due (SPEC RETRY-4, RETRY-5).

It needs no Spark session: it knows the deliver times of all that waits, reads what is due as Arrow columns, and appends
it. A Spark query for what is due would read every waiting message's time again, four times a second.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from jobs.queue.brokers import brokers_of
from jobs.queue.delay_queue import DelayQueue
from jobs.queue.outbox import OUTBOX_BYTES_MAX, Outbox
from jobs.run.registry import Facts, job
from jobs.run.warehouses import warehouse_of
from mq.delay import PRODUCER_PREFIX, Delayed, Forward, Skip, SkipReason, decide
from mq.errors import Conflict, DeltaMQError
from mq.queue_limits import CLOCKS_APART_MS, JOB_BATCH_MESSAGES_MAX
from mq.topics import MetaState
from tables.config import Config
from tables.copies import forwarded
from tables.encode import ProducerStamp, RowsPart
from tables.log import PartitionLog
from tables.metadata import MetaLog
from tables.paths import PartitionRef, Space
from tables.picked import Picked, TooMuch, pick
from tables.stored_requests import REMEMBERED_MS, StoredRequests
from tables.warehouse import Warehouse

__all__ = ["Forwarder", "delay"]

Int64s = npt.NDArray[np.int64]

#: How often it looks for brokers that are new, in milliseconds.
_BROKERS_EVERY_MS: Final = 5_000
#: Messages that are read at once; fewer when they are large.
_READ_MESSAGES: Final = 8_192
_TROUBLES_SHOWN: Final = 3


@dataclass(slots=True)
class _Outcome:
    """What a run did; messages are counted."""

    forwarded: int = 0
    cancelled: int = 0
    #: Their topic is gone.
    dropped: int = 0
    #: Retention took them before they were forwarded.
    lost: int = 0
    late_ms: int = 0
    troubles: set[str] = field(default_factory=set)


class Forwarder:
    """The state of the job between its runs; all of it can be rebuilt from the tables. For one thread."""

    def __init__(self, warehouse: Warehouse, conf: Config) -> None:
        self._warehouse = warehouse
        self._conf = conf
        self._meta = MetaLog(warehouse)
        self._queues: dict[str, DelayQueue] = {}
        self._brokers_ms = -_BROKERS_EVERY_MS
        #: Brokers of which a log cannot be read, since when.
        self._held: dict[str, int] = {}

    def run(self, now_ms: int) -> Facts:
        """Forward what is due at `now_ms`; `now_ms` must have been taken before the call (see `mq.delay`)."""
        self._find_brokers(now_ms)
        outcome = _Outcome()
        for broker, queue in self._queues.items():
            try:
                queue.refresh()
                self._held.pop(broker, None)
            except DeltaMQError as error:
                # What was cancelled or ended there is not known.
                self._held.setdefault(broker, now_ms)
                outcome.troubles.add(f"{broker} is held: {type(error).__name__}: {error}")
        self._meta.refresh()
        for broker, queue in self._queues.items():
            if broker not in self._held:
                try:
                    self._run_queue(queue, now_ms, outcome)
                except (DeltaMQError, OSError) as error:
                    self._held[broker] = now_ms
                    outcome.troubles.add(f"{broker}: {type(error).__name__}: {error}")
        return self._facts(outcome, now_ms)

    def _find_brokers(self, now_ms: int) -> None:
        if 0 <= now_ms - self._brokers_ms < _BROKERS_EVERY_MS:
            return
        self._brokers_ms = now_ms
        for broker in brokers_of(self._warehouse, self._conf):
            if broker not in self._queues:
                self._queues[broker] = DelayQueue(self._warehouse, self._conf.warehouse.cluster, broker)

    def _run_queue(self, queue: DelayQueue, now_ms: int, outcome: _Outcome) -> None:
        times, offsets = queue.take(now_ms)
        if not len(offsets):
            return
        outcome.late_ms = max(outcome.late_ms, now_ms - int(times[0]))
        done = 0
        try:
            while done < len(offsets):
                part = slice(done, done + JOB_BATCH_MESSAGES_MAX)
                batch = _Batch(self._warehouse, queue, self._meta.state, now_ms, outcome)
                batch.run(times[part], offsets[part])
                done = part.stop
            queue.keep_up()
        except BaseException:
            queue.put_back(times[done:], offsets[done:])
            raise

    def _facts(self, outcome: _Outcome, now_ms: int) -> Facts:
        waiting = [at for queue in self._queues.values() if (at := queue.oldest_failed_ms) is not None]
        waiting += self._held.values()
        facts: dict[str, int | str] = {
            "rows": outcome.forwarded,
            "cancelled": outcome.cancelled,
            "dropped": outcome.dropped,
            "lost": outcome.lost,
            "late_ms": outcome.late_ms,
            "behind_ms": max(0, now_ms - min(waiting)) if waiting else 0,
            "waiting": sum(map(len, self._queues.values())),
        }
        if outcome.troubles:
            facts["trouble"] = "; ".join(sorted(outcome.troubles)[:_TROUBLES_SHOWN])
        return facts


class _Batch:
    """At most JOB_BATCH_MESSAGES_MAX due messages: forward them, then mark them."""

    def __init__(
        self, warehouse: Warehouse, queue: DelayQueue, topics: MetaState, now_ms: int, outcome: _Outcome
    ) -> None:
        self._warehouse = warehouse
        self._queue = queue
        self._topics = topics
        self._ids = {topic.id for topic in topics.topics.values()}
        self._now_ms = now_ms
        self._outcome = outcome
        self._outbox: Outbox[int] = Outbox(self._open, after_append="delay.after_append", confirm=self._confirm)
        self._opened: dict[PartitionRef, PartitionLog] = {}
        #: When the newest row was appended to each target when it was first asked what it holds.
        self._asked_ms: dict[PartitionRef, int] = {}
        self._sent = 0
        self._failed: set[int] = set()
        self._in_rows = StoredRequests(PRODUCER_PREFIX)

    def run(self, times: Int64s, offsets: Int64s) -> None:
        log = self._queue.log
        assert log is not None, "messages wait in it"
        at, step = 0, _READ_MESSAGES
        while at < len(offsets):
            part = offsets[at : at + step]
            try:
                picked = pick(log, np.sort(part), bytes_max=OUTBOX_BYTES_MAX if len(part) > 1 else None)
            except TooMuch:
                step = max(1, step // 2)
                continue
            self._decide(picked)
            at += len(part)
        self._send()
        failed = np.isin(offsets, np.array(sorted(self._failed), dtype=np.int64))
        self._queue.put_off(times[failed].tolist(), offsets[failed].tolist(), self._now_ms)
        self._outcome.forwarded += self._sent
        self._queue.end(offsets[~failed])
        self._keep_up()

    def _decide(self, picked: Picked) -> None:
        self._outcome.lost += len(picked.gone)
        self._outcome.troubles.update(picked.unreadable.values())
        self._failed.update(picked.unreadable)
        waiting = self._delayed(picked)
        partition = self._queue.marks.delay_partition
        cancelled = {(partition, offset) for offset in self._queue.marks.cancelled}
        targets: dict[PartitionRef, list[Forward]] = {}
        for one in decide(waiting, now_ms=self._now_ms, cancelled=cancelled, topic_ids=self._ids):
            if isinstance(one, Skip):
                self._skip(one)
            else:
                targets.setdefault(self._target(one.message), []).append(one)
        for ref, forwards in targets.items():
            fresh = self._not_stored(ref, forwards)
            if fresh:
                self._put(ref, picked, fresh)
        if self._outbox.bytes >= OUTBOX_BYTES_MAX:
            self._send()

    def _delayed(self, picked: Picked) -> list[Delayed]:
        """What waits in the rows, as the core sees it; a row that has no target waits for people."""
        rows = picked.rows
        origin = rows.column("origin")
        times = pc.fill_null(rows.column("deliver_time").cast(pa.int64()), 0)
        columns = [
            rows.column("offset"),
            rows.column("message_id"),
            times,
            pc.struct_field(origin, "topic"),
            pc.struct_field(origin, "partition"),
        ]
        found = []
        for offset, message_id, micros, place, partition in zip(*[one.to_pylist() for one in columns], strict=True):
            topic_id, slash, topic = (place or "").partition("/")
            if not slash or partition is None:
                self._outcome.troubles.add(f"{self._queue.marks.delay_partition}: offset {offset} names no target")
                self._failed.add(offset)
                continue
            found.append(
                Delayed(
                    delay_partition=self._queue.marks.delay_partition,
                    offset=offset,
                    message_id=message_id,
                    deliver_time_ms=-(-micros // 1_000),
                    topic=topic,
                    topic_id=topic_id,
                    partition=partition,
                )
            )
        return found

    def _skip(self, one: Skip) -> None:
        if one.reason is SkipReason.CANCELLED:
            self._outcome.cancelled += 1
        else:
            self._outcome.dropped += 1

    def _target(self, message: Delayed) -> PartitionRef:
        topic = self._topics.topics[message.topic]
        return PartitionRef(Space.TOPICS, topic.name, message.partition, topic.generation)

    def _not_stored(self, ref: PartitionRef, forwards: Sequence[Forward]) -> Sequence[Forward]:
        """Without those that a run forwarded long ago and could not mark: the target's memory of that is gone.

        Long is a day, or as many requests of producers as a partition remembers.
        """
        try:
            log = self._open(ref)
            log.refresh()
            self._asked_ms.setdefault(ref, log.append_ms)
            whole_ms = log.requests_whole_since_ms
            since_ms = min(one.message.deliver_time_ms for one in forwards) - CLOCKS_APART_MS
            if self._now_ms - since_ms < REMEMBERED_MS and since_ms >= whole_ms:
                return forwards
            return [one for one in forwards if one.producer_seq not in self._in_rows.of(log, one.producer_id, since_ms)]
        except (DeltaMQError, OSError) as error:
            self._outcome.troubles.add(f"{type(error).__name__}: {error}")
            self._failed.update(one.message.offset for one in forwards)
            return []

    def _confirm(self, target: PartitionLog, _: Sequence[RowsPart]) -> None:
        """Raise when the target may have forgotten what another run of this work has stored since it was asked."""
        if target.requests_whole_since_ms > self._asked_ms[target.ref]:
            raise Conflict(f"{target.ref.name} has forgotten requests since it was asked", code="overtaken")

    def _put(self, ref: PartitionRef, picked: Picked, forwards: Sequence[Forward]) -> None:
        offsets = [one.message.offset for one in forwards]
        places = picked.places(np.array(offsets, dtype=np.int64))
        rows = forwarded(picked.rows.take(pa.array(places)))
        parts = [RowsPart(1, ProducerStamp(one.producer_id, one.producer_seq, None, 1)) for one in forwards]
        self._outbox.add(ref, rows, parts, offsets)
        self._sent += len(offsets)

    def _send(self) -> None:
        for failed in self._outbox.send():
            self._outcome.troubles.add(failed.why)
            self._failed.update(failed.tokens)
            self._sent -= len(failed.tokens)

    def _open(self, ref: PartitionRef) -> PartitionLog:
        log = self._opened[ref] = self._warehouse.create(ref)
        return log

    def _keep_up(self) -> None:
        """The upkeep of targets to which perhaps nobody else writes."""
        for log in self._opened.values():
            try:
                log.maintain()
            except (DeltaMQError, OSError) as error:
                self._outcome.troubles.add(f"{type(error).__name__}: {error}")


_lock: Final = threading.Lock()
_forwarders: Final[dict[Warehouse, Forwarder]] = {}


def _forwarder(conf: Config) -> Forwarder:
    warehouse = warehouse_of(conf)
    with _lock:
        found = _forwarders.get(warehouse)
        if found is None:
            _forwarders.clear()  # those of warehouses that were closed
            found = _forwarders[warehouse] = Forwarder(warehouse, conf)
        return found


@job(name="delay", every_s=lambda conf: conf.jobs.delay_every_ms / 1000, needs_spark=lambda conf: False)
def delay(spark: None, conf: Config, now: datetime, shards: Sequence[str] | None = None) -> Facts:
    """Deliver delayed messages whose time has come.

    Input: the delay log of every broker and its marks, followed from where the last run of this application ended (from
    the first that has not ended, after a start); the topics.

    Output: the messages in their target partitions, in order of deliver time, one commit for each target of a batch;
    then a mark that they have ended. Cancelled messages and those of a topic that is gone are marked only.

    Idempotent: `now` is taken before the cancellations are read. Each message is a request of a producer that is named
    after where it waited, so its target stores it once, whoever sends it, and however often; a batch is smaller than
    what a partition remembers. An end may be marked twice.

    A kill at any line leaves messages that were delivered and have no mark at most: the next run sends them again, the
    target finds that it has them, and they are marked. A day later the target's rows are looked at for that.

    What cannot be read or written waits 1 s, 2 s, ... and delays nothing else; `behind_ms` says how long the oldest of
    those has been due. A broker whose delay log or marks cannot be read is held.
    """
    return _forwarder(conf).run(int(now.timestamp() * 1000))
