"""Replay of dead letters: to their original partitions, for all groups, or to the retry partition of their own group.

    chosen offsets --some at a time--> rows --by target--> one part for each message --> commits --> counted

Each message is a request of its own (see `mq.queue.replay`), so a replay that was cut short can be repeated. In a
static topic it goes to where its logical queue's messages go now, unless an earlier segment of that queue has it. If
these go to another cluster, it stays a dead letter: the retry topic is there for it, in its own cluster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from api.auth import Caller
from api.host import Fencing, HostedMeta, HostedTopic, Sealer, Topics
from api.log import Partition, Partitions, PendingRequest, RequestPart, fence_not_known
from api.wire import ArrowRows
from mq.auth import Verb
from mq.errors import DeltaMQError, Fenced, Forbidden, NotFound, Unavailable, Unknown
from mq.limits import MIB, PRODUCER_WINDOW_MS
from mq.meta import Group
from mq.queue import Replay, retry_broker
from mq.wire import Target
from tables.delta import ProducerStamp
from tables.log import PartitionLog, Picked, TooMuch, pick
from tables.queue import FenceEpochs, Placement, retry_ref, sent_back
from tables.settings import Flush

__all__ = [
    "Replayed",
    "Replayer",
]

Int64s = NDArray[np.int64]

#: Maximum number of messages, and of their bytes, under way at once.
_STEP_MESSAGES: Final = 1_000
_STEP_BYTES: Final = 32 * MIB
#: Maximum number of failures that are listed.
_FAILED_MAX: Final = 1_000
_UNSERVED: Final = "queue_unserved"


@dataclass(slots=True)
class Replayed:
    """The outcome of a replay."""

    replayed: int = 0
    #: Number of dead letters that an earlier copy of the request had stored.
    duplicates: int = 0
    #: The first failures, as (partition, offset, code); `failed_total` counts all.
    failed: list[tuple[str, int, str]] = field(default_factory=list)
    failed_total: int = 0

    def fail(self, place: tuple[str, int], code: str) -> None:
        self.failed_total += 1
        if len(self.failed) < _FAILED_MAX:
            self.failed.append((*place, code))


class Replayer:
    """Sends dead letters of any group back; used on the event loop."""

    def __init__(
        self, topics: Topics, partitions: Partitions, meta: HostedMeta, fencing: Fencing, sealer: Sealer
    ) -> None:
        self._sealer = sealer
        self._topics = topics
        self._partitions = partitions
        self._meta = meta
        self._fencing = fencing

    async def replay(self, group: Group, chosen: Mapping[PartitionLog, Int64s], to: Target, caller: Caller) -> Replayed:
        """Send back the dead letters at the `chosen` offsets, which are ascending; durable when this returns.

        Those that `caller` may not publish to their topic fail as `forbidden`, or may not read, for the retry topic.

        Raises
        ------
        Unknown, Unavailable
            Some may be stored; repeating the call stores none of them twice.
        """
        done = Replayed()
        for log, offsets in chosen.items():
            here = int(np.searchsorted(offsets, log.end_offset))
            for offset in offsets[here:].tolist():
                done.fail((log.ref.name, offset), "offset_out_of_range")
            left = offsets[:here]
            while len(left):
                picked, taken = await self._partitions.run(partial(_some, log, left))
                left = left[taken:]
                for offset in picked.gone:
                    done.fail((log.ref.name, offset), "offset_out_of_range")
                for offset in picked.unreadable:
                    done.fail((log.ref.name, offset), "corrupt")
                await self._send(group, log.ref.name, picked, to, done, caller)
        return done

    async def _send(self, group: Group, dead: str, picked: Picked, to: Target, done: Replayed, caller: Caller) -> None:
        """Append the picked messages to their targets, and count the outcomes."""
        rows = picked.rows
        found = await self._found(group, dead, picked, to, done, caller)
        if not found:
            return
        back = sent_back(rows, to_retry=to == "retry")
        pending = PendingRequest(len(found), self._partitions.loop)
        sent = []
        for at, offset, target in found:
            name = Replay(group.name, group.epoch, dead, offset)
            stamp = ProducerStamp(name.producer_id, name.producer_seq, None, 1)
            row = back.slice(at, 1)
            part = RequestPart(
                ArrowRows(1, row.nbytes, row), pending, Flush.SYNC, stamp=stamp, fence_epochs=target.fence_epochs
            )
            sent.append((part, offset))
            target.partition.queue.put(part)
        await pending.wait()
        for target, error in [(target, part.error) for (_, _, target), (part, _) in zip(found, sent, strict=True)]:
            if isinstance(error, Fenced):
                # A repeated request finds this process with the new metadata.
                await self._meta.refresh()
                raise fence_not_known(target.partition.name, error)
        for part, offset in sent:
            if part.error is not None:
                _count_failure(part.error, (dead, offset), done)
            elif part.appended is not None and part.appended.duplicate:
                done.duplicates += 1
            else:
                done.replayed += 1

    async def _found(
        self, group: Group, dead: str, picked: Picked, to: Target, done: Replayed, caller: Caller
    ) -> list[tuple[int, int, _Target]]:
        """Return the picked messages that must be sent: number of the row, offset, target. Count the others."""
        targets = _Targets(self._topics, self._partitions, self._fencing, self._sealer, group, dead, to)
        found: list[tuple[int, int, _Target]] = []
        columns = [picked.rows.column(name).to_pylist() for name in ("offset", "origin", "key")]
        verb: Verb = "subscribe" if to == "retry" else "publish"
        for at, (offset, origin, key) in enumerate(zip(*columns, strict=True)):
            if not caller.allows("topic", origin["topic"], verb):
                done.fail((dead, offset), Forbidden.code)
                continue
            try:
                target = await targets.of(offset, origin, key)
            except Unavailable as error:
                if error.code != _UNSERVED:
                    raise
                done.fail((dead, offset), error.code)
                continue
            if target is None:
                done.fail((dead, offset), "topic_not_found")
            elif target.has(Replay(group.name, group.epoch, dead, offset)):
                done.duplicates += 1
            else:
                found.append((at, offset, target))
        return found


def _some(log: PartitionLog, offsets: Int64s) -> tuple[Picked, int]:
    """Return the messages at as many of the offsets as may be under way at once, and the number of these offsets."""
    count = min(len(offsets), _STEP_MESSAGES)
    while True:
        try:
            return pick(log, offsets[:count], bytes_max=_STEP_BYTES if count > 1 else None), count
        except TooMuch:
            count = max(1, count // 4)


def _count_failure(error: DeltaMQError, place: tuple[str, int], done: Replayed) -> None:
    if isinstance(error, (Unknown, Unavailable)):
        raise error
    done.fail(place, error.code)


class _Target(NamedTuple):
    """A partition, and the fence epochs for an append there."""

    partition: Partition
    fence_epochs: FenceEpochs
    #: The earlier segments of its logical queue that may have the message already.
    earlier: Sequence[PartitionLog] = ()

    def has(self, name: Replay) -> bool:
        """Whether an earlier segment has the message from an earlier copy of the request."""
        return any(log.remembers(name.producer_id, name.producer_seq) for log in self.earlier)


class _Targets:
    """The targets of the dead letters of one partition."""

    def __init__(
        self,
        topics: Topics,
        partitions: Partitions,
        fencing: Fencing,
        sealer: Sealer,
        group: Group,
        dead: str,
        to: Target,
    ) -> None:
        self._sealer = sealer
        self._hosted = topics
        self._partitions = partitions
        self._fencing = fencing
        self._group = group
        self._dead = dead
        self._to = to
        self._topics: dict[str, HostedTopic | None] = {}
        #: The earlier segments by the partition that gets a queue's messages, as found with a placement.
        self._earlier: dict[str, tuple[Placement, Sequence[PartitionLog]]] = {}

    async def of(self, offset: int, origin: Mapping[str, str], key: str | None) -> _Target | None:
        """Return the target of the dead letter at `offset`; None if its topic is gone.

        Raises
        ------
        Unavailable
            `queue_unserved`: its logical queue cannot be had; `remap_in_progress`: ask again.
        """
        topic = await self._topic(origin["topic"])
        if topic is None:
            return None
        if self._to == "retry":
            retry = self._retry(topic)
            return _Target(retry, self._fencing.epochs(retry.name))
        places = self._hosted.placement(topic)
        name = places.home_of(topic.name, origin["partition"], key, offset)
        # A closed queue of a global topic must get nothing more here: its next stay has these offsets.
        if any(places.partitions[number] == name for number in places.away):
            detail = (
                f"topic {topic.name}: the queue takes its messages in another cluster; send back to the retry topic"
            )
            raise Unavailable(detail, code=_UNSERVED)
        earlier = () if places.queues is None else await self._segments_before(name, topic, places)
        return _Target(topic.partition(name), places.fence_epochs[name], earlier)

    async def _segments_before(self, name: str, topic: HostedTopic, places: Placement) -> Sequence[PartitionLog]:
        """Return the logs of the segments before one that may remember requests, each read up to its end."""
        known = self._earlier.get(name)
        if known is not None and known[0] is places:
            return known[1]
        if name in places.ahead:
            # Copies of the request may still be stored in the old leader.
            raise Unavailable(f"topic {topic.name} is being remapped; ask again", code="remap_in_progress")
        place = None if places.queues is None else places.queues.of_partition(name)
        assert place is not None, "messages go to segments"
        now_ms = self._partitions.warehouse.clock.wall_us() // 1_000
        logs = []
        for segment in place.queue.segments[: place.queue.segments.index(place.segment)]:
            if 0 < segment.end_ms < now_ms - PRODUCER_WINDOW_MS:
                continue
            partition = topic.partition(segment.partition)
            log = await partition.opened()
            if log.end_offset < segment.end_offset:
                await partition.look()
            logs.append(log)
        self._earlier[name] = places, logs
        return logs

    async def _topic(self, name: str) -> HostedTopic | None:
        if name not in self._topics:
            try:
                found = await self._hosted.require(name)
                if self._to == "origin" and self._hosted.placement(found).ahead:
                    await self._sealer.seal(found)
                self._topics[name] = found
            except NotFound:
                self._topics[name] = None
        return self._topics[name]

    def _retry(self, topic: HostedTopic) -> Partition:
        """Return the retry partition, on the broker of the dead letters if the topic has a partition there."""
        broker = retry_broker(self._dead, topic.route.partitions)
        ref = retry_ref(self._group.name, self._group.epoch, topic.name, topic.topic.generation, broker)
        return self._partitions.of(ref)
