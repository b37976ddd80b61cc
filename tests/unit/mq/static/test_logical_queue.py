"""Segments and chains of segments: translation, holes, seals, what is wrong with a chain (SPEC STATIC-1 to 3, 13)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from deltamq.mq.errors import Unavailable
from deltamq.mq.static.logical_queue import LogicalQueue, jump_above
from deltamq.mq.static.queue_names import is_queue_name, queue_index, queue_name
from deltamq.mq.static.reading import next_after, read_start
from deltamq.mq.static.segments import UNDECIDED, Segment


def segment(gen: int, logic: int, end: int = UNDECIDED) -> Segment:
    return Segment(
        gen=gen, partition=f"orders#{gen}@A", logic_offset=logic, end_offset=end, start_ms=gen, update_ms=gen
    )


def test_static_2_names_of_queues() -> None:
    assert queue_name(3) == "3@__logical_queue_broker__"
    assert queue_index("3@__logical_queue_broker__") == 3
    for other in (
        "03@__logical_queue_broker__",
        "orders@A",
        "-1@__logical_queue_broker__",
        "3@__logical_queue_broker__x",
    ):
        assert queue_index(other) is None
    assert is_queue_name("x@__logical_queue_broker__") and not is_queue_name("orders@A")


@pytest.mark.parametrize(("maximum", "begin"), [(0, 10_000), (4_999, 10_000), (5_000, 20_000), (15_000, 30_000)])
def test_static_9_the_jump_is_to_the_next_block_or_the_one_behind(maximum: int, begin: int) -> None:
    assert jump_above(maximum) == begin


@given(st.integers(0, 10**15), st.integers(2, 10**6))
def test_static_9_the_jump_is_above_all_that_the_old_leader_can_hold(maximum: int, block: int) -> None:
    begin = jump_above(maximum, block)
    assert begin % block == 0 and begin - maximum >= block // 2


def test_static_10_an_undecided_segment_fails_loudly() -> None:
    undecided = segment(1, UNDECIDED)
    with pytest.raises(Unavailable) as caught:
        undecided.logical(0)
    assert caught.value.code == "logic_offset_undecided"
    with pytest.raises(Unavailable):
        undecided.physical(5)


def test_static_10_undecided_segments_are_skipped_when_a_segment_is_chosen() -> None:
    queue = LogicalQueue(0, (segment(0, 0), segment(1, UNDECIDED)))
    assert queue.segment_at(10**9) is queue.segments[0]
    assert queue.after(queue.segments[0]) is None
    assert queue.newest_readable is queue.segments[0] and queue.leader is queue.segments[1]


CHAIN = LogicalQueue(3, (segment(0, 0, 100), segment(1, 100, 100), segment(2, 200, 0), segment(5, 10_000)))


def test_static_13_the_segment_of_an_offset_is_the_last_that_begins_at_or_below_it() -> None:
    assert [CHAIN.segment_at(at).gen for at in (0, 99, 100, 199, 200, 9_999, 10_000, 10**9)] == [0, 0, 1, 1, 2, 2, 5, 5]
    assert (CHAIN.holes, CHAIN.second_leader) == (9_800, CHAIN.segments[2])


def test_static_13_a_read_at_the_end_of_a_closed_segment_goes_on_in_the_next() -> None:
    places = [read_start(CHAIN, at) for at in (0, 99, 100, 199, 200, 5_000, 10_000, 10_007)]
    assert [(place.segment.gen, place.offset) for place in places] == [
        (0, 0),
        (0, 99),
        (1, 0),
        (1, 99),
        (5, 0),
        (5, 0),
        (5, 0),
        (5, 7),
    ]
    first, second, empty, leader = CHAIN.segments
    assert [next_after(CHAIN, first, 40), next_after(CHAIN, first, 100)] == [40, 100]
    assert [next_after(CHAIN, second, 100), next_after(CHAIN, empty, 0), next_after(CHAIN, leader, 7)] == [
        200,
        10_000,
        10_007,
    ]


def test_static_13_reads_end_at_the_last_sealed_segment_while_the_leader_is_undecided() -> None:
    """Such a chain is torn: the seal decides both. A reader still does not loop."""
    queue = LogicalQueue(0, (segment(0, 0, 5), segment(1, UNDECIDED)))
    assert read_start(queue, 7).offset == 5
    assert next_after(queue, queue.segments[0], 5) == 5


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 20)), min_size=1, max_size=8), st.data())
def test_static_13_following_next_offsets_reads_every_message_once_and_in_order(
    sizes: list[tuple[int, int]], data: st.DataObject
) -> None:
    segments, logic = [], 0
    for gen, (size, hole) in enumerate(sizes):
        is_leader = gen == len(sizes) - 1
        segments.append(segment(gen, logic, UNDECIDED if is_leader else size))
        logic += size + hole
    queue = LogicalQueue(0, tuple(segments))
    ends = {one.partition: size for one, (size, _) in zip(segments, sizes, strict=True)}
    expected = [one.logical(at) for one in segments for at in range(ends[one.partition])]
    read: list[int] = []
    offset, stuck = 0, 0
    while len(read) < len(expected):
        place = read_start(queue, offset)
        stop = min(ends[place.segment.partition], place.offset + data.draw(st.integers(1, 7)))
        read += [place.segment.logical(at) for at in range(place.offset, stop)]
        after = next_after(queue, place.segment, stop)
        assert after >= offset and (after > offset or (stuck := stuck + 1) < 2)
        offset = after
    assert read == expected


@pytest.mark.parametrize("jumps", [False, True])
def test_static_8_a_seal_ends_the_old_segment_and_decides_the_new_one(jumps: bool) -> None:
    queue = LogicalQueue(0, (segment(0, 0, 100), segment(1, 100), segment(2, UNDECIDED)))
    sealed = queue.sealed("orders#1@A", 23, 50, jumps=jumps)
    assert sealed.segments[1].end_offset == 23 and sealed.segments[1].end_ms == 50
    assert sealed.leader.logic_offset == (10_000 if jumps else 123)
    assert sealed.sealed("orders#1@A", 99, 60, jumps=jumps) is sealed, "the first seal counts"
    assert list(sealed.faults()) == []


def test_static_9_a_seal_of_an_empty_segment_jumps_too() -> None:
    queue = LogicalQueue(0, (segment(0, 0), segment(1, UNDECIDED)))
    assert queue.sealed("orders#0@A", 0, 1, jumps=True).leader.logic_offset == 10_000
    assert queue.sealed("orders#0@A", 0, 1, jumps=False).leader.logic_offset == 0


@pytest.mark.parametrize(
    ("what", "broken"),
    [
        ("generation", replace(segment(0, 100), gen=0)),
        ("begins at", segment(1, 99)),
        ("undecided and is not the leader", None),
        ("start offset", replace(segment(1, 100), start_offset=5)),
        ("sealed", segment(1, 100, 7)),
    ],
)
def test_static_5_faults_of_a_chain_are_told(what: str, broken: Segment | None) -> None:
    if broken is None:
        chain = LogicalQueue(0, (segment(0, UNDECIDED), segment(1, 100)))
    else:
        chain = LogicalQueue(0, (segment(0, 0, 100), broken))
    assert any(what in fault for fault in chain.faults())


def test_static_12_a_partition_that_is_mapped_twice_is_a_fault() -> None:
    twice = replace(segment(1, 100), partition="orders#0@A")
    assert "a partition is mapped twice" in list(LogicalQueue(0, (segment(0, 0, 100), twice)).faults())
