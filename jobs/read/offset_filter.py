"""Spark's filters on a read, turned into fewer offsets, partitions and files.

A filter on `offset`, `topic` or `partition` is applied here completely. A filter on the append time only cuts ranges at
their ends, and Spark checks the rows that remain.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from jobs.read.options import RowFormat
from jobs.read.stored_partition import OffsetRange
from mq.limits import OFFSET_MAX

__all__ = ["Kept", "OffsetFilter"]


class Kept(enum.Enum):
    """How much of a filter was applied."""

    EXACTLY = "exactly"  #: all rows that are read pass it
    PARTLY = "partly"  #: some rows that are read may not pass it
    NOT = "not"  #: it had no effect


class OffsetFilter:
    """The filters so far: an interval of offsets, one of append times, and tests of the partition."""

    def __init__(self) -> None:
        self._low, self._high = 0, OFFSET_MAX
        self._low_us, self._high_us = 0, OFFSET_MAX
        self._partitions: list[Callable[[OffsetRange], bool]] = []

    def take(self, found: Filter, row_format: RowFormat) -> Kept:
        """Narrow this filter by another one, if possible; return how much of that was applied."""
        path: tuple[str, ...] = getattr(found, "attribute", ())
        if len(path) != 1:
            return Kept.NOT
        column = path[0].lower()
        if column in ("offset", "topic", "partition") and isinstance(found, IsNotNull):
            return Kept.EXACTLY
        if column == "offset":
            return self._take_offset(found)
        if column in ("topic", "partition"):
            return self._take_partition(found, column, row_format)
        if column == ("append_time" if row_format is RowFormat.MESSAGE else "timestamp"):
            return self._take_time(found)
        return Kept.NOT

    def apply(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Return the parts of the ranges that pass the filter."""
        left = [self._narrowed(r) for r in ranges if all(test(r) for test in self._partitions)]
        return [r for r in left if r.rows > 0]

    def _take_offset(self, found: Filter) -> Kept:
        bounds = _interval(found)
        if bounds is None:
            return Kept.NOT
        self._low, self._high = max(self._low, bounds[0]), min(self._high, bounds[1])
        # a list of offsets is narrowed to the interval from its least to its greatest
        return Kept.PARTLY if isinstance(found, In) else Kept.EXACTLY

    def _take_partition(self, found: Filter, column: str, row_format: RowFormat) -> Kept:
        if not isinstance(found, EqualTo | In):
            return Kept.NOT
        wanted = set(found.value) if isinstance(found, In) else {found.value}

        def passes(asked: OffsetRange) -> bool:
            where = asked.partition
            if column == "topic":
                return where.ref.topic in wanted
            return (where.number if row_format is RowFormat.KAFKA else where.name) in wanted

        self._partitions.append(passes)
        return Kept.EXACTLY

    def _take_time(self, found: Filter) -> Kept:
        values = found.value if isinstance(found, In) else [getattr(found, "value", None)]
        if not all(isinstance(value, datetime) and value.tzinfo is not None for value in values):
            return Kept.NOT
        bounds = _interval(found, _microseconds)
        if bounds is None:
            return Kept.NOT
        self._low_us, self._high_us = max(self._low_us, bounds[0]), min(self._high_us, bounds[1])
        return Kept.PARTLY

    def _narrowed(self, found: OffsetRange) -> OffsetRange:
        """Cut a range to the interval of offsets, then to files with matching times (append times never decrease)."""
        files = [f for f in found.files if f.append_max_us >= self._low_us and f.append_min_us < self._high_us]
        delta = found.partition.delta  # the filter names offsets as readers see them
        low = max(found.start, self._low - delta, files[0].start if files else found.stop)
        high = min(found.stop, self._high - delta, files[-1].end if files else found.start)
        return found.part(min(low, found.stop), max(min(low, found.stop), high))


def _interval(found: Filter, number: Callable[[Any], int] = int) -> tuple[int, int] | None:
    """Return the interval `[low, high)` of values that pass a filter, None if it is not an interval."""
    if isinstance(found, In):
        values = [number(value) for value in found.value]
        return (min(values), max(values) + 1) if values else None
    if isinstance(found, EqualTo):
        return number(found.value), number(found.value) + 1
    if isinstance(found, GreaterThan):
        return number(found.value) + 1, OFFSET_MAX
    if isinstance(found, GreaterThanOrEqual):
        return number(found.value), OFFSET_MAX
    if isinstance(found, LessThan):
        return 0, number(found.value)
    if isinstance(found, LessThanOrEqual):
        return 0, number(found.value) + 1
    return None


def _microseconds(value: object) -> int:
    assert isinstance(value, datetime)
    return (value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
