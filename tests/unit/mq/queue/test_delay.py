"""Delayed messages: bounds, due times, forwarding once, cancelling (SPEC RETRY-4, RETRY-5)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamq.mq.errors import Conflict, Unknown, Unprocessable
from deltamq.mq.limits import DELAY_MS_MAX, PRODUCER_ID_LENGTH_MAX, PRODUCER_REQUESTS_KEPT
from deltamq.mq.producer import Part, ProducerWindow
from deltamq.mq.queue.delay import (
    Delayed,
    Drop,
    DropReason,
    Forward,
    check_cancel,
    confirm_cancel,
    decide_forwards,
    deliver_time,
    is_due,
)

DAY = 24 * 3_600_000
NOW = 1_700_000_000_000


def delayed(offset: int = 0, at_ms: int = NOW, **more: str) -> Delayed:
    facts = {"delay_partition": "delay@A", "message_id": f"m{offset}", "topic_id": "id-1", **more}
    return Delayed(offset=offset, deliver_time_ms=at_ms, topic="orders", partition="orders@A", **facts)


@pytest.mark.parametrize(
    ("name", "asked", "expected"),
    [
        ("no asked", {}, None),
        ("a delay", {"delay_ms": 5}, NOW + 5),
        ("no delay", {"delay_ms": 0}, None),
        ("forty days", {"delay_ms": 40 * DAY}, NOW + 40 * DAY),
        ("a time", {"deliver_time_ms": NOW + 5}, NOW + 5),
        ("in forty days", {"deliver_time_ms": NOW + 40 * DAY}, NOW + 40 * DAY),
        ("now", {"deliver_time_ms": NOW}, None),
        ("in the past, which is at once (RETRY-5)", {"deliver_time_ms": 0}, None),
    ],
)
def test_retry_4_when_a_message_is_delivered(name: str, asked: dict[str, int], expected: int | None) -> None:
    assert deliver_time(NOW, **asked) == expected


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"delay_ms": DELAY_MS_MAX + 1}, "delay_ms"),
        ({"delay_ms": -1}, "delay_ms"),
        ({"delay_ms": 2**63 - 1}, "delay_ms"),
        ({"delay_ms": 2**31 - 1 + DELAY_MS_MAX}, "delay_ms"),
        ({"deliver_time_ms": NOW + DELAY_MS_MAX + 1}, "deliver_time"),
        ({"deliver_time_ms": 2**63 - 1}, "deliver_time"),
        ({"delay_ms": 1, "deliver_time_ms": NOW}, "delay_ms"),
    ],
)
def test_retry_4_more_than_forty_days_or_nonsense_is_refused(asked: dict[str, int], field: str) -> None:
    """RocketMQ #2289, #5376, #10872: such delays wrapped around."""
    with pytest.raises(Unprocessable) as refused:
        deliver_time(NOW, **asked)
    assert refused.value.field == field


@given(st.integers(0, 2**42), st.integers(0, 2**42))
def test_retry_4_a_message_is_due_at_its_time_and_never_before(at_ms: int, now_ms: int) -> None:
    assert is_due(delayed(at_ms=at_ms), now_ms) == (now_ms >= at_ms)


def test_retry_4_what_is_due_is_forwarded_in_order_of_time() -> None:
    waiting = [delayed(0, NOW), delayed(1, NOW - 5), delayed(2, NOW + 1), delayed(3, NOW - 5)]
    assert decide_forwards(waiting, now_ms=NOW, topic_ids={"id-1"}) == [Forward(waiting[at]) for at in (1, 3, 0)]


def test_retry_5_what_was_dealt_with_is_not_forwarded_again() -> None:
    waiting = [delayed(0), delayed(1)]
    assert decide_forwards(waiting, now_ms=NOW, ended={("delay@A", 0)}, topic_ids={"id-1"}) == [Forward(waiting[1])]


def test_retry_4_a_cancelled_message_is_not_forwarded() -> None:
    waiting = [delayed(0), delayed(1), delayed(2, delay_partition="delay@B")]
    cancelled = {("delay@A", 0), ("delay@A", 2)}
    assert decide_forwards(waiting, now_ms=NOW, cancelled=cancelled, topic_ids={"id-1"}) == [
        Drop(waiting[0], DropReason.CANCELLED),
        Forward(waiting[1]),
        Forward(waiting[2]),
    ]


def test_pop_12_a_delayed_message_does_not_reach_a_topic_that_was_made_again() -> None:
    assert decide_forwards([delayed()], now_ms=NOW, topic_ids={"id-2"}) == [Drop(delayed(), DropReason.TOPIC_OVER)]


def test_retry_4_a_cancellation_works_only_before_the_message_is_due() -> None:
    check_cancel(delayed(), NOW - 1)
    confirm_cancel(delayed(), NOW - 1)
    with pytest.raises(Conflict) as refused:
        check_cancel(delayed(), NOW)
    assert refused.value.code == "already_due"
    with pytest.raises(Unknown):
        confirm_cancel(delayed(), NOW)


offsets = st.integers(0, 200)


@given(st.lists(st.tuples(offsets, st.integers(0, 10)), max_size=60, unique_by=lambda one: one[0]), st.data())
def test_retry_5_killed_and_repeated_forwarders_store_each_message_once(
    messages: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Runs in any order of times, none of them marked: the target's duplicate window alone must hold."""
    window, stored = ProducerWindow(), list[int]()
    waiting = [delayed(offset, at_ms) for offset, at_ms in messages]
    for now_ms in [*data.draw(st.lists(st.integers(0, 10), max_size=5)), 10]:
        for decision in decide_forwards(waiting, now_ms=now_ms, topic_ids={"id-1"}):
            assert isinstance(decision, Forward)
            if window.find(decision.producer_id, decision.producer_seq) is None:
                part = Part(
                    producer_id=decision.producer_id,
                    seq=decision.producer_seq,
                    base_offset=len(stored),
                    count=1,
                    total=1,
                    time_ms=now_ms,
                )
                window.add(part)
                stored.append(decision.message.offset)
    assert sorted(stored) == sorted(offset for offset, _ in messages)


@given(offsets, offsets, st.sampled_from(["delay@A", "delay@B"]))
def test_retry_5_each_place_in_a_delay_partition_is_one_request(one: int, other: int, partition: str) -> None:
    first, second = Forward(delayed(one)), Forward(delayed(other, delay_partition=partition))
    same = (first.producer_id, first.producer_seq) == (second.producer_id, second.producer_seq)
    assert same == ((one, "delay@A") == (other, partition))
    assert 0 <= first.producer_seq < PRODUCER_REQUESTS_KEPT
    assert len(first.producer_id) <= PRODUCER_ID_LENGTH_MAX
