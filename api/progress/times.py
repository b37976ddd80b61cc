"""Search by time in the partitions and logical queues of this cluster (SPEC STATIC-15)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from deltamq.api.host.hosted_meta import HostedMeta
from deltamq.api.host.hosted_topic import HostedTopic, Topics
from deltamq.api.log.partition import Partitions
from deltamq.api.progress.group_progress import QueueProgress
from deltamq.mq.errors import Corrupt
from deltamq.mq.wire.topics import PartitionOffset
from deltamq.tables.log.log import PartitionLog


class Times(NamedTuple):
    """Finds the offsets of a time; used on the event loop."""

    topics: Topics
    progress: QueueProgress
    meta: HostedMeta
    partitions: Partitions
    refresh_ms: int

    async def offsets_at(self, hosted: HostedTopic, time_us: int) -> list[PartitionOffset]:
        """Return for each partition, or logical queue, of this cluster the first offset at or after a time.

        Raises
        ------
        Corrupt
            A partition is damaged.
        """
        if hosted.topic.static is not None:
            await self.meta.refresh()  # the newest segments count
            return await _queue_offsets(hosted, self.topics, self.progress, time_us)
        logs = await brought_up(hosted, self.refresh_ms)
        offsets = []
        for name in hosted.route.partitions:
            if name not in logs:
                raise Corrupt(f"partition {name} is damaged; its offsets are not known")
            offset = await self.partitions.run(partial(logs[name].offset_at, time_us))
            offsets.append(PartitionOffset(name, offset))
        return offsets


async def _queue_offsets(
    hosted: HostedTopic, topics: Topics, progress: QueueProgress, time_us: int
) -> list[PartitionOffset]:
    """Return for each logical queue the first logical offset at or after a time (SPEC STATIC-15)."""
    queues = [topics.require_queue(hosted, name, "topic") for name in hosted.topic.client_partitions]
    return [PartitionOffset(queue.name, await progress.offset_at(hosted.topic, queue, time_us)) for queue in queues]


async def brought_up(hosted: HostedTopic, refresh_ms: int) -> Mapping[str, PartitionLog]:
    """Return the topic's logs, refreshed if older than `refresh_ms`: an end offset must not seem to go back."""
    logs = await hosted.logs()
    since = asyncio.get_running_loop().time() - refresh_ms / 1000
    old = [partition for partition in hosted.partitions if partition.name in logs and partition.refreshed_at < since]
    # A damaged partition is shown with its error.
    await asyncio.gather(*(partition.refresh() for partition in old), return_exceptions=True)
    return logs
