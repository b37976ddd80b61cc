"""Reads for a client, of a partition or a logical queue: with a filter, and waiting for new messages.

    offset ──> log.read ─filter─> rows? ── yes ──> answer
                  ^                 |no
                  '── commit ── wait until wait_ms

Rows in memory are read on the event loop, since a thread would cost more than the read; rows on disk on a work thread.
Each read of a logical queue goes to one segment, and its answer has logical offsets:

    logical offset --segment--> partition --read--> physical offsets --+ delta--> logical offsets
         ^                                                                              |
         '-- the next segment, once the present one is read to its sealed end ----------'

Segments are read here whichever process serves their brokers. The end of a queue follows from the metadata and from the
newest readable segment; an answer that names it is given only with the newest metadata (SPEC STATIC-13 to 15).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from deltamq.api.host.hosted_meta import HostedMeta
from deltamq.api.host.hosted_topic import GONE, HostedTopic, Topics
from deltamq.api.host.hosting import Hosting
from deltamq.api.log.partition import Partition, Partitions
from deltamq.api.order.pull_gate import Gate
from deltamq.api.queue.filtered_read import scan_filtered
from deltamq.api.wire.request import Client, ClientDisconnected
from deltamq.mq.meta.fold import Meta
from deltamq.mq.static.logical_queue import LogicalQueue
from deltamq.mq.static.reading import ReadStart, next_after, read_start
from deltamq.mq.static.segments import Segment
from deltamq.tables.log.fences import ROUTE_FENCE
from deltamq.tables.log.fetch import Fetched, FetchStatus
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.row_filter import MessageFilter
from deltamq.tables.schema import MESSAGE_SCHEMA
from deltamq.tables.typed_row import VALUE

#: Maximum age, in seconds, of the end offset that a reader far before the end gets; meanwhile it is followed.
_FOLLOWED_S: Final = 2.0


class FetchQuery(msgspec.Struct, frozen=True):
    """The parameters of one fetch; `filter` None takes every message, `columns` None those of every message.

    With a filter, rows have at least these.
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
        """A reader near the end may get an end offset that is `refresh_s` old."""
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
            fetched = await self.look(partition, log, query, offset)
            if gate is not None:
                fetched = await gate.cut(fetched)
                gate.check()
                if fetched.rows.num_rows:
                    gate.took(fetched.rows)
            if fetched.status is not FetchStatus.NO_NEW_MESSAGE or self.stopping:
                return fetched
            offset = fetched.next_offset
            if self._loop.time() >= deadline:
                return fetched
            if gate is not None and gate.again_s is not None:
                await later(min(gate.again_s, deadline - self._loop.time()), client)
            else:
                has_more = partial(_reaches_beyond, log, offset)
                if not await more(partition, has_more, deadline - self._loop.time(), client):
                    return fetched
            # The log of a deleted partition stays in memory and gets no appends: a reader would wait in vain.
            partition.check_there()

    async def look(self, partition: Partition, log: PartitionLog, query: FetchQuery, offset: int) -> Fetched:
        """Read once without waiting, after `bring_up` has refreshed the log."""
        await self.bring_up(partition, log, query, offset)
        if query.filter is not None or log.has_invalid(offset, offset + query.max_messages):
            return await self._partitions.run(partial(_filtered, log, query.filter, query, offset))
        work = partial(
            log.read, offset, max_messages=query.max_messages, max_bytes=query.max_bytes, columns=query.columns
        )
        return work() if log.in_memory(offset, query.max_messages) else await self._partitions.run(work)

    async def bring_up(self, partition: Partition, log: PartitionLog, query: FetchQuery, offset: int) -> None:
        """See other processes' commits before the answer says where the log ends.

        Jobs append to any partition, and so do processes that serve other brokers. A reader near the end waits for a
        refresh, so that it gets the newest messages. A reader far from the end gets a recent end without waiting.
        """
        now, end = self._loop.time(), log.end_offset
        age_s = now - partition.refreshed_at
        if offset >= end:
            # Beyond the end: the client must have this offset from a process that is ahead of this one.
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


def _filtered(log: PartitionLog, wanted: MessageFilter | None, query: FetchQuery, offset: int) -> Fetched:
    """Return rows that pass the filter; the other rows count as consumed (SPEC CONS-3, CONS-9)."""
    columns = query.columns if query.columns is not None and VALUE in query.columns else None
    scanned = scan_filtered(
        log, offset, wanted, max_messages=query.max_messages, max_bytes=query.max_bytes, columns=columns
    )
    last = scanned.last
    assert last is not None, "a scan without a limit reads"
    if last.status is not FetchStatus.FOUND:
        return last
    kept = last.rows.slice(0, 0) if scanned.kept is None else scanned.kept
    next_offset = scanned.reached if scanned.rest is None else scanned.rest
    return Fetched(FetchStatus.FOUND, kept, next_offset, last.min_offset, last.max_offset)


