"""Allocation: which client of an exclusive group consumes which partition of a topic (SPEC ORDER-1).

Strategies are pure functions of the online clients, the partitions in route order and the previous allocation. Each
partition has one client if there are any; a client without partitions is in the result with none.

    strategy          evenness                                     partitions that move when clients change
    sticky            counts differ by one at most                 the fewest that evenness allows
    average           counts differ by one at most; whole blocks   up to most of them
    circle            counts differ by one at most; in turn        up to most of them
    consistent_hash   no client over 125 % of the mean, rounded    a leaving client's, the ones that a new client takes,
                      up; a client may have none                   and a few that the bound pushes on
"""

from __future__ import annotations

import hashlib
from bisect import bisect
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice
from typing import Final, Literal, get_args

from deltamq.mq.limits import RING_LOAD_PERCENT_MAX, RING_POINTS

#: The partitions of each client, in route order.
Allocation = Mapping[str, tuple[str, ...]]
Strategy = Literal["sticky", "average", "circle", "consistent_hash"]

STRATEGIES: Final[tuple[str, ...]] = get_args(Strategy)
_Owners = dict[str, str]


def allocate(
    strategy: Strategy, clients: Collection[str], partitions: Sequence[str], previous: Allocation
) -> Allocation:
    """Allocate each of `partitions` (in route order, each once) to one of `clients`; without clients, to none.

    The result does not depend on the order of `clients`.
    """
    names = sorted(set(clients))
    owners = _OWNERS[strategy](names, partitions, previous) if names else {}
    taken: dict[str, list[str]] = {name: [] for name in names}
    for partition in partitions:
        if names:
            taken[owners[partition]].append(partition)
    allocation = {name: tuple(share) for name, share in taken.items()}
    assert sum(map(len, allocation.values())) == (len(partitions) if names else 0), "each partition has one owner"
    return allocation


def moves(before: Allocation, after: Allocation) -> int:
    """Return how many partitions moved from a client that is still there to another one."""
    owner = {partition: client for client, share in after.items() for partition in share}
    return sum(
        owner.get(partition, client) != client
        for client, share in before.items()
        if client in after
        for partition in share
    )


def _sticky(names: Sequence[str], partitions: Sequence[str], previous: Allocation) -> _Owners:
    """Take the last partitions from clients above their share, and give the free ones to the others, in route order.

    With n clients and p partitions, each client shall have p div n, and p mod n of them one more. A client keeps its
    partitions up to its share. So the most are kept if the clients that had the most get the larger shares.
    """
    before = {partition: client for client in names for partition in previous.get(client, ())}
    had: dict[str, list[str]] = {name: [] for name in names}
    for partition in partitions:
        if partition in before:
            had[before[partition]].append(partition)
    low, larger = divmod(len(partitions), len(names))
    order = sorted(_by_turn(names, partitions), key=lambda name: -len(had[name]))
    share = {name: low + (place < larger) for place, name in enumerate(order)}
    owners = {partition: name for name in names for partition in had[name][: share[name]]}
    takers = (name for name in order for _ in range(share[name] - len(had[name])))
    free = (partition for partition in partitions if partition not in owners)
    return owners | dict(zip(free, takers, strict=True))


def _by_turn(names: Sequence[str], partitions: Sequence[str]) -> list[str]:
    """Return the clients in an order of each topic's own, so that larger shares go to different clients."""
    first = partitions[0] if partitions else ""
    return sorted(names, key=lambda name: _point(f"{first}\0{name}"))


def _average(names: Sequence[str], partitions: Sequence[str], _previous: Allocation) -> _Owners:
    low, larger = divmod(len(partitions), len(names))
    rest = iter(partitions)
    return {partition: name for place, name in enumerate(names) for partition in islice(rest, low + (place < larger))}


def _circle(names: Sequence[str], partitions: Sequence[str], _previous: Allocation) -> _Owners:
    return {partition: names[place % len(names)] for place, partition in enumerate(partitions)}


def ring_load_max(clients: int, partitions: int) -> int:
    """Return the most partitions that `consistent_hash` allocates to one client."""
    return -(-partitions * RING_LOAD_PERCENT_MAX // (100 * clients))


def _consistent_hash(names: Sequence[str], partitions: Sequence[str], _previous: Allocation) -> _Owners:
    """Allocate each partition to the next client on the ring that has room: consistent hashing with bounded loads."""
    ring = sorted((_point(f"{name}\0{number}"), name) for name in names for number in range(RING_POINTS))
    room = dict.fromkeys(names, ring_load_max(len(names), len(partitions)))
    owners: _Owners = {}
    for partition in partitions:
        at = bisect(ring, (_point(partition), ""))
        while not room[ring[at % len(ring)][1]]:
            at += 1
        name = ring[at % len(ring)][1]
        room[name] -= 1
        owners[partition] = name
    return owners


def _point(text: str) -> int:
    """Return the place of a text on the ring, the same in every process and release."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])


_OWNERS: Final[Mapping[str, Callable[[Sequence[str], Sequence[str], Allocation], _Owners]]] = {
    "sticky": _sticky,
    "average": _average,
    "circle": _circle,
    "consistent_hash": _consistent_hash,
}
assert set(_OWNERS) == set(STRATEGIES)
