"""STATIC-2: stored rows are shown with logical queues and logical offsets."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from deltamq.api.wire.message_json import shown_offsets, shown_origins
from deltamq.mq.errors import Unavailable
from deltamq.mq.static.logical_queue import LogicalQueue, SegmentOf
from deltamq.mq.static.segments import UNDECIDED, Segment
from deltamq.tables.schema import ORIGIN

_SCHEMA = pa.schema([("offset", pa.int64()), ("origin", pa.struct(list(ORIGIN)))])


def place(logic_offset: int) -> SegmentOf:
    segment = Segment(gen=1, partition="orders#3@a", logic_offset=logic_offset, start_ms=0, update_ms=0)
    return SegmentOf(LogicalQueue(7, (segment,)), segment)


def rows(*origins: dict[str, Any] | None) -> pa.Table:
    listed = [{"offset": at, "origin": origin} for at, origin in enumerate(origins)]
    half = len(listed) // 2
    return pa.Table.from_batches(
        [pa.RecordBatch.from_pylist(part, schema=_SCHEMA) for part in (listed[:half], listed[half:])], schema=_SCHEMA
    )


def origin(topic: str, partition: str, offset: int) -> dict[str, Any]:
    return {"topic": topic, "partition": partition, "offset": offset}


def test_static_02_offsets_are_shown_by_one_addition_over_all_rows() -> None:
    table = rows(None, None, None)
    assert shown_offsets(table, place(400)).column("offset").to_pylist() == [400, 401, 402]
    assert shown_offsets(table, place(0)) is table
    assert shown_offsets(table, place(400)).schema == table.schema


def test_static_10_offsets_that_are_not_decided_are_never_shown_as_0() -> None:
    with pytest.raises(Unavailable) as caught:
        shown_offsets(rows(None), place(UNDECIDED))
    assert caught.value.code == "logic_offset_undecided"


def test_static_18_origins_of_static_topics_are_logical_and_others_stay() -> None:
    places = {("orders", "orders#3@a"): place(400)}
    table = rows(
        origin("orders", "orders#3@a", 5),
        None,
        origin("orders", "gone@a", 6),
        origin("plain", "plain@a", 7),
        origin("orders", "orders#3@a", 8),
    )
    found = shown_origins(table, lambda topic, partition: places.get((topic, partition)))
    assert found.column("origin").to_pylist() == [
        origin("orders", "7@__logical_queue_broker__", 405),
        None,
        origin("orders", "gone@a", 6),
        origin("plain", "plain@a", 7),
        origin("orders", "7@__logical_queue_broker__", 408),
    ]
    assert found.schema == table.schema and found.column("offset") == table.column("offset")


def test_static_18_rows_without_origins_stay_as_they_are() -> None:
    for table in (rows(), rows(None, None)):
        assert shown_origins(table, lambda *_: place(400)) is table
