"""A stream's progress as its group's (SPARK-2, option `group`)."""

from __future__ import annotations

import json
import logging

import pytest

from deltamq.mq.errors import Conflict, Refused
from deltamq.mq.meta.group import decide_delete_group, decide_reset_offsets
from deltamq.mq.meta.topics import Topic
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.queue.progress import Committed
from deltamq.tables.paths import PartitionRef
from deltamq.tables.queue.recovery import recover_progress
from deltamq.tables.queue.refs import OFFSETS, system_ref
from tests.queue_tables import BROKER, CLUSTER, QueueTables
from tests.unit.jobs.stream.driven import Stream
from tests.unit.jobs.warehouses import Filled

pytestmark = pytest.mark.promise("PIPE-3")


A, B = "orders@broker-a", "orders#1@broker-a"


@pytest.fixture
def orders(tables: QueueTables) -> Topic:
    """Two partitions with five and three messages."""
    topic = tables.topic(partitions=2)
    tables.send(topic, *"abcde")
    tables.send(topic, *"xyz", partition=1)
    return topic


def _committed(tables: QueueTables, topic: Topic, group: str = "dashboard") -> dict[str, Committed]:
    """What the offsets log says, in the group's present epoch."""
    tables.meta.refresh()
    found = recover_progress(tables.warehouse, CLUSTER, [BROKER])
    lanes = {name: LaneKey(topic.id, group, False, name) for name in topic.route.partitions}
    known = {name: tables.meta.groups.committed_in(lane, found.get(lane)) for name, lane in lanes.items()}
    return {name: one for name, one in known.items() if one is not None}


def _offsets(tables: QueueTables, topic: Topic) -> dict[str, int]:
    return {name: one.offset for name, one in _committed(tables, topic).items()}


def test_spark_02_a_finished_batch_is_in_the_group_when_the_next_is_asked_for(
    tables: QueueTables, orders: Topic
) -> None:
    stream = Stream(tables.warehouse.uri, group="dashboard")
    stream.batch()
    assert _offsets(tables, orders) == {}, "the batch is planned, not done"
    stream.batch()
    assert _offsets(tables, orders) == {A: 5, B: 3}
    tables.send(orders, "f")
    stream.batch()
    again = Stream(tables.warehouse.uri, stream.at, group="dashboard")
    again.batch()
    assert _offsets(tables, orders) == {A: 6, B: 3}, "what the last batch of a run did, the next run records"


def test_spark_02_the_last_batch_of_available_now_is_in_the_group(tables: QueueTables, orders: Topic) -> None:
    stream = Stream(tables.warehouse.uri, group="dashboard", maxOffsetsPerTrigger="5")
    stream.reader.prepareForTriggerAvailableNow()
    while stream.batch():
        pass
    assert _offsets(tables, orders) == {A: 5, B: 3}


def test_spark_02_a_group_that_begins_at_the_end_has_no_lag(tables: QueueTables, orders: Topic) -> None:
    stream = Stream(tables.warehouse.uri, group="dashboard", startingOffsets="latest")
    stream.batch()
    assert _offsets(tables, orders) == {A: 5, B: 3}


def test_spark_02_an_idle_query_records_nothing(tables: QueueTables, orders: Topic) -> None:
    stream = Stream(tables.warehouse.uri, group="dashboard")
    stream.batch()
    stream.batch()
    log = tables.warehouse.open_partition(_offsets_log(tables))
    log.refresh()
    end = log.end_offset
    stream.batch()
    log.refresh()
    assert log.end_offset == end == 2


def test_pop_18_a_reset_or_a_deletion_voids_what_the_query_records_until_it_is_started_again(
    tables: QueueTables, orders: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    stream = Stream(tables.warehouse.uri, group="dashboard")
    stream.batch()
    stream.batch()
    lane = LaneKey(orders.id, "dashboard", False, A)
    tables.meta.submit_groups(lambda m: decide_reset_offsets(m.groups, "dashboard", "orders", {lane: 1}))
    tables.send(orders, "f")
    with caplog.at_level(logging.WARNING):
        stream.batch()
        stream.batch()
    assert "offsets were reset" in caplog.text
    assert _offsets(tables, orders) == {A: 1, B: 3}
    stream = Stream(tables.warehouse.uri, stream.at, group="dashboard")
    stream.batch()
    assert _offsets(tables, orders) == {A: 6, B: 3}
    tables.meta.submit_groups(lambda m: decide_delete_group(m.groups, "dashboard"))
    tables.send(orders, "g")
    stream.batch()
    stream.batch()
    tables.group("dashboard")
    assert _offsets(tables, orders) == {}


@pytest.mark.parametrize("settings", [{"consume_strategy": "exclusive"}, {"order": True}, {"order": "key"}])
def test_spark_02_a_group_whose_consumers_say_what_is_done_is_refused(
    tables: QueueTables, orders: Topic, settings: dict[str, object]
) -> None:
    tables.group("strict", **settings)
    with pytest.raises(Conflict, match="give the query a group of its own"):
        Stream(tables.warehouse.uri, group="strict")


def test_spark_02_a_group_needs_a_metadata_log(filled: Filled) -> None:
    filled.append("orders", A, b"x")
    with pytest.raises(Refused, match="no metadata log"):
        Stream(filled.uri, group="dashboard")


def test_spark_02_a_checkpoint_of_another_topic_commits_nothing(tables: QueueTables, orders: Topic) -> None:
    stream = Stream(tables.warehouse.uri)
    stream.batch()
    tables.topic("other")
    with pytest.raises(Refused):
        Stream(tables.warehouse.uri, json.loads(json.dumps(stream.at)), topic="other", group="dashboard").batch()
    assert not tables.warehouse.exists(_offsets_log(tables))


def _offsets_log(tables: QueueTables) -> PartitionRef:
    return system_ref(OFFSETS, CLUSTER, BROKER)
