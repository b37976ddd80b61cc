"""The upkeep that keeps a partition cheap, off the request path: roll-ups, checkpoints, clean-up.

    roll-up      small files of the tail become one             (dataChange = false; offsets do not move)
    checkpoint   every `checkpoint_commits` commits             (opening reads it and the commits after),
                 and when a commit that it would stand for is gone
    clean-up     commits older than `log_keep_ms` and covered by a checkpoint, ascending;
                 data files that any process replaced or removed, after `file_keep_ms`;
                 files that no commit names, after `orphan_keep_ms`

Ages are measured on the boot clock from when this process first saw the file, never by the file's date: a wall clock
that jumps deletes nothing early. Upkeep may be killed at any line, and several processes may run it at once: after each
step the partition can be opened, and the next run continues.

Roll-ups are planned by a pure function of the live files. Files are put into classes by their number of rows; each
class is a factor of `fanout` larger than the one before. A run of adjacent files of a class or below becomes one file
of a higher class as soon as `fanout` of them are of that class. So a row is rewritten about once in each class, and the
number of live files grows with the logarithm of the log until a file is large enough to be final.

    rows:   [final] [final] [900] [800] [31] [32] ... [32] [1] [1] ... [1]
                                         \\___ fanout ___/    \\_ fanout _/
                                          -> one of ~1,000     -> one of 32

Smaller files in between do not count: otherwise one large file would be merged with a few small ones again and again.
Where sizes alternate so that no class ever fills, a run that is `RUN_FACTOR` times as long is merged, if the result is
at least twice as large as its largest file. A run that fills a file of `bytes_max` is merged at once: the result is
final, and its rows are still in memory.
"""

from __future__ import annotations

import threading
import uuid
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

import pyarrow as pa

from deltamq.mq.errors import Corrupt
from deltamq.mq.limits import MIB
from deltamq.mq.producer import Part
from deltamq.tables.clock import Clock
from deltamq.tables.delta.actions import DataFile, commit_name
from deltamq.tables.delta.checkpoint import checkpoint_names, write_checkpoint
from deltamq.tables.delta.encode import Encoded, encode_file
from deltamq.tables.delta.joined_file import join_files
from deltamq.tables.delta.large_file import GROUP_BYTES_MAX, encode_large_file
from deltamq.tables.delta.snapshot import LOG_KEEP, ORPHAN_KEEP, log_versions
from deltamq.tables.log.dead_files import DeadFiles
from deltamq.tables.log.state import LogState
from deltamq.tables.paths import LOG_FOLDER
from deltamq.tables.settings import LogSettings
from deltamq.tables.store.local import TEMP_PREFIX
from deltamq.tables.store.store import Store

#: Pieces of rows that are larger on average are not joined in memory: that would only copy them.
_JOINED_BYTES_MAX: Final = 1 * MIB
#: Number of newest checkpoints that are kept: no reader starts from older ones.
_CHECKPOINTS_KEPT: Final = 2


class KeptLog(Protocol):
    """The partition's methods that upkeep needs besides the state of the log."""

    def tables_of(self, files: Sequence[DataFile]) -> Iterator[pa.Table]:
        """Yield all rows of adjacent live files: as one table if they are all in memory, else by file or row group."""

    def file_bytes(self, file: DataFile) -> pa.Buffer:
        """Return the checked bytes of a live file."""

    def parts_of(self, file: DataFile) -> list[Part]:
        """Return the producers' requests in a live file that are still remembered."""

    def rewrite(
        self, adds: Sequence[Encoded], removes: Sequence[DataFile], *, operation: str, rows: Sequence[pa.Table] = ()
    ) -> bool:
        """Commit a rearrangement of files; return False if one of `removes` is no longer live."""

    def flush(self) -> None:
        """Make everything that was appended durable."""


