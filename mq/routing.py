"""Routes: which partition of a topic a message goes to (SPEC ROUTE).

A key always hashes to the same one of 1,024 logical partitions (LP); a route maps ranges of LPs to partitions. A new
route divides the LPs into contiguous ranges of nearly equal size. An expansion keeps every old partition in its place
and takes LPs from the upper end of what it owns. So no LP moves between two old partitions, and the number of LPs that
move is the least possible:

    LP      0        256       512       768      1024
    2       |     orders@A      |     orders@B      |
    2 -> 4  |orders@A |orders#1@A|orders@B |orders#2@B|
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Final, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from deltamq.mq.errors import Conflict, NotFound, Unavailable, Unprocessable
from deltamq.mq.limits import LOGICAL_PARTITIONS, PARTITIONS_MAX
from deltamq.mq.names import PartitionName, check_partition, partition_name
from deltamq.mq.partitioners import Partitioner, Table, logical_partition
from deltamq.mq.stored_json import corrupt_when_damaged, reader, to_json

# Number of partitions, each on another broker, of a topic whose request names no number (SPEC ROUTE-2).
DEFAULT_PARTITIONS: Final = 2
# Smallest slice of a request, in messages. A further slice costs a commit in one more table, 1 to 2 ms, and that is the
# time that it takes to encode this many rows.
_SLICE_MESSAGES_MIN: Final = 4_096

_NONE: Final[frozenset[int]] = frozenset()

# LPs `[low, high)` belong to the partition at this index of the route.
Range = tuple[int, int, int]


class SlotMap(Protocol):
    """A map of each slot to a partition: a route, or a placement, which knows of changes under way."""

    @property
    def partitions(self) -> tuple[str, ...]: ...

    @property
    def table(self) -> Table:
        """For each slot the index of its partition; slots are logical partitions, unless keys go by Kafka's hash."""
        ...

    @property
    def partitioner(self) -> Partitioner:
        """The hash by which keys go to slots."""
        ...

    @property
    def targets(self) -> tuple[int, ...]:
        """The indexes of the partitions that messages without a key go to, in route order."""
        ...


class NamedSlotMap(SlotMap, Protocol):
    """Places with the names that clients use for them."""

    @property
    def avoided(self) -> frozenset[int]:
        """The indexes of partitions that nothing may be sent to."""
        ...

    def number_of(self, topic: str, name: str, field: str) -> int:
        """Return the index of the partition that a client names; `field` is the part of the request.

        Raises
        ------
        DeltaMQError
            There is no such partition, or clients may not name it.
        """
        ...


# Without slots, because `cached_property` needs an instance dictionary.
class Route(msgspec.Struct, frozen=True, dict=True):
    """The partitions of one topic in route order, and which LPs each of them owns.

    `owners` are ranges in LP order that cover every LP once; adjacent ranges belong to different partitions.
    A route with a higher `epoch` replaces a route with a lower one.
    """

    epoch: int
    partitions: tuple[str, ...]
    owners: tuple[Range, ...]
    #: Indexes of partitions that own nothing any more and are still read: sealed segments of logical queues, in order.
    retired: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        fault = _fault(self.partitions, self.owners, self.retired)
        if fault is not None:
            raise ValueError(fault)

    @cached_property
    def table(self) -> Table:
        """For each LP the index of its partition in `partitions`; read only."""
        table = table_of(self.owners).astype(np.int16)
        table.flags.writeable = False
        return table

    @cached_property
    def targets(self) -> tuple[int, ...]:
        """The indexes of the partitions that own LPs, in route order."""
        return tuple(sorted({index for _, _, index in self.owners}))

    @cached_property
    def index_of(self) -> Mapping[str, int]:
        """The index of each partition."""
        return {partition: at for at, partition in enumerate(self.partitions)}

    @property
    def partitioner(self) -> Partitioner:
        """Always `lp`: a topic whose keys go by Kafka's hash places them without its route."""
        return "lp"

    @property
    def avoided(self) -> frozenset[int]:
        """Always empty: a route does not know which of its partitions take no messages."""
        return _NONE

    def number_of(self, topic: str, name: str, field: str) -> int:
        """Return the index of the partition with this name; raise `NotFound` (`partition_not_found`) without one."""
        index = self.index_of.get(name)
        if index is None:
            raise NotFound(f"{field}: topic {topic} has no partition {name!r}", code="partition_not_found", field=field)
        return index

    def partition_of(self, key: str) -> int:
        """Return the index in `partitions` of the partition for messages with `key` (SPEC ROUTE-5)."""
        return int(self.table[logical_partition(key)])

    def to_json(self) -> dict[str, object]:
        """Return this route as JSON values: `{"epoch", "partitions", "owners": [[low, high, index], ...]}`.

        `retired` is there only if the route has such partitions.
        """
        values: dict[str, object] = msgspec.json.decode(to_json(self))
        if not self.retired:
            del values["retired"]
        return values

    @classmethod
    def from_json(cls, value: object) -> Route:
        """Return the route that `to_json` wrote; raises `Corrupt` when the value is not a valid route."""
        with corrupt_when_damaged("a stored route", code="route_corrupt"):
            return _route(value)


