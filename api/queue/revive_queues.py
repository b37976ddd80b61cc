"""Appends to the revive log: eight queues for each broker, opened on first use (SPEC POP-6).

    checkpoints of a pop --> the queue whose turn it is        acks and changes --> the queue of their checkpoint

The turn moves every second instead of with every pop, so that records that arrive together share a commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from typing import Final, NamedTuple

from deltamq.api.log.partition import Partitions
from deltamq.api.log.record_log import RecordLog
from deltamq.mq.limits import REVIVE_QUEUES
from deltamq.mq.names import broker_of
from deltamq.mq.queue.revive_log import Record
from deltamq.tables.queue.records import rows_of_records
from deltamq.tables.queue.refs import revive_ref

#: Seconds of one queue's turn: long enough that nearly all acknowledgements go to the queue of the new checkpoints.
_TURN_S: Final = 1.0


class Destined(NamedTuple):
    """A record, its partition, and the queue to which it goes."""

    partition: str
    queue: int
    record: Record


class ReviveQueues:
    """The revive logs of all brokers of this process; used on the event loop."""

    def __init__(self, partitions: Partitions, cluster: str) -> None:
        self._partitions = partitions
        self._cluster = cluster
        self._logs: dict[tuple[str, int], RecordLog[Record]] = {}
        self._queue = 0
        self._turn_ends_s = 0.0
        #: Records appended so far.
        self.records = 0

    def turn(self) -> int:
        """Return the queue for the checkpoints of a pop."""
        now_s = self._partitions.loop.time()
        if now_s >= self._turn_ends_s:
            self._queue = (self._queue + 1) % REVIVE_QUEUES
            self._turn_ends_s = now_s + _TURN_S
        return self._queue

    async def store(self, partition: str, queue: int, records: Sequence[Record]) -> None:
        """Append records about messages of a partition to a queue of its broker; they are durable when this returns.

        Raises
        ------
        DeltaMQError
            The records certainly are not stored.
        """
        broker = broker_of(partition)
        log = self._logs.get((broker, queue))
        if log is None:
            ref = revive_ref(self._cluster, queue, broker)
            log = self._logs[broker, queue] = RecordLog(self._partitions.of(ref), rows_of_records, owner_only=True)
        await log.append(records)
        self.records += len(records)

    async def store_each(self, destined: Iterable[Destined]) -> list[Exception | None]:
        """Append each record to its queue, one append per queue; return for each why it is not stored, or None."""
        destined = list(destined)
        groups: dict[tuple[str, int], list[int]] = {}
        for at, one in enumerate(destined):
            broker = broker_of(one.partition)
            groups.setdefault((broker, one.queue), []).append(at)
        appends = [
            self.store(destined[places[0]].partition, queue, [destined[at].record for at in places])
            for (_, queue), places in groups.items()
        ]
        found = [await _outcome(appends[0])] if len(appends) == 1 else await asyncio.gather(*map(_outcome, appends))
        outcomes: list[Exception | None] = [None] * len(destined)
        for places, outcome in zip(groups.values(), found, strict=True):
            for at in places:
                outcomes[at] = outcome
        return outcomes


async def _outcome(append: Awaitable[None]) -> Exception | None:
    """Run an append; return why it is not stored, or None if it is."""
    try:
        await append
    except Exception as error:
        return error
    return None
