"""The newest value of each key of a typed topic, as a table that the job `latest` keeps (SPEC TYPE-45, TYPE-47).

    state/latest_<topic's id>     a row for each key, and one for each partition: how far it is merged

A key is looked up by an index in memory: of each live file the hashes of its keys, read once, since files do not
change. So a lookup reads one row group, by one call of the store, however large the table is.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from deltamq.mq.errors import Conflict, Corrupt, Unavailable
from deltamq.mq.limits import MIB
from deltamq.tables.delta.encode import chunk_range, footer_start, group_edges
from deltamq.tables.schema import TIME
from deltamq.tables.state.table import StateLog, open_state_log, read_state_log
from deltamq.tables.store.store import FileMissing, Store
from deltamq.tables.typed_row import VALUE

#: Bytes of a row group that the job writes: a lookup reads one.
GROUP_BYTES: Final = 4 * MIB
#: Keys in the indexes of a process, with twelve bytes each.
KEYS_MAX: Final = 20_000_000

_FOLDER: Final = "state/latest_"
#: Commits have bounds of these columns only: of what a key says they have nothing, so its erasure leaves them.
_BOUNDED: Final = {"delta.dataSkippingStatsColumns": "mq_partition,mq_offset,mq_append_time"}
_COLUMNS: Final = (
    ("mq_id", pa.string()),
    ("mq_key", pa.string()),
    ("mq_partition", pa.string()),
    ("mq_offset", pa.int64()),
    ("mq_append_time", TIME),
    ("mq_rescued", pa.string()),
)
_INDEXED: Final = ("mq_id", "mq_partition", "mq_offset")
_TRIES: Final = 5
#: Most footers are within this.
_FOOTER_BYTES: Final = 64 * 1024


def latest_folder(topic_id: str) -> str:
    """Return where the newest values of a topic's life are, relative to the warehouse."""
    return f"{_FOLDER}{topic_id}"


def latest_schema(values: pa.StructType) -> pa.Schema:
    """Return the columns of the table; a row whose `mq_key` is null says to which offset a partition is merged."""
    return pa.schema([*_COLUMNS, (VALUE, values)])


def open_latest(store: Store, topic_id: str, values: pa.StructType, now_ms: int) -> StateLog:
    """Return the log of a topic's table, which is made if it does not exist."""
    folder = latest_folder(topic_id)
    return open_state_log(store, folder, latest_schema(values), now_ms, configuration=_BOUNDED)


class Looked(NamedTuple):
    """A key's row, and to which offset each partition is merged, both of one version of the table."""

    #: One row of `latest_schema`; None: the table has no value of the key.
    row: pa.Table | None
    ends: Mapping[str, int]


class _File(msgspec.Struct, frozen=True):
    """The index of a live file."""

    size: int
    footer: pq.FileMetaData
    #: Bounds of the row groups, in bytes and in rows.
    edges: tuple[int, ...]
    starts: NDArray[np.int64]
    #: The hashes of the keys, ascending, and the row of each.
    hashes: NDArray[np.int64]
    rows: NDArray[np.int32]
    ends: Mapping[str, int]


class _Table(msgspec.Struct):
    """What is known of a topic's table."""

    lock: threading.Lock = msgspec.field(default_factory=threading.Lock)
    log: StateLog | None = None
    files: Mapping[str, _File] = msgspec.field(default_factory=dict)

    @property
    def keys(self) -> int:
        return sum(len(file.rows) for file in self.files.values())


