"""Rows to a parquet file, ready to be committed.

Everything of a row but its offset is fixed once (`stamp`); a lost race only renumbers and encodes again. A file
carries its producers' parts in its footer, and its checksums go into the commit, so every byte is covered.
"""

from __future__ import annotations

import itertools
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mq.limits import KIB
from mq.producer import Part, part_to_json
from tables.actions import DataFile
from tables.paths import data_file_name
from tables.schema import INTERNAL_SCHEMA, MESSAGE_SCHEMA, TIME

__all__ = ["PARTS_KEY", "Encoded", "ProducerStamp", "RowsPart", "encode_file", "numbered", "stamp"]

PARTS_KEY: Final = b"mq.parts"
#: Below this a file lives for a second or two before it is rolled up: speed beats size.
_SMALL_ROWS: Final = 64
_SMALL_BYTES: Final = 16 * KIB
#: Columns with few distinct values; a dictionary of the others would only cost time.
_REPEATING: Final = [
    "key",
    "tag",
    "born_time",
    "append_time",
    "reconsume_times",
    "producer_id",
    "producer_seq",
]
_HEX: Final = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)


@dataclass(frozen=True, slots=True)
class ProducerStamp:
    """Which request of which producer some rows are: `indexes` in a request of `total` messages, None for all."""

    id: str
    seq: int
    indexes: tuple[int, ...] | None
    total: int


@dataclass(frozen=True, slots=True)
class RowsPart:
    """`count` adjacent rows that came with one request."""

    count: int
    producer: ProducerStamp | None = None


@dataclass(frozen=True, slots=True)
class Encoded:
    """A parquet file in memory and what the commit says of it."""

    data: pa.Buffer
    file: DataFile


def stamp(rows: pa.RecordBatch, parts: Sequence[RowsPart], *, batch_id: str, append_us: int) -> pa.Table:
    """The message rows without their offsets: defaults filled, ids made, time and producers written in.

    `rows` has any of INTERNAL_SCHEMA's columns; the result has MESSAGE_SCHEMA's but for `offset`.
    """
    count = rows.num_rows
    columns: dict[str, pa.Array] = {}
    for field in INTERNAL_SCHEMA:
        at = rows.schema.get_field_index(field.name)
        columns[field.name] = rows.column(at) if at >= 0 else pa.nulls(count, field.type)
    now = pa.scalar(append_us, TIME)
    columns["message_id"] = _filled(columns["message_id"], lambda: _made_ids(batch_id, count))
    columns["born_time"] = _filled(columns["born_time"], lambda: pa.repeat(now, count))
    columns["reconsume_times"] = _filled(columns["reconsume_times"], lambda: pa.repeat(pa.scalar(0, pa.int32()), count))
    columns["append_time"] = pa.repeat(now, count)
    columns["producer_id"], columns["producer_seq"] = _producers(parts, count)
    fields = list(MESSAGE_SCHEMA)[1:]
    return pa.Table.from_arrays([columns[f.name] for f in fields], schema=pa.schema(fields))


def _filled(column: pa.Array, default: object) -> pa.Array:
    """`column` with nulls replaced by the array that `default()` makes, which is only made when needed."""
    assert callable(default)
    if column.null_count == 0:
        return column
    if column.null_count == len(column):
        return default()
    return pc.coalesce(column, default())


def _made_ids(batch_id: str, count: int) -> pa.Array:
    """`<batch id><row in hexadecimal>`: unique, stable when the batch is renumbered, cheap to make and to compress."""
    prefix = np.frombuffer(batch_id[:16].encode(), dtype=np.uint8)
    width = len(prefix) + 8
    ids = np.empty((count, width), dtype=np.uint8)
    ids[:, : len(prefix)] = prefix
    row = np.arange(count, dtype=np.uint32)
    for digit in range(8):
        ids[:, width - 1 - digit] = _HEX[(row >> np.uint32(4 * digit)) & np.uint32(15)]
    ends = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    return pa.StringArray.from_buffers(count, pa.py_buffer(ends), pa.py_buffer(ids))


def _producers(parts: Sequence[RowsPart], count: int) -> tuple[pa.Array, pa.Array]:
    """The columns `producer_id` and `producer_seq`."""
    if all(p.producer is None for p in parts):
        return pa.nulls(count, pa.string()), pa.nulls(count, pa.int64())
    rows_of_part = np.repeat(np.arange(len(parts)), [p.count for p in parts])
    ids = pa.array([p.producer.id if p.producer else None for p in parts], pa.string())
    seqs = pa.array([p.producer.seq if p.producer else None for p in parts], pa.int64())
    return ids.take(pa.array(rows_of_part)), seqs.take(pa.array(rows_of_part))


