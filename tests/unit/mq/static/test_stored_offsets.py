"""Stored offsets of logical queues: counted, cut, walked through; holes count nothing (SPEC STATIC-13 to 15)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from deltamq.mq.static.reading import StoredOffsets, Stretch


@st.composite
def queues(draw: st.DrawFn) -> StoredOffsets:
    """Return a queue of segments with holes between, of which retention has removed some messages."""
    stretches, delta = [], draw(st.integers(0, 5))
    for _ in range(draw(st.integers(1, 5))):
        end = draw(st.integers(0, 6))
        stretches.append(Stretch(delta, draw(st.integers(0, end)), end))
        delta += end + draw(st.integers(0, 4))
    return StoredOffsets(tuple(stretches))


def stored(queue: StoredOffsets) -> list[int]:
    return [one.delta + at for one in queue.stretches for at in range(one.low, one.end)]


def removed(queue: StoredOffsets) -> list[int]:
    return [*range(queue.stretches[0].delta), *(one.delta + at for one in queue.stretches for at in range(one.low))]


@given(queues(), st.integers(0, 60), st.integers(0, 60))
def test_static_15_a_range_has_as_many_messages_as_are_stored_in_it(
    queue: StoredOffsets, start: int, stop: int
) -> None:
    wanted = [offset for offset in stored(queue) if start <= offset < stop]
    assert queue.count(start, stop) == len(wanted)
    cut = zip(queue.stretches, queue.cut(start, stop), strict=True)
    assert [one.delta + at for one, (low, high) in cut for at in range(low, high)] == wanted


@given(queues(), st.integers(0, 60))
def test_static_14_an_offset_in_a_hole_goes_forward_to_the_next_message(queue: StoredOffsets, offset: int) -> None:
    assert queue.forward(offset) == next((at for at in stored(queue) if at >= offset), queue.end)


@given(queues(), st.integers(0, 60), st.integers(0, 40))
def test_static_13_a_read_of_some_messages_ends_at_the_next_message(
    queue: StoredOffsets, start: int, count: int
) -> None:
    left = [offset for offset in stored(queue) if offset >= start]
    assert queue.after(start, count) == (left[count] if count < len(left) else queue.end)
    assert queue.count(start, queue.after(start, count)) == min(count, len(left))


@given(queues(), st.integers(0, 60), st.integers(0, 60))
def test_static_17_what_retention_removed_is_counted_and_holes_are_not(
    queue: StoredOffsets, start: int, length: int
) -> None:
    gone = [offset for offset in removed(queue) if start <= offset < min(start + length, queue.end)]
    assert queue.lost(start, min(start + length, queue.end)) == len(gone)
    assert queue.lost(queue.whole_from) == 0
    assert queue.whole_from == 0 or queue.lost(queue.whole_from - 1) > 0


@given(queues())
def test_static_3_holes_and_messages_fill_the_queue(queue: StoredOffsets) -> None:
    holes = [offset for low, high in queue.holes for offset in range(low, high)]
    assert sorted([*stored(queue), *removed(queue), *holes]) == list(range(queue.end))


def test_static_15_a_plain_partition_is_one_stretch_of_its_own_offsets() -> None:
    plain = StoredOffsets.of_plain(3, 8)
    assert (plain.first, plain.end, plain.whole_from, plain.holes) == (3, 8, 3, ())
    assert (plain.lost(1), plain.lost(3), plain.forward(0), plain.forward(99)) == (2, 0, 3, 8)
