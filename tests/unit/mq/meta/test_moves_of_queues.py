"""Order across segments of logical queues, and what it costs to know it (SPEC ROUTE-6, STATIC-20)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from deltamq.mq.errors import Conflict
from deltamq.mq.limits import LOGICAL_PARTITIONS
from deltamq.mq.meta.moved_keys import Blocked, Move, MovedKeys, first_blocked
from tests.static_topics import StaticWorld

LPS: Final = (0, 300, 511, 512, 700, 1_023)
KEYLESS: Final = -1


def asked(moved: MovedKeys, target: str, positions: Mapping[str, int], passed: set[str]) -> tuple[Blocked | None, int]:
    """What a group may not read in a partition, and how many questions that took; notes if it is nothing."""
    asking, questions = moved.inquire(target, passed), 0
    try:
        move = next(asking)
        while True:
            questions += 1
            assert move.end_offset is not None, "only of sealed moves"
            move = asking.send(positions.get(move.source, 0) >= move.end_offset)
    except StopIteration as end:
        blocked: Blocked | None = end.value
    if blocked is None:
        passed.add(target)
    return blocked, questions


def by_definition(moved: MovedKeys, target: str, positions: Mapping[str, int]) -> set[int]:
    """Those of `LPS` of which some partition on the way to `target` is not consumed up to its end; -1 for no key.

    Messages without a key, and those of LPs that never led to the queue, were sent to it by its name.
    """
    found, by_name = set(), {KEYLESS}
    for lp in LPS:
        way = [move for move in moved.moves if any(low <= lp < high for low, high in move.ranges)]
        names = [move.target for move in way]
        if target not in names:
            by_name.add(lp)
        elif not all(_done(move, positions) for move in way[: names.index(target) + 1]):
            found.add(lp)
    partition = target
    while into := [move for move in moved.moves if move.target == partition and move.remaps]:
        if not _done(into[0], positions):
            found |= by_name
        partition = into[0].source
    return found


def _done(move: Move, positions: Mapping[str, int]) -> bool:
    return move.end_offset is not None and positions.get(move.source, 0) >= move.end_offset


def chain(length: int) -> StaticWorld:
    """One queue with a chain of segments of one message each."""
    world = StaticWorld()
    world.put(1, brokers=("A",))
    for number in range(length - 1):
        world.send(0)
        world.remap(("B" if number % 2 == 0 else "A",))
        world.seal()
    world.send(0)
    return world


def test_static_20_a_group_asks_about_each_segment_of_a_chain_once_while_it_goes_through() -> None:
    world = chain(100)
    moved = world.meta.moved_keys(world.topic.id)
    positions: dict[str, int] = {}
    passed: set[str] = set()
    total = 0
    for segment in world.queues[0].segments:
        blocked, questions = asked(moved, segment.partition, positions, passed)
        assert blocked is None
        total += questions
        for _ in range(10):
            assert asked(moved, segment.partition, positions, passed) == (None, 0)
        positions[segment.partition] = 1
    assert total <= 100


def test_static_20_behind_an_unfinished_segment_one_question_is_enough() -> None:
    world = chain(100)
    moved = world.meta.moved_keys(world.topic.id)
    segments = world.queues[0].segments
    for at in (1, 50, 99):
        blocked, questions = asked(moved, segments[at].partition, {}, set())
        assert blocked is not None and blocked.all() and questions == 1


def test_static_20_an_empty_segment_does_not_hide_those_before_it() -> None:
    world = StaticWorld()
    world.put(1, brokers=("A",))
    world.send(0)
    for broker in ("B", "A"):
        world.remap((broker,))
        world.seal()
    moved, (first, _, last) = world.meta.moved_keys(world.topic.id), world.queues[0].segments
    assert moved.blocked(last.partition, dict.fromkeys(moved.sources(last.partition), 0)) is not None
    assert moved.blocked(last.partition, dict.fromkeys(moved.sources(last.partition), 1)) is None
    assert moved.sources(last.partition) >= {first.partition}


def test_static_20_messages_without_a_key_wait_behind_remappings_alone() -> None:
    world = StaticWorld()
    world.put(1, brokers=("A",), strict=True)
    world.send(0, 3)
    world.put(2, brokers=("B",), strict=True)
    world.seal()
    new = world.queues[1].leader.partition
    moved = world.meta.moved_keys(world.topic.id)
    blocked = moved.blocked(new, {"orders@A": 2})
    assert blocked is not None and not blocked[KEYLESS]
    world.remap(("A",), queues=[1])
    world.seal()
    moved, newest = world.meta.moved_keys(world.topic.id), world.queues[1].leader.partition
    blocked = moved.blocked(newest, {"orders@A": 2, new: 0})
    assert blocked is not None and not blocked[KEYLESS] and blocked[:LOGICAL_PARTITIONS].any()


def test_static_20_messages_of_any_key_wait_in_a_queue_that_they_were_sent_to_by_name() -> None:
    """Producers may name a queue for a key; so a queue may have messages of LPs that lead to another one."""
    world = StaticWorld()
    world.put(2, brokers=("A",))
    world.send(0)
    world.remap(("B",))
    world.seal()
    moved, (first, second) = world.meta.moved_keys(world.topic.id), world.queues[0].segments
    blocked = moved.blocked(second.partition, {first.partition: 0})
    assert blocked is not None and blocked.all()
    assert moved.blocked(second.partition, {first.partition: 1}) is None


class GroupMachine(RuleBasedStateMachine):
    """Sends, grows, remaps, seals and consumes in order, in any order of these; then all is consumed."""

    @initialize(total=st.integers(1, 3))
    def create(self, total: int) -> None:
        self.world = StaticWorld(("A", "B"))
        self.world.put(total, strict=True)
        self.logs: dict[str, list[tuple[int, int]]] = {}
        self.sent: dict[tuple[str, int], int] = {}
        self.got: dict[tuple[str, int], int] = {}
        self.positions: dict[str, int] = {}
        self.passed: set[str] = set()

    def _queue_of(self, partition: str) -> str:
        return next(queue.name for queue in self.world.queues.values() if queue.segment_of(partition) is not None)

    def _stream(self, partition: str, lp: int) -> tuple[str, int]:
        """What keeps an order: a key, everywhere; messages without a key, in their queue."""
        return (self._queue_of(partition) if lp == KEYLESS else "", lp)

    @rule(lp=st.sampled_from((*LPS, KEYLESS)), queue=st.integers(0, 5))
    def send(self, lp: int, queue: int) -> None:
        world = self.world
        moved = world.meta.moved_keys(world.topic.id)
        if lp == KEYLESS:
            leader = world.queues[queue % len(world.queues)].leader.partition
            partition = moved.behind.get(leader, leader)
        else:
            partition = world.topic.route.partitions[moved.table(world.topic.route)[lp]]
        stream = self._stream(partition, lp)
        number = self.sent[stream] = self.sent.get(stream, -1) + 1
        self.logs.setdefault(partition, []).append((lp, number))
        world.ends[partition] = len(self.logs[partition])

    @precondition(lambda self: len(self.world.queues) < 5)
    @rule(by=st.integers(1, 2))
    def grow(self, by: int) -> None:
        self.world.put(len(self.world.queues) + by, strict=True)

    @rule(
        broker=st.sampled_from("AB"),
        available=st.booleans(),
        queues=st.none() | st.lists(st.integers(0, 5), min_size=1, max_size=2),
    )
    def remap(self, broker: str, available: bool, queues: list[int] | None) -> None:
        chosen = None if queues is None else [queue % len(self.world.queues) for queue in queues]
        try:
            self.world.remap((broker,), "available" if available else "strict", chosen)
        except Conflict as error:
            assert error.code == "remap_in_progress"

    @rule(limit=st.none() | st.integers(1, 2))
    def seal(self, limit: int | None) -> None:
        self.world.seal(limit)

    @rule(which=st.integers(0, 40), count=st.integers(1, 4))
    def consume(self, which: int, count: int) -> None:
        partitions = self.world.topic.route.partitions
        self._consume(partitions[which % len(partitions)], count)

    def _consume(self, partition: str, count: int) -> int:
        at = self.positions.get(partition, 0)
        batch = self.logs.get(partition, [])[at : at + count]
        lps = np.array([lp for lp, _ in batch], dtype=np.int16)
        blocked, _ = asked(self.world.meta.moved_keys(self.world.topic.id), partition, self.positions, self.passed)
        taken = first_blocked(blocked, lps)
        for lp, number in batch[:taken]:
            stream = self._stream(partition, lp)
            assert number == self.got.get(stream, -1) + 1, f"{stream} came out of order in {partition}"
            self.got[stream] = number
        self.positions[partition] = at + taken
        return taken

    @invariant()
    def what_is_remembered_changes_nothing(self) -> None:
        moved = self.world.meta.moved_keys(self.world.topic.id)
        for partition in self.world.topic.route.partitions[-4:]:
            expected = by_definition(moved, partition, self.positions)
            for passed in (set(), self.passed):
                blocked, _ = asked(moved, partition, self.positions, set(passed))
                assert {lp for lp in (*LPS, KEYLESS) if blocked is not None and blocked[lp]} == expected

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        while self.world.meta.moved_keys(self.world.topic.id).waiting:
            self.world.seal()
        while any(self._consume(partition, 100) for partition in self.world.topic.route.partitions):
            pass
        assert self.got == self.sent, "all of it arrives"


TestGroupMachine = GroupMachine.TestCase
TestGroupMachine.settings = settings(stateful_step_count=25)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.integers(0, 6))
def test_static_20_exactly_the_segments_behind_the_first_unfinished_one_wait(ends: list[int], done: int) -> None:
    world = StaticWorld()
    world.put(1, brokers=("A",))
    for number, count in enumerate(ends):
        if count:
            world.send(0, count)
        world.remap(("B" if number % 2 == 0 else "A",))
        world.seal()
    moved, segments = world.meta.moved_keys(world.topic.id), world.queues[0].segments
    positions = {one.partition: one.end_offset for one in segments[:done] if one.is_sealed}
    left = [one.end_offset > positions.get(one.partition, 0) for one in segments]
    unfinished = left.index(True) if True in left else len(segments)
    for at, segment in enumerate(segments):
        blocked, _ = asked(moved, segment.partition, positions, set())
        assert (blocked is not None) == (at > unfinished)
