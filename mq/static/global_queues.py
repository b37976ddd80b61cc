"""Global topics: logical queues that stay in one cluster after another (SPEC STATIC-19).

    3@__global_logical_queue_broker__   [0 ......... 400)   [400 ... 520)     hole      [10000 ...
    stays, oldest first                  east             west                         east, the newest
    the queue's offsets in that cluster  [0 ......... 400)   [0 .... 120)               [400 ...

In each cluster the queue is a logical queue of an ordinary static topic, with offsets of its own, here called local. A
*stay* is a range of local offsets of one cluster, with the global offset at which it begins. One cluster, the topic's
*home*, decides about stays; the others have copies, of which the one with the higher epoch counts. Where a queue's
messages lie inside a cluster is that cluster's own matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise, takewhile
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from deltamq.mq.static.logical_queue import SegmentOf, ShownQueue, TopicQueues, jump_above
from deltamq.mq.static.queue_names import global_queue_name
from deltamq.mq.static.segments import UNDECIDED, Stay, Stays


class GlobalQueues(msgspec.Struct, frozen=True, kw_only=True):
    """The stays of all queues of one global topic, as one cluster stores them. Immutable."""

    #: Distinguishes the topic from earlier and later ones of the same name, in all clusters.
    id: str
    #: The cluster that decides.
    home: str
    #: The cluster for which this copy was written.
    here: str
    #: Grows with each decision of the home; of two copies the one with the higher epoch counts.
    epoch: int
    #: All clusters that hold a copy, the home included.
    clusters: tuple[str, ...]
    #: The stays of each queue, oldest first; at least one.
    queues: tuple[Stays, ...]
    #: The clusters that have got a copy. One of them without a copy has lost its part: it does not make a new one.
    held_by: tuple[str, ...] = ()

    def at(self, cluster: str) -> GlobalQueues:
        """Return the copy for a cluster."""
        return replace(self, here=cluster)

    def taker(self, queue: int) -> str | None:
        """Return the cluster that takes the queue's messages; None while the queue moves `strict`."""
        newest = self.queues[queue][-1]
        return newest.cluster if newest.takes else None

    def leaders(self) -> dict[int, str]:
        """Return the cluster in which each queue's newest stay is."""
        return {index: stays[-1].cluster for index, stays in enumerate(self.queues)}

    @property
    def away(self) -> frozenset[int]:
        """The queues whose messages are not taken in this cluster."""
        return frozenset(index for index in range(len(self.queues)) if self.taker(index) != self.here)

    @property
    def moving(self) -> dict[int, tuple[str, str]]:
        """The queues whose newest stay is undecided, each with the cluster that it leaves and the new one."""
        return {
            index: (stays[-2].cluster, stays[-1].cluster)
            for index, stays in enumerate(self.queues)
            if not stays[-1].is_decided
        }

    def readable(self, queue: int) -> Stays:
        """Return the stays of a queue that have global offsets, oldest first."""
        return tuple(stay for stay in self.queues[queue] if stay.is_decided)

    def place(self, queue: int, offset: int) -> tuple[Stay, int]:
        """Return where to read a global offset: the stay, and the local offset there.

        An offset in a hole, or behind the end of a stay, goes on in the next stay that has global offsets. So does one
        in a stay that has ended without a message.
        """
        readable = self.readable(queue)
        at = max([0, *(number for number, stay in enumerate(readable) if stay.logic_offset <= offset)])
        while at + 1 < len(readable) and readable[at].local(offset) >= readable[at].local_end:  # it has ended
            at += 1
        return readable[at], readable[at].local(offset)

    def clusters_of(self, queue: int) -> tuple[str, ...]:
        """Return the clusters that hold messages of the queue with global offsets, oldest first."""
        return tuple(dict.fromkeys(stay.cluster for stay in self.readable(queue)))

    @property
    def readers(self) -> frozenset[str]:
        """All clusters that hold messages with global offsets."""
        return frozenset(cluster for queue in range(len(self.queues)) for cluster in self.clusters_of(queue))

    def after(self, queue: int, stay: Stay) -> Stay | None:
        """Return the next stay with global offsets; None behind the newest one."""
        readable = self.readable(queue)
        at = readable.index(stay) + 1
        return readable[at] if at < len(readable) else None

    def shown(self, queue: int, local: int) -> int:
        """Return the global offset of a message at a local offset of this cluster; UNDECIDED while it has none."""
        for stay in reversed(self.queues[queue]):
            if stay.cluster == self.here and stay.local_start <= local:
                return stay.shown(local)
        return UNDECIDED

    @property
    def unseen(self) -> frozenset[int]:
        """The queues that take messages here which have no global offsets yet: no client may read these."""
        return frozenset(index for index in self.moving if self.taker(index) == self.here)

    def earlier(self, queue: int, since_ms: int) -> tuple[str, ...]:
        """Return the other clusters in which the queue was since a time, newest first: they may remember requests."""
        was = [stay.cluster for stay in self.queues[queue][:-1] if not stay.is_ended or stay.end_ms >= since_ms]
        return tuple(dict.fromkeys(cluster for cluster in reversed(was) if cluster != self.here))

    def moved(
        self, targets: Mapping[int, str], starts: Mapping[int, int], now_ms: int, *, at_once: bool
    ) -> GlobalQueues:
        """Return the queues after a decision to move some to other clusters.

        `starts` are the local offsets at which these begin there. What is undecided must be settled first.
        """
        assert not self.moving, "one remapping at a time"
        queues = list(self.queues)
        for index, cluster in targets.items():
            stay = Stay(
                cluster=cluster,
                local_start=starts[index],
                logic_offset=UNDECIDED,
                at_once=at_once,
                start_ms=now_ms,
            )
            queues[index] = (*queues[index], stay)
        return replace(self, epoch=self._next_epoch(now_ms), queues=tuple(queues))

    def settled(self, ends: Mapping[int, int], now_ms: int) -> GlobalQueues:
        """Return the queues after their old clusters have closed the moving ones at these local offsets.

        The new stay begins at the end of the old one, or, if it took messages at once, at the next block. A queue that
        does not move, and one whose end is not given, stays as it is.
        """
        queues = list(self.queues)
        for index in self.moving.keys() & ends.keys():
            *before, old, new = queues[index]
            old = replace(old, local_end=ends[index], end_ms=now_ms)
            begin = jump_above(old.logic_end) if new.at_once else old.logic_end
            queues[index] = (*before, old, replace(new, logic_offset=begin))
        if tuple(queues) == self.queues:
            return self
        return replace(self, epoch=self._next_epoch(now_ms), queues=tuple(queues))

    def expired(self, before_ms: int) -> dict[int, Stays]:
        """Return the oldest stays of queues that ended before a time: retention may have removed their messages."""
        expired = {}
        for index, stays in enumerate(self.queues):
            old = tuple(takewhile(lambda stay: stay.is_ended and stay.end_ms < before_ms, stays[:-1]))
            if old:
                expired[index] = old
        return expired

    def dropped(self, starts: Mapping[str, Mapping[int, int]], before_ms: int, now_ms: int) -> GlobalQueues:
        """Return the queues without old stays of which no message is stored any more (SPEC STATIC-17).

        `starts` are the first local offsets that clusters store, by queue; the stays of a queue without one are kept.
        Stays that have ended since `before_ms`, and the newest one of each queue, are kept in any case.
        """
        queues = list(self.queues)
        for index, old in self.expired(before_ms).items():
            gone = 0
            while gone < len(old) and starts.get(old[gone].cluster, {}).get(index, -1) >= old[gone].local_end:
                gone += 1
            if queues[index][gone].is_decided:  # the queue's offsets begin there then
                queues[index] = queues[index][gone:]
        if tuple(queues) == self.queues:
            return self
        return replace(self, epoch=self._next_epoch(now_ms), queues=tuple(queues))

    def held(self, now_ms: int) -> GlobalQueues:
        """Return the queues after all clusters have got a copy."""
        if self.held_by == self.clusters:
            return self
        return replace(self, epoch=self._next_epoch(now_ms), held_by=self.clusters)

    def _next_epoch(self, now_ms: int) -> int:
        return max(self.epoch + 1, now_ms)

    def faults(self) -> Iterator[str]:
        """Yield what is wrong with the stays."""
        for index, stays in enumerate(self.queues):
            name = global_queue_name(index)
            for old, new in pairwise(stays):
                if new.is_decided and not (old.is_decided and old.is_ended):
                    yield f"queue {name} begins in {new.cluster} before it has ended in {old.cluster}"
                elif new.is_decided and new.logic_offset < old.logic_end:
                    yield f"queue {name}: {old.cluster} and {new.cluster} have the same offsets"
                if old.cluster == new.cluster:
                    yield f"queue {name} moves from {old.cluster} to itself"
            if unknown := {stay.cluster for stay in stays}.difference(self.clusters):
                yield f"queue {name} is in {min(unknown)}, which is no cluster of the topic"


def shown_queue(queues: TopicQueues, world: GlobalQueues | None, partition: str) -> ShownQueue | None:
    """Return where clients see the messages of a static topic's partition; with `world`, of a global topic's.

    It is None for a partition that is no segment.
    """
    local = queues.of_partition(partition)
    return local if local is None or world is None else GlobalPlace(world, local)


class GlobalPlace(NamedTuple):
    """A physical partition's place in a global topic: its place in this cluster's own queue, and where that is shown.

    A segment belongs to one stay: a queue that leaves a cluster gets a new segment there.
    """

    world: GlobalQueues
    local: SegmentOf

    @property
    def name(self) -> str:
        """The global name of the queue."""
        return global_queue_name(self.local.queue.index)

    def shown(self, offset: int) -> int:
        """Return the global offset of a message at an offset of the partition; -1 while it has none."""
        local = self.local.shown(offset)
        return local if local < 0 else self.world.shown(self.local.queue.index, local)
