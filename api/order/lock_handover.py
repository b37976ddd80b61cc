"""Pull locks that pass on: moves in the metadata, accounts between processes, where a group goes on (ORDER-5).

    lock refused, or a release of an unknown lock --> new leader's process --GET locks--> previous leader's process
                                                                           <--account---- (it knows of the move now)

Without an answer, the new process waits until every client that may hold the lock has claimed or lost it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Final, NamedTuple
from urllib.parse import quote

from deltamq.api.host.hosted_meta import HostedMeta
from deltamq.api.host.hosted_topic import Topics
from deltamq.api.host.peers import Call, Peers, json_of
from deltamq.api.progress.group_progress import QueueProgress
from deltamq.api.queue.group_topic import begin, bounds_at
from deltamq.api.queue.lanes import Lanes
from deltamq.api.wire.answer import Header
from deltamq.mq.errors import DeltaMQError
from deltamq.mq.limits import MAX_ATTEMPTS_MAX
from deltamq.mq.meta.fold import Meta
from deltamq.mq.meta.group import Group
from deltamq.mq.meta.topics import Topic
from deltamq.mq.names import broker_of
from deltamq.mq.order.pull_lock import LockAccount, PullLocks
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.queue.progress import Committed, StartKind, first_position
from deltamq.mq.static.logical_queue import LogicalQueue
from deltamq.mq.static.queue_names import queue_name


class LeaderChange(NamedTuple):
    """A logical queue with another leader."""

    topic: Topic
    queue: str
    broker: str
    #: The broker of the previous leader; None if it is not known.
    previous: str | None


def remapped(before: Meta, after: Meta) -> Iterator[LeaderChange]:
    """Yield the logical queues whose leader changed, or may have changed before this process knew of the topic."""
    for topic in after.topics.topics.values():
        present = before.topics.topics.get(topic.name)
        if topic.static is None or present is topic:
            continue
        was: Mapping[int, str] = present.leaders() if present is not None and present.id == topic.id else {}
        sources = {move.target: move.source for move in after.moved_keys(topic.id).moves if move.remaps}
        for index, leader in topic.leaders().items():
            source = sources.get(leader)
            if was.get(index) != leader and (index in was or source is not None):
                # After several remappings at once, the brokers in between are not known.
                previous = broker_of(source) if source is not None and source == was.get(index) else None
                yield LeaderChange(topic, queue_name(index), broker_of(leader), previous)


def reallocated(before: Meta, after: Meta) -> Iterator[tuple[str, str]]:
    """Yield topic and partition of each partition whose owner in some group has changed."""
    for name, group in before.online.groups.items():
        now = after.online.group(name)
        if now is group:
            continue
        for topic, allocation in group.topics.items():
            there = now.topics.get(topic)
            if there is allocation:
                continue
            for partition, owner in allocation.owner.items():
                if there is None or there.owner.get(partition) != owner:
                    yield topic, partition


#: Seconds for the answer: a process that is well answers in milliseconds. A client that wants the lock asks again.
_WITHIN_S: Final = 1.0
_OK: Final = 200


class LockAccounts:
    """Asks other processes for locks, for each lock once at a time; used on the event loop."""

    def __init__(self, peers: Peers, here: Callable[[str, str, LaneKey], Awaitable[LockAccount]]) -> None:
        """`here` returns the account of a broker of this process: by the broker, the topic's name and the lane."""
        self._peers = peers
        self._here = here
        self._asking: dict[LaneKey, asyncio.Task[LockAccount | None]] = {}

    async def of(self, broker: str, topic: str, lane: LaneKey, headers: Collection[Header]) -> LockAccount | None:
        """Return the account of the process of `broker` for the lock; None if it does not answer.

        `headers` are the headers of the client's request.
        """
        asking = self._asking.get(lane)
        if asking is None:
            asking = self._asking[lane] = asyncio.ensure_future(self._ask(broker, topic, lane, headers))
            asking.add_done_callback(lambda _: self._asking.pop(lane, None))
        # The other waiters go on if this one's client leaves.
        return await asyncio.shield(asking)

    async def _ask(self, broker: str, topic: str, lane: LaneKey, headers: Collection[Header]) -> LockAccount | None:
        path = f"/v1/groups/{quote(lane.group, safe='')}/topics/{quote(topic, safe='')}/locks"
        query = f"?partition={quote(lane.partition, safe='')}&broker={quote(broker, safe='')}"
        call = Call.on_behalf("GET", path + query, headers)._replace(timeout_s=_WITHIN_S)
        try:
            peer = self._peers.of(broker, call)
            if peer is None:
                return await self._here(broker, topic, lane)
            answer = await self._peers.ask(*peer, call)
            return json_of(answer.body, LockAccount) if answer.status == _OK else None
        except DeltaMQError:
            return None


