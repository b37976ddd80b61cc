"""Refusals are counted in bounded memory (SPEC SEC-41)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from deltamq.mq.audit import OTHER, RefusalKey, Refusals
from deltamq.mq.limits import REFUSAL_MINUTES_MAX, REFUSALS_COUNTED_MAX

MINUTE_MS = 60_000


def add(refusals: Refusals, now_ms: int, principal: str = "ada", call: str = "GET /v1/topics") -> None:
    refusals.add(now_ms, principal, call, 403, "forbidden", "a:1")


def test_sec_41_a_minute_is_stored_when_it_is_over() -> None:
    refusals = Refusals()
    add(refusals, 60_000)
    add(refusals, 119_999)
    add(refusals, 120_000)
    assert {key.minute_ms: row.count for key, row in refusals.take(119_999).items()} == {120_000: 1}, (
        "the clock went back"
    )
    assert {key.minute_ms: row.count for key, row in refusals.take(120_500).items()} == {60_000: 2}
    assert not refusals.take(180_000, whole=True)


def test_sec_41_too_many_callers_are_counted_together() -> None:
    refusals = Refusals()
    for number in range(5 * REFUSALS_COUNTED_MAX):
        add(refusals, 60_000, f"p{number}")
    taken = refusals.take(0, whole=True)
    assert len(taken) == REFUSALS_COUNTED_MAX + 1
    assert taken[RefusalKey(60_000, OTHER, OTHER, 403, "forbidden")].count == 4 * REFUSALS_COUNTED_MAX
    assert sum(row.count for row in taken.values()) == 5 * REFUSALS_COUNTED_MAX


@given(st.lists(st.tuples(st.integers(0, 20), st.sampled_from("abc"), st.booleans()), max_size=60))
def test_sec_41_what_cannot_be_stored_is_counted_until_it_can(steps: list[tuple[int, str, bool]]) -> None:
    refusals, stored = Refusals(), 0
    for minute, principal, can_store in steps:
        add(refusals, minute * MINUTE_MS, principal)
        taken = refusals.take(minute * MINUTE_MS)
        if can_store:
            stored += sum(row.count for row in taken.values())
        else:
            assert refusals.give_back(taken) == 0
    stored += sum(row.count for row in refusals.take(0, whole=True).values())
    assert stored == len(steps)


def test_sec_41_what_cannot_be_stored_for_very_long_is_dropped_and_told() -> None:
    refusals = Refusals()
    dropped = 0
    for minute in range(REFUSAL_MINUTES_MAX + 5):
        add(refusals, minute * MINUTE_MS)
        dropped += refusals.give_back(refusals.take(0, whole=True))
    assert dropped == 5
    assert len(refusals.take(0, whole=True)) == REFUSAL_MINUTES_MAX
