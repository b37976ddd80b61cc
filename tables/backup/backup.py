"""A backup of a warehouse, made while everything runs (SPEC RELY-12).

    1 state tables with their plans, files of jobs
    2 sys/ logs without the metadata        has retention removed what the copied tables lack? Then 1 and 2 again
    3 sys/meta
    4 topics, retries, dead letters         have topics, groups or brokers changed since 3? Then 3 and 4 again

Each table is copied at one version. What refers to another table is copied before it, so nothing in a backup lies
beyond the end of what it refers to: an offset that a group committed, a message that a checkpoint names, a record that
is merged. What a table has besides is as after a kill (I10, I11): an acknowledgement that is not in the backup brings
its message again, and a message that was moved in the meantime is not moved twice. Fences, seals and folders follow the
events that decide about them, and a backup must not have the one without the other: hence the look after step 4, at
the offsets of the last events.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from threading import Lock
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from deltamq.mq.errors import Corrupt, NotFound, Unavailable
from deltamq.tables.backup.files import Backup, BackupFolder, StoredFile, walk
from deltamq.tables.delta.actions import commit_name
from deltamq.tables.delta.checkpoint import hint_key, write_checkpoint
from deltamq.tables.delta.creation import check_no_data
from deltamq.tables.delta.reader import FileReader, RowCache
from deltamq.tables.delta.snapshot import PartitionNotFound, load, log_versions
from deltamq.tables.failpoints import failpoint
from deltamq.tables.log.warehouse import refs
from deltamq.tables.ops.applied import APPLIED
from deltamq.tables.paths import LOG_FOLDER, PartitionRef, Space
from deltamq.tables.queue.merge_plan import MERGED_TABLES, plan_keys, watermark
from deltamq.tables.queue.metadata import META_PARTITION, MetaFollower
from deltamq.tables.state.table import checkpoint_key, commit_key, read_state_log, state_transactions
from deltamq.tables.store.local import HEAD, TEMP_PREFIX
from deltamq.tables.store.store import FileMissing, MemoryStore, Store

#: Called with the tables done, the tables to do, and the bytes that were copied.
Progress = Callable[[int, int, int], None]

#: The parts of the metadata that fences, seals and folders of logs depend on.
_LAYOUT: Final = ("topics", "groups", "brokers", "moved", "static")
#: Passes over the logs; each after the first copies only what has changed since the one before.
_PASSES: Final = 10
#: Tries for one table: a roll-up or clean-up may remove what is being copied.
_TABLE_TRIES: Final = 5
_THREADS: Final = 8
_JOBS: Final = "jobs"
_EXPORTS: Final = "jobs/export"
#: The secret that signs handles: those that consumers hold stay good.
_HANDLE_KEYS: Final = "sys/handle_keys"
#: Folders of `jobs/` that say who runs now; plans, copied with their tables; exports, whose tables are elsewhere.
_NOT_COPIED: Final = ("apps", "running", "shards", "batches", "export")
#: Files of jobs that may be large and have names of their own.
_LARGE: Final = (".arrow", ".parquet")


class _Copied(msgspec.Struct):
    """A table in the backup."""

    version: int
    messages: int
    files: tuple[StoredFile, ...]
    #: Its log and small files, by key.
    contents: Mapping[str, bytes]
    min_offset: int = 0
    #: Of a table that is merged from logs: how far it has each log.
    stops: Mapping[PartitionRef, int] = msgspec.field(default_factory=dict)


class _Making(msgspec.Struct):
    """A backup that is being made."""

    store: Store
    folder: BackupFolder
    now_ms: int
    progress: Progress
    #: Data files that earlier backups have, by key.
    known: dict[str, StoredFile]
    tables: dict[str, _Copied] = msgspec.field(default_factory=dict)
    damaged: dict[str, str] = msgspec.field(default_factory=dict)
    copied: int = 0
    done: int = 0
    todo: int = 0
    lock: Lock = msgspec.field(default_factory=Lock)

    def each(self, below: str, folders: Sequence[str], copy: Callable[[str], _Copied | None]) -> None:
        """Copy all tables below a folder, several at once, in place of those that an earlier pass copied.

        Those that are gone are left out, those that are damaged are noted.
        """
        for kept in (self.tables, self.damaged):
            for folder in [folder for folder in kept if folder.startswith(below) and folder not in folders]:
                kept.pop(folder)
        self.todo += len(folders)
        with ThreadPoolExecutor(_THREADS) as pool:
            for folder, copied in zip(folders, pool.map(partial(self._tried, copy), folders), strict=True):
                self.done += 1
                if copied is not None:
                    self.tables[folder] = copied
                else:
                    self.tables.pop(folder, None)
                self.progress(self.done, self.todo, self.copied)

    def _tried(self, copy: Callable[[str], _Copied | None], folder: str) -> _Copied | None:
        self.damaged.pop(folder, None)
        fault = ""
        for _ in range(_TABLE_TRIES):
            try:
                return copy(folder)
            except PartitionNotFound:
                return None
            except (Corrupt, FileMissing) as error:
                fault = error.detail
        if self.store.folders(folder) or self.store.names(folder):  # else it was deleted in the meantime
            self.damaged[folder] = fault
        return None

    def file(self, key: str, read: Callable[[], pa.Buffer]) -> StoredFile:
        """Return a data file of the backup, copied unless it is there."""
        present = self.known.get(key)
        if present is not None:
            return present
        data = read()
        stored = self.folder.put_file(key, data)
        with self.lock:
            self.known[key] = stored
            self.copied += stored.size
        return stored

    # The kinds of tables.

    def log(self, folder: str) -> _Copied:
        """Copy a message table: its data files, and its newest version as a checkpoint."""
        present = self.tables.get(folder)
        if present is not None and log_versions(self.store, folder)[0][-1:] == [present.version]:
            return present
        try:
            snapshot = load(self.store, folder)
        except PartitionNotFound:
            check_no_data(self.store, folder)
            raise
        reader = FileReader(self.store, folder, RowCache(0))
        files = tuple(self.file(f"{folder}/{live.path}", partial(reader.whole, live)) for live in snapshot.files)
        log = f"{folder}/{LOG_FOLDER}"
        written = MemoryStore()
        write_checkpoint(written, folder, snapshot.checkpoint(), now_ms=self.now_ms)
        contents = {f"{log}/{name}": written.read(f"{log}/{name}").to_pybytes() for name in written.names(log)}
        contents |= self.small(f"{log}/{commit_name(snapshot.version)}")
        messages = snapshot.end_offset - snapshot.min_offset
        return _Copied(snapshot.version, messages, files, contents, snapshot.min_offset)

    def state(self, folder: str) -> _Copied | None:
        """Copy a state table, and then the plans that its version refers to (I13)."""
        table = read_state_log(self.store, folder)
        if table is None:
            return None
        keys = [f"{folder}/{path}" for path in table.paths]
        files = tuple(self.file(key, partial(_parquet, self.store, key)) for key in keys)
        base = table.checkpoint_version
        contents: dict[str, bytes] = {}
        stops: Mapping[PartitionRef, int] = {}
        if base >= 0:
            contents |= self.small(checkpoint_key(folder, base)) | self.small(hint_key(folder), needed=False)
        for version in range(base + 1, table.version + 1):
            contents |= self.small(commit_key(folder, version))
        if folder in MERGED_TABLES:
            plan = watermark(self.store, folder, table.transactions)
            stops = plan.stops
            for key in plan_keys(self.store, folder, plan.batch):
                contents |= self.small(key, needed=False)
        return _Copied(table.version, 0, files, contents, stops=stops)

    def lacks_records(self) -> bool:
        """Return whether retention removed records from a copied log that are not in the copied table of them."""
        for table in MERGED_TABLES:
            copied = self.tables.get(table)
            live = watermark(self.store, table, state_transactions(self.store, table) or {})
            for ref in live.logs:
                log = self.tables.get(ref.folder)
                if log is not None and log.min_offset > (0 if copied is None else copied.stops.get(ref, 0)):
                    return True
        return False

    def small(self, key: str, *, needed: bool = True) -> dict[str, bytes]:
        """Return a small file's content by its key; nothing for one that is gone and not needed."""
        try:
            return {key: self.store.read(key).to_pybytes()}
        except FileMissing:
            if needed:
                raise
            return {}

    def rest(self, folder: str) -> _Copied:
        """Copy what lies below a folder that is no table."""
        files: list[StoredFile] = []
        contents: dict[str, bytes] = {}
        for key, listed in walk(self.store, folder):
            if listed.name.startswith(TEMP_PREFIX) or listed.name == HEAD:
                continue
            with contextlib.suppress(FileMissing):  # removed in the meantime: a run that ended
                if listed.name.endswith(_LARGE):
                    files.append(self.file(key, partial(self.store.read, key)))
                else:
                    contents |= self.small(key)
        return _Copied(0, 0, tuple(files), contents)


