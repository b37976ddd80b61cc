"""Static topics as decisions on the metadata: create, grow, remap, seal, repair, drop segments (SPEC STATIC)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from deltamq.mq.errors import Conflict, DeltaMQError, Refused, Unavailable, Unprocessable
from deltamq.mq.meta.brokers import decide_leave
from deltamq.mq.meta.moved_keys import KeysMoved
from deltamq.mq.meta.static_topics import static_faults
from deltamq.mq.meta.topic_settings import TopicRequest
from deltamq.mq.meta.topics import TopicPut, decide_delete_topic, decide_put_topic
from deltamq.mq.static.mappings import MappingPut, MappingRemoved, TopicMappings
from deltamq.mq.static.segments import UNDECIDED, Segment
from tests.static_topics import StaticWorld

AB = ("A", "B")


def made(total: int = 4, brokers: tuple[str, ...] = AB, *, strict: bool = False) -> StaticWorld:
    world = StaticWorld(brokers)
    world.put(total, strict=strict)
    return world


def leaders(world: StaticWorld) -> list[str]:
    return [queue.leader.broker for _, queue in sorted(world.queues.items())]


def faults(world: StaticWorld) -> list[str]:
    return [fault.kind for fault in static_faults(world.meta, world.topic)]


def mapping(world: StaticWorld, holder: str) -> MappingPut:
    return MappingPut(
        topic_id=world.topic.id, holder=holder, mapping=world.meta.mappings(world.topic.id).by_broker[holder]
    )


# Create and grow ------------------------------------------------------------------------------------------------------


def test_static_7_create_spreads_queues_evenly_and_stores_mappings_before_the_topic() -> None:
    world = StaticWorld(("A", "B", "C"))
    events = world.put(7)
    assert [type(event) for event in events] == [MappingPut, MappingPut, MappingPut, TopicPut]
    assert Counter(leaders(world)) == {"A": 3, "B": 2, "C": 2}
    assert world.topic.route.partitions == (
        "orders@A",
        "orders#1@B",
        "orders#2@C",
        "orders#3@A",
        "orders#4@B",
        "orders#5@C",
        "orders#6@A",
    )
    assert world.topic.leaders() == {index: world.queues[index].leader.partition for index in range(7)}


def test_static_4_a_broker_that_hosts_nothing_stores_epoch_and_number_of_queues() -> None:
    world = StaticWorld(("A", "B", "C"))
    world.put(2, brokers=("A",))
    stored = world.meta.mappings("id-1").by_broker
    assert set(stored) == {"A", "B", "C"} and not stored["C"].hosted
    assert {(one.epoch, one.total_queues) for one in stored.values()} == {(1_010, 2)}


def test_static_7_update_adds_queues_and_never_removes_any() -> None:
    world = made(2)
    before = {index: queue.segments for index, queue in world.queues.items()}
    world.put(5)
    assert {index: world.queues[index].segments for index in before} == before
    assert len(world.queues) == 5 and faults(world) == []
    with pytest.raises(Conflict) as caught:
        world.put(4)
    assert caught.value.code == "queues_cannot_shrink"
    assert world.put(5) == ()


def test_static_7_plain_updates_of_static_topics_and_the_reverse_are_refused() -> None:
    world = made()
    topics = world.meta.topics
    with pytest.raises(Conflict) as caught:
        decide_put_topic(topics, "orders", TopicRequest(partitions=8), AB, "x", 0)
    assert caught.value.code == "topic_static"
    plain = StaticWorld()
    plain.apply(decide_put_topic(plain.meta.topics, "orders", TopicRequest(), AB, "id-1", 0))
    with pytest.raises(Conflict) as caught:
        plain.put(4)
    assert caught.value.code == "topic_not_static"
    with pytest.raises(Conflict):
        plain.remap(("A",))


def test_static_23_settings_change_only_together_with_the_number_of_queues() -> None:
    world = made(4)
    with pytest.raises(Conflict) as caught:
        decide_put_topic(world.meta.topics, "orders", TopicRequest(retention_ms=5_000), AB, "x", 0)
    assert caught.value.code == "topic_static"
    (event,) = world.put(4, strict=True)
    assert isinstance(event, TopicPut) and event.topic.settings.order_strategy == "strict"


def test_static_7_growth_of_an_ordered_topic_moves_keys_behind_seals() -> None:
    world = made(2, strict=True)
    world.put(3)
    waiting = world.meta.moved_keys("id-1").waiting
    assert waiting == {"orders@A", "orders#1@B"}
    with pytest.raises(Conflict) as caught:
        world.remap(("B",))
    assert caught.value.code == "remap_in_progress"
    world.seal()
    assert faults(world) == [] and not world.meta.moved_keys("id-1").waiting
    assert all(not segment.is_sealed for queue in world.queues.values() for segment in queue.segments)


# Preflight ------------------------------------------------------------------------------------------------------------


def test_static_23_brokers_that_are_unknown_or_not_served_are_refused_before_anything_changes() -> None:
    world = made()
    before = world.meta
    with pytest.raises(Unprocessable) as unknown:
        world.remap(("A", "X"))
    assert unknown.value.code == "unknown_broker" and "'X'" in unknown.value.detail
    world.meta = world.meta.apply_all(decide_leave(world.meta.brokers, "host-B"))
    with pytest.raises(Unavailable) as dead:
        world.remap(("B",))
    assert dead.value.code == "broker_unavailable"
    assert (world.meta.static, world.meta.topics) == (before.static, before.topics)


@pytest.mark.parametrize("queues", [[4], [-1], [0, 1_024]])
def test_static_23_unknown_queues_are_refused(queues: list[int]) -> None:
    with pytest.raises(Unprocessable) as caught:
        made().remap(("B",), queues=queues)
    assert caught.value.code == "unknown_queue"


def test_static_7_a_number_of_queues_out_of_range_is_refused() -> None:
    for total in (0, -1, 1_025):
        with pytest.raises(Unprocessable) as caught:
            StaticWorld().put(total)
        assert caught.value.code == "queues_out_of_range"


# Remap ----------------------------------------------------------------------------------------------------------------


def test_static_8_strict_leaves_no_hole_and_closes_the_old_leader_first() -> None:
    world = made(2)
    assert world.send(0, 5) == [0, 1, 2, 3, 4]
    world.remap(("B",))
    assert world.send(0) == [5], "the old leader takes messages until it is sealed"
    world.seal()
    assert world.send(0, 2) == [6, 7]
    assert world.queues[0].holes == 0 and leaders(world) == ["B", "B"]


def test_static_9_available_takes_messages_at_once_and_jumps_behind_the_seal() -> None:
    world = made(2)
    world.send(0, 5)
    world.remap(("B",), "available")
    assert world.send(0, 2) == [None, None]
    assert world.meta.moved_keys("id-1").ahead == {"orders#2@B": "orders@A"}
    world.seal()
    assert world.send(0) == [10_002]
    old, new = world.queues[0].segments
    assert (old.end_offset, new.logic_offset, world.queues[0].holes) == (5, 10_000, 9_995)


def test_static_4_the_new_leader_has_all_segments_and_the_second_leader_a_copy() -> None:
    world = made(2)
    world.remap(("B",))
    world.seal()
    stored = world.meta.mappings("id-1").by_broker
    assert stored["B"].hosted[0] == stored["A"].copies[0] == world.queues[0].segments
    assert not stored["A"].hosted and stored["B"].copies == {}
    world.serve("C")
    world.remap(("C",))
    world.seal()
    stored = world.meta.mappings("id-1").by_broker
    assert set(stored["C"].hosted) == {0, 1} and set(stored["B"].copies) == {0, 1}
    assert not stored["A"].copies, "copies more than two generations old are dropped"


def test_static_12_a_partition_is_never_mapped_twice_even_when_queues_come_back() -> None:
    world = made(2)
    for broker in ("B", "A", "B", "A"):
        world.remap((broker,))
        world.seal()
    partitions = [segment.partition for queue in world.queues.values() for segment in queue.segments]
    assert len(set(partitions)) == len(partitions) == len(world.topic.route.partitions)


def test_static_8_the_same_brokers_again_change_nothing() -> None:
    world = made(4)
    assert world.remap(AB) == () and world.remap(("B", "A")) == ()


def test_static_24_a_remapping_of_a_thousand_queues_is_one_change() -> None:
    world = StaticWorld(("A", "B", "C", "D"))
    world.put(1_000, brokers=("A", "B"))
    events = world.remap(("C", "D"))
    assert Counter(type(event) for event in events) == {MappingPut: 4, KeysMoved: 1, TopicPut: 1}
    world.seal()
    assert Counter(leaders(world)) == {"C": 500, "D": 500} and faults(world) == []


def test_static_8_two_remappings_at_once_are_refused() -> None:
    world = made(4)
    world.remap(("B",))
    with pytest.raises(Conflict) as caught:
        world.remap(("A",))
    assert caught.value.code == "remap_in_progress"
    assert world.remap(("B",)) == (), "the same one again is done already"


# Completeness and repair ----------------------------------------------------------------------------------------------


def remapped() -> StaticWorld:
    world = made(4)
    world.send(0, 3)
    world.remap(("B",))
    world.seal()
    return world


@pytest.mark.parametrize("holder", AB)
def test_static_5_a_missing_mapping_is_named_and_nothing_changes(holder: str) -> None:
    world = remapped()
    world.apply([MappingRemoved(topic_id="id-1", holder=holder)])
    before = world.meta
    assert "missing" in faults(world)
    for change in (lambda: world.put(9), lambda: world.remap(("A",))):
        with pytest.raises(Conflict) as caught:
            change()
        assert caught.value.code == "mapping_incomplete" and f"broker {holder} has no mapping" in caught.value.detail
    assert world.meta is before


def test_static_6_a_mapping_that_was_copied_by_hand_is_reported_and_ignored() -> None:
    world = made(4, ("A", "B", "C"))
    theirs = mapping(world, "A")
    world.apply([replace(theirs, holder="C")])
    assert "copied" in faults(world)
    assert len(world.queues) == 4 - 1, "the queue that C led is not available"


def test_static_5_another_epoch_and_another_number_of_queues_are_named() -> None:
    world = made(4)
    old = mapping(world, "A")
    world.put(5)
    world.apply([old])
    assert {"epoch", "total_queues"} <= set(faults(world))


def test_static_5_a_torn_chain_is_named_and_its_queue_not_served() -> None:
    world = remapped()
    whole = mapping(world, "B")
    chains = {**whole.mapping.hosted, 0: whole.mapping.hosted[0][1:]}
    first = replace(chains[0][0], logic_offset=UNDECIDED)
    torn = replace(whole.mapping, hosted={**chains, 0: (first,)})
    world.apply([replace(whole, mapping=torn)])
    assert "torn" in faults(world) and 0 not in world.queues and 1 in world.queues
    world.repair()
    assert faults(world) == [] and len(world.queues[0].segments) == 2, "the second leader's copy is whole"


def test_static_5_a_queue_that_two_brokers_lead_is_named() -> None:
    world = remapped()
    ours, theirs = mapping(world, "A"), mapping(world, "B")
    stolen = {0: (replace(theirs.mapping.hosted[0][-1], partition="orders#99@A", logic_offset=0, gen=7),)}
    world.apply([replace(ours, mapping=replace(ours.mapping, hosted=stolen))])
    assert "led_twice" in faults(world)
    world.repair()
    assert faults(world) == [] and world.queues[0].leader.broker == "B"


@pytest.mark.parametrize("lost", AB)
def test_static_11_a_repair_rebuilds_a_lost_mapping_from_the_copies(lost: str) -> None:
    world = remapped()
    moved = {index: queue.segments for index, queue in world.queues.items() if len(queue.segments) > 1}
    world.apply([MappingRemoved(topic_id="id-1", holder=lost)])
    if lost == "B":
        with pytest.raises(Conflict) as caught:
            world.repair()
        assert caught.value.code == "mapping_lost" and caught.value.extra["queues"] == [1, 3]
        return
    world.repair()
    assert faults(world) == [] and {index: world.queues[index].segments for index in moved} == moved
    assert world.repair() == ()


def test_static_11_a_seal_that_a_lost_mapping_missed_is_applied_by_the_repair() -> None:
    world = made(1)
    world.send(0, 7)
    world.remap(("B",), "available")
    unsealed = mapping(world, "A")
    world.apply([MappingRemoved(topic_id="id-1", holder="B")])
    world.seal()
    world.apply([unsealed, MappingRemoved(topic_id="id-1", holder="B")])
    world.repair()
    assert faults(world) == []
    assert [(one.end_offset, one.logic_offset) for one in world.queues[0].segments] == [(7, 0), (UNDECIDED, 10_000)]


def moved_twice() -> tuple[StaticWorld, MappingPut]:
    """Queue 0 has messages in three segments, on A, B and A; with A's mapping of before the last seal."""
    world = made(2)
    world.send(0, 3)
    world.send(1, 9)
    world.remap(("B",), queues=[0])
    world.seal()
    world.send(0, 5)
    world.remap(("A",), "available", [0])
    early = mapping(world, "A")
    world.seal()
    world.send(0, 2)
    return world, early


