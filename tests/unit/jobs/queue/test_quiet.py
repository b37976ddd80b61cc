"""A shard at rest needs no task: the driver looks at the end of its log, and waits for what falls due."""

from __future__ import annotations

import pytest

from deltamq.jobs.queue.shard_work import ShardReport
from deltamq.jobs.queue.task_driver import Looked

pytestmark = pytest.mark.promise("JOB-18")


SHARD = ("broker-a", 3)


def _told(*, held: bool = False, log_end: int = 7, next_ms: int | None = None) -> list[ShardReport]:
    return [ShardReport(*SHARD, 0, {}, held=held, log_end=log_end, next_ms=next_ms)]


def test_spark_07_a_shard_that_nobody_has_looked_at_is_not_quiet() -> None:
    assert not Looked().is_quiet(SHARD, lambda: 0, 0)


def test_spark_07_a_shard_is_quiet_until_something_falls_due_or_is_appended() -> None:
    looked = Looked()
    looked.note(_told(next_ms=5_000), 1_000)
    assert looked.is_quiet(SHARD, lambda: 7, 4_999)
    assert not looked.is_quiet(SHARD, lambda: 7, 5_000)
    assert not looked.is_quiet(SHARD, lambda: 8, 2_000)
    assert not looked.is_quiet(SHARD, lambda: None, 2_000), "a log that cannot be read is a task's affair"
    looked.note(_told(next_ms=None), 5_000)
    assert looked.is_quiet(SHARD, lambda: 7, 10**15)


def test_spark_07_a_shard_that_was_held_or_had_work_is_looked_at_again() -> None:
    looked = Looked()
    looked.note(_told(next_ms=None), 1_000)
    looked.note(_told(held=True), 2_000)
    assert not looked.is_quiet(SHARD, lambda: 7, 2_001)
    looked.note(_told(next_ms=0), 3_000)
    assert not looked.is_quiet(SHARD, lambda: 7, 3_001)
