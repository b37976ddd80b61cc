"""The reader of stored files: every byte is checked before it is used (SPEC RELY-4).

A read touches only the footer and the row groups that hold the requested offsets, whatever the size of the file or the
length of the log. Footers and decoded row groups are kept in one bounded cache for the process, because a consumer
that reads history in small steps needs the same row group many times.
"""

from __future__ import annotations

import itertools
import json
import threading
import zlib
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from deltamq.mq.errors import Corrupt
from deltamq.mq.limits import KIB
from deltamq.mq.producer import Part, part_from_json
from deltamq.tables.delta.actions import DataFile
from deltamq.tables.delta.encode import PARTS_KEY, chunk_range, footer_start, group_edges
from deltamq.tables.schema import MESSAGE_COLUMNS, MESSAGE_SCHEMA
from deltamq.tables.store.store import FileMissing, Store
from deltamq.tables.typed_row import TYPED

#: Bytes that are read at once from a file's end; a footer of sixteen row groups fits, and a small file as a whole.
_FOOTER_GUESS: Final = 64 * KIB
#: A row group is read as a whole if it has fewer bytes than this, or if at least this part of it is needed.
_LARGE_BYTES: Final = 256 * KIB
_SMALL_PART: Final = 0.5
#: Memory of a footer, and of each row group in it with its thirteen columns; measured, rounded up.
_FOOTER_BYTES: Final = 20 * KIB
_ROW_GROUP_BYTES: Final = 10 * KIB
#: Leaf columns of a file without typed columns: of headers two, of the origin three.
_MESSAGE_LEAVES: Final = len(MESSAGE_SCHEMA) + 3


