"""A group's progress in each partition of a topic, as the API shows it: offsets, and what the tables hold.

Lanes of other processes' brokers are shown as those processes answer: they get the same request, and each answers with
its own lanes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import TypeVar

from msgspec.structs import replace

from deltamq.api.host.hosted_topic import Topics
from deltamq.api.host.hosting import Hosting
from deltamq.api.host.owners import Owners, Relayed, together
from deltamq.api.host.peers import Call, Peer, is_forwarded
from deltamq.api.queue.lanes import Lanes
from deltamq.api.queue.moved_progress import MovedProgress
from deltamq.api.queue.redelivered import settle_overdue
from deltamq.api.wire.fields import moment
from deltamq.mq.errors import Corrupt, Unavailable, Unknown
from deltamq.mq.meta.group import Group
from deltamq.mq.meta.reset import lanes_of
from deltamq.mq.meta.topics import Topic
from deltamq.mq.names import broker_of
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.queue.progress import Bounds, lag_messages
from deltamq.mq.static.logical_queue import LogicalQueue
from deltamq.mq.static.progress import committed_at, committed_offset
from deltamq.mq.wire.groups import GroupPartition

T = TypeVar("T")


class LaneViews:
    """Shows the progress of groups in partitions; used on the event loop."""

    def __init__(self, lanes: Lanes, hosting: Hosting, topics: Topics, moved: MovedProgress) -> None:
        self._lanes = lanes
        self._hosting = hosting
        self._topics = topics
        self._moved = moved

    async def of(
        self, group: str, topic: Topic, *, consumed: bool, others: Others | None = None
    ) -> list[GroupPartition]:
        """Return all partitions of a topic in route order, retries last.

        With `consumed`, none is returned if the group has touched none. A retry partition that does not exist yet is
        left out. `others` has the lanes of other processes' brokers; without it, only the lanes of this process are
        returned. Of a static topic the logical queues are returned, but to another process the lanes of their segments.
        """
        queues = self._topics.queues_of(topic)
        lanes = lanes_of(group, topic if queues is None else self._lanes.topic(topic.name) or topic)
        await settle_overdue(self._lanes, lanes)
        if others is None:
            lanes = [lane for lane in lanes if self._hosting.hosts(_broker(lane))]
        for broker in sorted({_broker(lane) for lane in lanes}):
            if self._hosting.hosts(broker):
                await self._lanes.follow_streams(broker)
        begun = [
            await _begun(self._lanes, lane) if self._hosting.hosts(_broker(lane)) else _reported(others, topic, lane)
            for lane in lanes
        ]
        if consumed and not any(map(_is_touched, begun)):
            return []
        bounds = await asyncio.gather(*(_readable_bounds(self._lanes, lane, topic.name) for lane in lanes))
        views = [
            _with_bounds(view, readable)
            for view, readable in zip(begun, bounds, strict=True)
            if readable is not None or not view.retry or _is_touched(view)
        ]
        if queues is None or others is None:
            return views
        by_partition = {view.partition: view for view in views}
        known_group = self._lanes.groups.group(group)
        shown = [
            await _queue_view(self._moved, topic, known_group, name, queues.find(name), by_partition)
            for name in queues.names
        ]
        return [*shown, *(view for view in views if view.retry)]


async def _queue_view(
    moved: MovedProgress,
    topic: Topic,
    group: Group,
    name: str,
    queue: LogicalQueue | None,
    views: Mapping[str, GroupPartition],
) -> GroupPartition:
    """Return a logical queue as the group sees it, from the views of its segments' lanes (SPEC STATIC-15, 16).

    Its lag is the number of messages in all segments. A queue whose mapping is not available is shown without numbers.
    """
    if queue is None:
        return GroupPartition(partition=name)
    lanes = [views[segment.partition] for segment in queue.segments]
    positions = {lane.partition: lane.committed_offset for lane in lanes}
    offset, metadata = None, None
    if any(at is not None for at in positions.values()):
        for lane in lanes:
            if lane.committed_offset is None:
                positions[lane.partition] = await moved.position(topic, group, lane.partition, pop=False)
        known = {partition: at for partition, at in positions.items() if at is not None}
        committed = {lane.partition: lane.committed_offset for lane in lanes}
        offset = committed_offset(queue, committed, known)
        noting = committed_at(queue, committed, offset)
        metadata = None if noting is None else views[noting.partition].metadata
    lags = [_lag(lane, positions[lane.partition]) for lane in lanes]
    first, newest = views[queue.readable[0].partition], views[queue.newest_readable.partition]
    low, high = first.min_offset, newest.end_offset
    return GroupPartition(
        partition=name,
        committed_offset=offset,
        min_offset=None if low is None or high is None else queue.readable[0].logical(low),
        end_offset=None if low is None or high is None else queue.newest_readable.logical(high),
        lag=None if None in lags else sum(lag for lag in lags if lag is not None),
        in_flight=sum(lane.in_flight for lane in lanes),
        last_consume_time=max((lane.last_consume_time for lane in lanes if lane.last_consume_time), default=None),
        epoch=max((lane.epoch for lane in lanes if lane.epoch is not None), default=None),
        metadata=metadata,
    )


def _lag(lane: GroupPartition, position: int | None) -> int | None:
    """Return how many messages the group has not consumed in a lane; None if the lane's bounds are not known."""
    if lane.min_offset is None or lane.end_offset is None:
        return None
    return lag_messages(position, Bounds(lane.min_offset, lane.end_offset))