class LatestTables:
    """The tables of newest values of a warehouse, for lookups; used on threads."""

    def __init__(self, store: Store, *, keys_max: int = KEYS_MAX) -> None:
        self._store = store
        self._keys_max = keys_max
        self._lock = threading.Lock()
        #: The one that was asked last is the last.
        self._tables: OrderedDict[str, _Table] = OrderedDict()

    def look_up(self, topic_id: str, key: str) -> Looked:
        """Return the row of a key; where the job has made no table yet, nothing is merged.

        Raises
        ------
        Conflict
            `latest_too_large`: the table has more keys than a process keeps an index of.
        Corrupt
            A file cannot be read.
        """
        with self._lock:
            table = self._tables.setdefault(topic_id, _Table())
            self._tables.move_to_end(topic_id)
        folder = latest_folder(topic_id)
        for _ in range(_TRIES):
            try:
                with table.lock:
                    files = self._refreshed(table, folder)
                ends = {name: end for file in files.values() for name, end in file.ends.items()}
                return Looked(self._row(folder, files, f"k{key}"), ends)
            except FileMissing:  # a clean-up was faster
                continue
        raise Unavailable(f"{folder}: it is cleaned up faster than it can be read", code="contention")

    def _refreshed(self, table: _Table, folder: str) -> Mapping[str, _File]:
        """Return the indexes of the live files; those of new ones are made."""
        log = read_state_log(self._store, folder, table.log)
        if log is None:
            table.log, table.files = None, {}
        elif log is not table.log:
            known = table.files
            paths = log.paths
            sizes = {} if known.keys() >= set(paths) else _sizes(self._store, folder)
            files: dict[str, _File] = {}
            for path in paths:
                if path not in known and path not in sizes:
                    raise FileMissing(f"{folder}/{path}")
                files[path] = known[path] if path in known else self._indexed(f"{folder}/{path}", sizes[path])
                if sum(len(file.rows) for file in files.values()) > self._keys_max:
                    raise Conflict(
                        f"{folder}: has more than {self._keys_max:,} keys, the most that a process looks up; read the"
                        " view mq_latest_<topic> with Spark",
                        code="latest_too_large",
                    )
            table.log, table.files = log, files
            self._forget_others(table)
        return table.files

    def _forget_others(self, present: _Table) -> None:
        """Forget the indexes that were asked the longest ago, if all are too large."""
        with self._lock:
            left = sum(table.keys for table in self._tables.values())
            for topic_id, table in list(self._tables.items()):
                if left <= self._keys_max:
                    break
                if table is not present:
                    left -= table.keys
                    del self._tables[topic_id]

    def _indexed(self, key: str, size: int) -> _File:
        footer, footer_at = self._footer(key, size)
        columns = [footer.schema.to_arrow_schema().get_field_index(name) for name in _INDEXED]
        chunks = [
            chunk_range(footer.row_group(group).column(column))
            for group in range(footer.num_row_groups)
            for column in columns
        ]
        rows = self._read(key, size, footer, chunks, range(footer.num_row_groups), _INDEXED)
        ids = rows.column("mq_id")
        marks = rows.filter(pc.starts_with(ids, "p"))
        hashes = np.fromiter(map(hash, ids.to_pylist()), np.int64, len(ids))
        order = np.argsort(hashes, kind="stable")
        counts = [footer.row_group(group).num_rows for group in range(footer.num_row_groups)]
        return _File(
            size=size,
            footer=footer,
            edges=tuple(group_edges(footer, footer_at)),
            starts=np.concatenate(([0], np.cumsum(counts))),
            hashes=hashes[order],
            rows=order.astype(np.int32),
            ends=dict(zip(*(marks.column(name).to_pylist() for name in _INDEXED[1:]), strict=True)),
        )

    def _footer(self, key: str, size: int) -> tuple[pq.FileMetaData, int]:
        start = max(0, size - _FOOTER_BYTES)
        data = self._store.read_parts(key, size, [(start, size)])
        footer_at = footer_start(memoryview(data))
        if not 0 < footer_at < size:
            raise Corrupt(f"{key}: has no parquet footer")
        if footer_at < start:
            data = self._store.read_parts(key, size, [(footer_at, size)])
        try:
            return pq.read_metadata(pa.BufferReader(data)), footer_at
        except (OSError, pa.ArrowException) as error:
            raise Corrupt(f"{key}: the footer cannot be read: {error}") from error

    def _row(self, folder: str, files: Mapping[str, _File], id_: str) -> pa.Table | None:
        wanted = hash(id_)
        for path, file in files.items():
            low, high = (int(np.searchsorted(file.hashes, wanted, side)) for side in ("left", "right"))
            for at in file.rows[low:high].tolist():
                group = int(np.searchsorted(file.starts, at, "right")) - 1
                bounds = [(file.edges[group], file.edges[group + 1])]
                rows = self._read(f"{folder}/{path}", file.size, file.footer, bounds, (group,), None)
                row = rows.slice(at - int(file.starts[group]), 1)
                if row.column("mq_id")[0].as_py() == id_:
                    return row
        return None

    def _read(
        self,
        key: str,
        size: int,
        footer: pq.FileMetaData,
        chunks: list[tuple[int, int]],
        groups: range | tuple[int, ...],
        columns: tuple[str, ...] | None,
    ) -> pa.Table:
        data = self._store.read_parts(key, size, chunks)
        try:
            with pq.ParquetFile(pa.BufferReader(data), metadata=footer, page_checksum_verification=True) as file:
                return file.read_row_groups(
                    list(groups), columns=None if columns is None else list(columns), use_threads=False
                )
        except (OSError, pa.ArrowException) as error:
            raise Corrupt(f"{key}: cannot be read: {error}") from error


def _sizes(store: Store, folder: str) -> Mapping[str, int]:
    return {entry.name: entry.size for entry in store.entries(folder)}
