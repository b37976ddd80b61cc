"""Whether the mappings of a static topic are complete and of one epoch, and their repair (SPEC STATIC-5, 6, 17, 26).

A change that finds a fault is refused, names the fault, and changes nothing. A repair makes all mappings again from the
surviving chains: for each queue the newest whole one. A whole chain can still be wrong, since a mapping may have been
put there by hand: from before a seal, one segment short, with a partition of another queue, or at other logical
offsets. So the record of remappings and seals decides (STATIC-26):

    handovers     orders#3@a --120--> orders#7@b --30, jumps--> orders#9@a       from the leader back
    chain         [0 .. 120)          [120 .. 150)              [10000 ...       what a mapping must have
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from deltamq.mq.static.logical_queue import LogicalQueue, jump_above
from deltamq.mq.static.mappings import MAPPING_VERSION, QueueMapping
from deltamq.mq.static.segments import UNDECIDED, Segment


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
        into = {handover.target: handover for handover in handovers}
        self._leaders = leaders
        self._of: dict[int, tuple[Handover, ...]] = {}
        self._owners: dict[str, int] = {}
        for index, leader in leaders.items():
            chain: list[Handover] = []
            self._owners[leader] = index
            at = leader
            while (handover := into.get(at)) is not None and handover.source not in self._owners:
                chain.append(handover)
                self._owners[handover.source] = index
                at = handover.source
            self._of[index] = tuple(reversed(chain))

    def partitions(self, index: int) -> list[str]:
        """Return the partitions of a queue's segments, the oldest first; none for an unknown queue."""
        leader = self._leaders.get(index)
        return [] if leader is None else [*(handover.source for handover in self._of[index]), leader]

    def faults(self, queue: LogicalQueue) -> Iterator[str]:
        """Yield where a chain differs from the record."""
        wanted, present = self.partitions(queue.index), [segment.partition for segment in queue.segments]
        if present != wanted:
            yield from self._other_partitions(queue.index, wanted, present)
            return
        if queue.segments[0].gen == 0 and queue.segments[0].logic_offset != 0:
            yield f"its first segment begins at logical offset {queue.segments[0].logic_offset}, not at 0"
        for at, handover in enumerate(self._of[queue.index]):
            yield from _other_ends(handover, queue.segments[at], queue.segments[at + 1])

    def _other_partitions(self, index: int, wanted: Sequence[str], present: Sequence[str]) -> Iterator[str]:
        for partition in present:
            owner = self._owners.get(partition)
            if owner is None:
                yield f"partition {partition} was never a segment of it, or is dropped"
            elif owner != index:
                yield f"partition {partition} is a segment of queue {owner}"
        missing = [partition for partition in wanted if partition not in present]
        if missing:
            yield f"it is short of {', '.join(missing)}"
        elif sorted(present) == sorted(wanted):
            yield "its segments are in another order"

    def mended(self, queue: LogicalQueue, now_ms: int) -> LogicalQueue | None:
        """Return a chain with the ends and logical offsets of the record; None if its partitions are others."""
        if [segment.partition for segment in queue.segments] != self.partitions(queue.index):
            return None
        first = queue.segments[0]
        begin = 0 if first.gen == 0 else first.logic_offset
        segments: list[Segment] = []
        for at, handover in enumerate(self._of[queue.index]):
            segment = _at(queue.segments[at], begin, handover.end_offset, now_ms)
            segments.append(segment)
            begin = _begin_behind(handover, segment) if segment.is_sealed and segment.is_decided else UNDECIDED
        segments.append(_at(queue.leader, begin, None, now_ms))
        chain = LogicalQueue(queue.index, tuple(segments))
        return chain if next(chain.faults(), None) is None else None


#: The lineages of a topic without a record.
NO_LINEAGES: Final = Lineages({}, ())


def _other_ends(handover: Handover, old: Segment, new: Segment) -> Iterator[str]:
    if handover.end_offset is None:
        if old.is_sealed:
            yield f"segment {old.partition} is sealed at {old.end_offset}, and was not"
    elif not old.is_sealed:
        yield f"segment {old.partition} was sealed at {handover.end_offset}, and is open: it is from before the seal"
    elif old.end_offset != handover.end_offset:
        yield f"segment {old.partition} ends at {old.end_offset}, and was sealed at {handover.end_offset}"
    elif old.is_decided and new.logic_offset != (begin := _begin_behind(handover, old)):
        yield f"segment {new.partition} begins at logical offset {new.logic_offset}, and its first message is {begin}"


