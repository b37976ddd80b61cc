"""Progress in a logical queue and in the lanes of its segments: there and back (SPEC STATIC-15, 16)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from deltamq.mq.static.logical_queue import LogicalQueue
from deltamq.mq.static.progress import (
    SegmentOffsets,
    commit_steps,
    committed_offset,
    offset_at_time,
    position_of,
    reset_steps,
)
from deltamq.mq.static.segments import UNDECIDED, Segment


def segment(gen: int, logic_offset: int, end_offset: int = UNDECIDED) -> Segment:
    partition = f"orders#{gen}@{'AB'[gen % 2]}"
    return Segment(
        gen=gen, partition=partition, logic_offset=logic_offset, end_offset=end_offset, start_ms=gen, update_ms=gen
    )


@st.composite
def queues(draw: st.DrawFn) -> tuple[LogicalQueue, int]:
    """A queue of sealed segments and a leader, which may be undecided, and how many messages its newest one has."""
    at, found = 0, []
    for gen, (count, hole) in enumerate(draw(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), max_size=5))):
        found.append(segment(gen, at, count))
        at += count + hole
    count = draw(st.integers(0, 4))
    found.append(segment(len(found), at))
    if draw(st.booleans()):
        found.append(segment(len(found), UNDECIDED))
    return LogicalQueue(0, tuple(found)), count


def ends(queue: LogicalQueue, count: int) -> dict[str, int]:
    return {one.partition: one.end_offset if one.is_sealed else count for one in queue.readable}


def messages(queue: LogicalQueue, count: int) -> list[int]:
    """The logical offsets of all readable messages, in order."""
    return [one.logical(at) for one in queue.readable for at in range(ends(queue, count)[one.partition])]


def end_of(queue: LogicalQueue, count: int) -> int:
    return queue.newest_readable.logical(count)


def unconsumed(queue: LogicalQueue, count: int, positions: dict[str, int]) -> list[int]:
    """The logical offsets of the messages that lanes at these positions have not consumed."""
    return [
        one.logical(at)
        for one in queue.readable
        for at in range(positions[one.partition], ends(queue, count)[one.partition])
    ]


@given(queues(), st.data())
def test_static_16_a_commit_consumes_the_messages_before_it_and_no_other(
    made: tuple[LogicalQueue, int], data: st.DataObject
) -> None:
    queue, count = made
    offset = data.draw(st.integers(0, end_of(queue, count)))
    positions = dict.fromkeys(ends(queue, count), 0)
    positions |= {one.partition: at for one, at in commit_steps(queue, offset)}
    assert unconsumed(queue, count, positions) == [at for at in messages(queue, count) if at >= offset]
    reached = position_of(queue, positions)
    assert all(at >= reached for at in unconsumed(queue, count, positions))
    assert not [at for at in messages(queue, count) if min(offset, reached) <= at < max(offset, reached)], (
        "between what was committed and the position there are no messages"
    )


@given(queues(), st.data())
def test_static_16_a_commit_that_is_cut_short_is_never_beyond_what_was_committed(
    made: tuple[LogicalQueue, int], data: st.DataObject
) -> None:
    queue, count = made
    offset = data.draw(st.integers(0, end_of(queue, count)))
    steps = list(commit_steps(queue, offset))
    before = messages(queue, count)
    for done in range(len(steps) + 1):
        positions = dict.fromkeys(ends(queue, count), 0)
        positions |= {one.partition: at for one, at in steps[:done]}
        assert not [at for at in before if offset <= at < position_of(queue, positions)]


@given(queues(), st.data())
def test_static_16_a_commit_never_moves_a_group_back(made: tuple[LogicalQueue, int], data: st.DataObject) -> None:
    queue, count = made
    positions = dict.fromkeys(ends(queue, count), 0)
    reached = 0
    for offset in data.draw(st.lists(st.integers(0, end_of(queue, count)), max_size=4)):
        for one, at in commit_steps(queue, offset):
            positions[one.partition] = max(positions[one.partition], at)
        assert position_of(queue, positions) >= reached
        reached = position_of(queue, positions)


@given(queues(), st.data())
def test_static_25_what_was_committed_is_shown_whatever_segments_come_behind_it(
    made: tuple[LogicalQueue, int], data: st.DataObject
) -> None:
    queue, count = made
    readable = queue.readable
    # The queue as it was when the commit came: its newest segment was open then.
    shorter = data.draw(st.integers(1, len(readable)))
    newest = readable[shorter - 1]
    before = LogicalQueue(0, (*readable[: shorter - 1], replace(newest, end_offset=UNDECIDED)))
    had = newest.end_offset if newest.is_sealed else count
    place = data.draw(
        st.sampled_from(
            [*messages(before, had), end_of(before, had), *(one.logic_offset for one in readable[:shorter])]
        )
    )
    for then in (before, queue):  # committed before the segments came, or after
        committed: dict[str, int | None] = dict.fromkeys(ends(queue, count))
        committed |= {one.partition: at for one, at in commit_steps(then, place)}
        positions = {partition: at or 0 for partition, at in committed.items()}
        assert committed_offset(before, committed, positions) == place
        assert committed_offset(queue, committed, positions) == place


@given(queues(), st.data())
def test_static_20_a_reset_puts_every_lane_where_the_offset_wants_it(
    made: tuple[LogicalQueue, int], data: st.DataObject
) -> None:
    queue, count = made
    offset = data.draw(st.integers(0, end_of(queue, count)))
    positions = {one.partition: at for one, at in reset_steps(queue, offset)}
    assert positions.keys() == {one.partition for one in queue.segments}, "the undecided leader, too"
    assert unconsumed(queue, count, positions) == [at for at in messages(queue, count) if at >= offset]
    assert all(positions[one.partition] == 0 for one in queue.segments if not one.is_decided)


@given(queues(), st.data())
def test_static_15_the_offset_of_a_time_is_that_of_the_first_message_at_or_after_it(
    made: tuple[LogicalQueue, int], data: st.DataObject
) -> None:
    queue, count = made
    there = messages(queue, count)
    passed = data.draw(st.integers(0, len(there)))
    later = set(there[passed:])  # append times grow with the offsets
    found = {}
    for one in queue.readable:
        end = ends(queue, count)[one.partition]
        first = next((at for at in range(end) if one.logical(at) in later), end)
        found[one.partition] = SegmentOffsets(first, end)
    assert offset_at_time(queue, found) == (there[passed] if passed < len(there) else end_of(queue, count))


def test_static_4070_the_first_hit_ends_a_search_by_time_also_at_offset_0() -> None:
    """RocketMQ #4070: a hit at offset 0 counted as none, and hits of later segments replaced it."""
    first, second, leader = segment(0, 0, 5), segment(1, 5, 5), segment(2, 10)
    queue = LogicalQueue(0, (first, second, leader))
    everywhere = {one.partition: SegmentOffsets(0, 5) for one in queue.segments}
    assert offset_at_time(queue, everywhere) == 0
    assert offset_at_time(queue, {**everywhere, first.partition: SegmentOffsets(5, 5)}) == 5, (
        "and at 0 of a later segment"
    )
    assert offset_at_time(queue, {**everywhere, first.partition: SegmentOffsets(0, 0)}) == 5, (
        "retention has emptied the first"
    )