def _with(world: StaticWorld, role: str, *segments: Segment) -> MappingPut:
    """The mapping that hosts queue 0, or has its copy, with other segments and the epoch of the topic."""
    whole = mapping(world, "A" if role == "hosted" else "B")
    chains = {**getattr(whole.mapping, role), 0: segments}
    return replace(whole, mapping=replace(whole.mapping, **{role: chains}))


#: What somebody may put back by hand: chains that look whole, of queue 0, whose true one is given.
_PUT_BACK: dict[str, tuple[Callable[[tuple[Segment, ...]], tuple[Segment, ...]], str]] = {
    "an end one short": (lambda s: (s[0], replace(s[1], end_offset=4), s[2]), "ends at 4, and was sealed at 5"),
    "another end and beginning": (
        lambda s: (replace(s[0], end_offset=2), replace(s[1], logic_offset=2), s[2]),
        "ends at 2, and was sealed at 3",
    ),
    "another logical offset": (
        lambda s: (*s[:2], replace(s[2], logic_offset=20_000)),
        "and its first message is 10000",
    ),
    "another first offset": (
        lambda s: (replace(s[0], logic_offset=7), replace(s[1], logic_offset=10), s[2]),
        "begins at logical offset 7, not at 0",
    ),
    "another queue's partition": (
        lambda s: (replace(s[0], partition="orders#1@B"), *s[1:]),
        "partition orders#1@B is a segment of queue 1",
    ),
    "a partition of nowhere": (lambda s: (s[0], replace(s[1], partition="orders#9@B"), s[2]), "was never a segment"),
    "short at its beginning": (lambda s: s[1:], "it is short of orders@A"),
    "short in the middle": (lambda s: (s[0], replace(s[2], logic_offset=3)), "it is short of orders#2@B"),
}


