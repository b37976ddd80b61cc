"""What calls tell of deliveries and outcomes, summed many calls at a time (SPEC CONS-6)."""

from __future__ import annotations

import pyarrow as pa

from deltamq.api.statistics import Outcome, PendingCounts
from deltamq.mq.statistics import Consumed, MinuteKey

NOON = 1_700_000_000_000 - 1_700_000_000_000 % 60_000
KEY = MinuteKey(NOON, "billing", "orders", "orders-id", "broker-a")
TIME = pa.timestamp("us", "UTC")


def rows(*, born_ms: list[int | None], appended_ms: int) -> pa.Table:
    born = pa.array([None if one is None else one * 1_000 for one in born_ms], TIME)
    return pa.table({"born_time": born, "append_time": pa.array([appended_ms * 1_000] * len(born_ms), TIME)})


def test_cons_06_ages_are_from_birth_or_else_from_the_append_and_never_below_zero() -> None:
    pending = PendingCounts()
    pending.delivered(KEY, NOON + 100, rows(born_ms=[None, None], appended_ms=NOON), 1)
    pending.delivered(KEY, NOON + 200, rows(born_ms=[NOON, None, NOON + 900], appended_ms=NOON + 50), (1, 3, 2))
    pending.delivered(KEY, NOON + 300, rows(born_ms=[NOON], appended_ms=NOON + 50).slice(0, 1), 2)
    (summed,) = pending.sums().values()
    ages = [100, 100, 200, 150, 0, 300]
    assert summed == Consumed(delivered=6, redelivered=3, age_ms=sum(ages), age_max_ms=300)


def test_cons_06_what_was_noted_is_summed_once_by_minute_group_topic_and_broker() -> None:
    pending = PendingCounts()
    other = KEY._replace(broker="broker-b")
    pending.handled(KEY, 30, 2, Outcome.SUCCEEDED)
    pending.handled(KEY, 10, 1, Outcome.DEAD)
    pending.handled(other, 5, 4, Outcome.FAILED)
    pending.delivered(other, NOON, rows(born_ms=[NOON], appended_ms=NOON), 1)
    assert pending.calls == 4
    assert pending.sums() == {
        KEY: Consumed(succeeded=2, dead=1, handling_ms=70, handling_max_ms=30),
        other: Consumed(delivered=1, failed=4, handling_ms=20, handling_max_ms=5),
    }
    assert pending.sums() == {} and pending.calls == 0


def test_cons_06_an_answer_without_messages_counts_nothing() -> None:
    pending = PendingCounts()
    pending.delivered(KEY, NOON, rows(born_ms=[], appended_ms=NOON), 1)
    assert pending.sums() == {KEY: Consumed()}