def _begin_behind(handover: Handover, old: Segment) -> int:
    return jump_above(old.logic_end) if handover.jumps else old.logic_end


def _at(segment: Segment, logic_offset: int, end_offset: int | None, now_ms: int) -> Segment:
    end = UNDECIDED if end_offset is None else end_offset
    if (segment.logic_offset, segment.end_offset) == (logic_offset, end):
        return segment
    end_ms = UNDECIDED if end_offset is None else segment.end_ms if segment.is_sealed else now_ms
    return replace(segment, logic_offset=logic_offset, end_offset=end, end_ms=end_ms, update_ms=now_ms)


FaultKind = Literal[
    "missing",
    "copied",
    "version",
    "epoch",
    "total_queues",
    "foreign",
    "torn",
    "unled",
    "led_twice",
    "recorded",
    "copy",
    "between",
]


class MappingFault(msgspec.Struct, frozen=True):
    """One fault, by name."""

    kind: FaultKind
    #: The broker whose mapping has the fault; None if the fault is in no single mapping.
    broker: str | None
    #: The logical queue with the fault; None if the whole mapping has it.
    queue: int | None
    detail: str


def faults_of(
    mappings: Mapping[str, QueueMapping],
    *,
    brokers: Iterable[str],
    epoch: int,
    leaders: Mapping[int, str],
    lineages: Lineages,
) -> list[MappingFault]:
    """Return all faults of the mappings, by the broker that holds each.

    `brokers` must have a mapping of `epoch`; `leaders` are the physical partitions to which the route sends the
    messages of each queue, `lineages` the recorded handovers.
    """
    faults = [
        MappingFault("missing", broker, None, f"broker {broker} has no mapping")
        for broker in brokers
        if broker not in mappings
    ]
    for holder, mapping in sorted(mappings.items()):
        faults += _faults_in(holder, mapping, epoch, len(leaders))
    return [*faults, *_faults_of_queues(mappings, leaders), *_faults_of_chains(mappings, leaders, lineages)]


def _faults_in(holder: str, mapping: QueueMapping, epoch: int, total: int) -> Iterator[MappingFault]:
    if mapping.broker != holder:
        detail = f"broker {holder} holds the mapping of {mapping.broker}, which was copied there; it is ignored"
        yield MappingFault("copied", holder, None, detail)
        return
    if mapping.version != MAPPING_VERSION:
        detail = f"the mapping has version {mapping.version}, this release knows {MAPPING_VERSION}"
        yield MappingFault("version", holder, None, detail)
        return
    if mapping.epoch != epoch:
        yield MappingFault("epoch", holder, None, f"the mapping has epoch {mapping.epoch}, the topic has {epoch}")
    if mapping.total_queues != total:
        detail = f"the mapping has {mapping.total_queues} queues, the topic has {total}"
        yield MappingFault("total_queues", holder, None, detail)
    for index, segments in sorted(mapping.hosted.items()):
        if not segments:
            yield MappingFault("torn", holder, index, f"queue {index} has no segments")
        elif segments[-1].broker != holder:
            detail = f"queue {index} is led by {segments[-1].partition}, which is not of broker {holder}"
            yield MappingFault("foreign", holder, index, detail)
    for index, segments in sorted({**mapping.copies, **mapping.hosted}.items()):
        if not 0 <= index < total:
            yield MappingFault("torn", holder, index, f"there is no queue {index}")
        for fault in LogicalQueue(index, segments).faults() if segments else ():
            yield MappingFault("torn", holder, index, f"queue {index}: {fault}")


def _faults_of_queues(mappings: Mapping[str, QueueMapping], leaders: Mapping[int, str]) -> Iterator[MappingFault]:
    for index, partition in sorted(leaders.items()):
        leading = [holder for holder, chain in _chains(mappings, index) if chain.leader.broker == holder]
        if not leading:
            yield MappingFault("unled", None, index, f"no broker leads queue {index}")
        elif len(leading) > 1:
            yield MappingFault("led_twice", None, index, f"brokers {', '.join(leading)} lead queue {index}")
        for holder, chain in _chains(mappings, index):
            if leading == [holder] and chain.leader.partition != partition:
                detail = f"queue {index} is led by {chain.leader.partition}, its messages go to {partition}"
                yield MappingFault("torn", holder, index, detail)