def back_up(store: Store, to: Store, *, now_ms: Callable[[], int], progress: Progress = lambda *_: None) -> Backup:
    """Make a backup of the warehouse in `store`, in the folder or bucket `to`; nothing else changes in either.

    Parameters
    ----------
    now_ms
        Returns the wall clock's time in milliseconds.

    Raises
    ------
    NotFound
        `warehouse_not_found`: there is no metadata.
    Unavailable
        `layout_changes`: topics, groups or processes change faster than they can be copied.
    """
    began_ms = now_ms()
    folder = BackupFolder(to)
    known = {file.key: file for name in folder.names()[-1:] for file in folder.backup(name).files}
    making = _Making(store=store, folder=folder, now_ms=began_ms, progress=progress, known=known)
    try:
        layout = MetaFollower(store)
    except PartitionNotFound as error:
        raise NotFound(f"there is no warehouse at {store.uri('')}", code="warehouse_not_found") from error
    for _ in range(_PASSES):
        making.each("state/", [f"state/{name}" for name in store.folders("state")], making.state)
        making.each("jobs/", _job_folders(store), making.rest)
        logs = [folder for folder in _logs(store, Space.SYS) if folder != META_PARTITION.folder]
        making.each("sys/", logs, making.log)
        if not making.lacks_records():
            break
    else:
        raise Unavailable("retention removes records faster than they can be copied", code="contention")
    making.each(_HANDLE_KEYS, [_HANDLE_KEYS], making.rest)
    making.each(f"{APPLIED}/", [APPLIED], making.rest)
    for _ in range(_PASSES):
        told = layout.told
        making.each(META_PARTITION.folder, [META_PARTITION.folder], making.log)
        for space in (Space.TOPICS, Space.RETRY, Space.DLQ):
            making.each(f"{space.value}/", _logs(store, space), making.log)
        layout.refresh()
        if all(layout.told.get(part) == told.get(part) for part in _LAYOUT):
            break
    else:
        raise Unavailable(
            "topics, groups or processes changed during each copy: make the backup when no topics are made, no queues "
            "move and no process starts or stops",
            code="layout_changes",
        )
    return _finished(making, layout.warehouse_id, began_ms, now_ms)


