"""The warehouse: the folder or bucket that holds all tables, and the open partitions of this process."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from deltamq.mq.errors import READ_ONLY, Corrupt, DeltaMQError, Refused, Unavailable
from deltamq.tables.clock import SYSTEM_CLOCK, Clock
from deltamq.tables.delta.creation import create_table
from deltamq.tables.delta.protocol import MESSAGE_PROTOCOL, MESSAGE_TABLE_SETTINGS
from deltamq.tables.delta.reader import RowCache
from deltamq.tables.delta.snapshot import LOG_KEEP, ORPHAN_KEEP, PartitionNotFound, load, log_versions, typed_settings
from deltamq.tables.log.bounds import BOUNDS, LogBounds
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.tail import TailBudget
from deltamq.tables.paths import PartitionRef, Space, generation_of, parse_ref, topic_folder
from deltamq.tables.settings import LogSettings
from deltamq.tables.store.at_once import at_once
from deltamq.tables.store.call_counts import CallCounts
from deltamq.tables.store.file_pool import PoolingFiles
from deltamq.tables.store.local import LocalStore, OsFiles, check_root, make_root
from deltamq.tables.store.object import ObjectStore
from deltamq.tables.store.store import Store, probe
from deltamq.tables.store.unsynced import Unsynced
from deltamq.tables.typed.codec import Codec
from deltamq.tables.typed_row import delta_json_of, row_schema

log = logging.getLogger("deltamq.tables")

#: A file that is there while a backup is being restored to a warehouse.
RESTORING: Final = "restoring.json"


def open_store(uri: str, *, create: bool) -> Store:
    """Return the store for a warehouse URI: a folder, `file://`, or an object store.

    Raises
    ------
    Unavailable
        `store_gone`: the folder is not there, and only `create` makes it.
    """
    scheme = urlsplit(uri).scheme
    if scheme in ("", "file"):
        path = Path(urlsplit(uri).path if scheme else uri).absolute()
        if create:
            make_root(str(path), OsFiles())
        check_root(str(path))
        with contextlib.suppress(OSError):
            return LocalStore(path, PoolingFiles(str(path)))
        return LocalStore(path)  # nothing can be made there, so no pool; who reads needs none
    if scheme in ("s3", "s3a", "gs", "az", "abfs", "abfss"):
        return ObjectStore(uri.replace("s3a://", "s3://", 1))
    raise Refused(
        f"warehouse: {scheme}:// is not supported; use a folder, s3://, gs:// or abfss://",
        code="invalid_warehouse",
        field="warehouse",
    )


class Warehouse:
    """All message tables below one root. Safe for threads."""

    def __init__(self, store: Store, *, settings: LogSettings, clock: Clock, bounds: LogBounds = BOUNDS) -> None:
        self.store = store
        self.settings = settings
        self.clock = clock
        #: Whether this process may write there: when it was opened, if the storage knows.
        self.may_write = True
        self._bounds = bounds
        self._cache = RowCache(settings.cache_bytes_max)
        self._tails = TailBudget(settings.tails_bytes_max)
        self._logs: dict[PartitionRef, PartitionLog] = {}
        self._lock = threading.Lock()
        self._opening: dict[PartitionRef, threading.Lock] = {}
        self._closed = threading.Event()
        self._flusher: threading.Thread | None = None
        #: The unsynced files of partitions that have any; the other partitions cost the flusher nothing.
        self._unsynced: set[Unsynced] = set()
        self._stopped: dict[PartitionRef, DeltaMQError] = {}
        #: Commits that another writer's has beaten, so that they were made again.
        self.lost_races = 0

    @classmethod
    def open(
        cls,
        uri: str,
        *,
        settings: LogSettings | None = None,
        clock: Clock = SYSTEM_CLOCK,
        store: Store | None = None,
        bounds: LogBounds = BOUNDS,
        create: bool = True,
    ) -> Warehouse:
        """Open the warehouse at `uri`; if it does not exist, it is made, but only with `create`.

        Raises
        ------
        StoreUnsafe
            Put-if-absent does not hold there: appends could overwrite each other (SPEC RELY-3).
        Unavailable
            `restore_unfinished`: a part of a backup is there. `store_gone`: nothing is there, and `create` is false.
        """
        opened = store if store is not None else open_store(uri, create=create)
        if opened.exists(RESTORING):
            raise Unavailable(
                f"{opened.uri('')}: a restore has not ended; if it was interrupted, run `deltamq backup restore` again",
                code="restore_unfinished",
            )
        may_write = probe(opened)
        warehouse = cls(opened, settings=settings or LogSettings(), clock=clock, bounds=bounds)
        warehouse.may_write = may_write
        return warehouse

    def check_may_write(self, who: str) -> None:
        """Raise `Unavailable` (`storage_read_only`) if this process may only read here; `who` needs more."""
        if not self.may_write:
            raise Unavailable(
                f"this process may only read {self.uri}, and {who} must write there: start it as a user that may, or "
                "with other credentials",
                code=READ_ONLY,
            )

    @property
    def uri(self) -> str:
        """The URI that other engines open."""
        return self.store.uri("")

    @property
    def folder(self) -> Path | None:
        """The folder of the tables on this machine's disks; None on an object store."""
        return Path(self.store.uri("")) if isinstance(self.store, LocalStore) else None

    @property
    def is_far(self) -> bool:
        """Whether each call of the store takes a round trip, and is paid for."""
        return not self.store.cheap_look

    @property
    def store_calls(self) -> CallCounts | None:
        """The calls of the object store that holds the tables; None on this machine's disks."""
        return self.store.calls if isinstance(self.store, ObjectStore) else None

    def location(self, ref: PartitionRef) -> str:
        """Return the URI of a partition's Delta table."""
        return self.store.uri(ref.folder)

    def create(
        self,
        ref: PartitionRef,
        *,
        table_id: str | None = None,
        is_new: bool = False,
        codec: Callable[[], Codec | None] = lambda: None,
    ) -> PartitionLog:
        """Create the partition's table if it does not exist, and open it; any number of processes may call this.

        `is_new`: the partition belongs to a life that has just begun, so nobody has stored anything there; then the
        table is put without a look. The table of a typed topic begins with the columns of its `codec`.
        """
        if is_new or not self.exists(ref):
            typed = codec()
            configuration = {
                "mq.topic": ref.topic,
                "mq.partition": ref.name,
                LOG_KEEP: str(self.settings.log_keep_ms),
                ORPHAN_KEEP: str(self.settings.orphan_keep_ms),
                **MESSAGE_TABLE_SETTINGS,
                **({} if typed is None else typed_settings(rendered=typed.is_rendered)),
            }
            try:
                create_table(
                    self.store,
                    ref.folder,
                    schema=delta_json_of(row_schema(None if typed is None else typed.value_type)),
                    name=ref.name,
                    configuration=configuration,
                    protocol=MESSAGE_PROTOCOL,
                    now_ms=self.clock.wall_us() // 1000,
                    table_id=table_id,
                    is_new=is_new,
                )
            except Corrupt as error:
                self._stop(ref, error)
                raise
        return self.open_partition(ref)

    def open_partition(self, ref: PartitionRef) -> PartitionLog:
        """Return the open partition: the same object for the same reference.

        Raises
        ------
        PartitionNotFound
            There is no such table.
        Corrupt
            The partition's log or files contradict each other.
        Unavailable
            `table_newer`: the table has a reader feature that this release does not know (SPEC META-9).
        """
        opened = self._logs.get(ref)
        if opened is not None:
            return opened
        with self._lock:
            opening = self._opening.setdefault(ref, threading.Lock())
        with opening:
            opened = self._logs.get(ref)
            if opened is None:
                opened = self._opened(ref)
                with self._lock:
                    self._logs[ref] = opened
                    self._start_flusher()
        return opened

    def _opened(self, ref: PartitionRef) -> PartitionLog:
        try:
            opened = PartitionLog(
                ref,
                self.store,
                settings=self.settings,
                clock=self.clock,
                cache=self._cache,
                tails=self._tails,
                on_unsynced=self._unsynced.add,
                on_stop=partial(self._stop, ref),
                on_race=self._note_race,
                bounds=self._bounds,
            )
        except Corrupt as error:
            self._stop(ref, error)
            raise
        self._stopped.pop(ref, None)
        return opened

    def _stop(self, ref: PartitionRef, error: DeltaMQError) -> None:
        """Note, and log once, that a partition refuses all calls (SPEC RELY-10)."""
        is_new = ref not in self._stopped
        self._stopped[ref] = error
        if is_new:
            log.error("event=partition_stopped folder=%s code=%s detail=%r", ref.folder, error.code, error.detail)

    def _note_race(self) -> None:
        with self._lock:
            self.lost_races += 1

    @property
    def stopped(self) -> Mapping[PartitionRef, DeltaMQError]:
        """The partitions that refuse all calls of this process, or could not be opened, each with its error."""
        return dict(self._stopped) if self._stopped else {}

    def close_partition(self, ref: PartitionRef) -> None:
        """Flush and close an open partition, for processes that open many; no thread may be using it."""
        with self._lock:
            opened = self._logs.pop(ref, None)
            self._opening.pop(ref, None)
            self._stopped.pop(ref, None)
        if opened is not None:
            opened.close()
            opened.release()

    def exists(self, ref: PartitionRef) -> bool:
        """Return whether the partition has a table; a folder with only a dead process's temporary file has none."""
        return ref in self._logs or any(log_versions(self.store, ref.folder))

    def refs(self, space: Space) -> list[PartitionRef]:
        """Return all partitions that have a folder in `space`."""
        return list(refs(self.store, space))

    def refs_of(self, space: Space, topic: str) -> list[PartitionRef]:
        """Return all partitions of one topic that have a folder in `space`; only the topic's own folder is listed."""
        folder = topic_folder(space, topic)
        return _refs_in(self.store, space, folder.rpartition("/")[2])

    def drop_topic(self, space: Space, topic: str, generation: int) -> None:
        """Remove all partitions of one generation of a topic, open or not; their data is gone when this returns."""
        with self._lock:
            known = [*self._logs, *self._stopped]
            for ref in [r for r in known if (r.space, r.topic, r.generation) == (space, topic, generation)]:
                self._stopped.pop(ref, None)
                if ref in self._logs:
                    self._logs.pop(ref).release()
        folder = topic_folder(space, topic)
        for partition in self.store.folders(folder):
            if generation_of(partition) == generation:
                self.store.delete_tree(f"{folder}/{partition}")

    def drop_partition(self, ref: PartitionRef) -> None:
        """Remove one partition, open or not; its data is gone when this returns."""
        with self._lock:
            opened = self._logs.pop(ref, None)
            self._opening.pop(ref, None)
            self._stopped.pop(ref, None)
        if opened is not None:
            opened.release()
        self.store.delete_tree(ref.folder)

    @property
    def open_logs(self) -> list[PartitionLog]:
        """The partitions that are open in this process."""
        with self._lock:
            return list(self._logs.values())

    def _start_flusher(self) -> None:
        if self._flusher is None:
            self._flusher = threading.Thread(target=self._flush_forever, name="mq-flush", daemon=True)
            self._flusher.start()

    def _flush_forever(self) -> None:
        """Sync `Flush.ASYNC` appends at a regular interval, which bounds what a power cut can lose."""
        while not self._closed.wait(self.settings.flush_interval_ms / 1000):
            # The next durable append meets this error again, and reports it.
            with contextlib.suppress(DeltaMQError, OSError):
                self.store.prepare()
            self._flush()

    def _flush(self) -> None:
        """Sync the files that were added since the last call; after an error they wait for the next call."""
        failed = []
        while self._unsynced:
            # Taken out before its sync: files that are added in the meantime put it back.
            unsynced = self._unsynced.pop()
            try:
                unsynced.sync()
            except DeltaMQError:
                failed.append(unsynced)
        self._unsynced.update(failed)

    def close(self) -> None:
        """Flush and close all open partitions and the store."""
        self._closed.set()
        if self._flusher is not None:
            self._flusher.join()
        for log in self.open_logs:
            log.close()
        self.store.close()


def refs(store: Store, space: Space) -> Iterator[PartitionRef]:
    """Yield all partitions that have a folder in `space`, by folder name."""
    for found in at_once(store, partial(_refs_in, store, space), store.folders(space.value)):
        yield from found


def _refs_in(store: Store, space: Space, topic: str) -> list[PartitionRef]:
    found = []
    for partition in store.folders(f"{space.value}/{topic}"):
        if "@" in partition:
            ref = parse_ref(space, topic, partition) or _named_inside(store, space, topic, partition)
            if ref is not None:
                found.append(ref)
    return found


def _named_inside(store: Store, space: Space, topic: str, partition: str) -> PartitionRef | None:
    """Return the partition of a folder into which its names did not fit; None while its table is being created."""
    try:
        configuration = load(store, f"{space.value}/{topic}/{partition}").configuration
    except PartitionNotFound:
        return None
    return PartitionRef(space, configuration["mq.topic"], configuration["mq.partition"], generation_of(partition))
