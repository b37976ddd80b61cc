"""A client's copy of a topic's route and order strategy, fetched from the service.

    plain topic     key -> logical partition -> partition
    static topic    key -> logical partition -> logical queue        a remapping changes only the queue's broker
    kafka topic     key -> Kafka's hash -> partition                 with the setting `partitioner` (KAFKA-12)

Clients of a static topic see its logical queues; the partitions under them are known only by their brokers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final

import msgspec

from deltamq.mq.client.http.calls import read_answer
from deltamq.mq.client.http.endpoint import path_of
from deltamq.mq.client.http.hosts import Hosts
from deltamq.mq.errors import Unknown
from deltamq.mq.names import broker_of
from deltamq.mq.partitioners import Partitioner, Table, kafka_hash, kafka_table, logical_partition
from deltamq.mq.routing import Route, SlotMap, equal_ranges
from deltamq.mq.static.queue_names import is_queue_name
from deltamq.mq.wire.topics import TopicInfo

_KEYS_REMEMBERED: Final = 65_536

#: Cached, because keys repeat and hashing one in Python costs more than the rest of a send.
lp_of = lru_cache(maxsize=_KEYS_REMEMBERED)(logical_partition)
_hash_of = lru_cache(maxsize=_KEYS_REMEMBERED)(kafka_hash)


def broker_in(partition: str) -> str | None:
    """Return the broker in a partition's name; None for a logical queue, whose name has none."""
    return None if is_queue_name(partition) else broker_of(partition)


class _ServedRoute(msgspec.Struct, frozen=True):
    """A route with partitions that take no messages: messages without a key go to the others."""

    partitions: tuple[str, ...]
    table: Table
    targets: tuple[int, ...]
    partitioner: Partitioner = "lp"


class TopicView:
    """A route prepared for fast look-ups: what clients send to, by index and by slot.

    Parameters
    ----------
    brokers
        The broker of each of the route's partitions, empty if unknown; by default the ones in their names.
    stored_at
        The brokers of all physical partitions; by default those in `brokers`.
    unserved
        The indexes of partitions that are closed for writes or not served, and of logical queues without such a leader.
    partitioner
        The hash that maps keys to slots.
    commit_window_s
        For how many seconds the topic lets messages wait for others that share their commit.
    """

    __slots__ = (
        "brokers",
        "commit_window_s",
        "drawn",
        "index_of",
        "is_static",
        "partitioner",
        "partitions",
        "places",
        "route",
        "slot_of",
        "slots",
        "stored_at",
        "strict",
        "table",
        "target_brokers",
        "unserved",
    )

    def __init__(
        self,
        route: Route,
        *,
        strict: bool,
        brokers: Sequence[str] | None = None,
        stored_at: frozenset[str] | None = None,
        unserved: frozenset[int] = frozenset(),
        partitioner: Partitioner = "lp",
        commit_window_s: float = 0.0,
    ) -> None:
        self.route = route
        self.strict = strict
        self.partitions = route.partitions
        self.is_static = is_queue_name(route.partitions[0])
        #: The broker to whose host the messages of each partition are sent, or of each queue's leader.
        self.brokers = tuple(broker_in(name) or "" for name in route.partitions) if brokers is None else tuple(brokers)
        #: The brokers from which the topic is read; for a static topic, the brokers of all its segments.
        self.stored_at = frozenset(self.brokers) if stored_at is None else stored_at
        self.index_of: dict[str, int] = {name: index for index, name in enumerate(route.partitions)}
        self.partitioner = partitioner
        self.commit_window_s = commit_window_s
        by_hash = partitioner == "kafka"
        #: Index of the partition of each slot.
        self.slots: Table = kafka_table(len(route.partitions)) if by_hash else route.table
        #: The same as a list, because numpy makes an object for each look-up.
        self.table: list[int] = self.slots.tolist()
        #: Returns the slot of a key.
        self.slot_of: Callable[[str], int] = _slots_by_hash(len(route.partitions)) if by_hash else lp_of
        #: Index of the partition for each of 1,024 draws: where messages without a key go.
        self.drawn: list[int] = route.table.tolist() if by_hash else self.table
        served = tuple(index for index in route.targets if index not in unserved)
        #: If no partition takes messages, those without a key go to any, to be refused there.
        self.unserved = unserved if served else frozenset()
        #: Where messages without a key go, and the brokers there.
        self.places: SlotMap = _ServedRoute(route.partitions, route.table, served) if self.unserved else route
        self.target_brokers = tuple(self.brokers[index] for index in self.places.targets)

    def broker(self, partition: str) -> str:
        """Return the broker to whose host messages of a partition are sent; empty if unknown."""
        index = self.index_of.get(partition)
        return "" if index is None else self.brokers[index]


def _slots_by_hash(slots: int) -> Callable[[str], int]:
    return lambda key: _hash_of(key) % slots


Ranges = Sequence[tuple[int, int]]


async def fetch_view(hosts: Hosts, topic: str, timeout_s: float) -> TopicView:
    """Fetch the topic's route from the service."""
    answer = await hosts.call("GET", path_of("topics", topic), timeout_s=timeout_s)
    described = read_answer(answer, TopicInfo)
    partitions = described.partitions
    stopped = {p.partition for p in partitions if not p.writable or p.state != "serving"}
    strict = described.order_strategy == "strict"
    stored_at = frozenset(broker_of(p.partition) for p in partitions)
    owned: dict[str, Ranges] = {name: part.logical_partitions for name, part in described.named.items()}
    try:
        route = _route(described.routes_epoch, _divided(owned) if described.partitioner == "kafka" else owned)
    except ValueError as error:
        raise Unknown(f"the description of topic {topic} is unreadable", code="answer_unreadable") from error
    window_s = (described.commit_window_ms or 0) / 1000
    if not described.static:
        unserved = frozenset(index for index, name in enumerate(owned) if name in stopped)
        return TopicView(
            route,
            strict=strict,
            stored_at=stored_at,
            partitioner=described.partitioner,
            unserved=unserved,
            commit_window_s=window_s,
        )
    leaders = [queue.leader for queue in described.queues]
    return TopicView(
        route,
        strict=strict,
        brokers=["" if leader is None else leader.broker for leader in leaders],
        stored_at=stored_at,
        unserved=frozenset(
            index for index, leader in enumerate(leaders) if leader is None or leader.partition in stopped
        ),
        commit_window_s=window_s,
    )


def _divided(owned: Mapping[str, Ranges]) -> Mapping[str, Ranges]:
    """Return equal ranges for a topic without logical partitions: messages without a key are drawn by them."""
    ranges = equal_ranges(len(owned)) if owned else ()
    return {name: [(low, high)] for name, (low, high, _) in zip(owned, ranges, strict=True)}


def _route(epoch: int, owned: Mapping[str, Ranges]) -> Route:
    owners = sorted((low, high, index) for index, ranges in enumerate(owned.values()) for low, high in ranges)
    return Route(epoch=epoch, partitions=tuple(owned), owners=tuple(owners))