@pytest.mark.parametrize("role", ["hosted", "copies"])
@pytest.mark.parametrize("change", _PUT_BACK)
def test_static_26_a_mapping_put_back_by_hand_that_looks_whole_is_named_not_served_and_repaired(
    change: str, role: str
) -> None:
    world, _ = moved_twice()
    chains = {index: queue.segments for index, queue in world.queues.items()}
    make, told = _PUT_BACK[change]
    world.apply([_with(world, role, *make(chains[0]))])
    found = static_faults(world.meta, world.topic)
    assert any(told in one.detail for one in found if one.kind == "recorded"), found
    assert {one.queue for one in found} == {0}
    assert (0 in world.queues) == (role == "copies") and world.queues[1].segments == chains[1]
    for refused in (lambda: world.put(9), lambda: world.remap(("B",))):
        with pytest.raises(Conflict, match="repair it first"):
            refused()
    world.repair()
    assert faults(world) == [] and {at: queue.segments for at, queue in world.queues.items()} == chains
    assert world.send(0) == [10_002]


def test_static_26_a_chain_that_ends_early_is_named_and_repaired() -> None:
    world, _ = moved_twice()
    chain = world.queues[0].segments
    for role in ("hosted", "copies"):
        world.apply([_with(world, role, *chain[:1], replace(chain[1], end_offset=UNDECIDED, end_ms=UNDECIDED))])
        assert faults(world) and (role == "copies" or 0 not in world.queues)
        world.repair()
        assert faults(world) == [] and world.queues[0].segments == chain


