"""What is counted of groups: minutes, records, and pulled messages (SPEC CONS-6)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamq.mq.errors import Corrupt
from deltamq.mq.statistics import KEPT_MINUTES, Consumed, MinuteKey, Minutes, Pulled, StatisticsRecord, sums_of

MINUTE = 60_000
NOON = 1_700_000_000_000 - 1_700_000_000_000 % MINUTE


def count(minutes: Minutes, now_ms: int, consumed: Consumed, *, broker: str = "a") -> None:
    minutes.add(MinuteKey(now_ms - now_ms % MINUTE, "billing", "orders", "orders-id", broker), consumed)


# Minutes --------------------------------------------------------------------------------------------------------------


def test_cons_06_a_minute_is_stored_when_it_is_over_and_once_unless_it_grows() -> None:
    minutes = Minutes()
    count(minutes, NOON, Consumed(delivered=3))
    assert minutes.take_unsaved(NOON + MINUTE - 1) == {}
    (key,) = taken = minutes.take_unsaved(NOON + MINUTE)
    assert key == MinuteKey(NOON, "billing", "orders", "orders-id", "a") and taken[key].delivered == 3
    assert minutes.take_unsaved(NOON + MINUTE) == {}
    count(minutes, NOON + 1, Consumed(delivered=1))  # the clock was set back
    assert taken[key].delivered == 3, "what is being stored does not change"
    assert [one.delivered for one in minutes.take_unsaved(NOON + MINUTE).values()] == [4]


def test_cons_06_a_stop_stores_the_running_minute_and_what_failed_is_stored_later() -> None:
    minutes = Minutes()
    count(minutes, NOON, Consumed(failed=1))
    count(minutes, NOON, Consumed(failed=2), broker="b")
    taken = minutes.take_unsaved(NOON, broker="b", whole=True)
    assert [key.broker for key in taken] == ["b"]
    minutes.not_saved(taken.keys())
    assert {key.broker for key in minutes.take_unsaved(NOON, whole=True)} == {"a", "b"}


def test_cons_06_minutes_of_a_clock_that_went_back_are_stored_as_well() -> None:
    minutes = Minutes()
    count(minutes, NOON + 90 * MINUTE, Consumed(delivered=1))
    assert len(minutes.take_unsaved(NOON)) == 1


def test_cons_06_a_process_keeps_the_last_minutes_and_those_that_are_not_stored() -> None:
    minutes = Minutes()
    for minute in range(20):
        count(minutes, NOON + minute * MINUTE, Consumed(succeeded=1))
    now_ms = NOON + 19 * MINUTE
    minutes.forget_old(now_ms)
    assert minutes.since(0, "billing")["orders"].succeeded == 20, "nothing of it is stored"
    minutes.take_unsaved(now_ms)
    minutes.forget_old(now_ms)
    assert minutes.since(0, "billing")["orders"].succeeded == KEPT_MINUTES
    assert minutes.since(now_ms - MINUTE, "billing")["orders"].succeeded == 2
    minutes.forget_group("billing")
    assert minutes.since(0, "billing") == {} == minutes.take_unsaved(now_ms, whole=True)


def test_cons_06_minutes_are_kept_until_the_last_of_their_sixteenth_minute() -> None:
    minutes = Minutes()
    count(minutes, NOON, Consumed(succeeded=1))
    end_ms = NOON + KEPT_MINUTES * MINUTE
    minutes.take_unsaved(end_ms)
    minutes.forget_old(end_ms - 1)
    assert minutes.since(0, "billing") != {}
    minutes.forget_old(end_ms)
    assert minutes.since(0, "billing") == {}


def test_cons_06_sums_over_processes_add_counts_and_keep_the_longest_times() -> None:
    one = Consumed(delivered=2, succeeded=1, age_ms=30, age_max_ms=20, handling_ms=7, handling_max_ms=7)
    two = Consumed(delivered=1, failed=1, age_ms=50, age_max_ms=50, handling_ms=5, handling_max_ms=5)
    summed = Consumed(delivered=3, succeeded=1, failed=1, age_ms=80, age_max_ms=50, handling_ms=12, handling_max_ms=7)
    assert sums_of([{"orders": one}, {"orders": two, "paid": one}]) == {"orders": summed, "paid": one}
    assert one.delivered == 2, "what was summed is as it was"


def test_cons_06_a_record_is_read_as_it_was_written_and_damage_is_told() -> None:
    key = MinuteKey(NOON, "billing", "orders", "id", "broker-a")
    record = StatisticsRecord(key, "host-1", Consumed(delivered=5, redelivered=1, dead=2))
    assert StatisticsRecord.from_json(record.to_json()) == record
    with pytest.raises(Corrupt) as raised:
        StatisticsRecord.from_json(record.to_json()[:-2])
    assert raised.value.code == "statistics_record_corrupt"


# Pulled messages ------------------------------------------------------------------------------------------------------


def test_cons_06_a_commit_counts_what_was_pulled_before_it_once_with_its_times() -> None:
    pulled = Pulled()
    assert pulled.take(10, 19, 10, now_ms=100) == 0
    assert pulled.take(20, 29, 10, now_ms=200) == 0
    assert list(pulled.commit(10)) == []
    assert list(pulled.commit(25)) == [(10, 100), (5, 200)]
    assert list(pulled.commit(25)) == [] and list(pulled.commit(30)) == [(5, 200)]


def test_cons_06_messages_that_are_pulled_again_count_as_delivered_before() -> None:
    pulled = Pulled()
    pulled.take(0, 9, 10, now_ms=100)
    assert pulled.take(4, 12, 9, now_ms=300) == 6
    assert list(pulled.commit(13)) == [(4, 100), (9, 300)]
    assert pulled.take(0, 1, 2, now_ms=400) == 2


def test_cons_06_of_a_filtered_answer_all_messages_count_in_the_end() -> None:
    pulled = Pulled()
    pulled.take(0, 90, 4, now_ms=100)  # offsets 0, 30, 60, 90
    counted = [sum(share.messages for share in pulled.commit(offset)) for offset in (1, 31, 91)]
    assert sum(counted) == 4


@given(st.lists(st.tuples(st.sampled_from(["take", "commit", "settle"]), st.integers(0, 30)), max_size=40))
def test_cons_06_each_pulled_message_has_one_outcome(steps: list[tuple[str, int]]) -> None:
    """Against a client that holds each message by itself; it pulls on from where it is, or anew from its commit."""
    pulled = Pulled()
    held: dict[int, int] = {}
    position = committed = 0
    for now_ms, (step, number) in enumerate(steps):
        if step == "take":
            first = committed if number % 3 == 0 else position
            again = len({*range(first, first + number + 1)} & {*range(position)})
            assert pulled.take(first, first + number, number + 1, now_ms) == again
            held = {offset: at for offset, at in held.items() if offset < first}
            held |= dict.fromkeys(range(first, first + number + 1), now_ms)
            position = max(position, first + number + 1)
        elif step == "commit":
            committed = min(position, committed + number)
            expected = sorted(at for offset, at in held.items() if offset < committed)
            got = sorted(at for count, at in pulled.commit(committed) for _ in range(count))
            assert got == expected
            held = {offset: at for offset, at in held.items() if offset >= committed}
        else:
            share, at = pulled.settle(number), held.pop(number, None)
            assert share == (None if at is None else (1, at))
