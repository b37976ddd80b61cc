"""Allocation of partitions to the clients of an exclusive group (SPEC ORDER-1)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamq.mq.meta.allocation import STRATEGIES, Allocation, Strategy, allocate, moves, ring_load_max

EVEN: tuple[Strategy, ...] = ("sticky", "average", "circle")
ALL: tuple[Strategy, ...] = (*EVEN, "consistent_hash")

clients = st.sets(st.sampled_from("abcdefghij"), max_size=7)
counts = st.integers(0, 40)
strategies = st.sampled_from(ALL)


def partitions(count: int) -> list[str]:
    return [f"orders#{number}@A" for number in range(count)]


def spread(allocation: Allocation) -> int:
    sizes = [len(those) for those in allocation.values()]
    return max(sizes) - min(sizes)


def test_the_strategies_are_those_of_the_specification() -> None:
    assert set(ALL) == set(STRATEGIES)


@given(strategy=strategies, online=clients, before=clients, count=counts, old=counts)
def test_order_01_each_partition_has_one_client_and_each_client_an_answer(
    strategy: Strategy, online: set[str], before: set[str], count: int, old: int
) -> None:
    previous = allocate(strategy, before, partitions(old), {})
    allocation = allocate(strategy, online, partitions(count), previous)
    assert set(allocation) == online
    given_out = [partition for those in allocation.values() for partition in those]
    assert sorted(given_out) == (sorted(partitions(count)) if online else [])
    assert all(list(those) == [p for p in partitions(count) if p in those] for those in allocation.values())
    assert allocation == allocate(strategy, sorted(online, reverse=True), partitions(count), previous)


@given(strategy=st.sampled_from(EVEN), online=clients.filter(bool), before=clients, count=counts)
def test_order_01_counts_differ_by_one_at_most(
    strategy: Strategy, online: set[str], before: set[str], count: int
) -> None:
    previous = allocate(strategy, before, partitions(count), {})
    assert spread(allocate(strategy, online, partitions(count), previous)) <= 1


@given(online=clients.filter(bool), count=counts)
def test_order_01_consistent_hash_stays_within_its_bound(online: set[str], count: int) -> None:
    allocation = allocate("consistent_hash", online, partitions(count), {})
    bound = ring_load_max(len(online), count)
    assert max(map(len, allocation.values())) <= bound
    assert bound <= 1.25 * count / len(online) + 1


def fewest_moves(before: Allocation, names: Sequence[str], all_partitions: Sequence[str]) -> int:
    """The fewest moves to any even allocation, by trying all of them."""
    best = len(all_partitions)
    for owners in product(names, repeat=len(all_partitions)):
        after = {
            name: tuple(p for p, owner in zip(all_partitions, owners, strict=True) if owner == name) for name in names
        }
        if spread(after) <= 1:
            best = min(best, moves(before, after))
    return best


@given(data=st.data(), online=st.sets(st.sampled_from("abcd"), min_size=1, max_size=3), count=st.integers(0, 6))
def test_order_01_sticky_moves_the_fewest(data: st.DataObject, online: set[str], count: int) -> None:
    """From any allocation, however uneven, with clients that left and partitions that nobody had."""
    owners = data.draw(st.lists(st.sampled_from("abcd-"), min_size=count, max_size=count))
    previous = {
        name: tuple(p for p, owner in zip(partitions(count), owners, strict=True) if owner == name) for name in "abcd"
    }
    after = allocate("sticky", online, partitions(count), previous)
    assert moves(previous, after) == fewest_moves(previous, sorted(online), partitions(count))


@given(online=clients, count=counts)
def test_order_01_sticky_without_a_change_moves_nothing(online: set[str], count: int) -> None:
    allocation = allocate("sticky", online, partitions(count), {})
    assert allocate("sticky", online, partitions(count), allocation) == allocation


@given(online=clients.filter(bool), count=st.integers(0, 20), more=st.integers(0, 20))
def test_order_01_an_expansion_by_sticky_moves_no_old_partition(online: set[str], count: int, more: int) -> None:
    """Everybody's share only grows, so nobody has to give anything up."""
    before = allocate("sticky", online, partitions(count), {})
    assert moves(before, allocate("sticky", online, partitions(count + more), before)) == 0


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        pytest.param("average", {"a": (0, 1, 2), "b": (3, 4), "c": (5, 6)}, id="blocks, the first ones longer"),
        pytest.param("circle", {"a": (0, 3, 6), "b": (1, 4), "c": (2, 5)}, id="in turn"),
    ],
)
def test_order_01_average_and_circle_are_rocketmqs(strategy: Strategy, expected: dict[str, tuple[int, ...]]) -> None:
    names = partitions(7)
    wanted = {client: tuple(names[number] for number in numbers) for client, numbers in expected.items()}
    assert allocate(strategy, "cab", names, {}) == wanted


def test_order_01_sticky_spreads_topics_of_one_partition_over_the_clients() -> None:
    """Each topic has its own order of the clients: else one of them would have all such topics."""
    owners = [
        client
        for topic in range(60)
        for client, those in allocate("sticky", "abc", [f"t{topic}@A"], {}).items()
        if those
    ]
    assert all(10 <= owners.count(client) <= 30 for client in "abc")


def test_order_01_consistent_hash_moves_few_when_a_client_leaves() -> None:
    names, online = partitions(64), [f"client-{number}" for number in range(8)]
    before = allocate("consistent_hash", online, names, {})

    def moved_without(gone: str) -> int:
        rest = [client for client in online if client != gone]
        return moves(before, allocate("consistent_hash", rest, names, before))

    assert mean(map(moved_without, online)) < len(names) / 8
    assert (
        mean(moves(before, allocate("average", [c for c in online if c != gone], names, before)) for gone in online)
        > len(names) / 4
    )
