"""A log that is followed by a reader that stays (SPARK-2, invariant I5)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from deltamq.mq.meta.topic_settings import TopicRequest
from deltamq.mq.meta.topics import decide_put_topic
from deltamq.tables.clock import Clock
from deltamq.tables.delta.snapshot import PartitionNotFound, log_versions
from deltamq.tables.log.batch import Batch
from deltamq.tables.log.follow import LogFollower
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.queue.metadata import MetaFollower, MetaLog
from deltamq.tables.settings import LogSettings
from tests.rows import rows
from tests.set_clock import SetClock

REF = PartitionRef(Space.TOPICS, "t", "t@a")
SETTINGS = LogSettings(log_keep_ms=1_000, checkpoint_commits=4, file_keep_ms=1_000)


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def warehouse(tmp_path: Path, clock: Clock) -> Iterator[Warehouse]:
    made = Warehouse.open(str(tmp_path), settings=SETTINGS, clock=clock)
    yield made
    made.close()


def _append(log: PartitionLog, times: int = 1) -> None:
    for _ in range(times):
        log.append([Batch(rows([b"a", b"b"]))])


def test_spark_02_a_follower_sees_each_commit_and_writes_nothing(warehouse: Warehouse, clock: SetClock) -> None:
    log = warehouse.create(REF)
    followed = LogFollower(warehouse.store, REF.folder, clock=clock)
    before = warehouse.store.names(f"{REF.folder}/_delta_log")
    assert not followed.refresh()
    _append(log, 3)
    assert followed.refresh()
    assert (followed.end_offset, followed.min_offset, len(followed.files)) == (6, 0, 3)
    log.delete_below(2)
    assert followed.refresh()
    assert followed.min_offset == 2
    assert len(warehouse.store.names(f"{REF.folder}/_delta_log")) == len(before) + 4
    with pytest.raises(PartitionNotFound):
        LogFollower(warehouse.store, "topics/t/none@a", clock=clock)


def test_spark_02_a_follower_that_slept_while_commits_were_cleaned_up_goes_on(
    warehouse: Warehouse, clock: SetClock
) -> None:
    log = warehouse.create(REF)
    _append(log)
    followed = LogFollower(warehouse.store, REF.folder, clock=clock)
    for _ in range(6):
        _append(log, 4)
        clock.advance_ms(2_000)
        while log.maintain():
            pass
    assert log_versions(warehouse.store, REF.folder)[0][0] > 2, "what would come next was cleaned up"
    assert followed.refresh()
    assert followed.end_offset == log.end_offset == 50
    _append(log)
    assert followed.refresh()
    assert followed.end_offset == 52


def test_spark_02_the_metadata_is_followed_over_its_snapshots(warehouse: Warehouse, clock: SetClock) -> None:
    meta = MetaLog(warehouse, snapshot_events=5)
    followed = MetaFollower(warehouse.store, clock)
    assert not followed.refresh()
    for number in range(30):
        put = partial(
            decide_put_topic,
            name=f"t{number}",
            request=TopicRequest(),
            brokers=["a"],
            new_id=f"id-{number}",
            now_ms=0,
        )
        meta.submit(put)
        if number % 7 == 0:
            assert followed.refresh()
            assert followed.meta == meta.meta
        meta.maintain()
    assert followed.refresh()
    assert followed.meta == meta.meta
    assert followed.warehouse_id == MetaFollower(warehouse.store, clock).warehouse_id != ""
