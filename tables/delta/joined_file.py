"""Files as one file: the bytes of their row groups are copied, and only the footer is new.

A row group that has many rows is as good in a larger file as in a small one, and to decode and encode its rows again
takes many times as long as to copy it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from deltamq.mq.limits import MIB
from deltamq.mq.producer import Part
from deltamq.tables.delta.actions import DataFile
from deltamq.tables.delta.encode import (
    APPENDED_BYTES_MAX,
    Encoded,
    footer_start,
    group_edges,
    half_full,
    key_values_of,
)
from deltamq.tables.delta.file_stats import FileStats, decoded_stats, time_ms
from deltamq.tables.delta.moved_groups import Footer, joined_footer, read_footer
from deltamq.tables.delta.typed_stats import joined_typed
from deltamq.tables.paths import data_file_name
from deltamq.tables.typed_row import INVALID, VALUE

_MAGIC: Final = b"PAR1"
_encode: Final = msgspec.json.Encoder(decimal_format="number").encode
#: Row groups with this many bytes are large, whatever the number of their rows.
_LARGE_BYTES: Final = 4 * MIB
assert _LARGE_BYTES > APPENDED_BYTES_MAX, "what an append did not compress is encoded again, not copied"


def join_files(
    files: Sequence[DataFile],
    read: Callable[[DataFile], pa.Buffer],
    encode: Callable[[Sequence[DataFile]], Encoded],
    parts: Sequence[Part],
    *,
    batch_id: str,
    now_ms: int,
    row_group_rows: int,
) -> Encoded | None:
    """Join adjacent files, copying large row groups; None if no file has any.

    `read` returns a file's checked bytes, and `encode` encodes a run of files with small row groups as one. `parts`
    are the producers' requests that the file carries.
    """
    if not any(_has_large_groups(file, row_group_rows) for file in files):
        return None
    joiner = _Joiner()
    try:
        for is_copied, run in groupby(files, key=lambda file: _has_large_groups(file, row_group_rows)):
            if is_copied:
                for file in run:
                    joiner.add(file, read(file))
            else:
                encoded = encode(list(run))
                joiner.add(encoded.file, encoded.data)
        return joiner.finish(parts, batch_id=batch_id, now_ms=now_ms)
    except ValueError:
        return None  # a file of a writer that we do not know


def _has_large_groups(file: DataFile, row_group_rows: int) -> bool:
    groups = file.crc.count(",")
    return half_full(file.count, groups, row_group_rows) or file.size >= groups * _LARGE_BYTES


class _Joiner:
    """Makes one file of adjacent files, which are added in offset order."""

    def __init__(self) -> None:
        self._sink = pa.BufferOutputStream()
        self._sink.write(_MAGIC)
        self._at = len(_MAGIC)
        self._files: list[DataFile] = []
        self._first: Footer | None = None
        self._orders: bytes | None = None
        self._groups: list[bytes] = []
        self._checksums: list[str] = []

    def add(self, file: DataFile, data: pa.Buffer | bytes) -> None:
        """Add a file, whose bytes are checked; after a `ValueError` (it does not fit) the joiner is of no use."""
        assert not self._files or self._files[-1].end == file.start, "files are adjacent"
        view = memoryview(data)
        footer_at = footer_start(view)
        footer = read_footer(bytes(view[footer_at:-8]))
        self._first = self._first or footer
        if footer.schema != self._first.schema or footer.rows != file.count:
            raise ValueError(f"{file.path} has another schema, or other rows than the log says")
        *checksums, _ = file.crc.split(",")
        if self._files:
            # The first one covers the mark at the file's beginning, too.
            metadata = pq.read_metadata(pa.BufferReader(data))
            end = group_edges(metadata, footer_at)[1]
            checksums[0] = f"{zlib.crc32(view[len(_MAGIC) : end]):08x}"
        self._groups += footer.moved(self._at - len(_MAGIC), len(self._groups))
        self._orders = self._orders or footer.orders
        self._checksums += checksums
        self._sink.write(pa.py_buffer(view[len(_MAGIC) : footer_at]))
        self._at += footer_at - len(_MAGIC)
        self._files.append(file)

    def finish(self, parts: Sequence[Part], *, batch_id: str, now_ms: int) -> Encoded:
        """Return the joined file; raise `ValueError` if the statistics of a file cannot be read."""
        assert self._first is not None, "there are files"
        start, count = self._files[0].start, sum(file.count for file in self._files)
        footer = joined_footer(self._first, self._orders, self._groups, count, key_values_of(parts))
        end = b"".join((footer, len(footer).to_bytes(4, "little"), _MAGIC))
        self._sink.write(end)
        data = self._sink.getvalue()
        file = DataFile(
            path=data_file_name(start, batch_id),
            size=data.size,
            start=start,
            count=count,
            modified_ms=now_ms,
            append_min_us=min(file.append_min_us for file in self._files),
            append_max_us=max(file.append_max_us for file in self._files),
            stats=_joined_stats([file.stats for file in self._files]),
            crc=",".join((*self._checksums, f"{zlib.crc32(end):08x}")),
        )
        return Encoded(data, file, data.size)


def _joined_stats(stats: Sequence[str]) -> str:
    """Join Delta's statistics; bounds that a file lacks are left out."""
    decoded = [decoded_stats(text) for text in stats]
    first = decoded[0]
    nulls = [
        name
        for name in first.nullCount
        if name not in (VALUE, INVALID)
        and all(name in file.nullCount and name in file.minValues and name in file.maxValues for file in decoded)
    ]
    if "offset" not in nulls:
        raise ValueError("statistics of a file cannot be read")
    return _encode(
        {
            "numRecords": sum(file.numRecords for file in decoded),
            "minValues": _typed([file.minValues for file in decoded], "min")
            | {name: min((file.minValues[name] for file in decoded), key=_order) for name in nulls},
            "maxValues": _typed([file.maxValues for file in decoded], "max")
            | {name: max((file.maxValues[name] for file in decoded), key=_order) for name in nulls},
            "nullCount": _nulls(decoded) | dict.fromkeys(nulls, 0),
        }
    ).decode()


def _typed(parts: Sequence[dict[str, object]], join: str) -> dict[str, object]:
    """Return the statistics of typed values; they come first, as in the files' own."""
    return joined_typed([{name: part[name] for name in part.keys() & {VALUE, INVALID}} for part in parts], join)


def _nulls(files: Sequence[FileStats]) -> dict[str, object]:
    """Return the counts of typed nulls. All rows fit in a file that does not say how many do (`typed_stats`)."""
    nulls = [file.nullCount for file in files]
    if any(INVALID in file for file in nulls):
        fitting = ({INVALID: {"code": file.numRecords}} | file.nullCount for file in files)
        nulls = [dict(file) for file in fitting]
    return _typed(nulls, "sum")


def _order(value: object) -> int:
    number = value if isinstance(value, int) else time_ms(value)
    if number is None:
        raise ValueError(f"{value!r} is no offset and no time")
    return number
