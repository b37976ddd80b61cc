"""Replays and resets by a schedule (SPARK-10, RETRY-3, POP-18): when they are due, and what a kill leaves."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamq.jobs.export.scheduled_jobs import replay, reset
from deltamq.jobs.export.schedules import (
    ScheduledReplay,
    ScheduledReset,
    next_due_ms,
    read_state,
    remove_scheduled,
    save_scheduled,
    scheduled,
)
from deltamq.jobs.tasks.warehouse_files import storage
from deltamq.mq.errors import NotFound, Refused, Unavailable
from deltamq.mq.meta.group import decide_delete_group, decide_put_group
from deltamq.mq.meta.group_settings import GroupRequest
from deltamq.mq.meta.topic_settings import TopicRequest
from deltamq.mq.meta.topics import decide_put_topic
from deltamq.tables.config import Config, load
from deltamq.tables.failpoints import FailpointHit, arm
from deltamq.tables.log.batch import Batch
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.queue.metadata import MetaLog
from deltamq.tables.queue.refs import dead_ref
from deltamq.tables.schema import INTERNAL_SCHEMA

_ID = "7b0a4c1e-90f5-4a39-8a7e-0d6f5a0f6a11"
_NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
_FIRST_MS = int(_NOON.timestamp() * 1_000)
_HOUR = timedelta(hours=1)


@pytest.fixture
def conf(tmp_path: Path) -> Config:
    """A topic with a message, and two groups."""
    with_topic = Warehouse.open(str(tmp_path))
    meta = MetaLog(with_topic)
    meta.submit(lambda state: decide_put_topic(state, "orders", TopicRequest(partitions=1), ["broker-a"], _ID, 0))
    for group in ("billing", "mail"):
        meta.submit_groups(lambda m, group=group: decide_put_group(m.groups, group, GroupRequest(), 0))
    with_topic.create(PartitionRef(Space.TOPICS, "orders", "orders@broker-a")).append(
        [Batch(pa.RecordBatch.from_pydict({"body": pa.array([b"a"])}))]
    )
    with_topic.close()
    return load(overrides={"warehouse.uri": str(tmp_path)}, environ={})


def _bury(conf: Config, count: int, topic: str = "orders") -> None:
    warehouse = Warehouse.open(conf.warehouse.uri)
    origin = {"topic": topic, "partition": f"{topic}@broker-a", "offset": 0}
    letters = [{"body": b"dead", "origin": origin, "message_id": f"m{at}"} for at in range(count)]
    epoch = MetaLog(warehouse).groups.group("billing").epoch
    rows = pa.RecordBatch.from_pylist(letters, schema=INTERNAL_SCHEMA)
    warehouse.create(dead_ref("billing", epoch, "broker-a")).append([Batch(rows)])
    warehouse.close()


def _end_offset(conf: Config) -> int:
    warehouse = Warehouse.open(conf.warehouse.uri)
    try:
        return warehouse.open_partition(PartitionRef(Space.TOPICS, "orders", "orders@broker-a")).end_offset
    finally:
        warehouse.close()


def _replay(conf: Config, **changed: object) -> ScheduledReplay:
    wanted = ScheduledReplay(
        **{"name": "hourly", "group": "billing", "every_s": 3_600, "first_ms": _FIRST_MS, **changed}
    )
    save_scheduled(storage(conf.warehouse.uri), wanted)
    return wanted


@given(first_ms=st.integers(0, 10**13), every_s=st.integers(60, 10**7), now_ms=st.integers(0, 10**13))
def test_spark_10_the_next_time_is_the_first_behind_now_on_the_grid(first_ms: int, every_s: int, now_ms: int) -> None:
    found = ScheduledReplay(name="x", group="g", every_s=every_s, first_ms=first_ms)
    due_ms = next_due_ms(found, now_ms)
    assert due_ms > now_ms or due_ms == first_ms
    assert (due_ms - first_ms) % (every_s * 1_000) == 0
    assert due_ms == first_ms or due_ms - every_s * 1_000 <= now_ms


def test_spark_10_a_scheduled_replay_sends_what_is_new_at_its_times(conf: Config) -> None:
    _replay(conf)
    _bury(conf, 2)
    assert replay(None, conf, _NOON - _HOUR)["due"] == 0
    assert replay(None, conf, _NOON) == {"due": 1, "rows": 2, "duplicates": 0, "refused": 0}
    _bury(conf, 3)
    assert replay(None, conf, _NOON + _HOUR / 2)["due"] == 0
    # five times have passed: it is made up for once
    assert replay(None, conf, _NOON + 5 * _HOUR) == {"due": 1, "rows": 3, "duplicates": 0, "refused": 0}
    assert replay(None, conf, _NOON + 5.5 * _HOUR)["due"] == 0
    assert _end_offset(conf) == 6


def test_spark_10_a_replay_that_was_killed_before_its_state_sends_nothing_twice(conf: Config) -> None:
    found = _replay(conf)
    _bury(conf, 2)
    arm("scheduled.before_state=raise")
    try:
        with pytest.raises(FailpointHit):
            replay(None, conf, _NOON)
    finally:
        arm("")
    assert read_state(storage(conf.warehouse.uri), found).due_ms == _FIRST_MS
    assert replay(None, conf, _NOON) == {"due": 1, "rows": 0, "duplicates": 2, "refused": 0}
    assert _end_offset(conf) == 3


def test_spark_10_letters_of_a_group_that_was_made_again_are_not_taken_for_old_ones(conf: Config) -> None:
    _replay(conf)
    _bury(conf, 3)
    assert replay(None, conf, _NOON)["rows"] == 3
    warehouse = Warehouse.open(conf.warehouse.uri)
    meta = MetaLog(warehouse)
    meta.submit_groups(lambda m: decide_delete_group(m.groups, "billing"))
    meta.submit_groups(lambda m: decide_put_group(m.groups, "billing", GroupRequest(), 0))
    warehouse.close()
    _bury(conf, 2)
    assert replay(None, conf, _NOON + _HOUR)["rows"] == 2


def test_spark_10_one_that_fails_keeps_no_other_from_its_turn_and_is_tried_again(conf: Config) -> None:
    _replay(conf, name="a-first", group="nobody")
    _replay(conf)
    _bury(conf, 1)
    _bury(conf, 1, topic="gone")
    with pytest.raises(Unavailable, match="a-first: there is no group nobody"):
        replay(None, conf, _NOON)
    assert _end_offset(conf) == 2
    with pytest.raises(Unavailable, match="a-first"):
        replay(None, conf, _NOON)


def test_spark_10_one_whose_file_is_damaged_keeps_no_other_from_its_turn(conf: Config) -> None:
    _replay(conf, name="a-first")
    _replay(conf)
    _bury(conf, 1)
    (Path(conf.warehouse.uri) / "jobs/replay/scheduled/a-first.json").write_text("{")
    with pytest.raises(Unavailable, match=r"a-first: .*a-first\.json is damaged"):
        replay(None, conf, _NOON)
    assert _end_offset(conf) == 2


def test_pop_18_a_scheduled_reset_begins_an_epoch_at_each_of_its_times(conf: Config) -> None:
    store = storage(conf.warehouse.uri)
    wanted = ScheduledReset(
        name="nightly", group="mail", topic="orders", to="earliest", every_s=86_400, first_ms=_FIRST_MS
    )
    save_scheduled(store, wanted)
    assert reset(None, conf, _NOON) == {"due": 1, "rows": 1}
    assert reset(None, conf, _NOON + _HOUR) == {"due": 0, "rows": 0}
    assert reset(None, conf, _NOON + 24 * _HOUR) == {"due": 1, "rows": 1}
    warehouse = Warehouse.open(conf.warehouse.uri)
    found = MetaLog(warehouse).groups.resets
    warehouse.close()
    assert [one.epoch for lane, one in found.items() if lane.group == "mail"] == [
        max(one.epoch for one in found.values())
    ]
    remove_scheduled(store, "reset", "nightly")
    assert scheduled(store, "reset") == []
    with pytest.raises(NotFound, match="no scheduled reset"):
        remove_scheduled(store, "reset", "nightly")


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"name": "a/b"}, "name: 1 to 100"),
        ({"every_s": 59}, "every: must be 60 seconds"),
        ({"group": ""}, "group"),
        ({"topics": ("%RETRY%x",)}, "belong to the system"),
    ],
)
def test_spark_10_what_is_scheduled_is_checked_where_it_comes_in(
    conf: Config, changed: dict[str, object], told: str
) -> None:
    with pytest.raises(Refused, match=told):
        _replay(conf, **changed)
    _replay(conf)
    with pytest.raises(Refused, match="there is a scheduled replay 'hourly'"):
        _replay(conf)


@pytest.mark.parametrize("to", ["soon", "2020-01-01T00:00:00Z", "-24x"])
def test_spark_10_a_scheduled_reset_goes_where_each_time_makes_sense(conf: Config, to: str) -> None:
    with pytest.raises(Refused):
        save_scheduled(
            storage(conf.warehouse.uri),
            ScheduledReset(name="x", group="mail", topic="orders", to=to, every_s=60, first_ms=0),
        )
