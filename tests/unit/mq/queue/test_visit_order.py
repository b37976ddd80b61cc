"""In which order partitions are popped (SPEC POP-1)."""

from __future__ import annotations

from collections import Counter

from deltamq.mq.queue.lane import visits


def test_pop_01_every_partition_is_visited_once_from_a_random_one_on() -> None:
    starts = Counter(visits("abcd", "", draw=draw)[0] for draw in range(200))
    assert starts == dict.fromkeys("abcd", 50)
    assert visits("abcd", "", draw=11) == ["c", "d", "a", "b"]


def test_pop_01_retries_come_first_one_time_in_five_and_else_last() -> None:
    assert sum(visits("ab", "r", draw=draw)[0] == "r" for draw in range(100)) == 20
    assert visits("ab", "r", draw=1)[-1] == "r"


def test_a_topic_without_partitions_here_is_visited_nowhere() -> None:
    assert visits("", "", draw=7) == []
