"""Commits of a group's offsets in one topic: all are checked, then each is stored by the process that serves it."""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Iterable, Mapping
from typing import Final, TypeVar

import msgspec

from deltamq.api.host.hosted_group import Groups
from deltamq.api.host.hosted_meta import HostedMeta
from deltamq.api.host.hosted_topic import Topics
from deltamq.api.host.hosting import Hosting
from deltamq.api.host.owners import Owners, together
from deltamq.api.host.peers import Call, Peer, is_forwarded
from deltamq.api.order.pull_locks import Locks
from deltamq.api.progress.group_progress import LaneCommits, QueueProgress, check_offset, is_begin
from deltamq.api.queue.group_topic import begin
from deltamq.api.queue.lanes import Lanes
from deltamq.api.routes.order_request import check_named
from deltamq.api.statistics import GroupStatistics
from deltamq.mq.errors import Conflict
from deltamq.mq.meta.group import Group
from deltamq.mq.meta.reset import lanes_of
from deltamq.mq.meta.topics import Topic, no_partition
from deltamq.mq.names import broker_of
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.queue.progress import Bounds, Committed, check_epoch, check_metadata
from deltamq.mq.static.logical_queue import LogicalQueue
from deltamq.mq.wire.groups import CommitRequest, CommittedOffsets

#: A lane or a logical queue.
K = TypeVar("K")
#: A number or a text of a partition.
V = TypeVar("V")


