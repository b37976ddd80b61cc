"""How much a batch of a stream takes (SPARK-2: maxOffsetsPerTrigger, minOffsetsPerTrigger, maxTriggerDelay)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from deltamq.mq.streams import TriggerLimits, admitted

AVAILABLE = st.dictionaries(st.integers(), st.integers(0, 10**12), max_size=20)


@given(AVAILABLE, st.integers(1, 10**9))
def test_spark_02_a_batch_is_bounded_and_starves_no_partition(available: dict[int, int], most: int) -> None:
    taken = admitted(available, most)
    assert taken.keys() == available.keys()
    assert all(0 <= taken[key] <= count for key, count in available.items())
    assert all(taken[key] >= 1 for key, count in available.items() if count)
    assert sum(taken.values()) <= most + sum(1 for count in available.values() if count)


@given(AVAILABLE)
def test_spark_02_what_is_below_the_limit_is_taken_whole(available: dict[int, int]) -> None:
    assert admitted(available, None) == available
    assert admitted(available, max(1, sum(available.values()))) == available


def test_spark_02_partitions_share_a_batch_in_proportion() -> None:
    assert admitted({"a": 9_000, "b": 1_000, "c": 0}, 100) == {"a": 90, "b": 10, "c": 0}
    assert admitted({"a": 1_000_000, "b": 1}, 10) == {"a": 9, "b": 1}


def test_spark_02_a_batch_waits_for_its_minimum_but_not_for_ever() -> None:
    limits = TriggerLimits(messages_min=10, delay_ms_max=1_000)
    assert limits.must_wait(9, since_last_ms=999)
    assert not limits.must_wait(10, since_last_ms=0)
    assert not limits.must_wait(1, since_last_ms=1_000)
    assert not limits.must_wait(1, since_last_ms=None), "the first batch comes at once"
    assert not TriggerLimits().must_wait(0, since_last_ms=0)
