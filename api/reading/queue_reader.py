"""Reading a logical queue for a client: each read goes to one segment, and its answer has logical offsets.

    logical offset --segment--> partition --read--> physical offsets --+ delta--> logical offsets
         ^                                                                              |
         '-- the next segment, once the present one is read to its sealed end ----------'

Segments are read here whatever process serves their brokers. Where a queue ends follows from the metadata and from the
newest readable segment; an answer that says so is given only with the newest metadata (SPEC STATIC-13 to 15).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from deltamq.api.host.hosted_meta import HostedMeta
from deltamq.api.host.hosted_topic import GONE, HostedTopic, Topics
from deltamq.api.log.partition import Partitions
from deltamq.api.order.pull_gate import Gate
from deltamq.api.queue.moved_progress import HELD_BACK_S
from deltamq.api.reading.partition_reader import FetchQuery, PartitionReader, later, more
from deltamq.api.wire.request import Client
from deltamq.mq.meta.fold import Meta
from deltamq.mq.static.logical_queue import LogicalQueue, Segment
from deltamq.mq.static.reading import ReadPlace, next_after, place_of
from deltamq.tables.log.fences import ROUTE_FENCE
from deltamq.tables.log.fetch import Fetched, FetchStatus
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.schema import MESSAGE_SCHEMA

#: Maximum age, in seconds, of the ends of a queue that a reader between them is told; meanwhile they are followed.
_FOLLOWED_S: Final = 2.0
_NOTHING: Final = MESSAGE_SCHEMA.empty_table()
#: Answers that say where the queue ends.
_AT_THE_END: Final = (FetchStatus.NO_NEW_MESSAGE, FetchStatus.OFFSET_TOO_LARGE)


class _Looked(NamedTuple):
    """One read, and the queue as it was then."""

    found: Fetched
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
            What `TopicQueues.require` and `PartitionReader.read` raise.
        """
        if gate is not None:
            gate.check()
        deadline = self._loop.time() + query.wait_ms / 1000
        while True:
            found, queue = await self._look(topic, name, query, gate)
            if gate is not None:
                gate.check()
                if found.rows.num_rows:
                    gate.took(found.rows, queue.leader.partition)
            left_s = deadline - self._loop.time()
            if found.status is not FetchStatus.NO_NEW_MESSAGE or self._reader.stopping or left_s <= 0:
                return found
            query = replace(query, offset=found.next_offset)
            if gate is not None and gate.holds_back:
                await later(min(HELD_BACK_S, left_s), client)
            elif not await self._more(topic, queue, query.offset, left_s, client):
                return found
            self._topics.check_there(topic)

    async def look(self, topic: HostedTopic, name: str, query: FetchQuery) -> tuple[Fetched, LogicalQueue]:
        """Return what the queue has now, without waiting, and the queue as it was then."""
        found, queue = await self._look(topic, name, query, None)
        return found, queue

    async def _look(self, topic: HostedTopic, name: str, query: FetchQuery, gate: Gate | None) -> _Looked:
        """Read once without waiting; with newer metadata again, if the queue may go on where this process sees an end.

        The same if a segment's files are gone: it was dropped after its last message had expired.
        """
        while True:
            queue = self._queue(topic, name)
            try:
                found = await self._read(topic, queue, query, gate)
            except GONE:
                await self._meta.refresh()
                if self._queue(topic, name) == queue:
                    raise
                continue
            at_the_end = found.status in _AT_THE_END
            if at_the_end and self._is_behind(topic, queue):
                await self._meta.refresh()
            # If the queue is the same although it is behind, the remapping that put up the fence is not sealed yet.
            if not at_the_end or self._queue(topic, name) == queue:
                return _Looked(found, queue)

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
        """Read one segment, and return the answer in logical offsets."""
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
            found = await self._reader.look(topic.partition(segment.partition), log, query, offset)
            if found.status is FetchStatus.OFFSET_TOO_SMALL:
                continue  # retention has removed the beginning of the segment meanwhile
            if gate is not None:
                earlier = {one.partition for one in queue.segments if one.gen < segment.gen}
                found = await gate.cut(found, segment.partition, earlier)
            following = queue.after(segment) if segment.is_sealed else None
            if found.status is FetchStatus.NO_NEW_MESSAGE and following and found.next_offset >= segment.end_offset:
                # No message up to the segment's end passes the filter.
                query = replace(query, offset=following.logic_offset)
                continue
            end = segment.logical(found.max_offset) if segment is newest else await self._end(topic, newest)
            return _shown(found, queue, segment, low, end)

    async def _place(self, topic: HostedTopic, queue: LogicalQueue, offset: int) -> tuple[ReadPlace, PartitionLog]:
        """Return where to read, behind what retention has removed of a segment, and the segment's log."""
        place = place_of(queue, offset)
        while True:
            segment = place.segment
            log = await self._opened(topic, segment)
            at = max(place.offset, log.min_offset)
            following = queue.after(segment) if segment.is_sealed and at >= segment.end_offset else None
            if following is None:
                return ReadPlace(segment, at), log
            place = ReadPlace(following, following.start_offset)

    async def _opened(self, topic: HostedTopic, segment: Segment) -> PartitionLog:
        """Return the segment's log; of a sealed one all messages."""
        partition = topic.partition(segment.partition)
        log = await partition.opened()
        if segment.is_sealed and log.end_offset < segment.end_offset:
            await partition.refresh()
        return log

    async def _followed(self, topic: HostedTopic, segment: Segment) -> PartitionLog:
        """Return the segment's log with the commits of other processes, except for the last moments."""
        partition = topic.partition(segment.partition)
        log = await partition.opened()
        if self._loop.time() - partition.refreshed_at >= _FOLLOWED_S:
            await partition.refresh()
        return log

    async def _end(self, topic: HostedTopic, newest: Segment) -> int:
        """Return the end of the queue for a reader that is not there: the end of the newest readable segment."""
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
        """Wake the readers of a topic whose segments changed: what they wait for may come in another one now."""
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


def _shown(found: Fetched, queue: LogicalQueue, segment: Segment, low: int, end: int) -> Fetched:
    """Return what was found in a segment with logical offsets; `low` and `end` are those of the queue."""
    rows = found.rows
    if segment.delta and rows.num_rows:
        shifted = pc.add(rows.column("offset"), pa.scalar(segment.delta, pa.int64()))
        rows = rows.set_column(rows.schema.get_field_index("offset"), rows.schema.field("offset"), shifted)
    return Fetched(found.status, rows, next_after(queue, segment, found.next_offset), low, end)