def _faults_of_chains(
    mappings: Mapping[str, QueueMapping], leaders: Mapping[int, str], lineages: Lineages
) -> Iterator[MappingFault]:
    """Yield where whole chains that end at their queue's leader differ from the record, and where copies differ."""
    for index, partition in sorted(leaders.items()):
        hosted = {holder: chain for holder, chain in _chains(mappings, index) if chain.leader.partition == partition}
        copies = {
            holder: LogicalQueue(index, mapping.copies[index])
            for holder, mapping in sorted(mappings.items())
            if _counts(holder, mapping) and mapping.copies.get(index)
        }
        for what, chains in (("", hosted), ("the copy of ", copies)):
            for holder, chain in chains.items():
                for fault in lineages.faults(chain) if next(chain.faults(), None) is None else ():
                    yield MappingFault("recorded", holder, index, f"{what}queue {index}: {fault}")
        for chain in hosted.values():
            second = chain.second_leader
            keeper = None if second is None or second.broker == chain.leader.broker else mappings.get(second.broker)
            if second is not None and keeper is not None and second.broker not in copies:
                yield MappingFault("copy", second.broker, index, f"broker {second.broker} has no copy of queue {index}")
            for holder, copy in copies.items():
                if copy != chain:
                    detail = f"the copy of queue {index} differs from the mapping of broker {chain.leader.broker}"
                    yield MappingFault("copy", holder, index, detail)


def _counts(holder: str, mapping: QueueMapping) -> bool:
    return mapping.broker == holder and mapping.version == MAPPING_VERSION


def _chains(mappings: Mapping[str, QueueMapping], index: int) -> Iterator[tuple[str, LogicalQueue]]:
    """Yield the brokers that host a queue, each with its chain; copied mappings are left out."""
    for holder, mapping in sorted(mappings.items()):
        segments = mapping.hosted.get(index)
        if segments and _counts(holder, mapping):
            yield holder, LogicalQueue(index, segments)


def served_queues(
    mappings: Mapping[str, QueueMapping], leaders: Mapping[int, str], lineages: Lineages
) -> dict[int, LogicalQueue]:
    """Return the available queues: led by one broker, whole, as recorded, and where the route sends messages."""
    served: dict[int, LogicalQueue] = {}
    by_broker = {partition: index for index, partition in leaders.items()}
    for holder, mapping in mappings.items():
        if not _counts(holder, mapping):
            continue
        for index, segments in mapping.hosted.items():
            if segments and by_broker.get(segments[-1].partition) == index:
                queue = LogicalQueue(index, segments)
                if queue.leader.broker == holder and _is_sound(queue, lineages):
                    served[index] = queue
    return served


def _is_sound(queue: LogicalQueue, lineages: Lineages) -> bool:
    return next(queue.faults(), None) is None and next(lineages.faults(queue), None) is None


def surviving_queues(mappings: Mapping[str, QueueMapping], lineages: Lineages, now_ms: int) -> dict[int, LogicalQueue]:
    """Return for each queue the best chain of any mapping that has the recorded partitions, with the recorded ends.

    A chain that needs no mending comes first, then one of a newer mapping, then a host's before a copy. A queue without
    a chain of these partitions is left out.
    """
    best: dict[int, tuple[tuple[bool, int, bool], LogicalQueue]] = {}
    for mapping in mappings.values():
        if mapping.version != MAPPING_VERSION:
            continue
        for is_hosted, chains in ((False, mapping.copies), (True, mapping.hosted)):
            for index, segments in chains.items():
                queue = LogicalQueue(index, segments) if segments else None
                mended = None if queue is None else lineages.mended(queue, now_ms)
                if queue is None or mended is None:
                    continue
                rank = (mended == queue, mapping.epoch, is_hosted)
                if index not in best or rank > best[index][0]:
                    best[index] = rank, mended
    return {index: queue for index, (_, queue) in best.items()}
