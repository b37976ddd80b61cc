"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords: where partitions begin and end, and what offset a time has.

A partition's log is never cut, whichever process serves it, so all of it belongs to one leader epoch. Records have the
times that their producers gave them, in any order (SPEC KAFKA-21). Records before an offset that DeleteRecords names
are removed as if retention had taken them (SPEC KAFKA-19).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple

from deltamq.api.audit.audit import Audit
from deltamq.api.host.hosted_topic import GONE, HostedTopic, Topics
from deltamq.api.kafka.access.needs import Asker, recorded
from deltamq.api.kafka.calls.layout import EPOCH, Layout, check_epoch
from deltamq.api.kafka.messages.errors import ErrorCode, error_code_of
from deltamq.api.kafka.messages.log_messages import (
    DeletedRecords,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsResult,
    ListedOffset,
    ListedTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetOfEpoch,
    OffsetsOfEpochs,
    WantedEpoch,
)
from deltamq.api.log.partition import Partitions
from deltamq.api.progress.group_progress import QueueProgress
from deltamq.mq.errors import DeltaMQError, NotFound, Unprocessable
from deltamq.mq.queue.progress import Bounds
from deltamq.mq.static.logical_queue import LogicalQueue
from deltamq.mq.static.progress import commit_steps
from deltamq.tables.log.reader import Born
from deltamq.tables.log.rewrite import delete_before

_LATEST: Final = -1
_EARLIEST: Final = -2
_MAX_TIMESTAMP: Final = -3
_EARLIEST_LOCAL: Final = -4
_LATEST_TIERED: Final = -5
_EARLIEST_PENDING: Final = -6
#: The first version that has each name of an offset.
_SINCE: Final = {
    _LATEST: 1,
    _EARLIEST: 1,
    _MAX_TIMESTAMP: 7,
    _EARLIEST_LOCAL: 8,
    _LATEST_TIERED: 9,
    _EARLIEST_PENDING: 11,
}
#: Offsets that no partition has: there is no other storage to which messages are moved.
_TIERED: Final = (_LATEST_TIERED, _EARLIEST_PENDING)
_US: Final = 1_000


class _TimedOffset(NamedTuple):
    """An offset, and the time of its message; both are -1 if there is none."""

    offset: int = -1
    time_ms: int = -1


class OffsetLists:
    """The calls about offsets in partitions; used on the event loop."""

    def __init__(
        self,
        layout: Layout,
        topics: Topics,
        partitions: Partitions,
        progress: QueueProgress,
    ) -> None:
        self._layout = layout
        self._topics = topics
        self._partitions = partitions
        self._progress = progress

    async def offsets(self, request: ListOffsetsRequest, version: int, asker: Asker) -> ListOffsetsResponse:
        """Return offsets by time, or by the names that the version has; a partition that is named twice is refused."""
        topics = []
        for topic in request.topics:
            counts = Counter(wanted.index for wanted in topic.partitions)
            first = {wanted.index: wanted for wanted in topic.partitions}.values()
            listed = [
                await self._listed(topic.name, wanted, version, asker)
                if counts[wanted.index] == 1
                else ListedOffset(wanted.index, ErrorCode.INVALID_REQUEST)
                for wanted in first
            ]
            topics.append(ListedTopic(topic.name, listed))
        return ListOffsetsResponse(topics=topics)

    async def _listed(self, name: str, wanted: ListOffsetsPartition, version: int, asker: Asker) -> ListedOffset:
        try:
            topic = await self._layout.readable(ListOffsetsRequest, name, asker)
            if wanted.timestamp < 0 and version < _SINCE.get(wanted.timestamp, version + 1):
                detail = f"time: version {version} of ListOffsets has no offset named {wanted.timestamp}"
                raise Unprocessable(detail, code="offset_name_unknown")
            try:
                timed = await self._offset(topic, wanted)
            except GONE as error:
                raise await self._topics.explained(topic, error) from error
        except DeltaMQError as error:
            return ListedOffset(wanted.index, error_code_of(error))
        epoch = -1 if timed.offset < 0 else EPOCH
        return ListedOffset(wanted.index, ErrorCode.NONE, timed.time_ms, timed.offset, epoch)

    async def _offset(self, topic: HostedTopic, asked: ListOffsetsPartition) -> _TimedOffset:
        wanted, queue = asked.timestamp, self._layout.queue(topic, asked.index)
        name = "" if queue is not None else self._layout.partition(topic, asked.index)
        check_epoch(asked.leader_epoch)
        if queue is not None:
            return await self._offset_in_queue(topic, queue, wanted)
        partition = topic.partition(name)
        log = await partition.newest()
        if wanted in _TIERED:
            return _TimedOffset()
        if wanted in (_EARLIEST, _EARLIEST_LOCAL):
            return _TimedOffset(log.min_offset)
        if wanted == _LATEST:
            return _TimedOffset(log.end_offset)
        if wanted == _MAX_TIMESTAMP:
            wanted = await self._partitions.run(lambda: log.last_born_ms() or 0)
        return _record(await self._partitions.run(partial(log.born_at, wanted * _US)))

    async def _offset_in_queue(self, topic: HostedTopic, queue: LogicalQueue, wanted: int) -> _TimedOffset:
        """Return a logical offset of a queue, by time or at one of its ends (SPEC STATIC-15)."""
        await self._topics.refresh()  # a remapping of another process counts
        queue = self._layout.queue(topic, queue.index) or queue
        if wanted in _TIERED:
            return _TimedOffset()
        if wanted in (_EARLIEST, _EARLIEST_LOCAL, _LATEST):
            bounds = await self._progress.bounds(topic.topic, queue)
            return _TimedOffset(bounds.end_offset if wanted == _LATEST else bounds.min_offset)
        if wanted == _MAX_TIMESTAMP:
            wanted = await self._progress.last_born_ms(topic.topic, queue) or 0
        return _record(await self._progress.born_at(topic.topic, queue, wanted * _US))

    async def ends_of_epochs(self, request: OffsetForLeaderEpochRequest, asker: Asker) -> OffsetForLeaderEpochResponse:
        """Return where the leader epochs end that readers know, by which they would notice a log that was cut."""
        topics = []
        for topic in request.topics:
            ends = [await self._end_of_epoch(topic.name, wanted, asker) for wanted in topic.partitions]
            topics.append(OffsetsOfEpochs(topic.name, ends))
        return OffsetForLeaderEpochResponse(topics=topics)

    async def _end_of_epoch(self, name: str, wanted: WantedEpoch, asker: Asker) -> OffsetOfEpoch:
        try:
            await self._layout.readable(OffsetForLeaderEpochRequest, name, asker)
            check_epoch(wanted.current_leader_epoch)
        except DeltaMQError as error:
            return OffsetOfEpoch(error_code_of(error), wanted.index)
        latest = await self._listed(name, ListOffsetsPartition(index=wanted.index, timestamp=_LATEST), 1, asker)
        if latest.error_code != ErrorCode.NONE or wanted.leader_epoch != EPOCH:
            return OffsetOfEpoch(latest.error_code, wanted.index)
        return OffsetOfEpoch(ErrorCode.NONE, wanted.index, EPOCH, latest.offset)