class OffsetCommits:
    """Commits offsets of this cluster's partitions; used on the event loop."""

    def __init__(
        self,
        meta: HostedMeta,
        topics: Topics,
        groups: Groups,
        owners: Owners,
        hosting: Hosting,
        *,
        lanes: Lanes,
        locks: Locks,
        commits: LaneCommits,
        progress: QueueProgress,
        statistics: GroupStatistics,
    ) -> None:
        self._meta = meta
        self._topics = topics
        self._groups = groups
        self._owners = owners
        self._hosting = hosting
        self._lanes = lanes
        self._locks = locks
        self._commits = commits
        self._progress = progress
        self._statistics = statistics

    async def store(self, group: str, topic: str, call: Call, asked: CommitRequest) -> CommittedOffsets:
        """Commit offsets, in a global topic by this cluster's own names and offsets; return the answer."""
        numbers, attempts = asked.locks or {}, asked.attempts or {}
        check_named(numbers, "locks", asked.offsets)
        check_named(attempts, "attempts", asked.offsets)
        known_topic = await self._topic_meant(topic, asked.topic_id)
        known_group = await self._groups.for_use(group)
        check_not_broadcast(known_group)
        if attempts and known_group.settings.consume_strategy != "exclusive":
            raise Conflict(
                f"group {group} is {known_group.settings.consume_strategy}: only exclusive groups commit attempts",
                code="group_not_exclusive",
                field="attempts",
            )
        began = self._meta.now.groups
        queues, lanes = await self._checked(known_topic, group, asked, from_peer=is_forwarded(call.headers))
        # A commit without an epoch counts in the epoch in which it began: a reset meanwhile stands (SPEC POP-18).
        epochs = {lane.partition: epoch for lane in lanes if (epoch := began.epoch_of(lane)) is not None}
        for queue in queues:
            of_lanes = map(began.epoch_of, self._progress.lanes(known_topic, group, queue))
            epochs[queue.name] = max((epoch for epoch in of_lanes if epoch is not None), default=0)
        epochs |= asked.epochs or {}
        ours, theirs = _by_owner(self._owners, {lane: broker_of(lane.partition) for lane in lanes}, call)
        our_queues, their_queues = _by_owner(self._owners, {queue: queue.leader.broker for queue in queues}, call)
        # Where a static topic's lane is named by itself, the process of its queue's leader has checked the lock.
        locked = [] if known_topic.static is not None else [lane for lane in ours if not lane.retry]
        for lane in [*locked, *(LaneKey(known_topic.id, group, False, queue.name) for queue in our_queues)]:
            number, where = numbers.get(lane.partition), f"offsets.{lane.partition}"
            self._locks.check_commit(known_group, known_topic, lane, asked.client_id, number, where)
        await begin(self._meta, known_topic, known_group)
        asking: list[Awaitable[dict[str, Committed]]] = [
            self._commits.there(peer, call, _part(asked, names)) for peer, names in _names(theirs, their_queues).items()
        ]
        begins = is_forwarded(call.headers) and is_begin(call.headers)
        here = self._commits.here(
            topic, {lane: lanes[lane] for lane in ours}, epochs, attempts, metadata=asked.metadata or {}, begins=begins
        )
        queues_here = {queue: queues[queue] for queue in our_queues}
        in_queues = self._in_queues(known_topic, known_group, queues_here, epochs, asked, call)
        done = await together([here, in_queues, *asking])
        committed = {name: at for part in done for name, at in part.items()}
        offsets = {name: committed[name].offset for name in asked.offsets}
        leaders = {lane.partition: broker_of(lane.partition) for lane in locked}
        leaders |= {queue.name: queue.leader.broker for queue in our_queues}
        for name, broker in leaders.items():
            self._statistics.committed(group, known_topic, name, broker, offsets[name])
        epochs = {name: committed[name].epoch for name in asked.offsets}
        return CommittedOffsets(group=group, topic=topic, topic_id=known_topic.id, offsets=offsets, epochs=epochs)

    async def _topic_meant(self, name: str, topic_id: str | None) -> Topic:
        """Return the topic, checked against `topic_id` if one is given."""
        topic = (await self._topics.of_group(name)).topic
        if topic_id in (None, topic.id):
            return topic
        await self._meta.refresh()
        topic = (await self._topics.of_group(name)).topic
        if topic.id != topic_id:
            raise Conflict(
                f"topic {name} was deleted and made again since its offsets were read",
                code="epoch_over",
                field="topic_id",
                extra={"topic_id": topic.id},
            )
        return topic

    async def _checked(
        self, topic: Topic, group: str, asked: CommitRequest, *, from_peer: bool
    ) -> tuple[dict[LogicalQueue, int], dict[LaneKey, int]]:
        """Return the offsets by queue and by lane, with epochs and ends checked by what is known here.

        Each lane's owner checks the epochs again.
        """
        epochs = asked.epochs or {}
        queues, lanes = named(self._topics, group, topic, asked.offsets, "offsets", from_peer=from_peer)
        if max(epochs.values(), default=0) > self._meta.now.groups.epoch:
            await self._meta.refresh()
        ends = await self._ends(topic, queues)
        if any(offset > ends[queue] for queue, offset in queues.items()):
            # The client may know, from another process, a segment that is not known here yet.
            await self._meta.refresh()
            queues, lanes = named(self._topics, group, topic, asked.offsets, "offsets", from_peer=from_peer)
            ends = await self._ends(topic, queues)
        for lane in lanes:
            check_epoch(lane.partition, epochs.get(lane.partition), self._meta.now.groups.epoch_of(lane) or 0)
        for lane, offset in lanes.items():
            bounds = await self._lanes.bounds(lane, topic.name) or EMPTY
            check_offset(lane.partition, offset, bounds.end_offset, "offsets")
        for queue, offset in queues.items():
            check_epoch(queue.name, epochs.get(queue.name), self._progress.epoch_of(topic, group, queue) or 0)
            check_offset(queue.name, offset, ends[queue], "offsets")
        return queues, lanes

    async def _ends(self, topic: Topic, queues: Iterable[LogicalQueue]) -> dict[LogicalQueue, int]:
        return {queue: await self._progress.end(topic, queue) for queue in queues}

    async def _in_queues(
        self,
        topic: Topic,
        group: Group,
        queues: Mapping[LogicalQueue, int],
        epochs: Mapping[str, int],
        asked: CommitRequest,
        call: Call,
    ) -> dict[str, Committed]:
        """Commit logical offsets of queues that this process leads, in lanes of any process (SPEC STATIC-16)."""
        held = {queue.leader.broker: self._hosting.epoch(queue.leader.broker) for queue in queues}
        attempts, texts = asked.attempts or {}, asked.metadata or {}
        done = await together(
            [
                self._progress.store(
                    topic,
                    group,
                    queue,
                    offset,
                    meant=epochs.get(queue.name),
                    attempts=attempts.get(queue.name, 0),
                    metadata=texts.get(queue.name, ""),
                    headers=call.headers,
                )
                for queue, offset in queues.items()
            ]
        )
        for broker, epoch in held.items():
            await self._hosting.confirm(broker, epoch)
        return {queue.name: committed for queue, committed in zip(queues, done, strict=True)}


