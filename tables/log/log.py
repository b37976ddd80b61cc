"""One partition as a log: append, read, find by time, watch. Safe for threads; blocking, so not for an event loop.

    append --> dedupe --> stamp --> [ number --> data file --> commit ]  --> tail, window, files
                                      ^------- lost a race ------'

Appends of one partition are serial (one commit in flight; callers group what waits meanwhile). Readers take no
lock: they use lists and tuples that writers replace rather than change.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import TypeVar

import pyarrow as pa

from mq.errors import DeltaMQError, Unavailable
from mq.producer import Part, ProducerSeen
from tables.clock import Clock
from tables.delta import (
    ORPHAN_KEEP,
    Commit,
    CommitLog,
    DataFile,
    Encoded,
    FileReader,
    LostRace,
    RowCache,
    RowsPart,
    Snapshot,
)
from tables.failpoints import failpoint
from tables.log.appender import Appender
from tables.log.batch import Appended, Batch, one_batch
from tables.log.bounds import BOUNDS, LogBounds
from tables.log.dead_files import DeadFiles
from tables.log.fences import put_up_fence
from tables.log.fetch import Fetched
from tables.log.partition_stats import PartitionStats, Removed
from tables.log.publish import Publisher, keys_of
from tables.log.reader import LogReader
from tables.log.requests import Requests
from tables.log.rewrite import Rewrite
from tables.log.state import LogState
from tables.log.tail import Tail, TailBudget
from tables.log.upkeep import Upkeep
from tables.paths import PartitionRef
from tables.settings import STALE_FRACTION, Flush, LogSettings
from tables.stop import StopOnCorrupt
from tables.store import Store, Unsynced

__all__ = ["Appended", "Batch", "PartitionLog", "PartitionStats", "Removed"]

T = TypeVar("T")


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
        on_unsynced: Callable[[Unsynced], None],
        bounds: LogBounds = BOUNDS,
    ) -> None:
        """`on_unsynced` is told of files that somebody must make durable in time."""
        self.ref = ref
        self.bounds = bounds
        self.location = store.uri(ref.folder)
        self._store = store
        self._settings = settings
        self._clock = clock
        self._lock = threading.RLock()
        self._files = FileReader(store, ref.folder, cache)
        self._tail = Tail(settings.tail_bytes_max, tails)
        self._requests = Requests()
        self._unsynced = Unsynced(store, on_unsynced)
        self._stop = StopOnCorrupt()
        self._bytes = 0
        self._dead = DeadFiles(clock)
        #: Whether anybody has read or appended since `rest` was asked for last.
        self._used = False
        self._log = CommitLog(
            store,
            ref.folder,
            settings=settings,
            clock=clock,
            on_commit=self._on_commit,
            on_reload=self._rebuild,
            on_replay=self._on_replay,
        )
        #: What is known of the log; the parts of an open partition share it.
        self.state = LogState(ref, self._log, self._lock, self._stop)
        self._reader = LogReader(self.state, self._files, self._tail, row_group_rows=settings.row_group_rows)
        orphan_keep_ms = min(settings.orphan_keep_ms, self.state.keep_ms(ORPHAN_KEEP, settings.orphan_keep_ms))
        self._publisher = Publisher(
            store,
            ref.folder,
            self._log,
            self._unsynced,
            clock=clock,
            stale_ms=int(orphan_keep_ms * STALE_FRACTION),
        )
        self._appender = Appender(
            self.state,
            self._publisher,
            self._requests,
            self._tail,
            clock=clock,
            row_group_rows=settings.row_group_rows,
            offset_max=bounds.offset_max,
        )
        self._upkeep = Upkeep(
            self.state,
            self,
            store,
            settings=settings,
            clock=clock,
            dead=self._dead,
            clean_commits=bounds.clean_commits,
        )

    # What a reader may ask at any time.

    @property
    def version(self) -> int:
        """The newest known Delta version."""
        return self.state.version

    @property
    def min_offset(self) -> int:
        """The first offset still stored."""
        return self.state.min_offset

    @property
    def end_offset(self) -> int:
        """The next offset to be written."""
        return self.state.end_offset

    @property
    def table_id(self) -> str:
        """The table's own id: a partition deleted and made again has another."""
        return self.state.table_id

    @property
    def fences(self) -> Mapping[str, int]:
        """The highest epoch of each fence (see `tables.log.fences`)."""
        return self.state.fences

    @property
    def files(self) -> Sequence[DataFile]:
        """Live files in offset order; do not change it."""
        return self.state.files

    @property
    def checkpoint_version(self) -> int:
        """The newest checkpoint that this process knows, -1 for none."""
        return self.state.checkpoint_version

    def stats(self) -> PartitionStats:
        """Counts and places, without touching the store."""
        return PartitionStats.of(self._log.snapshot, bytes=self._bytes, location=self.location)

    @property
    def stopped(self) -> DeltaMQError | None:
        """Why the partition refuses everything; None while it serves."""
        return self._stop.error

    def in_memory(self, offset: int) -> bool:
        """Return whether a read at `offset` needs no store: cheap enough for an event loop."""
        return self._reader.in_memory(offset)

    def read(self, offset: int, *, max_messages: int, max_bytes: int) -> Fetched:
        """Rows from `offset` on: at most `max_messages`, about `max_bytes`, at least one if there is any.

        Raises
        ------
        Corrupt
            A file does not hold what the log says; the partition stops.
        """
        self._stop.check()
        self._used = True
        return self._reader.read(offset, max_messages=max_messages, max_bytes=max_bytes)

    def offset_at(self, time_us: int) -> int:
        """Return the first offset whose append time is at or after `time_us`; the end offset when there is none."""
        self._stop.check()
        return self._reader.offset_at(time_us)

    def known_producer(self, producer_id: str) -> ProducerSeen | None:
        """What is remembered of an idempotent producer (SPEC SEND-5)."""
        return self._requests.seen(producer_id)

    @property
    def requests_whole_since_ms(self) -> int:
        """The append time from which on no request of the last day is forgotten for lack of room; 0 for all."""
        return self._requests.whole_since_ms()

    @property
    def append_ms(self) -> int:
        """The append time of the newest row; 0 when the partition has none."""
        files = self.files
        return files[-1].append_max_us // 1_000 if files else 0

    def refresh(self) -> bool:
        """See what other writers committed; True if there was anything."""
        return self.state.refresh()

    # Append.

    def append(
        self,
        batches: Sequence[Batch],
        *,
        flush: Flush | None = None,
        expected_offset: int | None = None,
        known: Mapping[str, int] | None = None,
    ) -> list[Appended]:
        """Append the batches in one commit; each batch whole, all in the given order.

        `known` are the fences' epochs that the writer knows of; None for one that no fence concerns.

        Returns
        -------
        list of Appended
            One for each batch. A batch whose producer request is already stored is not stored again.

        Raises
        ------
        OffsetMismatch
            `expected_offset` is given and is not the end offset; nothing was stored.
        Fenced
            `known` is given, and the log has a newer fence; nothing was stored. Requests that are stored are still
            answered.
        Unknown
            The commit may be stored: repeat the batch with its producer sequence.
        """
        rows = one_batch([b.rows for b in batches])
        return self.append_rows(
            rows,
            [RowsPart(b.rows.num_rows, b.producer) for b in batches],
            flush=flush,
            expected_offset=expected_offset,
            known=known,
        )

    def append_rows(
        self,
        rows: pa.RecordBatch,
        parts: Sequence[RowsPart],
        *,
        flush: Flush | None = None,
        expected_offset: int | None = None,
        known: Mapping[str, int] | None = None,
        confirm: Callable[[], None] | None = None,
    ) -> list[Appended]:
        """`append` for rows that already lie in one record batch; `parts` say which rows came together.

        `confirm` is called before each try, with this log in the state that the try must beat: what it finds there
        holds when the rows are stored. To refuse the append it raises.
        """
        assert rows.num_rows == sum(p.count for p in parts), "parts must cover the rows"
        self._stop.check()
        self._used = True
        durable = (flush or self._settings.flush) is Flush.SYNC

        def attempt() -> list[Appended]:
            if confirm is not None:
                confirm()
            if durable:
                self._publisher.settle()
            return self._appender.append(rows, parts, durable=durable, expected_offset=expected_offset, known=known)

        with self._lock, self._stop:
            self._log.look_ahead()
            return self._won(attempt)

    def fence(self, name: str, epoch: int) -> int:
        """Let nobody append any more who does not know of this epoch; return the end offset.

        All before it is durable then. A fence of this epoch or a later one is not put up again: asking twice is safe.

        Raises
        ------
        Unknown
            The fence may be there.
        """
        self._stop.check()
        with self._lock, self._stop:
            self._log.refresh()
            self._won(lambda: put_up_fence(self.state, self._publisher, self._clock, name, epoch))
            return self.end_offset

    def _won(self, attempt: Callable[[], T]) -> T:
        """Try until no other process was faster; the caller holds the lock."""
        for _ in range(self.bounds.races_max):
            try:
                return attempt()
            except LostRace:
                continue
        raise Unavailable(
            f"{self.ref.name}: lost {self.bounds.races_max} races for the next version", code="contention"
        )

    # What commits change besides the snapshot, ours and others'.

    def _on_commit(self, commit: Commit) -> None:
        self._requests.apply(commit)
        self._on_replay(commit)
        if commit.removes:
            self._bytes = sum(f.size for f in self._log.snapshot.files)
            self._tail.drop_below(self.min_offset)
            self._files.forget(commit.removes)
        else:
            self._bytes += sum(f.size for f in commit.adds)

    def _on_replay(self, commit: Commit) -> None:
        """Remember what its writer, here or elsewhere, alive or killed, may not have synced, and what it let go."""
        self._dead.add(commit.removes)
        if not commit.flushed:
            self._unsynced.add(keys_of(self.ref.folder, commit))

    def _rebuild(self, snapshot: Snapshot) -> None:
        """Derive requests, sizes and tail from a snapshot alone (SPEC META-3); an error leaves what was."""
        self._requests.rebuild(snapshot, self._files, self._clock.wall_us() // 1000)
        self._tail.clear()
        self._bytes = sum(file.size for file in snapshot.files)

    def parts_of(self, file: DataFile) -> list[Part]:
        """Return the producers' requests in a live file that are still remembered; a roll-up carries them on."""
        with self._lock:
            return self._requests.in_file(file)

    def are_live(self, files: Sequence[DataFile]) -> bool:
        """Return whether the newest known state still has all of these files."""
        return self.state.are_live(files)

    def file_rows(self, file: DataFile) -> pa.Table:
        """Return all rows of a live file, from memory if they are there."""
        return self._reader.file_rows(file)

    def file_columns(self, file: DataFile, columns: Sequence[str]) -> pa.Table:
        """Return a few columns of all rows of a live file, from memory if they are there.

        Raises
        ------
        Corrupt
            The file is damaged, or no longer there: ask `are_live`, after a `refresh`, which of the two.
        """
        return self._reader.file_columns(file, columns)

    def rewrite(
        self, adds: Sequence[Encoded], removes: Sequence[DataFile], *, operation: str, rows: pa.Table | None = None
    ) -> bool:
        """Commit a rearrangement of files; False when one of `removes` is no longer live. Offsets do not move.

        `rows`, if given, are the rows of the one added file, for the tail.
        """
        wanted = Rewrite(self.state, self._publisher, self._clock, adds, removes, operation=operation)
        with self._lock, self._stop:
            done = self._won(wanted.attempt)
            if done and rows is not None:
                self._tail.merge(adds[0].file.start, rows)
            return done

    def delete_below(self, offset: int) -> Removed:
        """Let the whole files go that end at or below `offset`, in one commit; the end offset stays (SPEC RETRY-6).

        Readers find `offset_too_small` there from now on. The files themselves are deleted when their time has passed.

        Returns
        -------
        Removed
            What this call took away: nothing if another process was faster.

        Raises
        ------
        Unknown
            They may be gone: asking again is safe.
        """
        self._stop.check()
        with self._lock:
            self.refresh()
            for _ in range(self.bounds.races_max):
                old = list(takewhile(lambda file: file.end <= offset, self.files))
                if not old:
                    return Removed()
                failpoint("retain.before_commit")
                # A roll-up may have replaced some of them meanwhile: look again.
                if self.rewrite([], old, operation="DELETE"):
                    failpoint("retain.after_commit")
                    return Removed.of(old)
        raise Unavailable(
            f"{self.ref.name}: lost {self.bounds.races_max} races for the oldest files", code="contention"
        )

    # Upkeep and end.

    def maintain(self) -> bool:
        """Do what upkeep is due (roll-up, checkpoint, clean-up); True if anything was done."""
        self._stop.check()
        with self._stop:
            return self._upkeep.run()

    def clean(self) -> bool:
        """Delete files that were let go long enough ago, and no more: for processes that do not append here."""
        self._stop.check()
        with self._stop:
            return self._upkeep.clean()

    def due_in_ms(self) -> int:
        """How long `maintain` has nothing to do unless something is appended; 0 when it has now."""
        return self._upkeep.due_in_ms()

    def rest(self) -> bool:
        """Give back what is in memory for readers, if nobody has read or appended since this was asked for last."""
        if self._used:
            self._used = False
            return False
        self._tail.clear()
        self._files.forget(file.path for file in self.files)
        return True

    def flush(self) -> None:
        """Make what was appended with `Flush.ASYNC` durable, by us or by others."""
        self._unsynced.sync()

    @property
    def unsynced(self) -> int:
        """Files that a power cut could still take."""
        return len(self._unsynced)

    def verify(self) -> None:
        """Read and check every byte of every live file; raise `Corrupt` naming the first bad one."""
        self._reader.verify()

    def close(self) -> None:
        """Flush and let go."""
        self.flush()

    def release(self) -> None:
        """Give the memory back: the partition was deleted."""
        self._tail.clear()
        self._unsynced.drop()