def _finished(making: _Making, warehouse: str, began_ms: int, now_ms: Callable[[], int]) -> Backup:
    if META_PARTITION.folder not in making.tables:
        raise Corrupt(f"sys/meta cannot be copied: {making.damaged.get(META_PARTITION.folder, 'it is gone')}")
    at = datetime.fromtimestamp(began_ms / 1_000, UTC)
    name = f"{at:%Y%m%dT%H%M%S}.{began_ms % 1_000:03d}Z-{uuid.uuid4().hex[:4]}"
    tables = making.tables.values()
    contents = {key: data for table in tables for key, data in table.contents.items()}
    backup = Backup(
        name=name,
        warehouse=warehouse,
        began_ms=began_ms,
        ended_ms=now_ms(),
        tables=sum(1 for table in tables if table.version),
        messages=sum(table.messages for name, table in making.tables.items() if name.startswith(Space.TOPICS.value)),
        files=tuple(sorted((file for table in tables for file in table.files), key=lambda file: file.key)),
        archive=making.folder.put_archive(name, contents),
        damaged=making.damaged,
        exports=tuple(name.removesuffix(".json") for name in making.store.names(f"{_EXPORTS}/definitions")),
    )
    failpoint("backup.before_description")
    making.folder.check_files(backup)
    making.folder.put(backup)
    return backup


def _logs(store: Store, space: Space) -> list[str]:
    return [ref.folder for ref in refs(store, space)]


def _job_folders(store: Store) -> list[str]:
    """Return the folders of jobs without those that say who runs now, and without exports."""
    jobs = [f"{_JOBS}/{job}" for job in store.folders(_JOBS) if job not in _NOT_COPIED]
    return [f"{job}/{name}" for job in jobs for name in store.folders(job) if name not in _NOT_COPIED]


def _parquet(store: Store, key: str) -> pa.Buffer:
    """Return a Parquet file; raises `Corrupt` if its footer cannot be read."""
    data = store.read(key)
    try:
        pq.read_metadata(pa.BufferReader(data))
    except (OSError, pa.ArrowException) as error:
        raise Corrupt(f"{key}: cannot be read: {error}") from error
    return data
