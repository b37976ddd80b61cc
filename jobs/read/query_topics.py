"""What one query reads: the state of its topics on which its tasks agree, cut into as many shares as were planned.

    planned once          share 0 of k        share 1 of k     ...
    each query, anew      [ all rows of the topics as they are at the query's first look ]
                          └ share 0 ┘└ share 1 ┘└ ...

All scans of a query see one state of a topic, whatever their options (SPEC SPARK-13).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import msgspec
from pyspark.sql.datasource import InputPartition

from jobs.read.offset_range import resolve, selected, split, stored_partitions
from jobs.read.options import ReadOptions
from jobs.read.stored_partition import OffsetRange, StoredTable
from jobs.read.topics import Catalog, TopicPartition
from jobs.tasks import agreed, current_query, storage
from tables.clock import SYSTEM_CLOCK
from tables.paths import PartitionRef, Space
from tables.store import Store

__all__ = ["SharePartition", "plan_shares", "ranges_of_share"]

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
    def of(cls, found: OffsetRange) -> _Piece:
        where = found.partition
        ref = where.ref
        names = ref.topic, ref.name, ref.generation
        return cls(*names, where.number, where.queue, where.delta, where.sealed_end, found.start, found.stop)

    @property
    def partition(self) -> TopicPartition:
        ref = PartitionRef(Space.TOPICS, self.topic, self.table, self.generation)
        return TopicPartition(ref, self.number, queue=self.queue, delta=self.delta, sealed_end=self.sealed_end)


_pieces: Final = msgspec.json.Decoder(list[_Piece])
_states: Final = msgspec.json.Decoder(_State)


@dataclass
class SharePartition(InputPartition):
    """What a task reads: one of `count` equal shares of whatever there is when its query runs."""

    plan: str
    number: int
    count: int


def plan_shares(options: ReadOptions, *, rows_max: int) -> list[InputPartition]:
    """Return the tasks of a read; their number follows from what is stored now, and is all that they keep of it.

    Raises
    ------
    DeltaMQError
        What `resolve` raises, so that wrong options and topics that do not exist are known before any task runs.
    """
    catalog = Catalog(storage(options.warehouse))
    ranges = resolve(catalog, options, empty=True)
    catalog.check_readable((one.partition for one in ranges), SYSTEM_CLOCK.wall_us() // 1_000)
    most = min(options.records_per_partition_max or rows_max, rows_max)
    count = max(1, len(split(ranges, partitions_min=options.partitions_min, rows_max=most)))
    plan = uuid.uuid4().hex
    return [SharePartition(plan, number, count) for number in range(count)]


def ranges_of_share(options: ReadOptions, share: SharePartition) -> Iterator[OffsetRange]:
    """Yield the ranges of a share in the query that runs here, each with the files that hold it now."""
    store, query = storage(options.warehouse), current_query(share.plan)

    def resolved() -> bytes:
        catalog = Catalog(store)
        states = {
            name: _states.decode(agreed(store, query, f"topic {name}", partial(_state, catalog, name)))
            for name in _topics(catalog, options)
        }
        cut = [found for found in resolve(catalog, options, states=states) if found.rows]
        catalog.check_readable((one.partition for one in cut), SYSTEM_CLOCK.wall_us() // 1_000)
        return msgspec.json.encode([_Piece.of(found) for found in cut])

    pieces = _pieces.decode(agreed(store, query, f"read {_said(options)}", resolved))
    for piece, start, stop in _cut(pieces, share):
        yield _with_files(store, piece.partition, start, stop)


def _topics(catalog: Catalog, options: ReadOptions) -> Sequence[str]:
    return list(dict.fromkeys(one.ref.topic for one in selected(catalog, options)))


def _state(catalog: Catalog, topic: str) -> bytes:
    """Return what is stored of a topic now."""
    stored = stored_partitions(catalog.store, catalog.partitions(topic))
    tables = (table for partition in stored for table in partition.tables if table.exists)
    return msgspec.json.encode({table.partition.ref.name: (table.low, table.end) for table in tables})


def _said(options: ReadOptions) -> str:
    """Return what decides which rows a read covers, as text."""
    said = replace(options, columns=(), filter="", headers=True)
    return repr(replace(said, partitions_min=None, records_per_partition_max=None))


def _cut(pieces: Sequence[_Piece], share: SharePartition) -> Iterator[tuple[_Piece, int, int]]:
    """Yield the parts of a share: the rows of all pieces, one after the other, are cut into equal parts."""
    total = sum(piece.stop - piece.start for piece in pieces)
    low, high = total * share.number // share.count, total * (share.number + 1) // share.count
    at = 0
    for piece in pieces:
        rows = piece.stop - piece.start
        start, stop = max(low - at, 0), min(high - at, rows)
        if start < stop:
            yield piece, piece.start + start, piece.start + stop
        at += rows


def _with_files(store: Store, partition: TopicPartition, start: int, stop: int) -> OffsetRange:
    table = StoredTable.load(store, partition)
    if table is None:
        return OffsetRange(partition=partition, start=start, stop=stop, files=())  # its reader says that it is gone
    return table.range(start, stop)
