"""The POP checkpoint: its bits, offsets, keys and times (SPEC POP-1, POP-4, POP-6, POP-8, POP-9)."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamq.mq.queue.checkpoint import Checkpoint, CheckpointKey, Pop, Span, indexes, spans_of

POP = Pop(
    topic="orders",
    topic_id="id-1",
    group="billing",
    epoch=3,
    partition="orders@A",
    pop_time_ms=1_000,
    invisible_ms=60_000,
    revive_queue=5,
)
FILTERED = Span(7, 3, (0, 1, 5))

offsets = st.lists(st.integers(0, 2**40), min_size=1, max_size=1_024, unique=True).map(sorted)


@pytest.mark.parametrize(
    ("name", "span", "offset", "index"),
    [
        ("first of a run", Span(7, 3), 7, 0),
        ("last of a run", Span(7, 3), 9, 2),
        ("before the run", Span(7, 3), 6, None),
        ("after the run", Span(7, 3), 10, None),
        ("first of a filtered pop", FILTERED, 7, 0),
        ("last of a filtered pop", FILTERED, 12, 2),
        ("filtered out", FILTERED, 9, None),
        ("before a filtered pop", FILTERED, 6, None),
        ("a difference beyond 31 bits, which wrapped in RocketMQ", Span(1, 2, (0, 2**31 + 5)), 2**31 + 6, 1),
        ("the same difference cut to 32 bits", Span(1, 2, (0, 2**32 + 5)), 6, None),
    ],
)
def test_pop_04_the_bit_of_an_offset(name: str, span: Span, offset: int, index: int | None) -> None:
    assert span.index_of(offset) == index
    if index is not None:
        assert span.offset_of(index) == offset


@given(offsets)
def test_pop_01_spans_hold_every_offset_once_and_at_most_32_each(popped: list[int]) -> None:
    spans = spans_of(popped)
    assert [span.offset_of(i) for span in spans for i in range(span.num)] == popped
    assert all(1 <= span.num <= 32 for span in spans)
    assert all(one.last_offset < other.start_offset for one, other in pairwise(spans))


@given(st.integers(0, 2**60), st.integers(1, 1_024))
def test_pop_01_a_range_is_cut_as_its_offsets_are(start: int, count: int) -> None:
    popped = range(start, start + count)
    assert spans_of(popped) == spans_of(list(popped))
    assert sum(span.num for span in spans_of(popped)) == count


def test_pop_04_contiguous_offsets_need_no_differences() -> None:
    assert spans_of([7, 8, 9]) == [Span(7, 3)]
    assert spans_of([7, 8, 12]) == [FILTERED]
    assert spans_of([]) == spans_of(range(5, 5)) == []


def test_attempts_are_one_number_where_they_are_equal() -> None:
    spans = spans_of(range(34), (2,) * 32 + (1, 4))
    assert [span.attempts for span in spans] == [2, (1, 4)]
    assert [spans[1].attempt_of(i) for i in range(2)] == [1, 4]
    assert spans[1].one(1) == Span(33, 1, None, 4)


@given(st.integers(0, 2**32 - 1))
def test_indexes_are_the_ones_of_a_bit_map(bits: int) -> None:
    assert sum(1 << i for i in indexes(bits)) == bits
    assert list(indexes(bits)) == sorted(indexes(bits))


def test_pop_04_and_pop_06_times() -> None:
    checkpoint = Checkpoint(pop=POP, span=FILTERED)
    assert checkpoint.revive_time_ms == 61_000
    assert checkpoint.due_time_ms == 60_000


def test_pop_08_ack_marks_one_bit_and_twice_is_harmless() -> None:
    checkpoint = Checkpoint(pop=POP, span=FILTERED).ack(8)
    assert (checkpoint.bit_map, checkpoint.span.full) == (0b010, 0b111)
    assert checkpoint.ack(8) == checkpoint
    assert checkpoint.ack(9) is checkpoint
    assert checkpoint.ack(7).ack(12).bit_map == checkpoint.span.full


def test_pop_04_no_bit_beyond_the_messages() -> None:
    with pytest.raises(AssertionError):
        Checkpoint(pop=POP, span=FILTERED, bit_map=0b1000)
    assert Checkpoint(pop=POP, span=FILTERED).with_bits(0b1_1111).bit_map == 0b111


def test_pop_12_the_key_holds_every_part_that_names_could_confuse() -> None:
    """RocketMQ's joined key lets topic "t1" queue 2 meet topic "t" queue 12."""
    one = CheckpointKey("t1", "g", 1, False, "2@b", 3, 4)
    for other in [
        CheckpointKey("t", "g", 1, False, "12@b", 3, 4),
        CheckpointKey("t1", "g", 2, False, "2@b", 3, 4),
        CheckpointKey("t1", "g", 1, True, "2@b", 3, 4),
        CheckpointKey("t1", "g", 1, False, "2@c", 3, 4),
    ]:
        assert one != other
    assert Checkpoint(pop=POP, span=FILTERED).key == CheckpointKey("id-1", "billing", 3, False, "orders@A", 7, 1_000)


@pytest.mark.parametrize("now_ms", [1_000, 999, 30_000])
def test_pop_09_a_change_makes_a_checkpoint_of_one_message_with_a_key_of_its_own(now_ms: int) -> None:
    """Also in the millisecond of the pop, and with a clock that went back (RocketMQ #10276)."""
    old = Checkpoint(pop=POP, span=Span(7, 3, None, (1, 2, 3)))
    new = old.changed(0, now_ms=now_ms, invisible_ms=20_000, revive_queue=2)
    assert new.span == Span(7, 1, None, 1)
    assert new.key != old.key
    assert new.pop.pop_time_ms == max(now_ms, 1_001)
    assert new.replaces is not None
    assert (new.replaces.key, new.replaces.bits) == (old.key, 0b001)
    again = new.changed(0, now_ms=now_ms, invisible_ms=20_000, revive_queue=2)
    assert len({old.key, new.key, again.key}) == 3