class Upkeep:
    """The upkeep of one partition; one thread at a time does it, other threads' calls return at once."""

    def __init__(
        self,
        state: LogState,
        log: KeptLog,
        store: Store,
        *,
        settings: LogSettings,
        clock: Clock,
        dead: DeadFiles,
        clean_commits: int,
    ) -> None:
        """Take the partition's parts; one clean-up deletes at most `clean_commits` commits."""
        self._state = state
        self._log = log
        self._dead = dead
        self._clean_commits = clean_commits
        self._store = store
        self._settings = settings
        self._clock = clock
        self._folder = state.ref.folder
        self._log_keep_ms = max(settings.log_keep_ms, state.keep_ms(LOG_KEEP, settings.log_keep_ms))
        self._orphan_keep_ms = max(settings.orphan_keep_ms, state.keep_ms(ORPHAN_KEEP, settings.orphan_keep_ms))
        self._sweep_every_ms = self._orphan_keep_ms // 10
        self._busy = threading.Lock()
        #: Pairs (boot time, version): all versions up to this one existed at that time.
        self._sightings = [(clock.boot_ms(), state.version)]
        self._cleaned_to = 0
        #: Commits and checkpoints to delete, oldest first; None for none, as an empty queue would cost half a KiB.
        self._old_log: deque[str] | None = None
        #: No roll-up is due before this offset (see `tables.log.upkeep.final_end`).
        self._final_end = 0
        self._orphans: dict[str, int] = {}
        self._swept_ms = clock.boot_ms()

    def run(self) -> bool:
        """Do what is due; return whether anything was done.

        A second thread returns at once, and so does one that may only read: this release does not know what the
        table's files are for.
        """
        return self._exclusively(self._all)

    def clean(self) -> bool:
        """Delete only dead files and orphans whose keep time has passed; return whether there were any."""
        return self._exclusively(lambda now: self._delete_dead() | self._sweep(now))

    def due_in_ms(self) -> int:
        """Return after how many milliseconds `run` is due if nothing is appended; 0 if it is due now."""
        if not self._state.may_write:
            return self._sweep_every_ms
        now = self._clock.boot_ms()
        if self._old_log or self._checkpoint_is_due() or self._planned_rollup():
            return 0
        due = [self._swept_ms + self._sweep_every_ms]
        first = self._dead.first_seen_ms
        if first is not None:
            due.append(first + self._settings.file_keep_ms)
        due += self._log_clean_times()
        return max(0, min(due) - now)

    def _log_clean_times(self) -> list[int]:
        """Return when commits that a checkpoint covers will be old enough to be deleted; empty if there are none."""
        covered = self._state.checkpoint_version
        if covered <= self._cleaned_to:
            return []
        known = [time for time, version in self._sightings if min(version, covered) > self._cleaned_to]
        return [known[0] + self._log_keep_ms] if known else [self._sightings[-1][0] + self._log_keep_ms // 10]

    def _exclusively(self, work: Callable[[int], bool]) -> bool:
        if not self._state.may_write or not self._busy.acquire(blocking=False):
            return False
        try:
            return work(self._clock.boot_ms())
        finally:
            self._busy.release()

    def _all(self, now: int) -> bool:
        self._sight(now)
        # `|`, not `or`: every step runs.
        return self._roll_up() | self._checkpoint() | self._clean_log(now) | self._delete_dead() | self._sweep(now)

    def _sight(self, now: int) -> None:
        """Remember the newest version and the time, about ten times in each `log_keep_ms` while the log grows."""
        time, version = self._sightings[-1]
        if now - time >= self._log_keep_ms // 10 and version != self._state.version:
            self._sightings.append((now, self._state.version))

    def _roll_up(self) -> bool:
        files = self._planned_rollup()
        if not files:
            return False
        try:
            encoded, rows = self._rolled_up(files)
        except Corrupt:
            self._state.refresh()
            if self._state.are_live(files):
                raise
            # Another process rolled them up, and deleted them before this process refreshed.
            return False
        return self._log.rewrite([encoded], files, operation="OPTIMIZE", rows=rows)

    def _rolled_up(self, files: Sequence[DataFile]) -> tuple[Encoded, Sequence[pa.Table]]:
        """Return the file that replaces others, and the rows of it that become one piece in memory."""
        encoded_rows: list[pa.Table] = []

        def encode(some: Sequence[DataFile], parts: Sequence[Part] = ()) -> Encoded:
            tables = self._log.tables_of(some)
            taken, nbytes = _taken(tables, GROUP_BYTES_MAX)
            if nbytes > GROUP_BYTES_MAX:
                # The files' sizes do not show it: bodies that compress well take a thousand times as much in memory.
                all_tables = _let_go(taken, tables)
                return encode_large_file(
                    all_tables, parts, batch_id=batch_id, now_ms=now_ms, row_group_rows=row_group_rows
                )
            rows = taken[0] if len(taken) == 1 else pa.concat_tables(taken)
            if nbytes < _JOINED_BYTES_MAX * len(some):
                rows = rows.combine_chunks()
                encoded_rows.append(rows)
            return encode_file(rows, parts, batch_id=batch_id, now_ms=now_ms, row_group_rows=row_group_rows)

        parts = [part for file in files for part in self._log.parts_of(file)]
        batch_id, now_ms = f"r{uuid.uuid4().hex[1:]}", self._clock.wall_us() // 1000
        row_group_rows = self._settings.row_group_rows
        joined = join_files(
            files,
            self._log.file_bytes,
            encode,
            parts,
            batch_id=batch_id,
            now_ms=now_ms,
            row_group_rows=row_group_rows,
        )
        if joined is None:
            encoded_rows.clear()
            joined = encode(files, parts)
        return joined, encoded_rows

    def _planned_rollup(self) -> Sequence[DataFile]:
        files, bytes_max = self._state.files[-WINDOW_FILES:], self._settings.rollup_bytes_max
        plan = plan_rollup(files, fanout=self._settings.rollup_files, bytes_max=bytes_max, since=self._final_end)
        if not plan:
            self._final_end = max(self._final_end, final_end(files, bytes_max=bytes_max))
        return plan

    def _checkpoint_is_due(self) -> bool:
        behind = self._state.version - self._state.checkpoint_version
        return behind >= self._settings.checkpoint_commits or bool(self._state.missing)

    def _checkpoint(self) -> bool:
        if not self._checkpoint_is_due():
            return False
        checkpoint = self._state.checkpoint()
        # A checkpoint must not be more durable than the commits it stands for.
        self._log.flush()
        write_checkpoint(self._store, self._folder, checkpoint, now_ms=self._clock.wall_us() // 1000)
        self._state.checkpointed(checkpoint.version)
        return True

    def _clean_log(self, now: int) -> bool:
        """Delete old commits that a checkpoint covers, oldest first, so that no gap appears."""
        old = self._old_log or self._find_old_log(now)
        count = min(len(old), self._clean_commits)
        for _ in range(count):
            self._store.delete(old[0])
            old.popleft()
        self._old_log = old or None
        return count > 0

    def _find_old_log(self, now: int) -> deque[str]:
        """List what the next runs delete: in a log that grows fast, that is more than one run may delete."""
        keys = deque[str]()
        aged = [version for time, version in self._sightings if now - time >= self._log_keep_ms]
        # The newest of them stays: while the log does not grow, no other sighting is added.
        del self._sightings[: len(aged) - 1 if aged else 0]
        keep_from = min(aged[-1] if aged else -1, self._state.checkpoint_version)
        if keep_from <= self._cleaned_to:
            return keys
        commits, checkpoints = log_versions(self._store, self._folder)
        log = f"{self._folder}/{LOG_FOLDER}"
        keys.extend(f"{log}/{commit_name(v)}" for v in commits if v < keep_from)
        covered = [v for v in checkpoints if v <= keep_from]
        keys.extend(f"{log}/{name}" for v in covered[:-_CHECKPOINTS_KEPT] for name in checkpoint_names(v))
        self._cleaned_to = keep_from
        return keys

    def _delete_dead(self) -> bool:
        old = self._dead.due(self._settings.file_keep_ms)
        for path in old:
            self._store.delete(f"{self._folder}/{path}")
            self._dead.forget(path)
        return bool(old)

    def _sweep(self, now: int) -> bool:
        """Delete files that no commit has named for `orphan_keep_ms`: leftovers of killed writers."""
        if now - self._swept_ms < self._sweep_every_ms:
            return False
        self._swept_ms = now
        self._state.refresh()
        self._state.look_back()
        live = self._dead.paths() | {f.path for f in self._state.files}
        log = f"{self._folder}/{LOG_FOLDER}"
        keys = [f"{self._folder}/{e.name}" for e in self._store.entries(self._folder) if e.name not in live]
        keys += [f"{log}/{e.name}" for e in self._store.entries(log) if e.name.startswith(TEMP_PREFIX)]
        self._orphans = {key: self._orphans.get(key, now) for key in keys}
        doomed = [key for key, seen in self._orphans.items() if now - seen >= self._orphan_keep_ms]
        for key in doomed:
            self._store.delete(key)
            del self._orphans[key]
        return bool(doomed)


def _taken(tables: Iterator[pa.Table], bytes_max: int) -> tuple[list[pa.Table], int]:
    """Take tables until they have more than `bytes_max` in memory, or none is left; return them and their bytes."""
    taken: list[pa.Table] = []
    nbytes = 0
    while nbytes <= bytes_max and (table := next(tables, None)) is not None:
        taken.append(table)
        nbytes += table.nbytes
    return taken, nbytes


def _let_go(taken: list[pa.Table], more: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Yield the taken tables, then `more`, and keep none of them."""
    while taken:
        yield taken.pop(0)
    yield from more


#: Number of newest files that a plan considers: older ones had their turn.
WINDOW_FILES: Final = 4_096
#: A run that is this many times longer than `fanout` is merged even if none of its classes is full.
RUN_FACTOR: Final = 4


def plan_rollup(files: Sequence[DataFile], *, fanout: int, bytes_max: int, since: int = 0) -> Sequence[DataFile]:
    """Return adjacent files that should become one now, in offset order; an empty sequence if nothing is due.

    A file of half of `bytes_max` or more is final. The chosen files have at most `bytes_max` together. Files before the
    offset `since` are not considered; see `final_end`.
    """
    recent = files[bisect_left(files, since, key=lambda f: f.start) :]
    classes = [None if _is_final(f, bytes_max) else _class(f, fanout) for f in recent]
    for level in sorted({c for c in classes if c is not None}):
        for low, high in _runs(classes, level):
            if _is_due(recent[low:high], classes[low:high], level, fanout, bytes_max):
                return _within(recent[low:high], bytes_max)
    return ()


def final_end(files: Sequence[DataFile], *, bytes_max: int) -> int:
    """Return the end offset of the newest final file; 0 if there is none.

    No run of files reaches over it. So if nothing is due now, nothing before this offset will be.
    """
    return next((f.end for f in reversed(files) if _is_final(f, bytes_max)), 0)


def _is_final(file: DataFile, bytes_max: int) -> bool:
    return file.size >= bytes_max // 2


def _is_due(run: Sequence[DataFile], classes: Sequence[int | None], level: int, fanout: int, bytes_max: int) -> bool:
    if classes.count(level) >= fanout or sum(f.size for f in run) >= bytes_max:
        return True
    counts = [f.count for f in run]
    return len(run) >= RUN_FACTOR * fanout and sum(counts) >= 2 * max(counts)


def _class(file: DataFile, fanout: int) -> int:
    level, bound = 0, fanout
    while file.count >= bound:
        level, bound = level + 1, bound * fanout
    return level


def _runs(classes: Sequence[int | None], level: int) -> Iterator[tuple[int, int]]:
    """Yield the longest runs `[low, high)` of adjacent files of class `level` or below, newest first."""
    high = len(classes)
    while high > 0:
        low = high
        while low > 0 and (file_class := classes[low - 1]) is not None and file_class <= level:
            low -= 1
        if low < high:
            yield low, high
        high = min(low, high - 1)


def _within(files: Sequence[DataFile], bytes_max: int) -> Sequence[DataFile]:
    total = 0
    for count, file in enumerate(files):
        total += file.size
        if total > bytes_max and count >= 2:
            return files[:count]
    return files
