"""OffsetFetch: what groups have committed, by whatever protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from api.host import Groups, HostedMeta, HostedTopic, Topics
from api.kafka.access import Asker
from api.kafka.calls.places import Places
from api.kafka.messages import (
    FetchedOffset,
    FetchedOffsets,
    OffsetFetchRequest,
    OffsetFetchResponse,
    group_code_of,
    offset_code_of,
)
from api.progress import QueueProgress
from api.queue import Lanes, MovedProgress
from mq.errors import DeltaMQError
from mq.names import check_group
from mq.queue import LaneKey

__all__ = ["OffsetFetches"]


class OffsetFetches:
    """The committed offsets of groups; used on the event loop."""

    def __init__(
        self,
        places: Places,
        topics: Topics,
        meta: HostedMeta,
        groups: Groups,
        lanes: Lanes,
        moved: MovedProgress,
        progress: QueueProgress,
    ) -> None:
        self._places = places
        self._topics = topics
        self._meta = meta
        self._groups = groups
        self._lanes = lanes
        self._moved = moved
        self._progress = progress

    async def fetch(self, request: OffsetFetchRequest, asker: Asker) -> OffsetFetchResponse:
        """Return committed offsets, -1 where the group has none; null asks for all topics of the group."""
        try:
            name = check_group(request.group_id)
            asker.check(OffsetFetchRequest, group=name)
            if self._groups.find(name) is None:
                await self._meta.refresh()
        except DeltaMQError as error:
            return OffsetFetchResponse(topics=[], error_code=group_code_of(error))
        if request.topics is None:
            is_shown = asker.shown("topic")
            topics = [await self._all_of(name, topic) for topic in self._topics_of(name) if is_shown(topic.name)]
        else:
            topics = [
                FetchedOffsets(one.name, [await self._named(name, one.name, index, asker) for index in one.partitions])
                for one in request.topics
            ]
        return OffsetFetchResponse(topics=topics)

    def _topics_of(self, group: str) -> Iterable[HostedTopic]:
        began = {topic for name, topic in self._meta.now.groups.began if name == group}
        known = began | self._lanes.topics_of(group)
        for topic in self._topics.state.topics.values():
            hosted = self._topics.find(topic.name) if topic.id in known and self._places.served(topic) else None
            if hosted is not None:
                yield hosted

    async def _all_of(self, group: str, topic: HostedTopic) -> FetchedOffsets:
        found = [await self._found(group, topic, index) for index in range(self._places.count(topic.topic))]
        return FetchedOffsets(topic.name, [one for one in found if one.offset >= 0 or one.error_code])

    async def _named(self, group: str, name: str, index: int, asker: Asker) -> FetchedOffset:
        try:
            asker.check(OffsetFetchRequest, topic=name)
            topic = await self._places.topic(name)
        except DeltaMQError as error:
            return FetchedOffset(index, error_code=offset_code_of(error))
        return await self._found(group, topic, index)

    async def _found(self, group: str, topic: HostedTopic, index: int) -> FetchedOffset:
        try:
            return await self.of(group, topic, index)
        except DeltaMQError as error:
            return FetchedOffset(index, error_code=offset_code_of(error))

    async def of(self, group: str, topic: HostedTopic, index: int) -> FetchedOffset:
        """Return the group's offset in a partition, -1 where it has none; all that was committed before counts."""
        queue = self._places.queue(topic, index)
        if queue is not None:
            known = self._groups.find(group)
            if known is None:
                return FetchedOffset(index)
            position = await self._progress.of(topic.topic, known, queue, newest=True)
            if not position.is_begun:
                return FetchedOffset(index)
            return FetchedOffset(index, position.committed_offset, metadata=position.metadata)
        lane = LaneKey(topic.topic.id, group, False, self._places.partition(topic, index))
        committed = await self._moved.committed(lane, asyncio.get_running_loop().time())
        if committed is None:
            return FetchedOffset(index)
        return FetchedOffset(index, committed.offset, metadata=committed.metadata)