def numbered(rows: pa.Table, base_offset: int) -> pa.Table:
    """Stamped rows with their offsets, from `base_offset` on: MESSAGE_SCHEMA."""
    offsets = pa.array(np.arange(base_offset, base_offset + rows.num_rows, dtype=np.int64))
    return pa.Table.from_arrays([pa.chunked_array([offsets]), *rows.columns], schema=MESSAGE_SCHEMA)


def encode_file(rows: pa.Table, parts: Sequence[Part], *, batch_id: str, now_ms: int, row_group_rows: int) -> Encoded:
    """Encode numbered rows as one parquet file with checksums and statistics."""
    count = rows.num_rows
    assert count > 0, "an empty file would have no offsets"
    start = int(rows.column(0)[0].as_py())
    small = count < _SMALL_ROWS and rows.nbytes < _SMALL_BYTES
    sink = pa.BufferOutputStream()
    footer: list[pq.FileMetaData] = []
    with pq.ParquetWriter(
        sink,
        rows.schema,
        compression="none" if small else "zstd",
        compression_level=None if small else 1,
        use_dictionary=False if small else _REPEATING,
        column_encoding=None if small else {"offset": "DELTA_BINARY_PACKED"},
        write_statistics=["offset", "append_time"],
        write_page_checksum=True,
        store_schema=False,
        metadata_collector=footer,
    ) as writer:
        writer.write_table(rows, row_group_size=row_group_rows)
        if parts:
            body = json.dumps([part_to_json(p) for p in parts], separators=(",", ":"))
            writer.add_key_value_metadata({PARTS_KEY: body.encode()})
    data = sink.getvalue()
    append_min, append_max = _bounds(rows.column("append_time"))
    file = DataFile(
        path=data_file_name(start, batch_id),
        size=data.size,
        start=start,
        count=count,
        modified_ms=now_ms,
        append_min_us=append_min,
        append_max_us=append_max,
        stats=_stats_json(rows, start, count, append_min, append_max),
        crc=checksums(data, footer[0]),
    )
    return Encoded(data, file)


def _bounds(column: pa.ChunkedArray) -> tuple[int, int]:
    """Least and greatest time of a column without nulls, in microseconds."""
    if len(column) == 1:
        value = column[0].value
        return value, value
    found = pc.min_max(column)
    return found["min"].value, found["max"].value


def _stats_json(rows: pa.Table, start: int, count: int, append_min: int, append_max: int) -> str:
    """Delta's file statistics. Timestamps there have milliseconds: bounds are widened, never narrowed."""
    born_min, born_max = _bounds(rows.column("born_time"))
    stats = {
        "numRecords": count,
        "minValues": {
            "offset": start,
            "born_time": _floor_ms(born_min),
            "append_time": _floor_ms(append_min),
        },
        "maxValues": {
            "offset": start + count - 1,
            "born_time": _ceil_ms(born_max),
            "append_time": _ceil_ms(append_max),
        },
        "nullCount": {"offset": 0, "born_time": 0, "append_time": 0},
    }
    return json.dumps(stats, separators=(",", ":"))


def _floor_ms(time_us: int) -> str:
    return _iso_ms(time_us // 1000)


def _ceil_ms(time_us: int) -> str:
    return _iso_ms(-(-time_us // 1000))


def _iso_ms(time_ms: int) -> str:
    text = datetime.fromtimestamp(time_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{time_ms % 1000:03d}Z"


def group_edges(footer: pq.FileMetaData, footer_at: int) -> list[int]:
    """Byte positions between row groups: group i is `[edges[i], edges[i + 1])`; together they reach the footer."""
    edges = [0]
    for i in range(1, footer.num_row_groups):
        column = footer.row_group(i).column(0)
        first = column.data_page_offset
        if column.dictionary_page_offset is not None:
            first = min(first, column.dictionary_page_offset)
        edges.append(first)
    return [*edges, footer_at]


def checksums(data: pa.Buffer, footer: pq.FileMetaData) -> str:
    """CRC-32 of each row group and of the footer, hexadecimal, joined by commas: every byte is covered."""
    view = memoryview(data)
    edges = [*group_edges(footer, footer_start(view)), data.size]
    return ",".join(f"{zlib.crc32(view[a:b]):08x}" for a, b in itertools.pairwise(edges))


def footer_start(data: memoryview) -> int:
    """Where the footer of the parquet file `data` begins; its last 8 bytes are enough of its content."""
    length = int.from_bytes(data[-8:-4], "little")
    return len(data) - 8 - length
