"""Encoding of rows as a parquet file, ready to be committed.

`stamp` fixes all values of a row but its offset once; after a lost race the rows are only renumbered and encoded again.
A file's footer holds its producers' parts, and the commit holds its checksums, which cover every byte.
"""

from __future__ import annotations

import functools
import itertools
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from mq.limits import KIB
from mq.producer import Part, part_to_json
from mq.sequences import Earlier
from mq.sequences import Sequence as MessageSequence
from tables.delta.actions import DataFile
from tables.delta.small_parquet import SMALL_FILE_ROWS_MAX, encode_few_rows
from tables.few_rows import repeated_int64s, repeated_texts, text_column, zeros
from tables.paths import data_file_name
from tables.schema import MESSAGE_SCHEMA, TIME

__all__ = ["PARTS_KEY", "Encoded", "ProducerStamp", "RowsPart", "encode_file", "numbered", "stamp"]

PARTS_KEY: Final = b"mq.parts"
#: Size of the largest file that is written without pyarrow. It lives for a second or two until a roll-up, so speed
#: matters more than size.
_FEW_BYTES_MAX: Final = 256 * KIB
#: Largest number of ids that are made one by one.
_FEW_IDS: Final = 63
#: Numbers of rows for which columns of nulls are kept.
_KEPT_COUNTS: Final = 400
#: Number of rows whose digits are kept.
_KEPT_IDS: Final = 4_096
#: Columns with few distinct values; for the others a dictionary would only cost time.
_REPEATING: Final = [
    "key",
    "tag",
    "born_time",
    "append_time",
    "reconsume_times",
    "producer_id",
    "producer_seq",
]
#: Columns that are worth compressing if they have values, with their leaves. Each sets up a compressor, which takes as
#: long as fifty messages; encoding makes the other columns small.
_BULKY: Final = {
    "message_id": ("message_id",),
    "key": ("key",),
    "headers": ("headers.key_value.key", "headers.key_value.value"),
    "body": ("body",),
    "born_time": ("born_time",),
    "deliver_time": ("deliver_time",),
    "origin": ("origin.topic", "origin.partition", "origin.offset"),
}
_AFTER_OFFSET: Final = MESSAGE_SCHEMA.names[1:]
_HEX: Final = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)


@dataclass(frozen=True, slots=True)
class ProducerStamp:
    """The producer's request that rows belong to: messages `indexes` of a request of `total`; None for all of them.

    A producer that counts its messages gives a `sequence`; the append finds the request's `seq` (`mq.sequences`), which
    follows what it has stored `earlier` in other partitions.
    """

    id: str
    seq: int
    indexes: tuple[int, ...] | None
    total: int
    sequence: MessageSequence | None = None
    earlier: Earlier | None = None


@dataclass(frozen=True, slots=True)
class RowsPart:
    """A run of `count` adjacent rows that came with one request."""

    count: int
    producer: ProducerStamp | None = None


@dataclass(frozen=True, slots=True)
class Encoded:
    """A parquet file in memory and its description for the commit."""

    data: pa.Buffer | bytes
    file: DataFile
    #: Approximate size of the rows in memory: an exact count of thirteen columns costs a small append 40 microseconds.
    rows_bytes: int


def stamp(rows: pa.RecordBatch, parts: Sequence[RowsPart], *, batch_id: str, append_us: int) -> list[pa.Array]:
    """Return all columns of the message rows but `offset`, with defaults, ids, append time and producers filled in.

    `rows` has any of INTERNAL_SCHEMA's columns; the result has MESSAGE_SCHEMA's columns after `offset`, in its order.
    """
    count = rows.num_rows
    columns = {**_nulls(count), **dict(zip(rows.schema.names, rows.columns, strict=True))}
    now = repeated_int64s([append_us], [count], TIME)
    columns["message_id"] = _filled(columns["message_id"], lambda: _made_ids(batch_id, count))
    columns["born_time"] = _filled(columns["born_time"], lambda: now)
    columns["reconsume_times"] = _filled(columns["reconsume_times"], lambda: zeros(count))
    columns["append_time"] = now
    if any(p.producer is not None for p in parts):
        columns["producer_id"], columns["producer_seq"] = _producers(parts)
    return [columns[name] for name in _AFTER_OFFSET]


def _nulls(count: int) -> dict[str, pa.Array]:
    """Return every column with `count` nulls; for few rows, these are slices of cached columns."""
    return _few_nulls(count) if count <= SMALL_FILE_ROWS_MAX else _made_nulls(count)


def _made_nulls(count: int) -> dict[str, pa.Array]:
    return {field.name: pa.nulls(count, field.type) for field in MESSAGE_SCHEMA}


