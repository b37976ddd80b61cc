"""Appends to logical queues that the caller names by number: what Kafka clients do with static topics (SPEC KAFKA-10).

    request --line of the queue--> leader's commit queue --> logical offset
                 ^                      | refused by a fence: the queue has moved, so read the newest metadata
                 '----------------------'

Requests of one queue are stored in the order in which they came, across a remapping, too: while one looks for its place
anew, those behind it wait. A producer that counts its messages goes on counting in the next segment. What it has stored
in earlier ones is looked at first, so a repeat is answered with its place there (SPEC STATIC-21).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

from api.host import HostedMeta, HostedTopic, Sealer, Topics, passes
from api.log import Partitions, Pending, RecordRows, RequestPart, fence_not_known
from api.sending.logical_places import unserved
from api.wire import ArrowRows
from mq.backoff import Backoff
from mq.errors import DeltaMQError, Fenced, Unavailable
from mq.limits import OFFSET_MAX
from mq.meta import not_writable
from mq.producer import Part
from mq.sequences import Earlier, OutOfSequence, repeat_of
from mq.static import UNDECIDED, LogicalQueue, queue_name
from tables.delta import ProducerStamp
from tables.log import REMEMBERED_MS, PartitionLog
from tables.queue import Placement
from tables.settings import Flush

__all__ = ["QueueAppender"]

#: Seconds to wait for the cause of a fence in the metadata, and for the end of the segment before.
_FENCED_S: Final = 15.0
_AGAIN_S: Final = Backoff(0.005, 0.25)


_Rows: TypeAlias = ArrowRows | RecordRows[Any]


class _Request(NamedTuple):
    """What one request appends."""

    rows: _Rows
    flush: Flush
    stamp: ProducerStamp | None
    now_ms: int


class _Stored(NamedTuple):
    """Where a request is: the physical partition and offset."""

    partition: str
    offset: int


class _Sealed(NamedTuple):
    """The logs of a queue's sealed segments, by partition, as far as they may remember a request."""

    queue: LogicalQueue
    logs: dict[str, PartitionLog]


@dataclass(slots=True)
class _Line:
    """The requests of one queue that are not stored yet."""

    #: Done when the last one is stored or has failed.
    last: asyncio.Future[_Stored] | None = None
    #: How many of them look for their place anew: nobody may overtake them.
    looking: int = 0


@dataclass(slots=True)
class _Turn:
    """One request's place in its line, behind an earlier one."""

    line: _Line
    earlier: asyncio.Future[_Stored] | None
    is_looking: bool = False

    def look(self) -> None:
        """Let those behind wait from now on."""
        self.line.looking += not self.is_looking
        self.is_looking = True


