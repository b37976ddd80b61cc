"""When partitions come up that nobody asks for, by a clock that the test moves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from deltamq.api.log.tending import Tending


class Clock:
    """The event loop's clock."""

    now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tending(clock: Clock) -> Tending:
    return Tending(clock, every_s=30.0)


def partition(name: str = "orders@broker-a") -> Any:
    """All that a queue needs of one."""
    return _Partition(name=name, tended_at_s=float("inf"))


class _Partition(SimpleNamespace):
    __hash__ = object.__hash__


def test_a_partition_comes_up_once_when_its_time_has_come(clock: Clock, tending: Tending) -> None:
    one = partition()
    tending.soon(one)
    clock.now_s += 29.9
    assert tending.take() == []
    clock.now_s += 0.2
    assert tending.take() == [one]
    clock.now_s += 3_600
    assert tending.take() == [], "it has to be planned again"


def test_use_does_not_put_it_off(clock: Clock, tending: Tending) -> None:
    one = partition()
    for _ in range(31):
        tending.soon(one)
        clock.now_s += 1
    assert tending.take() == [one]
    assert tending.take() == []


def test_use_wakes_one_at_rest(clock: Clock, tending: Tending) -> None:
    one = partition()
    tending.again(one, 3_000)
    clock.now_s += 10
    tending.soon(one)
    clock.now_s += 30.1
    assert tending.take() == [one]
    clock.now_s += 3_600
    assert tending.take() == [], "the plan of before is void"


def test_a_rest_has_an_end(clock: Clock, tending: Tending) -> None:
    one = partition()
    tending.again(one, 1e9)
    clock.now_s += 3_600.1
    assert tending.take() == [one]


def test_thousands_that_are_due_together_come_up_in_turns(clock: Clock, tending: Tending) -> None:
    ones = [partition(str(at)) for at in range(100)]
    for one in ones:
        tending.soon(one)
    clock.now_s += 31
    turns = [tending.take() for _ in range(5)]
    assert [len(turn) for turn in turns] == [32, 32, 32, 4, 0]
    assert [one for turn in turns for one in turn] == ones


def test_a_partition_that_is_gone_does_not_come_up(clock: Clock, tending: Tending) -> None:
    one, other = partition(), partition()
    tending.soon(one)
    tending.soon(other)
    tending.drop(one)
    tending.drop(one)
    clock.now_s += 31
    assert tending.take() == [other]


def test_look_24_partitions_at_rest_come_up_apart_however_many_there_are(clock: Clock) -> None:
    tending = Tending[Any](clock, every_s=30.0, apart_s=20.0)
    resting = [partition(f"t{number}") for number in range(1_000)]
    for one in resting:
        tending.again(one, 3_600.0)
    used = partition("used")
    tending.again(used, 30.0)
    clock.now_s += 31
    assert tending.take() == [used], "one in use comes up as ever"
    clock.now_s += 3_600
    came: list[Any] = []
    while turn := tending.take():
        came += turn
    # Those that went to rest first come up after an hour; with more at rest, each rests longer.
    assert 150 < len(came) < 200
    for one in came:
        tending.again(one, 3_600.0)
    assert min(one.tended_at_s for one in came) >= clock.now_s + 20 * 800
