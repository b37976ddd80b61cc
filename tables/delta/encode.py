"""Encoding of rows as a parquet file, ready to be committed.

A file's footer holds its producers' parts, and the commit holds its checksums, which cover every byte.
"""

from __future__ import annotations

import functools
import itertools
import zlib
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from deltamq.mq.limits import KIB, MIB
from deltamq.mq.producer import Part, part_to_json
from deltamq.tables.delta.actions import DataFile
from deltamq.tables.delta.native_parquet import WrittenFile
from deltamq.tables.delta.small_parquet import SMALL_FILE_ROWS_MAX, encode_few_rows, encode_few_stamped
from deltamq.tables.delta.stamped import Stamped
from deltamq.tables.delta.typed_stats import NO_STATS, TypedStats, text_bounds, typed_bounds
from deltamq.tables.paths import data_file_name
from deltamq.tables.schema import MESSAGE_SCHEMA
from deltamq.tables.typed_row import bounded_leaves, parquet_leaves, value_type

PARTS_KEY: Final = b"mq.parts"
#: Size of the largest file that is written without pyarrow, and so without compression.
_FEW_BYTES_MAX: Final = 256 * KIB
#: The same for an append: its file lives for a second or two until a roll-up, so speed matters more than size.
APPENDED_BYTES_MAX: Final = 3 * MIB
#: Largest average row for that, in bytes: with large bodies, it saves little time and costs more disk.
_SMALL_ROW_BYTES: Final = 2 * KIB
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


class Encoded(msgspec.Struct, frozen=True):
    """A parquet file in memory and its description for the commit."""

    data: pa.Buffer | bytes
    file: DataFile
    #: Approximate size of the rows in memory: an exact count of thirteen columns costs a small append 40 microseconds.
    rows_bytes: int


def encode_stamped(rows: Stamped, parts: Sequence[Part], *, now_ms: int, row_group_rows: int) -> Encoded:
    """Encode the rows of an append, without making their columns if they are less than half of a row group.

    A roll-up copies larger row groups instead of encoding them again, so these are compressed at once. For few rows,
    `encode_file` makes the same file from their columns.
    """
    key_values = key_values_of(parts)
    is_small = rows.count <= min(SMALL_FILE_ROWS_MAX, row_group_rows) or not half_full(rows.count, 1, row_group_rows)
    bytes_max = min(max(_FEW_BYTES_MAX, rows.count * _SMALL_ROW_BYTES), APPENDED_BYTES_MAX)
    few = encode_few_stamped(rows, key_values, bytes_max) if is_small else None
    if few is None:
        return encode_file(rows.table(), parts, batch_id=rows.batch_id, now_ms=now_ms, row_group_rows=row_group_rows)
    at = rows.rows.schema.get_field_index("deliver_time")
    file = new_file(
        rows.start,
        rows.count,
        born=few.bounds,
        append=(rows.append_us, rows.append_us),
        deliver=None if at < 0 else deliver_bounds(rows.rows.column(at)),
        typed=typed_bounds(rows.rows).stats() if rows.is_typed else NO_STATS,
        size=len(few.data),
        crc=_crc(few),
        batch_id=rows.batch_id,
        now_ms=now_ms,
    )
    return Encoded(few.data, file, len(few.data))


def half_full(rows: int, groups: int, row_group_rows: int) -> bool:
    """Whether row groups are half full on average: roll-ups and compactions copy such groups as they are."""
    return rows * 2 >= groups * row_group_rows


