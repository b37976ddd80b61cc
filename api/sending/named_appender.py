"""Appends to partitions and logical queues that the caller names, as Kafka's clients do (SPEC KAFKA-10).

    request --line of the partition or queue--> commit queue (for a queue, its leader's) --> offset (a logical one)
                 ^                                   | refused by a fence: read the newest metadata
                 '-----------------------------------'

No message leaves the partition or queue that is named. Its requests are stored in their order of arrival, also when a
fence refuses them or the queue is remapped (`api.sending.line`). A producer that counts its messages goes on counting
in the next segment. Earlier segments are searched first, so a repeat gets its offset there (SPEC STATIC-21).
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import NamedTuple
from weakref import WeakKeyDictionary

from msgspec.structs import replace

from deltamq.api.host.fences import AGAIN_S, FenceCauses, Sealer
from deltamq.api.host.hosted_meta import HostedMeta
from deltamq.api.host.hosted_topic import HostedTopic, Topics
from deltamq.api.log.partition import Partitions
from deltamq.api.sending.line import InLine, LineRequest, LineRows, Lines, StoredOffset, Target
from deltamq.api.sending.logical_places import unserved
from deltamq.api.wire.steps import Steps
from deltamq.mq.errors import DeltaMQError, Fenced, Unavailable
from deltamq.mq.limits import OFFSET_MAX
from deltamq.mq.meta.access import not_writable
from deltamq.mq.producer import Earlier, OutOfSequence, Part, repeat_of
from deltamq.mq.static.logical_queue import LogicalQueue
from deltamq.mq.static.queue_names import queue_name
from deltamq.mq.static.segments import UNDECIDED
from deltamq.tables.delta.stamped import ProducerStamp
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.stored_requests import REMEMBERED_MS
from deltamq.tables.queue.placement import Placement
from deltamq.tables.settings import Flush


class PartitionAppender:
    """Appends to partitions of plain topics; used on the event loop."""

    def __init__(self, topics: Topics, meta: HostedMeta, partitions: Partitions, sealer: Sealer) -> None:
        self._topics = topics
        self._causes = FenceCauses(topics, meta, partitions, sealer)
        self._lines = Lines(partitions.loop)

    def begin(
        self,
        topic: HostedTopic,
        name: str,
        rows: LineRows,
        flush: Flush,
        stamp: ProducerStamp | None,
        *,
        window_s: float,
        steps: Steps | None,
    ) -> InLine:
        """Queue the rows now, behind the rows of earlier calls; they wait for `window_s` for others (SPEC SEND-14).

        `steps` gets their commit, if the call is traced.

        Raises
        ------
        Unavailable
            `not_writable`: the partition is closed; nothing was stored.
        """
        placing = partial(_ByName, topic, name, self._topics, self._causes)
        request = LineRequest(rows, flush, stamp, window_s=window_s, steps=steps)
        return self._lines.begin((topic.topic.id, name), placing, request)


class _ByName:
    """The line of one partition."""

    def __init__(self, topic: HostedTopic, name: str, topics: Topics, causes: FenceCauses) -> None:
        self._topic = topic
        self._name = name
        self._topics = topics
        self._causes = causes

    def target(self, request: LineRequest) -> Target:
        topic, name = self._topic, self._name
        places = self._topics.placement(topic)
        if places.closed:
            access = places.closed.get(places.number_of(topic.name, name, "partition"))
            if access is not None:
                raise not_writable(f"topic {topic.name}: {name}", access)
        return Target(name, places.fence_epochs[name], topic.partition(name).queue, request.stamp)

    async def looked(self, request: LineRequest, until: float) -> Target | StoredOffset:
        return self.target(request)

    async def caught_up(self, partition: str, refused: Fenced | OutOfSequence, until: float) -> None:
        if isinstance(refused, OutOfSequence):
            raise refused  # the request before it cannot be elsewhere
        await self._causes.known_at(self._topic, partition, refused, until)


class _Sealed(NamedTuple):
    """The logs of a queue's sealed segments, by partition, as far as they may remember a request."""

    queue: LogicalQueue
    logs: dict[str, PartitionLog]