def test_static_26_a_mapping_of_before_a_seal_is_named_and_repaired_without_any_copy() -> None:
    world, early = moved_twice()
    chain = world.queues[0].segments
    before = mapping(world, "B")
    world.apply([early])
    assert early.mapping.epoch == world.topic.static.epoch if world.topic.static else False
    assert faults(world) == ["recorded", "copy"] and 0 not in world.queues
    world.apply([replace(before, mapping=replace(before.mapping, copies={}))])
    world.repair()
    assert faults(world) == []
    ends = [(one.partition, one.logic_offset, one.end_offset) for one in chain]
    assert [(one.partition, one.logic_offset, one.end_offset) for one in world.queues[0].segments] == ends


def test_static_26_copies_are_compared_and_made_anew() -> None:
    world, _ = moved_twice()
    whole = mapping(world, "B")
    chain = world.queues[0].segments
    aged = (replace(chain[0], gen=chain[0].gen, start_ms=7), *chain[1:])
    for copies, told in (({}, "broker B has no copy of queue 0"), ({0: aged}, "the copy of queue 0 differs")):
        world.apply([replace(whole, mapping=replace(whole.mapping, copies=copies))])
        (fault,) = static_faults(world.meta, world.topic)
        assert (fault.kind, fault.broker, fault.queue) == ("copy", "B", 0) and told in fault.detail
        world.repair()
        assert faults(world) == [] and world.queues[0].segments == chain
        whole = mapping(world, "B")


