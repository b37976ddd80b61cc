"""What retention may remove, and what holds it back (SPEC RETRY-6, POP-11)."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from deltamq.mq.meta.group import Group, GroupDeleted, GroupPut, GroupsState, OffsetsReset, decide_begin
from deltamq.mq.meta.group_settings import GroupSettings
from deltamq.mq.meta.retention_holds import (
    Dated,
    Hold,
    Lag,
    checkpoint_holds,
    decide_removal,
    group_holds,
    lags_of,
    lease_holds,
    progress_of,
    readers_of,
)
from deltamq.mq.queue.checkpoint import Checkpoint, LaneKey, Pop, Span
from deltamq.mq.queue.progress import Bounds, Committed, Delivered, Start, StartKind
from deltamq.mq.queue.revive_log import CheckpointState

DAY_US = 24 * 3600 * 1_000_000
DAY_MS = DAY_US // 1_000
NOW_US = 1_000 * DAY_US
FILES = [Dated(400, NOW_US - 5 * DAY_US), Dated(900, NOW_US - 4 * DAY_US), Dated(950, NOW_US - DAY_US)]
TOPIC, PARTITION, OTHER = "id-1", "orders@broker-a", "orders@broker-b"


def below(*holds: Hold, keep_ms: int = 3 * DAY_MS) -> int:
    return decide_removal(FILES, now_us=NOW_US, keep_ms=keep_ms, holds=holds).below


# Ages.


def test_retry_6_files_go_that_are_older_than_messages_are_kept() -> None:
    assert below() == 900
    assert below(keep_ms=5 * DAY_MS) == 400, "the very moment counts"
    assert below(keep_ms=5 * DAY_MS + 1) == 0
    assert below(keep_ms=0) == 950


def test_retry_9_files_go_while_enough_bytes_stay_behind_them() -> None:
    files = [Dated(400, NOW_US, 900), Dated(900, NOW_US, 300), Dated(950, NOW_US, 0)]

    def left(keep_bytes: int, *holds: Hold) -> int:
        return decide_removal(files, now_us=NOW_US, keep_ms=DAY_MS, keep_bytes=keep_bytes, holds=holds).below

    assert [left(size) for size in (1, 300, 301, 900, 901)] == [900, 900, 400, 400, 0]
    assert left(1, Hold(500, "billing")) == 400
    assert decide_removal(files, now_us=NOW_US + DAY_US, keep_ms=DAY_MS, keep_bytes=901).below == 950, "by age, too"


def test_retry_6_nothing_goes_behind_a_file_that_stays() -> None:
    """Append times never go back in a log; a deliver time may."""
    files = [Dated(10, NOW_US), Dated(20, 0)]
    assert decide_removal(files, now_us=NOW_US, keep_ms=1).below == 0


def test_a_log_without_files_keeps_nothing_and_nobody_holds_it() -> None:
    verdict = decide_removal([], now_us=NOW_US, keep_ms=1, holds=[Hold(0, "billing")])
    assert (verdict.below, verdict.held_by) == (0, ())


# Holds.


def test_pop_11_a_file_with_an_offset_that_is_held_stays() -> None:
    verdict = decide_removal(FILES, now_us=NOW_US, keep_ms=3 * DAY_MS, holds=[Hold(620, "billing")])
    assert (verdict.below, verdict.held_by) == (400, ("billing",))
    assert below(Hold(400, "billing")) == 400
    assert below(Hold(399, "billing")) == 0


def test_only_those_who_keep_something_are_named() -> None:
    holds = [Hold(900, "quick"), Hold(899, "slow"), Hold(100, "slower"), Hold(100, "slower")]
    assert decide_removal(FILES, now_us=NOW_US, keep_ms=3 * DAY_MS, holds=holds).held_by == ("slow", "slower")


FILE_LISTS = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 1_000)), max_size=8).map(
    lambda steps: [
        Dated(sum(count for count, _ in steps[: i + 1]), sum(age for _, age in steps[: i + 1]))
        for i in range(len(steps))
    ]
)


@given(
    FILE_LISTS, st.integers(0, 8_000), st.integers(0, 8), st.lists(st.builds(Hold, st.integers(0, 400), st.just("g")))
)
def test_retry_6_what_goes_is_old_enough_whole_and_held_by_nobody(
    files: list[Dated], now_us: int, keep_ms: int, holds: list[Hold]
) -> None:
    verdict = decide_removal(files, now_us=now_us, keep_ms=keep_ms, holds=holds)
    assert verdict.below in {0, *(file.end for file in files)}
    gone = [file for file in files if file.end <= verdict.below]
    assert all(file.time_us + keep_ms * 1_000 <= now_us for file in gone)
    assert all(hold.offset >= verdict.below for hold in holds)
    # Nothing else could have gone: the next file is too young, or a group is named that holds it.
    rest = files[len(gone) :]
    if rest and rest[0].time_us + keep_ms * 1_000 <= now_us:
        assert verdict.held_by and any(hold.offset < rest[0].end for hold in holds)
    else:
        assert not verdict.held_by


# Groups.


def groups_of(*names: str, start: StartKind = StartKind.FIRST) -> GroupsState:
    settings = GroupSettings(consume_from=Start(start))
    return GroupsState().apply_all(
        GroupPut(group=Group(name=name, epoch=epoch, settings=settings, created_ms=0))
        for epoch, name in enumerate(names, 1)
    )


def lane(group: str, partition: str = PARTITION, *, topic_id: str = TOPIC, retry: bool = False) -> LaneKey:
    return LaneKey(topic_id, group, retry, partition)


def readers(groups: GroupsState, committed: dict[LaneKey, Committed]) -> dict[str, Committed | None]:
    return dict(readers_of(progress_of(committed, groups), topic_id=TOPIC, partition=PARTITION))


def start_of(groups: GroupsState) -> Callable[[str], Start]:
    """Where groups begin in `PARTITION`, which an expansion added to `OTHER`."""
    return lambda name: groups.start_in(lane(name), groups.group(name), [OTHER, PARTITION])


def test_retry_6_groups_that_are_waited_for_hold_what_they_have_not_committed() -> None:
    groups = groups_of("billing", "audit")
    found = readers(groups, {lane("billing"): Committed(1, 120), lane("audit"): Committed(2, 70)})
    assert set(group_holds(found, start_of(groups))) == {Hold(120, "billing"), Hold(70, "audit")}
    assert lags_of(found, Bounds(100, 130)) == (Lag("audit", 30), Lag("billing", 10))


def test_pop_11_what_is_leased_in_order_is_held_and_as_long_after_it_as_a_retry_would_be_kept() -> None:
    groups = groups_of("billing", "audit")
    leases = (Delivered(61, 2, 0, 300), Delivered(64, 1, 0, 900))
    found = readers(groups, {lane("billing"): Committed(1, 60, delivered=leases), lane("audit"): Committed(2, 3)})
    held = {now_ms: list(lease_holds(found, now_ms=now_ms, keep_ms=50)) for now_ms in (0, 349, 350, 949, 950)}
    assert held == {
        0: [Hold(61, "billing")],
        349: [Hold(61, "billing")],
        350: [Hold(64, "billing")],
        949: [Hold(64, "billing")],
        950: [],
    }


def test_a_group_that_has_not_begun_in_a_partition_of_its_topic_holds_all_of_it() -> None:
    groups = groups_of("billing")
    found = readers(groups, {lane("billing", OTHER): Committed(1, 5)})
    assert found == {"billing": None}
    assert list(group_holds(found, start_of(groups))) == [Hold(0, "billing")]
    assert lags_of(found, Bounds(10, 30)) == (Lag("billing", 20),)


def test_a_group_that_is_to_begin_at_the_end_holds_nothing() -> None:
    groups = groups_of("billing", start=StartKind.LAST)
    found = readers(groups, {lane("billing", OTHER): Committed(1, 5)})
    assert list(group_holds(found, start_of(groups))) == []
    began = groups.apply_all(decide_begin(groups, "billing", {TOPIC: 1}))
    assert list(group_holds(found, start_of(began))) == [Hold(0, "billing")], (
        "of what was added since it began it gets all"
    )


def test_groups_of_other_topics_and_retried_messages_are_no_readers() -> None:
    groups = groups_of("billing", "audit")
    found = readers(
        groups, {lane("billing", topic_id="id-2"): Committed(1, 5), lane("audit", retry=True): Committed(2, 5)}
    )
    assert found == {}


def test_a_group_of_an_earlier_life_is_no_reader() -> None:
    groups = groups_of("billing")
    committed = {lane("billing"): Committed(1, 5)}
    over = groups.apply_all([GroupDeleted(name="billing", epoch=2)])
    assert readers(over, committed) == {}
    again = over.apply_all([GroupPut(group=Group(name="billing", epoch=3, settings=GroupSettings(), created_ms=0))])
    assert readers(again, committed) == {}


def test_pop_18_after_a_reset_a_group_is_where_the_reset_put_it() -> None:
    groups = groups_of("billing").apply_all(
        [OffsetsReset(group="billing", topic="orders", epoch=2, offsets=((lane("billing"), 40),))]
    )
    assert readers(groups, {}) == {"billing": Committed(2, 40)}
    assert readers(groups, {lane("billing"): Committed(1, 90)}) == {"billing": Committed(2, 40)}
    assert readers(groups, {lane("billing"): Committed(2, 90)}) == {"billing": Committed(2, 90)}


def test_a_group_that_is_done_is_not_behind() -> None:
    groups = groups_of("billing")
    assert lags_of(readers(groups, {lane("billing"): Committed(1, 30)}), Bounds(10, 30)) == ()


# Checkpoints.


def state(
    *, start: int = 100, num: int = 3, diffs: tuple[int, ...] | None = None, epoch: int = 1, **parts: int
) -> CheckpointState:
    pop = Pop(
        topic="orders",
        topic_id=TOPIC,
        group="billing",
        epoch=epoch,
        partition=PARTITION,
        pop_time_ms=5,
        invisible_ms=10,
        revive_queue=0,
    )
    return CheckpointState(checkpoint=Checkpoint(pop=pop, span=Span(start, num, diffs)), **parts)


def held(*states: CheckpointState, topic_id: str | None = TOPIC, groups: GroupsState | None = None) -> list[int]:
    found = checkpoint_holds(states, groups or groups_of("billing"), topic_id=topic_id)
    return [hold.offset for hold in found]


def test_pop_11_an_open_checkpoint_holds_its_lowest_open_message() -> None:
    assert held(state()) == [100]
    assert held(state(acked=0b001)) == [101]
    assert held(state(acked=0b001, done=0b010)) == [102]
    assert held(state(replaced=0b011)) == [102]
    assert held(state(diffs=(0, 7, 9), acked=0b001)) == [107]


def test_pop_11_a_checkpoint_that_is_done_holds_nothing() -> None:
    assert held(state(acked=0b111), state(acked=0b101, done=0b010), CheckpointState(acked=1)) == []


def test_pop_12_a_checkpoint_of_a_life_that_is_over_holds_nothing() -> None:
    groups = groups_of("billing")
    assert held(state(), topic_id="id-2") == held(state(), topic_id=None) == []
    assert held(state(), groups=groups.apply_all([GroupDeleted(name="billing", epoch=2)])) == []
    reset = OffsetsReset(group="billing", topic="orders", epoch=2, offsets=((lane("billing"), 40),))
    assert held(state(), state(start=7, epoch=2), groups=groups.apply_all([reset])) == [7]
