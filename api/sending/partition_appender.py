"""Appends to a partition that the caller names and that no message leaves: what other protocols do.

rows of one request --queue--> commit of the partition --> offsets
                      ^ refused by a fence: read the newest metadata, and try the same partition again
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, TypeAlias

from api.host import HostedMeta, HostedTopic, Topics, passes
from api.log import Partitions, Pending, RecordRows, RequestPart, fence_not_known
from api.wire import ArrowRows
from mq.backoff import Backoff
from mq.errors import Fenced
from mq.meta import not_writable
from tables.delta import ProducerStamp
from tables.log import Appended
from tables.settings import Flush

__all__ = ["PartitionAppender", "Placed"]

_Rows: TypeAlias = ArrowRows | RecordRows[Any]
#: Seconds to wait for the cause of a fence in the metadata, as for requests whose messages may go elsewhere.
_FENCED_S: Final = 15.0
_AGAIN_S: Final = Backoff(0.005, 0.25)


class Placed:
    """Rows in the queue of a partition; `stored` waits for their commit."""

    __slots__ = ("_appender", "_name", "_part", "_topic")

    def __init__(self, appender: PartitionAppender, topic: HostedTopic, name: str, part: RequestPart) -> None:
        self._appender = appender
        self._topic = topic
        self._name = name
        self._part = part

    async def stored(self) -> Appended:
        """Return where the rows are; raise the error for which they are not stored, or `Unknown`."""
        return await self._appender.committed(self._topic, self._name, self._part)


class PartitionAppender:
    """Appends to partitions of plain topics; used on the event loop."""

    def __init__(self, topics: Topics, meta: HostedMeta, partitions: Partitions) -> None:
        self._topics = topics
        self._meta = meta
        self._partitions = partitions
        self._loop = partitions.loop

    def begin(
        self,
        topic: HostedTopic,
        name: str,
        rows: ArrowRows | RecordRows[Any],
        flush: Flush,
        stamp: ProducerStamp | None,
    ) -> Placed:
        """Queue the rows now, behind those of earlier calls.

        Raises
        ------
        Unavailable
            `not_writable`: the partition is closed; nothing was stored.
        """
        return Placed(self, topic, name, self._queued(topic, name, rows, flush, stamp))

    def _queued(
        self,
        topic: HostedTopic,
        name: str,
        rows: ArrowRows | RecordRows[Any],
        flush: Flush,
        stamp: ProducerStamp | None,
    ) -> RequestPart:
        places = self._topics.placement(topic)
        access = places.closed.get(places.number_of(topic.name, name, "partition"))
        if access is not None:
            raise not_writable(f"topic {topic.name}: {name}", access)
        part = RequestPart(rows, Pending(1, self._loop), flush, stamp=stamp, fence_epochs=places.fence_epochs[name])
        topic.partition(name).queue.put(part)
        return part

    async def committed(self, topic: HostedTopic, name: str, part: RequestPart) -> Appended:
        """Wait for the commit of a queued part; one that a fence refused is queued again."""
        until = self._loop.time() + _FENCED_S
        while True:
            await part.pending.wait()
            if isinstance(part.error, Fenced):
                await self._caught_up(topic, name, part.error, until)
                rows = part.messages
                assert isinstance(rows, ArrowRows | RecordRows), "these are what begin takes"
                part = self._queued(topic, name, rows, part.flush, part.stamp)
                continue
            if part.error is not None:
                raise part.error
            assert part.appended is not None, "a part without an error has its place"
            return part.appended

    async def _caught_up(self, topic: HostedTopic, name: str, error: Fenced, until: float) -> None:
        """Read the metadata until it has the fence; raise `Unavailable` (`fenced`) if it does not come in time."""
        failures = 0
        while True:
            await self._meta.refresh()
            if passes(self._topics.placement(topic).fence_epochs[name], error):
                return
            if self._loop.time() >= until or self._partitions.stopping:
                raise fence_not_known(name, error)
            failures += 1
            await asyncio.sleep(_AGAIN_S.after(failures))
