"""OffsetFetch: what groups have committed, by whatever protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from deltamq.api.host.hosted_group import Groups
from deltamq.api.host.hosted_meta import HostedMeta
from deltamq.api.host.hosted_topic import HostedTopic, Topics
from deltamq.api.kafka.access.needs import Asker
from deltamq.api.kafka.calls.places import Places
from deltamq.api.kafka.messages.errors import ErrorCode, group_code_of, offset_code_of
from deltamq.api.kafka.messages.group_messages import (
    FetchedGroup,
    FetchedOffset,
    FetchedOffsets,
    OffsetFetchGroup,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchTopic,
)
from deltamq.api.kafka.topic_ids import topic_id_of
from deltamq.api.progress.group_progress import QueueProgress
from deltamq.api.queue.lanes import Lanes
from deltamq.api.queue.moved_progress import MovedProgress
from deltamq.mq.errors import DeltaMQError
from deltamq.mq.names import check_group
from deltamq.mq.queue.checkpoint import LaneKey

#: The version of OffsetCommit and of OffsetFetch from which on topics are named by id.
BY_ID: Final = 10
#: The versions of OffsetFetch from which on a group has an error of its own, and several groups are asked for.
_GROUP_ERROR: Final = 2
_SEVERAL_GROUPS: Final = 8


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

    async def fetch(self, request: OffsetFetchRequest, version: int, asker: Asker) -> OffsetFetchResponse:
        """Return committed offsets, -1 where the group has none; null asks for all topics of a group."""
        if version >= _SEVERAL_GROUPS:
            return OffsetFetchResponse(groups=await self._of_groups(request.groups, version, asker))
        one = OffsetFetchGroup(group_id=request.group_id, topics=request.topics)
        (found,) = await self._of_groups([one], version, asker)
        return OffsetFetchResponse(topics=found.topics, error_code=found.error_code)

    async def _of_groups(self, asked: list[OffsetFetchGroup], version: int, asker: Asker) -> list[FetchedGroup]:
        found, is_newest = list[FetchedGroup](), False
        for one in asked:
            try:
                name = check_group(one.group_id)
                asker.check(OffsetFetchRequest, group=name)
                if not is_newest and self._groups.find(name) is None:
                    await self._meta.refresh()
                    is_newest = True
            except DeltaMQError as error:
                found.append(_refused(one, group_code_of(error), version))
            else:
                found.append(FetchedGroup(group_id=name, topics=await self._of_group(one, version, asker)))
        return found

    async def _of_group(self, asked: OffsetFetchGroup, version: int, asker: Asker) -> list[FetchedOffsets]:
        if asked.topics is not None:
            return [await self._named(asked.group_id, topic, version, asker) for topic in asked.topics]
        is_shown, name = asker.shown("topic"), asked.group_id
        return [await self._all_of(name, topic) for topic in self._topics_of(name) if is_shown(topic.name)]

    def _topics_of(self, group: str) -> Iterable[HostedTopic]:
        began = {topic for name, topic in self._meta.now.groups.began if name == group}
        known = began | self._lanes.topics_of(group)
        for topic in self._topics.state.topics.values():
            hosted = self._topics.find(topic.name) if topic.id in known and self._places.served(topic) else None
            if hosted is not None:
                yield hosted

    async def _all_of(self, group: str, topic: HostedTopic) -> FetchedOffsets:
        found = [await self._found(group, topic, index) for index in range(self._places.count(topic.topic))]
        known = [one for one in found if one.offset >= 0 or one.error_code]
        return FetchedOffsets(name=topic.name, topic_id=topic_id_of(topic.topic), partitions=known)

    async def _named(self, group: str, asked: OffsetFetchTopic, version: int, asker: Asker) -> FetchedOffsets:
        try:
            name = await self._places.ids.name(asked.topic_id) if version >= BY_ID else asked.name
            asker.check(OffsetFetchRequest, topic=name)
            topic = await self._places.topic(name)
        except DeltaMQError as error:
            # In a topic that does not exist nothing is committed.
            code = ErrorCode.NONE if error.code == "topic_not_found" else offset_code_of(error)
            found = [FetchedOffset(index, error_code=code) for index in asked.partitions]
        else:
            found = [await self._found(group, topic, index) for index in asked.partitions]
        return FetchedOffsets(name=asked.name, topic_id=asked.topic_id, partitions=found)

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


def _refused(asked: OffsetFetchGroup, code: ErrorCode, version: int) -> FetchedGroup:
    """Return the answer for a group of which nothing is told; versions without an error of the group have topics'."""
    if version >= _GROUP_ERROR:
        return FetchedGroup(group_id=asked.group_id, error_code=code)
    topics = [
        FetchedOffsets(name=one.name, partitions=[FetchedOffset(index, error_code=code) for index in one.partitions])
        for one in asked.topics or ()
    ]
    return FetchedGroup(group_id=asked.group_id, topics=topics)
