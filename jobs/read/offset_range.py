"""The offsets and partitions that a read covers, resolved once against the tables.

Tables are only read: there is no probe and no file is written, so a reader needs no write permission.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, pairwise

from deltamq.jobs.read.options import EARLIEST, LATEST, Bound, ReadOptions, Strategy
from deltamq.jobs.read.stored_partition import OffsetRange, OpenedTables, StoredPartition, StoredTable, TimeSearch
from deltamq.jobs.read.topics import Catalog, TopicPartition
from deltamq.mq.errors import NotFound, Refused
from deltamq.tables.clock import SYSTEM_CLOCK
from deltamq.tables.store.store import Store

#: The stored offsets `[low, end)` of each table of some topics, by topic and table.
States = Mapping[str, Mapping[str, tuple[int, int]]]


def resolve(
    catalog: Catalog,
    options: ReadOptions,
    *,
    empty: bool = False,
    states: States | None = None,
    opened: OpenedTables | None = None,
) -> list[OffsetRange]:
    """Return the range of each partition that the options select, as the tables are now.

    Parameters
    ----------
    catalog
        The topics as of now.
    empty
        Whether ranges without rows are returned as well.
    states
        The states of the topics to read; None: as the tables are now.
    opened
        The tables that were opened already, which get those that are opened here.

    Raises
    ------
    NotFound
        A named topic or partition does not exist.
    Refused
        A bound is missing for a partition, names a partition that is not read, or lies outside the stored offsets
        (the last case only with `failOnDataLoss`).
    """
    store = catalog.store
    check_queue_names(catalog, options)
    partitions = list(selected(catalog, options))
    check_named(options.start, "startingOffsets", partitions)
    check_named(options.end, "asOfOffset" if options.as_of else "endingOffsets", partitions)
    if options.as_of:
        _check_as_of(options.end, partitions)
    search = TimeSearch(store)
    return [
        selected_range
        for stored in stored_partitions(store, partitions, states, opened)
        for selected_range in stored.ranges(*_bounds(stored, options, search), empty=empty)
    ]


def stored_partitions(
    store: Store,
    partitions: Sequence[TopicPartition],
    states: States | None = None,
    opened: OpenedTables | None = None,
) -> Iterator[StoredPartition]:
    """Yield the content of each partition that readers see; a partition without any table (yet) is left out."""
    opened = opened or OpenedTables(store)
    for _, segments in groupby(partitions, key=lambda partition: partition.key):
        tables: dict[TopicPartition, StoredTable | None] = {}
        for segment in segments:
            state = None if states is None else states.get(segment.ref.topic, {}).get(segment.ref.name)
            table = opened.up_to(segment, state[1] if state else 0)
            tables[segment] = table if table is None or states is None else table.as_of(state)
        if any(tables.values()):
            yield StoredPartition(
                tuple(table or StoredTable.without_files(segment) for segment, table in tables.items())
            )


def check_queue_names(catalog: Catalog, options: ReadOptions) -> None:
    """Refuse options that name segments of logical queues: readers name the queues (SPEC STATIC-22)."""
    existing = set(catalog.topics())
    for option, names in (
        ("assign", options.assigned),
        ("startingOffsets", options.start.each),
        ("asOfOffset" if options.as_of else "endingOffsets", options.end.each),
    ):
        for topic in names.keys() & existing:
            catalog.check_names(topic, names[topic], option)


def selected(catalog: Catalog, options: ReadOptions) -> Iterator[TopicPartition]:
    """Yield the partitions that the options select; raise `NotFound` for a topic or partition that does not exist."""
    return (table for table in _selected(catalog, options) if table.ref.folder not in options.excepted)


def _selected(catalog: Catalog, options: ReadOptions) -> Iterator[TopicPartition]:
    if options.strategy is Strategy.ASSIGN:
        for topic, names in options.assigned.items():
            yield from _assigned(topic, names, catalog.partitions(topic))
        return
    topics = options.topics
    if options.strategy is Strategy.PATTERN:
        topics = tuple(topic for topic in catalog.topics() if re.fullmatch(options.pattern, topic))
    for topic in topics:
        yield from catalog.partitions(topic)


def _assigned(topic: str, names: Sequence[str], partitions: Sequence[TopicPartition]) -> Iterator[TopicPartition]:
    known = {name: partition.name for partition in partitions for name in partition.names}
    for name in names:
        if name not in known:
            have = ", ".join(dict.fromkeys(partition.name for partition in partitions))
            raise NotFound(
                f"option assign: topic {topic!r} has no partition {name!r}; it has {have}",
                code="partition_not_found",
                field="assign",
            )
    for wanted in dict.fromkeys(known[name] for name in names):
        yield from (partition for partition in partitions if partition.name == wanted)


def check_named(bound: Bound, option: str, partitions: Sequence[TopicPartition]) -> None:
    """Refuse bounds by partition unless they name exactly the partitions that are read, as Kafka does."""
    if bound.everywhere is not None:
        return
    wanted = {(p.ref.topic, name) for p in partitions for name in p.names}
    option_text = f"option {option} (or its form by timestamp)"
    for topic, values in bound.each.items():
        for name in values:
            if (topic, name) not in wanted:
                raise Refused(
                    f"{option_text}: {name!r} of {topic!r} is not among the partitions that this read selects",
                    code="invalid_option",
                    field=option,
                )
    missing = list(dict.fromkeys(p.name for p in partitions if bound.of(p.ref.topic, p.names) is None))
    if missing:
        raise Refused(
            f"{option_text}: name every partition; missing: {', '.join(missing)} (-2 is the earliest, -1 the latest)",
            code="invalid_option",
            field=option,
        )


def _check_as_of(end: Bound, partitions: Sequence[TopicPartition]) -> None:
    """Refuse one offset for several partitions, and a time in the future: more may be appended until then."""
    if end.everywhere is None:
        return
    if end.by_time:
        if end.everywhere > SYSTEM_CLOCK.wall_us():
            raise Refused(
                "option asOfTime: lies in the future; messages that are appended until then would change the answer",
                code="invalid_option",
                field="asOfTime",
            )
    elif len({partition.key for partition in partitions}) > 1:
        raise Refused(
            'option asOfOffset: one number is for one partition; name each, like {"orders": {"orders@broker-a": 120}}',
            code="invalid_option",
            field="asOfOffset",
        )


def _bounds(stored: StoredPartition, options: ReadOptions, search: TimeSearch) -> tuple[int, int]:
    """The offsets `[start, stop)` by the options; they may lie outside the stored ones."""
    start = offset_of(options.start, stored, search)
    stop = offset_of(options.end, stored, search)
    check_start_found(options, stored, start)
    if options.as_of:
        _check_was(options, stored, stop)
    if options.fail_on_data_loss:
        _check_stored(stored, start, stop)
    return start, stop


def check_start_found(options: ReadOptions, stored: StoredPartition, start: int) -> None:
    """Refuse a starting time after the last message, unless the strategy is `latest`, as Kafka's source does."""
    at_end = options.start.by_time and start == stored.offsets.end
    if at_end and not options.start_latest_when_no_match and stored.has_messages:
        time_us = options.start.of(stored.topic, stored.partition.names)
        raise Refused(
            f"{stored.name}: no message was appended at or after {(time_us or 0) // 1_000} ms; "
            "startingOffsetsByTimestampStrategy=latest starts at the end there",
            code="invalid_option",
            field="startingTimestamp",
        )