def encode_file(rows: pa.Table, parts: Sequence[Part], *, batch_id: str, now_ms: int, row_group_rows: int) -> Encoded:
    """Encode numbered rows as one parquet file with checksums and statistics."""
    count = rows.num_rows
    assert count > 0, "an empty file would have no offsets"
    key_values = key_values_of(parts)
    typed = value_type(rows.schema) is not None
    few = None if typed or count > min(SMALL_FILE_ROWS_MAX, row_group_rows) else _few(rows, key_values)
    stats = NO_STATS
    if few is not None:
        data, crc = few
    else:
        data, footer = _many(rows, key_values, row_group_rows)
        crc = checksums(data, footer)
        if typed:
            stats = typed_bounds(rows, text_bounds(footer)).stats()
    file = new_file(
        int(rows.column(0)[0].as_py()),
        count,
        born=bounds_of(rows.column("born_time")),
        append=bounds_of(rows.column("append_time")),
        deliver=deliver_bounds(rows.column("deliver_time")),
        typed=stats,
        size=len(data),
        crc=crc,
        batch_id=batch_id,
        now_ms=now_ms,
    )
    return Encoded(data, file, len(data) if few else rows.nbytes)


def key_values_of(parts: Sequence[Part]) -> list[tuple[bytes, bytes]]:
    """Return the footer's metadata about the producers' requests in its file."""
    return [(PARTS_KEY, msgspec.json.encode([part_to_json(p) for p in parts]))] if parts else []


def _few(rows: pa.Table, key_values: Sequence[tuple[bytes, bytes]]) -> tuple[bytes, str] | None:
    """None if the rows are too large or have nested values."""
    rows = rows if rows.column(0).num_chunks == 1 else rows.combine_chunks()
    written = encode_few_rows(rows, key_values, _FEW_BYTES_MAX)
    if written is None:
        return None
    return written.data, _crc(written)


def _crc(file: WrittenFile) -> str:
    return f"{file.pages_crc:08x},{file.footer_crc:08x}"


def _many(
    rows: pa.Table, key_values: Sequence[tuple[bytes, bytes]], row_group_rows: int
) -> tuple[pa.Buffer, pq.FileMetaData]:
    sink = pa.BufferOutputStream()
    footer: list[pq.FileMetaData] = []
    valued = [name for name in _BULKY if rows.column(name).null_count < rows.num_rows]
    with message_writer(sink, footer, rows.schema, valued) as writer:
        writer.write_table(rows, row_group_size=row_group_rows)
        if key_values:
            writer.add_key_value_metadata(dict(key_values))
    return sink.getvalue(), footer[0]


def message_writer(
    sink: pa.NativeFile,
    footer: list[pq.FileMetaData],
    schema: pa.Schema = MESSAGE_SCHEMA,
    valued: Iterable[str] = tuple(_BULKY),
) -> pq.ParquetWriter:
    """Return a writer with the settings of all message files; at the end it appends its footer to `footer`.

    `valued` are the bulky columns that have values.
    """
    compressed = [leaf for name in valued for leaf in _BULKY[name]]
    compressed += parquet_leaves(schema)
    bounded = bounded_leaves(schema)
    # Differences of whole numbers are as quickly written as compressed, and smaller.
    packed = ["offset", *(leaf for leaf, kind in bounded.items() if pa.types.is_int64(kind))]
    return pq.ParquetWriter(
        sink,
        schema,
        compression=dict.fromkeys(compressed, "zstd"),
        compression_level=dict.fromkeys(compressed, 1),
        use_dictionary=_REPEATING,
        column_encoding=dict.fromkeys(packed, "DELTA_BINARY_PACKED"),
        write_statistics=["offset", "append_time", *bounded],
        write_page_checksum=True,
        store_schema=False,
        metadata_collector=footer,
    )


#: The least and the greatest value.
Bounds: TypeAlias = tuple[int, int]


def new_file(
    start: int,
    count: int,
    *,
    born: Bounds,
    append: Bounds,
    deliver: Bounds | None,
    typed: TypedStats = NO_STATS,
    size: int,
    crc: str,
    batch_id: str,
    now_ms: int,
) -> DataFile:
    """Describe a new file for the commit; bounds are in microseconds, None if a row has no deliver time."""
    return DataFile(
        path=data_file_name(start, batch_id),
        size=size,
        start=start,
        count=count,
        modified_ms=now_ms,
        append_min_us=append[0],
        append_max_us=append[1],
        stats=_stats_json(start, count, born, append, deliver, typed),
        crc=crc,
    )


