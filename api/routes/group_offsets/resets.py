"""Resets of a group's offsets in one topic, in a new epoch (SPEC POP-18)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deltamq.api.host.hosted_group import Groups
from deltamq.api.host.hosted_meta import HostedMeta
from deltamq.api.host.hosted_topic import HostedTopic, Topics
from deltamq.api.host.owners import Owners
from deltamq.api.host.peers import Call
from deltamq.api.progress.group_progress import QueueProgress, check_offset
from deltamq.api.queue.group_topic import bounds_at
from deltamq.api.queue.lanes import Lanes
from deltamq.api.routes.group_offsets.named import EMPTY, check_not_broadcast, named
from deltamq.mq.meta.reset import lanes_of
from deltamq.mq.meta.topics import Topic
from deltamq.mq.names import broker_of
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.queue.progress import Bounds, Start, reset_position
from deltamq.mq.static.logical_queue import LogicalQueue
from deltamq.mq.wire.groups import ResetRequest


class OffsetResets:
    """Resets offsets in this cluster's partitions; used on the event loop."""

    def __init__(
        self,
        meta: HostedMeta,
        topics: Topics,
        groups: Groups,
        owners: Owners,
        *,
        lanes: Lanes,
        progress: QueueProgress,
    ) -> None:
        self._meta = meta
        self._topics = topics
        self._groups = groups
        self._owners = owners
        self._lanes = lanes
        self._progress = progress

    async def store(self, group: str, hosted: HostedTopic, call: Call, asked: ResetRequest) -> dict[str, Any]:
        """Reset offsets, those of a global topic in this cluster's own names and offsets; return the answer."""
        drop = asked.retries == "drop"
        target = Start.from_json(asked.to, field="to") if isinstance(asked.to, str) else asked.to
        check_not_broadcast(await self._groups.reader(group))
        found = (await self._topics.require(hosted.name)).topic
        if found.static is not None:
            await self._meta.refresh()  # the newest segments count
        offsets, shown = await self._targets(group, found, target)
        if drop:
            offsets |= await self._past_retries(group, found)
        epoch, ends = await self._groups.reset(group, found, offsets)
        if drop and any(end > offsets.get(lane, 0) for lane, end in ends.items()):
            # A revive run appended meanwhile: go past that, too. Later runs know of the reset.
            offsets |= ends
            epoch, _ = await self._groups.reset(group, found, offsets)
        # The next request to the owners of the lanes must find them in the new epoch.
        await self._owners.tell({broker_of(lane.partition) for lane in offsets}, call)
        return {
            "group": group,
            "topic": hosted.name,
            "epoch": epoch,
            "offsets": shown
            | {lane.partition: at for lane, at in offsets.items() if found.static is None or lane.retry},
        }

    async def _targets(
        self, group: str, topic: Topic, target: Start | Mapping[str, int]
    ) -> tuple[dict[LaneKey, int], dict[str, int]]:
        """Return the new offset of each lane to be reset, and the logical one of each queue of a static topic."""
        if not isinstance(target, Start):
            wanted, lanes = named(self._topics, group, topic, target, "to")
            offsets = {}
            for lane, offset in lanes.items():
                bounds = await self._lanes.bounds(lane, topic.name) or EMPTY
                check_offset(lane.partition, offset, bounds.end_offset, "to")
                offsets[lane] = reset_position(offset, bounds)
            in_queues, shown = await self._queue_targets(group, topic, wanted)
            return offsets | in_queues, shown
        queues = self._topics.queues_of(topic)
        if queues is not None:
            all_of_them = {queues.require(name, topic.name): target for name in queues.names}
            return await self._queue_targets(group, topic, all_of_them)
        lanes_there = [lane for lane in lanes_of(group, topic) if not lane.retry]
        return {
            lane: reset_position(target, await self._bounds_at(lane, topic.name, target.time_ms))
            for lane in lanes_there
        }, {}

    async def _queue_targets(
        self, group: str, topic: Topic, targets: Mapping[LogicalQueue, Start | int]
    ) -> tuple[dict[LaneKey, int], dict[str, int]]:
        lanes: dict[LaneKey, int] = {}
        shown: dict[str, int] = {}
        for queue, target in targets.items():
            its, shown[queue.name] = await self._progress.reset_lanes(topic, group, queue, target, "to")
            lanes |= its
        return lanes, shown

    async def _bounds_at(self, lane: LaneKey, topic: str, time_ms: int | None) -> Bounds:
        """Return the bounds of a partition, and the offset of `time_ms` in it."""
        log = await self._lanes.partition_of(lane, topic).look()
        assert log is not None, "a topic's partition is there, or raised why not"
        return await bounds_at(self._lanes.logs.run, log, time_ms)

    async def _past_retries(self, group: str, topic: Topic) -> dict[LaneKey, int]:
        """Return the end of each of the group's existing retry partitions."""
        offsets = {}
        for lane in lanes_of(group, topic):
            bounds = await self._lanes.bounds(lane, topic.name) if lane.retry else None
            if bounds is not None:
                offsets[lane] = bounds.end_offset
        return offsets
