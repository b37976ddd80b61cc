"""The offsets and partitions that a read covers, resolved once against the tables.

Tables are only read: there is no probe and no file is written, so a reader needs no write permission.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from jobs.read.options import EARLIEST, LATEST, Bound, ReadOptions, Strategy
from jobs.read.topics import Catalog, TopicPartition
from mq.errors import NotFound, Refused
from mq.limits import MIB
from tables.clock import SYSTEM_CLOCK
from tables.delta import DataFile, FileReader, PartitionNotFound, RowCache, load
from tables.log import offset_at
from tables.store import Store

__all__ = ["OffsetRange", "check_named", "check_start_found", "offset_of", "resolve", "selected", "split"]

#: Cache of row groups for finding an offset by time.
_CACHE_BYTES: Final = 64 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange:
    """Offsets `[start, stop)` of a partition, and the live files that hold them."""

    partition: TopicPartition
    start: int
    stop: int
    files: tuple[DataFile, ...]

    @property
    def rows(self) -> int:
        """The number of rows that it covers."""
        return self.stop - self.start

    def part(self, start: int, stop: int) -> OffsetRange:
        """Return the part `[start, stop)` of this range."""
        assert self.start <= start <= stop <= self.stop
        files = tuple(f for f in self.files if f.start < stop and f.end > start)
        return replace(self, start=start, stop=stop, files=files)


def resolve(store: Store, options: ReadOptions, *, empty: bool = False) -> list[OffsetRange]:
    """Return the range of each partition that the options select, as the tables are now.

    Parameters
    ----------
    empty
        Whether ranges without rows are returned as well.

    Raises
    ------
    NotFound
        A named topic or partition does not exist.
    Refused
        A bound is missing for a partition, names one that is not read, or lies outside the stored offsets
        (the last one only with `failOnDataLoss`).
    """
    partitions = list(selected(Catalog(store), options))
    check_named(options.start, "startingOffsets", partitions)
    check_named(options.end, "asOfOffset" if options.as_of else "endingOffsets", partitions)
    if options.as_of:
        _check_as_of(options.end, partitions)
    cache = RowCache(_CACHE_BYTES)
    ranges = [_range(store, partition, options, cache) for partition in partitions]
    return [found for found in ranges if found is not None and (empty or found.rows)]


def selected(catalog: Catalog, options: ReadOptions) -> Iterator[TopicPartition]:
    """Yield the partitions that the options select; raise `NotFound` for a topic or partition that does not exist."""
    if options.strategy is Strategy.ASSIGN:
        for topic, names in options.assigned.items():
            yield from _assigned(topic, names, catalog.partitions(topic))
        return
    topics = options.topics
    if options.strategy is Strategy.PATTERN:
        topics = tuple(topic for topic in catalog.topics() if re.fullmatch(options.pattern, topic))
    for topic in topics:
        yield from catalog.partitions(topic)


def _assigned(topic: str, names: Sequence[str], found: Sequence[TopicPartition]) -> Iterator[TopicPartition]:
    known = {name: partition for partition in found for name in partition.names}
    for name in names:
        if name not in known:
            have = ", ".join(partition.ref.name for partition in found)
            raise NotFound(
                f"option assign: topic {topic!r} has no partition {name!r}; it has {have}",
                code="partition_not_found",
                field="assign",
            )
    yield from dict.fromkeys(known[name] for name in names)


def check_named(bound: Bound, option: str, partitions: Sequence[TopicPartition]) -> None:
    """Refuse bounds for each partition unless they name all partitions that are read and no others, as Kafka does."""
    if bound.everywhere is not None:
        return
    wanted = {(p.ref.topic, name) for p in partitions for name in p.names}
    told = f"option {option} (or its form by timestamp)"
    for topic, values in bound.each.items():
        for name in values:
            if (topic, name) not in wanted:
                raise Refused(f"{told}: {name!r} of {topic!r} is not read", code="invalid_option", field=option)
    missing = [p.ref.name for p in partitions if bound.of(p.ref.topic, p.names) is None]
    if missing:
        raise Refused(
            f"{told}: name every partition; missing: {', '.join(missing)} (-2 is the earliest, -1 the latest)",
            code="invalid_option",
            field=option,
        )


def _check_as_of(end: Bound, partitions: Sequence[TopicPartition]) -> None:
    """Refuse one offset for several partitions, and a time in the future: more may be appended before it."""
    if end.everywhere is None:
        return
    if end.by_time:
        if end.everywhere > SYSTEM_CLOCK.wall_us():
            raise Refused(
                "option asOfTime: lies in the future; messages that are appended until then would change the answer",
                code="invalid_option",
                field="asOfTime",
            )
    elif len(partitions) > 1:
        raise Refused(
            'option asOfOffset: one number is for one partition; name each, like {"orders": {"orders@broker-a": 120}}',
            code="invalid_option",
            field="asOfOffset",
        )


def _range(store: Store, partition: TopicPartition, options: ReadOptions, cache: RowCache) -> OffsetRange | None:
    """Return the partition's range; None if its table does not exist (yet)."""
    try:
        snapshot = load(store, partition.ref.folder)
    except PartitionNotFound:
        return None
    low, end = snapshot.min_offset, snapshot.end_offset
    reader = FileReader(store, partition.ref.folder, cache)
    start = offset_of(options.start, partition, snapshot.files, reader, (low, end))
    stop = offset_of(options.end, partition, snapshot.files, reader, (low, end))
    check_start_found(options, partition, start, end, snapshot.files)
    if options.as_of:
        _check_was(options, partition, stop, low, end)
    if options.fail_on_data_loss:
        _check_stored(partition, start, stop, low, end)
    start = max(low, min(start, end))
    stop = max(start, min(stop, end))
    files = tuple(replace(f, stats="") for f in snapshot.files if f.start < stop and f.end > start)
    return OffsetRange(partition=partition, start=start, stop=stop, files=files)


