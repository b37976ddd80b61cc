"""Limits of the queue that users see: the figures of the specification."""

from __future__ import annotations

from deltamq.mq import limits

HOUR_MS = 3_600_000


def test_pop_03_invisible_times() -> None:
    assert (limits.INVISIBLE_MS_MIN, limits.INVISIBLE_MS_DEFAULT) == (10_000, 60_000)
    assert limits.INVISIBLE_MS_MAX == 12 * HOUR_MS


def test_pop_01_and_pop_06_sizes_and_queues() -> None:
    assert (limits.POP_MESSAGES_MAX, limits.CHECKPOINT_MESSAGES_MAX) == (1_024, 32)
    assert (limits.REVIVE_QUEUES, limits.ORDERED_REVIVE_QUEUE, limits.CHECKPOINT_LEAD_MS) == (8, 999, 1_000)


def test_pop_13_the_in_memory_match() -> None:
    assert (limits.STAY_BUFFER_MS, limits.STAY_BUFFER_TIMEOUT_MS, limits.STRAIGHT_TO_LOG_MS) == (10_000, 3_000, 4_500)
    assert (limits.BUFFER_CHECKPOINTS_MAX, limits.PARTITION_CHECKPOINTS_MAX) == (200_000, 20_000)


def test_retry_2_attempts() -> None:
    assert limits.MAX_ATTEMPTS_DEFAULT == 17