def test_static_18_deleting_the_topic_clears_its_mappings() -> None:
    world = remapped()
    world.meta = world.meta.apply_all(decide_delete_topic(world.meta.topics, "orders"))
    assert world.meta.static == {} and world.meta.moved == {}
    world.put(2)
    assert world.topic.generation == 1 and faults(world) == []


# Dropping segments ----------------------------------------------------------------------------------------------------


def test_static_17_expired_segments_are_dropped_and_never_the_leader() -> None:
    world = made(1)
    for broker in ("B", "A", "B"):
        world.send(0, 2)
        world.remap((broker,))
        world.seal()
    chain = world.queues[0].segments
    assert world.drop([chain[1].partition]) == (), "an older segment has messages"
    world.drop([one.partition for one in chain if one is not chain[2]])
    assert world.queues[0].segments == chain[2:]
    assert world.topic.route.partitions == tuple(one.partition for one in chain[2:])
    assert world.meta.moved_keys("id-1").moves[0].source == chain[2].partition
    assert world.send(0) == [6] and faults(world) == []
    world.put(3)
    world.remap(("A",))
    assert len(set(world.topic.route.partitions)) == len(world.topic.route.partitions)
    assert not set(world.topic.route.partitions) & {one.partition for one in chain[:2]}, "no name is used again"


# Any order ------------------------------------------------------------------------------------------------------------


