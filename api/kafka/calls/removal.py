"""DeleteRecords: what lies before an offset is removed, as if retention had taken it (SPEC KAFKA-19)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from deltamq.api.audit.audit import Audit
from deltamq.api.host.hosted_topic import GONE, HostedTopic, Topics
from deltamq.api.kafka.access.needs import Asker
from deltamq.api.kafka.calls.acts import recorded
from deltamq.api.kafka.calls.places import Places
from deltamq.api.kafka.messages.errors import ErrorCode, error_code_of
from deltamq.api.kafka.messages.log_messages import (
    DeletedRecords,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsResult,
)
from deltamq.api.log.partition import Partitions
from deltamq.api.progress.group_progress import QueueProgress
from deltamq.mq.errors import DeltaMQError, NotFound
from deltamq.mq.queue.progress import Bounds
from deltamq.mq.static.logical_queue import LogicalQueue
from deltamq.mq.static.progress import commit_steps
from deltamq.tables.log.rewrite import delete_before

#: Stands for the end of a partition.
_END = -1


class Removal:
    """The call that removes messages; used on the event loop."""

    def __init__(
        self,
        places: Places,
        topics: Topics,
        partitions: Partitions,
        progress: QueueProgress,
        audit: Audit | None,
        *,
        row_group_rows: int,
        now_ms: Callable[[], int],
    ) -> None:
        """`row_group_rows` is how files are written."""
        self._places = places
        self._topics = topics
        self._partitions = partitions
        self._progress = progress
        self._audit = audit
        self._row_group_rows = row_group_rows
        self._now_ms = now_ms

    async def delete(self, request: DeleteRecordsRequest, asker: Asker) -> DeleteRecordsResponse:
        """Remove what lies before the offsets that are asked for; tell where the partitions begin then."""
        topics = []
        for topic in request.topics:
            done = [await self._deleted(topic.name, wanted, asker) for wanted in topic.partitions]
            topics.append(DeletedRecords(topic.name, done))
        return DeleteRecordsResponse(topics=topics)

    async def _deleted(self, name: str, wanted: DeleteRecordsPartition, asker: Asker) -> DeleteRecordsResult:
        try:
            asker.check(DeleteRecordsRequest, topic=name)
            topic = await self._places.topic(name)
            try:
                low = await self._removed(topic, wanted, asker)
            except GONE as error:
                raise await self._topics.explained(topic, error) from error
        except DeltaMQError as error:
            return DeleteRecordsResult(wanted.index, -1, error_code_of(error))
        return DeleteRecordsResult(wanted.index, low, ErrorCode.NONE)

    async def _removed(self, topic: HostedTopic, wanted: DeleteRecordsPartition, asker: Asker) -> int:
        """Remove what lies before an offset, and return the first that is stored."""
        await self._topics.refresh()  # a remapping of another process counts
        queue = self._places.queue(topic, wanted.index)
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
        """Yield partitions and the offset below which each is emptied: of a queue, its segments up to a logical one."""
        if queue is None:
            yield self._places.partition(topic, index), offset
        else:
            yield from ((segment.partition, below) for segment, below in commit_steps(queue, offset))

    async def _bounds(self, topic: HostedTopic, queue: LogicalQueue | None, index: int) -> Bounds:
        if queue is not None:
            return await self._progress.bounds(topic.topic, queue)
        log = await topic.partition(self._places.partition(topic, index)).newest()
        return Bounds(log.min_offset, log.end_offset)
