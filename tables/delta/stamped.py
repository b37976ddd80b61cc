"""The rows of an append: as they came, with what fills their other columns. Columns are made when they are read.

A small append becomes a file without its columns being made: ids, times, offsets and producers go into the file from
what is known of them (`small_parquet`). Readers and roll-ups take most rows from memory, many appends at a time, and
columns of many appends are made almost as fast as columns of one.

    [ rows of A | what fills them ] [ rows of B | ... ]  --table_of-->  MESSAGE_SCHEMA, or some of its columns

Rows of a typed topic have the columns of `tables.typed_row` behind these.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from deltamq.mq.producer import Earlier
from deltamq.mq.producer import Sequence as MessageSequence
from deltamq.tables.few_rows import repeated_int64s, repeated_texts, text_column, zeros
from deltamq.tables.schema import INTERNAL_SCHEMA, MESSAGE_SCHEMA, TIME
from deltamq.tables.typed_row import TYPED, VALUE, conformed, joined_fields

#: Characters of an append's id with which the ids of its messages begin.
ID_PREFIX: Final = 16
#: Largest number of ids that are made one by one.
_FEW_IDS: Final = 63
#: Number of rows whose digits are kept.
_KEPT_IDS: Final = 4_096
#: Length of the columns of nulls that are kept.
_KEPT_NULLS: Final = 1_500
#: Row counts whose slices of these columns are kept.
_KEPT_COUNTS: Final = 400
_HEX: Final = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)


class ProducerStamp(msgspec.Struct, frozen=True):
    """The producer's request that rows belong to: messages `indexes` of a request of `total`; None for all of them.

    A producer that counts its messages gives a `sequence`; the append finds the request's `seq` (`mq.producer`), which
    follows what it has stored `earlier` in other partitions.
    """

    id: str
    seq: int
    indexes: tuple[int, ...] | None
    total: int
    sequence: MessageSequence | None = None
    earlier: Earlier | None = None


class RowsPart(msgspec.Struct, frozen=True):
    """A run of `count` adjacent rows that came with one request."""

    count: int
    producer: ProducerStamp | None = None


class Stamped:
    """The rows of one append, from offset `start` on. Safe for threads.

    `rows` has any of INTERNAL_SCHEMA's columns, and typed ones. Nulls are filled: a message id from the
    append's id, the born time with the append time, and the number of failed deliveries with 0.
    """

    __slots__ = ("_made", "append_us", "batch_id", "count", "parts", "rows", "start")

    def __init__(
        self, rows: pa.RecordBatch, parts: Sequence[RowsPart], *, batch_id: str, append_us: int, start: int
    ) -> None:
        self.rows = rows
        self.parts = parts
        self.batch_id = batch_id
        self.append_us = append_us
        self.start = start
        self.count: int = rows.num_rows
        self._made: pa.Table | None = None

    @property
    def is_typed(self) -> bool:
        """Whether the rows have typed columns."""
        return bool(self.rows.schema.get_field_index(VALUE) >= 0)

    @property
    def is_made(self) -> bool:
        """Whether the columns were made."""
        return self._made is not None

    def table(self) -> pa.Table:
        """Return the rows as MESSAGE_SCHEMA, with the typed columns that they have; they are kept."""
        if self._made is None:
            self._made = table_of([self])
        return self._made

    def message_ids(self, at: int, count: int) -> list[str]:
        """Return the ids of rows `[at, at + count)`."""
        made = [f"{self.batch_id[:ID_PREFIX]}{row:08x}" for row in range(at, at + count)]
        index = self.rows.schema.get_field_index("message_id")
        if index < 0:
            return made
        given: list[str | None] = self.rows.column(index).slice(at, count).to_pylist()
        return [new if message_id is None else message_id for message_id, new in zip(given, made, strict=True)]


def table_of(appends: Sequence[Stamped], columns: Sequence[str] | None = None) -> pa.Table:
    """Return the rows of adjacent appends, or only `columns` of them, each in one chunk.

    Without `columns`, rows are as MESSAGE_SCHEMA, and have the typed columns that some of them have.
    """
    assert all(before.start + before.count == after.start for before, after in pairwise(appends)), "not adjacent"
    made = _Columns(appends)
    schema = MESSAGE_SCHEMA if columns is None else _schema_of(tuple(columns))
    typed = [field for field in made.typed if columns is None or field.name in columns]
    schema = schema if not typed else pa.schema([*schema, *typed])
    return pa.Table.from_arrays([made.column(name) for name in schema.names], schema=schema)


@functools.lru_cache(maxsize=256)
def _schema_of(columns: tuple[str, ...]) -> pa.Schema:
    return pa.schema([MESSAGE_SCHEMA.field(name) for name in columns if name not in TYPED])


class _Columns:
    """The columns of adjacent appends, made one by one."""

    def __init__(self, appends: Sequence[Stamped]) -> None:
        self._appends = appends
        self._counts = [append.count for append in appends]
        self._count = sum(self._counts)
        rows = one_batch([append.rows for append in appends])
        self._given: dict[str, pa.Array] = dict(zip(rows.schema.names, rows.columns, strict=True))
        #: The typed columns that the rows have.
        self.typed: list[pa.Field] = [field for field in rows.schema if field.name in TYPED]
        self._producers: tuple[pa.Array, pa.Array] | None = None

    def column(self, name: str) -> pa.Array:
        match name:
            case "offset":
                return self._offsets()
            case "message_id":
                return self._filled(name, self._ids)
            case "born_time":
                return self._filled(name, self._append_times)
            case "append_time":
                return self._append_times()
            case "reconsume_times":
                return self._filled(name, lambda: zeros(self._count))
            case "producer_id":
                return self._by_producer()[0]
            case "producer_seq":
                return self._by_producer()[1]
        given = self._given.get(name)
        return _nulls(self._count)[name] if given is None else given

    def _ids(self) -> pa.Array:
        return _made_ids([append.batch_id for append in self._appends], self._counts)

    def _offsets(self) -> pa.Array:
        start = self._appends[0].start
        numbers = pa.py_buffer(np.arange(start, start + self._count, dtype=np.int64))
        return pa.Array.from_buffers(pa.int64(), self._count, [None, numbers])

    def _append_times(self) -> pa.Array:
        return repeated_int64s([append.append_us for append in self._appends], self._counts, TIME)

    def _by_producer(self) -> tuple[pa.Array, pa.Array]:
        if self._producers is None:
            parts = [part for append in self._appends for part in append.parts]
            if any(part.producer is not None for part in parts):
                self._producers = _producers(parts)
            else:
                nulls = _nulls(self._count)
                self._producers = nulls["producer_id"], nulls["producer_seq"]
        return self._producers

    def _filled(self, name: str, default: Callable[[], pa.Array]) -> pa.Array:
        """Return a column; `default` replaces its nulls, and is called only if there are any."""
        given = self._given.get(name)
        if given is None or given.null_count == self._count:
            return default()
        return given if given.null_count == 0 else pc.coalesce(given, default())


def one_batch(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return batches, which may have different columns of INTERNAL_SCHEMA and different typed ones, as one."""
    if len(batches) == 1:
        return batches[0]
    names = {name for batch in batches for name in batch.schema.names}
    fields = [f for f in INTERNAL_SCHEMA if f.name in names]
    if not names.isdisjoint(TYPED):
        fields += joined_fields(batches)
    columns = [pa.concat_arrays([_column(batch, field) for batch in batches]) for field in fields]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _column(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    at = batch.schema.get_field_index(field.name)
    return conformed(batch.column(at), field.type) if at >= 0 else pa.nulls(batch.num_rows, field.type)


def _nulls(count: int) -> dict[str, pa.Array]:
    return _few_nulls(count) if count <= _KEPT_NULLS else _made_nulls(count)


def _made_nulls(count: int) -> dict[str, pa.Array]:
    return {field.name: pa.nulls(count, field.type) for field in MESSAGE_SCHEMA}


@functools.lru_cache(maxsize=_KEPT_COUNTS)
def _few_nulls(count: int) -> dict[str, pa.Array]:
    return {name: column.slice(0, count) for name, column in _most_nulls().items()}


@functools.cache
def _most_nulls() -> dict[str, pa.Array]:
    return _made_nulls(_KEPT_NULLS)


def _made_ids(batch_ids: Sequence[str], counts: Sequence[int]) -> pa.Array:
    """Return ids `<append's id><row in hexadecimal>`: unique, unchanged by renumbering, cheap to make and compress."""
    count = sum(counts)
    if count <= _FEW_IDS:
        pairs = zip(batch_ids, counts, strict=True)
        return text_column([f"{batch_id[:ID_PREFIX]}{row:08x}" for batch_id, rows in pairs for row in range(rows)])
    width = ID_PREFIX + 8
    ids = np.empty((count, width), dtype=np.uint8)
    at = 0
    for batch_id, rows in zip(batch_ids, counts, strict=True):
        ids[at : at + rows, :ID_PREFIX] = np.frombuffer(batch_id[:ID_PREFIX].encode(), dtype=np.uint8)
        ids[at : at + rows, ID_PREFIX:] = _row_digits(rows)
        at += rows
    ends = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    return pa.StringArray.from_buffers(count, pa.py_buffer(ends), pa.py_buffer(ids))


def _row_digits(count: int) -> NDArray[np.uint8]:
    """Return the hexadecimal digits of the first rows, eight for each."""
    known = _few_row_digits()
    return known[:count] if count <= len(known) else _made_row_digits(count)


@functools.cache
def _few_row_digits() -> NDArray[np.uint8]:
    return _made_row_digits(_KEPT_IDS)


def _made_row_digits(count: int) -> NDArray[np.uint8]:
    digits = np.empty((count, 8), dtype=np.uint8)
    row = np.arange(count, dtype=np.uint32)
    for digit in range(8):
        digits[:, 7 - digit] = _HEX[(row >> np.uint32(4 * digit)) & np.uint32(15)]
    return digits


def _producers(parts: Sequence[RowsPart]) -> tuple[pa.Array, pa.Array]:
    counts = [p.count for p in parts]
    if all(p.producer is not None for p in parts):
        known = [p.producer for p in parts if p.producer is not None]
        ids, seqs = [p.id for p in known], [p.seq for p in known]
        return repeated_texts(ids, counts), repeated_int64s(seqs, counts, pa.int64())
    rows_of_part = pa.array(np.repeat(np.arange(len(parts)), counts))
    ids_or_none = pa.array([p.producer.id if p.producer else None for p in parts], pa.string())
    seqs_or_none = pa.array([p.producer.seq if p.producer else None for p in parts], pa.int64())
    return ids_or_none.take(rows_of_part), seqs_or_none.take(rows_of_part)
