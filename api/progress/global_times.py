"""Search by time in the queues of global topics (SPEC STATIC-15, 19).

    time --each cluster with messages of a queue--> its first offset at or after it   --> the smallest of all
                                                                     none anywhere    --> the end

The stays of one cluster are parts of one queue of its own, so one search there finds the first message of all stays.
"""

from __future__ import annotations

from deltamq.api.host.clusters import from_cluster
from deltamq.api.host.global_copies import GlobalCopies
from deltamq.api.host.hosted_topic import HostedTopic, Topics
from deltamq.api.host.peers import Call, json_of
from deltamq.api.progress.group_progress import QueueProgress
from deltamq.mq.static.global_queues import GlobalQueues
from deltamq.mq.static.queue_names import global_queue_name, queue_name
from deltamq.mq.wire.topics import OffsetsByTime, PartitionOffset


class GlobalTimes:
    """Finds offsets by time; used on the event loop."""

    def __init__(self, copies: GlobalCopies, topics: Topics, progress: QueueProgress) -> None:
        self._copies = copies
        self._topics = topics
        self._progress = progress

    async def offsets_at(self, hosted: HostedTopic, time_us: int, call: Call) -> list[PartitionOffset]:
        """Return for each queue the first global offset at or after a time; to another cluster, only this one's part.

        Raises
        ------
        Unavailable
            `queue_unserved`: a cluster that holds messages of the topic cannot be reached.
        """
        self._copies.clusters.refuse_guarded(hosted.name)
        if from_cluster(call.headers):
            return await self._here(hosted, await self._copies.by_copy_of(hosted, call.headers), time_us)
        world, answers = await self._copies.ask_all(hosted, lambda copy: copy.readers, call)
        parts = [
            await self._here(hosted, world, time_us),
            *(json_of(body, OffsetsByTime).offsets for body in answers.values()),
        ]
        names = [global_queue_name(queue) for queue in range(len(world.queues))]
        by_name: dict[str, list[PartitionOffset]] = {name: [] for name in names}
        for first in (first for part in parts for first in part):
            by_name[first.partition].append(first)
        return [PartitionOffset(name, _first(by_name[name])) for name in names]

    async def _here(self, hosted: HostedTopic, world: GlobalQueues, time_us: int) -> list[PartitionOffset]:
        """Return the first message of each queue in this cluster, or the end, if that is here."""
        offsets = []
        for queue in range(len(world.queues)):
            if world.here not in world.clusters_of(queue):
                continue
            local = self._topics.require_queue(hosted, queue_name(queue), "topic")
            at = await self._progress.offset_at(hosted.topic, local, time_us)
            end = await self._progress.end(hosted.topic, local)
            newest = world.readable(queue)[-1]
            name, shown = global_queue_name(queue), world.shown(queue, at)
            if at < end and shown >= 0:
                offsets.append(PartitionOffset(name, shown, found=True))
            elif newest.cluster == world.here:
                offsets.append(
                    PartitionOffset(name, newest.logic_end if newest.is_ended else newest.shown(end), found=False)
                )
        return offsets


def _first(offsets: list[PartitionOffset]) -> int:
    """Return the smallest offset of a message, or the end, which only the cluster of the newest stay gives."""
    return min(offsets, key=lambda offset: (not offset.found, offset.offset)).offset
