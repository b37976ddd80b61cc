"""Logical queues: chains of segments that clients see as one partition, and a topic's queues by name (STATIC-1 to 3).

    3@__logical_queue_broker__      [0 ... 400)  [400 ... 520)   hole   [10000 ...
    segments, oldest first           gen 0        gen 1                  gen 2, the leader: the only one written

    segment gen 1                    logical offset 400 + offset
    partition orders#3@broker-a      offsets [0 .. 120), sealed at its last accepted message

Logical offsets grow strictly from segment to segment. The segment of an offset is the last one that begins at or below
it, so an offset in a hole belongs to the segment before the hole. An `available` remapping makes holes (`jump_above`,
SPEC STATIC-9). A segment with an undecided logic offset (-1) is writable and not readable: its messages have no logical
offset yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import pairwise
from typing import Final, NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

from deltamq.mq.errors import NotFound, Unavailable, Unprocessable
from deltamq.mq.static.queue_names import queue_index, queue_name, queue_names
from deltamq.mq.static.segments import UNDECIDED, Segment

#: Logical offsets of a new leader begin at a multiple of this.
BLOCK: Final = 10_000


def jump_above(maximum: int, block: int = BLOCK) -> int:
    """Return the logic offset of a new leader, above all that the old one could hold; `maximum` is the old one's end.

    It is the next multiple of `block`, or the one behind it if `maximum` is in the upper half of its block.
    """
    assert maximum >= 0, "the old leader's logical offsets are decided"
    full, rest = divmod(maximum, block)
    return (full + 1 if rest < block // 2 else full + 2) * block


# Without slots, because `cached_property` needs an instance dictionary.
class LogicalQueue(msgspec.Struct, frozen=True, dict=True):
    """One logical queue with at least one segment, oldest first. Immutable."""

    index: int
    segments: tuple[Segment, ...]

    def __post_init__(self) -> None:
        assert self.segments, "a logical queue has a leader"

    @property
    def name(self) -> str:
        return queue_name(self.index)

    @property
    def leader(self) -> Segment:
        """The newest segment: the only one that is written."""
        return self.segments[-1]

    @property
    def second_leader(self) -> Segment | None:
        """The segment before the leader; its broker keeps a copy of the chain."""
        return self.segments[-2] if len(self.segments) > 1 else None

    @cached_property
    def readable(self) -> tuple[Segment, ...]:
        """The segments with logical offsets, oldest first."""
        return tuple(segment for segment in self.segments if segment.is_decided)

    @property
    def newest_readable(self) -> Segment:
        """The last segment with logical offsets: the leader, unless it is undecided."""
        return self.readable[-1]

    @property
    def holes(self) -> int:
        """How many logical offsets between the segments have no message (SPEC STATIC-3)."""
        return sum(after.logic_offset - before.logic_end for before, after in pairwise(self.readable))

    @cached_property
    def _places(self) -> dict[str, int]:
        return {segment.partition: at for at, segment in enumerate(self.segments)}

    def segment_of(self, partition: str) -> Segment | None:
        """Return the segment that is this physical partition; None if none is."""
        at = self._places.get(partition)
        return None if at is None else self.segments[at]

    def segment_at(self, offset: int) -> Segment:
        """Return the readable segment of a logical offset; the earliest one for an offset before all of them."""
        readable = self.readable
        low, high = 0, len(readable) - 1
        while low < high:
            middle = (low + high + 1) // 2
            if readable[middle].logic_offset <= offset:
                low = middle
            else:
                high = middle - 1
        return readable[low]

    def after(self, segment: Segment) -> Segment | None:
        """Return the next readable segment; None behind the newest one."""
        at = self._places[segment.partition] + 1
        following = self.segments[at] if at < len(self.segments) else None
        return following if following is not None and following.is_decided else None

    def sealed(self, partition: str, end_offset: int, now_ms: int, *, jumps: bool) -> LogicalQueue:
        """Return the queue after the segment before the leader got its last message.

        The leader's logical offsets begin at the sealed end, or, with `jumps`, at the next block (SPEC STATIC-8, 9).
        Repeating a seal changes nothing.
        """
        at = self._places[partition]
        old = self.segments[at]
        if old.is_sealed:
            return self
        assert at == len(self.segments) - 2, "only the segment before the leader is sealed"
        old = replace(old, end_offset=end_offset, end_ms=now_ms, update_ms=now_ms)
        begin = jump_above(old.logic_end) if jumps else old.logic_end
        leader = replace(self.leader, logic_offset=begin, update_ms=now_ms)
        return LogicalQueue(self.index, (*self.segments[:at], old, leader))

    def without(self, partitions: frozenset[str]) -> LogicalQueue:
        """Return the queue without these segments at its beginning."""
        kept = tuple(segment for segment in self.segments if segment.partition not in partitions)
        assert kept and kept == self.segments[-len(kept) :], "only the oldest segments are dropped"
        return LogicalQueue(self.index, kept)

    def faults(self) -> Iterator[str]:
        """Yield what is wrong with the chain."""
        for segment in self.segments:
            if segment.gen < 0 or segment.start_offset != 0:
                yield f"segment {segment.partition} has generation {segment.gen}, start offset {segment.start_offset}"
        for at, (before, after) in enumerate(pairwise(self.segments)):
            is_last = at == len(self.segments) - 2
            if after.gen <= before.gen:
                yield f"generation {after.gen} follows {before.gen}"
            if not before.is_decided:
                yield f"segment {before.partition} is undecided and is not the leader"
            elif before.is_sealed and after.is_decided and after.logic_offset < before.logic_end:
                yield f"segment {after.partition} begins at {after.logic_offset}, before {before.logic_end}"
            elif before.is_sealed != after.is_decided or not (before.is_sealed or is_last):
                yield f"segment {before.partition} is not sealed, or {after.partition} does not begin at its end"
        if self.leader.is_sealed:
            yield f"the leader {self.leader.partition} is sealed"
        if len(self.segments) == 1 and not self.leader.is_decided:
            yield f"the only segment {self.leader.partition} is undecided"
        if len(self._places) != len(self.segments):
            yield "a partition is mapped twice"


class ShownQueue(Protocol):
    """Where clients see the messages of a physical partition."""

    @property
    def name(self) -> str:
        """The name of the queue as clients see it."""

    def shown(self, offset: int) -> int:
        """Return the offset that clients see; -1 while it is not decided (SPEC STATIC-10)."""


class SegmentOf(NamedTuple):
    """A physical partition's place: its logical queue, and its segment there."""

    queue: LogicalQueue
    segment: Segment

    @property
    def name(self) -> str:
        """The name of the queue as clients see it."""
        return self.queue.name

    def shown(self, offset: int) -> int:
        """Return the offset that clients see: the logical one, or -1 while it is not decided (SPEC STATIC-10)."""
        return self.segment.logical(offset) if self.segment.is_decided else UNDECIDED


