"""All mappings of one static topic, by the broker that holds each: the truth about its logical queues (SPEC STATIC-4).

They change by events of the metadata log alone: a mapping is put or removed, a segment is sealed, segments are dropped.
What the mappings say is not checked when they change, since a mapping may be damaged or copied from elsewhere; faults
are found when somebody looks (`mq.static.completeness`), and a queue that cannot be had is not served.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from deltamq.mq.static.logical_queue import LogicalQueue
from deltamq.mq.static.queue_mapping import Chains, QueueMapping
from deltamq.mq.static.segment import Segment

Chain = tuple[Segment, ...]


class Sealed(NamedTuple):
    """A segment that got its last message."""

    partition: str
    end_offset: int
    at_ms: int
    #: Whether the next segment's logical offsets jump to a new block (an `available` remapping).
    jumps: bool


@dataclass(frozen=True, slots=True)
class TopicMappings:
    """Immutable: each change returns the next state."""

    by_broker: Mapping[str, QueueMapping] = field(default_factory=dict)

    def put(self, holder: str, mapping: QueueMapping) -> TopicMappings:
        """Return the mappings after a broker has stored one."""
        return TopicMappings({**self.by_broker, holder: mapping})

    def removed(self, holder: str) -> TopicMappings:
        """Return the mappings without a broker's."""
        return TopicMappings({name: mapping for name, mapping in self.by_broker.items() if name != holder})

    def sealed(self, seals: Iterable[Sealed]) -> TopicMappings:
        """Return the mappings after segments were sealed; a chain that does not fit the seal stays as it is."""
        by_partition = {seal.partition: seal for seal in seals}

        def seal(index: int, chain: Chain) -> Chain:
            if len(chain) < 2 or (found := by_partition.get(chain[-2].partition)) is None:
                return chain
            queue = LogicalQueue(index, chain)
            if chain[-2].is_sealed or not chain[-2].is_decided:
                return chain
            return queue.sealed(found.partition, found.end_offset, found.at_ms, jumps=found.jumps).segments

        return self._changed(seal)

    def without(self, partitions: frozenset[str]) -> TopicMappings:
        """Return the mappings without dropped segments; leaders stay."""

        def drop(_: int, chain: Chain) -> Chain:
            return tuple(one for at, one in enumerate(chain) if one.partition not in partitions or at == len(chain) - 1)

        return self._changed(drop)

    def _changed(self, change: Callable[[int, Chain], Chain]) -> TopicMappings:
        def changed(chains: Chains) -> Chains:
            done = {index: change(index, chain) for index, chain in chains.items()}
            return chains if all(done[index] is chain for index, chain in chains.items()) else done

        after = {
            holder: replace(mapping, hosted=changed(mapping.hosted), copies=changed(mapping.copies))
            for holder, mapping in self.by_broker.items()
        }
        return TopicMappings(after)


NO_MAPPINGS: Final = TopicMappings()
