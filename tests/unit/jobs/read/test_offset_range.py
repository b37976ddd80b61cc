"""Options become offset ranges of partitions, against real tables (SPARK-1)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from deltamq.jobs.read.offset_range import resolve, split
from deltamq.jobs.read.options import parse_options
from deltamq.jobs.read.stored_partition import OffsetRange
from deltamq.jobs.read.topics import Catalog
from deltamq.jobs.tasks.warehouse_files import storage
from deltamq.mq.errors import NotFound, Refused
from deltamq.mq.meta.group import decide_put_group
from deltamq.mq.meta.group_settings import GroupRequest
from deltamq.mq.meta.topic_settings import TopicRequest
from deltamq.mq.meta.topics import decide_put_topic
from deltamq.tables.queue.metadata import MetaLog
from tests.rows import next_millisecond
from tests.unit.jobs.warehouses import Filled

pytestmark = pytest.mark.promise("PIPE-4")


A, B, MORE = "orders@broker-a", "orders@broker-b", "orders#1@broker-a"


def _resolve(filled: Filled, **options: str) -> list[OffsetRange]:
    return resolve(Catalog(storage(filled.uri)), parse_options(options, warehouse=filled.uri))


def _shown(ranges: list[OffsetRange]) -> dict[str, tuple[int, int]]:
    return {r.partition.ref.name: (r.start, r.stop) for r in ranges}


@pytest.fixture
def orders(filled: Filled) -> Filled:
    """Three partitions with 10, 5 and 3 messages in several commits, and another topic."""
    for _ in range(2):
        filled.append("orders", A, *[b"a"] * 5)
    filled.append("orders", B, *[b"b"] * 5)
    filled.append("orders", MORE, *[b"c"] * 3)
    filled.append("other", "other@broker-a", b"x")
    return filled


def test_spark_1_a_topic_is_all_its_partitions_by_number(orders: Filled) -> None:
    found = _resolve(orders, topic="orders")
    assert _shown(found) == {A: (0, 10), B: (0, 5), MORE: (0, 3)}
    assert [r.partition.number for r in found] == [0, 1, 2]
    assert [len(r.files) for r in found] == [2, 1, 1]


def test_spark_1_several_topics_and_patterns(orders: Filled) -> None:
    assert len(_resolve(orders, subscribe="orders,other")) == 4
    assert len(_resolve(orders, subscribePattern="o.*")) == 4
    assert _resolve(orders, subscribePattern="orde") == []


def test_spark_1_assigned_partitions_only(orders: Filled) -> None:
    found = _resolve(orders, assign=f'{{"orders": ["{MORE}", 0, "{MORE}"]}}')
    assert _shown(found) == {MORE: (0, 3), A: (0, 10)}


def test_spark_1_offsets_for_each_partition(orders: Filled) -> None:
    start = f'{{"orders": {{"{A}": 4, "1": -2, "2": 3}}}}'
    end = f'{{"orders": {{"{A}": 7, "1": -1, "2": 3}}}}'
    found = _resolve(orders, topic="orders", startingOffsets=start, endingOffsets=end)
    assert _shown(found) == {A: (4, 7), B: (0, 5)}
    assert [f.start for f in found[0].files] == [0, 5]


def test_spark_1_a_bound_must_name_every_partition_that_is_read_and_no_other(orders: Filled) -> None:
    with pytest.raises(Refused, match=f"missing: {B}, {MORE}"):
        _resolve(orders, topic="orders", startingOffsets='{"orders": {"0": 1}}')
    with pytest.raises(Refused, match="'9' of 'orders' is not among the partitions that this read selects"):
        _resolve(orders, topic="orders", endingOffsets='{"orders": {"0": 1, "1": 1, "2": 1, "9": 1}}')


def test_spark_1_unknown_topics_and_partitions_are_named(orders: Filled) -> None:
    with pytest.raises(NotFound, match="no topic 'nope'") as caught:
        _resolve(orders, subscribe="orders,nope")
    assert caught.value.code == "topic_not_found"
    with pytest.raises(NotFound, match=f"no partition '7'; it has {A}"):
        _resolve(orders, assign='{"orders": [7]}')


def test_spark_1_offsets_that_are_not_stored_fail_unless_loss_is_accepted(orders: Filled) -> None:
    beyond = '{"orders": {"0": 99, "1": -1, "2": -1}}'
    with pytest.raises(Refused, match=r"\[0, 99\) were requested, \[0, 10\) are stored"):
        _resolve(orders, topic="orders", endingOffsets=beyond)
    found = _resolve(orders, topic="orders", endingOffsets=beyond, failOnDataLoss="false")
    assert _shown(found)[A] == (0, 10)
    backwards = '{"orders": {"0": 3, "1": 0, "2": 0}}'
    with pytest.raises(Refused, match="offset"):
        _resolve(
            orders, topic="orders", startingOffsets=backwards, endingOffsets='{"orders": {"0": 1, "1": 1, "2": 1}}'
        )


def test_spark_1_times_find_the_first_offset_at_or_after_them(filled: Filled) -> None:
    for _ in range(3):
        log = filled.append("orders", A, b"x", b"y")
    times_us = [f.append_min_us for f in log.files]
    at_ms = times_us[1] // 1000
    expected = next(f.start for f in log.files if f.append_max_us >= at_ms * 1000)
    assert _shown(_resolve(filled, topic="orders", startingTimestamp=str(at_ms))) == {A: (expected, 6)}
    ended = _resolve(filled, topic="orders", endingOffsetsByTimestamp=f'{{"orders": {{"{A}": {at_ms}}}}}')
    assert _shown(ended) == ({A: (0, expected)} if expected else {})


def test_spark_1_a_start_after_all_messages_is_an_error_or_reads_nothing(orders: Filled) -> None:
    future = {"topic": "orders", "startingTimestamp": "4000000000000"}
    with pytest.raises(Refused, match="no message was appended at or after"):
        _resolve(orders, **future)
    assert _resolve(orders, **future, startingOffsetsByTimestampStrategy="latest") == []
    assert len(_resolve(orders, topic="orders", endingTimestamp="4000000000000")) == 3


def _grow(meta: MetaLog, count: int, brokers: tuple[str, ...]) -> None:
    request = TopicRequest(partitions=count)
    meta.submit(lambda state: decide_put_topic(state, "t", request, brokers, "id", 1))
    meta.submit_groups(lambda meta: decide_put_group(meta.groups, f"group-{count}", GroupRequest(), 1))


def test_spark_1_partitions_keep_their_numbers_when_brokers_and_partitions_are_added(filled: Filled) -> None:
    meta = MetaLog(filled.warehouse)
    for count, brokers in ((2, ("b", "c")), (5, ("a", "b", "c"))):
        _grow(meta, count, brokers)
    names = [p.ref.name for p in Catalog(storage(filled.uri)).partitions("t")]
    assert names[:2] == ["t@b", "t@c"]
    assert len(names) == 5


def test_meta_3_where_there_is_metadata_a_folder_alone_is_no_topic(filled: Filled) -> None:
    MetaLog(filled.warehouse)
    filled.append("left", "left@broker-a", b"x")
    catalog = Catalog(storage(filled.uri))
    assert catalog.topics() == []
    with pytest.raises(NotFound):
        catalog.partitions("left")


def test_a_topic_whose_tables_do_not_exist_yet_is_empty(filled: Filled) -> None:
    meta = MetaLog(filled.warehouse)
    meta.submit(lambda state: decide_put_topic(state, "t", TopicRequest(partitions=2), ("a", "b"), "id", 1))
    assert _resolve(filled, topic="t") == []


@pytest.mark.parametrize(
    ("minimum", "rows_max", "parts"), [(None, None, 3), (3, None, 3), (6, None, 6), (99, None, 18), (None, 4, 6)]
)
def test_spark_1_ranges_are_cut_for_parallelism_and_lose_nothing(
    orders: Filled, minimum: int | None, rows_max: int | None, parts: int
) -> None:
    ranges = _resolve(orders, topic="orders")
    cut = split(ranges, partitions_min=minimum, rows_max=rows_max)
    assert len(cut) == parts
    assert rows_max is None or max(r.rows for r in cut) <= rows_max
    covered = [(r.partition.ref.name, offset) for r in cut for offset in range(r.start, r.stop)]
    assert sorted(covered) == sorted((r.partition.ref.name, o) for r in ranges for o in range(r.start, r.stop))
    for piece in cut:
        assert piece.files[0].start <= piece.start
        assert piece.files[-1].end >= piece.stop


def test_nothing_to_read_is_cut_into_nothing() -> None:
    assert split([], partitions_min=8, rows_max=5) == []


# Time travel ----------------------------------------------------------------------------------------------------------


def test_spark_04_a_topic_as_it_was_at_an_offset(orders: Filled) -> None:
    at = f'{{"orders": {{"{A}": 7, "1": 0, "2": 3}}}}'
    assert _shown(_resolve(orders, topic="orders", asOfOffset=at)) == {A: (0, 7), MORE: (0, 3)}
    assert _shown(_resolve(orders, topic="other", asOfOffset="1")) == {"other@broker-a": (0, 1)}
    with pytest.raises(Refused, match="asOfOffset: one number is for one partition"):
        _resolve(orders, topic="orders", asOfOffset="3")
    with pytest.raises(Refused, match="asOfOffset names offset 2, the partition ends at 1"):
        _resolve(orders, topic="other", asOfOffset="2", failOnDataLoss="false")


def test_spark_04_a_topic_as_it_was_at_a_time_in_all_partitions(orders: Filled) -> None:
    log = orders.append("orders", A, b"later")
    moment = log.files[-1].append_min_us
    next_millisecond()
    iso = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=moment)).isoformat()
    orders.append("orders", B, b"later")
    before = {A: (0, 10), B: (0, 5), MORE: (0, 3)}
    assert _shown(_resolve(orders, topic="orders", asOfTime=iso)) == before
    after = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=moment + 1)).isoformat()
    assert _shown(_resolve(orders, topic="orders", asOfTime=after)) == before | {A: (0, 11)}
    assert _resolve(orders, topic="orders", asOfTime="1000") == []
    with pytest.raises(Refused, match="asOfTime: lies in the future"):
        _resolve(orders, topic="orders", asOfTime="32503680000000")


def test_spark_04_what_retention_took_is_missed_unless_it_may_be(orders: Filled) -> None:
    assert orders.append("orders", A, b"x").delete_below(5).messages == 5
    at = f'{{"orders": {{"{A}": 8}}}}'
    only = {"assign": f'{{"orders": ["{A}"]}}', "asOfOffset": at}
    with pytest.raises(Refused, match=r"this state is incomplete: retention has removed offsets \[0, 5\)"):
        _resolve(orders, **only)
    assert _shown(_resolve(orders, **only, failOnDataLoss="false")) == {A: (5, 8)}
    start = f'{{"orders": {{"{A}": 6}}}}'
    assert _shown(_resolve(orders, **only, startingOffsets=start)) == {A: (6, 8)}
