"""OffsetFetch, OffsetCommit and OffsetDelete: a group's offsets, which are the same in REST, SQL and the console.

A commit is in the tables before its answer. That of a member never moves back. Who commits an earlier offset while the
group has no members means a reset, as Kafka's tools do (`kafka-consumer-groups --reset-offsets`), and gets one: a new
epoch, in which commits that are still on their way count for nothing (SPEC POP-18).

An offset beyond the partition's end, for instance one of the topic's earlier life, is stored in the same way, because
nothing there was consumed: what the group commits next puts it where it really is, even if that is earlier (SPEC
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
from deltamq.api.host.peers import Call
from deltamq.api.kafka.access.needs import Asker, recorded
from deltamq.api.kafka.calls.members import Members
from deltamq.api.kafka.calls.places import Places, topic_id_of
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
from deltamq.mq.names import broker_of, check_group
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.queue.progress import check_metadata, is_storable_metadata

#: Most partitions of groups of which it is remembered that an offset beyond the end was committed.
_BEYOND_MAX: Final = 10_000


class OffsetChanges:
    """Changes the committed offsets of groups; used on the event loop."""

    def __init__(
        self,
        places: Places,
        members: Members,
        committed: OffsetFetches,
        groups: Groups,
        commits: GroupCommits,
        progress: QueueProgress,
        owners: Owners,
        audit: Audit | None,
    ) -> None:
        self._places = places
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
        """Store offsets of a member, or of anybody while the group has no members.

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
                name=one.name,
                topic_id=one.topic_id,
                partitions=await self._committed_in(group, one, version, asker, is_member=bool(request.member_id)),
            )
            for one in request.topics
        ]
        return OffsetCommitResponse(topics=topics)

    async def _committed_in(
        self, group: str | DeltaMQError, topic: CommitTopic, version: int, asker: Asker, *, is_member: bool
    ) -> list[CommittedOffset]:
        if version >= BY_ID:
            try:
                topic.name = await self._places.ids.name(topic.topic_id)
            except DeltaMQError as error:
                group = group if isinstance(group, DeltaMQError) else error
        back = {} if is_member else await self._put_back(group, topic, asker)
        # A reset has no text: that of the commit is stored in the new epoch.
        texts = {one.index for one in topic.partitions if one.metadata}
        over = {index: one for index, one in back.items() if one.error_code or index not in texts}
        left = [one for one in topic.partitions if one.index not in over]
        return [*over.values(), *[await self._stored(group, topic.name, one, asker) for one in left]]

    async def _stored(
        self, name: str | DeltaMQError, topic_name: str, asked: CommitPartition, asker: Asker
    ) -> CommittedOffset:
        index = asked.index
        if isinstance(name, DeltaMQError):
            return CommittedOffset(index, group_code_of(name))
        try:
            asker.check(OffsetCommitRequest, topic=topic_name)
            topic = await self._places.topic(topic_name)
            self._places.check(topic, index)
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
        place = topic.topic.id, group.name, index
        queue = self._places.queue(topic, index)
        try:
            if queue is not None:
                store = self._commits.in_queue(topic.topic, group, queue, at, metadata=text, headers=asker.headers)
            else:
                partition = self._places.partition(topic, index)
                store = self._commits.in_partition(
                    topic.topic, group, partition, at, metadata=text, headers=asker.headers
                )
            reached = await store
        except Unprocessable as error:
            if error.code != "offset_out_of_range":
                raise
            self._beyond[place] = at
            if len(self._beyond) > _BEYOND_MAX:
                del self._beyond[next(iter(self._beyond))]
            return False
        if reached > at and (self._beyond.get(place) == reached or reached > await self._end(topic, index)):
            # It was never consumed up to there. The end may have passed that offset since.
            self._beyond.pop(place, None)
            return False
        if reached != self._beyond.get(place):
            self._beyond.pop(place, None)
        return True

    async def _end(self, topic: HostedTopic, index: int) -> int:
        queue = self._places.queue(topic, index)
        if queue is not None:
            return await self._progress.end(topic.topic, queue)
        log = await topic.partition(self._places.partition(topic, index)).look()
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
            asker.check(OffsetCommitRequest, topic=asked.name)
            topic = await self._places.topic(asked.name)
            for one in asked.partitions:
                if not is_storable_metadata(one.metadata or ""):
                    continue  # it is refused, and nothing of it may be stored
                if max(one.offset, 0) < (await self._committed.of(group, topic, one.index)).offset:
                    done.append(one.index)
                    lanes |= await self._lanes_at(group, topic, one)
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
        await self._owners.tell(brokers, Call.on_behalf("POST", "/v1", asker.headers))

    async def _lanes_at(self, group: str, topic: HostedTopic, asked: CommitPartition) -> dict[LaneKey, int]:
        """Return the offset of each lane of a partition in which the group is put at an offset, which may be any."""
        queue, offset = self._places.queue(topic, asked.index), max(asked.offset, 0)
        if queue is not None:
            return await self._progress.lanes_at(topic.topic, group, queue, offset)
        partition = self._places.partition(topic, asked.index)
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
        for one in request.topics:
            if subscribed is None or one.name in subscribed:
                codes = dict.fromkeys(one.partitions, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
            else:
                codes = await self._deleted(name, one.name, one.partitions, asker)
            topics.append(CommittedTopic(name=one.name, partitions=[CommittedOffset(*pair) for pair in codes.items()]))
        return OffsetDeleteResponse(error_code=ErrorCode.NONE, topics=topics)

    async def _deleted(self, group: str, name: str, indexes: Iterable[int], asker: Asker) -> dict[int, ErrorCode]:
        """Delete the group's offsets in partitions of a topic, and return the outcome of each."""
        try:
            asker.check(OffsetDeleteRequest, topic=name)
            topic = await self._places.topic(name)
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
        """Return the lanes whose offsets make up the group's offset in a partition."""
        queue = self._places.queue(topic, index)
        if queue is None:
            return [LaneKey(topic.topic.id, group, False, self._places.partition(topic, index))]
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