def _record(born: Born | None) -> _TimedOffset:
    return _TimedOffset() if born is None else _TimedOffset(born.offset, born.time_us // _US)


#: Stands for the end of a partition.
_END = -1


class Removal:
    """The call that removes messages; used on the event loop."""

    def __init__(
        self,
        layout: Layout,
        topics: Topics,
        partitions: Partitions,
        progress: QueueProgress,
        audit: Audit | None,
        *,
        row_group_rows: int,
        now_ms: Callable[[], int],
    ) -> None:
        """`row_group_rows` is how files are written."""
        self._layout = layout
        self._topics = topics
        self._partitions = partitions
        self._progress = progress
        self._audit = audit
        self._row_group_rows = row_group_rows
        self._now_ms = now_ms

    async def delete(self, request: DeleteRecordsRequest, asker: Asker) -> DeleteRecordsResponse:
        """Remove records before the offsets that are asked for; return where the partitions begin then."""
        topics = []
        for topic in request.topics:
            done = [await self._deleted(topic.name, wanted, asker) for wanted in topic.partitions]
            topics.append(DeletedRecords(topic.name, done))
        return DeleteRecordsResponse(topics=topics)

    async def _deleted(self, name: str, wanted: DeleteRecordsPartition, asker: Asker) -> DeleteRecordsResult:
        try:
            asker.check(DeleteRecordsRequest, topic=name)
            topic = await self._layout.topic(name)
            try:
                low = await self._removed(topic, wanted, asker)
            except GONE as error:
                raise await self._topics.explained(topic, error) from error
        except DeltaMQError as error:
            return DeleteRecordsResult(wanted.index, -1, error_code_of(error))
        return DeleteRecordsResult(wanted.index, low, ErrorCode.NONE)

    async def _removed(self, topic: HostedTopic, wanted: DeleteRecordsPartition, asker: Asker) -> int:
        """Remove records before an offset, and return the first offset that is stored."""
        await self._topics.refresh()  # a remapping of another process counts
        queue = self._layout.queue(topic, wanted.index)
        bounds = await self._bounds(topic, queue, wanted.index)
        offset = bounds.end_offset if wanted.offset == _END else wanted.offset
        if not 0 <= offset <= bounds.end_offset:
            detail = f"topic {topic.name}, partition {wanted.index}: offset {offset} is not up to {bounds.end_offset}"
            raise NotFound(detail, code="offset_out_of_range")
        steps = dict(self._steps(topic, queue, wanted.index, offset))
        async with recorded(self._audit, asker, "topic", topic.name, {"offsets": steps}):
            for partition, below in steps.items():
                log = await topic.partition(partition).opened()
                rows = self._row_group_rows
                await self._partitions.run(
                    partial(delete_before, log, below, now_ms=self._now_ms(), row_group_rows=rows)
                )
        return max(offset, (await self._bounds(topic, queue, wanted.index)).min_offset)

    def _steps(
        self, topic: HostedTopic, queue: LogicalQueue | None, index: int, offset: int
    ) -> Iterator[tuple[str, int]]:
        """Yield partitions and the offset below which each is emptied: of a queue, its segments up to `offset`."""
        if queue is None:
            yield self._layout.partition(topic, index), offset
        else:
            yield from ((segment.partition, below) for segment, below in commit_steps(queue, offset))

    async def _bounds(self, topic: HostedTopic, queue: LogicalQueue | None, index: int) -> Bounds:
        if queue is not None:
            return await self._progress.bounds(topic.topic, queue)
        log = await topic.partition(self._layout.partition(topic, index)).newest()
        return Bounds(log.min_offset, log.end_offset)