def check_start_found(
    options: ReadOptions, partition: TopicPartition, start: int, end: int, files: Sequence[DataFile]
) -> None:
    """Refuse a starting time after the last message, unless the strategy is `latest`, as Kafka's source does."""
    if options.start.by_time and start == end and not options.start_latest_when_no_match and files:
        time_us = options.start.of(partition.ref.topic, partition.names)
        raise Refused(
            f"{partition.ref.name}: no message was appended at or after {(time_us or 0) // 1_000} ms; "
            "startingOffsetsByTimestampStrategy=latest starts at the end there",
            code="invalid_option",
            field="startingTimestamp",
        )


def _check_was(options: ReadOptions, partition: TopicPartition, stop: int, low: int, end: int) -> None:
    """Refuse a state that the partition has not reached yet, or that retention has removed messages of."""
    if stop > end:
        raise Refused(
            f"{partition.ref.name}: option asOfOffset names offset {stop}, the partition ends at {end}",
            code="offset_out_of_range",
            field="asOfOffset",
            extra={"min_offset": low, "max_offset": end},
        )
    missing = min(low, stop)
    if options.fail_on_data_loss and options.start.everywhere == EARLIEST and missing > 0:
        raise Refused(
            f"{partition.ref.name}: this state is incomplete: retention has removed offsets [0, {missing}); "
            "failOnDataLoss=false reads the rest, startingOffsets sets the offset from which all must be there",
            code="offset_out_of_range",
            field="asOfTime" if options.end.by_time else "asOfOffset",
            extra={"min_offset": low, "max_offset": end},
        )


def offset_of(
    bound: Bound,
    partition: TopicPartition,
    files: Sequence[DataFile],
    reader: FileReader,
    stored: tuple[int, int],
) -> int:
    """Return the offset of a bound in a partition that has the offsets `stored`; the result may lie outside them."""
    value = bound.of(partition.ref.topic, partition.names)
    assert value is not None, "every partition's bound was checked"
    if bound.by_time:
        return offset_at(files, reader, value, stored[1])
    return {EARLIEST: stored[0], LATEST: stored[1]}.get(value, value)


def _check_stored(partition: TopicPartition, start: int, stop: int, low: int, end: int) -> None:
    if start > stop or start < low or stop > end:
        raise Refused(
            f"{partition.ref.name}: offsets [{start}, {stop}) were requested, [{low}, {end}) are stored; "
            "failOnDataLoss=false reads what there is",
            code="offset_out_of_range",
            field="startingOffsets",
            extra={"min_offset": low, "max_offset": end},
        )


def split(ranges: Sequence[OffsetRange], *, partitions_min: int | None, rows_max: int | None) -> list[OffsetRange]:
    """Cut ranges into at least `partitions_min` pieces (rows permitting), each of at most `rows_max` rows."""
    counts = {id(r): max(1, -(-r.rows // rows_max)) if rows_max else 1 for r in ranges}
    wanted = min(partitions_min or 0, sum(r.rows for r in ranges))
    while sum(counts.values()) < wanted:
        largest = max(ranges, key=lambda r: r.rows / counts[id(r)])
        counts[id(largest)] += 1
    return [piece for r in ranges for piece in _cut(r, counts[id(r)])]


def _cut(found: OffsetRange, count: int) -> Iterator[OffsetRange]:
    edges = [found.start + found.rows * i // count for i in range(count + 1)]
    for start, stop in pairwise(edges):
        yield found.part(start, stop)
