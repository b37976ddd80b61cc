"""Erasing keys in one partition: rows lose what they say, and keep their places (SPEC ERASE-1).

    find       the column `key` of each live file, page by page; only files with rows to erase are read further
    note       the places of these rows, before they say nothing: exports have their copies by these (SPEC ERASE-6)
    encode     row group by row group: key, headers, body and typed columns of these rows become null
    commit     one file in the place of one, operation ERASE, with dataChange: streams of other engines notice
    checkpoint typed tables: commits have bounds of values, which a checkpoint behind them makes superfluous

Offsets, message ids, tags, times, origins and producers' requests stay: readers, groups and idempotent producers go on.
A row is erased if it has a key of the request, and was appended or born until the request. So are copies, which keep
the born time: retries, dead letters, messages that are sent back or were delayed.

A kill at any line leaves each file as it was or replaced. Roll-ups, compaction and retention race for the next version;
files that they made meanwhile are looked at in the next round.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from deltamq.mq.errors import Corrupt
from deltamq.tables.delta.actions import ERASE, DataFile
from deltamq.tables.delta.checkpoint import checkpoint_names, write_checkpoint
from deltamq.tables.delta.large_file import encode_large_file
from deltamq.tables.delta.reader import FileReader, RowCache
from deltamq.tables.delta.snapshot import LOG_KEEP, ORPHAN_KEEP, log_versions
from deltamq.tables.failpoints import failpoint
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.ops.erasures import Erasure, note_places
from deltamq.tables.paths import LOG_FOLDER, PartitionRef, Space
from deltamq.tables.schema import MESSAGE_SCHEMA, TIME
from deltamq.tables.store.store import FileMissing, Store
from deltamq.tables.typed_row import TYPED, conformed_rows, value_type

#: Size of the cache: each row group is read once, so nothing is kept.
_CACHE_BYTES: Final = 1
_BATCH_PREFIX: Final = "e"
_DATA_FILE: Final = ".parquet"
#: The columns that say whether a row is to be erased, in the order of the schema.
_FACTS: Final = ("key", "born_time", "append_time", "origin")
_BLANKED: Final = ("key", "headers", "body", *TYPED)
#: The columns of a file of places; `folder` is the partition's.
PLACES: Final = pa.schema([("folder", pa.string()), ("offset", pa.int64()), ("append_time", TIME)])
#: Spaces whose partitions have messages of several topics.
_SHARED: Final = (Space.DLQ, Space.SYS)


class Left(msgspec.Struct, frozen=True):
    """Files of a partition that are not live and still have content to erase."""

    #: Known to be removed by a commit, or not: then a writer may be about to commit them.
    dead: list[str]
    unknown: list[str]


class Eraser:
    """Erases the keys of one request in one partition. Blocking."""

    def __init__(self, warehouse: Warehouse, ref: PartitionRef, erasure: Erasure) -> None:
        """Open the partition; raises `PartitionNotFound`."""
        self._log = warehouse.open_partition(ref)
        self._store = warehouse.store
        self._clock = warehouse.clock
        self._row_group_rows = warehouse.settings.row_group_rows
        self._files = FileReader(warehouse.store, ref.folder, RowCache(_CACHE_BYTES))
        self._ref = ref
        self._keys = pa.array(erasure.keys, pa.string())
        self._until = pa.scalar(erasure.asked_us, TIME)
        self._topic = erasure.topic
        self._id = erasure.id

    @property
    def is_typed(self) -> bool:
        """Whether the table has columns of values, with bounds in its commits."""
        return value_type(self._log.state.row_schema) is not None

    @property
    def log_keep_ms(self) -> int:
        """How long all processes keep commits of this table."""
        return self._log.state.keep_ms(LOG_KEEP, 0)

    @property
    def orphan_keep_ms(self) -> int:
        """How long a writer may take to commit a file of this table."""
        return self._log.state.keep_ms(ORPHAN_KEEP, 0)

    def erase(self) -> tuple[int, list[str]]:
        """Erase all rows that are stored now; return their number, and the paths of the files that were replaced.

        Raises
        ------
        Corrupt
            A file does not hold what the log says; it is unchanged, and files before it may be done.
        Unknown
            A file may be replaced; calling again is safe.
        """
        self._log.refresh()
        end, rows = self._log.end_offset, 0
        clean: set[str] = set()
        replaced: list[str] = []
        while files := [file for file in self._log.files if file.start < end and file.path not in clean]:
            for file in files:
                try:
                    due = self._due_in(file)
                    made = self._replaced(file) if due else file.path
                except Corrupt:
                    self._log.refresh()
                    if self._log.are_live([file]):
                        raise
                    continue  # it was rolled up, and deleted before this process knew
                if made is None:
                    continue
                clean.add(made)
                if due:
                    rows += len(due)
                    replaced.append(file.path)
            self._log.refresh()
        return rows, replaced

    def _due_in(self, file: DataFile) -> pa.Table:
        """Return the places of the rows of a file that are to be erased, and note them for exports."""
        keys = self._files.groups(file, file.start, file.end, ["key"], by_page=True)
        if not any(pc.any(pc.is_in(rows.column("key"), self._keys)).as_py() for rows in keys):
            return PLACES.empty_table()
        facts = self._files.groups(file, file.start, file.end, ["offset", *_FACTS], by_page=True)
        found = pa.concat_tables(rows.filter(self._due(rows)).select(["offset", "append_time"]) for rows in facts)
        due = found.add_column(0, "folder", pa.repeat(self._ref.folder, found.num_rows)).cast(PLACES)
        if due and self._ref.space is Space.TOPICS:
            data = pa.BufferOutputStream()
            pq.write_table(due, data)
            note_places(self._store, self._id, data.getvalue())
        return due

    def _due(self, rows: pa.Table) -> pa.ChunkedArray:
        """Return for each row whether it is to be erased."""
        due = pc.is_in(rows.column("key"), self._keys)
        times = (pc.less_equal(rows.column(name), self._until) for name in ("append_time", "born_time"))
        due = pc.and_(due, pc.or_(*(pc.fill_null(time, False) for time in times)))
        if self._ref.space in _SHARED:
            # a dead letter's origin is its topic; a delayed message's begins with the topic's id and a slash
            topics = pc.struct_field(rows.column("origin"), "topic")
            of_topic = pc.or_(pc.equal(topics, self._topic), pc.ends_with(topics, f"/{self._topic}"))
            due = pc.and_(due, pc.fill_null(of_topic, False))
        return due

    def _replaced(self, file: DataFile) -> str | None:
        """Replace a file by one without the content; return its path, None if another process replaced it first."""
        encoded = encode_large_file(
            self._blanked(file),
            self._log.parts_of(file),
            batch_id=_BATCH_PREFIX + uuid.uuid4().hex[1:],
            now_ms=self._clock.wall_us() // 1000,
            row_group_rows=self._row_group_rows,
        )
        failpoint("erase.before_put")
        if not self._log.rewrite([encoded], [file], operation=ERASE):
            self._store.delete(f"{self._ref.folder}/{encoded.file.path}")
            return None
        failpoint("erase.after_commit")
        return encoded.file.path

    def _blanked(self, file: DataFile) -> Iterator[pa.Table]:
        schema = self._log.state.row_schema
        for stored in self._files.groups(file, file.start, file.end, schema.names):
            rows = conformed_rows(stored, schema)
            due = self._due(rows)
            if not pc.any(due).as_py():
                yield rows
                continue
            # a place that is null gives null, whatever the type
            places = pa.array(range(rows.num_rows), pa.int64(), mask=due.to_numpy())
            for at, field in enumerate(schema):
                if field.name in _BLANKED:
                    rows = rows.set_column(at, field, rows.column(at).combine_chunks().take(places))
            yield rows

    def checkpoint(self) -> int:
        """Store a log checkpoint; return its version. No commit from there on has bounds of what was erased."""
        checkpoint = self._log.state.checkpoint()
        self._log.flush()
        write_checkpoint(self._store, self._ref.folder, checkpoint, now_ms=self._clock.wall_us() // 1000)
        self._log.state.checkpointed(checkpoint.version)
        return checkpoint.version

    def left(self) -> Left:
        """Return the files that are not live and have rows to erase: what compaction left, or a killed writer."""
        names = [name for name in self._store.names(self._ref.folder) if name.endswith(_DATA_FILE)]
        self._log.refresh()  # after the listing: what was committed meanwhile is live
        live, dead = {file.path for file in self._log.files}, self._log.dead_paths
        left = [name for name in names if name not in live and self._has_due(name)]
        return Left([name for name in left if name in dead], [name for name in left if name not in dead])

    def _has_due(self, name: str) -> bool:
        try:
            data = self._store.read(f"{self._ref.folder}/{name}")
        except FileMissing:
            return False
        try:
            fields = [MESSAGE_SCHEMA.field(column) for column in _FACTS]
            rows = pq.read_table(pa.BufferReader(data), columns=list(_FACTS)).cast(pa.schema(fields))
        except (OSError, pa.ArrowException, KeyError, ValueError):
            content = bytes(data)  # torn: its writer was killed
            return any(key.encode() in content for key in self._keys.to_pylist())
        return bool(pc.any(self._due(rows)).as_py())


def clean_log(store: Store, folder: str, version: int) -> None:
    """Delete commits and checkpoints before `version`, the oldest first, if a checkpoint stands for them.

    The caller has waited for the time that commits are kept (ARCHITECTURE I5).
    """
    commits, checkpoints = log_versions(store, folder)
    if not checkpoints or checkpoints[-1] < version:
        return  # the topic was deleted, and made again
    log = f"{folder}/{LOG_FOLDER}"
    for commit in commits:
        if commit < version:
            store.delete(f"{log}/{commit:020d}.json")
    for checkpoint in checkpoints:
        if checkpoint < version:
            for name in checkpoint_names(checkpoint):
                store.delete(f"{log}/{name}")
