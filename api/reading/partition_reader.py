"""Reading a partition for a client: with a filter, and waiting for messages that are not there yet.

    offset ──> log.read ─filter─> rows? ── yes ──> answer
                  ^                 |no
                  '── commit ── wait until wait_ms

Rows in memory are read on the event loop, since a thread would cost more than the read; rows on disk on a work thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from deltamq.api.host.hosting import Hosting
from deltamq.api.log.partition import Partition, Partitions
from deltamq.api.order.pull_gate import Gate
from deltamq.api.queue.filtered_read import scan_filtered
from deltamq.api.queue.moved_progress import HELD_BACK_S
from deltamq.api.wire.request import Client, ClientDisconnected
from deltamq.tables.log.fetch import Fetched, FetchStatus
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.row_filter import MessageFilter

#: Maximum age, in seconds, of the end offset that a reader far before the end is told; meanwhile it is followed.
_FOLLOWED_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class FetchQuery:
    """The parameters of one fetch; `filter` None takes every message, `columns` None all columns.

    With a filter, rows have all columns.
    """

    offset: int
    max_messages: int
    max_bytes: int
    wait_ms: int
    filter: MessageFilter | None
    columns: tuple[str, ...] | None = None


class PartitionReader:
    """Reads partitions for clients; used on the event loop."""

    def __init__(self, partitions: Partitions, hosting: Hosting, *, refresh_s: float) -> None:
        """A reader near the end may be told an end offset that is `refresh_s` old."""
        self._partitions = partitions
        self._hosting = hosting
        self._refresh_s = refresh_s
        self._loop = partitions.loop

    @property
    def stopping(self) -> bool:
        """Whether the service stops, so that no reader waits any longer."""
        return self._partitions.stopping

    async def read(
        self,
        partition: Partition,
        query: FetchQuery,
        client: Client,
        gate: Gate | None = None,
        *,
        check: Callable[[], None],
    ) -> Fetched:
        """Read the partition from `query.offset` on, waiting up to `query.wait_ms` for the first message.

        `gate` is checked before the first read and after each one, before its messages may be sent. `check` raises if
        the partition may not be read now; the gate comes first, so that a group's client keeps its lock.
        """
        if gate is not None:
            gate.check()
        log = await partition.opened()
        deadline = self._loop.time() + query.wait_ms / 1000
        offset = query.offset
        while True:
            check()
            found = await self.look(partition, log, query, offset)
            if gate is not None:
                found = await gate.cut(found)
                gate.check()
                if found.rows.num_rows:
                    gate.took(found.rows)
            if found.status is not FetchStatus.NO_NEW_MESSAGE or self.stopping:
                return found
            offset = found.next_offset
            if self._loop.time() >= deadline:
                return found
            if gate is not None and gate.holds_back:
                await later(min(HELD_BACK_S, deadline - self._loop.time()), client)
            else:
                has_more = partial(_reaches_beyond, log, offset)
                if not await more(partition, has_more, deadline - self._loop.time(), client):
                    return found
            # The log in memory would be read on and on; nobody appends to it any more.
            partition.check_there()

    async def look(self, partition: Partition, log: PartitionLog, query: FetchQuery, offset: int) -> Fetched:
        """Read once without waiting, after `_brought_up` has refreshed the log."""
        await self._brought_up(partition, log, query, offset)
        if query.filter is not None:
            return await self._partitions.run(partial(_filtered, log, query.filter, query, offset))
        work = partial(
            log.read, offset, max_messages=query.max_messages, max_bytes=query.max_bytes, columns=query.columns
        )
        return work() if log.in_memory(offset, query.max_messages) else await self._partitions.run(work)

    async def _brought_up(self, partition: Partition, log: PartitionLog, query: FetchQuery, offset: int) -> None:
        """See other processes' commits before the answer says where the log ends.

        Jobs append to any partition, and so do processes that serve other brokers. A reader near the end waits for a
        refresh, so that it gets the newest messages. A reader far from the end is told a recent end without waiting.
        """
        now, end = self._loop.time(), log.end_offset
        age_s = now - partition.refreshed_at
        if offset >= end:
            # Beyond the end: another process that is ahead of this one must have told the client this offset.
            is_due = offset > end or not self._hosting.alone or age_s >= self._refresh_s
        elif query.filter is not None or offset + query.max_messages >= end:
            is_due = age_s >= self._refresh_s
        else:
            partition.follow(now + _FOLLOWED_S)
            is_due = age_s >= _FOLLOWED_S
        if is_due:
            await partition.refresh()


def _reaches_beyond(log: PartitionLog, offset: int) -> bool:
    return log.end_offset > offset


def _filtered(log: PartitionLog, wanted: MessageFilter, query: FetchQuery, offset: int) -> Fetched:
    """Return rows that pass the filter; rows that are passed over count as consumed (SPEC CONS-3, CONS-9)."""
    scanned = scan_filtered(log, offset, wanted, max_messages=query.max_messages, max_bytes=query.max_bytes)
    found = scanned.last
    assert found is not None, "a scan without a limit reads"
    if found.status is not FetchStatus.FOUND:
        return found
    kept = found.rows.slice(0, 0) if scanned.kept is None else scanned.kept
    next_offset = scanned.reached if scanned.rest is None else scanned.rest
    return Fetched(FetchStatus.FOUND, kept, next_offset, found.min_offset, found.max_offset)


async def later(wait_s: float, client: Client) -> None:
    """Wait for `wait_s`, for an event elsewhere to unblock the reader. A client that goes away ends the wait."""
    await asyncio.wait({client.gone}, timeout=wait_s)
    if client.gone.done():
        raise ClientDisconnected


async def more(partition: Partition, has_more: Callable[[], bool], timeout_s: float, client: Client) -> bool:
    """Wait until the partition wakes its readers; return False after `timeout_s`. A client that goes ends the wait.

    It does not wait if `has_more()`: what a reader waits for may have come since it looked.
    """
    waiter = partition.waiter()
    if has_more():
        partition.forget(waiter)
        return True
    try:
        await asyncio.wait({waiter, client.gone}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        partition.forget(waiter)
    if client.gone.done():
        raise ClientDisconnected
    return waiter.done()
