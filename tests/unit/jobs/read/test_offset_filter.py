"""Spark's filters become fewer offsets; what is taken exactly must be exact."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from jobs.read.offset_filter import Kept, OffsetFilter
from jobs.read.options import RowFormat
from jobs.read.stored_partition import OffsetRange
from jobs.read.topics import TopicPartition
from tables.delta.actions import DataFile
from tables.paths import PartitionRef, Space

T0 = datetime(2026, 1, 1, tzinfo=UTC)


def _us(time: datetime) -> int:
    return int(time.timestamp() * 1_000_000)


def _file(start: int) -> DataFile:
    """Ten offsets that were appended in one second, `start` seconds after T0."""
    begin = _us(T0 + timedelta(seconds=start))
    return DataFile(
        path=f"{start}",
        size=1,
        start=start,
        count=10,
        modified_ms=0,
        append_min_us=begin,
        append_max_us=begin + 999_000,
        stats="",
        crc="",
    )


def _range(number: int = 0) -> OffsetRange:
    where = TopicPartition(PartitionRef(Space.TOPICS, "orders", f"orders@{number}"), number)
    return OffsetRange(partition=where, start=5, stop=35, files=tuple(_file(s) for s in (0, 10, 20, 30)))


CASES: dict[str, tuple[Filter, Kept, tuple[int, int] | None]] = {
    "equal": (EqualTo(("offset",), 12), Kept.EXACTLY, (12, 13)),
    "equal, any case": (EqualTo(("Offset",), 12), Kept.EXACTLY, (12, 13)),
    "equal, outside": (EqualTo(("offset",), 4), Kept.EXACTLY, None),
    "greater": (GreaterThan(("offset",), 12), Kept.EXACTLY, (13, 35)),
    "greater or equal": (GreaterThanOrEqual(("offset",), 12), Kept.EXACTLY, (12, 35)),
    "less": (LessThan(("offset",), 12), Kept.EXACTLY, (5, 12)),
    "less or equal": (LessThanOrEqual(("offset",), 12), Kept.EXACTLY, (5, 13)),
    "in": (In(("offset",), (9, 30, 7)), Kept.PARTLY, (7, 31)),
    "in nothing": (In(("offset",), ()), Kept.NOT, (5, 35)),
    "never null": (IsNotNull(("offset",)), Kept.EXACTLY, (5, 35)),
    "null": (IsNull(("offset",)), Kept.NOT, (5, 35)),
    "not": (Not(EqualTo(("offset",), 12)), Kept.NOT, (5, 35)),
    "nested": (EqualTo(("origin", "offset"), 12), Kept.NOT, (5, 35)),
    "another column": (EqualTo(("key",), "k"), Kept.NOT, (5, 35)),
    "topic": (EqualTo(("topic",), "orders"), Kept.EXACTLY, (5, 35)),
    "another topic": (EqualTo(("topic",), "other"), Kept.EXACTLY, None),
    "partition": (In(("partition",), ("orders@0", "x")), Kept.EXACTLY, (5, 35)),
    "another partition": (EqualTo(("partition",), "orders@1"), Kept.EXACTLY, None),
    "partitions below": (LessThan(("partition",), "p"), Kept.NOT, (5, 35)),
    "time from": (GreaterThanOrEqual(("append_time",), T0 + timedelta(seconds=15)), Kept.PARTLY, (20, 35)),
    "time until": (LessThan(("append_time",), T0 + timedelta(seconds=10)), Kept.PARTLY, (5, 10)),
    "time until a part of a millisecond": (
        LessThan(("append_time",), T0 + timedelta(seconds=10, microseconds=456)),
        Kept.PARTLY,
        (5, 20),
    ),
    "time in the future": (GreaterThan(("append_time",), T0 + timedelta(days=1)), Kept.PARTLY, None),
    "time without a zone": (GreaterThan(("append_time",), datetime(2030, 1, 1)), Kept.NOT, (5, 35)),
    "born time": (GreaterThan(("born_time",), T0 + timedelta(days=1)), Kept.NOT, (5, 35)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_filter_narrows_the_range(name: str) -> None:
    found, kept, expected = CASES[name]
    taken = OffsetFilter()
    assert taken.take(found, RowFormat.MESSAGE) is kept
    left = taken.apply([_range()])
    assert [(r.start, r.stop) for r in left] == ([] if expected is None else [expected])
    for r in left:
        assert r.files[0].end > r.start
        assert r.files[-1].start < r.stop


def test_filters_add_up() -> None:
    taken = OffsetFilter()
    for found in (GreaterThan(("offset",), 9), LessThan(("offset",), 14), EqualTo(("partition",), "orders@1")):
        assert taken.take(found, RowFormat.MESSAGE) is Kept.EXACTLY
    assert [(r.partition.number, r.start, r.stop) for r in taken.apply([_range(0), _range(1)])] == [(1, 10, 14)]


def test_in_the_kafka_row_partitions_are_numbers_and_the_time_is_called_timestamp() -> None:
    taken = OffsetFilter()
    assert taken.take(EqualTo(("partition",), 1), RowFormat.KAFKA) is Kept.EXACTLY
    assert taken.take(LessThan(("timestamp",), T0 + timedelta(seconds=10)), RowFormat.KAFKA) is Kept.PARTLY
    assert [(r.partition.number, r.start, r.stop) for r in taken.apply([_range(0), _range(1)])] == [(1, 5, 10)]
