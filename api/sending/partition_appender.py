"""Appends to a partition that the caller names and that no message leaves: what other protocols do.

    rows of one request --line of the partition--> commit --> offsets

Requests of one partition are stored in the order in which they came, also when a fence refuses them
(`api.sending.line`).
"""

from __future__ import annotations

from functools import partial

from deltamq.api.host.hosted_meta import HostedMeta
from deltamq.api.host.hosted_topic import HostedTopic, Topics
from deltamq.api.host.sealing import Sealer
from deltamq.api.log.partition import Partitions
from deltamq.api.sending.fence_causes import FenceCauses
from deltamq.api.sending.line import InLine, LineRequest, LineRows, Lines, StoredPlace, Target
from deltamq.mq.errors import Fenced
from deltamq.mq.meta.access import not_writable
from deltamq.mq.producer import OutOfSequence
from deltamq.tables.delta.stamped import ProducerStamp
from deltamq.tables.settings import Flush


class PartitionAppender:
    """Appends to partitions of plain topics; used on the event loop."""

    def __init__(self, topics: Topics, meta: HostedMeta, partitions: Partitions, sealer: Sealer) -> None:
        self._topics = topics
        self._causes = FenceCauses(topics, meta, partitions, sealer)
        self._lines = Lines(partitions.loop)

    def begin(self, topic: HostedTopic, name: str, rows: LineRows, flush: Flush, stamp: ProducerStamp | None) -> InLine:
        """Queue the rows now, behind those of earlier calls.

        Raises
        ------
        Unavailable
            `not_writable`: the partition is closed; nothing was stored.
        """
        placing = partial(_ByName, topic, name, self._topics, self._causes)
        return self._lines.begin((topic.topic.id, name), placing, LineRequest(rows, flush, stamp))


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

    async def looked(self, request: LineRequest, until: float) -> Target | StoredPlace:
        return self.target(request)

    async def caught_up(self, partition: str, refused: Fenced | OutOfSequence, until: float) -> None:
        if isinstance(refused, OutOfSequence):
            raise refused  # what came before it cannot be elsewhere
        await self._causes.known_at(self._topic, partition, refused, until)