class QueueAppender:
    """Appends to queues of static topics; used on the event loop."""

    def __init__(self, topics: Topics, meta: HostedMeta, partitions: Partitions, sealer: Sealer) -> None:
        self._topics = topics
        self._meta = meta
        self._partitions = partitions
        self._sealer = sealer
        self._loop = partitions.loop
        self._lines: dict[tuple[str, int], _Line] = {}
        #: The logs of sealed segments that may remember a request, by topic and queue; for the queue's present chain.
        self._sealed: WeakKeyDictionary[HostedTopic, dict[int, _Sealed]] = WeakKeyDictionary()

    def begin(
        self,
        topic: HostedTopic,
        index: int,
        rows: _Rows,
        flush: Flush,
        stamp: ProducerStamp | None,
        *,
        now_ms: int,
        wait_s: float,
    ) -> Awaitable[int]:
        """Queue the rows now, behind those of earlier calls; return what waits for the logical offset of the first one.

        It is -1 if the rows are stored, and the queue's leader has no logical offsets after `wait_s` yet (STATIC-10).

        Raises
        ------
        DeltaMQError
            `not_writable`, `queue_unserved`, or what `TopicQueues.require` raises: nothing was stored.
        """
        request = _Request(rows, flush, stamp, now_ms)
        places, name = self._place(topic, index)
        key = (topic.topic.id, index)
        line = self._lines.get(key) or _Line()
        part = None if line.looking else self._queued_now(topic, index, places, name, request)
        earlier, self._lines[key] = line.last, line
        turn = _Turn(line, earlier)
        if part is None:
            turn.look()
        storing = asyncio.ensure_future(self._stored(topic, index, request, (name, part), turn))
        line.last = storing
        storing.add_done_callback(partial(self._settled, key, turn))
        return self._told(topic, storing, wait_s)

    def _place(self, topic: HostedTopic, index: int) -> tuple[Placement, str]:
        """Return where messages of the queue go now."""
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

    # Storing.

    def _queued_now(
        self, topic: HostedTopic, index: int, places: Placement, name: str, request: _Request
    ) -> RequestPart | None:
        """Queue the request if all that it needs is known; None if not."""
        stamp = request.stamp
        if stamp is not None and stamp.sequence is not None:
            earlier = self._earlier(topic, index, places, name, stamp.id)
            if earlier is None or repeat_of(stamp.sequence, request.rows.count, earlier.parts) is not None:
                return None
            stamp = replace(stamp, earlier=earlier)
        part = RequestPart(
            request.rows, Pending(1, self._loop), request.flush, stamp=stamp, fence_epochs=places.fence_epochs[name]
        )
        topic.partition(name).queue.put(part)
        return part

    def _earlier(self, topic: HostedTopic, index: int, places: Placement, name: str, producer: str) -> Earlier | None:
        """Return what the segments before `name` remember of a producer; None if that is not known here yet."""
        assert places.queues is not None, "the topic is static"
        queue = places.queues.served[index]
        segment = queue.segment_of(name)
        if segment is None or not segment.is_decided:
            return None
        before = [one for one in queue.segments if one.gen < segment.gen]
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
        # Of a segment that is gone, nobody knows what it remembered.
        gone = queue.segments[0].gen > 0
        since_ms = max((log.producers_known_since_ms for log in known.logs.values()), default=0)
        return Earlier(parts, OFFSET_MAX if gone else since_ms)

    def _settled(self, key: tuple[str, int], turn: _Turn, storing: asyncio.Future[_Stored]) -> None:
        """Let those behind a request go on."""
        turn.line.looking -= turn.is_looking
        if turn.line.last is storing and self._lines.get(key) is turn.line:
            del self._lines[key]

    async def _stored(
        self, topic: HostedTopic, index: int, request: _Request, queued: tuple[str, RequestPart | None], turn: _Turn
    ) -> _Stored:
        """Return where the request is, once it is stored."""
        name, part = queued
        until = self._loop.time() + _FENCED_S
        while True:
            if part is None:
                if turn.earlier is not None:
                    await asyncio.wait({turn.earlier})
                found = await self._looked(topic, index, request, until)
                if isinstance(found, _Stored):
                    return found
                name, part = found
            await part.pending.wait()
            if isinstance(part.error, Fenced):
                turn.look()
                await self._caught_up(topic, name, part.error, until)
                part = None
                continue
            if isinstance(part.error, OutOfSequence) and not turn.is_looking:
                # What comes before it was refused by a fence, and goes to the next segment, too.
                turn.look()
                await self._meta.refresh()
                part = None
                continue
            if part.error is not None:
                raise part.error
            assert part.appended is not None, "a part without an error has its place"
            return _Stored(name, part.appended.base_offset)

    async def _looked(
        self, topic: HostedTopic, index: int, request: _Request, until: float
    ) -> _Stored | tuple[str, RequestPart]:
        """Queue the request where it goes now; return its place if it is a repeat of one in an earlier segment."""
        failures = 0
        while True:
            places, name = self._place(topic, index)
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
            part = self._queued_now(topic, index, places, name, request)
            if part is not None:
                return name, part

    def _repeat(self, topic: HostedTopic, index: int, request: _Request) -> _Stored | None:
        """Return the place of the request that this one repeats, in a sealed segment."""
        stamp = request.stamp
        assert stamp is not None and stamp.sequence is not None
        for name, log in self._sealed[topic][index].logs.items():
            seen = log.known_producer(stamp.id)
            found = None if seen is None else repeat_of(stamp.sequence, request.rows.count, seen.parts)
            if found is not None:
                return _Stored(name, found.base_offset)
        return None

    async def _known(self, topic: HostedTopic, queue: LogicalQueue, name: str, now_ms: int) -> bool:
        """Open the sealed segments that may remember a request; return whether `name` has its logical offsets."""
        segment = queue.segment_of(name)
        if segment is None or not segment.is_decided:
            return False
        logs = {}
        for one in queue.segments:
            if one.gen >= segment.gen or (one.end_ms > 0 and now_ms - one.end_ms > REMEMBERED_MS):
                continue
            partition = topic.partition(one.partition)
            log = await partition.opened()
            if log.end_offset < one.end_offset:
                await partition.refresh()
                log = await partition.opened()
            logs[one.partition] = log
        self._sealed.setdefault(topic, {})[queue.index] = _Sealed(queue, logs)
        return True

    async def _again(self, topic: HostedTopic, failures: int, until: float) -> None:
        """Let a remapping that has begun come to its end; raise `Unavailable` if it does not in time."""
        if self._loop.time() >= until or self._partitions.stopping:
            raise Unavailable(
                f"topic {topic.name}: a remapped queue's old leader is not sealed yet; ask again",
                code="logic_offset_undecided",
            )
        await self._sealed_soon(topic, until)
        await self._meta.refresh()
        await asyncio.sleep(_AGAIN_S.after(failures + 1) if failures else 0)

    async def _sealed_soon(self, topic: HostedTopic, until: float) -> None:
        """Seal what waits in the topic, and wait for it until then; it goes on without us."""
        sealing = asyncio.ensure_future(self._sealer.seal(topic))
        await asyncio.wait({sealing}, timeout=max(0.0, until - self._loop.time()))

    async def _caught_up(self, topic: HostedTopic, name: str, error: Fenced, until: float) -> None:
        """Read the metadata until it has the fence; raise `Unavailable` (`fenced`) if it does not come in time."""
        failures = 0
        while True:
            await self._meta.refresh()
            if passes(self._topics.placement(topic).fence_epochs[name], error):
                return
            if self._loop.time() >= until or self._partitions.stopping:
                raise fence_not_known(name, error)
            await self._sealed_soon(topic, until)
            failures += 1
            await asyncio.sleep(_AGAIN_S.after(failures))

    # Logical offsets.

    async def _told(self, topic: HostedTopic, storing: Awaitable[_Stored], wait_s: float) -> int:
        """Return the logical offset of what is stored, once it has one; -1 if it does not get one in time."""
        partition, offset = await storing
        until = self._loop.time() + wait_s
        failures = 0
        while True:
            queues = self._topics.queues(topic)
            place = None if queues is None else queues.of_partition(partition)
            if place is not None and place.segment.is_decided:
                return place.segment.logical(offset)
            if place is None or self._loop.time() >= until or self._partitions.stopping:
                return UNDECIDED
            try:
                await self._sealed_soon(topic, until)
                await self._meta.refresh()
            except DeltaMQError:
                return UNDECIDED
            failures += 1
            await asyncio.sleep(min(_AGAIN_S.after(failures), max(0.0, until - self._loop.time())))