class StaticMachine(RuleBasedStateMachine):
    """Creates, grows, remaps, seals, sends, restarts, damages and repairs in any order."""

    @initialize(total=st.integers(1, 6), strict=st.booleans())
    def create(self, total: int, strict: bool) -> None:
        self.world = StaticWorld(("A", "B", "C"))
        self.world.put(total, strict=strict)
        self.sent: dict[int, list[int]] = {}
        self.undecided: dict[int, list[tuple[str, int]]] = {}
        self.damaged = False

    @rule(queue=st.integers(0, 11), count=st.integers(1, 9_000))
    def send(self, queue: int, count: int) -> None:
        static = self.world.topic.static
        assert static is not None
        if queue >= static.total or queue not in self.world.queues:
            return
        offsets = self.world.send(queue, count)
        known = [at for at in offsets if at is not None]
        before = self.sent.setdefault(queue, [])
        assert not known or not before or known[0] > before[-1], "logical offsets grow strictly"
        before += known[-1:]

    @rule(total=st.integers(1, 12))
    def grow(self, total: int) -> None:
        self._try(lambda: self.world.put(total))

    @rule(
        brokers=st.lists(st.sampled_from("ABC"), min_size=1, max_size=3, unique=True),
        mode=st.sampled_from(["strict", "available"]),
        queues=st.none() | st.lists(st.integers(0, 11), min_size=1, max_size=3),
    )
    def remap(self, brokers: list[str], mode: str, queues: list[int] | None) -> None:
        self._try(lambda: self.world.remap(brokers, mode, queues))  # type: ignore[arg-type]

    @rule(limit=st.none() | st.integers(1, 3))
    def seal(self, limit: int | None) -> None:
        self.world.seal(limit)

    @rule()
    def restart(self) -> None:
        before = self.world.meta
        self.world.restart()
        assert self.world.meta == before

    @rule(count=st.integers(0, 6))
    def drop(self, count: int) -> None:
        self.world.drop(self.world.topic.route.partitions[:count])

    @precondition(lambda self: not self.damaged)
    @rule(holder=st.sampled_from("ABC"))
    def lose(self, holder: str) -> None:
        """Lose a mapping of which copies may survive; a repair puts back what it can, else the lost one is put back."""
        kept = mapping(self.world, holder)
        self.world.apply([MappingRemoved(topic_id="id-1", holder=holder)])
        assert faults(self.world)
        try:
            self.world.repair()
        except Conflict as error:
            assert error.code == "mapping_lost"
            self.world.apply([kept])

    def _try(self, change: object) -> None:
        before = self.world.meta
        try:
            assert callable(change)
            change()
        except (Conflict, Refused):
            assert self.world.meta is before, "a refused change changes nothing"

    @invariant()
    def holds(self) -> None:
        world = self.world
        assert faults(world) == []
        static = world.topic.static
        assert static is not None and sorted(world.queues) == list(range(static.total))
        partitions = [one.partition for queue in world.queues.values() for one in queue.segments]
        assert sorted(partitions) == sorted(world.topic.route.partitions), "each partition is in one segment"
        for queue in world.queues.values():
            for segment in queue.segments[:-1]:
                end = world.ends.get(segment.partition, 0)
                assert segment.end_offset in (UNDECIDED, end), "sealed exactly at the last message"


TestStaticMachine = StaticMachine.TestCase
TestStaticMachine.settings = settings(stateful_step_count=25)


@given(st.integers(1, 1_024), st.integers(1, 4))
def test_static_7_every_number_of_queues_over_every_number_of_brokers(total: int, count: int) -> None:
    world = StaticWorld(("A", "B", "C", "D")[:count])
    world.put(total)
    load = Counter(leaders(world))
    assert max(load.values()) - min(load.values()) <= 1 and faults(world) == []
    assert sorted(world.topic.leaders()) == list(range(total))


# What went wrong in RocketMQ (its issues) -----------------------------------------------------------------------------


def test_static_10849_epochs_are_compared_as_whole_numbers() -> None:
    """RocketMQ #10849, #10580: it compares `(int) (e2 - e1)`, so epochs 100 and 3,000,000,100 sort wrongly."""
    world = made(2)
    ours = mapping(world, "A")
    world.apply([replace(ours, mapping=replace(ours.mapping, epoch=ours.mapping.epoch + 3_000_000_000))])
    assert "epoch" in faults(world)
    world.repair()
    epochs = {one.epoch for one in world.meta.mappings("id-1").by_broker.values()}
    assert len(epochs) == 1 and epochs.pop() > 3_000_000_000 and faults(world) == []


def test_static_4571_a_remapping_seals_the_old_leader_exactly() -> None:
    """RocketMQ leaves the old end offset open: what was accepted late is kept by the gap alone."""
    world = made(1)
    world.send(0, 3)
    world.remap(("B",), "available")
    world.ends["orders@A"] += 2
    world.seal()
    assert world.queues[0].segments[0].end_offset == 5


def test_static_5493_a_topic_without_mappings_is_a_named_fault() -> None:
    """RocketMQ throws a NullPointerException."""
    world = made(2)
    world.meta = replace(world.meta, static={"id-1": TopicMappings()})
    assert set(faults(world)) == {"missing", "unled"} and world.queues == {}
    with pytest.raises(DeltaMQError) as caught:
        world.remap(("B",))
    assert caught.value.code == "mapping_incomplete"
