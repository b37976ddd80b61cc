"""Batch reads of static topics by logical queue and logical offset (SPEC STATIC-13 to 15, SPARK-4)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from deltamq.jobs.read.offset_range import resolve, split
from deltamq.jobs.read.options import parse_options
from deltamq.jobs.read.range_reader import RangePartition, RangeRows
from deltamq.jobs.read.row_format import schema_of
from deltamq.jobs.read.stored_partition import OffsetRange
from deltamq.jobs.read.topics import Catalog
from deltamq.jobs.tasks.warehouse_files import storage
from deltamq.mq.errors import DeltaMQError, Refused, Unavailable, Unprocessable
from deltamq.mq.static.mappings import MappingRemoved
from deltamq.mq.static.queue_names import queue_name
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.settings import LogSettings
from tests.static_tables import TOPIC, StaticTables

Q0, Q1 = queue_name(0), queue_name(1)


@pytest.fixture
def orders(tmp_path: Path) -> Iterator[StaticTables]:
    """Queue 0 has 5 messages on A, 3 on B, and 4 on A behind a hole; queue 1 has 2 on B."""
    warehouse = Warehouse.open(str(tmp_path), settings=LogSettings(row_group_rows=4))
    made = StaticTables(warehouse)
    made.send(0, 5)
    made.send(1, 2)
    made.remap(["B"], "strict", [0])
    made.send(0, 3)
    made.remap(["A"], "available", [0], seal=False)
    assert made.send(0, 4) == [-1] * 4
    made.seal()
    yield made
    warehouse.close()


def _resolve(orders: StaticTables, **options: str) -> list[OffsetRange]:
    uri = orders.warehouse.store.uri("")
    return resolve(Catalog(storage(uri)), parse_options({"topic": TOPIC} | options, warehouse=uri))


def _read(orders: StaticTables, **options: str) -> list[tuple[str, int, str]]:
    """Return queue, offset and body of every row, as tasks read them."""
    uri = orders.warehouse.store.uri("")
    parsed = parse_options({"topic": TOPIC} | options, warehouse=uri)
    rows = RangeRows(parsed, schema_of(parsed))
    found = []
    for one in split(resolve(Catalog(storage(uri)), parsed), partitions_min=7, rows_max=None):
        for batch in rows.read(RangePartition(one)):
            columns = (batch.column(name).to_pylist() for name in ("partition", "offset", "body"))
            found += [(name, at, body.decode()) for name, at, body in zip(*columns, strict=True)]
    return found


def _bodies(orders: StaticTables, **options: str) -> list[str]:
    return [body for _, _, body in _read(orders, **options)]


def test_static_15_a_topic_is_read_by_logical_queue_and_logical_offset(orders: StaticTables) -> None:
    found = _read(orders)
    assert [body for _, _, body in found] == orders.sent[0] + orders.sent[1]
    assert [(name, at) for name, at, _ in found] == [
        *((Q0, at) for at in [*range(8), *range(10_000, 10_004)]),
        *((Q1, at) for at in range(2)),
    ]


def test_static_2_kafkas_numbers_are_the_queues(orders: StaticTables) -> None:
    assert [(one.partition.number, one.rows) for one in _resolve(orders)] == [(0, 5), (0, 3), (0, 4), (1, 2)]
    uri = orders.warehouse.store.uri("")
    parsed = parse_options({"assign": '{"orders": [1]}'}, warehouse=uri)
    assert [one.partition.name for one in resolve(Catalog(storage(uri)), parsed)] == [Q1]


@pytest.mark.parametrize(
    ("start", "stop", "bodies"),
    [
        (3, 7, ["0-3", "0-4", "0-5", "0-6"]),
        (5, 6, ["0-5"]),
        (8, 10_001, ["0-8"]),
        (4_000, 10_002, ["0-8", "0-9"]),
        (2, 9_000, ["0-2", "0-3", "0-4", "0-5", "0-6", "0-7"]),
        (8_000, 9_000, []),
    ],
)
def test_static_14_a_range_may_begin_and_end_in_a_hole(
    orders: StaticTables, start: int, stop: int, bodies: list[str]
) -> None:
    told = {
        "startingOffsets": json.dumps({TOPIC: {Q0: start, "1": 2}}),
        "endingOffsets": json.dumps({TOPIC: {"0": stop, Q1: 2}}),
    }
    assert _bodies(orders, **told) == bodies


def test_static_22_segments_cannot_be_named_and_the_error_names_the_queue(orders: StaticTables) -> None:
    offsets = json.dumps({TOPIC: {"orders@A": 1, Q1: 0}})
    for options in ({"startingOffsets": offsets}, {"endingOffsets": offsets}, {"asOfOffset": offsets}):
        with pytest.raises(Unprocessable, match=Q0) as caught:
            _resolve(orders, **options)
        assert (caught.value.code, caught.value.field) == ("physical_partition", next(iter(options)))
    uri = orders.warehouse.store.uri("")
    assigned = parse_options({"assign": '{"orders": ["orders@A"]}'}, warehouse=uri)
    with pytest.raises(Unprocessable, match=Q0):
        resolve(Catalog(storage(uri)), assigned)


def test_static_22_an_unknown_queue_is_refused(orders: StaticTables) -> None:
    uri = orders.warehouse.store.uri("")
    for name in (queue_name(7), "7", "orders@Z"):
        with pytest.raises(DeltaMQError, match=r"7@|'7'|orders@Z") as caught:
            resolve(Catalog(storage(uri)), parse_options({"assign": json.dumps({TOPIC: [name]})}, warehouse=uri))
        assert caught.value.code == "partition_not_found"


def test_static_22_a_queue_whose_mapping_is_lost_fails_the_read(orders: StaticTables) -> None:
    lost = MappingRemoved(topic_id=orders.topic.id, holder=orders.queues[1].leader.broker)
    orders.meta.submit_any(lambda _: (lost,))
    with pytest.raises(Unavailable) as caught:
        _resolve(orders)
    assert caught.value.code == "queue_unserved"


def test_static_10_an_undecided_leader_is_not_read(orders: StaticTables) -> None:
    orders.remap(["A"], "available", [1], seal=False)
    orders.send(1, 3)
    assert [body for name, _, body in _read(orders) if name == Q1] == ["1-0", "1-1"]
    orders.seal()
    assert [(at, body) for name, at, body in _read(orders) if name == Q1][2:] == [
        (10_000, "1-2"),
        (10_001, "1-3"),
        (10_002, "1-4"),
    ]


def test_static_12_a_leader_without_messages_has_no_table_and_no_range(orders: StaticTables) -> None:
    orders.remap(["A"], "strict", [1])
    uri = orders.warehouse.store.uri("")
    ranges = resolve(Catalog(storage(uri)), parse_options({"topic": TOPIC}, warehouse=uri), empty=True)
    assert [one.partition.ref.name for one in ranges] == ["orders@A", "orders#2@B", "orders#3@A", "orders#1@B"]


def test_spark_4_time_travel_is_by_logical_offset(orders: StaticTables) -> None:
    def as_of(offset: int) -> list[str]:
        return _bodies(orders, asOfOffset=json.dumps({TOPIC: {Q0: offset, Q1: 0}}))

    assert as_of(6) == orders.sent[0][:6]
    assert as_of(9_999) == orders.sent[0][:8]
    assert as_of(10_004) == orders.sent[0]
    with pytest.raises(Refused, match="ends at 10004"):
        as_of(10_005)


def test_static_15_a_time_is_the_smallest_logical_offset_at_or_after_it(orders: StaticTables) -> None:
    times = []
    for segment in orders.queues[0].segments:
        log = orders.log(segment.partition)
        times.append(log.files[0].append_min_us)
    for at_us, first in zip(times, (0, 5, 10_000), strict=True):
        moment = datetime.fromtimestamp(at_us / 1e6, UTC).isoformat()
        before = [at for name, at, _ in _read(orders, asOfTime=moment) if name == Q0]
        assert len(before) == sum(offset < first for offset in [*range(8), *range(10_000, 10_004)])


def test_static_17_removed_messages_are_missed_and_holes_are_not(orders: StaticTables) -> None:
    orders.log("orders@A").delete_below(5)
    assert _bodies(orders) == orders.sent[0][5:] + orders.sent[1]
    start = {"startingOffsets": json.dumps({TOPIC: {Q0: 2, Q1: 0}})}
    with pytest.raises(Refused, match=r"offsets \[2, 10004\) were requested"):
        _read(orders, **start)
    assert _bodies(orders, **start, failOnDataLoss="false") == orders.sent[0][5:] + orders.sent[1]
    with pytest.raises(Refused, match=r"removed offsets \[0, 5\)"):
        _read(orders, asOfOffset=json.dumps({TOPIC: {Q0: 8, Q1: 0}}))
    orders.drop(["orders@A"])
    assert _bodies(orders) == orders.sent[0][5:] + orders.sent[1]


def test_static_2_the_catalog_lists_segments_in_the_order_of_their_queues(orders: StaticTables) -> None:
    found = Catalog(storage(orders.warehouse.store.uri(""))).partitions(TOPIC)
    assert [(one.name, one.ref.name, one.delta, one.sealed_end) for one in found] == [
        (Q0, "orders@A", 0, 5),
        (Q0, "orders#2@B", 5, 3),
        (Q0, "orders#3@A", 10_000, None),
        (Q1, "orders#1@B", 0, None),
    ]
