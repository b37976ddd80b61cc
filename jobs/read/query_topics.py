"""One query's read: its tasks agree on a state of the topics, which is divided among the planned shares.

    planned at 5 million messages        a later query, at 7 million
    share 0  [0, 2m)                     [0, 2m)
    share 1  [2m, 4m)                    [2m, 4m)
    share 2  [4m, ...)                   [4m, 7m)

All scans of a query see one state of a topic, whatever their options (SPEC SPARK-13). The division covers all
later offsets, too, and never changes: Spark computes parts of a cached DataFrame, and of an RDD,
in different jobs, which may see different states. A boundary that moved between them would lose messages, or have
them twice.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Final

import msgspec
from msgspec.structs import replace
from pyspark.sql.datasource import InputPartition

from deltamq.jobs.read.offset_range import resolve, selected, split, stored_partitions
from deltamq.jobs.read.options import ReadOptions, Strategy
from deltamq.jobs.read.stored_partition import OffsetRange, OpenedTables
from deltamq.jobs.read.topics import Catalog, TopicPartition
from deltamq.jobs.tasks.query_values import QueryId, agreed, current_query
from deltamq.jobs.tasks.warehouse_files import storage
from deltamq.tables.clock import SYSTEM_CLOCK
from deltamq.tables.paths import PartitionRef, Space

#: The state of a topic: the stored offsets `[low, end)` of each of its tables, by name.
_State = dict[str, tuple[int, int]]


class _Piece(msgspec.Struct, array_like=True, frozen=True):
    """A range of one table, without its files."""

    topic: str
    table: str
    generation: int
    number: int
    queue: str | None
    delta: int
    sealed_end: int | None
    start: int
    stop: int

    @classmethod
    def of(cls, span: OffsetRange) -> _Piece:
        where = span.partition
        ref = where.ref
        names = ref.topic, ref.name, ref.generation
        return cls(*names, where.number, where.queue, where.delta, where.sealed_end, span.start, span.stop)

    @property
    def partition(self) -> TopicPartition:
        ref = PartitionRef(Space.TOPICS, self.topic, self.table, self.generation)
        return TopicPartition(ref, self.number, queue=self.queue, delta=self.delta, sealed_end=self.sealed_end)


_pieces: Final = msgspec.json.Decoder(list[_Piece])
_states: Final = msgspec.json.Decoder(_State)


class Part(msgspec.Struct, frozen=True):
    """The offsets `[low, high)` of a partition, as readers see them; without `high`, all from `low` on."""

    topic: str
    number: int
    low: int
    high: int | None


@dataclass
class SharePartition(InputPartition):
    """A task's share of the topics, whatever they contain when its query runs."""

    plan: str
    parts: list[Part] = field(default_factory=list)
    #: By topic with parts here: the first number without a part anywhere, this share's turn, the number of turns.
    later: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    #: All topics of the plan, in the share that reads the topics that are made later.
    topics: frozenset[str] | None = None

    def intervals(self, where: TopicPartition) -> list[tuple[int, int | None]]:
        """Return the offsets of a partition that belong to this share, as ranges `[low, high)`."""
        topic = where.ref.topic
        if self.topics is not None and topic not in self.topics:
            return [(0, None)]
        first, turn, turns = self.later.get(topic, (where.number + 1, 0, 1))
        if where.number >= first:
            return [(0, None)] if where.number % turns == turn else []
        return [(part.low, part.high) for part in self.parts if (part.topic, part.number) == (topic, where.number)]


