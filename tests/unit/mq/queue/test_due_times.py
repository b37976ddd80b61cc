"""Due times in coarse buckets: never early, at most a bucket late, in the same order for the same calls."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from deltamq.mq.queue.due_times import DueTimes

times = st.lists(st.integers(0, 5_000), max_size=40)


@given(times, st.integers(0, 6_000), st.data())
def test_everything_is_due_once_never_early_and_at_most_a_bucket_late(
    due: list[int], now_ms: int, data: st.DataObject
) -> None:
    waiting: DueTimes[int] = DueTimes(width_ms=100)
    buckets = [waiting.add(item, time_ms) for item, time_ms in enumerate(due)]
    gone = data.draw(st.sets(st.sampled_from(range(len(due))))) if due else set()
    for item in gone:
        waiting.discard(item, buckets[item])
        waiting.discard(item, buckets[item])
    taken = waiting.take(now_ms)
    assert all(due[item] <= now_ms for item in taken)
    assert {i for i, t in enumerate(due) if t <= now_ms - 100} - gone <= set(taken)
    assert not gone & set(taken)
    assert len(waiting) == len(due) - len(gone) - len(taken)
    assert sorted(taken + waiting.take_all()) == sorted(set(range(len(due))) - gone)
    assert len(waiting) == 0 and waiting.take(10**6) == []


def test_items_of_a_bucket_keep_their_order() -> None:
    waiting: DueTimes[str] = DueTimes(width_ms=100)
    for item in "dacb":
        waiting.add(item, 250)
    waiting.add("x", 90)
    assert waiting.take(299) == ["x"]
    assert waiting.take(300) == ["d", "a", "c", "b"]


def test_a_bucket_that_was_taken_can_be_used_again() -> None:
    waiting: DueTimes[str] = DueTimes(width_ms=100)
    waiting.add("a", 100)
    assert waiting.take(100) == ["a"]
    bucket = waiting.add("b", 100)
    waiting.discard("a", bucket)
    assert waiting.take(100) == ["b"]