async def later(wait_s: float, client: Client) -> None:
    """Wait for `wait_s`, for an event elsewhere to unblock the reader. A client that goes away ends the wait."""
    await asyncio.wait({client.gone}, timeout=wait_s)
    if client.gone.done():
        raise ClientDisconnected


async def more(partition: Partition, has_more: Callable[[], bool], timeout_s: float, client: Client) -> bool:
    """Wait until the partition wakes its readers; return False after `timeout_s`. A client that goes ends the wait.

    It does not wait if `has_more()`: messages may have come since the reader looked.
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


_NOTHING: Final = MESSAGE_SCHEMA.empty_table()
#: Statuses of answers that say where the queue ends.
_AT_THE_END: Final = (FetchStatus.NO_NEW_MESSAGE, FetchStatus.OFFSET_TOO_LARGE)


class _Looked(NamedTuple):
    """One read, and the queue as it was then."""

    fetched: Fetched
    queue: LogicalQueue


class QueueReader:
    """Reads logical queues for clients; used on the event loop."""

    def __init__(self, reader: PartitionReader, topics: Topics, meta: HostedMeta, partitions: Partitions) -> None:
        self._reader = reader
        self._topics = topics
        self._meta = meta
        self._partitions = partitions
        self._loop = partitions.loop
        meta.follow(self._follow)

    @property
    def stopping(self) -> bool:
        """Whether the service stops, so that no reader waits any longer."""
        return self._reader.stopping

    async def read(
        self, topic: HostedTopic, name: str, query: FetchQuery, client: Client, gate: Gate | None = None
    ) -> Fetched:
        """Read the queue from the logical offset `query.offset` on, as `PartitionReader.read` does a partition.

        Raises
        ------
        DeltaMQError
            As `TopicQueues.require` and `PartitionReader.read` raise.
        """
        if gate is not None:
            gate.check()
        deadline = self._loop.time() + query.wait_ms / 1000
        while True:
            fetched, queue = await self._look(topic, name, query, gate)
            if gate is not None:
                gate.check()
                if fetched.rows.num_rows:
                    gate.took(fetched.rows, queue.leader.partition)
            left_s = deadline - self._loop.time()
            if fetched.status is not FetchStatus.NO_NEW_MESSAGE or self._reader.stopping or left_s <= 0:
                return fetched
            query = replace(query, offset=fetched.next_offset)
            if gate is not None and gate.again_s is not None:
                await later(min(gate.again_s, left_s), client)
            elif not await self._more(topic, queue, query.offset, left_s, client):
                return fetched
            self._topics.check_there(topic)

    async def look(self, topic: HostedTopic, name: str, query: FetchQuery) -> tuple[Fetched, LogicalQueue]:
        """Return the queue's messages now, without waiting, and the queue as it was then."""
        return await self._look(topic, name, query, None)

    async def _look(self, topic: HostedTopic, name: str, query: FetchQuery, gate: Gate | None) -> _Looked:
        """Read once without waiting; with newer metadata again, if the queue may go on where this process sees an end.

        Do the same if a segment's files are gone: it was dropped after its last message had expired.
        """
        while True:
            queue = self._queue(topic, name)
            try:
                fetched = await self._read(topic, queue, query, gate)
            except GONE:
                await self._meta.refresh()
                if self._queue(topic, name) == queue:
                    raise
                continue
            at_the_end = fetched.status in _AT_THE_END
            if at_the_end and self._is_behind(topic, queue):
                await self._meta.refresh()
            # If the queue is the same although it is behind, the remapping that put up the fence is not sealed yet.
            if not at_the_end or self._queue(topic, name) == queue:
                return _Looked(fetched, queue)

    def _queue(self, topic: HostedTopic, name: str) -> LogicalQueue:
        queues = self._topics.queues(topic)
        assert queues is not None, "the topic is static"
        return queues.require(name, topic.name)

    def _is_behind(self, topic: HostedTopic, queue: LogicalQueue) -> bool:
        """Whether the newest readable segment is closed already, and this process does not know at which end."""
        newest = queue.newest_readable
        log = topic.partition(newest.partition).log
        if newest.is_sealed or log is None:
            return False
        known = self._meta.now.moved_keys(topic.topic.id).sealed_up_to(newest.partition)
        return log.fences.get(ROUTE_FENCE, 0) > known

    async def _read(self, topic: HostedTopic, queue: LogicalQueue, query: FetchQuery, gate: Gate | None) -> Fetched:
        first, newest = queue.readable[0], queue.newest_readable
        while True:
            low = first.logical((await self._followed(topic, first)).min_offset)
            if query.offset < low and queue.segment_at(query.offset) is first:
                end = await self._end(topic, newest)
                return Fetched(FetchStatus.OFFSET_TOO_SMALL, _NOTHING, low, low, end)
            (segment, offset), log = await self._place(topic, queue, query.offset)
            if segment.is_sealed and offset >= segment.end_offset:  # the leader has no logical offsets yet
                end = segment.logic_end
                status = _AT_THE_END[query.offset > end]
                return Fetched(status, _NOTHING, end, low, end)
            self._topics.check_readable(topic, segment.partition, queue.name)
            fetched = await self._reader.look(topic.partition(segment.partition), log, query, offset)
            if fetched.status is FetchStatus.OFFSET_TOO_SMALL:
                continue  # retention has removed the beginning of the segment meanwhile
            if gate is not None:
                earlier = {before.partition for before in queue.segments if before.gen < segment.gen}
                fetched = await gate.cut(fetched, segment.partition, earlier)
            following = queue.after(segment) if segment.is_sealed else None
            if fetched.status is FetchStatus.NO_NEW_MESSAGE and following and fetched.next_offset >= segment.end_offset:
                # No message up to the segment's end passes the filter.
                query = replace(query, offset=following.logic_offset)
                continue
            end = segment.logical(fetched.max_offset) if segment is newest else await self._end(topic, newest)
            return _shown(fetched, queue, segment, low, end)

    async def _place(self, topic: HostedTopic, queue: LogicalQueue, offset: int) -> tuple[ReadStart, PartitionLog]:
        """Return where to read, behind the removed messages of a segment, and the segment's log."""
        place = read_start(queue, offset)
        while True:
            segment = place.segment
            log = await self._opened(topic, segment)
            at = max(place.offset, log.min_offset)
            following = queue.after(segment) if segment.is_sealed and at >= segment.end_offset else None
            if following is None:
                return ReadStart(segment, at), log
            place = ReadStart(following, following.start_offset)

    async def _opened(self, topic: HostedTopic, segment: Segment) -> PartitionLog:
        """Return the segment's log; a sealed one with all messages."""
        partition = topic.partition(segment.partition)
        log = await partition.opened()
        if segment.is_sealed and log.end_offset < segment.end_offset:
            await partition.refresh()
        return log

    async def _followed(self, topic: HostedTopic, segment: Segment) -> PartitionLog:
        """Return the segment's log with other processes' commits up to `_FOLLOWED_S` ago."""
        partition = topic.partition(segment.partition)
        log = await partition.opened()
        if self._loop.time() - partition.refreshed_at >= _FOLLOWED_S:
            await partition.refresh()
        return log

    async def _end(self, topic: HostedTopic, newest: Segment) -> int:
        """Return the end of the queue for a reader in an older segment: the end of the newest readable one."""
        if newest.is_sealed:
            return newest.logic_end
        return newest.logical((await self._followed(topic, newest)).end_offset)

    async def _more(
        self, topic: HostedTopic, queue: LogicalQueue, offset: int, timeout_s: float, client: Client
    ) -> bool:
        """Wait for a commit in the newest readable segment, or for a seal or remapping; return False if none comes."""
        newest = queue.newest_readable
        partition = topic.partition(newest.partition)
        queues = self._topics.queues(topic)

        def has_more() -> bool:
            log = partition.log
            is_appended = not newest.is_sealed and log is not None and newest.logical(log.end_offset) > offset
            return is_appended or queues is None or queues.find(queue.name) != queue

        return await more(partition, has_more, timeout_s, client)

    def _follow(self, before: Meta, after: Meta) -> None:
        """Wake the readers of a topic whose segments changed: their messages may now come in another one."""
        if before.static is after.static:
            return
        changed = {
            topic.name
            for topic in after.topics.topics.values()
            if topic.static is not None and before.mappings(topic.id) is not after.mappings(topic.id)
        }
        for partition in list(self._partitions.awaited) if changed else ():
            if partition.topic in changed:
                partition.wake()


def _shown(fetched: Fetched, queue: LogicalQueue, segment: Segment, low: int, end: int) -> Fetched:
    """Return a read of a segment in logical offsets; `low` and `end` are the queue's."""
    rows = fetched.rows
    if segment.delta and rows.num_rows:
        shifted = pc.add(rows.column("offset"), pa.scalar(segment.delta, pa.int64()))
        rows = rows.set_column(rows.schema.get_field_index("offset"), rows.schema.field("offset"), shifted)
    return Fetched(fetched.status, rows, next_after(queue, segment, fetched.next_offset), low, end)
