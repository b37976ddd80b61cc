"""The mapping of a static topic that one broker stores (SPEC STATIC-4).

broker-a    hosted {0: [...], 2: [...]}   all segments of the queues that it leads
            copies {1: [...]}             a backup of the queues whose second leader it is
broker-c    hosted {}                     hosts nothing, and still knows epoch and number of queues
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from deltamq.mq.static.logical_queue import LogicalQueue
from deltamq.mq.static.segment import Segment

MAPPING_VERSION: Final = 1

Chains = Mapping[int, tuple[Segment, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueMapping:
    """One broker's mapping. Immutable."""

    #: The broker that it was written for; another broker ignores a mapping that was copied to it (SPEC STATIC-6).
    broker: str
    #: All mappings of a topic have one epoch; it grows with each change that is not a seal.
    epoch: int
    total_queues: int
    hosted: Chains = field(default_factory=dict)
    copies: Chains = field(default_factory=dict)
    version: int = MAPPING_VERSION


def mappings_of(queues: Iterable[LogicalQueue], brokers: Iterable[str], epoch: int) -> dict[str, QueueMapping]:
    """Return the mapping of each broker: those named, and those that lead a queue or have led it before."""
    queues = list(queues)
    hosted: dict[str, dict[int, tuple[Segment, ...]]] = {broker: {} for broker in brokers}
    copies: dict[str, dict[int, tuple[Segment, ...]]] = {}
    for queue in queues:
        hosted.setdefault(queue.leader.broker, {})[queue.index] = queue.segments
        second = queue.second_leader
        if second is not None and second.broker != queue.leader.broker:
            copies.setdefault(second.broker, {})[queue.index] = queue.segments
    return {
        broker: QueueMapping(
            broker=broker,
            epoch=epoch,
            total_queues=len(queues),
            hosted=hosted.get(broker, {}),
            copies=copies.get(broker, {}),
        )
        for broker in sorted(hosted.keys() | copies.keys())
    }
