"""OffsetFetch, OffsetCommit and OffsetDelete: a group's offsets, which are the same in REST, SQL and the console.

A commit is in the tables before its answer. A member's commit never moves back. An earlier offset that is committed
while the group has no members means a reset, as from Kafka's tools (`kafka-consumer-groups --reset-offsets`): it begins
a new epoch, in which commits that are still on their way have no effect (SPEC POP-18).

An offset beyond the partition's end, for instance one of the topic's earlier life, is stored in the same way, because
nothing there was consumed: the group's next commit puts it where it really is, even if that is earlier (SPEC
KAFKA-16).

The text of a commit is stored with it, and stays until the group commits again or goes on (SPEC KAFKA-13).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

from deltamq.api.audit.audit import Audit
from deltamq.api.host.hosted_group import Groups
from deltamq.api.host.hosted_meta import HostedMeta
from deltamq.api.host.hosted_topic import HostedTopic, Topics
from deltamq.api.host.owners import Owners
from deltamq.api.kafka.access.needs import Asker, recorded
from deltamq.api.kafka.calls.layout import Layout, topic_id_of
from deltamq.api.kafka.calls.members import Members
from deltamq.api.kafka.messages.errors import ErrorCode, group_code_of, offset_code_of
from deltamq.api.kafka.messages.group_messages import (
    CommitPartition,
    CommittedOffset,
    CommittedTopic,
    CommitTopic,
    FetchedGroup,
    FetchedOffset,
    FetchedOffsets,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchGroup,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchTopic,
)
from deltamq.api.progress.group_progress import GroupCommits, QueueProgress
from deltamq.api.queue.lanes import Lanes
from deltamq.api.queue.moved_progress import MovedProgress
from deltamq.mq.errors import DeltaMQError, NotFound, Unprocessable
from deltamq.mq.meta.group import NO_OFFSET, Group
from deltamq.mq.names import CONSUMER_OFFSETS_ID, broker_of, check_group
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.queue.progress import check_metadata, is_storable_metadata

#: Most partitions of groups whose committed offset beyond the end is remembered.
_BEYOND_MAX: Final = 10_000


class OffsetChanges:
    """Changes the committed offsets of groups; used on the event loop."""

    def __init__(
        self,
        layout: Layout,
        members: Members,
        committed: OffsetFetches,
        groups: Groups,
        commits: GroupCommits,
        progress: QueueProgress,
        owners: Owners,
        audit: Audit | None,
    ) -> None:
        self._layout = layout
        self._members = members
        self._committed = committed
        self._groups = groups
        self._commits = commits
        self._progress = progress
        self._owners = owners
        self._audit = audit
        #: Offsets that were beyond the end when they were committed, the oldest first.
        self._beyond: dict[tuple[str, str, int], int] = {}

    async def commit(self, request: OffsetCommitRequest, version: int, asker: Asker) -> OffsetCommitResponse:
        """Store offsets of a member, or of any client while the group has no members.

        The first offset that is stored makes the group.
        """
        group: str | DeltaMQError = request.group_id
        try:
            check_group(request.group_id)
            asker.check(OffsetCommitRequest, group=request.group_id)
            instance = request.group_instance_id
            self._members.check_commit(request.group_id, request.member_id, request.generation_id, instance)
        except DeltaMQError as error:
            group = error
        topics = [
            CommittedTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=await self._committed_in(group, topic, version, asker, is_member=bool(request.member_id)),
            )
            for topic in request.topics
        ]
        return OffsetCommitResponse(topics=topics)

    async def _committed_in(
        self, group: str | DeltaMQError, topic: CommitTopic, version: int, asker: Asker, *, is_member: bool
    ) -> list[CommittedOffset]:
        if version >= BY_ID:
            try:
                topic.name = await self._layout.ids.name(topic.topic_id)
            except DeltaMQError as error:
                group = group if isinstance(group, DeltaMQError) else error
        back = {} if is_member else await self._put_back(group, topic, asker)
        # A reset has no text: the commit's text is stored in the new epoch.
        texts = {partition.index for partition in topic.partitions if partition.metadata}
        over = {index: outcome for index, outcome in back.items() if outcome.error_code or index not in texts}
        left = [partition for partition in topic.partitions if partition.index not in over]
        return [*over.values(), *[await self._stored(group, topic.name, partition, asker) for partition in left]]

    async def _stored(
        self, name: str | DeltaMQError, topic_name: str, asked: CommitPartition, asker: Asker
    ) -> CommittedOffset:
        index = asked.index
        if isinstance(name, DeltaMQError):
            return CommittedOffset(index, group_code_of(name))
        try:
            topic = await self._layout.readable(OffsetCommitRequest, topic_name, asker)
            self._layout.check(topic, index)
            check_metadata(str(index), asked.metadata or "")
            group = await self._groups.for_use(name)
            if not await self._is_stored(group, topic, asked, asker):
                lanes = await self._lanes_at(name, topic, asked)
                await self._reset(name, topic, lanes, asker)
                if asked.metadata:
                    await self._is_stored(group, topic, asked, asker)
        except DeltaMQError as error:
            return CommittedOffset(index, group_code_of(error))
        return CommittedOffset(index, ErrorCode.NONE)

    async def _is_stored(self, group: Group, topic: HostedTopic, asked: CommitPartition, asker: Asker) -> bool:
        """Commit an offset; return False if it, or a greater one that the group has, is beyond the partition's end."""
        index, at, text = asked.index, max(asked.offset, 0), asked.metadata or ""
        key = topic.topic.id, group.name, index
        queue = self._layout.queue(topic, index)
        try:
            if queue is not None:
                store = self._commits.in_queue(topic.topic, group, queue, at, metadata=text, headers=asker.headers)
            else:
                partition = self._layout.partition(topic, index)
                store = self._commits.in_partition(
                    topic.topic, group, partition, at, metadata=text, headers=asker.headers
                )
            reached = await store
        except Unprocessable as error:
            if error.code != "offset_out_of_range":
                raise
            self._beyond[key] = at
            if len(self._beyond) > _BEYOND_MAX:
                del self._beyond[next(iter(self._beyond))]
            return False
        if reached > at and (self._beyond.get(key) == reached or reached > await self._end(topic, index)):
            # It was never consumed up to there. The end may have passed that offset since.
            self._beyond.pop(key, None)
            return False
        if reached != self._beyond.get(key):
            self._beyond.pop(key, None)
        return True

    async def _end(self, topic: HostedTopic, index: int) -> int:
        queue = self._layout.queue(topic, index)
        if queue is not None:
            return await self._progress.end(topic.topic, queue)
        log = await topic.partition(self._layout.partition(topic, index)).look()
        return 0 if log is None else log.end_offset

    async def _put_back(
        self, group: str | DeltaMQError, asked: CommitTopic, asker: Asker
    ) -> dict[int, CommittedOffset]:
        """Reset the group where the offsets are earlier than its own; return the outcome for these partitions."""
        if isinstance(group, DeltaMQError):
            return {}
        lanes, done = dict[LaneKey, int](), list[int]()
        code = ErrorCode.NONE
        try:
            topic = await self._layout.readable(OffsetCommitRequest, asked.name, asker)
            for partition in asked.partitions:
                if not is_storable_metadata(partition.metadata or ""):
                    continue  # it is refused, and nothing of it may be stored
                if max(partition.offset, 0) < (await self._committed.of(group, topic, partition.index)).offset:
                    done.append(partition.index)
                    lanes |= await self._lanes_at(group, topic, partition)
            if lanes:
                asker.require("group", group, "reset")
                await self._reset(group, topic, lanes, asker)
        except DeltaMQError as error:
            code = group_code_of(error)
        return {index: CommittedOffset(index, code) for index in done}

    async def _reset(self, group: str, topic: HostedTopic, lanes: Mapping[LaneKey, int], asker: Asker) -> None:
        """Put the group at these offsets in a new epoch; everything that it held there is void (SPEC POP-18)."""
        put = {lane.partition: offset for lane, offset in lanes.items()}
        async with recorded(self._audit, asker, "group", group, {"topic": topic.name, "offsets": put}):
            await self._groups.reset(group, topic.topic, lanes)
        # The next request to the owners of the lanes must find them in the new epoch.
        brokers = {broker_of(lane.partition) for lane in lanes}
        await self._owners.tell(brokers, asker.to_others)

    async def _lanes_at(self, group: str, topic: HostedTopic, asked: CommitPartition) -> dict[LaneKey, int]:
        """Return the offset of each lane of a partition that puts the group at `asked.offset`, which may be any."""
        queue, offset = self._layout.queue(topic, asked.index), max(asked.offset, 0)
        if queue is not None:
            return await self._progress.lanes_at(topic.topic, group, queue, offset)
        partition = self._layout.partition(topic, asked.index)
        log = await topic.partition(partition).look()
        return {LaneKey(topic.topic.id, group, False, partition): max(offset, 0 if log is None else log.min_offset)}

    async def delete(self, request: OffsetDeleteRequest, asker: Asker) -> OffsetDeleteResponse:
        """Delete a group's offsets in topics that none of its members reads: it begins there as if it were new."""
        try:
            name = check_group(request.group_id)
            asker.check(OffsetDeleteRequest, group=name)
            subscribed = self._members.subscribed(name)
            await self._groups.require(name)
        except NotFound:
            return OffsetDeleteResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND)
        except DeltaMQError as error:
            return OffsetDeleteResponse(error_code=group_code_of(error))
        topics = []
        for topic in request.topics:
            if subscribed is None or topic.name in subscribed:
                codes = dict.fromkeys(topic.partitions, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
            else:
                codes = await self._deleted(name, topic.name, topic.partitions, asker)
            topics.append(
                CommittedTopic(name=topic.name, partitions=[CommittedOffset(*pair) for pair in codes.items()])
            )
        return OffsetDeleteResponse(error_code=ErrorCode.NONE, topics=topics)

    async def _deleted(self, group: str, name: str, indexes: Iterable[int], asker: Asker) -> dict[int, ErrorCode]:
        try:
            topic = await self._layout.readable(OffsetDeleteRequest, name, asker)
        except DeltaMQError as error:
            return dict.fromkeys(indexes, group_code_of(error))
        lanes, codes = dict[LaneKey, int](), dict[int, ErrorCode]()
        for index in indexes:
            try:
                if (await self._committed.of(group, topic, index)).offset >= 0:
                    lanes |= dict.fromkeys(self._lanes(group, topic, index), NO_OFFSET)
                codes[index] = ErrorCode.NONE
            except DeltaMQError as error:
                codes[index] = group_code_of(error)
        if lanes:
            try:
                await self._reset(group, topic, lanes, asker)
            except DeltaMQError as error:
                codes |= dict.fromkeys((index for index, code in codes.items() if not code), group_code_of(error))
        return codes

    def _lanes(self, group: str, topic: HostedTopic, index: int) -> list[LaneKey]:
        queue = self._layout.queue(topic, index)
        if queue is None:
            return [LaneKey(topic.topic.id, group, False, self._layout.partition(topic, index))]
        return self._progress.lanes(topic.topic, group, queue)


#: The version of OffsetCommit and of OffsetFetch from which on topics are named by id.
BY_ID: Final = 10
#: The versions of OffsetFetch from which on a group has an error of its own, and several groups are asked for.
_GROUP_ERROR: Final = 2
_SEVERAL_GROUPS: Final = 8


class OffsetFetches:
    """The committed offsets of groups; used on the event loop."""

    def __init__(
        self,
        layout: Layout,
        topics: Topics,
        meta: HostedMeta,
        groups: Groups,
        lanes: Lanes,
        moved: MovedProgress,
        progress: QueueProgress,
    ) -> None:
        self._layout = layout
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
        asked = OffsetFetchGroup(group_id=request.group_id, topics=request.topics)
        (fetched,) = await self._of_groups([asked], version, asker)
        return OffsetFetchResponse(topics=fetched.topics, error_code=fetched.error_code)

    async def _of_groups(self, asked: list[OffsetFetchGroup], version: int, asker: Asker) -> list[FetchedGroup]:
        fetched, is_newest = list[FetchedGroup](), False
        for group in asked:
            try:
                name = check_group(group.group_id)
                asker.check(OffsetFetchRequest, group=name)
                if not is_newest and self._groups.find(name) is None:
                    await self._meta.refresh()
                    is_newest = True
            except DeltaMQError as error:
                fetched.append(_refused(group, group_code_of(error), version))
            else:
                fetched.append(FetchedGroup(group_id=name, topics=await self._of_group(group, version, asker)))
        return fetched

    async def _of_group(self, asked: OffsetFetchGroup, version: int, asker: Asker) -> list[FetchedOffsets]:
        if asked.topics is not None:
            return [await self._named(asked.group_id, topic, version, asker) for topic in asked.topics]
        is_shown, name = asker.shown("topic"), asked.group_id
        return [await self._all_of(name, topic) for topic in self._topics_of(name) if is_shown(topic.name)]

    def _topics_of(self, group: str) -> Iterable[HostedTopic]:
        began = {topic for name, topic in self._meta.now.groups.began if name == group}
        known = began | self._lanes.topics_of(group)
        for topic in self._topics.state.topics.values():
            hosted = self._topics.find(topic.name) if topic.id in known and self._layout.served(topic) else None
            if hosted is not None:
                yield hosted
        if CONSUMER_OFFSETS_ID in known:
            yield self._topics.offsets

    async def _all_of(self, group: str, topic: HostedTopic) -> FetchedOffsets:
        offsets = [await self._fetched(group, topic, index) for index in range(self._layout.count(topic.topic))]
        known = [offset for offset in offsets if offset.offset >= 0 or offset.error_code]
        return FetchedOffsets(name=topic.name, topic_id=topic_id_of(topic.topic), partitions=known)

    async def _named(self, group: str, asked: OffsetFetchTopic, version: int, asker: Asker) -> FetchedOffsets:
        try:
            name = await self._layout.ids.name(asked.topic_id) if version >= BY_ID else asked.name
            topic = await self._layout.readable(OffsetFetchRequest, name, asker)
        except DeltaMQError as error:
            # In a topic that does not exist nothing is committed.
            code = ErrorCode.NONE if error.code == "topic_not_found" else offset_code_of(error)
            offsets = [FetchedOffset(index, error_code=code) for index in asked.partitions]
        else:
            offsets = [await self._fetched(group, topic, index) for index in asked.partitions]
        return FetchedOffsets(name=asked.name, topic_id=asked.topic_id, partitions=offsets)

    async def _fetched(self, group: str, topic: HostedTopic, index: int) -> FetchedOffset:
        try:
            return await self.of(group, topic, index)
        except DeltaMQError as error:
            return FetchedOffset(index, error_code=offset_code_of(error))

    async def of(self, group: str, topic: HostedTopic, index: int) -> FetchedOffset:
        """Return the group's offset in a partition, -1 where it has none; all that was committed before counts."""
        queue = self._layout.queue(topic, index)
        if queue is not None:
            known = self._groups.find(group)
            if known is None:
                return FetchedOffset(index)
            position = await self._progress.of(topic.topic, known, queue, newest=True)
            if not position.is_begun:
                return FetchedOffset(index)
            return FetchedOffset(index, position.committed_offset, metadata=position.metadata)
        lane = LaneKey(topic.topic.id, group, False, self._layout.partition(topic, index))
        committed = await self._moved.committed(lane, asyncio.get_running_loop().time())
        if committed is None:
            return FetchedOffset(index)
        return FetchedOffset(index, committed.offset, metadata=committed.metadata)


def _refused(asked: OffsetFetchGroup, code: ErrorCode, version: int) -> FetchedGroup:
    """Return the answer for a refused group; versions without an error of the group have it in each partition."""
    if version >= _GROUP_ERROR:
        return FetchedGroup(group_id=asked.group_id, error_code=code)
    topics = [
        FetchedOffsets(
            name=topic.name, partitions=[FetchedOffset(index, error_code=code) for index in topic.partitions]
        )
        for topic in asked.topics or ()
    ]
    return FetchedGroup(group_id=asked.group_id, topics=topics)
