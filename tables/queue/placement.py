"""The partitions to which messages of a topic go now, and the fence epochs that their appends know.

    route of the topic  +  moves that wait for their seal  -->  table: slot of a key -> partition
    mappings            +  remappings that wait            -->  names: logical queue -> partition (static topics)
    access              +  order strategy of the topic     -->  closed partitions, and where their messages go
    epochs of brokers   +  moves that are sealed           -->  the fence epochs of appends (`tables.log.fences`)

Slots are logical partitions, or slots of Kafka's partitioner, whose keys never move (`mq.partitioners`).

Route and fence epochs must come from one metadata snapshot: mixing two lets an append slip past a fence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from deltamq.mq.errors import NotFound, Unavailable
from deltamq.mq.meta.access import Access, AccessState, not_writable
from deltamq.mq.meta.brokers import BrokersState
from deltamq.mq.meta.fold import Meta
from deltamq.mq.meta.moved_keys import MovedKeys
from deltamq.mq.meta.static_topics import queues_of
from deltamq.mq.meta.topics import Topic
from deltamq.mq.names import broker_of
from deltamq.mq.partitioners import Partitioner, Table, kafka_table, slot_of
from deltamq.mq.static.logical_queue import TopicQueues
from deltamq.mq.static.queue_names import is_queue_name
from deltamq.tables.log.fences import BROKER_FENCE, ROUTE_FENCE

FenceEpochs = Mapping[str, int]
#: Most partitions that share the keys of a closed one, if they go by Kafka's hash: it bounds the table, which has that
#: many slots for each partition.
_SHARERS_MAX: Final = 64


class Placement(msgspec.Struct, frozen=True):
    """The placement of one topic's messages; `table` gives for each slot of keys the number in `partitions`."""

    partitions: tuple[str, ...]
    table: Table
    #: The fence epochs that appends know, by partition.
    fence_epochs: Mapping[str, FenceEpochs]
    #: The sealed ends of partitions that gave up logical partitions: earlier requests with their messages lie there.
    ends: Mapping[str, int]
    #: The numbers of the partitions that messages without a key go to.
    targets: tuple[int, ...]
    #: The numbers of the partitions by the names that clients use: their own, or logical queues' names.
    names: Mapping[str, int]
    #: The logical queues of a static topic.
    queues: TopicQueues | None = None
    #: The numbers of partitions whose logical queue is unavailable: nothing is sent there (SPEC STATIC-22).
    unserved: frozenset[int] = frozenset()
    #: The unserved partitions whose queue of a global topic takes no messages in this cluster, with its number.
    away: Mapping[int, int] = msgspec.field(default_factory=dict)
    #: Partitions that get messages before the old leader of their queue is sealed, each with the old one (STATIC-9).
    ahead: Mapping[str, str] = msgspec.field(default_factory=dict)
    #: The access of the partitions that may not be written to, by number (SPEC ROUTE-9).
    closed: Mapping[int, Access] = msgspec.field(default_factory=dict)
    #: The numbers of all partitions that messages without a key avoid: unserved, closed or stopped ones.
    avoided: frozenset[int] = frozenset()
    #: The placement as if nothing was closed; None if nothing is.
    whole: Placement | None = None
    #: The hash by which keys go to slots.
    partitioner: Partitioner = "lp"

    @classmethod
    def of(cls, topic: Topic, meta: Meta, access: AccessState | None = None) -> Placement:
        """Return the placement by the newest route; keys whose move is not sealed yet stay in their old partition.

        `access` is what is forbidden now, by default everything in `meta`, ended or not.
        """
        placement = cls._open(topic, meta)
        access = meta.access if access is None else access
        return placement._closed(topic, access) if access else placement

    @classmethod
    def _open(cls, topic: Topic, meta: Meta) -> Placement:
        route, moved = topic.route, meta.moved_keys(topic.id)
        ends: dict[str, int] = {}
        for move in moved.moves:
            if move.end_offset is not None:
                ends[move.source] = max(move.end_offset, ends.get(move.source, 0))
        fence_epochs = {name: _fence_epochs(moved, meta.brokers, name) for name in route.partitions}
        if topic.settings.partitioner == "kafka":
            table = kafka_table(len(route.partitions))
            return cls(route.partitions, table, fence_epochs, ends, route.targets, route.index_of, partitioner="kafka")
        table = moved.table(route)
        if topic.static is None:
            return cls(route.partitions, table, fence_epochs, ends, route.targets, route.index_of)
        queues = TopicQueues(topic.static.total, queues_of(meta, topic))
        homes = {index: moved.behind.get(leader, leader) for index, leader in topic.leaders().items()}
        at = {index: route.index_of[partition] for index, partition in homes.items()}
        world = topic.world
        away = {} if world is None else {at[index]: index for index in world.away & queues.served.keys()}
        unserved = frozenset(at[index] for index in at.keys() - queues.served.keys()).union(away)
        served = sorted(at[index] for index in queues.served)
        return cls(
            route.partitions,
            table,
            fence_epochs,
            ends,
            # If all queues are away, the clusters where they are place messages without a key.
            targets=tuple(number for number in served if number not in away) or tuple(served),
            names={queue.name: at[index] for index, queue in queues.served.items()},
            queues=queues,
            unserved=unserved,
            away=away,
            ahead=moved.ahead,
            avoided=unserved,
        )

    def _closed(self, topic: Topic, access: AccessState) -> Placement:
        """Return the placement without the partitions that may not be written to.

        Keys of a plain `best_tried` topic go to the others, evenly (SPEC SEND-2). Keys of a `strict` topic and of
        logical queues are refused instead (STATIC-22), and so are all keys if every partition is closed.
        """
        accesses = {number: access.of(topic.id, name) for number, name in enumerate(self.partitions)}
        closed = {number: right for number, right in accesses.items() if not right.writable}
        if not closed:
            return self
        targets = tuple(number for number in self.targets if number not in closed)
        table = self.table
        if targets and self.queues is None and topic.settings.order_strategy == "best_tried":
            if self.partitioner == "kafka":
                table = np.tile(table, min(len(targets), _SHARERS_MAX))
            elsewhere = np.array(targets, dtype=table.dtype)[self._sharers(table.size) % len(targets)]
            table = np.where(np.isin(table, list(closed)), elsewhere, table)
        return replace(
            self,
            table=table,
            targets=targets or self.targets,
            closed=closed,
            avoided=self.unserved.union(closed),
            whole=self,
        )

    def avoiding(self, numbers: frozenset[int]) -> Placement:
        """Return the placement in which messages without a key go to other partitions than these, if there are any."""
        targets = tuple(number for number in self.targets if number not in numbers)
        if not targets or not numbers:
            return self
        return replace(self, targets=targets, avoided=self.avoided | numbers)

    def _sharers(self, slots: int) -> NDArray[np.int64]:
        """Return which of the open partitions would get each slot, by their numbers modulo their count."""
        at = np.arange(slots)
        if self.partitioner == "lp":
            return at
        # The slots of one partition are n apart: each goes to the next open one.
        return at // len(self.partitions) + at % len(self.partitions)

    def number_of(self, topic: str, name: str, field: str) -> int:
        """Return the number of the partition that a client names; `field` is the part of the request.

        Raises
        ------
        DeltaMQError
            What `TopicQueues.require` raises; `partition_not_found` for plain topics, too.
        """
        number = self.names.get(name)
        if number is not None:
            return number
        if self.queues is not None:
            self.queues.require(name, topic, field)
        raise NotFound(f"{field}: topic {topic} has no partition {name!r}", code="partition_not_found", field=field)

    def home_of(self, topic: str, partition: str, key: str | None, draw: int) -> str:
        """Return where a message goes now that was meant for `partition` before: a partition, or a logical queue.

        In a static topic it follows its logical queue to the queue's present leader. If the partition is unknown,
        because it was dropped or the topic was created again, the key decides; without a key, the number `draw`.

        Raises
        ------
        Unavailable
            `queue_unserved`: the mapping of the logical queue is unavailable; `not_writable`.
        """
        if self.whole is not None:
            # Always the same partition: an earlier try may have stored the message there.
            home = self.whole.home_of(topic, partition, key, draw)
            access = self.closed.get(self.partitions.index(home))
            if access is not None:
                raise not_writable(f"topic {topic}: {home}", access)
            return home
        located = None if self.queues is None else self.queues.of_partition(partition)
        name = partition if located is None else located.queue.name
        if name in self.names:
            if self.names[name] in self.away:
                raise _unserved(topic, partition)
            return self.partitions[self.names[name]]
        if self.queues is not None and is_queue_name(name):
            self.queues.require(name, topic)
        if partition in self.partitions:
            raise _unserved(topic, partition)
        if key is not None:
            number = int(self.table[slot_of(key, self.partitioner, len(self.table))])
        else:
            number = self.targets[draw % len(self.targets)] if self.targets else min(self.unserved)
        if number in self.unserved:
            raise _unserved(topic, self.partitions[number])
        return self.partitions[number]

    def segments_before(self, partition: str) -> tuple[str, ...]:
        """Return the earlier segments of a partition's logical queue, oldest first; none in a plain topic.

        They hold what was stored before the queue moved: a repeated request is looked for there, too (SPEC STATIC-21).
        """
        located = None if self.queues is None else self.queues.of_partition(partition)
        if located is None:
            return ()
        names = tuple(segment.partition for segment in located.queue.segments)
        return names[: names.index(partition)]


def _unserved(topic: str, partition: str) -> Unavailable:
    detail = f"topic {topic}: the mapping of the logical queue of {partition} is unavailable; check the topic"
    return Unavailable(detail, code="queue_unserved")


def _fence_epochs(moved: MovedKeys, brokers: BrokersState, partition: str) -> FenceEpochs:
    epochs = dict(fence_epochs_of(brokers, broker_of(partition)))
    if moved.moves:
        epochs[ROUTE_FENCE] = moved.sealed_up_to(partition)
    return epochs


def fence_epochs_of(brokers: BrokersState, broker: str) -> FenceEpochs:
    """Return the fence epochs that an append to any partition of a broker knows: the epoch of its last owner."""
    owner = brokers.roles.get(broker)
    return {BROKER_FENCE: 0 if owner is None else owner.epoch}
