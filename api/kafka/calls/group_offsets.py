"""OffsetCommit and OffsetDelete: a group's offsets, which are the same in REST, SQL and the console.

A commit is in the tables before its answer. That of a member never moves back. Who commits an earlier offset while the
group has no members means a reset, as Kafka's tools do (`kafka-consumer-groups --reset-offsets`), and gets one: a new
epoch, in which commits that are still on their way count for nothing (SPEC POP-18).

An offset beyond the partition's end, for instance one of the topic's earlier life, is stored in the same way, because
nothing there was consumed: what the group commits next puts it where it really is, even if that is earlier (SPEC
KAFKA-16).

The text of a commit is stored with it, and stays until the group commits again or goes on (SPEC KAFKA-13).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from deltamq.api.audit.audit import Audit
from deltamq.api.host.hosted_group import Groups
from deltamq.api.host.hosted_topic import HostedTopic
from deltamq.api.host.owners import Owners
from deltamq.api.host.peers import Call
from deltamq.api.kafka.access.needs import Asker
from deltamq.api.kafka.calls.acts import recorded
from deltamq.api.kafka.calls.committed import BY_ID, OffsetFetches
from deltamq.api.kafka.calls.members import Members
from deltamq.api.kafka.calls.places import Places
from deltamq.api.kafka.messages.errors import ErrorCode, group_code_of
from deltamq.api.kafka.messages.group_messages import (
    CommitPartition,
    CommittedOffset,
    CommittedTopic,
    CommitTopic,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
)
from deltamq.api.progress.group_progress import GroupCommits, QueueProgress
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
