"""The partitions to which messages of a topic go now, and the fence epochs that their appends know.

    route of the topic  +  moves that wait for their seal  -->  table: logical partition -> partition
    epochs of brokers   +  moves that are sealed           -->  the fence epochs of appends (`tables.log.fences`)

Route and fence epochs must come from one metadata snapshot: mixing two lets an append slip past a fence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mq.meta import BrokersState, MovedKeys, Topic
from mq.names import broker_of
from mq.routing import Table
from tables.log import BROKER_FENCE, ROUTE_FENCE

__all__ = ["FenceEpochs", "Placement", "fence_epochs_of"]

FenceEpochs = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Placement:
    """The placement of one topic's messages; `table` gives for each logical partition the number in `partitions`."""

    partitions: tuple[str, ...]
    table: Table
    #: The fence epochs that appends know, by partition.
    fence_epochs: Mapping[str, FenceEpochs]
    #: The sealed ends of partitions that gave up logical partitions: earlier requests with their messages lie there.
    ends: Mapping[str, int]

    @classmethod
    def of(cls, topic: Topic, moved: MovedKeys, brokers: BrokersState) -> Placement:
        """Return the placement by the newest route; keys whose move is not sealed yet stay in their old partition."""
        route = topic.route
        fence_epochs: dict[str, FenceEpochs] = {}
        for partition in route.partitions:
            epochs = dict(fence_epochs_of(brokers, broker_of(partition)))
            if moved.moves:
                epochs[ROUTE_FENCE] = moved.sealed_up_to(partition)
            fence_epochs[partition] = epochs
        ends: dict[str, int] = {}
        for move in moved.moves:
            if move.end_offset is not None:
                ends[move.source] = max(move.end_offset, ends.get(move.source, 0))
        return cls(route.partitions, moved.table(route) if moved.moves else route.table, fence_epochs, ends)


def fence_epochs_of(brokers: BrokersState, broker: str) -> FenceEpochs:
    """Return the fence epochs that an append to any partition of a broker knows: the epoch of its last owner."""
    owner = brokers.roles.get(broker)
    return {BROKER_FENCE: 0 if owner is None else owner.epoch}
