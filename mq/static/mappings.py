"""Mappings: which broker leads which logical queue, what each broker stores of it, and the events (STATIC-4 to 8).

    broker-a    hosted {0: [...], 2: [...]}   all segments of the queues that it leads
                copies {1: [...]}             a backup of the queues whose second leader it is
    broker-c    hosted {}                     hosts nothing, and still knows epoch and number of queues

All mappings of a topic are the truth about its queues. They change only by events of the metadata log: a mapping is put
or removed, a segment is sealed, segments are dropped. A mapping is stored together with the topic's new route, in one
append and before it, so no reader of a part of the events sees the route without the mapping (SPEC STATIC-7). Mappings
are not checked when they change, since one may be damaged or copied from elsewhere; a check finds the faults
(`mq.static.completeness`), and a queue without a sound mapping is not served.

New queues are spread over brokers, and a remapping moves as few as possible:

    brokers a, b, c     queues 0..6 led by      a: 0 1 2 3    b: 4 5 6
    remap to b, c                               b: 4 5 6 0    c: 1 2 3        b keeps its own and gains the odd one

A broker only gains or only loses queues, the queues with the lowest numbers stay, and the brokers that led most before
get the odd queues.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from deltamq.mq.static.logical_queue import LogicalQueue
from deltamq.mq.static.segments import Segment
from deltamq.mq.stored_json import Form, forms_of

MAPPING_VERSION: Final = 1

Chains = Mapping[int, tuple[Segment, ...]]


class QueueMapping(msgspec.Struct, frozen=True, kw_only=True):
    """One broker's mapping. Immutable."""

    #: The broker that it was written for; another broker ignores a mapping that was copied to it (SPEC STATIC-6).
    broker: str
    #: All mappings of a topic have one epoch; it grows with each change that is not a seal.
    epoch: int
    total_queues: int
    hosted: Chains = msgspec.field(default_factory=dict)
    copies: Chains = msgspec.field(default_factory=dict)
    version: int = MAPPING_VERSION


def mappings_of(queues: Iterable[LogicalQueue], brokers: Iterable[str], epoch: int) -> dict[str, QueueMapping]:
    """Return the mapping of each broker: the named ones, and each leader and second leader of a queue."""
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


Chain = tuple[Segment, ...]


class Sealed(NamedTuple):
    """A segment that got its last message."""

    partition: str
    end_offset: int
    at_ms: int
    #: Whether the next segment's logical offsets jump to a new block (an `available` remapping).
    jumps: bool


class TopicMappings(msgspec.Struct, frozen=True):
    """Immutable: each change returns the next state."""

    by_broker: Mapping[str, QueueMapping] = msgspec.field(default_factory=dict)

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
            if len(chain) < 2 or (closing := by_partition.get(chain[-2].partition)) is None:
                return chain
            queue = LogicalQueue(index, chain)
            if chain[-2].is_sealed or not chain[-2].is_decided:
                return chain
            return queue.sealed(closing.partition, closing.end_offset, closing.at_ms, jumps=closing.jumps).segments

        return self._changed(seal)

    def without(self, partitions: frozenset[str]) -> TopicMappings:
        """Return the mappings without dropped segments; leaders stay."""

        def drop(_: int, chain: Chain) -> Chain:
            return tuple(
                segment
                for at, segment in enumerate(chain)
                if segment.partition not in partitions or at == len(chain) - 1
            )

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


def spread_queues(leaders: Mapping[int, str], total: int, brokers: Sequence[str]) -> dict[int, str]:
    """Return the brokers of the new queues up to `total`: each goes to the broker that leads the fewest.

    `leaders` are the brokers of the present queues, which stay.
    """
    load = dict.fromkeys(brokers, 0)
    for broker in leaders.values():
        if broker in load:
            load[broker] += 1
    spread: dict[int, str] = {}
    for index in range(len(leaders), total):
        spread[index] = min(brokers, key=load.__getitem__)
        load[spread[index]] += 1
    return spread


def plan_remap(
    leaders: Mapping[int, str], brokers: Sequence[str], queues: Collection[int] | None = None
) -> dict[int, str]:
    """Return the queues that move when exactly `brokers` shall lead all queues, each with its new broker.

    With `queues`, only these may move: each that is not at one of `brokers` goes to the one that leads the fewest.
    """
    if queues is not None:
        return _plan_some(leaders, brokers, queues)
    of_broker: dict[str, list[int]] = {broker: [] for broker in [*brokers, *leaders.values()]}
    for index in sorted(leaders):
        of_broker[leaders[index]].append(index)
    share, odd = divmod(len(leaders), len(brokers))
    by_load = sorted(brokers, key=lambda broker: -len(of_broker[broker]))
    wanted = {broker: share + (at < odd) for at, broker in enumerate(by_load)}
    moving = [index for broker, indexes in of_broker.items() for index in indexes[wanted.get(broker, 0) :]]
    moved: dict[int, str] = {}
    waiting = iter(sorted(moving))
    for broker in brokers:
        for _ in range(wanted[broker] - len(of_broker[broker])):
            moved[next(waiting)] = broker
    assert next(waiting, None) is None, "every queue that moves has a new broker"
    return moved


def _plan_some(leaders: Mapping[int, str], brokers: Sequence[str], queues: Collection[int]) -> dict[int, str]:
    load = dict.fromkeys(brokers, 0)
    for broker in leaders.values():
        if broker in load:
            load[broker] += 1
    moved: dict[int, str] = {}
    for index in sorted(set(queues)):
        if leaders[index] not in load:
            moved[index] = min(brokers, key=load.__getitem__)
            load[moved[index]] += 1
    return moved


class MappingPut(msgspec.Struct, frozen=True, kw_only=True):
    """A broker stored its mapping of a static topic."""

    kind: ClassVar[str] = "mapping_put"
    topic_id: str
    #: The broker that holds it; `mapping.broker` is the one that it was written for.
    holder: str
    mapping: QueueMapping

    @property
    def key(self) -> str:
        return f"mapping/{self.topic_id}/{self.holder}"


class MappingRemoved(msgspec.Struct, frozen=True, kw_only=True):
    """A broker's mapping of a static topic is gone."""

    kind: ClassVar[str] = "mapping_removed"
    topic_id: str
    holder: str

    @property
    def key(self) -> str:
        return f"mapping/{self.topic_id}/{self.holder}"


class SegmentsDropped(msgspec.Struct, frozen=True, kw_only=True):
    """Segments whose messages are all expired were dropped; append it behind the `TopicPut` without them."""

    kind: ClassVar[str] = "segments_dropped"
    topic_id: str
    partitions: tuple[str, ...]
    #: The indexes that they had in the route.
    indexes: tuple[int, ...]

    @property
    def key(self) -> str:
        return f"segments/{self.topic_id}"


StaticEvent = MappingPut | MappingRemoved | SegmentsDropped

#: The stored form of each kind of event.
STATIC_EVENTS: Final[Mapping[str, Form[Any]]] = forms_of(MappingPut, MappingRemoved, SegmentsDropped)
