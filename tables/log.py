"""One partition as a log: append, read, find by time, watch. Safe for threads; blocking, so not for an event loop.

    append --> dedupe --> stamp --> [ number --> data file --> commit ]  --> tail, window, files
                                      ^------- lost a race ------'

Appends of one partition are serial (one commit in flight; callers group what waits meanwhile). Readers take no
lock: they use lists and tuples that writers replace rather than change.
"""

from __future__ import annotations

import threading
import uuid
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa

from mq.errors import Corrupt, DeltaMQError, OffsetMismatch, Unavailable, Unknown
from mq.limits import OFFSET_MAX
from mq.producer import Part, ProducerSeen, ProducerWindow
from tables.actions import Commit, DataFile, commit_name, encode_append, encode_rewrite
from tables.batch import Appended, Batch, appended, one_batch, only, repeats, requests
from tables.checkpoint import Checkpoint
from tables.clock import Clock
from tables.commit import CommitLog, LostRace
from tables.encode import Encoded, RowsPart, encode_file, numbered, stamp
from tables.failpoints import failpoint
from tables.fetch import Fetched, cut_to_bytes, fetched, status_of
from tables.paths import LOG_FOLDER, PartitionRef
from tables.reader import FileReader, RowCache
from tables.schema import MESSAGE_SCHEMA
from tables.settings import STALE_FRACTION, Flush, LogSettings
from tables.snapshot import ORPHAN_KEEP, Snapshot
from tables.store import NotDurable, Store
from tables.tail import Tail, TailBudget
from tables.unsynced import Unsynced
from tables.upkeep import Upkeep

__all__ = ["Appended", "Batch", "PartitionLog", "PartitionStats"]

T = TypeVar("T")

#: Lost races in a row before an append gives up; each loss means that somebody else's append succeeded.
RACES_MAX: Final = 10_000
_NO_IDS: Final = pa.array([], pa.string())


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStats:
    """What the service shows of a partition. `max_offset` is the next offset to be written."""

    min_offset: int
    max_offset: int
    messages: int
    bytes: int
    files: int
    last_append_time_us: int | None
    location: str
    version: int