# Without slots, because `cached_property` needs an instance dictionary.
class TopicQueues(msgspec.Struct, frozen=True, dict=True):
    """All logical queues of a static topic. Immutable; a queue whose mapping is not available is not in `served`."""

    total: int
    served: Mapping[int, LogicalQueue]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all queues, also of unavailable ones, so that their number stays (SPEC STATIC-22)."""
        return queue_names(self.total)

    @cached_property
    def _by_partition(self) -> Mapping[str, SegmentOf]:
        return {
            segment.partition: SegmentOf(queue, segment) for queue in self.served.values() for segment in queue.segments
        }

    def find(self, name: str) -> LogicalQueue | None:
        """Return the queue with this name; None if it is not served."""
        index = queue_index(name)
        return None if index is None else self.served.get(index)

    def require(self, name: str, topic: str, field: str = "partition") -> LogicalQueue:
        """Return the queue that a client names.

        Raises
        ------
        NotFound
            `partition_not_found`: the topic has no such queue.
        Unprocessable
            `physical_partition`: a segment's partition was named; clients name logical queues (SPEC STATIC-22).
        Unavailable
            `queue_unserved`: the queue's mapping is not available.
        """
        queue = self.find(name)
        if queue is not None:
            return queue
        index = queue_index(name)
        if index is not None and index < self.total:
            raise Unavailable(
                f"{field}: the mapping of queue {name} of topic {topic} is not available; check the topic",
                code="queue_unserved",
                field=field,
            )
        if name in self._by_partition:
            raise Unprocessable(
                f"{field}: topic {topic} is static, and {name!r} is a segment of its queue"
                f" {self._by_partition[name].queue.name}; name the queue",
                code="physical_partition",
                field=field,
                extra={"partition": self._by_partition[name].queue.name},
            )
        raise NotFound(f"{field}: topic {topic} has no partition {name!r}", code="partition_not_found", field=field)

    def of_partition(self, partition: str) -> SegmentOf | None:
        """Return the place of a physical partition; None if no served queue has it."""
        return self._by_partition.get(partition)
