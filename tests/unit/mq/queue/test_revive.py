"""What becomes of messages that nobody acknowledged (SPEC POP-11, POP-12, RETRY-3)."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from deltamq.mq.limits import PRODUCER_ID_LENGTH_MAX, PRODUCER_REQUESTS_KEPT, PRODUCER_SEQ_MAX
from deltamq.mq.queue.checkpoint import Checkpoint, CheckpointKey, Span, indexes
from deltamq.mq.queue.revive import (
    Copy,
    DeadLetter,
    Decision,
    DueCheckpoint,
    Later,
    Life,
    Lost,
    LostReason,
    Revive,
    Skip,
    StoredCopies,
    decide_redelivery,
    due,
    life_of,
    loss_producer_id,
    producer_id,
    settle,
    stored_bits,
)
from deltamq.mq.queue.revive_log import Ack, CheckpointState, Done, fold
from tests.unit.mq.checkpoints import checkpoints, keys
from tests.unit.mq.queue.test_checkpoint import POP

CHECKPOINT = Checkpoint(pop=POP, span=Span(7, 4))
DUE_MS = CHECKPOINT.revive_time_ms
ALL = DueCheckpoint(CHECKPOINT, 0b1111)


def decided(one: DueCheckpoint = ALL, **more: object) -> list[Decision]:
    given_facts: dict[str, Any] = {"life": Life.PRESENT, "max_attempts": 16, "now_ms": DUE_MS, **more}
    return decide_redelivery(one, **given_facts)


def test_pop_11_what_is_due_is_delivered_again_with_its_attempts() -> None:
    (revive,) = decided(DueCheckpoint(replace(CHECKPOINT, span=Span(7, 3, (0, 1, 5), (1, 2, 3))), 0b101))
    assert isinstance(revive, Revive)
    assert list(revive.copies()) == [Copy(7, 1), Copy(12, 3)]
    assert sum(one.messages for one in revive.requests()) == 2


def test_pop_11_the_attempt_limit_holds_for_consumers_that_only_time_out() -> None:
    """RocketMQ #8332: silent consumers were retried for ever."""
    one = DueCheckpoint(replace(CHECKPOINT, span=Span(7, 4, None, (15, 16, 17, 1))), 0b1111)
    assert decided(one) == [
        DeadLetter(one.checkpoint, 0b0110, "max_attempts"),
        Revive(one.checkpoint, 0b1001),
    ]


def test_retry_3_a_condemned_message_is_dead_whatever_its_attempts() -> None:
    one = DueCheckpoint(replace(CHECKPOINT, dead_reason="no such customer"), 0b11)
    assert decided(one) == [DeadLetter(one.checkpoint, 0b11, "no such customer")]


@pytest.mark.parametrize("life", [Life.TOPIC_OVER, Life.GROUP_OVER, Life.EPOCH_OVER])
def test_pop_12_a_checkpoint_of_an_earlier_life_is_skipped(life: Life) -> None:
    assert decided(life=life) == [Skip(CHECKPOINT, 0b1111, life)]


@pytest.mark.parametrize(
    ("name", "topic_id", "epoch", "group_epoch", "life"),
    [
        ("as it was", "id-1", 3, 3, Life.PRESENT),
        ("an earlier epoch of the group's own", "id-1", 3, 1, Life.PRESENT),
        ("topic deleted", None, 3, 3, Life.TOPIC_OVER),
        ("topic made again", "id-2", 3, 3, Life.TOPIC_OVER),
        ("group deleted", "id-1", None, None, Life.GROUP_OVER),
        ("group made again", "id-1", 4, 4, Life.GROUP_OVER),
        ("offsets reset", "id-1", 4, 1, Life.EPOCH_OVER),
    ],
)
def test_pop_12_lives(name: str, topic_id: str | None, epoch: int | None, group_epoch: int | None, life: Life) -> None:
    assert life_of(CHECKPOINT, topic_id=topic_id, epoch=epoch, group_epoch=group_epoch) is life


def test_pop_12_pop_and_store_times_are_not_compared() -> None:
    """RocketMQ #7914: a checkpoint that seemed older than its message, by a clock's fault, lost the message."""
    old = replace(CHECKPOINT, pop=replace(POP, pop_time_ms=0))
    assert life_of(old, topic_id="id-1", epoch=3, group_epoch=3) is Life.PRESENT