_route: Final = reader(Route)


def _fault(partitions: tuple[str, ...], owners: tuple[Range, ...], retired: tuple[int, ...]) -> str | None:
    """Return what is wrong with a route; None when it is valid."""
    if not all("@" in partition for partition in partitions):
        return "a partition is not written NAME@BROKER"
    if len(set(partitions)) != len(partitions):
        return "a partition is named twice"
    edges = [0, *(high for _, high, _ in owners)]
    if [*(low for low, _, _ in owners), LOGICAL_PARTITIONS] != edges or sorted(set(edges)) != edges:
        return "the ranges do not cover each logical partition once"
    if sorted({index for _, _, index in owners}.union(retired)) != list(range(len(partitions))):
        return "a partition owns nothing, or an owner is not in the route"
    if sorted(set(retired)) != list(retired) or not {index for _, _, index in owners}.isdisjoint(retired):
        return "a retired partition owns something, or is retired twice"
    if any(left[2] == right[2] for left, right in pairwise(owners)):
        return "adjacent ranges of one partition are not joined"
    return None


def default_route(topic: str, brokers: Sequence[str]) -> Route:
    """Return the route of a topic without a partition count: the first two brokers, or the only one (SPEC ROUTE-2)."""
    return new_route(topic, min(DEFAULT_PARTITIONS, max(1, len(brokers))), brokers)


def new_route(topic: str, count: int, brokers: Sequence[str]) -> Route:
    """Return the first route of a topic with `count` partitions: contiguous ranges of nearly equal size (ROUTE-4)."""
    _check_count(count)
    return Route(epoch=1, partitions=_named((), topic, count, brokers), owners=equal_ranges(count))


def ranges_of(table: NDArray[np.integer]) -> tuple[Range, ...]:
    """Return a table of LPs as ranges; adjacent LPs of one owner are joined."""
    starts = [0, *(np.flatnonzero(np.diff(table)) + 1).tolist()]
    return tuple((low, high, int(table[low])) for low, high in pairwise([*starts, LOGICAL_PARTITIONS]))


def table_of(ranges: Sequence[Range]) -> NDArray[np.int64]:
    """Return for each LP the owner that the ranges name."""
    return np.repeat([owner for _, _, owner in ranges], [high - low for low, high, _ in ranges]).astype(np.int64)


def equal_ranges(count: int) -> tuple[Range, ...]:
    """Return the LPs divided among `count` owners: contiguous ranges of nearly equal size (SPEC ROUTE-4)."""
    return ranges_of(np.repeat(np.arange(count), _sizes(np.zeros(count, dtype=np.int64), kept=0)))


def expanded_ranges(ranges: Sequence[Range], count: int) -> tuple[Range, ...]:
    """Return the LPs divided among more owners, with the fewest LPs moved, and none between two old owners."""
    kept = 1 + max(owner for _, _, owner in ranges)
    return ranges_of(_expanded(table_of(ranges).astype(np.int16), kept, count))


def expand(route: Route, topic: str, count: int, brokers: Sequence[str]) -> Route:
    """Return `route` expanded to `count` partitions, with the fewest LPs moved (SPEC ROUTE-3, ROUTE-4).

    Raises
    ------
    Conflict
        `partitions_cannot_shrink` when the topic already has more partitions.
    Unprocessable
        `partitions_out_of_range` when `count` is not within 1 to 1,024.
    """
    kept = len(route.partitions)
    _check_count(count)
    if count < kept:
        raise Conflict(
            f"the topic has {kept} partitions and cannot have fewer",
            code="partitions_cannot_shrink",
            field="partitions",
            extra={"partitions": kept},
        )
    if count == kept:
        return route
    return Route(
        epoch=route.epoch + 1,
        partitions=_named(route.partitions, topic, count, brokers),
        owners=expanded_ranges(route.owners, count),
    )


def route_by_hand(partitions: Sequence[str]) -> Route:
    """Return the first route of a topic with exactly these partitions, in this order (SPEC ROUTE-8).

    Raises
    ------
    Refused
        As for `check_by_hand`.
    """
    check_by_hand(partitions)
    return Route(epoch=1, partitions=tuple(partitions), owners=equal_ranges(len(partitions)))


def expand_by_hand(route: Route, partitions: Sequence[str]) -> Route:
    """Return `route` expanded to these partitions, of which the present ones are the first (SPEC ROUTE-8).

    Raises
    ------
    Conflict
        `partitions_cannot_shrink` if a present partition is missing, `routes_cannot_be_reordered`.
    Refused
        As for `check_by_hand`.
    """
    check_by_hand(partitions)
    kept = len(route.partitions)
    missing = [name for name in route.partitions if name not in set(partitions)]
    if missing:
        raise Conflict(
            f"routes: the topic has the partition {missing[0]} and keeps it",
            code="partitions_cannot_shrink",
            field="routes",
            extra={"partitions": kept},
        )
    if tuple(partitions[:kept]) != route.partitions:
        raise Conflict(
            "routes: the topic's present partitions come first, in their order; new ones follow",
            code="routes_cannot_be_reordered",
            field="routes",
            extra={"routes": list(route.partitions)},
        )
    if len(partitions) == kept:
        return route
    return Route(
        epoch=route.epoch + 1,
        partitions=tuple(partitions),
        owners=expanded_ranges(route.owners, len(partitions)),
    )