class LockRequest(NamedTuple):
    """A client's request for locks; `held` are partitions whose locks it has had without a break."""

    group: Group
    topic: Topic
    client: str
    partitions: tuple[str, ...]
    held: frozenset[str]
    #: The headers of the request, for calls to other processes.
    headers: Collection[Header] = ()


class LockStarts:
    """Finds where lock holders start; used on the event loop."""

    def __init__(self, meta: HostedMeta, topics: Topics, lanes: Lanes, progress: QueueProgress) -> None:
        self._meta = meta
        self._topics = topics
        self._lanes = lanes
        self._progress = progress

    async def of(self, asked: LockRequest, lane: LaneKey, locks: PullLocks) -> tuple[int, int]:
        """Return the offset at which the group goes on, and how often the message there was tried.

        The offset is the committed position, else the start by the group's settings, which is stored (SPEC CONS-2).
        """
        queues = self._topics.queues_of(asked.topic)
        if queues is not None:
            return await self._in_queue(asked, queues.require(lane.partition, asked.topic.name), lane, locks)
        committed = await self._lanes.committed(lane)
        if committed is not None:
            committed = await self._counted(lane, asked.topic, committed, locks)
            return committed.offset, committed.attempts
        return await self._first(lane, asked.topic, asked.group), 0

    async def _counted(self, lane: LaneKey, topic: Topic, committed: Committed, locks: PullLocks) -> Committed:
        """Return the progress; if a client died there, first store one more attempt of the message (SPEC ORDER-8)."""
        if not locks.is_abandoned(lane):
            return committed
        opened = await self._lanes.partition_of(lane, topic.name).look()
        if opened is not None and committed.offset < opened.end_offset:
            attempts = min(committed.attempts + 1, MAX_ATTEMPTS_MAX)
            committed = await self._lanes.commit(lane, topic.name, committed.offset, committed.epoch, attempts=attempts)
        locks.counted(lane)
        return committed

    async def _first(self, lane: LaneKey, topic: Topic, group: Group) -> int:
        """Return the start of a group that never consumed this partition, and store it."""
        epoch = self._lanes.groups.epoch_of(lane)
        await begin(self._meta, topic, group)
        partition = self._lanes.partition_of(lane, topic.name)
        start = self._meta.now.groups.start_in(lane, group, topic.route.partitions)
        opened = await partition.opened()
        await partition.refresh()
        offset = first_position(start, await bounds_at(self._lanes.logs.run, opened, start.time_ms), pop=False)
        if start.kind is not StartKind.FIRST:
            await self._lanes.commit(lane, topic.name, offset, epoch)
        elif epoch is not None:
            # A crash finds the same position again; messages that retention takes from now on count as lost.
            self._lanes.logs.offsets.note(lane, topic.name, Committed(epoch, offset))
        return offset

    async def _in_queue(
        self, asked: LockRequest, queue: LogicalQueue, lane: LaneKey, locks: PullLocks
    ) -> tuple[int, int]:
        """Do as `of` for a logical queue, whose segments may be at brokers of other processes."""
        topic, group = asked.topic, asked.group
        at = await self._progress.of(topic, group, queue, newest=True)
        store = partial(self._progress.store, topic, group, queue, headers=asked.headers)
        if not at.is_begun:
            await begin(self._meta, topic, group)
            at = await self._progress.of(topic, group, queue, newest=True)
            # As in a plain partition, this consumes nothing, and a start that a crash finds again need not be durable.
            again = group.settings.consume_from.kind is StartKind.FIRST
            await self._progress.begin(topic, group, queue, at.offset, found_again=again, headers=asked.headers)
            return at.offset, 0
        attempts = 0 if at.committed is None else at.committed.attempts
        if locks.is_abandoned(lane):
            if at.offset < (await self._progress.bounds(topic, queue)).end_offset:
                attempts = min(attempts + 1, MAX_ATTEMPTS_MAX)
                await store(at.offset, meant=at.epoch, attempts=attempts)
            locks.counted(lane)
        return at.offset, attempts