def _check_was(options: ReadOptions, stored: StoredPartition, stop: int) -> None:
    """Refuse a state that the partition has not reached yet, or of which retention has removed messages."""
    offsets = stored.offsets
    if stop > offsets.end:
        raise Refused(
            f"{stored.name}: option asOfOffset names offset {stop}, the partition ends at {offsets.end}",
            code="offset_out_of_range",
            field="asOfOffset",
            extra={"min_offset": offsets.first, "max_offset": offsets.end},
        )
    if options.fail_on_data_loss and options.start.everywhere == EARLIEST and offsets.lost(0, stop) > 0:
        missing = min(offsets.whole_from, stop)
        raise Refused(
            f"{stored.name}: this state is incomplete: retention has removed offsets [0, {missing}); "
            "failOnDataLoss=false reads the rest, startingOffsets sets the offset from which no message may be missing",
            code="offset_out_of_range",
            field="asOfTime" if options.end.by_time else "asOfOffset",
            extra={"min_offset": offsets.first, "max_offset": offsets.end},
        )


def offset_of(bound: Bound, stored: StoredPartition, search: TimeSearch) -> int:
    """Return the offset of a bound in a partition; it may lie outside the stored ones."""
    value = bound.of(stored.topic, stored.partition.names)
    assert value is not None, "every partition's bound was checked"
    if bound.by_time:
        return stored.offset_at(value, search)
    return {EARLIEST: stored.offsets.first, LATEST: stored.offsets.end}.get(value, value)


def _check_stored(stored: StoredPartition, start: int, stop: int) -> None:
    offsets = stored.offsets
    if start > stop or start < offsets.first or stop > offsets.end or offsets.lost(start, stop) > 0:
        raise Refused(
            f"{stored.name}: offsets [{start}, {stop}) were requested, [{offsets.whole_from}, {offsets.end}) are "
            "stored; failOnDataLoss=false reads the stored ones",
            code="offset_out_of_range",
            field="startingOffsets",
            extra={"min_offset": offsets.first, "max_offset": offsets.end},
        )


def split(ranges: Sequence[OffsetRange], *, partitions_min: int | None, rows_max: int | None) -> list[OffsetRange]:
    """Cut ranges into at least `partitions_min` pieces (rows permitting), each of at most `rows_max` rows."""
    counts = {id(r): max(1, -(-r.rows // rows_max)) if rows_max else 1 for r in ranges}
    wanted = min(partitions_min or 0, sum(r.rows for r in ranges))
    while sum(counts.values()) < wanted:
        largest = max(ranges, key=lambda r: r.rows / counts[id(r)])
        counts[id(largest)] += 1
    return [piece for r in ranges for piece in _cut(r, counts[id(r)])]


def _cut(whole: OffsetRange, count: int) -> Iterator[OffsetRange]:
    edges = [whole.start + whole.rows * i // count for i in range(count + 1)]
    for start, stop in pairwise(edges):
        yield whole.part(start, stop)
