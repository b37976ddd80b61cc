"""Which broker leads which logical queue: spreading new queues, moving as few as possible (SPEC STATIC-7, 8).

    brokers a, b, c     queues 0..6 led by      a: 0 1 2 3    b: 4 5 6
    remap to b, c                               b: 4 5 6 0    c: 1 2 3        b keeps its own and gains the odd one

A broker only gains or only loses queues, the queues with the lowest numbers stay, and of brokers that share an odd
queue those that had most before get it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence


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

    With `queues`, these alone may move: each that is not at one of `brokers` goes to the one that leads the fewest.
    """
    if queues is not None:
        return _plan_some(leaders, brokers, queues)
    of_broker: dict[str, list[int]] = {broker: [] for broker in [*brokers, *leaders.values()]}
    for index in sorted(leaders):
        of_broker[leaders[index]].append(index)
    share, odd = divmod(len(leaders), len(brokers))
    by_load = sorted(brokers, key=lambda broker: -len(of_broker[broker]))
    wanted = {broker: share + (at < odd) for at, broker in enumerate(by_load)}
    moving = [index for broker, those in of_broker.items() for index in those[wanted.get(broker, 0) :]]
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
