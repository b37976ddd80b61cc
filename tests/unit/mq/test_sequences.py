"""Producers that count their messages (SPEC KAFKA-3)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamq.mq.limits import ARROW_MESSAGES_MAX, PRODUCER_REQUESTS_KEPT
from deltamq.mq.producer import (
    SEQUENCES,
    OutOfSequence,
    Part,
    ProducerWindow,
    Sequence,
    born_ms_of,
    new_producer_id,
    number_of,
    repeat_of,
)

counts = st.lists(st.integers(1, ARROW_MESSAGES_MAX), min_size=1, max_size=30)
#: The first sequence: often so late that the numbers wrap.
firsts = st.integers(0, SEQUENCES - 1) | st.integers(SEQUENCES - 5 * ARROW_MESSAGES_MAX, SEQUENCES - 1)


class Log:
    """A partition that stores what it accepts."""

    def __init__(self) -> None:
        self.window = ProducerWindow()
        self.stored: list[tuple[int, int]] = []

    def send(self, base: int, count: int, epoch: int = 0, *, known_since_ms: int = 9) -> bool:
        """Return whether the request was stored; False for a repeat."""
        seen = self.window.seen("p")
        number = number_of(Sequence(epoch, base, born_ms=5), count, seen, known_since_ms=known_since_ms)
        if self.window.find("p", number) is not None:
            return False
        part = Part(producer_id="p", seq=number, base_offset=len(self.stored), count=count, total=count, time_ms=1)
        self.window.add(part)
        self.stored.append((base, count))
        return True


@given(counts, firsts)
def test_kafka_03_requests_in_turn_are_stored_across_the_wrap(sizes, base) -> None:
    log = Log()
    for count in sizes:
        assert log.send(base, count)
        base = (base + count) % SEQUENCES
    assert len(log.stored) == len(sizes)


@given(counts, firsts, st.data())
def test_kafka_03_a_repeat_of_the_last_requests_is_stored_once(sizes, base, data) -> None:
    log, sent = Log(), []
    for count in sizes:
        sent.append((base, count))
        log.send(base, count)
        base = (base + count) % SEQUENCES
    again = data.draw(st.sampled_from(sent[-min(5, PRODUCER_REQUESTS_KEPT) :]))
    assert not log.send(*again)
    assert log.stored == sent


@given(counts, firsts, st.integers(0, SEQUENCES - 1), st.integers(1, 9))
def test_kafka_03_anything_else_is_a_gap(sizes, following, base, count) -> None:
    log, sent = Log(), set()
    for size in sizes:
        log.send(following, size)
        sent.add((following, size))
        following = (following + size) % SEQUENCES
    if base == following or (base, count) in sent:
        return
    with pytest.raises(OutOfSequence) as error:
        log.send(base, count)
    assert error.value.code == "sequence_gap"


def test_kafka_03_a_new_epoch_begins_at_zero_and_ends_the_one_before() -> None:
    log = Log()
    log.send(0, 3)
    with pytest.raises(OutOfSequence):
        log.send(3, 1, epoch=1)
    assert log.send(0, 2, epoch=1)
    with pytest.raises(OutOfSequence) as error:
        log.send(3, 1, epoch=0)
    assert error.value.code == "producer_epoch_old"
    assert log.send(2, 1, epoch=1)


def test_kafka_03_a_producer_that_is_surely_new_begins_at_zero_and_one_that_may_be_forgotten_anywhere() -> None:
    with pytest.raises(OutOfSequence):
        Log().send(7, 1, known_since_ms=5)
    assert Log().send(7, 1, known_since_ms=6)


def test_kafka_03_ids_tell_when_they_were_made() -> None:
    made = new_producer_id(1_700_000_000_123, 77)
    assert born_ms_of(made) == 1_700_000_000_123
    assert 0 < made < 2**63


# Logical queues that move -------------------------------------------------------------------------------------------


def _seen(*runs: tuple[int, int]) -> dict[int, tuple[Part, ...]]:
    """Parts of a producer's requests of epoch 0, each by its first sequence and count."""
    return {
        base: (Part(producer_id="p", seq=base, base_offset=base, count=count, total=count, time_ms=1),)
        for base, count in runs
    }


def test_static_21_a_repeat_is_found_among_what_earlier_segments_remember() -> None:
    parts = _seen((0, 2), (2, 3))
    assert repeat_of(Sequence(0, 2, 0), 3, parts) is parts[2][0]
    for other in (Sequence(0, 2, 0), Sequence(1, 2, 0), Sequence(0, 5, 0)):
        assert repeat_of(other, 4, parts) is None