def test_pop_12_what_retention_took_is_recorded() -> None:
    lost, revive = decided(gone={7, 8})
    assert lost == Lost(CHECKPOINT, 0b0011, LostReason.RETENTION)
    assert isinstance(lost, Lost) and lost.offsets() == [7, 8]
    assert revive == Revive(CHECKPOINT, 0b1100)


def test_pop_11_a_message_that_cannot_be_read_delays_only_itself() -> None:
    decisions = decided(unreadable={8: 1, 10: 3})
    assert decisions == [
        Later(CHECKPOINT, 0b0010, DUE_MS + 10_000),
        Later(CHECKPOINT, 0b1000, DUE_MS + 60_000),
        Revive(CHECKPOINT, 0b0101),
    ]
    assert settle(ALL, decisions) == Done(CHECKPOINT.key, 0b0101, DUE_MS)
    assert settle(ALL, [Later(CHECKPOINT, 0b1111, 0)]) is None


def test_pop_11_what_a_killed_run_stored_is_not_stored_again() -> None:
    assert decided(stored=StoredCopies(retry=0b0001, dead=0b0100)) == [Revive(CHECKPOINT, 0b1010)]
    assert decided(stored=StoredCopies(retry=0b1111)) == []
    assert settle(ALL, []) == Done(CHECKPOINT.key, 0b1111, DUE_MS), "and is ended by this run"


def test_pop_11_a_limit_lowered_between_two_runs_does_not_kill_what_lives_in_the_retry_topic() -> None:
    one = DueCheckpoint(replace(CHECKPOINT, span=Span(7, 4, None, 3)), 0b1111)
    (first,) = decided(one, max_attempts=5)
    assert isinstance(first, Revive)
    assert decided(one, max_attempts=2, stored=StoredCopies(retry=first.bits)) == []


@given(keys, keys, st.integers(0, 100), st.integers(0, 100))
def test_pop_11_the_place_of_a_message_names_its_copies(
    one: CheckpointKey, other: CheckpointKey, offset: int, elsewhere: int
) -> None:
    same = (one.lane, one.epoch, offset // PRODUCER_REQUESTS_KEPT) == (
        *(other.lane, other.epoch),
        elsewhere // PRODUCER_REQUESTS_KEPT,
    )
    assert (producer_id(one, offset) == producer_id(other, elsewhere)) == same
    assert (loss_producer_id(one) == loss_producer_id(other)) == (one == other)
    assert max(len(producer_id(one, offset)), len(loss_producer_id(one))) <= PRODUCER_ID_LENGTH_MAX


@pytest.mark.promise("JOB-5")
@given(checkpoints(), st.data())
def test_pop_09_a_message_that_was_delivered_again_is_not_once_more_by_the_lease_that_took_it_over(
    checkpoint: Checkpoint, data: st.DataObject
) -> None:
    index = data.draw(st.integers(0, checkpoint.span.num - 1))
    newer = checkpoint.changed(index, now_ms=DUE_MS, invisible_ms=1, revive_queue=0)
    again = newer.changed(0, now_ms=DUE_MS, invisible_ms=1, revive_queue=0)
    bits = data.draw(st.integers(1, checkpoint.span.full))
    held = {request.producer_id: [request.producer_seq] for request in Revive(checkpoint, bits).requests()}
    for one in (newer, again):
        assert stored_bits(one.key, one.span, 1, lambda name: held.get(name, [])) == bits >> index & 1


