"""Where the segments of a queue come from: the record of its remappings, which chains are compared with (STATIC-26).

    handovers     orders#3@a --120--> orders#7@b --30, jumps--> orders#9@a       from the leader back
    chain         [0 .. 120)          [120 .. 150)              [10000 ...       what a mapping must have

A mapping is stored beside the record, and may have been put there by hand: of before a seal, one segment short, with a
partition of another queue, or at other logical offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from deltamq.mq.static.jump import jump_above
from deltamq.mq.static.logical_queue import LogicalQueue
from deltamq.mq.static.segment import UNDECIDED, Segment


class Handover(NamedTuple):
    """A remapping of one queue: its old leader, and its new one."""

    source: str
    target: str
    #: The end of the old leader; None until it is sealed.
    end_offset: int | None
    #: Whether the new one's logical offsets begin at a new block.
    jumps: bool


class Lineages:
    """The handovers of all queues of a topic, by queue, the oldest first."""

    def __init__(self, leaders: Mapping[int, str], handovers: Iterable[Handover]) -> None:
        """`leaders` are the partitions to which messages of each queue go."""
        into = {one.target: one for one in handovers}
        self._leaders = leaders
        self._of: dict[int, tuple[Handover, ...]] = {}
        self._owners: dict[str, int] = {}
        for index, leader in leaders.items():
            found: list[Handover] = []
            self._owners[leader] = index
            at = leader
            while (one := into.get(at)) is not None and one.source not in self._owners:
                found.append(one)
                self._owners[one.source] = index
                at = one.source
            self._of[index] = tuple(reversed(found))

    def partitions(self, index: int) -> list[str]:
        """Return the partitions of a queue's segments, the oldest first; none for an unknown queue."""
        leader = self._leaders.get(index)
        return [] if leader is None else [*(one.source for one in self._of[index]), leader]

    def faults(self, queue: LogicalQueue) -> Iterator[str]:
        """Yield where a chain differs from the record."""
        wanted, found = self.partitions(queue.index), [segment.partition for segment in queue.segments]
        if found != wanted:
            yield from self._other_partitions(queue.index, wanted, found)
            return
        if queue.segments[0].gen == 0 and queue.segments[0].logic_offset != 0:
            yield f"its first segment begins at logical offset {queue.segments[0].logic_offset}, not at 0"
        for at, one in enumerate(self._of[queue.index]):
            yield from _other_ends(one, queue.segments[at], queue.segments[at + 1])

    def _other_partitions(self, index: int, wanted: Sequence[str], found: Sequence[str]) -> Iterator[str]:
        for partition in found:
            owner = self._owners.get(partition)
            if owner is None:
                yield f"partition {partition} was never a segment of it, or is dropped"
            elif owner != index:
                yield f"partition {partition} is a segment of queue {owner}"
        missing = [partition for partition in wanted if partition not in found]
        if missing:
            yield f"it is short of {', '.join(missing)}"
        elif sorted(found) == sorted(wanted):
            yield "its segments are in another order"

    def mended(self, queue: LogicalQueue, now_ms: int) -> LogicalQueue | None:
        """Return a chain with the ends and logical offsets of the record; None if its partitions are others."""
        if [segment.partition for segment in queue.segments] != self.partitions(queue.index):
            return None
        first = queue.segments[0]
        begin = 0 if first.gen == 0 else first.logic_offset
        segments: list[Segment] = []
        for at, one in enumerate(self._of[queue.index]):
            segment = _at(queue.segments[at], begin, one.end_offset, now_ms)
            segments.append(segment)
            begin = _begin_behind(one, segment) if segment.is_sealed and segment.is_decided else UNDECIDED
        segments.append(_at(queue.leader, begin, None, now_ms))
        found = LogicalQueue(queue.index, tuple(segments))
        return found if next(found.faults(), None) is None else None


#: Of a topic of which nothing is recorded.
NO_LINEAGES: Final = Lineages({}, ())


def _other_ends(one: Handover, old: Segment, new: Segment) -> Iterator[str]:
    if one.end_offset is None:
        if old.is_sealed:
            yield f"segment {old.partition} is sealed at {old.end_offset}, and was not"
    elif not old.is_sealed:
        yield f"segment {old.partition} was sealed at {one.end_offset}, and is open: it is from before the seal"
    elif old.end_offset != one.end_offset:
        yield f"segment {old.partition} ends at {old.end_offset}, and was sealed at {one.end_offset}"
    elif old.is_decided and new.logic_offset != (begin := _begin_behind(one, old)):
        yield f"segment {new.partition} begins at logical offset {new.logic_offset}, and its first message is {begin}"


def _begin_behind(one: Handover, old: Segment) -> int:
    return jump_above(old.logic_end) if one.jumps else old.logic_end


def _at(segment: Segment, logic_offset: int, end_offset: int | None, now_ms: int) -> Segment:
    """Return a segment with this beginning and end; itself if it has them."""
    end = UNDECIDED if end_offset is None else end_offset
    if (segment.logic_offset, segment.end_offset) == (logic_offset, end):
        return segment
    end_ms = UNDECIDED if end_offset is None else segment.end_ms if segment.is_sealed else now_ms
    return replace(segment, logic_offset=logic_offset, end_offset=end, end_ms=end_ms, update_ms=now_ms)
