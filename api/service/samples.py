"""Samples of the gauges and rates of this process, kept a day in memory and stored for SQL (SPEC CONS-13).

    Gauges, counters --every 15 s--> own `History` --every 5 min, if values changed--> sys/history
                     start: the last day of sys/history --> `History` of other processes, dead ones too

A kill loses the samples that were not stored: five minutes at most, or an hour in which no value changed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Final

from deltamq.api.log.metrics import OTHER, Metrics
from deltamq.api.log.partition import Partitions
from deltamq.api.log.record_log import RecordLog
from deltamq.api.service.background import Background
from deltamq.api.service.gauges import Gauges, Sample
from deltamq.mq.errors import DeltaMQError
from deltamq.mq.history import KEPT_MS, SAMPLE_MS, History, HistoryRecord, Series, stepped
from deltamq.mq.statistics import MINUTE_MS, Consumed
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.paging import pages
from deltamq.tables.queue.records import history_of, rows_of_history
from deltamq.tables.queue.refs import HISTORY

log = logging.getLogger("deltamq.api")

#: Time between two commits while values change, and while none does.
STORE_MS: Final = 5 * MINUTE_MS
_UNCHANGED_MS: Final = 60 * MINUTE_MS
#: Seconds that a stop takes for storing at most.
_STOP_S: Final = 5.0


class Samples(Background):
    """Samples from `start` to `stop`; used on the event loop."""

    def __init__(
        self,
        gauges: Gauges,
        metrics: Metrics,
        consumed: Callable[[], Mapping[tuple[str, str], Consumed]],
        partitions: Partitions,
        *,
        process: Callable[[], str],
        now_ms: Callable[[], int],
    ) -> None:
        """`process` returns the id of this process, `consumed` its counts since it began."""
        self._gauges = gauges
        self._metrics = metrics
        self._consumed = consumed
        self._partitions = partitions
        self._process = process
        self._now_ms = now_ms
        self._own, self._others = History(), History()
        #: Counts at the last sample, and when that was.
        self._counts: dict[Series, float] = {}
        self._counted_ms = 0
        #: Up to when the samples are stored, the values then, and the offset of the next record to load.
        self._stored_ms = self._began_ms = now_ms()
        self._stored: dict[Series, float] = {}
        self._loaded_to: int | None = None
        self._log: RecordLog[HistoryRecord] | None = None

    async def stop(self) -> None:
        """End the samples; store what is not stored, if the process lived long enough for a plot to show it."""
        await super().stop()
        if self._task is not None and self._now_ms() - self._began_ms >= STORE_MS:
            try:
                async with asyncio.timeout(_STOP_S):
                    await self.store(whole=True)
            except (DeltaMQError, TimeoutError) as error:
                log.warning("event=history_not_stored kind=%s", type(error).__name__)

    async def _run(self) -> None:
        await self._guarded(self.load)
        while True:
            await asyncio.sleep((SAMPLE_MS - self._now_ms() % SAMPLE_MS) / 1_000)
            await self._guarded(self.sample)
            if self._now_ms() - self._stored_ms >= STORE_MS:
                await self._guarded(self.store)
                await self._guarded(self.load)

    async def _guarded(self, step: Callable[[], object]) -> None:
        try:
            done = step()
            if asyncio.iscoroutine(done):
                await done
        except Exception as error:
            log.error("event=history_failed kind=%s", type(error).__name__, exc_info=error)

    # Sampling.

    async def sample(self) -> None:
        """Take one sample."""
        sample, now_ms, process = await self._gauges.now(), self._now_ms(), self._process()
        for series, value in (*_gauges(sample), *self._rates(now_ms)):
            self._own.put(process, series, now_ms, value)
        self._own.forget_old(now_ms)
        self._others.forget_old(now_ms)

    def _rates(self, now_ms: int) -> Iterator[tuple[Series, float]]:
        """Yield what was counted a second since the last sample."""
        counts: dict[Series, float] = {}
        for metric, by_topic in (
            ("sent", self._metrics.produced_messages),
            ("sent_bytes", self._metrics.produced_bytes),
        ):
            counts.update({Series(metric, topic=topic): count for topic, count in by_topic.items() if topic != OTHER})
        for (group, topic), did in self._consumed().items():
            counts[Series("consumed", group, topic)] = did.succeeded
        seconds, before = (now_ms - self._counted_ms) / 1_000, self._counts
        if self._counted_ms and seconds > 0:
            yield from ((series, (count - before.get(series, 0)) / seconds) for series, count in counts.items())
        self._counts, self._counted_ms = counts, now_ms

    # Storing.

    async def store(self, *, whole: bool = False) -> None:
        """Store the minutes that have ended, with `whole` the running one, too, if values have changed."""
        now_ms, process = self._now_ms(), self._process()
        until_ms = now_ms if whole else now_ms - now_ms % MINUTE_MS
        records = self._own.records(process, self._stored_ms, until_ms)
        last = {Series(one.metric, one.group, one.topic): _last(one) for one in records}
        is_changed = any(_changes(one, self._stored) for one in records)
        if not records or not (is_changed or now_ms - self._stored_ms >= _UNCHANGED_MS):
            return
        if self._log is None:
            self._log = RecordLog(self._partitions.of(HISTORY), rows_of_history)
        await self._log.append(records)
        self._stored_ms, self._stored = until_ms, last

    async def load(self) -> None:
        """Read what other processes have stored since the last call, the first time of the last day."""
        if self._loaded_to is None and not await self._partitions.run(partial(self._is_there)):
            return
        opened = await self._partitions.of(HISTORY).opened()
        read = partial(_read, opened, self._loaded_to, (self._now_ms() - KEPT_MS) * 1_000, self._process())
        known, self._loaded_to = await self._partitions.run(read)
        self._others.add(known)

    def _is_there(self) -> bool:
        return self._partitions.warehouse.exists(HISTORY)

    # Queries.

    def own(
        self, metric: str, group: str | None, topic: str | None, from_ms: int, to_ms: int, step_ms: int
    ) -> list[tuple[Series, dict[int, float]]]:
        """Return what this process has sampled: for each step the last value in it."""
        return [
            (series, stepped(kept, from_ms, to_ms, step_ms)) for _, series, kept in self._own.of(metric, group, topic)
        ]

    def stored(
        self,
        metric: str,
        group: str | None,
        topic: str | None,
        from_ms: int,
        to_ms: int,
        step_ms: int,
        *,
        but: Collection[str],
    ) -> list[tuple[Series, dict[int, float]]]:
        """Return what other processes have stored, except the processes `but`, which have answered themselves."""
        return [
            (series, stepped(kept, from_ms, to_ms, step_ms))
            for origin, series, kept in self._others.of(metric, group, topic)
            if origin not in but
        ]


def _gauges(sample: Sample) -> Iterator[tuple[Series, float]]:
    for metric, by_reading in (("lag", sample.lag), ("oldest_s", sample.oldest_s), ("in_flight", sample.in_flight)):
        yield from ((Series(metric, group, topic), float(value)) for (group, topic), value in by_reading.items())
    for metric, by_group in (("clients", sample.clients), ("dead_letters", sample.dead_letters)):
        yield from ((Series(metric, group), float(count)) for group, count in by_group.items())
    yield Series("delayed"), float(sample.delayed)


def _last(record: HistoryRecord) -> float:
    return next(value for value in reversed(record.values) if value is not None)


def _changes(record: HistoryRecord, stored: Mapping[Series, float]) -> bool:
    """Whether a record has a value that its series did not have when it was last stored; a new series begins at 0."""
    before = stored.get(Series(record.metric, record.group, record.topic), 0.0)
    return any(value not in (None, before) for value in record.values)


def _read(log: PartitionLog, offset: int | None, since_us: int, process: str) -> tuple[History, int]:
    """Return what other processes have stored, and the offset of the next record; runs on a work thread."""
    log.refresh()
    found = History()
    offset = log.offset_at(since_us) if offset is None else max(offset, log.min_offset)
    for page in pages(log, offset):
        found.load(history_of(page.rows), but=process)
        offset = page.next_offset
    return found, offset
