"""A producer's copy of a topic's route and order strategy, fetched from the service."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import msgspec

from mq.client.http import Hosts, decode_as, path_of
from mq.errors import Unknown
from mq.names import broker_of
from mq.routing import Route, logical_partition

__all__ = ["TopicView", "fetch_view", "lp_of"]

_KEYS_REMEMBERED: Final = 65_536

#: Cached, because keys repeat and hashing one in Python costs more than the rest of a send.
lp_of = lru_cache(maxsize=_KEYS_REMEMBERED)(logical_partition)


class TopicView:
    """A route prepared for fast look-ups: partitions by index and by logical partition, with their brokers."""

    __slots__ = ("brokers", "index_of", "partitions", "route", "strict", "table")

    def __init__(self, route: Route, *, strict: bool) -> None:
        self.route = route
        self.strict = strict
        self.partitions = route.partitions
        self.brokers: tuple[str, ...] = tuple(broker_of(name) for name in route.partitions)
        self.index_of: dict[str, int] = {name: index for index, name in enumerate(route.partitions)}
        #: Index of the partition of each logical partition; a list, because numpy makes an object for each look-up.
        self.table: list[int] = route.table.tolist()


class _Partition(msgspec.Struct):
    partition: str
    logical_partitions: list[tuple[int, int]]


class _Topic(msgspec.Struct):
    routes_epoch: int
    order_strategy: str
    partitions: list[_Partition]


def fetch_view(hosts: Hosts, topic: str, timeout_s: float) -> TopicView:
    """Fetch the topic's route from the service."""
    answer = hosts.call("GET", path_of("topics", topic), timeout_s=timeout_s)
    try:
        described = decode_as(answer.body, _Topic)
        route = Route(
            epoch=described.routes_epoch,
            partitions=tuple(p.partition for p in described.partitions),
            owners=tuple(
                sorted(
                    (low, high, index)
                    for index, partition in enumerate(described.partitions)
                    for low, high in partition.logical_partitions
                )
            ),
        )
        return TopicView(route, strict=described.order_strategy == "strict")
    except (msgspec.MsgspecError, ValueError) as error:
        raise Unknown(f"the description of topic {topic} is unreadable", code="answer_unreadable") from error