def bounds_of(column: pa.ChunkedArray | pa.Array) -> Bounds:
    """Return the least and greatest time of a column, in microseconds; at least one value must not be null."""
    chunk = column if isinstance(column, pa.Array) else column.chunk(0) if column.num_chunks == 1 else None
    if chunk is not None and not chunk.null_count:
        values = np.frombuffer(chunk.buffers()[1], np.int64, len(chunk), 8 * chunk.offset)
        return int(values.min()), int(values.max())
    extremes = pc.min_max(column)
    return extremes["min"].value, extremes["max"].value


def deliver_bounds(column: pa.ChunkedArray | pa.Array) -> Bounds | None:
    """Return the bounds of a file's deliver times; None if a row has no deliver time."""
    return None if column.null_count else bounds_of(column)


def _stats_json(start: int, count: int, born: Bounds, append: Bounds, deliver: Bounds | None, typed: TypedStats) -> str:
    """Return Delta's file statistics. They hold timestamps in milliseconds: bounds are widened, never narrowed.

    Deliver times are included only if every row has one: they show in which files of a delay log messages are due.
    Typed values come first, as they may have a field `born_time`: a reader looks for the last one.
    """
    least = greatest = nulls = ""
    if deliver is not None:
        least = f',"deliver_time":"{_iso_ms(deliver[0] // 1000)}"'
        greatest = f',"deliver_time":"{_iso_ms(-(-deliver[1] // 1000))}"'
        nulls = ',"deliver_time":0'
    return (
        f'{{"numRecords":{count},'
        f'"minValues":{{{typed.least}"offset":{start},'
        f'"born_time":"{_iso_ms(born[0] // 1000)}","append_time":"{_iso_ms(append[0] // 1000)}"{least}}},'
        f'"maxValues":{{{typed.greatest}"offset":{start + count - 1},'
        f'"born_time":"{_iso_ms(-(-born[1] // 1000))}","append_time":"{_iso_ms(-(-append[1] // 1000))}"{greatest}}},'
        f'"nullCount":{{{typed.nulls}"offset":0,"born_time":0,"append_time":0{nulls}}}}}'
    )


def _iso_ms(time_ms: int) -> str:
    return f"{_iso_s(time_ms // 1000)}.{time_ms % 1000:03d}Z"


@functools.lru_cache(maxsize=64)
def _iso_s(time_s: int) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def group_edges(footer: pq.FileMetaData, footer_at: int) -> list[int]:
    """Return the bounds of row groups in bytes: group i is `[edges[i], edges[i + 1])`; the last ends at the footer."""
    edges = (chunk_range(footer.row_group(i).column(0))[0] for i in range(1, footer.num_row_groups))
    return [0, *edges, footer_at]


def chunk_range(chunk: pq.ColumnChunkMetaData) -> tuple[int, int]:
    """Return the bounds in bytes of a column of a row group, with its dictionary."""
    first = chunk.data_page_offset
    if chunk.dictionary_page_offset is not None:
        first = min(first, chunk.dictionary_page_offset)
    return first, first + chunk.total_compressed_size


def checksums(data: pa.Buffer, footer: pq.FileMetaData) -> str:
    """Return the CRC-32 of each row group and of the footer, hexadecimal, joined by commas; they cover every byte."""
    view = memoryview(data)
    edges = [*group_edges(footer, footer_start(view)), data.size]
    return ",".join(f"{zlib.crc32(view[a:b]):08x}" for a, b in itertools.pairwise(edges))


def footer_start(data: memoryview) -> int:
    """Return the position of the footer in the parquet file `data`; only the last 8 bytes are read."""
    length = int.from_bytes(data[-8:-4], "little")
    return len(data) - 8 - length