class Others:
    """The lanes of other processes' brokers, as those processes answered."""

    def __init__(self) -> None:
        self._views: dict[tuple[str, str], GroupPartition] = {}

    def add(self, topic: str, lanes: Iterable[GroupPartition]) -> None:
        """Add one process's answer about a topic."""
        self._views.update({(topic, lane.partition): lane for lane in lanes})

    @property
    def topics(self) -> set[str]:
        """The names of the topics in their answers."""
        return {topic for topic, _ in self._views}

    def get(self, topic: str, partition: str) -> GroupPartition | None:
        """Return the lane, if the process that serves it has answered that the group has touched it."""
        return self._views.get((topic, partition))


async def ask_reachable(hosting: Hosting, owners: Owners, brokers: Iterable[str], call: Call, kind: type[T]) -> list[T]:
    """Return the answers of the other processes that can be reached; none if one of them has forwarded this call."""
    if is_forwarded(call.headers) or hosting.alone:
        return []
    return await ask_others(owners, brokers, call, kind, all_of_them=False)


async def ask_others(
    owners: Owners, brokers: Iterable[str], call: Call, kind: type[T], *, all_of_them: bool
) -> list[T]:
    """Ask the processes that serve these brokers, and return their answers, each of this `kind`.

    If a process cannot be reached, it raises with `all_of_them`; otherwise it leaves that process out.
    """
    peers: set[Peer] = set()
    for broker in sorted(brokers):
        try:
            peer = owners.of(broker, call)
        except Unavailable:
            if all_of_them:
                raise
            continue
        if peer is not None:
            peers.add(peer)

    async def asked(peer: Peer) -> T | None:
        try:
            return await owners.ask(peer, call, kind)
        except (Unavailable, Unknown, Relayed):
            if all_of_them:
                raise
            return None

    return [answer for answer in await together([asked(peer) for peer in sorted(peers)]) if answer is not None]


def _broker(lane: LaneKey) -> str:
    return broker_of(lane.partition)


def _reported(others: Others | None, topic: Topic, lane: LaneKey) -> GroupPartition:
    view = None if others is None else others.get(topic.name, lane.partition)
    return view or GroupPartition(partition=lane.partition, retry=lane.retry)


def _is_touched(view: GroupPartition) -> bool:
    return view.committed_offset is not None or view.in_flight > 0 or view.last_consume_time is not None


async def _begun(lanes: Lanes, lane: LaneKey) -> GroupPartition:
    """Return the part of a lane's view that memory knows."""
    committed = await lanes.committed(lane)
    last_ms = lanes.last_consumed_ms(lane)
    return GroupPartition(
        partition=lane.partition,
        retry=lane.retry,
        committed_offset=None if committed is None else committed.offset,
        in_flight=lanes.in_flight(lane),
        last_consume_time=None if last_ms is None else moment(last_ms),
        epoch=lanes.groups.epoch_of(lane) if committed is None else committed.epoch,
        metadata=None if committed is None else committed.metadata or None,
    )


def _with_bounds(view: GroupPartition, bounds: Bounds | None) -> GroupPartition:
    if bounds is None:
        return view
    lag = lag_messages(view.committed_offset, bounds)
    return replace(view, min_offset=bounds.min_offset, end_offset=bounds.end_offset, lag=lag)


async def _readable_bounds(lanes: Lanes, lane: LaneKey, topic: str) -> Bounds | None:
    try:
        return await lanes.bounds(lane, topic)
    except Corrupt:
        return None
