"""`readStream.format("mq")` against real tables, driven as Spark drives it (SPARK-2)."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from deltamq.jobs.stream.planner import StreamDataLost
from deltamq.mq.errors import Corrupt, NotFound, Refused
from deltamq.mq.meta.topics import Topic
from tests.queue_tables import QueueTables
from tests.unit.jobs.stream.driven import Stream

pytestmark = pytest.mark.promise("PIPE-2")


A, B = "orders@broker-a", "orders#1@broker-a"


@pytest.fixture
def orders(tables: QueueTables) -> Topic:
    """Two partitions with five and three messages."""
    topic = tables.topic(partitions=2)
    tables.send(topic, *"abcde")
    tables.send(topic, *"xyz", partition=1)
    return topic


def _places(partition: str, *offsets: int) -> list[tuple[str, int]]:
    return [(partition, offset) for offset in offsets]


def _uri(tables: QueueTables) -> str:
    return tables.warehouse.uri


def test_spark_15_a_stream_of_a_topic_whose_log_is_gone_does_not_begin(tables: QueueTables, orders: Topic) -> None:
    """It ended well, with the messages of the other partition."""
    stream = Stream(_uri(tables))
    stream.batch()
    folder = tables.log(orders, 1).ref.folder
    tables.warehouse.store.delete_tree(f"{folder}/_delta_log")
    for checkpoint in (None, stream.at):
        with pytest.raises(Corrupt, match=f"{re.escape(folder)} has data .* but no log; restore its _delta_log folder"):
            Stream(_uri(tables), checkpoint).batch()


def test_spark_02_a_stream_reads_everything_once_and_goes_on_from_its_checkpoint(
    tables: QueueTables, orders: Topic
) -> None:
    stream = Stream(_uri(tables))
    assert sorted(stream.batch()) == sorted(_places(A, *range(5)) + _places(B, *range(3)))
    tables.send(orders, "f")
    assert stream.batch() == _places(A, 5)
    tables.send(orders, "g", partition=1)
    assert Stream(_uri(tables), stream.at).batch() == _places(B, 3), "another process, from the checkpoint"


def test_spark_02_a_stream_without_news_keeps_its_position_to_the_letter(tables: QueueTables, orders: Topic) -> None:
    stream = Stream(_uri(tables))
    stream.batch()
    before = json.dumps(stream.at)
    assert stream.batch() == []
    assert json.dumps(stream.at) == before


def test_spark_02_a_stream_starts_at_the_end_unless_options_say_where(tables: QueueTables, orders: Topic) -> None:
    made = Stream(_uri(tables), startingOffsets="latest")
    tables.send(orders, "f")
    assert made.batch() == _places(A, 5)
    each = json.dumps({"orders": {A: 4, "1": -1}})
    assert Stream(_uri(tables), startingOffsets=each).batch() == _places(A, 4, 5)
    with pytest.raises(Refused, match="start at offset 99"):
        Stream(_uri(tables), startingOffsets=json.dumps({"orders": {A: 99, B: 0}}))
    with pytest.raises(Refused, match="name every partition"):
        Stream(_uri(tables), startingOffsets=json.dumps({"orders": {A: 0}}))


def test_spark_02_a_stream_starts_at_a_time(tables: QueueTables, orders: Topic) -> None:
    times = [row["append_time"] for row in tables.rows(tables.log(orders).ref)]
    after_ms = int(times[-1].timestamp() * 1_000) + 1
    with pytest.raises(Refused, match="startingOffsetsByTimestampStrategy=latest"):
        Stream(_uri(tables), startingTimestamp=str(after_ms + 60_000))
    late = Stream(_uri(tables), startingTimestamp=str(after_ms + 60_000), startingOffsetsByTimestampStrategy="latest")
    tables.send(orders, "f")
    assert late.batch() == _places(A, 5)
    assert len(Stream(_uri(tables), startingTimestamp="0").batch()) == 9


def test_spark_02_a_batch_takes_what_the_limits_allow_in_proportion(tables: QueueTables, orders: Topic) -> None:
    stream = Stream(_uri(tables), maxOffsetsPerTrigger="4")
    assert stream.reader.getDefaultReadLimit() == ReadMaxRows(4)
    assert stream.batch() == sorted(_places(A, 0, 1) + _places(B, 0))
    assert len(stream.all_of_it()) == 5, "a trigger for everything sets the limit aside"


def test_spark_02_a_batch_waits_for_its_minimum(tables: QueueTables, orders: Topic) -> None:
    stream = Stream(_uri(tables), minOffsetsPerTrigger="3", maxTriggerDelay="1h")
    assert stream.reader.getDefaultReadLimit() == ReadMinRows(3)
    assert len(stream.batch()) == 8
    tables.send(orders, "f", "g")
    assert stream.batch() == []
    tables.send(orders, "h")
    assert stream.batch() == _places(A, 5, 6, 7)
    brief = Stream(_uri(tables), stream.at, minOffsetsPerTrigger="3", maxTriggerDelay="1ms")
    tables.send(orders, "i")
    assert brief.batch() == _places(A, 8)
    tables.send(orders, "j")
    assert brief.batch() == _places(A, 9), "after the delay fewer are enough"


def test_spark_02_available_now_ends_where_everything_ended_when_it_began(tables: QueueTables, orders: Topic) -> None:
    stream = Stream(_uri(tables), maxOffsetsPerTrigger="6", minOffsetsPerTrigger="5")
    stream.reader.prepareForTriggerAvailableNow()
    tables.send(orders, "f", "g")
    assert len(stream.batch()) + len(stream.batch()) == 8, "the minimum holds nothing back"
    assert stream.batch() == []
    assert Stream(_uri(tables), stream.at).batch() == _places(A, 5, 6)


def test_spark_02_new_partitions_and_topics_are_read_from_their_start(tables: QueueTables, orders: Topic) -> None:
    stream = Stream(_uri(tables), topic="orders", startingOffsets="latest")
    tables.send(tables.topic(partitions=3), "new", partition=2)
    assert stream.batch() == _places("orders#2@broker-a", 0)


def test_spark_02_topics_of_a_pattern_are_picked_up(tables: QueueTables, orders: Topic) -> None:
    stream = Stream(_uri(tables), subscribePattern="ord.*", startingOffsets="latest")
    tables.send(tables.topic("other"), "no")
    assert stream.batch() == []
    tables.send(tables.topic("ordinal"), "yes", "yes")
    assert stream.batch() == [], "the checkpoint has its beginning first"
    assert stream.batch() == _places("ordinal@broker-a", 0, 1)


def test_spark_02_retention_in_a_new_topic_whose_batch_was_killed_fails_the_query(
    tables: QueueTables, orders: Topic
) -> None:
    stream = Stream(_uri(tables), subscribePattern="ord.*", startingOffsets="latest")
    made = tables.topic("ordinal")
    tables.send(made, "a", "b")
    assert stream.batch() == []
    end = stream.end()
    tables.send(made, "c")
    assert tables.log(made).delete_below(2).messages == 2
    stream.reader.stop()
    again = Stream(_uri(tables), stream.at, subscribePattern="ord.*", startingOffsets="latest")
    with pytest.raises(StreamDataLost, match=r"removed offsets \[0, 2\)"):
        again.read(stream.at, end)


def test_spark_02_tasks_are_as_many_as_asked_and_a_partition_without_news_has_none(
    tables: QueueTables, orders: Topic
) -> None:
    stream = Stream(_uri(tables), minPartitions="4")
    end = stream.end()
    assert len(stream.reader.partitions(stream.at, end)) == 4
    stream.reader.stop()
    small = Stream(_uri(tables), maxRecordsPerPartition="2")
    assert len(small.reader.partitions(small.at, end)) == 5
    assert small.reader.partitions(end, end) == []


def test_spark_02_retention_that_passed_the_position_fails_the_query_by_name(
    tables: QueueTables, orders: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    stream = Stream(_uri(tables))
    tables.send(orders, "f", "g")
    assert tables.log(orders).delete_below(5).messages == 5
    with pytest.raises(StreamDataLost, match=rf"{A}.*offset 0.*removed offsets \[0, 5\)"):
        stream.batch()
    going_on = Stream(_uri(tables), stream.at, failOnDataLoss="false")
    with caplog.at_level(logging.WARNING):
        assert going_on.batch() == sorted(_places(A, 5, 6) + _places(B, 0, 1, 2))
    assert "removed offsets [0, 5)" in caplog.text
    caplog.clear()
    assert going_on.batch() == []
    assert not caplog.text, "it is said once"


def test_spark_02_a_batch_that_was_planned_is_read_again_after_a_kill(tables: QueueTables, orders: Topic) -> None:
    stream = Stream(_uri(tables), maxOffsetsPerTrigger="4")
    end = stream.end()
    planned = stream.read(stream.at, end)
    tables.send(orders, "f", "g", "h")
    stream.reader.stop()
    assert Stream(_uri(tables), stream.at).read(stream.at, end) == planned


def test_spark_02_retention_during_a_batch_fails_it_or_is_passed_over(tables: QueueTables, orders: Topic) -> None:
    tables.send(orders, "f")
    stream = Stream(_uri(tables))
    end = stream.end()
    tables.log(orders).delete_below(5)
    for file in tables.warehouse.store.names(f"topics/orders/{A}"):
        if file.startswith("0" * 20):
            tables.warehouse.store.delete(f"topics/orders/{A}/{file}")
    with pytest.raises(Corrupt, match=r"\[0, 5\) were removed by retention"):
        stream.read(stream.at, end)
    stream.reader.stop()
    careless = Stream(_uri(tables), stream.at, failOnDataLoss="false")
    assert careless.read(stream.at, end) == sorted(_places(A, 5) + _places(B, 0, 1, 2))


def test_spark_02_a_topic_made_again_fails_the_query_or_is_read_from_its_start(
    tables: QueueTables, orders: Topic
) -> None:
    stream = Stream(_uri(tables))
    stream.batch()
    tables.delete_topic(orders)
    with pytest.raises(StreamDataLost, match="topic orders was deleted"):
        stream.batch()
    again = tables.topic(partitions=2)
    tables.send(again, "new", "new")
    with pytest.raises(StreamDataLost, match="orders was deleted and created again"):
        Stream(_uri(tables), stream.at).batch()
    going_on = Stream(_uri(tables), stream.at, failOnDataLoss="false")
    assert going_on.batch() == [], "the checkpoint has its beginning first"
    assert going_on.batch() == _places(A, 0, 1)
    tables.send(again, "new", partition=1)
    assert going_on.batch() == _places(B, 0)


def test_spark_02_a_running_query_goes_over_to_the_topic_that_was_made_again(
    tables: QueueTables, orders: Topic
) -> None:
    stream = Stream(_uri(tables), failOnDataLoss="false")
    stream.batch()
    tables.delete_topic(orders)
    assert stream.batch() == []
    tables.send(tables.topic(), "new")
    assert stream.batch() == []
    assert stream.batch() == _places(A, 0)


def test_spark_02_a_checkpoint_of_something_else_is_refused_by_name(
    tables: QueueTables, orders: Topic, tmp_path: Path
) -> None:
    stream = Stream(_uri(tables))
    stream.batch()
    tables.topic("other")
    with pytest.raises(Refused, match="position in topic orders, which the options do not select"):
        Stream(_uri(tables), stream.at, topic="other").batch()
    with pytest.raises(Refused, match=f"partition {B} of topic orders"):
        Stream(_uri(tables), stream.at, assign=json.dumps({"orders": [A]})).batch()
    elsewhere = QueueTables(tmp_path / "elsewhere")
    try:
        elsewhere.topic()
        with pytest.raises(Refused, match="checkpoint is of another warehouse"):
            Stream(_uri(elsewhere), stream.at).batch()
    finally:
        elsewhere.close()


def test_spark_02_a_damaged_file_fails_the_batch_by_name_and_the_repaired_one_is_read(
    tables: QueueTables, orders: Topic
) -> None:
    stream = Stream(_uri(tables))
    end = stream.end()
    folder = Path(_uri(tables)) / "topics" / "orders" / A
    file = next(iter(sorted(folder.glob("*.parquet"))))
    whole = file.read_bytes()
    file.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    with pytest.raises(Corrupt, match=file.name):
        stream.read(stream.at, end)
    file.write_bytes(whole)
    assert len(stream.read(stream.at, end)) == 8


def test_spark_02_a_topic_that_does_not_exist_is_named(tables: QueueTables, orders: Topic) -> None:
    with pytest.raises(NotFound, match="no topic 'missing'"):
        Stream(_uri(tables), topic="missing")


def test_spark_12_the_planner_reports_where_everything_ends(tables: QueueTables, orders: Topic) -> None:
    stream = Stream(_uri(tables), maxOffsetsPerTrigger="4")
    assert stream.reader.reportLatestOffset() is not None
    stream.batch()
    latest = stream.reader.reportLatestOffset()
    assert latest is not None and latest["topics"]["orders"]["partitions"] == {A: 5, B: 3}
    assert "orders" in repr(stream.reader)


def test_spark_02_a_limit_of_everything_is_what_a_query_without_limits_asks(tables: QueueTables, orders: Topic) -> None:
    assert Stream(_uri(tables)).reader.getDefaultReadLimit() == ReadAllAvailable()
