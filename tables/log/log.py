"""One partition as a log: append, read, find by time, upkeep. Safe for threads; blocking, but for `append_in_turn`.

    append --> dedupe --> stamp --> [ number --> data file --> commit ]  --> tail, window, files
                                      ^------- lost a race ------'

Appends of one partition are serial (one commit in flight; callers group what waits in the meantime). Readers take no
lock: they use lists and tuples that writers replace rather than change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile

import pyarrow as pa

from deltamq.mq.errors import Corrupt, DeltaMQError
from deltamq.mq.producer import OutOfSequence, Part, ProducerSeen
from deltamq.tables.clock import Clock
from deltamq.tables.delta.actions import Commit, DataFile
from deltamq.tables.delta.commit import CommitLog, LostRace
from deltamq.tables.delta.creation import check_no_data
from deltamq.tables.delta.encode import Encoded
from deltamq.tables.delta.reader import FileReader, RowCache
from deltamq.tables.delta.snapshot import ORPHAN_KEEP, Snapshot, log_versions
from deltamq.tables.delta.stamped import RowsPart, one_batch
from deltamq.tables.failpoints import failpoint
from deltamq.tables.log.appender import Ahead, Appender, Coming, OnComing
from deltamq.tables.log.batch import Appended, Batch
from deltamq.tables.log.bounds import BOUNDS, LogBounds
from deltamq.tables.log.dead_files import DeadFiles
from deltamq.tables.log.fences import put_up_fence
from deltamq.tables.log.fetch import Fetched
from deltamq.tables.log.publish import Publisher, Races, keys_of
from deltamq.tables.log.reader import Born, LogReader
from deltamq.tables.log.requests import Requests
from deltamq.tables.log.rewrite import Removed, Rewrite
from deltamq.tables.log.state import LogState, PartitionStats
from deltamq.tables.log.tail import Tail, TailBudget
from deltamq.tables.log.upkeep import Upkeep
from deltamq.tables.paths import PartitionRef
from deltamq.tables.settings import STALE_FRACTION, Flush, LogSettings
from deltamq.tables.stop import StopOnCorrupt
from deltamq.tables.store.calls import blocking
from deltamq.tables.store.store import Store
from deltamq.tables.store.unsynced import Unsynced
from deltamq.tables.turn import Turn


class PartitionLog:
    """An open partition. `Warehouse` creates one for each partition and process."""

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
        on_stop: Callable[[DeltaMQError], None],
        on_race: Callable[[], None],
        bounds: LogBounds = BOUNDS,
    ) -> None:
        """Open the partition; `on_unsynced` is called with files that the caller must make durable in time.

        `on_stop` gets the error for which the partition refuses all calls from then on; `on_race` counts lost races.
        """
        self.ref = ref
        self.bounds = bounds
        self.location = store.uri(ref.folder)
        self._store = store
        self._settings = settings
        self._clock = clock
        #: Whose turn it is to change the log.
        self.turn = Turn()
        self._races = Races(ref.name, bounds.races_max, on_race)
        self._files = FileReader(store, ref.folder, cache)
        self._tail = Tail(settings.tail_bytes_max, tails)
        self._requests = Requests(producers_max=bounds.producers_max)
        self._unsynced = Unsynced(store, on_unsynced)
        self._stop = StopOnCorrupt(on_stop)
        self._bytes = 0
        self._dead = DeadFiles(clock)
        #: Whether there was a read or an append since the last call of `rest`.
        self._used = False
        self._log = CommitLog(
            store,
            ref.folder,
            settings=settings,
            clock=clock,
            on_commit=self._on_commit,
            on_reload=self._rebuild,
            on_replay=self._on_replay,
            on_erase=self._tail.clear,
        )
        #: The newest known state of the log, which the parts of an open partition share.
        self.state = LogState(ref, self._log, self.turn, self._stop)
        self._reader = LogReader(self.state, self._files, self._tail)
        orphan_keep_ms = min(settings.orphan_keep_ms, self.state.keep_ms(ORPHAN_KEEP, settings.orphan_keep_ms))
        self._publisher = Publisher(
            store, ref.folder, self._log, self._unsynced, clock=clock, stale_ms=int(orphan_keep_ms * STALE_FRACTION)
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

    # For readers, at any time.

    @property
    def version(self) -> int:
        """The newest known Delta version."""
        return self.state.version

    @property
    def published_s(self) -> float:
        """The seconds for which its commits were with the store, in all."""
        return self._log.published_s

    @property
    def min_offset(self) -> int:
        """The first offset that is still stored."""
        return self.state.min_offset

    @property
    def end_offset(self) -> int:
        """The next offset to be written."""
        return self.state.end_offset

    @property
    def table_id(self) -> str:
        """The table's own id: a partition that is deleted and created again gets another one."""
        return self.state.table_id

    @property
    def fences(self) -> Mapping[str, int]:
        """The highest epoch of each fence (see `tables.log.fences`)."""
        return self.state.fences

    @property
    def files(self) -> Sequence[DataFile]:
        """The live files in offset order; callers must not change the list."""
        return self.state.files

    @property
    def checkpoint_version(self) -> int:
        """The newest checkpoint that this process knows, -1 for none."""
        return self.state.checkpoint_version

    @property
    def bytes(self) -> int:
        """The bytes of the live files."""
        return self._bytes

    def stats(self) -> PartitionStats:
        """Return counts, offsets and location."""
        return PartitionStats.of(self._log.snapshot, bytes=self._bytes, location=self.location)

    @property
    def stopped(self) -> DeltaMQError | None:
        """The error for which the partition refuses all calls; None while it serves."""
        return self._stop.error

    def gone(self) -> Corrupt | None:
        """Return the error for a log that is no longer stored, also when it was deleted; None while it is stored."""
        if any(log_versions(self._store, self.ref.folder)):
            return None
        try:
            check_no_data(self._store, self.ref.folder)
        except Corrupt as error:
            return error
        return Corrupt(f"{self.ref.folder} is gone; restore this folder")

    def stop(self, error: Corrupt) -> None:
        """Refuse all further calls with this error."""
        self.state.stop(error)

    def in_memory(self, offset: int, rows_max: int) -> bool:
        """Return whether a read of at most `rows_max` rows at `offset` is cheap enough for an event loop."""
        return self._reader.in_memory(offset, rows_max)

    def in_tail(self, offset: int) -> bool:
        """Return whether the row at `offset` and all after it are in memory, and there for readers.

        Raises the error for which the partition has stopped, if it has.
        """
        self._stop.check()
        self._used = True
        pieces = self._tail.pieces
        return bool(pieces) and max(pieces[0].start, self.min_offset) <= offset < pieces[-1].end

    def read(self, offset: int, *, max_messages: int, max_bytes: int, columns: Sequence[str] | None = None) -> Fetched:
        """Read rows from `offset` on: at most `max_messages`, about `max_bytes`, and at least one if there is any.

        With `columns`, which are in the schema's order and have `offset`, `key` and `body` among them, rows have only
        these: decoding a file takes most of a read.

        Raises
        ------
        Corrupt
            A file does not hold what the log says; the partition stops.
        """
        self._stop.check()
        self._used = True
        return self._reader.read(offset, max_messages=max_messages, max_bytes=max_bytes, columns=columns)

    def has_invalid(self, start: int, stop: int) -> bool:
        """Whether rows `[start, stop)` may include some whose bodies did not fit their schema (SPEC TYPE-3)."""
        return self.state.has_invalid(start, stop)

    def offset_at(self, time_us: int) -> int:
        """Return the first offset whose append time is at or after `time_us`; the end offset if there is none."""
        self._stop.check()
        return self._reader.offset_at(time_us)

    def born_at(self, time_us: int) -> Born | None:
        """Return the first message whose born time is at or after `time_us`; None if there is none."""
        self._stop.check()
        return self._reader.born_at(time_us)

    def last_born_ms(self) -> int | None:
        """Return the latest born time in whole milliseconds; None if the partition is empty."""
        self._stop.check()
        return self._reader.last_born_ms()

    def append_us_at(self, offset: int) -> int | None:
        """Return the append time of a stored message; None if it is not stored (any more)."""
        self._stop.check()
        return self._reader.append_us_at(offset)

    def known_producer(self, producer_id: str) -> ProducerSeen | None:
        """Return what is remembered of an idempotent producer; None if it is unknown (SPEC SEND-5)."""
        return self._requests.seen(producer_id)

    @property
    def producers_known_since_ms(self) -> int:
        """The time from which on every producer born then is remembered, whatever was forgotten before."""
        return self._appender.producers_known_since_ms()

    def remembers(self, producer_id: str, seq: int) -> bool:
        """Return whether a request of an idempotent producer is remembered as stored (SPEC SEND-5)."""
        seen = self._requests.seen(producer_id)
        return seen is not None and seq in seen.parts

    @property
    def requests_whole_since_ms(self) -> int:
        """The append time from which on no request of the last day is forgotten for lack of room; 0 for any time."""
        return self._requests.whole_since_ms()

    @property
    def append_ms(self) -> int:
        """The append time of the newest row in milliseconds; 0 if the partition has no rows."""
        files = self.files
        return files[-1].append_max_us // 1_000 if files else 0

    def refresh(self) -> bool:
        """Apply the commits of other writers; return whether there were any."""
        return self.state.refresh()

    # Append.

    def append(
        self,
        batches: Sequence[Batch],
        *,
        flush: Flush | None = None,
        expected_offset: int | None = None,
        fence_epochs: Mapping[str, int] | None = None,
    ) -> list[Appended]:
        """Append the batches in one commit: each batch as a whole, all in the given order.

        `fence_epochs` holds the epochs of fences that the writer knows; None for a writer that no fence concerns.

        A batch whose producer request is already stored is not stored again, and its first place is returned.

        Raises
        ------
        OffsetMismatch
            `expected_offset` is given and is not the end offset; nothing was stored.
        Fenced
            `fence_epochs` is given, and the log has a newer fence; nothing was stored. If all batches are already
            stored, their places are returned instead.
        OutOfSequence
            A batch's `sequence` does not follow its producer's last one; nothing was stored.
        Unknown
            The commit may be stored: repeat the batch with its producer sequence.
        """
        rows = one_batch([b.rows for b in batches])
        return self.append_rows(
            rows,
            [RowsPart(b.rows.num_rows, b.producer) for b in batches],
            flush=flush,
            expected_offset=expected_offset,
            fence_epochs=fence_epochs,
        )

    def append_rows(
        self,
        rows: pa.RecordBatch,
        parts: Sequence[RowsPart],
        *,
        flush: Flush | None = None,
        expected_offset: int | None = None,
        fence_epochs: Mapping[str, int] | None = None,
        confirm: Callable[[], None] | None = None,
    ) -> list[Appended]:
        """Append rows that are already in one record batch, as `append` does; `parts` say which rows came together.

        `confirm` is called before each try, when this log is in the state that the try's commit must follow directly:
        what it finds there still holds when the rows are stored. It raises to refuse the append.
        """
        appending = self.append_in_turn(
            rows, parts, flush=flush, expected_offset=expected_offset, fence_epochs=fence_epochs, confirm=confirm
        )
        with self.turn:
            return blocking(appending)

    async def put_ahead(
        self, rows: pa.RecordBatch, parts: Sequence[RowsPart], coming: Coming, on_coming: OnComing
    ) -> Ahead | None:
        """Store the data file of an append that will follow others, `coming`; None if nothing is stored.

        None of these others is of the same producers. The caller of `append_in_turn` has the turn for the first of them
        meanwhile. `on_coming` is called when it is known what this append adds, before its file is stored.
        """
        return await self._appender.ahead(rows, parts, coming, on_coming)

    async def append_in_turn(
        self,
        rows: pa.RecordBatch,
        parts: Sequence[RowsPart],
        *,
        flush: Flush | None = None,
        expected_offset: int | None = None,
        fence_epochs: Mapping[str, int] | None = None,
        confirm: Callable[[], None] | None = None,
        ahead: Ahead | None = None,
        on_coming: OnComing | None = None,
    ) -> list[Appended]:
        """Append as `append_rows` does; the caller has the turn (`turn`).

        `ahead` is what `put_ahead` has stored for these rows. `on_coming` is called when only the commit is left to be
        put: from then on the rows of the next append may be put ahead. It is not called where that gains nothing.
        """
        assert rows.num_rows == sum(p.count for p in parts), "parts must cover the rows"
        self._stop.check()
        self._used = True
        durable = (flush or self._settings.flush) is Flush.SYNC

        async def attempt() -> list[Appended]:
            if confirm is not None:
                confirm()
            if durable:
                await self._publisher.sync_earlier()
            return await self._appender.append(
                rows,
                parts,
                durable=durable,
                expected_offset=expected_offset,
                fence_epochs=fence_epochs,
                ahead=ahead,
                on_coming=on_coming,
            )

        with self._stop:
            await self._log.look_ahead(must_know=expected_offset is not None)
            try:
                return await self._races.win(attempt)
            except OutOfSequence:
                # Another process may have stored what comes before.
                if not await self._log.reading(self._log.refresh):
                    raise
                return await self._races.win(attempt)

    def fence(self, name: str, epoch: int) -> int:
        """Put up a fence, which refuses appends of writers that do not know this epoch; return the end offset.

        All commits before the fence are durable then. If the fence has this epoch or a later one, nothing is written,
        so calling twice is safe.

        Raises
        ------
        Unknown
            The fence may be there.
        """
        self._stop.check()
        with self.turn, self._stop:
            self._log.refresh()
            blocking(self._races.win(lambda: put_up_fence(self.state, self._publisher, self._clock, name, epoch)))
            return self.end_offset

    # What commits of any writer change besides the snapshot.

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
        """Remember files that the commit removed, and files that its writer, alive or killed, may not have synced."""
        self._dead.add(commit.removes)
        if not commit.flushed:
            self._unsynced.add(keys_of(self.ref.folder, commit))

    def _rebuild(self, snapshot: Snapshot) -> None:
        """Derive requests, sizes and tail only from a snapshot (SPEC META-3); after an error the old ones stay."""
        self._requests.rebuild(snapshot, self._files, self._clock.wall_us() // 1000)
        self._tail.clear()
        self._bytes = sum(file.size for file in snapshot.files)

    def parts_of(self, file: DataFile) -> list[Part]:
        """Return the producers' requests in a live file that are still remembered; a roll-up carries them on."""
        with self.turn:
            return self._requests.in_file(file)

    def are_live(self, files: Sequence[DataFile]) -> bool:
        """Return whether the newest known state still has all of these files."""
        return self.state.are_live(files)

    def rows_of(self, files: Sequence[DataFile]) -> pa.Table:
        """Return all rows of adjacent live files, from memory if they are there."""
        return self._reader.rows_of(files)

    def tables_of(self, files: Sequence[DataFile]) -> Iterator[pa.Table]:
        """Yield all rows of adjacent live files: as one table if they are all in memory, else by file or row group."""
        return self._reader.tables_of(files)

    def file_columns(self, file: DataFile, columns: Sequence[str]) -> pa.Table:
        """Return a few columns of all rows of a live file, from memory if they are there.

        Raises
        ------
        Corrupt
            The file is damaged or no longer there; `are_live`, after a `refresh`, shows which of the two.
        """
        return self._reader.file_columns(file, columns)

    def file_bytes(self, file: DataFile) -> pa.Buffer:
        """Return the checked bytes of a live file; raise as `file_columns` does."""
        return self._files.whole(file)

    def rewrite(
        self, adds: Sequence[Encoded], removes: Sequence[DataFile], *, operation: str, rows: Sequence[pa.Table] = ()
    ) -> bool:
        """Commit a rearrangement of files; return False if one of `removes` is no longer live. Offsets do not change.

        `rows` are adjacent rows that are one piece from now on, if the tail holds them.
        """
        wanted = Rewrite(self.state, self._publisher, self._clock, adds, removes, operation=operation)
        with self.turn, self._stop:
            done = blocking(self._races.win(wanted.attempt))
            for merged in rows if done else ():
                self._tail.merge(merged)
            return done

    def delete_below(self, offset: int) -> Removed:
        """Remove all files that end at or below `offset`, in one commit; the end offset stays (SPEC RETRY-6).

        Readers of these offsets get `offset_too_small` from now on. The files are deleted after `log.file_keep_ms`.
        The answer says what this call removed: nothing if another process was faster.

        Raises
        ------
        Unknown
            The files may be removed; calling again is safe.
        """
        self._stop.check()

        async def attempt() -> Removed:
            old = list(takewhile(lambda file: file.end <= offset, self.files))
            if not old:
                return Removed()
            failpoint("retain.before_commit")
            if not self.rewrite([], old, operation="DELETE"):
                raise LostRace(f"{self.ref.name}: a roll-up has replaced some of the oldest files")
            failpoint("retain.after_commit")
            return Removed.of(old)

        with self.turn:
            self.refresh()
            return blocking(self._races.win(attempt))

    # Upkeep and closing.

    def maintain(self) -> bool:
        """Do the upkeep that is due (roll-up, checkpoint, clean-up); return whether anything was done."""
        self._stop.check()
        with self._stop:
            return self._upkeep.run()

    def clean(self) -> bool:
        """Delete only dead files whose keep time has passed, and orphans: for processes that do not append here."""
        self._stop.check()
        with self._stop:
            return self._upkeep.clean()

    def due_in_ms(self) -> int:
        """Return after how many milliseconds `maintain` is due if nothing is appended; 0 if it is due now."""
        return self._upkeep.due_in_ms()

    def rest(self) -> bool:
        """Free memory kept for readers if there was no read or append since the last call; return whether it did."""
        if self._used:
            self._used = False
            return False
        self._tail.clear()
        self._files.forget(file.path for file in self.files)
        return True

    def flush(self) -> None:
        """Make appends with `Flush.ASYNC`, by this process or others, durable."""
        self._unsynced.sync()

    @property
    def dead_paths(self) -> set[str]:
        """The removed files that this process knows and that are not deleted yet."""
        return self._dead.paths()

    @property
    def unsynced(self) -> int:
        """The number of files that a power cut could still lose."""
        return len(self._unsynced)

    def verify(self) -> None:
        """Read and check every byte of every live file; raise `Corrupt`, which names the first bad file."""
        self._reader.verify()

    def close(self) -> None:
        """Flush; nothing else needs closing."""
        self.flush()

    def release(self) -> None:
        """Free the memory and forget unsynced files: the partition was deleted."""
        self._tail.clear()
        self._unsynced.drop()
