"""Look-up of a few checkpoints among millions in `state/pop_checkpoints`, without reading the others.

    files of the table --statistics--> files in which something may be due --columns--> row numbers --> whole rows

A data file never changes, so indexes of it are kept: for each queue of each broker the sorted revive times of open
checkpoints, and, if checkpoints are looked up by name, a hash of each name. Both are only caches: they are bounded
together, and what is not in them is read again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import unquote

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from deltamq.mq.errors import Corrupt, Unavailable
from deltamq.mq.limits import REVIVE_QUEUES
from deltamq.tables.delta.file_stats import decoded_stats, time_ms
from deltamq.tables.delta.reader import RowCache
from deltamq.tables.paths import PartitionRef
from deltamq.tables.queue.merge_plan import merged_stops
from deltamq.tables.state.rows import CHECKPOINT_COLUMNS
from deltamq.tables.state.schema import CHECKPOINT_KEY, POP_CHECKPOINTS, POP_CHECKPOINTS_SCHEMA
from deltamq.tables.state.table import StateLog, read_state_log, state_version
from deltamq.tables.store.store import Store

Ints = NDArray[np.int64]

_DUE_TIME: Final = "due_time"
_DUE_COLUMNS: Final = ("broker", "revive_queue", "in_flight", "revive_time")
_ROW_SCHEMA: Final = pa.schema([POP_CHECKPOINTS_SCHEMA.field(name) for name in CHECKPOINT_COLUMNS])
#: Two factors whose bits have nothing in common with offsets or times.
_MIX: Final = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))


class _Sorted(msgspec.Struct, frozen=True):
    """Values in ascending order, each with the number of its row."""

    values: NDArray[np.generic]
    rows: NDArray[np.int32]

    @property
    def nbytes(self) -> int:
        return int(self.values.nbytes + self.rows.nbytes)


class OpenCheckpoints:
    """Access to the newest version of the table, with a cache for its files. For one thread."""

    def __init__(self, store: Store, cache: RowCache) -> None:
        self._store = store
        self._cache = cache
        self._seen: CheckpointTable | None = None

    def look(self) -> CheckpointTable:
        """Return the newest version of the table; an empty table if there is none.

        Raises
        ------
        Corrupt
            The table's log cannot be read.
        Unavailable
            `state_table_gone`: the table was there, and is gone until the merge job makes it again.
        """
        if self._seen is None or self._seen.version != state_version(self._store, POP_CHECKPOINTS):
            log = read_state_log(self._store, POP_CHECKPOINTS)
            merged = merged_stops(self._store, POP_CHECKPOINTS, None if log is None else log.transactions)
            if merged.gone:
                raise Unavailable(f"{POP_CHECKPOINTS} is gone: the job merge makes it again", code="state_table_gone")
            self._seen = CheckpointTable(self._store, self._cache, log or StateLog(), merged.stops)
        return self._seen

    def forget(self) -> None:
        """Read the table's log again at the next `look`: a file that the last version named is gone."""
        self._seen = None


