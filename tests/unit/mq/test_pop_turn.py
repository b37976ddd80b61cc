"""In which order partitions are popped (SPEC POP-1; R48)."""

from __future__ import annotations

from collections import Counter

from mq.pop_turn import Visit, visits


def test_pop_01_every_partition_is_visited_once_from_a_random_one_on() -> None:
    starts = Counter(visits("abcd", [], draw=draw)[0].partition for draw in range(200))
    assert starts == dict.fromkeys("abcd", 50)
    assert [visit.partition for visit in visits("abcd", [], draw=11)] == ["c", "d", "a", "b"]


def test_pop_01_retries_come_first_one_time_in_five_and_else_last() -> None:
    first = [visits("ab", ["r"], draw=draw)[0] == Visit("r", retry=True) for draw in range(100)]
    assert sum(first) == 20
    assert visits("ab", ["r"], draw=1)[-1] == Visit("r", retry=True)


def test_pop_01_ordered_pops_leave_the_retries_alone() -> None:
    assert visits("ab", ["r"], draw=0, ordered=True) == [Visit("a", retry=False), Visit("b", retry=False)]


def test_a_topic_without_partitions_here_is_visited_nowhere() -> None:
    assert visits("", [], draw=7) == []
