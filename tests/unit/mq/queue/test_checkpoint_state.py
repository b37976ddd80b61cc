"""Matching checkpoints with acknowledgements is a join (SPEC POP-11)."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from deltamq.mq.queue.checkpoint import Checkpoint, Span
from deltamq.mq.queue.revive_log import Ack, CheckpointState, Done, Record, fold
from tests.unit.mq.queue.test_checkpoint import POP

CHECKPOINT = Checkpoint(pop=POP, span=Span(7, 4))
KEY = CHECKPOINT.key
DUE = CHECKPOINT.revive_time_ms
SETTLE = 300
CHANGED = CHECKPOINT.changed(3, now_ms=2_000, invisible_ms=90_000, revive_queue=1)
RECORDS: list[Record] = [
    CHECKPOINT,
    replace(CHECKPOINT, bit_map=0b0010, revive_offset=4),
    replace(CHECKPOINT, revive_offset=9),
    CHANGED,
    Ack(KEY, 0b0001, DUE),
    Ack(CHANGED.key, 0b1, CHANGED.revive_time_ms),
    Done(KEY, 0b0100, DUE),
]


def test_pop_11_all_orders_of_the_records_give_the_same_state() -> None:
    expected = fold({}, RECORDS)
    for order in permutations(RECORDS):
        assert fold({}, order) == expected
    assert expected[KEY].open == expected[CHANGED.key].open == 0
    assert expected[KEY].checkpoint == replace(CHECKPOINT, revive_offset=4)


@given(st.lists(st.sampled_from(RECORDS), max_size=12), st.integers(0, 12), st.randoms(use_true_random=False))
def test_pop_11_repetition_and_batches_do_not_matter(records: list[Record], cut: int, random: object) -> None:
    once = fold({}, {repr(record): record for record in records}.values())
    assert fold(fold({}, records[:cut]), records[cut:]) == once
    assert fold(once, reversed(records)) == once


def test_pop_11_what_is_due_is_what_nobody_acknowledged() -> None:
    state = fold({}, [CHECKPOINT, Ack(KEY, 0b0010, DUE), Ack(KEY, 0b0010, DUE)])[KEY]
    assert state.open == 0b1101
    assert state.due(DUE + SETTLE - 1, SETTLE) == 0
    assert state.due(DUE + SETTLE, SETTLE) == 0b1101


def test_pop_11_an_ack_before_its_checkpoint_counts() -> None:
    """RocketMQ #3443, #5408: more acks than checkpoints held up the revive offset."""
    lone = fold({}, [Ack(KEY, 0b1111, DUE)])
    assert lone[KEY].due(DUE + 10**9, SETTLE) == 0
    assert fold(lone, [CHECKPOINT])[KEY].open == 0


def test_pop_09_one_record_moves_a_message_to_its_new_checkpoint() -> None:
    states = fold({}, [CHECKPOINT, CHANGED])
    assert states[KEY].open == 0b0111
    assert states[CHANGED.key].open == 0b1
    late = fold(states, [Ack(KEY, 0b1000, DUE)])
    assert late[CHANGED.key].open == 0b1, "a dead handle's ack does not reach the new checkpoint"


def test_pop_11_an_ack_with_another_pop_time_matches_nothing() -> None:
    other = KEY._replace(pop_time_ms=KEY.pop_time_ms + 1)
    assert fold({}, [CHECKPOINT, Ack(other, 0b1111, DUE)])[KEY].open == 0b1111


def test_pop_14_a_finished_checkpoint_is_kept_until_the_offset_has_passed_it() -> None:
    done = fold({}, [CHECKPOINT, Ack(KEY, 0b1111, DUE)])[KEY]
    assert not done.may_forget(committed=10, now_ms=DUE + 10_000, keep_ms=10_000)
    assert not done.may_forget(committed=11, now_ms=DUE + 9_999, keep_ms=10_000)
    assert done.may_forget(committed=11, now_ms=DUE + 10_000, keep_ms=10_000)
    open_one = fold({}, [CHECKPOINT])[KEY]
    assert not open_one.may_forget(committed=99, now_ms=DUE + 10**9, keep_ms=10_000)
    lone = fold({}, [Ack(KEY, 1, DUE)])[KEY]
    assert lone.may_forget(committed=0, now_ms=DUE + 10_000, keep_ms=10_000)


def test_nothing_is_open_without_a_checkpoint() -> None:
    assert CheckpointState().open == 0
