"""What groups do with messages, as this process sees it: in memory for REST, in metrics, and in logs for SQL (CONS-6).

    pop, pull --delivered--> the running minute's rows --every minute, at a stop--> log of statistics of each broker
    ack, commit, nack, dead, aside --outcome--^   '--REST: the last minutes     merge --> state/group_statistics

Counts of calls are noted at once and summed later, many at a time (`PendingCounts`): amid the other work of a call,
each small operation on columns takes several times as long as in a row of them.

A kill -9 loses the counts of the running minute, and which messages are pulled and not committed.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from deltamq.api.log.metrics import Metrics
from deltamq.api.log.partition import Partitions
from deltamq.api.log.record_log import RecordLog
from deltamq.mq.errors import DeltaMQError
from deltamq.mq.meta.topics import Topic
from deltamq.mq.queue.checkpoint import Attempts
from deltamq.mq.statistics import KEPT_MINUTES, MINUTE_MS, Consumed, MinuteKey, Minutes, Pulled, StatisticsRecord
from deltamq.tables.queue.records import rows_of_statistics
from deltamq.tables.queue.refs import STATISTICS, system_ref

log = logging.getLogger("deltamq.api")

#: Seconds between two checks whether a minute is over.
_LOOK_S: Final = 5.0
#: Seconds that a stop takes for storing at most.
_STOP_S: Final = 5.0
#: Partitions whose pulled messages are remembered; a process may see topics come and go for months.
_PULLED_MAX: Final = 10_000
#: Seconds until noted calls are summed, and the most calls: until then their rows stay in memory.
_SUM_S: Final = 0.1
_PENDING_MAX: Final = 256


class GroupStatistics:
    """The statistics of all groups; used on the event loop."""

    def __init__(
        self,
        partitions: Partitions,
        cluster: str,
        metrics: Metrics,
        *,
        process: Callable[[], str],
        now_ms: Callable[[], int],
    ) -> None:
        """`process` returns the id of this process, which is new with each start."""
        self._partitions = partitions
        self._cluster = cluster
        metrics.consumed = self.totals
        self._process = process
        self._now_ms = now_ms
        self._pending = PendingCounts()
        self._summing: asyncio.TimerHandle | None = None
        self._minutes = Minutes()
        #: By group and topic, since the process began.
        self._totals: dict[tuple[str, str], Consumed] = {}
        #: By topic id, group and partition as clients see it.
        self._pulled: dict[tuple[str, str, str], Pulled] = {}
        self._logs: dict[str, RecordLog[StatisticsRecord]] = {}
        self._flushing = asyncio.Lock()
        self._timer = partitions.loop.create_task(self._repeat())

    # What is counted.

    def delivered(self, group: str, topic: Topic, broker: str, rows: pa.Table, attempts: Attempts) -> None:
        """Count messages that a client gets, with the number of the delivery of each."""
        now_ms = self._now_ms()
        self._pending.delivered(_key(now_ms, group, topic.name, topic.id, broker), now_ms, rows, attempts)
        self._sum_soon()

    def pulled(self, group: str, topic: Topic, partition: str, broker: str, rows: pa.Table) -> None:
        """Count messages that an exclusive group's client gets; `partition` and offsets are as clients see them."""
        offsets = rows.column("offset")
        first, last = offsets[0].as_py(), offsets[-1].as_py()
        key = (topic.id, group, partition)
        pulled = self._pulled.pop(key, None) or Pulled()
        self._pulled[key] = pulled  # last: the first is then the longest without a pull
        if len(self._pulled) > _PULLED_MAX:
            del self._pulled[next(iter(self._pulled))]
        count = rows.num_rows
        again = pulled.take(first, last, count, self._now_ms())
        self.delivered(group, topic, broker, rows, (2,) * again + (1,) * (count - again))

    def handled(
        self, group: str, topic: str, topic_id: str, broker: str, delivered_ms: int, count: int, outcome: Outcome
    ) -> None:
        """Count messages that were delivered at one time and have an outcome now."""
        if count:
            now_ms = self._now_ms()
            key = _key(now_ms, group, topic, topic_id, broker)
            self._pending.handled(key, max(0, now_ms - delivered_ms), count, outcome)
            self._sum_soon()

    def committed(self, group: str, topic: Topic, partition: str, broker: str, offset: int) -> None:
        """Count messages that an exclusive group's client pulled before this offset and had not committed."""
        pulled = self._pulled.get((topic.id, group, partition))
        if pulled is not None:
            for count, delivered_ms in pulled.commit(offset):
                self.handled(group, topic.name, topic.id, broker, delivered_ms, count, Outcome.SUCCEEDED)

    def put_aside(
        self, group: str, topic: Topic, partition: str, broker: str, offsets: Collection[int], outcome: Outcome
    ) -> None:
        """Count pulled messages that failed."""
        pulled = self._pulled.get((topic.id, group, partition))
        if pulled is None:
            return
        for offset in offsets:
            share = pulled.settle(offset)
            if share is not None:
                self.handled(group, topic.name, topic.id, broker, share.delivered_ms, 1, outcome)

    def _sum_soon(self) -> None:
        if self._pending.calls >= _PENDING_MAX:
            self._sum()
        elif self._summing is None:
            self._summing = self._partitions.loop.call_later(_SUM_S, self._sum)

    def _sum(self) -> None:
        if self._summing is not None:
            self._summing.cancel()
            self._summing = None
        for key, consumed in self._pending.sums().items():
            self._minutes.add(key, consumed)
            self._totals.setdefault((key.group, key.topic), Consumed()).add(consumed)

    # Queries.

    def since(self, group: str, minutes: int) -> tuple[int, dict[str, Consumed]]:
        """Return the group's counts in whole minutes up to now, by topic, and when the first of them began.

        `minutes` counts the minutes before the running one.
        """
        assert minutes < KEPT_MINUTES, "the caller checks it"
        self._sum()
        now_ms = self._now_ms()
        first_ms = now_ms - now_ms % MINUTE_MS - minutes * MINUTE_MS
        return first_ms, self._minutes.since(first_ms, group)

    def totals(self) -> Mapping[tuple[str, str], Consumed]:
        """Return the counts since the process began, by group and topic."""
        self._sum()
        return self._totals

    # Groups, topics and brokers end.

    def forget(self, group: str) -> None:
        """Forget a group that was deleted."""
        self._sum()
        self._minutes.forget_group(group)
        for key in [key for key in self._pulled if key[1] == group]:
            del self._pulled[key]

    # Storing.

    async def flush(self, *, whole: bool = False, broker: str | None = None) -> None:
        """Store ended minutes, or all with `whole`; minutes that cannot be stored are stored later."""
        async with self._flushing:
            self._sum()
            now_ms = self._now_ms()
            taken = self._minutes.take_unsaved(now_ms, whole=whole, broker=broker)
            by_broker: dict[str, dict[MinuteKey, Consumed]] = {}
            for key, row in taken.items():
                by_broker.setdefault(key.broker, {})[key] = row
            await asyncio.gather(*(self._store(name, rows) for name, rows in by_broker.items()))
            self._minutes.forget_old(now_ms)

    async def _store(self, broker: str, rows: Mapping[MinuteKey, Consumed]) -> None:
        appender = self._logs.get(broker)
        if appender is None:
            partition = self._partitions.of(system_ref(STATISTICS, self._cluster, broker))
            appender = self._logs[broker] = RecordLog(partition, rows_of_statistics)
        records = [StatisticsRecord(key, self._process(), row) for key, row in rows.items()]
        try:
            await appender.append(records)
        except DeltaMQError as error:
            self._minutes.not_saved(rows.keys())
            log.warning("event=statistics_failed broker=%s code=%s detail=%r", broker, error.code, error.detail)
        except BaseException:
            self._minutes.not_saved(rows.keys())
            raise

    async def _repeat(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                await self.flush()
            except Exception as error:
                log.error("event=statistics_failed kind=%s", type(error).__name__, exc_info=error)

    async def stop(self) -> None:
        """Store the counts; those that cannot be stored in a few seconds are lost."""
        self._timer.cancel()
        await asyncio.gather(self._timer, return_exceptions=True)
        try:
            async with asyncio.timeout(_STOP_S):
                await self.flush(whole=True)
        except TimeoutError:
            log.error("event=statistics_lost")


def _key(now_ms: int, group: str, topic: str, topic_id: str, broker: str) -> MinuteKey:
    return MinuteKey(now_ms - now_ms % MINUTE_MS, group, topic, topic_id, broker)


class Outcome(enum.Enum):
    """What became of a delivered message, as its client reports it."""

    SUCCEEDED = "acknowledged or committed"
    FAILED = "given back, to be delivered again"
    DEAD = "sent to the dead letters"


class _Delivered(NamedTuple):
    now_ms: int
    rows: pa.Table
    attempts: Attempts


class _Handled(NamedTuple):
    took_ms: int
    messages: int
    outcome: Outcome


class PendingCounts:
    """Deliveries and outcomes that are not summed yet."""

    def __init__(self) -> None:
        self._delivered: dict[MinuteKey, list[_Delivered]] = {}
        self._handled: dict[MinuteKey, list[_Handled]] = {}
        #: Number of calls that are noted.
        self.calls = 0

    def delivered(self, key: MinuteKey, now_ms: int, rows: pa.Table, attempts: Attempts) -> None:
        """Note messages that a client gets, with the number of the delivery of each."""
        self._delivered.setdefault(key, []).append(_Delivered(now_ms, rows, attempts))
        self.calls += 1

    def handled(self, key: MinuteKey, took_ms: int, messages: int, outcome: Outcome) -> None:
        """Note messages that have an outcome `took_ms` after their delivery."""
        self._handled.setdefault(key, []).append(_Handled(took_ms, messages, outcome))
        self.calls += 1

    def sums(self) -> dict[MinuteKey, Consumed]:
        """Return the sums of the noted calls, and forget the calls."""
        sums = {key: _sum_of_delivered(noted) for key, noted in self._delivered.items()}
        for key, handled in self._handled.items():
            _add_handled(sums.setdefault(key, Consumed()), handled)
        self._delivered, self._handled, self.calls = {}, {}, 0
        return sums


def _sum_of_delivered(noted: Sequence[_Delivered]) -> Consumed:
    counts = [delivery.rows.num_rows for delivery in noted]
    now_ms = np.repeat(np.array([delivery.now_ms for delivery in noted], dtype=np.int64), counts)
    ages_ms = np.maximum(now_ms - _born_us([delivery.rows for delivery in noted]) // 1_000, 0)
    return Consumed(
        delivered=sum(counts),
        redelivered=sum(map(_again, noted)),
        age_ms=int(ages_ms.sum()),
        age_max_ms=int(ages_ms.max(initial=0)),
    )


def _again(delivery: _Delivered) -> int:
    if isinstance(delivery.attempts, int):
        return delivery.rows.num_rows if delivery.attempts > 1 else 0
    return sum(attempt > 1 for attempt in delivery.attempts)


def _born_us(tables: Sequence[pa.Table]) -> NDArray[np.int64]:
    """Return each message's time of birth, or of its append if its producer sent none."""
    chunks: list[pa.Array] = []
    for rows in tables:
        born = rows.column("born_time")
        if born.null_count:
            born = pc.coalesce(born, rows.column("append_time"))
        chunks += born.chunks
    times: NDArray[np.int64] = pa.chunked_array(chunks, born.type).to_numpy().view(np.int64)
    return times


def _add_handled(total: Consumed, noted: Sequence[_Handled]) -> None:
    for took_ms, messages, outcome in noted:
        total.handling_ms += took_ms * messages
        total.handling_max_ms = max(total.handling_max_ms, took_ms)
        if outcome is Outcome.SUCCEEDED:
            total.succeeded += messages
        elif outcome is Outcome.FAILED:
            total.failed += messages
        else:
            total.dead += messages