class PartitionLog:
    """An open partition. Made by `Warehouse`, one for each partition and process."""

    def __init__(
        self,
        ref: PartitionRef,
        store: Store,
        *,
        settings: LogSettings,
        clock: Clock,
        cache: RowCache,
        tails: TailBudget,
    ) -> None:
        self.ref = ref
        self.location = store.uri(ref.folder)
        self._store = store
        self._settings = settings
        self._clock = clock
        self._lock = threading.RLock()
        self._reader = FileReader(store, ref.folder, cache)
        self._tail = Tail(settings.tail_bytes_max, tails)
        self._window = ProducerWindow()
        self._parts: dict[str, tuple[Part, ...]] = {}
        self._unsynced = Unsynced(store)
        self._durable_version = -1
        self._stopped: DeltaMQError | None = None
        self._bytes = 0
        self._log = CommitLog(
            store,
            ref.folder,
            settings=settings,
            clock=clock,
            on_commit=self._on_commit,
            on_reload=self._rebuild,
            on_replay=self._note_unsynced,
        )
        orphan_keep_ms = min(settings.orphan_keep_ms, self.keep_ms(ORPHAN_KEEP, settings.orphan_keep_ms))
        self._orphan_stale_ms = int(orphan_keep_ms * STALE_FRACTION)
        self._upkeep = Upkeep(self, store, settings=settings, clock=clock)

    # What a reader may ask at any time.

    @property
    def version(self) -> int:
        """The newest known Delta version."""
        return self._log.snapshot.version

    @property
    def min_offset(self) -> int:
        """The first offset still stored."""
        return self._log.snapshot.min_offset

    @property
    def end_offset(self) -> int:
        """The next offset to be written."""
        return self._log.snapshot.end_offset

    @property
    def table_id(self) -> str:
        """The table's own id: a partition deleted and made again has another."""
        return self._log.snapshot.table_id

    @property
    def files(self) -> Sequence[DataFile]:
        """Live files in offset order; do not change it."""
        return self._log.snapshot.files

    def stats(self) -> PartitionStats:
        """Counts and places, without touching the store."""
        snapshot = self._log.snapshot
        files = snapshot.files
        return PartitionStats(
            min_offset=snapshot.min_offset,
            max_offset=snapshot.end_offset,
            messages=snapshot.end_offset - snapshot.min_offset,
            bytes=self._bytes,
            files=len(files),
            last_append_time_us=files[-1].append_max_us if files else None,
            location=self.location,
            version=snapshot.version,
        )

    @property
    def stopped(self) -> DeltaMQError | None:
        """Why the partition refuses everything; None while it serves."""
        return self._stopped

    def in_memory(self, offset: int) -> bool:
        """Whether a read at `offset` needs no store: cheap enough for an event loop."""
        pieces = self._tail.pieces
        return offset >= self.end_offset or bool(pieces and offset >= pieces[0].start)

    def read(self, offset: int, *, max_messages: int, max_bytes: int) -> Fetched:
        """Rows from `offset` on: at most `max_messages`, about `max_bytes`, at least one if there is any.

        Raises
        ------
        Corrupt
            A file does not hold what the log says; the partition stops.
        """
        self._check_running()
        return self._on_live_files(lambda files, end: self._fetch(files, end, offset, max_messages, max_bytes))

    def _fetch(self, files: Sequence[DataFile], end: int, offset: int, max_messages: int, max_bytes: int) -> Fetched:
        low = files[0].start if files else end
        status = status_of(offset, low, end)
        if status is not None:
            return Fetched(status, MESSAGE_SCHEMA.empty_table(), min(max(offset, low), end), low, end)
        rows = self._rows(files, offset, min(end, offset + max_messages), max_bytes)
        return fetched(rows, offset, low, end)

    def _on_live_files(self, read: Callable[[Sequence[DataFile], int], T]) -> T:
        """Run `read(files, end offset)`; damage stops the partition, unless the log has moved on from those files.

        Another process may have rolled files up and removed the old ones while nobody here asked for news.
        """
        while True:
            # The end first: files only grow, so those that are read after it reach at least as far.
            end = self.end_offset
            files = self._log.snapshot.files
            try:
                return read(files, end)
            except Corrupt as error:
                self.refresh()
                if self.are_live(files):
                    self._stopped = error
                    raise

    def _rows(self, files: Sequence[DataFile], start: int, stop: int, max_bytes: int) -> pa.Table:
        found: list[pa.Table] = []
        at = start
        while at < stop and max_bytes > 0:
            rows = self._tail.rows(at, stop)
            if rows is None:
                rows = self._file_rows(files, at, stop)
            kept = cut_to_bytes(rows, max_bytes, at_least=0 if found else 1)
            found.append(kept)
            at += kept.num_rows
            max_bytes -= kept.nbytes
            if kept.num_rows < rows.num_rows:
                break
        return found[0] if len(found) == 1 else pa.concat_tables(found)

    def _file_rows(self, files: Sequence[DataFile], start: int, stop: int) -> pa.Table:
        """Rows of the one file that holds `start`, and of no more of its row groups than a step needs."""
        at = bisect_left(files, start + 1, key=lambda f: f.end)
        file = files[at]
        step = start - (start - file.start) % self._settings.row_group_rows + self._settings.row_group_rows
        pieces = self._tail.pieces
        edge = pieces[0].start if pieces and pieces[0].start > start else stop
        return self._reader.rows(file, start, min(stop, file.end, max(step, start + 1), edge))

    def offset_at(self, time_us: int) -> int:
        """The first offset whose append time is at or after `time_us`; the end offset when there is none."""
        self._check_running()
        return self._on_live_files(lambda files, end: self._search(files, end, time_us))

    def _search(self, files: Sequence[DataFile], end: int, time_us: int) -> int:
        at = bisect_left(files, time_us, key=lambda f: f.append_max_us)
        if at == len(files):
            return end
        file = files[at]
        if file.append_min_us >= time_us:
            return file.start
        times = self._reader.rows(file, file.start, file.end).column("append_time").cast(pa.int64()).to_numpy()
        return file.start + int(np.searchsorted(times, time_us, side="left"))

    def known_producer(self, producer_id: str) -> ProducerSeen | None:
        """What is remembered of an idempotent producer (SPEC SEND-5)."""
        with self._lock:
            return self._window.seen(producer_id)

    def refresh(self) -> bool:
        """See what other writers committed; True if there was anything."""
        self._check_running()
        with self._lock, self._stopping_on_corrupt():
            return self._log.refresh()

    # Append.

    def append(
        self, batches: Sequence[Batch], *, flush: Flush | None = None, expected_offset: int | None = None
    ) -> list[Appended]:
        """Append the batches in one commit; each batch whole, all in the given order.

        Returns
        -------
        list of Appended
            One for each batch. A batch whose producer request is already stored is not stored again.

        Raises
        ------
        OffsetMismatch
            `expected_offset` is given and is not the end offset; nothing was stored.
        Unknown
            The commit may be stored: repeat the batch with its producer sequence.
        """
        rows = one_batch([b.rows for b in batches])
        return self.append_rows(
            rows,
            [RowsPart(b.rows.num_rows, b.producer) for b in batches],
            flush=flush,
            expected_offset=expected_offset,
        )

    def append_rows(
        self,
        rows: pa.RecordBatch,
        parts: Sequence[RowsPart],
        *,
        flush: Flush | None = None,
        expected_offset: int | None = None,
    ) -> list[Appended]:
        """`append` for rows that already lie in one record batch; `parts` say which rows came together."""
        assert rows.num_rows == sum(p.count for p in parts), "parts must cover the rows"
        self._check_running()
        durable = (flush or self._settings.flush) is Flush.SYNC
        with self._lock, self._stopping_on_corrupt():
            self._log.look_ahead()
            for _ in range(RACES_MAX):
                if durable:
                    self._settle()
                try:
                    return self._append_once(rows, parts, durable=durable, expected_offset=expected_offset)
                except LostRace:
                    continue
        raise Unavailable(f"{self.ref.name}: lost {RACES_MAX} races for the next version", code="contention")

    def _append_once(
        self, rows: pa.RecordBatch, parts: Sequence[RowsPart], *, durable: bool, expected_offset: int | None
    ) -> list[Appended]:
        stored = [self._stored_part(p) for p in parts]
        again = repeats(parts)
        base = self.end_offset
        fresh = [i for i, known in enumerate(stored) if known is None and i not in again]
        ids = _NO_IDS
        if fresh:
            if expected_offset is not None and expected_offset != base:
                raise OffsetMismatch(
                    f"expected_offset is {expected_offset}, the end offset is {base}",
                    field="expected_offset",
                    extra={"end_offset": base},
                )
            if len(fresh) < len(parts):
                rows = only(rows, parts, set(fresh))
            ids = self._commit_rows(rows, [parts[i] for i in fresh], base, durable=durable)
        return appended(parts, stored, again, base, ids, durable=durable, version=self.version)

    def _commit_rows(self, rows: pa.RecordBatch, parts: Sequence[RowsPart], base: int, *, durable: bool) -> pa.Array:
        """Number, write and commit rows at `base`; return their message ids."""
        if base + rows.num_rows > OFFSET_MAX:
            raise Unavailable(f"{self.ref.name}: offsets are used up", code="offsets_exhausted")
        batch_id = uuid.uuid4().hex
        append_us = self._append_time_us()
        stamped = numbered(stamp(rows, parts, batch_id=batch_id, append_us=append_us), base)
        stored_as = requests(parts, base, append_us // 1000)
        encoded = encode_file(
            stamped,
            stored_as,
            batch_id=batch_id,
            now_ms=append_us // 1000,
            row_group_rows=self._settings.row_group_rows,
        )
        self._write_and_commit(encoded, stored_as, batch_id, durable=durable)
        self._tail.add(base, stamped, encoded.rows_bytes)
        return stamped.column("message_id").chunk(0)

    def _write_and_commit(self, encoded: Encoded, requests: Sequence[Part], batch_id: str, *, durable: bool) -> None:
        file = encoded.file
        began_ms = self._clock.boot_ms()
        self._store.put(self._key(file), encoded.data, durable=durable)
        failpoint("commit.after_data_write")

        def encode(version: int) -> bytes:
            return encode_append(
                table_id=self.table_id,
                version=version,
                batch_id=batch_id,
                file=file,
                parts=requests,
                flushed=durable,
                now_ms=file.modified_ms,
            )

        self._commit(encode, [encoded], began_ms, batch_id=batch_id, durable=durable)

    def _commit(
        self, encode: Callable[[int], bytes], adds: Sequence[Encoded], began_ms: int, *, batch_id: str, durable: bool
    ) -> None:
        """Commit files that were put from `began_ms` on."""
        try:
            version = self._log.commit(encode, batch_id=batch_id, durable=durable)
        except NotDurable:
            # Whoever repeats the request waits for that first.
            self._unsynced.add_failed([*(self._key(e.file) for e in adds), self._log.key(self.version)])
            raise
        if durable:
            self._durable_version = version
        if self._clock.boot_ms() - began_ms > self._orphan_stale_ms:
            # We slept so long that a sweep may have taken the files for orphans before the commit named them.
            self._put_again(adds, version)

    def _settle(self) -> None:
        """Make all before our next commit durable: what a power cut forgets would take what is behind it along.

        That is what was appended without syncing, and the newest commit if it is another writer's, who may be just
        about to sync its name. (Those before it were durable when that one was put.)
        """
        if self._unsynced:
            self.flush()
        if self._durable_version != self.version:
            self._store.sync([self._log.key(self.version)])
            self._durable_version = self.version

    def _put_again(self, adds: Sequence[Encoded], version: int) -> None:
        try:
            for encoded in adds:
                if not self._store.exists(self._key(encoded.file)):
                    self._store.replace(self._key(encoded.file), encoded.data)
        except DeltaMQError as error:
            raise Unknown(f"version {version} is stored, but a file of it was swept and is not back yet") from error

    def _key(self, file: DataFile) -> str:
        return f"{self.ref.folder}/{file.path}"

    def _append_time_us(self) -> int:
        """Now, cut to milliseconds as Delta's statistics are, and never before the append before."""
        now = self._clock.wall_us() // 1000 * 1000
        files = self._log.snapshot.files
        return max(now, files[-1].append_max_us) if files else now

    def _stored_part(self, part: RowsPart) -> Part | None:
        return self._window.find(part.producer.id, part.producer.seq) if part.producer else None

    # What commits change besides the snapshot, ours and others'.

    def _on_commit(self, commit: Commit) -> None:
        self._window.extend(commit.parts)
        self._note_unsynced(commit)
        if commit.removes:
            self._bytes = sum(f.size for f in self._log.snapshot.files)
        else:
            self._bytes += sum(f.size for f in commit.adds)
        # Whoever moved rows into other files moved their requests along.
        moved = [p for path in commit.removes for p in self._parts.pop(path, ())]
        for file in commit.adds:
            parts = tuple(p for p in (*commit.parts, *moved) if file.start <= p.base_offset < file.end)
            if parts:
                self._parts[file.path] = parts

    def _note_unsynced(self, commit: Commit) -> None:
        """Remember what its writer, here or elsewhere, alive or killed, may not have synced."""
        if not commit.flushed:
            log = f"{self.ref.folder}/{LOG_FOLDER}/{commit_name(commit.version)}"
            self._unsynced.add([*(self._key(f) for f in commit.adds), log])

    def _rebuild(self, snapshot: Snapshot) -> None:
        """Derive window, sizes and tail from a snapshot alone (SPEC META-3); an error leaves what was."""
        window = ProducerWindow()
        kept: dict[str, tuple[Part, ...]] = {}
        horizon = self._clock.wall_us() // 1000 - window.window_ms
        for file in snapshot.files:
            if file.append_max_us // 1000 < horizon:
                continue
            parts = self._reader.parts(file)
            window.extend(parts)
            if parts:
                kept[file.path] = parts
        self._tail.clear()
        self._window = window
        self._parts = kept
        self._bytes = sum(file.size for file in snapshot.files)

    def parts_of(self, file: DataFile) -> list[Part]:
        """The producers' requests in a live file that are still remembered; a roll-up carries them on."""
        with self._lock:
            parts = self._parts.get(file.path, ())
            return [p for p in parts if self._window.find(p.producer_id, p.seq) is not None]

    def keep_ms(self, name: str, default: int) -> int:
        """A promise in the table's configuration, in milliseconds (see `tables.snapshot`)."""
        return self._log.snapshot.keep_ms(name, default)

    def state(self) -> Checkpoint:
        """The newest known state as a checkpoint: consistent, and not changed by later appends."""
        with self._lock:
            return self._log.snapshot.checkpoint()

    @property
    def checkpoint_version(self) -> int:
        """The newest checkpoint that this process knows, -1 for none."""
        return self._log.snapshot.checkpoint_version

    def checkpointed(self, version: int) -> None:
        """Note that a checkpoint of `version` is stored."""
        with self._lock:
            self._log.snapshot.checkpoint_version = max(version, self._log.snapshot.checkpoint_version)

    def are_live(self, files: Sequence[DataFile]) -> bool:
        """Whether the newest known state still has all of these files."""
        return {f.path for f in files} <= {f.path for f in self.files}

    def file_rows(self, file: DataFile) -> pa.Table:
        """All rows of a live file, from memory if they are there."""
        rows = self._tail.rows(file.start, file.end)
        return rows if rows is not None else self._reader.rows(file, file.start, file.end)

    def rewrite(
        self,
        adds: Sequence[Encoded],
        removes: Sequence[DataFile],
        *,
        operation: str,
        rows: pa.Table | None = None,
    ) -> bool:
        """Commit a rearrangement of files; False when one of `removes` is no longer live. Offsets do not move.

        `rows`, if given, are the rows of the one added file, for the tail.
        """
        began_ms = self._clock.boot_ms()
        for encoded in adds:
            self._store.put(self._key(encoded.file), encoded.data, durable=True)
        batch_id = uuid.uuid4().hex
        now_ms = self._clock.wall_us() // 1000

        def encode(version: int) -> bytes:
            return encode_rewrite(
                table_id=self.table_id,
                version=version,
                batch_id=batch_id,
                operation=operation,
                adds=[e.file for e in adds],
                removes=removes,
                data_change=not adds,
                now_ms=now_ms,
            )

        with self._lock, self._stopping_on_corrupt():
            for _ in range(RACES_MAX):
                self._settle()
                if not self.are_live(removes):
                    return False
                try:
                    self._commit(encode, adds, began_ms, batch_id=batch_id, durable=True)
                except LostRace:
                    continue
                if rows is not None:
                    self._tail.merge(adds[0].file.start, rows)
                return True
        raise Unavailable(f"{self.ref.name}: lost {RACES_MAX} races for the next version", code="contention")

    # Upkeep and end.

    def maintain(self) -> bool:
        """Do what upkeep is due (roll-up, checkpoint, clean-up); True if anything was done."""
        self._check_running()
        with self._stopping_on_corrupt():
            return self._upkeep.run()

    def flush(self) -> None:
        """Make what was appended with `Flush.ASYNC` durable, by us or by others."""
        self._unsynced.sync()

    @property
    def unsynced(self) -> int:
        """Files that a power cut could still take."""
        return len(self._unsynced)

    def verify(self) -> None:
        """Read and check every byte of every live file; raise `Corrupt` naming the first bad one."""
        for file in list(self.files):
            try:
                self._reader.verify(file)
            except Corrupt:
                self.refresh()
                if self.are_live([file]):
                    raise

    def close(self) -> None:
        """Flush and let go."""
        self.flush()

    def release(self) -> None:
        """Give the memory back: the partition was deleted."""
        self._tail.clear()

    def _check_running(self) -> None:
        if self._stopped is not None:
            raise replace_error(self._stopped)

    def _stopping_on_corrupt(self) -> _StopOnCorrupt:
        return _StopOnCorrupt(self)

    def stop(self, error: Corrupt) -> None:
        """Refuse everything from now on: the stored data contradicts itself."""
        self._stopped = error


def replace_error(error: DeltaMQError) -> DeltaMQError:
    """A fresh error with the same facts: one exception object must not be raised by several threads."""
    return type(error)(error.detail)


class _StopOnCorrupt:
    """Stops the partition when the guarded work finds damage."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Corrupt):
            self._log.stop(error)