def check_texts(asked: CommitRequest) -> None:
    """Refuse a text of a partition that is not committed, and one that is too large."""
    texts = asked.metadata or {}
    check_named(texts, "metadata", asked.offsets)
    for name, text in texts.items():
        check_metadata(name, text)


def _by_owner(owners: Owners, brokers: Mapping[K, str], call: Call) -> tuple[list[K], dict[Peer, list[K]]]:
    """Return what this process serves, and what others serve, by process; `brokers` has the broker of each."""
    ours: list[K] = []
    theirs: dict[Peer, list[K]] = {}
    for key, broker in brokers.items():
        peer = owners.of(broker, call)
        if peer is None:
            ours.append(key)
        else:
            theirs.setdefault(peer, []).append(key)
    return ours, theirs


def _names(lanes: Mapping[Peer, list[LaneKey]], queues: Mapping[Peer, list[LogicalQueue]]) -> dict[Peer, set[str]]:
    return {
        peer: {*(lane.partition for lane in lanes.get(peer, ())), *(queue.name for queue in queues.get(peer, ()))}
        for peer in {*lanes, *queues}
    }


def _part(asked: CommitRequest, names: Collection[str]) -> CommitRequest:
    def part(given: Mapping[str, V] | None) -> dict[str, V]:
        return {name: value for name, value in (given or {}).items() if name in names}

    return msgspec.structs.replace(
        asked,
        offsets=part(asked.offsets),
        locks=part(asked.locks),
        epochs=part(asked.epochs),
        attempts=part(asked.attempts),
        metadata=part(asked.metadata),
    )


#: The bounds of a partition that does not exist yet.
EMPTY: Final = Bounds(0, 0)


def check_not_broadcast(group: Group) -> None:
    """Refuse a broadcast group: each of its clients has offsets of its own (SPEC CONS-7)."""
    if group.is_broadcast:
        raise Conflict(
            f"group {group.name} is a broadcast group: name one of its clients, {group.name}@CLIENT",
            code="group_broadcast",
            field="group",
        )


def named(
    topics: Topics, group: str, topic: Topic, wanted: Mapping[str, int], field: str, *, from_peer: bool = False
) -> tuple[dict[LogicalQueue, int], dict[LaneKey, int]]:
    """Return what a request names: logical queues of a static topic, and lanes, which may be retry partitions.

    Another process (`from_peer`) names the lanes of single segments, too.
    """
    queues = topics.queues_of(topic)
    lanes = {lane.partition: lane for lane in lanes_of(group, topic) if queues is None or from_peer or lane.retry}
    in_queues: dict[LogicalQueue, int] = {}
    in_lanes: dict[LaneKey, int] = {}
    for partition, offset in wanted.items():
        lane = lanes.get(partition)
        if lane is not None:
            in_lanes[lane] = offset
        elif queues is not None:
            in_queues[queues.require(partition, topic.name, f"{field}.{partition}")] = offset
        else:
            raise no_partition(topic.name, partition, field, at=f"{field}.{partition}")
    return in_queues, in_lanes