class InQueue:
    """One request in the line of a logical queue."""

    __slots__ = ("_appender", "_in_line", "_topic", "_until")

    def __init__(self, appender: QueueAppender, topic: HostedTopic, in_line: InLine, until: float) -> None:
        self._appender = appender
        self._topic = topic
        self._in_line = in_line
        self._until = until

    async def offset(self) -> int:
        """Return the logical offset of the first row; raise the error that refused the rows, or `Unknown`.

        It is -1 if the rows are stored and the queue's leader gets no logical offsets in time (STATIC-10).
        """
        return await self._appender.offset_of(self._topic, await self._in_line.stored(), self._until)


class QueueAppender:
    """Appends to queues of static topics; used on the event loop."""

    def __init__(self, topics: Topics, meta: HostedMeta, partitions: Partitions, sealer: Sealer) -> None:
        self._topics = topics
        self._meta = meta
        self._causes = FenceCauses(topics, meta, partitions, sealer)
        self._loop = partitions.loop
        self._lines = Lines(partitions.loop)
        #: The logs of sealed segments that may remember a request, by topic and queue.
        self._sealed: WeakKeyDictionary[HostedTopic, dict[int, _Sealed]] = WeakKeyDictionary()

    def begin(
        self,
        topic: HostedTopic,
        index: int,
        rows: LineRows,
        flush: Flush,
        stamp: ProducerStamp | None,
        *,
        window_s: float,
        now_ms: int,
        wait_s: float,
        steps: Steps | None,
    ) -> InQueue:
        """Queue the rows now, as `PartitionAppender.begin` does; their logical offset is waited for `wait_s` at most.

        Raises
        ------
        DeltaMQError
            `not_writable`, `queue_unserved`, or as `TopicQueues.require` raises: nothing was stored.
        """
        placing = partial(_ByIndex, self, topic, index)
        request = LineRequest(rows, flush, stamp, now_ms, window_s, steps)
        in_line = self._lines.begin((topic.topic.id, index), placing, request)
        return InQueue(self, topic, in_line, self._loop.time() + window_s + wait_s)

    # Places.

    def place(self, topic: HostedTopic, index: int) -> tuple[Placement, str]:
        """Return where messages of the queue go now; raises as `begin` does."""
        places = self._topics.placement(topic)
        assert places.queues is not None, "the topic is static"
        places.queues.require(queue_name(index), topic.name)
        number = places.names[queue_name(index)]
        if number in places.unserved:
            raise unserved(topic, f"queue {queue_name(index)}")
        access = places.closed.get(number)
        if access is not None:
            raise not_writable(f"topic {topic.name}: {queue_name(index)}", access)
        return places, places.partitions[number]

    def target(self, topic: HostedTopic, index: int, request: LineRequest) -> Target | None:
        """Return where a request goes; None if not all segments that it needs are open. Raises as `begin` does."""
        places, name = self.place(topic, index)
        stamp = request.stamp
        if stamp is not None and stamp.sequence is not None:
            earlier = self._earlier(topic, index, places, name, stamp.id)
            if earlier is None or repeat_of(stamp.sequence, request.rows.count, earlier.parts) is not None:
                return None
            stamp = replace(stamp, earlier=earlier)
        return Target(name, places.fence_epochs[name], topic.partition(name).queue, stamp)

    async def looked(self, topic: HostedTopic, index: int, request: LineRequest, until: float) -> Target | StoredOffset:
        """Find where a request goes now, or where it is stored if it repeats one in an earlier segment."""
        failures = 0
        while True:
            places, name = self.place(topic, index)
            assert places.queues is not None, "the topic is static"
            queue = places.queues.served[index]
            if request.stamp is not None and request.stamp.sequence is not None:
                if not await self._known(topic, queue, name, request.now_ms):
                    await self._again(topic, failures, until)
                    failures += 1
                    continue
                if self._topics.placement(topic) is not places:
                    continue
                repeat = self._repeat(topic, index, request)
                if repeat is not None:
                    return repeat
            target = self.target(topic, index, request)
            if target is not None:
                return target

    async def caught_up(
        self, topic: HostedTopic, partition: str, refused: Fenced | OutOfSequence, until: float
    ) -> None:
        """Read the metadata until it has the cause of the refusal; raise `Unavailable` if it does not in time."""
        if isinstance(refused, OutOfSequence):
            # The request before it may have been refused at another process, and be in the next segment.
            await self._meta.refresh()
            return
        await self._causes.known_at(topic, partition, refused, until)

    def _earlier(self, topic: HostedTopic, index: int, places: Placement, name: str, producer: str) -> Earlier | None:
        """Return a producer's requests in the segments before `name`; None if these are not all open here."""
        assert places.queues is not None, "the topic is static"
        queue = places.queues.served[index]
        segment = queue.segment_of(name)
        if segment is None or not segment.is_decided:
            return None
        before = [earlier for earlier in queue.segments if earlier.gen < segment.gen]
        if not before and not segment.gen:
            return Earlier({}, 0)
        known = self._sealed.get(topic, {}).get(index)
        if known is None or known.queue != queue:
            return None
        parts: dict[int, tuple[Part, ...]] = {}
        for log in known.logs.values():
            seen = log.known_producer(producer)
            if seen is not None:
                parts |= seen.parts
        # The requests in a removed segment are unknown.
        gone = queue.segments[0].gen > 0
        since_ms = max((log.producers_known_since_ms for log in known.logs.values()), default=0)
        return Earlier(parts, OFFSET_MAX if gone else since_ms)

    def _repeat(self, topic: HostedTopic, index: int, request: LineRequest) -> StoredOffset | None:
        """Return where a sealed segment has the request that this one repeats; None if it repeats none."""
        stamp = request.stamp
        assert stamp is not None and stamp.sequence is not None
        for name, log in self._sealed[topic][index].logs.items():
            seen = log.known_producer(stamp.id)
            part = None if seen is None else repeat_of(stamp.sequence, request.rows.count, seen.parts)
            if part is not None:
                return StoredOffset(name, part.base_offset)
        return None

    async def _known(self, topic: HostedTopic, queue: LogicalQueue, name: str, now_ms: int) -> bool:
        """Open the sealed segments that may remember a request; return whether `name` has logical offsets."""
        segment = queue.segment_of(name)
        if segment is None or not segment.is_decided:
            return False
        logs = {}
        for earlier in queue.segments:
            if earlier.gen >= segment.gen or (earlier.end_ms > 0 and now_ms - earlier.end_ms > REMEMBERED_MS):
                continue
            partition = topic.partition(earlier.partition)
            log = await partition.opened()
            if log.end_offset < earlier.end_offset:
                await partition.refresh()
                log = await partition.opened()
            logs[earlier.partition] = log
        self._sealed.setdefault(topic, {})[queue.index] = _Sealed(queue, logs)
        return True

    async def _again(self, topic: HostedTopic, failures: int, until: float) -> None:
        """Let a remapping that has begun come to its end; raise `Unavailable` if it does not in time."""
        if self._causes.is_over(until):
            raise Unavailable(
                f"topic {topic.name}: a remapped queue's old leader is not sealed yet; ask again",
                code="logic_offset_undecided",
            )
        await self._causes.sealed(topic, until)
        await self._meta.refresh()
        await asyncio.sleep(AGAIN_S.after(failures + 1) if failures else 0)

    # Logical offsets.

    async def offset_of(self, topic: HostedTopic, stored: StoredOffset, until: float) -> int:
        """Return the logical offset of a stored request, once it has one; -1 if it gets none in time."""
        partition, offset = stored
        failures = 0
        while True:
            queues = self._topics.queues(topic)
            place = None if queues is None else queues.of_partition(partition)
            if place is not None and place.segment.is_decided:
                return place.segment.logical(offset)
            if place is None or self._causes.is_over(until):
                return UNDECIDED
            try:
                await self._causes.sealed(topic, until)
                await self._meta.refresh()
            except DeltaMQError:
                return UNDECIDED
            failures += 1
            await asyncio.sleep(min(AGAIN_S.after(failures), max(0.0, until - self._loop.time())))


class _ByIndex:
    """The line of one logical queue."""

    def __init__(self, appender: QueueAppender, topic: HostedTopic, index: int) -> None:
        self._appender = appender
        self._topic = topic
        self._index = index

    def target(self, request: LineRequest) -> Target | None:
        return self._appender.target(self._topic, self._index, request)

    async def looked(self, request: LineRequest, until: float) -> Target | StoredOffset:
        return await self._appender.looked(self._topic, self._index, request, until)

    async def caught_up(self, partition: str, refused: Fenced | OutOfSequence, until: float) -> None:
        await self._appender.caught_up(self._topic, partition, refused, until)