def plan_shares(options: ReadOptions, *, rows_max: int) -> list[SharePartition]:
    """Return the shares of a read, about equal for the messages that are stored now.

    Raises
    ------
    DeltaMQError
        As `resolve` raises it, so that wrong options and missing topics are reported before any task runs.
    """
    catalog = Catalog(storage(options.warehouse))
    if options.excepted:
        return [_share_of_the_rest(catalog, options)]
    ranges = resolve(catalog, options, empty=True)
    catalog.check_readable((table_range.partition for table_range in ranges), SYSTEM_CLOCK.wall_us() // 1_000)
    most = min(options.records_per_partition_max or rows_max, rows_max)
    planned = split(ranges, partitions_min=options.partitions_min, rows_max=most)
    partitions = list(dict.fromkeys((table.ref.topic, table.number) for table in selected(catalog, options)))
    plan = uuid.uuid4().hex
    shares = [SharePartition(plan) for _ in planned] or [SharePartition(plan)]
    starts = _starts(planned)
    turns = itertools.cycle(range(len(shares)))
    for topic, number in partitions:
        begins = starts.get((topic, number)) or [(0, next(turns))]
        edges: list[int | None] = [0, *(low for low, _ in begins[1:]), None]
        for (low, high), (_, share) in zip(itertools.pairwise(edges), begins, strict=True):
            shares[share].parts.append(Part(topic, number, low or 0, high))
    _assign_later(shares)
    if options.strategy is Strategy.PATTERN:
        shares[0].topics = frozenset(topic for topic, _ in partitions)
    return shares


def _share_of_the_rest(catalog: Catalog, options: ReadOptions) -> SharePartition:
    """The share that reads all tables that are not excepted: usually none."""
    topics = _topics(catalog, replace(options, excepted=frozenset()))
    return SharePartition(uuid.uuid4().hex, later=dict.fromkeys(topics, (0, 0, 1)), topics=frozenset(topics))


def _starts(planned: Sequence[OffsetRange]) -> dict[tuple[str, int], list[tuple[int, int]]]:
    """The beginnings of each partition's ranges, in offsets that readers see, each with its share."""
    by_partition: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for share, table_range in enumerate(planned):
        where = table_range.partition
        by_partition.setdefault((where.ref.topic, where.number), []).append((table_range.start + where.delta, share))
    return {key: sorted(starts) for key, starts in by_partition.items()}


def _assign_later(shares: Sequence[SharePartition]) -> None:
    """Partitions that a topic gets later go to its shares in turn."""
    firsts: dict[str, int] = {}
    owners: dict[str, list[SharePartition]] = {}
    for share in shares:
        for topic in dict.fromkeys(part.topic for part in share.parts):
            owners.setdefault(topic, []).append(share)
        for part in share.parts:
            firsts[part.topic] = max(firsts.get(part.topic, 0), part.number + 1)
    for topic, readers in owners.items():
        for turn, share in enumerate(readers):
            share.later[topic] = (firsts[topic], turn, len(readers))


def ranges_of_share(options: ReadOptions, share: SharePartition) -> Iterator[OffsetRange]:
    """Yield the ranges of a share in the running query, each with the files that hold it now."""
    query = current_query(share.plan)
    opened = _opened(options.warehouse, query)
    store = opened.store
    if options.excepted and not any(selected(Catalog(store), options)):
        return  # nothing to agree on

    def resolved() -> bytes:
        catalog = Catalog(store)
        states = {
            name: _states.decode(agreed(store, query, f"topic {name}", partial(_state, catalog, name, opened)))
            for name in _topics(catalog, options)
        }
        ranges = resolve(catalog, options, states=states, opened=opened)
        cut = [table_range for table_range in ranges if table_range.rows]
        catalog.check_readable((table_range.partition for table_range in cut), SYSTEM_CLOCK.wall_us() // 1_000)
        return msgspec.json.encode([_Piece.of(table_range) for table_range in cut])

    pieces = _pieces.decode(agreed(store, query, f"read {_extent(options)}", resolved))
    for piece, start, stop in _cut(pieces, share):
        yield _with_files(opened, piece.partition, start, stop)


def _topics(catalog: Catalog, options: ReadOptions) -> Sequence[str]:
    return list(dict.fromkeys(table.ref.topic for table in selected(catalog, options)))


@lru_cache(maxsize=1)
def _opened(warehouse: str, query: QueryId) -> OpenedTables:
    """Return the tables that this worker has opened for its newest query, of which it runs many tasks."""
    return OpenedTables(storage(warehouse))


def _state(catalog: Catalog, topic: str, opened: OpenedTables) -> bytes:
    stored = stored_partitions(catalog.store, catalog.partitions(topic), opened=opened)
    tables = (table for partition in stored for table in partition.tables if table.exists)
    return msgspec.json.encode({table.partition.ref.name: (table.low, table.end) for table in tables})


def _extent(options: ReadOptions) -> str:
    extent = replace(options, columns=(), filter="", headers=True, typed=False, quarantined=False)
    return repr(replace(extent, partitions_min=None, records_per_partition_max=None))


def _cut(pieces: Sequence[_Piece], share: SharePartition) -> Iterator[tuple[_Piece, int, int]]:
    for piece in pieces:
        for low, high in share.intervals(piece.partition):
            start = max(piece.start, low - piece.delta)
            stop = piece.stop if high is None else min(piece.stop, high - piece.delta)
            if start < stop:
                yield piece, start, stop


def _with_files(opened: OpenedTables, partition: TopicPartition, start: int, stop: int) -> OffsetRange:
    table = opened.up_to(partition, stop)
    if table is None:
        return OffsetRange(partition=partition, start=start, stop=stop, files=())  # the reader reports the loss
    return table.range(start, stop)
