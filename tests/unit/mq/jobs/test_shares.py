"""Applications that share the shards of a job: a fair share in few moves, whatever each sees of the others."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamq.mq.jobs import Share, shard_share, share_sizes

FIVE = ("a", "b", "c", "d", "e")


@pytest.mark.parametrize(
    ("applications", "owners", "share"),
    [
        pytest.param("x", {}, Share(take=FIVE), id="alone it takes all"),
        pytest.param("xy", dict.fromkeys(FIVE, "x"), Share(give=("d", "e")), id="gives the surplus to a newcomer"),
        pytest.param("xy", {"a": "x", "b": "x", "c": "x", "d": "y", "e": "y"}, Share(), id="a fair share stays"),
        pytest.param("x", {"a": "x", "b": "y"}, Share(take=("c", "d", "e")), id="not those of an owner that sleeps"),
        pytest.param("xy", {"a": "y"}, Share(take=("b", "c")), id="no two take the same one"),
        pytest.param("x", {"a": "x", "z": "x"}, Share(take=("b", "c", "d", "e"), give=("z",)), id="lets go what ended"),
    ],
)
def test_spark_07_a_share(applications: str, owners: dict[str, str], share: Share) -> None:
    assert shard_share("x", applications, FIVE, owners) == share


def test_spark_07_a_shard_that_nobody_takes_is_taken_beyond_the_share() -> None:
    owners = {"a": "x", "b": "x", "c": "x", "d": "y"}
    assert shard_share("x", "xy", FIVE, owners) == Share()
    assert shard_share("x", "xy", FIVE, owners, left=["e"]) == Share(take=("e",))


@given(st.dictionaries(st.text("xyz", min_size=1, max_size=3), st.integers(0, 9), min_size=1), st.integers(0, 40))
def test_spark_07_shares_are_fair_and_add_up(held: dict[str, int], shards: int) -> None:
    sizes = share_sizes(held, shards)
    assert sum(sizes.values()) == shards
    assert max(sizes.values()) - min(sizes.values()) <= 1


class _World:
    """Applications with the locks between them; each sees the locks as they were some time ago."""

    def __init__(self, seed: int) -> None:
        self.drawn = random.Random(seed)
        self.shards = [f"s{i}" for i in range(self.drawn.randint(1, 12))]
        self.living: set[str] = set()
        self.locks: dict[str, str] = {}
        self.seen: dict[str, tuple[set[str], dict[str, str]]] = {}
        self.moves = 0

    def look(self, one: str) -> None:
        self.seen[one] = (set(self.living), dict(self.locks))

    def act(self, one: str) -> None:
        """Do what an application decides by what it saw last."""
        living, locks = self.seen[one]
        mine = {shard: owner for shard, owner in self.locks.items() if owner == one}
        others = {shard: owner for shard, owner in locks.items() if owner != one}
        share = shard_share(one, living | {one}, self.shards, others | mine)
        for shard in share.give:
            assert self.locks.pop(shard) == one
        for shard in share.take:
            if shard not in self.locks:  # the lock is atomic
                self.locks[shard] = one
                self.moves += 1

    def disturb(self) -> None:
        what = self.drawn.randrange(4)
        if what == 0:
            one = f"app-{self.drawn.randrange(1_000)}"
            self.living.add(one)
            self.look(one)
        elif what == 1 and len(self.living) > 1:
            dead = self.drawn.choice(sorted(self.living))
            self.living.remove(dead)
            self.locks = {shard: owner for shard, owner in self.locks.items() if owner != dead}
        elif what == 2:
            self.shards.append(f"s{self.drawn.randrange(100)}")
        elif len(self.shards) > 1:
            self.shards.remove(self.drawn.choice(self.shards))

    def held(self) -> Counter[str]:
        return Counter(dict.fromkeys(self.living, 0)) + Counter(self.locks.values())


@pytest.mark.promise("JOB-15")
@given(st.integers(0, 10_000))
def test_spark_07_whatever_each_saw_all_shards_are_shared_fairly_in_the_end(seed: int) -> None:
    world = _World(seed)
    world.living.add("app-a")
    world.look("app-a")
    for _ in range(60):
        if world.drawn.random() < 0.3:
            world.disturb()
        one = world.drawn.choice(sorted(world.living))
        if world.drawn.random() < 0.5:
            world.look(one)
        world.act(one)
    for _ in range(3):  # those that hold too much give, those that lack take, in whatever order they come
        for one in world.drawn.sample(sorted(world.living), len(world.living)):
            world.look(one)
            world.act(one)
    assert set(world.locks) == set(world.shards)
    counts = [sum(owner == one for owner in world.locks.values()) for one in world.living]
    assert max(counts) - min(counts) <= 1
    before = dict(world.locks)
    for one in world.living:
        world.look(one)
        world.act(one)
    assert world.locks == before, "a fair distribution moves"


@pytest.mark.promise("JOB-15")
@given(st.integers(0, 10_000))
def test_spark_07_a_newcomer_gets_its_share_in_as_few_moves_as_there_are(seed: int) -> None:
    world = _World(seed)
    world.living = {f"app-{i}" for i in range(world.drawn.randint(1, 5))}
    for _ in range(3):
        for one in sorted(world.living):
            world.look(one)
            world.act(one)
    world.moves = 0
    world.living.add("new")
    for _ in range(3):
        for one in sorted(world.living):
            world.look(one)
            world.act(one)
    assert world.moves == len(world.shards) // len(world.living)
