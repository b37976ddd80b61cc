"""OffsetCommit, OffsetFetch and OffsetDelete: a group's offsets, which are the same in REST, SQL and the console.

A commit is in the tables before its answer. That of a member never moves back. Who commits an earlier offset while the
group has no members means a reset, as Kafka's tools do (`kafka-consumer-groups --reset-offsets`), and gets one: a new
epoch, in which commits that are still on their way count for nothing (SPEC POP-18).

The text of a commit is stored with it, and stays until the group commits again or goes on (SPEC KAFKA-13).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from api.host import Call, HostedTopic
from api.kafka.access import Asker
from api.kafka.calls.acts import recorded
from api.kafka.calls.members import Members
from api.kafka.calls.places import Places
from api.kafka.messages import (
    CommitPartition,
    CommittedOffset,
    CommittedTopic,
    CommitTopic,
    ErrorCode,
    FetchedOffset,
    FetchedOffsets,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    error_code_of,
)
from api.queue import begin
from api.service import Service
from mq.errors import DeltaMQError, NotFound
from mq.meta import NO_OFFSET, Group
from mq.names import broker_of, check_group
from mq.queue import Bounds, LaneKey, check_metadata, is_storable_metadata, reset_position
from mq.static import LogicalQueue

__all__ = ["GroupOffsets"]


class GroupOffsets:
    """The committed offsets of groups; used on the event loop."""

    def __init__(self, service: Service, places: Places, members: Members) -> None:
        self._service = service
        self._places = places
        self._members = members

    async def commit(self, request: OffsetCommitRequest, asker: Asker) -> OffsetCommitResponse:
        """Store offsets of a member, or of anybody while the group has no members."""
        group: Group | DeltaMQError
        try:
            name = check_group(request.group_id)
            asker.check(OffsetCommitRequest, group=name)
            instance = request.group_instance_id
            self._members.check_commit(name, request.member_id, request.generation_id, instance)
            group = await self._service.groups.for_use(name)
        except DeltaMQError as error:
            group = error
        topics = []
        for topic in request.topics:
            back = {} if request.member_id else await self._put_back(group, topic, asker)
            # A reset has no text: that of the commit is stored in the new epoch.
            texts = {one.index for one in topic.partitions if one.metadata}
            over = {index: one for index, one in back.items() if one.error_code or index not in texts}
            left = [one for one in topic.partitions if one.index not in over]
            done = [*over.values(), *[await self._committed(group, topic.name, one, asker) for one in left]]
            topics.append(CommittedTopic(topic.name, done))
        return OffsetCommitResponse(topics=topics)

    async def _committed(
        self, group: Group | DeltaMQError, name: str, asked: CommitPartition, asker: Asker
    ) -> CommittedOffset:
        index, text = asked.index, asked.metadata or ""
        if isinstance(group, DeltaMQError):
            return CommittedOffset(index, error_code_of(group))
        service = self._service
        try:
            asker.check(OffsetCommitRequest, topic=name)
            topic = await self._places.topic(name)
            queue = self._places.queue(topic, index)
            check_metadata(str(index), text)
            if queue is not None:
                await self._committed_in_queue(group, topic, queue, asked, asker)
                return CommittedOffset(index, ErrorCode.NONE)
            partition = self._places.partition(topic, index)
            await begin(service.meta, topic.topic, group)
            lane = LaneKey(topic.topic.id, group.name, False, partition)
            at = max(asked.offset, 0)
            done = await service.commits.anywhere(
                topic.name, lane, at, meant=None, attempts=0, headers=asker.headers, metadata=text
            )
            service.statistics.committed(group.name, topic.topic, partition, broker_of(partition), done.offset)
        except DeltaMQError as error:
            return CommittedOffset(index, error_code_of(error))
        return CommittedOffset(index, ErrorCode.NONE)

    async def _put_back(
        self, group: Group | DeltaMQError, asked: CommitTopic, asker: Asker
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
                if max(one.offset, 0) < (await self._of(group.name, topic, one.index)).offset:
                    done.append(one.index)
                    lanes |= await self._earlier(group, topic, one)
            if lanes:
                asker.require("group", group.name, "reset")
                await self._reset(group.name, topic, lanes, asker)
        except DeltaMQError as error:
            code = error_code_of(error)
        return {index: CommittedOffset(index, code) for index in done}

    async def _reset(self, group: str, topic: HostedTopic, lanes: Mapping[LaneKey, int], asker: Asker) -> None:
        """Put the group at these offsets in a new epoch; everything that it held there is void (SPEC POP-18)."""
        service = self._service
        brokers = {broker_of(lane.partition) for lane in lanes}
        put = {lane.partition: offset for lane, offset in lanes.items()}
        async with recorded(service, asker, "group", group, {"topic": topic.name, "offsets": put}):
            epoch = await service.groups.reset(group, topic.topic, lanes)
            await service.groups.shut_out(group, topic.topic, brokers, epoch)
        # The next request to the owners of the lanes must find them in the new epoch.
        await service.owners.tell(brokers, Call.on_behalf("POST", "/v1", asker.headers))

    async def _earlier(self, group: Group, topic: HostedTopic, asked: CommitPartition) -> dict[LaneKey, int]:
        """Return the new offset of each lane of a partition that is reset."""
        queue, offset = self._places.queue(topic, asked.index), max(asked.offset, 0)
        if queue is not None:
            return (await self._service.progress.reset_lanes(topic.topic, group.name, queue, offset, "offset"))[0]
        partition = self._places.partition(topic, asked.index)
        log = await topic.partition(partition).look()
        bounds = Bounds(0, offset) if log is None else Bounds(log.min_offset, log.end_offset)
        return {LaneKey(topic.topic.id, group.name, False, partition): reset_position(offset, bounds)}

    async def _committed_in_queue(
        self, group: Group, topic: HostedTopic, queue: LogicalQueue, asked: CommitPartition, asker: Asker
    ) -> None:
        service = self._service
        await begin(service.meta, topic.topic, group)
        at, text = max(asked.offset, 0), asked.metadata or ""
        done = await service.progress.store(topic.topic, group, queue, at, metadata=text, headers=asker.headers)
        service.statistics.committed(group.name, topic.topic, queue.name, queue.leader.broker, done.offset)

    async def delete(self, request: OffsetDeleteRequest, asker: Asker) -> OffsetDeleteResponse:
        """Delete a group's offsets in topics that none of its members reads: it begins there as if it were new."""
        try:
            name = check_group(request.group_id)
            asker.check(OffsetDeleteRequest, group=name)
            subscribed = self._members.subscribed(name)
            await self._service.groups.require(name)
        except NotFound:
            return OffsetDeleteResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND)
        except DeltaMQError as error:
            return OffsetDeleteResponse(error_code=error_code_of(error))
        topics = []
        for one in request.topics:
            if subscribed is None or one.name in subscribed:
                codes = dict.fromkeys(one.partitions, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
            else:
                codes = await self._deleted(name, one.name, one.partitions, asker)
            topics.append(CommittedTopic(one.name, [CommittedOffset(*pair) for pair in codes.items()]))
        return OffsetDeleteResponse(error_code=ErrorCode.NONE, topics=topics)

    async def _deleted(self, group: str, name: str, indexes: Iterable[int], asker: Asker) -> dict[int, ErrorCode]:
        """Delete the group's offsets in partitions of a topic, and return the outcome of each."""
        try:
            asker.check(OffsetDeleteRequest, topic=name)
            topic = await self._places.topic(name)
        except DeltaMQError as error:
            return dict.fromkeys(indexes, error_code_of(error))
        lanes, codes = dict[LaneKey, int](), dict[int, ErrorCode]()
        for index in indexes:
            try:
                if (await self._of(group, topic, index)).offset >= 0:
                    lanes |= dict.fromkeys(self._lanes(group, topic, index), NO_OFFSET)
                codes[index] = ErrorCode.NONE
            except DeltaMQError as error:
                codes[index] = error_code_of(error)
        if lanes:
            try:
                await self._reset(group, topic, lanes, asker)
            except DeltaMQError as error:
                codes |= dict.fromkeys((index for index, code in codes.items() if not code), error_code_of(error))
        return codes

    def _lanes(self, group: str, topic: HostedTopic, index: int) -> list[LaneKey]:
        """Return the lanes whose offsets make up the group's offset in a partition."""
        queue = self._places.queue(topic, index)
        if queue is None:
            return [LaneKey(topic.topic.id, group, False, self._places.partition(topic, index))]
        return self._service.progress.lanes(topic.topic, group, queue)

    async def fetch(self, request: OffsetFetchRequest, asker: Asker) -> OffsetFetchResponse:
        """Return committed offsets, -1 where the group has none; null asks for all topics of the group."""
        try:
            name = check_group(request.group_id)
            asker.check(OffsetFetchRequest, group=name)
            if self._service.groups.find(name) is None:
                await self._service.meta.refresh()
        except DeltaMQError as error:
            return OffsetFetchResponse(topics=[], error_code=error_code_of(error))
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
        service = self._service
        began = {topic for name, topic in service.meta.now.groups.began if name == group}
        known = began | service.lanes.topics_of(group)
        for topic in service.topics.state.topics.values():
            hosted = service.topics.find(topic.name) if topic.id in known and self._places.served(topic) else None
            if hosted is not None:
                yield hosted

    async def _all_of(self, group: str, topic: HostedTopic) -> FetchedOffsets:
        found = [await self._of(group, topic, index) for index in range(self._places.count(topic.topic))]
        return FetchedOffsets(topic.name, [one for one in found if one.offset >= 0])

    async def _named(self, group: str, name: str, index: int, asker: Asker) -> FetchedOffset:
        try:
            asker.check(OffsetFetchRequest, topic=name)
            return await self._of(group, await self._places.topic(name), index)
        except DeltaMQError as error:
            return FetchedOffset(index, error_code=error_code_of(error))

    async def _of(self, group: str, topic: HostedTopic, index: int) -> FetchedOffset:
        queue = self._places.queue(topic, index)
        if queue is not None:
            known = self._service.groups.find(group)
            if known is None:
                return FetchedOffset(index)
            position = await self._service.progress.of(topic.topic, known, queue, newest=True)
            if not position.is_begun:
                return FetchedOffset(index)
            return FetchedOffset(index, position.offset, metadata=position.metadata)
        lane = LaneKey(topic.topic.id, group, False, self._places.partition(topic, index))
        # All that was committed before now counts, whichever process stored it.
        committed = await self._service.moved.committed(lane, self._service.loop.time())
        if committed is None:
            return FetchedOffset(index)
        return FetchedOffset(index, committed.offset, metadata=committed.metadata)
