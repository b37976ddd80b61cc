"""Waiting delayed messages, found by their id, and the marks that cancel their delivery."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from functools import partial
from typing import Final

from deltamq.api.log.partition import Partitions
from deltamq.api.log.record_log import RecordLog
from deltamq.api.queue.delays import Delays, brokers_of
from deltamq.mq.meta.topics import Topic
from deltamq.mq.names import broker_of
from deltamq.mq.queue.delay import Cancelled, Delayed, DelayMark
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.queue.records import rows_of_delay_marks
from deltamq.tables.queue.refs import DELAY_MARKS, system_ref
from deltamq.tables.queue.waiting import WaitingIndex

_CANCELLED_KEPT: Final = 100_000


class Waiting:
    """Delayed messages of all brokers; used on the event loop. Threads build and search the indexes."""

    def __init__(self, partitions: Partitions, delays: Delays, cluster: str) -> None:
        self._partitions = partitions
        self._delays = delays
        self._cluster = cluster
        self._indexes: dict[str, tuple[WaitingIndex, asyncio.Lock]] = {}
        self._marks: dict[str, RecordLog[DelayMark]] = {}
        self._cancelled: OrderedDict[tuple[str, int], None] = OrderedDict()

    async def find(self, topic: Topic, message_id: str, now_ms: int) -> list[Delayed]:
        """Return the messages with this id that wait for `topic`, or fell due lately."""
        found = []
        for broker in sorted(brokers_of(topic)):
            log = await self._delays.partition(broker).look()
            if log is not None:
                found += await self._find(log, topic, message_id, now_ms)
        return found

    async def _find(self, log: PartitionLog, topic: Topic, message_id: str, now_ms: int) -> list[Delayed]:
        index, lock = self._indexes.setdefault(log.ref.name, (WaitingIndex(), asyncio.Lock()))
        # A request that waits for another's long search holds no thread.
        async with lock:
            return await self._partitions.run(partial(index.find, log, topic.name, topic.id, message_id, now_ms))

    async def cancel(self, message: Delayed) -> None:
        """Mark a message as cancelled; the mark is durable when this returns."""
        broker = broker_of(message.delay_partition)
        log = self._marks.get(broker)
        if log is None:
            marks = self._partitions.of(system_ref(DELAY_MARKS, self._cluster, broker))
            log = self._marks[broker] = RecordLog(marks, rows_of_delay_marks)
        mark = Cancelled(message.delay_partition, message.offset, message.message_id)
        await log.append([mark])

    def note(self, message: Delayed) -> None:
        """Remember that a message certainly is cancelled, for copies of the request that come after it fell due."""
        self._cancelled[message.delay_partition, message.offset] = None
        if len(self._cancelled) > _CANCELLED_KEPT:
            self._cancelled.popitem(last=False)

    def is_cancelled(self, message: Delayed) -> bool:
        """Whether this process remembers that the message is cancelled."""
        return (message.delay_partition, message.offset) in self._cancelled