def check_by_hand(partitions: Sequence[str]) -> None:
    """Return if these names of partitions may make a route.

    Raises
    ------
    Refused
        `invalid_partition_name`, `invalid_broker_name`.
    Unprocessable
        `partitions_out_of_range`; `partition_named_twice`, also if two names differ only by case.
    """
    _check_count(len(partitions), "routes")
    seen: set[str] = set()
    for partition in partitions:
        check_partition(partition)
        if partition.lower() in seen:
            raise Unprocessable(
                f"routes: {partition} is named twice, or another name differs from it only by case",
                code="partition_named_twice",
                field="routes",
            )
        seen.add(partition.lower())


def _check_count(count: int, field: str = "partitions") -> None:
    if not 1 <= count <= PARTITIONS_MAX:
        raise Unprocessable(
            f"a topic has 1 to {PARTITIONS_MAX} partitions, not {count}",
            code="partitions_out_of_range",
            field=field,
            extra={"limit": PARTITIONS_MAX},
        )


def _named(present: tuple[str, ...], topic: str, count: int, brokers: Sequence[str]) -> tuple[str, ...]:
    """Return `present` and enough new names for `count` partitions (SPEC ROUTE-3).

    Each new partition goes to the broker with the fewest partitions: round robin, unless the set of brokers changes.
    The first partition on a broker has the name of the topic, later ones `topic#N`; N counts over all brokers.
    """
    if not brokers:
        raise Unavailable("no broker is available to hold the topic", code="no_broker")
    names = list(present)
    load = dict.fromkeys(brokers, 0)
    number = 0
    for name, broker in map(PartitionName.parse, present):
        load[broker] = load.get(broker, 0) + 1
        numbered = re.fullmatch(re.escape(topic) + r"#(\d+)", name)
        number = max(number, int(numbered[1])) if numbered else number
    while len(names) < count:
        broker = min(brokers, key=load.__getitem__)
        load[broker] += 1
        name = partition_name(topic, broker)
        if load[broker] > 1:
            number += 1
            name = partition_name(f"{topic}#{number}", broker)
        names.append(name)
    return tuple(names)


def _sizes(sizes: NDArray[np.int64], kept: int) -> NDArray[np.int64]:
    """Return how many LPs each partition shall own, given the current `sizes`; the first `kept` partitions are old.

    Sizes differ by at most one. The larger sizes go first to old partitions that own that many LPs already: each of
    these then moves one LP less, and no old partition receives an LP of another one.
    """
    low, larger = divmod(LOGICAL_PARTITIONS, sizes.size)
    order = sorted(range(sizes.size), key=lambda index: (sizes[index] <= low, index < kept))
    wanted = np.full(sizes.size, low, dtype=np.int64)
    wanted[order[:larger]] += 1
    return wanted


def _expanded(table: Table, kept: int, count: int) -> Table:
    """Return `table` after each partition has given up the LPs beyond its new size, from the upper end."""
    sizes = np.bincount(table, minlength=count)
    wanted = _sizes(sizes, kept)
    keeps = np.minimum(sizes, wanted)
    by_owner = np.argsort(table, kind="stable")
    first = np.cumsum(sizes) - sizes
    rank = np.empty_like(by_owner)
    rank[by_owner] = np.arange(LOGICAL_PARTITIONS) - first[table[by_owner]]
    moved = np.flatnonzero(rank >= keeps[table])
    expanded = table.copy()
    expanded[moved] = np.repeat(np.arange(count), wanted - keeps)
    return expanded


def spread(count: int, route: SlotMap, draw: int) -> list[Range]:
    """Divide `count` messages without a key into slices: (index of the partition, low, high) of `[low, high)`.

    `draw` is a random number: the first slice goes to the partition of a slot that it draws (SPEC ROUTE-5), the
    next ones to the partitions that follow in route order. Slices are contiguous, about equal and seldom small,
    because each costs a commit in another table. A partition that is not among the `targets` gets none.
    """
    targets = route.targets
    slices = min(len(targets), max(count // _SLICE_MESSAGES_MIN, 1), count)
    first = int(route.table[draw % len(route.table)])
    if slices == 1 and first in targets:
        return [(first, 0, count)]
    start = targets.index(first) if first in targets else draw % len(targets)
    edges = [count * part // slices for part in range(slices + 1)] if slices else []
    return [(targets[(start + part) % len(targets)], low, high) for part, (low, high) in enumerate(pairwise(edges))]
