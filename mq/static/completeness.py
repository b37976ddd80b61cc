"""Whether the mappings of a static topic are complete and of one epoch, and their repair (SPEC STATIC-5, 6, 17, 26).

A change that finds a fault is refused, names the fault, and changes nothing. A repair makes all mappings anew from the
chains that survive: of each queue the newest one that is whole. What is recorded of remappings and seals decides about
chains that are whole and wrong (`mq.static.lineage`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from deltamq.mq.static.lineage import Lineages
from deltamq.mq.static.logical_queue import LogicalQueue
from deltamq.mq.static.queue_mapping import MAPPING_VERSION, QueueMapping

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


@dataclass(frozen=True, slots=True)
class MappingFault:
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
    messages of each queue, `lineages` what is recorded of the way there.
    """
    found = [
        MappingFault("missing", broker, None, f"broker {broker} has no mapping")
        for broker in brokers
        if broker not in mappings
    ]
    for holder, mapping in sorted(mappings.items()):
        found += _faults_in(holder, mapping, epoch, len(leaders))
    return [*found, *_faults_of_queues(mappings, leaders), *_faults_of_chains(mappings, leaders, lineages)]


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
    """Yield where whole chains that end at their queue's leader differ from the record, and copies from chains."""
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
    """Return whether a mapping is its holder's own, and of a version that is known."""
    return mapping.broker == holder and mapping.version == MAPPING_VERSION


def _chains(mappings: Mapping[str, QueueMapping], index: int) -> Iterator[tuple[str, LogicalQueue]]:
    """Yield each broker that holds a queue as its host, with the queue; mappings that were copied are left out."""
    for holder, mapping in sorted(mappings.items()):
        segments = mapping.hosted.get(index)
        if segments and _counts(holder, mapping):
            yield holder, LogicalQueue(index, segments)


def served_queues(
    mappings: Mapping[str, QueueMapping], leaders: Mapping[int, str], lineages: Lineages
) -> dict[int, LogicalQueue]:
    """Return the queues that can be had: led by one broker, whole, as recorded, and where the route sends messages."""
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

    A chain that needs no mending comes first, then that of a newer mapping, then a host's before a copy. A queue of
    which no chain has these partitions is left out.
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