@given(checkpoints(), st.integers(0, 2**32 - 1), st.integers(1, 20), st.data())
def test_pop_11_each_due_message_is_in_exactly_one_decision(
    checkpoint: Checkpoint, bits: int, max_attempts: int, data: st.DataObject
) -> None:
    one = DueCheckpoint(checkpoint, bits & checkpoint.span.full)
    offsets = [checkpoint.span.offset_of(i) for i in range(checkpoint.span.num)]
    gone = data.draw(st.sets(st.sampled_from(offsets)))
    unreadable = data.draw(st.dictionaries(st.sampled_from(offsets), st.integers(0, 99)))
    stored = data.draw(st.integers(0, 2**32 - 1)) & one.bits
    decisions = decided(
        one, max_attempts=max_attempts, gone=gone, unreadable=unreadable, stored=StoredCopies(retry=stored)
    )
    assert sum(decision.bits for decision in decisions) == one.bits & ~stored
    assert all(decision.bits for decision in decisions)
    for decision in decisions:
        if isinstance(decision, Revive | DeadLetter):
            found = decision.requests()
            assert all(0 < request.producer_seq <= PRODUCER_SEQ_MAX for request in found)
            assert sum(request.messages for request in found) == decision.bits.bit_count()
            held = {request.producer_id: [request.producer_seq] for request in found}
            assert (
                stored_bits(checkpoint.key, checkpoint.span, one.bits, lambda name, held=held: held.get(name, []))
                == decision.bits
            )


def test_pop_11_due_is_in_order_of_time_and_waits_for_acks_under_way() -> None:
    early = replace(CHECKPOINT, pop=replace(POP, pop_time_ms=500))
    late = replace(CHECKPOINT, pop=replace(POP, pop_time_ms=9_000))
    states = fold({}, [late, CHECKPOINT, early, Ack(early.key, 0b0001, early.revive_time_ms)]).values()
    now_ms = CHECKPOINT.revive_time_ms + 300
    assert due(states, now_ms) == [DueCheckpoint(early, 0b1110), DueCheckpoint(CHECKPOINT, 0b1111)]
    assert due(states, now_ms - 1) == [DueCheckpoint(early, 0b1110)]
    assert due([CheckpointState(acked=1)], 10**15) == []


class Destination:
    """A partition that stores each request of a producer once, as the log does."""

    def __init__(self) -> None:
        self.messages: list[int] = []
        self.seqs: dict[str, list[int]] = {}

    def append(self, request: Revive | DeadLetter) -> None:
        offsets = iter([copy.offset for copy in request.copies()])
        for producer, seq in request.requests():
            mine, known = list(islice(offsets, seq.bit_count())), self.seqs.setdefault(producer, [])
            if seq not in known:
                known.append(seq)
                self.messages += mine

    def bits(self, one: DueCheckpoint) -> int:
        return stored_bits(
            one.checkpoint.key, one.checkpoint.span, one.bits, lambda producer: self.seqs.get(producer, ())
        )


runs = st.fixed_dictionaries(
    {
        "kill_after": st.integers(0, 6),
        "gone": st.sets(st.integers(7, 10)),
        "unreadable": st.dictionaries(st.integers(7, 10), st.integers(1, 3)),
        "max_attempts": st.integers(1, 4),
    }
)


@given(st.lists(runs, max_size=6))
def test_pop_11_each_message_ends_in_one_place_however_often_runs_are_killed(plans: list[dict[str, object]]) -> None:
    """Between two runs messages go, become readable, and the attempt limit moves."""
    checkpoint = replace(CHECKPOINT, span=Span(7, 4, None, (1, 2, 3, 4)))
    records: list[Checkpoint | Done] = [checkpoint]
    retry, dead, lost = Destination(), Destination(), set[int]()
    final = {"kill_after": 99, "gone": set(), "unreadable": {}, "max_attempts": 4}
    for plan in [*plans, final]:
        steps = int(str(plan["kill_after"]))
        facts = {name: fact for name, fact in plan.items() if name != "kill_after"}
        for one in due(fold({}, records).values(), DUE_MS + 300):
            decisions = decided(one, stored=StoredCopies(retry.bits(one), dead.bits(one)), **facts)
            for decision in decisions[:steps]:
                if isinstance(decision, Revive | DeadLetter):
                    (retry if isinstance(decision, Revive) else dead).append(decision)
                elif isinstance(decision, Lost) and steps > len(decisions):
                    lost |= set(decision.offsets())
            end = settle(one, decisions)
            if steps > len(decisions) and end is not None:
                records.append(end)
    assert sorted([*retry.messages, *dead.messages, *lost]) == [7, 8, 9, 10]
    assert due(fold({}, records).values(), 10**15) == []


def test_bits_and_offsets_agree() -> None:
    assert [CHECKPOINT.span.offset_of(i) for i in indexes(0b1010)] == [8, 10]