@functools.lru_cache(maxsize=_KEPT_COUNTS)
def _few_nulls(count: int) -> dict[str, pa.Array]:
    return {name: column.slice(0, count) for name, column in _most_nulls().items()}


@functools.cache
def _most_nulls() -> dict[str, pa.Array]:
    return _made_nulls(SMALL_FILE_ROWS_MAX)


def _filled(column: pa.Array, default: object) -> pa.Array:
    """Return `column` with nulls replaced from the array that `default()` returns; it is called only if needed."""
    assert callable(default)
    if column.null_count == 0:
        return column
    if column.null_count == len(column):
        return default()
    return pc.coalesce(column, default())


def _made_ids(batch_id: str, count: int) -> pa.Array:
    """Return ids `<batch id><row in hexadecimal>`: unique, unchanged by renumbering, cheap to make and to compress."""
    if count <= _FEW_IDS:
        return text_column([f"{batch_id[:16]}{row:08x}" for row in range(count)])
    prefix = np.frombuffer(batch_id[:16].encode(), dtype=np.uint8)
    width = len(prefix) + 8
    ids = np.empty((count, width), dtype=np.uint8)
    ids[:, : len(prefix)] = prefix
    ids[:, len(prefix) :] = _row_digits(count)
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
    """Return the columns `producer_id` and `producer_seq`."""
    counts = [p.count for p in parts]
    if all(p.producer is not None for p in parts):
        known = [p.producer for p in parts if p.producer is not None]
        ids, seqs = [p.id for p in known], [p.seq for p in known]
        return repeated_texts(ids, counts), repeated_int64s(seqs, counts, pa.int64())
    rows_of_part = pa.array(np.repeat(np.arange(len(parts)), counts))
    ids_or_none = pa.array([p.producer.id if p.producer else None for p in parts], pa.string())
    seqs_or_none = pa.array([p.producer.seq if p.producer else None for p in parts], pa.int64())
    return ids_or_none.take(rows_of_part), seqs_or_none.take(rows_of_part)


def numbered(columns: Sequence[pa.Array], base_offset: int) -> pa.Table:
    """Return stamped columns with their offsets, from `base_offset` on, as MESSAGE_SCHEMA."""
    count = len(columns[0])
    numbers = pa.py_buffer(np.arange(base_offset, base_offset + count, dtype=np.int64))
    offsets = pa.Array.from_buffers(pa.int64(), count, [None, numbers])
    return pa.Table.from_arrays([offsets, *columns], schema=MESSAGE_SCHEMA)


def encode_file(rows: pa.Table, parts: Sequence[Part], *, batch_id: str, now_ms: int, row_group_rows: int) -> Encoded:
    """Encode numbered rows as one parquet file with checksums and statistics."""
    count = rows.num_rows
    assert count > 0, "an empty file would have no offsets"
    key_values = key_values_of(parts)
    few = _few(rows, key_values) if count <= min(SMALL_FILE_ROWS_MAX, row_group_rows) else None
    data, crc = few or _many(rows, key_values, row_group_rows)
    start = int(rows.column(0)[0].as_py())
    append_min, append_max = bounds_of(rows.column("append_time"))
    file = DataFile(
        path=data_file_name(start, batch_id),
        size=len(data),
        start=start,
        count=count,
        modified_ms=now_ms,
        append_min_us=append_min,
        append_max_us=append_max,
        stats=stats_json(
            start,
            count,
            bounds_of(rows.column("born_time")),
            (append_min, append_max),
            deliver_bounds(rows.column("deliver_time")),
        ),
        crc=crc,
    )
    return Encoded(data, file, len(data) if few else rows.nbytes)


def key_values_of(parts: Sequence[Part]) -> list[tuple[bytes, bytes]]:
    """Return the footer's metadata about the producers' requests in its file."""
    return [(PARTS_KEY, msgspec.json.encode([part_to_json(p) for p in parts]))] if parts else []


def _few(rows: pa.Table, key_values: Sequence[tuple[bytes, bytes]]) -> tuple[bytes, str] | None:
    """Encode few rows, and return the file and its checksums; None if the rows are too large or have nested values."""
    rows = rows if rows.column(0).num_chunks == 1 else rows.combine_chunks()
    found = encode_few_rows(rows, key_values, _FEW_BYTES_MAX)
    if found is None:
        return None
    return found.data, f"{found.pages_crc:08x},{found.footer_crc:08x}"


