"""Whether the mappings of a static topic are complete and of one epoch, and their repair (SPEC STATIC-5, 6, 17).

A change that finds a fault is refused, names the fault, and changes nothing. A repair makes all mappings anew from the
chains that survive: of each queue the newest one that is whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from mq.static.logical_queue import LogicalQueue
from mq.static.queue_mapping import MAPPING_VERSION, QueueMapping

__all__ = ["FaultKind", "MappingFault", "faults_of", "served_queues", "surviving_queues"]

FaultKind = Literal[
    "missing", "copied", "version", "epoch", "total_queues", "foreign", "torn", "unled", "led_twice", "between"
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
    mappings: Mapping[str, QueueMapping], *, brokers: Iterable[str], epoch: int, leaders: Mapping[int, str]
) -> list[MappingFault]:
    """Return all faults of the mappings, by the broker that holds each.

    `brokers` must have a mapping of `epoch`; `leaders` are the physical partitions to which the route sends the
    messages of each queue.
    """
    found = [
        MappingFault("missing", broker, None, f"broker {broker} has no mapping")
        for broker in brokers
        if broker not in mappings
    ]
    for holder, mapping in sorted(mappings.items()):
        found += _faults_in(holder, mapping, epoch, len(leaders))
    return found + list(_faults_of_queues(mappings, leaders))


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


def _chains(mappings: Mapping[str, QueueMapping], index: int) -> Iterator[tuple[str, LogicalQueue]]:
    """Yield each broker that holds a queue as its host, with the queue; mappings that were copied are left out."""
    for holder, mapping in sorted(mappings.items()):
        segments = mapping.hosted.get(index)
        if segments and mapping.broker == holder and mapping.version == MAPPING_VERSION:
            yield holder, LogicalQueue(index, segments)


def served_queues(mappings: Mapping[str, QueueMapping], leaders: Mapping[int, str]) -> dict[int, LogicalQueue]:
    """Return the queues that can be had: led by one broker, whole, and where the route sends their messages."""
    served: dict[int, LogicalQueue] = {}
    by_broker = {partition: index for index, partition in leaders.items()}
    for holder, mapping in mappings.items():
        if mapping.broker != holder or mapping.version != MAPPING_VERSION:
            continue
        for index, segments in mapping.hosted.items():
            if segments and by_broker.get(segments[-1].partition) == index:
                queue = LogicalQueue(index, segments)
                if queue.leader.broker == holder and next(queue.faults(), None) is None:
                    served[index] = queue
    return served


def surviving_queues(mappings: Mapping[str, QueueMapping], leaders: Mapping[int, str]) -> dict[int, LogicalQueue]:
    """Return for each queue the best chain of any mapping that ends where the route sends its messages.

    Whole chains alone count. Of several, the one that a newer mapping has is taken, and of one epoch the longer one. A
    queue of which none survives is left out.
    """
    best: dict[int, tuple[int, int, LogicalQueue]] = {}
    for mapping in mappings.values():
        if mapping.version != MAPPING_VERSION:
            continue
        for index, segments in [*mapping.copies.items(), *mapping.hosted.items()]:
            if not segments or segments[-1].partition != leaders.get(index):
                continue
            queue = LogicalQueue(index, segments)
            if next(queue.faults(), None) is not None:
                continue
            rank = (mapping.epoch, len(segments), queue)
            if index not in best or rank[:2] > best[index][:2]:
                best[index] = rank
    return {index: queue for index, (_, _, queue) in best.items()}