class CheckpointTable:
    """One version of the table. Its methods raise `Corrupt`, and `FileMissing` if the version is outdated."""

    def __init__(self, store: Store, cache: RowCache, log: StateLog, stops: Mapping[PartitionRef, int]) -> None:
        self._store = store
        self._cache = cache
        self._log = log
        self.version = log.version
        #: For each revive log, the offset below which all its records are in this version.
        self.stops = stops

    def due(self, broker: str, queue: int, until_ms: int) -> pa.Table:
        """Return the checkpoints of a queue with messages in flight that fell due at `until_ms` or before.

        The columns are `CHECKPOINT_COLUMNS`, as in `named`.
        """
        tables = []
        for path, stats in self._log.files.items():
            if self._may_be_due(stats, until_ms):
                due = self._due_index(path).get((broker, queue))
                if due is not None and (count := int(np.searchsorted(due.values, until_ms, side="right"))):
                    tables.append(self._rows(path, due.rows[:count]))
        return pa.concat_tables([_ROW_SCHEMA.empty_table(), *tables])

    def next_due_ms(self, broker: str, queue: int, after_ms: int) -> int | None:
        """Return a time after `after_ms` before which nothing else of a queue falls due; None if nothing else will.

        Files that `due` does not open are not opened here either: their statistics have the time.
        """
        times = []
        for path, stats in self._log.files.items():
            if not self._may_be_due(stats, after_ms):
                least = time_ms(decoded_stats(stats or "").minValues.get(_DUE_TIME))
                times += [] if least is None else [least]
                continue
            if (due := self._due_index(path).get((broker, queue))) is not None:
                later = due.values[int(np.searchsorted(due.values, after_ms, side="right")) :]
                times += [int(later[0])] if len(later) else []
        return min(times, default=None)

    def named(self, keys: pa.Table) -> pa.Table:
        """Return the rows of the checkpoints in `keys` (columns `CHECKPOINT_KEY`) that are in the table."""
        if not keys.num_rows or not self._log.files:
            return _ROW_SCHEMA.empty_table()
        times = keys.column("pop_time").cast(pa.int64()).to_numpy()
        wanted = np.unique(_hashes(keys))
        tables = []
        for path, stats in self._log.files.items():
            if _may_hold(stats, "pop_time", int(times.min()) // 1_000, int(times.max()) // 1_000):
                names = self._name_index(path)
                low = np.searchsorted(names.values, wanted, side="left")
                high = np.searchsorted(names.values, wanted, side="right")
                places = [names.rows[a:b] for a, b in zip(low[low < high], high[low < high], strict=True)]
                if places:
                    tables.append(self._rows(path, np.concatenate(places)))
        rows = pa.concat_tables([_ROW_SCHEMA.empty_table(), *tables])
        return rows.join(keys, keys=list(CHECKPOINT_KEY), join_type="left semi") if rows.num_rows else rows

    # Files.

    def _may_be_due(self, stats: str | None, until_ms: int) -> bool:
        """Return whether a file may hold due checkpoints; `due_time` is null in rows with no messages in flight."""
        if not stats:
            return True
        known = decoded_stats(stats)
        if known.numRecords >= 0 and known.nullCount.get(_DUE_TIME) == known.numRecords:
            return False
        least = time_ms(known.minValues.get(_DUE_TIME))
        return least is None or least <= until_ms

    def _due_index(self, path: str) -> dict[tuple[str, int], _Sorted]:
        """Return for each broker and queue when the open checkpoints in a file fall due."""
        key = (POP_CHECKPOINTS, path, _DUE_TIME)
        kept = self._cache.get(key)
        if isinstance(kept, dict):
            return kept
        index = _due_index(self._columns(path, _DUE_COLUMNS))
        self._cache.put(key, index, 256 + sum(256 + entry.nbytes for entry in index.values()))
        return index

    def _name_index(self, path: str) -> _Sorted:
        key = (POP_CHECKPOINTS, path, "names")
        kept = self._cache.get(key)
        if isinstance(kept, _Sorted):
            return kept
        hashes = _hashes(self._columns(path, ("start_offset", "pop_time")))
        order = np.argsort(hashes)
        index = _Sorted(hashes[order], order.astype(np.int32))
        self._cache.put(key, index, 256 + index.nbytes)
        return index

    def _columns(self, path: str, names: Sequence[str]) -> pa.Table:
        with self._open(path) as file:
            return _as_known(file.read(columns=list(names)), names, self._key(path))

    def _rows(self, path: str, rows: NDArray[np.int32]) -> pa.Table:
        """Read whole rows of a file; row groups without any of them are not decoded."""
        wanted, first, tables = np.sort(rows).astype(np.int64), 0, []
        with self._open(path) as file:
            for group in range(file.num_row_groups):
                count = file.metadata.row_group(group).num_rows
                low, high = np.searchsorted(wanted, [first, first + count])
                if low < high:
                    table = file.read_row_group(group, columns=list(CHECKPOINT_COLUMNS), use_threads=False)
                    tables.append(table.take(pa.array(wanted[low:high] - first)))
                first += count
        return _as_known(pa.concat_tables(tables), CHECKPOINT_COLUMNS, self._key(path))

    def _open(self, path: str) -> pq.ParquetFile:
        data = self._store.read(self._key(path))
        try:
            return pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        except (OSError, pa.ArrowException) as error:
            raise Corrupt(f"{self._key(path)}: cannot be read: {error}") from error

    def _key(self, path: str) -> str:
        return f"{POP_CHECKPOINTS}/{unquote(path)}"


def _as_known(table: pa.Table, names: Sequence[str], key: str) -> pa.Table:
    """Return the columns in the order of `names`, with the types of the table's schema."""
    try:
        return table.select(list(names)).cast(pa.schema([POP_CHECKPOINTS_SCHEMA.field(name) for name in names]))
    except (KeyError, pa.ArrowException) as error:
        raise Corrupt(f"{key}: does not have the columns of the table: {error}") from error


def _due_index(rows: pa.Table) -> dict[tuple[str, int], _Sorted]:
    is_open = pc.and_(pc.greater(rows.column("in_flight"), 0), pc.is_valid(rows.column("revive_time")))
    places = pc.indices_nonzero(is_open).to_numpy().astype(np.int64)
    there = rows.take(pa.array(places))
    queues = there.column("revive_queue").to_numpy().astype(np.int64) % REVIVE_QUEUES
    times = there.column("revive_time").cast(pa.int64()).to_numpy() // 1_000
    brokers = there.column("broker").combine_chunks().dictionary_encode()
    index = {}
    for code, broker in enumerate(brokers.dictionary.to_pylist()):
        of_broker = np.asarray(brokers.indices) == code
        for queue in np.unique(queues[of_broker]).tolist():
            mine = np.flatnonzero(of_broker & (queues == queue))
            order = np.argsort(times[mine], kind="stable")
            index[broker, queue] = _Sorted(times[mine][order], places[mine][order].astype(np.int32))
    return index


def _hashes(rows: pa.Table) -> NDArray[np.uint64]:
    """Return a hash of each checkpoint's first offset and pop time, which few others share."""
    offsets = rows.column("start_offset").to_numpy().astype(np.uint64)
    times = rows.column("pop_time").cast(pa.int64()).to_numpy().astype(np.uint64)
    hashes: NDArray[np.uint64] = (offsets * _MIX[0]) ^ (times * _MIX[1])
    return hashes


def _may_hold(stats: str | None, column: str, low_ms: int, high_ms: int) -> bool:
    if not stats:
        return True
    known = decoded_stats(stats)
    least, greatest = time_ms(known.minValues.get(column)), time_ms(known.maxValues.get(column))
    # The greatest time may have been cut to milliseconds.
    return least is None or greatest is None or (least <= high_ms and low_ms <= greatest + 1)