def _many(rows: pa.Table, key_values: Sequence[tuple[bytes, bytes]], row_group_rows: int) -> tuple[pa.Buffer, str]:
    """Encode rows with compression, and return the file and its checksums."""
    sink = pa.BufferOutputStream()
    footer: list[pq.FileMetaData] = []
    valued = [name for name in _BULKY if rows.column(name).null_count < rows.num_rows]
    with message_writer(sink, footer, valued) as writer:
        writer.write_table(rows, row_group_size=row_group_rows)
        if key_values:
            writer.add_key_value_metadata(dict(key_values))
    data = sink.getvalue()
    return data, checksums(data, footer[0])


def message_writer(
    sink: pa.NativeFile, footer: list[pq.FileMetaData], valued: Iterable[str] = tuple(_BULKY)
) -> pq.ParquetWriter:
    """Return a writer with the settings of all message files; at the end it appends its footer to `footer`.

    `valued` are the bulky columns that have values.
    """
    compressed = [leaf for name in valued for leaf in _BULKY[name]]
    return pq.ParquetWriter(
        sink,
        MESSAGE_SCHEMA,
        compression=dict.fromkeys(compressed, "zstd"),
        compression_level=dict.fromkeys(compressed, 1),
        use_dictionary=_REPEATING,
        column_encoding={"offset": "DELTA_BINARY_PACKED"},
        write_statistics=["offset", "append_time"],
        write_page_checksum=True,
        store_schema=False,
        metadata_collector=footer,
    )


Bounds = tuple[int, int]


def bounds_of(column: pa.ChunkedArray) -> Bounds:
    """Return the least and greatest time of a column, in microseconds; at least one value must not be null."""
    if column.num_chunks == 1 and not column.null_count:
        chunk = column.chunk(0)
        values = np.frombuffer(chunk.buffers()[1], np.int64, len(chunk), 8 * chunk.offset)
        return int(values.min()), int(values.max())
    found = pc.min_max(column)
    return found["min"].value, found["max"].value


def deliver_bounds(column: pa.ChunkedArray) -> Bounds | None:
    """Return the bounds of a file's deliver times; None if a row has no deliver time."""
    return None if column.null_count else bounds_of(column)


def stats_json(start: int, count: int, born: Bounds, append: Bounds, deliver: Bounds | None = None) -> str:
    """Return Delta's file statistics. They hold timestamps in milliseconds: bounds are widened, never narrowed.

    Deliver times are included only if every row has one: they tell in which files of a delay log messages are due.
    """
    least = greatest = nulls = ""
    if deliver is not None:
        least = f',"deliver_time":"{_iso_ms(deliver[0] // 1000)}"'
        greatest = f',"deliver_time":"{_iso_ms(-(-deliver[1] // 1000))}"'
        nulls = ',"deliver_time":0'
    return (
        f'{{"numRecords":{count},'
        f'"minValues":{{"offset":{start},'
        f'"born_time":"{_iso_ms(born[0] // 1000)}","append_time":"{_iso_ms(append[0] // 1000)}"{least}}},'
        f'"maxValues":{{"offset":{start + count - 1},'
        f'"born_time":"{_iso_ms(-(-born[1] // 1000))}","append_time":"{_iso_ms(-(-append[1] // 1000))}"{greatest}}},'
        f'"nullCount":{{"offset":0,"born_time":0,"append_time":0{nulls}}}}}'
    )


def _iso_ms(time_ms: int) -> str:
    return f"{_iso_s(time_ms // 1000)}.{time_ms % 1000:03d}Z"


@functools.lru_cache(maxsize=64)
def _iso_s(time_s: int) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def group_edges(footer: pq.FileMetaData, footer_at: int) -> list[int]:
    """Return the bounds of row groups in bytes: group i is `[edges[i], edges[i + 1])`; the last ends at the footer."""
    edges = [0]
    for i in range(1, footer.num_row_groups):
        column = footer.row_group(i).column(0)
        first = column.data_page_offset
        if column.dictionary_page_offset is not None:
            first = min(first, column.dictionary_page_offset)
        edges.append(first)
    return [*edges, footer_at]


def checksums(data: pa.Buffer, footer: pq.FileMetaData) -> str:
    """Return the CRC-32 of each row group and of the footer, hexadecimal, joined by commas; they cover every byte."""
    view = memoryview(data)
    edges = [*group_edges(footer, footer_start(view)), data.size]
    return ",".join(f"{zlib.crc32(view[a:b]):08x}" for a, b in itertools.pairwise(edges))


def footer_start(data: memoryview) -> int:
    """Return the position of the footer in the parquet file `data`, of whose content only the last 8 bytes are used."""
    length = int.from_bytes(data[-8:-4], "little")
    return len(data) - 8 - length
