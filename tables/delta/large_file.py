"""Encoding of one large file from the rows of several, row group by row group: never all rows are in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from deltamq.mq.limits import MIB
from deltamq.mq.producer import Part
from deltamq.tables.delta.actions import DataFile
from deltamq.tables.delta.encode import (
    Bounds,
    Encoded,
    bounds_of,
    checksums,
    deliver_bounds,
    key_values_of,
    message_writer,
    new_file,
)
from deltamq.tables.delta.typed_stats import NO_STATS, TypedBounds, typed_bounds
from deltamq.tables.typed_row import value_type

#: Size in memory at which a row group is closed: 32,768 rows of a megabyte each would not fit into memory.
GROUP_BYTES_MAX: Final = 64 * MIB


def encode_large_file(
    tables: Iterable[pa.Table], parts: Sequence[Part], *, batch_id: str, now_ms: int, row_group_rows: int
) -> Encoded:
    """Encode adjacent rows, given as tables of any size, as `tables.delta.encode.encode_file` would.

    The offsets are checked: they must grow by one.
    """
    sink = pa.BufferOutputStream()
    footer: list[pq.FileMetaData] = []
    facts = _Facts()
    tables = iter(tables)
    first = [next(tables)]
    with message_writer(sink, footer, first[0].schema) as writer:
        for group in _grouped(_resumed(first, tables), row_group_rows):
            facts.add(group)
            writer.write_table(group, row_group_size=row_group_rows)
            del group  # before the next one is read
        key_values = key_values_of(parts)
        if key_values:
            writer.add_key_value_metadata(dict(key_values))
    data = sink.getvalue()
    return Encoded(data, facts.file(len(data), checksums(data, footer[0]), batch_id, now_ms), facts.rows_bytes)


def _resumed(first: list[pa.Table], tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Yield the tables from the first one on, which is not kept."""
    yield first.pop()
    yield from tables


def _grouped(tables: Iterable[pa.Table], rows_max: int) -> Iterator[pa.Table]:
    """Yield the same rows in row groups, each but the last as large as allowed; a row is never divided."""
    waiting: list[pa.Table] = []
    rows = size = 0
    for table in tables:
        while table.num_rows:
            waiting.append(_first_rows(table, rows_max - rows, GROUP_BYTES_MAX - size))
            table = table.slice(waiting[-1].num_rows)
            rows, size = rows + waiting[-1].num_rows, size + waiting[-1].nbytes
            if rows == rows_max or size >= GROUP_BYTES_MAX:
                yield pa.concat_tables(waiting)
                waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.concat_tables(waiting)


def _first_rows(table: pa.Table, rows_max: int, bytes_max: int) -> pa.Table:
    """Return the first rows, at most so many rows and bytes, but one at least."""
    rows = table.slice(0, rows_max)
    # Halved, as only the bytes of whole columns are known: the next call adds to what is too little.
    while rows.num_rows > 1 and rows.nbytes > bytes_max:
        rows = rows.slice(0, rows.num_rows // 2)
    return rows


class _Facts(msgspec.Struct):
    """What the commit says about the rows, collected group by group."""

    start: int = -1
    end: int = -1
    rows_bytes: int = 0
    born: Bounds | None = None
    append: Bounds | None = None
    deliver: Bounds | None = None
    typed: TypedBounds | None = None
    #: Whether every row has a deliver time.
    delivered: bool = True

    def add(self, rows: pa.Table) -> None:
        offsets = rows.column("offset")
        first, last = offsets[0].as_py(), offsets[-1].as_py()
        assert last - first + 1 == rows.num_rows and self.end in (-1, first), "rows are not adjacent"
        self.start, self.end = first if self.end < 0 else self.start, last + 1
        self.rows_bytes += rows.nbytes
        self.born = _wider(self.born, bounds_of(rows.column("born_time")))
        self.append = _wider(self.append, bounds_of(rows.column("append_time")))
        deliver = deliver_bounds(rows.column("deliver_time"))
        self.deliver = None if deliver is None else _wider(self.deliver, deliver)
        self.delivered &= deliver is not None
        if value_type(rows.schema) is not None:
            typed = typed_bounds(rows)
            self.typed = typed if self.typed is None else self.typed.joined(typed)

    def file(self, size: int, crc: str, batch_id: str, now_ms: int) -> DataFile:
        assert self.born is not None and self.append is not None, "an empty file would have no offsets"
        return new_file(
            self.start,
            self.end - self.start,
            born=self.born,
            append=self.append,
            deliver=self.deliver if self.delivered else None,
            typed=NO_STATS if self.typed is None else self.typed.stats(),
            size=size,
            crc=crc,
            batch_id=batch_id,
            now_ms=now_ms,
        )


def _wider(known: Bounds | None, more: Bounds) -> Bounds:
    return more if known is None else (min(known[0], more[0]), max(known[1], more[1]))