class RowCache:
    """A cache bounded by bytes, which drops the least recently used values first. Safe for threads."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._items: OrderedDict[object, tuple[object, int]] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def bytes(self) -> int:
        """The number of bytes held."""
        return self._bytes

    def get(self, key: object) -> object | None:
        """Return the value, which becomes the most recently used; None if it is not kept."""
        with self._lock:
            item = self._items.get(key)
            if item is None:
                return None
            self._items.move_to_end(key)
            return item[0]

    def put(self, key: object, value: object, size: int) -> None:
        """Keep a value of `size` bytes, and drop older ones to make room for it."""
        if size > self._bytes_max:
            return
        with self._lock:
            old = self._items.pop(key, None)
            self._bytes += size - (old[1] if old else 0)
            self._items[key] = (value, size)
            while self._bytes > self._bytes_max:
                _, (_, dropped) = self._items.popitem(last=False)
                self._bytes -= dropped

    def drop(self, key: object) -> object | None:
        """Drop a value, and return it if it was there."""
        with self._lock:
            value, size = self._items.pop(key, (None, 0))
            self._bytes -= size
            return value


class _Footer(msgspec.Struct, frozen=True):
    metadata: pq.FileMetaData
    edges: tuple[int, ...]  #: byte positions between the checksummed ranges before the footer
    checksums: tuple[int, ...]  #: one for each of these ranges
    starts: tuple[int, ...]  #: first row of each row group, and the number of rows
    parts: tuple[Part, ...]
    typed: tuple[str, ...]  #: the typed columns that the file has


class FileReader:
    """Reads the files of one table. Typed columns that a file lacks are missing, and others are as they were stored."""

    def __init__(self, store: Store, folder: str, cache: RowCache) -> None:
        self._store = store
        self._folder = folder
        self._cache = cache

    def rows(self, file: DataFile, start: int, stop: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows with offsets `[start, stop)` of `file`, as MESSAGE_SCHEMA or only these `columns`.

        `columns` are in the rows' order, and may be typed ones; `offset` is one of them.

        Raises
        ------
        Corrupt
            The file is missing, cut, altered, or holds other offsets.
        """
        assert file.start <= start < stop <= file.end
        return self._rows(file, *self._opened(file), start, stop, columns)

    def rows_of_group(self, file: DataFile, start: int, stop: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Return what `rows` does, up to the end of the row group that holds `start` at most."""
        footer, whole = self._opened(file)
        end = file.start + footer.starts[bisect_right(footer.starts, start - file.start)]
        return self._rows(file, footer, whole, start, min(stop, end), columns)

    def _rows(
        self,
        file: DataFile,
        footer: _Footer,
        data: pa.Buffer | None,
        start: int,
        stop: int,
        columns: Sequence[str] | None,
    ) -> pa.Table:
        first, last = start - file.start, stop - file.start
        tables = []
        for index, (low, high) in enumerate(itertools.pairwise(footer.starts)):
            if low < last and high > first:
                rows = self._group(file, footer, index, columns, data, whole=first <= low and high <= last)
                tables.append(rows.slice(max(first - low, 0), min(last, high) - max(first, low)))
        rows = tables[0] if len(tables) == 1 else pa.concat_tables(tables)
        _check_offsets(rows, start, stop, file)
        return rows

    def groups(
        self, file: DataFile, start: int, stop: int, columns: Sequence[str] | None = None, *, by_page: bool = False
    ) -> Iterator[pa.Table]:
        """Yield the rows with offsets `[start, stop)`, `columns` only, one row group at a time; for scans, not cached.

        Parameters
        ----------
        by_page
            Where `columns` are a small part of a row group, read only their bytes, and check the checksum of each page
            instead of the row group's. Page headers have no checksum: a damaged one fails to decode.

        Raises
        ------
        Corrupt
            As for `rows`.
        """
        assert file.start <= start <= stop <= file.end
        footer, whole = self._opened(file)
        for index, (low, high) in enumerate(itertools.pairwise(footer.starts)):
            low, high = max(start, file.start + low), min(stop, file.start + high)
            if low < high:
                chunks = _small_part(footer.metadata.row_group(index), columns) if by_page and columns else ()
                rows = self._read_group(file, footer, index, columns, chunks, whole)
                selected = rows.slice(low - file.start - footer.starts[index], high - low)
                if "offset" in selected.column_names:
                    _check_offsets(selected, low, high, file)
                yield selected

    def scan(self, file: DataFile, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield all rows that a file holds, one row group at a time, whatever their offsets; checksums are checked.

        This is for checks of the log against its files: `groups` raises when rows contradict the log.
        """
        footer, whole = self._opened(file)
        for index in range(len(footer.checksums)):
            yield self._read_group(file, footer, index, columns, whole=whole)

    def parts(self, file: DataFile) -> tuple[Part, ...]:
        """Return the producers' requests that the file carries."""
        footer = self._cache.get((self._folder, file.path))
        # Opening a partition reads only the parts of a footer: footers of files that no consumer reads are not kept.
        return footer.parts if isinstance(footer, _Footer) else self._read_footer(file)[0].parts

    def verify(self, file: DataFile) -> None:
        """Read every byte and every row of the file; raise `Corrupt` on the first contradiction."""
        footer, whole = self._opened(file)
        at = file.start
        for i in range(len(footer.starts) - 1):
            rows = self._read_group(file, footer, i, (*MESSAGE_COLUMNS, *TYPED), whole=whole)
            _check_offsets(rows, at, at + rows.num_rows, file, every=True)
            at += rows.num_rows
        if at != file.end:
            raise Corrupt(f"{self._key(file)}: holds {at - file.start} rows, the log says {file.count}")

    def whole(self, file: DataFile) -> pa.Buffer:
        """Return the checked bytes of the file.

        Raises
        ------
        Corrupt
            The file is missing, cut or altered.
        """
        data = self._read(file, [(0, file.size)])
        footer = self._footer_of(file, data, self._footer_at(file, data))
        for low, high, crc in zip(footer.edges, footer.edges[1:], footer.checksums, strict=False):
            self._check(file, data, low, high, crc)
        return data

    def forget(self, paths: Iterable[str]) -> None:
        """Drop the cached parts of files that are no longer in the table."""
        for path in paths:
            footer = self._cache.drop((self._folder, path))
            if isinstance(footer, _Footer):
                for index in range(len(footer.checksums)):
                    self._cache.drop((self._folder, path, index))

    def _key(self, file: DataFile) -> str:
        return f"{self._folder}/{file.path}"

    def _opened(self, file: DataFile) -> tuple[_Footer, pa.Buffer | None]:
        """Return the footer, and the whole file if it was read for that: a store is paid for each call."""
        key = (self._folder, file.path)
        kept = self._cache.get(key)
        if isinstance(kept, _Footer):
            return kept, None
        footer, data = self._read_footer(file)
        self._cache.put(key, footer, _FOOTER_BYTES + _ROW_GROUP_BYTES * (len(footer.starts) - 1))
        return footer, data if file.size <= _FOOTER_GUESS else None

    def _read_footer(self, file: DataFile) -> tuple[_Footer, pa.Buffer]:
        """Return the footer, and what was read: the end of the file, or all of a small one."""
        guess = max(0, file.size - _FOOTER_GUESS)
        data = self._read(file, [(guess, file.size)])
        footer_at = self._footer_at(file, data)
        if footer_at < guess:
            data = self._read(file, [(footer_at, file.size)])
        return self._footer_of(file, data, footer_at), data

    def _footer_at(self, file: DataFile, data: pa.Buffer) -> int:
        """Return where the footer begins; `data` is as long as the file, but only its end must be filled."""
        position = footer_start(memoryview(data))
        if not 0 < position < file.size:
            raise Corrupt(f"{self._key(file)}: has no parquet footer")
        return position

    def _footer_of(self, file: DataFile, data: pa.Buffer, footer_at: int) -> _Footer:
        """Return the checked footer; `data` is as long as the file, but only its footer must be filled."""
        *groups, footer_crc = (int(crc, 16) for crc in file.crc.split(","))
        self._check(file, data, footer_at, file.size, footer_crc)
        try:
            metadata = pq.read_metadata(pa.BufferReader(data))
            parts = tuple(part_from_json(p) for p in json.loads((metadata.metadata or {}).get(PARTS_KEY, b"[]")))
            edges = tuple(group_edges(metadata, footer_at))
        except (OSError, pa.ArrowException, KeyError, TypeError, ValueError, AssertionError) as error:
            raise Corrupt(f"{self._key(file)}: the footer cannot be read: {error}") from error
        counts = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
        if sum(counts) != file.count or len(counts) != len(groups):
            raise Corrupt(f"{self._key(file)}: holds {sum(counts)} rows, the log says {file.count}")
        return _Footer(
            metadata=metadata,
            edges=edges,
            checksums=tuple(groups),
            starts=(0, *itertools.accumulate(counts)),
            parts=parts,
            typed=_typed_columns(metadata),
        )

    def _group(
        self,
        file: DataFile,
        footer: _Footer,
        index: int,
        columns: Sequence[str] | None,
        data: pa.Buffer | None,
        *,
        whole: bool,
    ) -> pa.Table:
        """Return a decoded row group; one that is read as a whole is not kept, since its reader is done with it.

        A scan in large steps would otherwise evict what other readers read in small steps, and keep touching new
        memory, which costs as much as decoding. A reader of more columns replaces a kept group.
        """
        key = (self._folder, file.path, index)
        wanted = _stored(footer, columns)
        kept = self._cache.get(key)
        if isinstance(kept, pa.Table) and set(wanted) <= set(kept.column_names):
            return kept.select(wanted)
        rows = self._read_group(file, footer, index, wanted, whole=data)
        if not whole:
            self._cache.put(key, rows, rows.nbytes)
        return rows

    def _read_group(
        self,
        file: DataFile,
        footer: _Footer,
        index: int,
        columns: Sequence[str] | None = None,
        chunks: Sequence[tuple[int, int]] = (),
        whole: pa.Buffer | None = None,
    ) -> pa.Table:
        """Return a decoded row group; of `chunks`, the byte ranges of `columns`, only page checksums are checked.

        `whole` is the file if it has been read.
        """
        low, high = footer.edges[index], footer.edges[index + 1]
        data = whole if whole is not None else self._read(file, list(chunks) or [(low, high)])
        if not chunks:
            self._check(file, data, low, high, footer.checksums[index])
        try:
            with pq.ParquetFile(
                pa.BufferReader(data), metadata=footer.metadata, page_checksum_verification=bool(chunks)
            ) as parquet:
                rows = parquet.read_row_group(index, columns=list(_stored(footer, columns)), use_threads=False)
            fields = [field if field.name in TYPED else MESSAGE_SCHEMA.field(field.name) for field in rows.schema]
            return rows.cast(pa.schema(fields))
        except (OSError, pa.ArrowException, KeyError, ValueError) as error:
            raise Corrupt(f"{self._key(file)}: row group {index} cannot be read: {error}") from error

    def _read(self, file: DataFile, ranges: list[tuple[int, int]]) -> pa.Buffer:
        try:
            return self._store.read_parts(self._key(file), file.size, ranges)
        except FileMissing as error:
            raise Corrupt(f"{self._key(file)}: the log names this file, but it is missing") from error

    def _check(self, file: DataFile, data: pa.Buffer, low: int, high: int, crc: int) -> None:
        if zlib.crc32(memoryview(data)[low:high]) != crc:
            raise Corrupt(f"{self._key(file)}: checksum of bytes {low} to {high} does not match; the file was altered")


def _typed_columns(metadata: pq.FileMetaData) -> tuple[str, ...]:
    if metadata.num_columns == _MESSAGE_LEAVES:
        return ()
    schema = metadata.schema.to_arrow_schema()
    return tuple(name for name in TYPED if schema.get_field_index(name) >= 0)


def _stored(footer: _Footer, columns: Sequence[str] | None) -> Sequence[str]:
    """Return those of `columns` that the file has; without `columns`, those of every message."""
    if columns is None:
        return MESSAGE_COLUMNS
    return [name for name in columns if name not in TYPED or name in footer.typed]


def _small_part(group: pq.RowGroupMetaData, columns: Sequence[str]) -> list[tuple[int, int]]:
    """Return the byte ranges of `columns` if they are a small part of a large row group; an empty list otherwise."""
    whole, chunks = 0, []
    for index in range(group.num_columns):
        chunk = group.column(index)
        size = chunk.total_compressed_size
        whole += size
        if chunk.path_in_schema.split(".", 1)[0] in columns:
            chunks.append(chunk_range(chunk))
    part = sum(stop - start for start, stop in chunks)
    return chunks if whole >= _LARGE_BYTES and part < whole * _SMALL_PART else []


def _check_offsets(rows: pa.Table, start: int, stop: int, file: DataFile, *, every: bool = False) -> None:
    column = rows.column("offset")
    dense = column[0].as_py() == start and column[-1].as_py() == stop - 1 and rows.num_rows == stop - start
    if dense and every:
        dense = bool(np.array_equal(column.to_numpy(), np.arange(start, stop)))
    if not dense:
        raise Corrupt(f"{file.path}: does not hold offsets {start} to {stop - 1} in sequence")
