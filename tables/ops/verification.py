"""Verification of everything stored: every file of every partition's log, every byte of every live data file.

Verification changes nothing; `tables.ops.repairs` repairs. A partition that is being written in the meantime is not
reported as damaged: what looks wrong is checked a second time, against a newer state of the partition's log.

    log       each commit complete and in sequence, checkpoints readable, `.head` and `_last_checkpoint` up to date
    files     existence, size, every checksum, every offset in its place
    the rest  counted: data files that no commit names
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import msgspec

from deltamq.mq.errors import Corrupt, DeltaMQError, Unavailable
from deltamq.tables.delta.actions import Commit, DataFile, commit_name
from deltamq.tables.delta.checkpoint import ForeignCheckpoint, hint_key, hint_version
from deltamq.tables.delta.creation import check_no_data
from deltamq.tables.delta.head import can_put_back, head_key, read_head
from deltamq.tables.delta.reader import FileReader, RowCache
from deltamq.tables.delta.snapshot import PartitionNotFound, Snapshot, load, log_versions, read_commit, start
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.ops.checkpoints import checkpoint_faults, checkpoint_keys, newest_checkpoint, own_checkpoints
from deltamq.tables.paths import LOG_FOLDER, PartitionRef, Space, start_of_data_file
from deltamq.tables.store.store import FileMissing, Store

#: Called after each file with the partition, the bytes checked so far, and the bytes to check in all.
Progress = Callable[[PartitionRef, int, int], None]

#: Size of the cache: nothing is read twice, so nothing is kept.
_CACHE_BYTES: Final = 1
_RESTORE: Final = "restore this file from a copy of the warehouse"
_REPAIR: Final = "stop everything that writes to this warehouse and run `deltamq verify --repair`"


class Gravity(enum.Enum):
    """How serious a finding is."""

    DAMAGE = "damage"  #: messages cannot be read, or the partition does not open
    BLEMISH = "blemish"  #: no message is in danger, but another reader may fail, or a safeguard is gone
    NOTE = "note"  #: normal


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One difference from what was written; `file` is relative to the warehouse."""

    ref: PartitionRef
    file: str
    problem: str
    remedy: str
    gravity: Gravity


def verify(
    warehouse: Warehouse, refs: Sequence[PartitionRef] | None = None, progress: Progress | None = None
) -> list[Finding]:
    """Read and check every byte of the partitions `refs`; of all partitions if it is None.

    Raises
    ------
    Unavailable
        The store cannot be read, so nothing is known about what is stored.
    """
    return _run(warehouse, refs, progress or _silent, _whole_file)


def inspect(warehouse: Warehouse, refs: Sequence[PartitionRef] | None = None) -> list[Finding]:
    """Check only logs and sizes: this takes seconds for a large warehouse, and misses altered bytes in data files."""
    return _run(warehouse, refs, _silent, _size_only)


_Check = Callable[[FileReader, str, DataFile, int | None], str | None]


def _silent(ref: PartitionRef, done: int, total: int) -> None:
    """Do nothing: the default for `progress`."""


def _size_only(reader: FileReader, key: str, file: DataFile, size: int | None) -> str | None:
    if size is None:
        return "the log names this file, but it is missing"
    return None if size == file.size else f"it has {size} bytes, the log says {file.size}"


def _whole_file(reader: FileReader, key: str, file: DataFile, size: int | None) -> str | None:
    problem = _size_only(reader, key, file, size)
    if problem is None:
        try:
            reader.verify(file)
        except Corrupt as error:
            problem = error.detail.removeprefix(f"{key}: ")
    return problem


def _run(warehouse: Warehouse, refs: Sequence[PartitionRef] | None, progress: Progress, check: _Check) -> list[Finding]:
    wanted = list(refs) if refs is not None else [ref for space in Space for ref in warehouse.refs(space)]
    total = sum(_live_bytes(warehouse.store, ref) for ref in wanted)
    findings: list[Finding] = []
    done = 0
    for ref in wanted:

        def report(size: int, ref: PartitionRef = ref) -> None:
            nonlocal done
            done += size
            progress(ref, done, max(done, total))

        partition = _Partition(warehouse.store, ref, check, report)
        first = partition.findings()
        if any(f.gravity is not Gravity.NOTE for f in first):
            # A log that is being written changes during the check: only findings that stay are reported.
            again = {(f.file, f.problem) for f in partition.findings()}
            first = [f for f in first if (f.file, f.problem) in again]
        findings += first
    return findings


def _live_bytes(store: Store, ref: PartitionRef) -> int:
    try:
        return sum(f.size for f in load(store, ref.folder).files)
    except Unavailable:
        raise
    except DeltaMQError:
        return 0


class _Partition:
    def __init__(self, store: Store, ref: PartitionRef, check: _Check, report: Callable[[int], None]) -> None:
        self._store = store
        self._ref = ref
        self._folder = ref.folder
        self._log = f"{ref.folder}/{LOG_FOLDER}"
        self._check = check
        self._report = report
        self._reader = FileReader(store, ref.folder, RowCache(_CACHE_BYTES))

    def findings(self) -> list[Finding]:
        try:
            snapshot: Snapshot | None = load(self._store, self._folder)
            unopened = None
        except PartitionNotFound:
            return list(self._data_without_log())
        except Corrupt as error:
            snapshot, unopened = None, error
        findings = [*self._checkpoints(), *self._commits(snapshot), *self._names(snapshot)]
        if snapshot is not None:
            findings += [*self._live_files(snapshot), *self._unnamed(snapshot)]
        elif not any(f.gravity is Gravity.DAMAGE for f in findings):
            assert unopened is not None
            findings.append(self._damage(self._log, unopened.detail, _REPAIR))
        return findings

    def _data_without_log(self) -> Iterator[Finding]:
        try:
            check_no_data(self._store, self._folder)
        except Corrupt as error:
            remedy = f"restore the folder {LOG_FOLDER} from a copy: nothing else says which rows count"
            yield self._damage(self._log, error.detail, remedy)

    def _damage(self, file: str, problem: str, remedy: str) -> Finding:
        return self._finding(file, problem, remedy, Gravity.DAMAGE)

    def _blemish(self, file: str, problem: str, remedy: str) -> Finding:
        return self._finding(file, problem, remedy, Gravity.BLEMISH)

    def _finding(self, file: str, problem: str, remedy: str, gravity: Gravity) -> Finding:
        return Finding(ref=self._ref, file=file, problem=problem, remedy=remedy, gravity=gravity)

    # The log.

    def _checkpoints(self) -> Iterator[Finding]:
        own = own_checkpoints(self._store, self._folder)
        for version in log_versions(self._store, self._folder)[1]:
            faults = checkpoint_faults(self._store, self._folder, version)
            is_newest = version == max(own, default=-1)
            is_damage = is_newest and None not in faults.values()
            for key, fault in faults.items():
                if isinstance(fault, FileMissing) and not (
                    is_newest and key == checkpoint_keys(self._folder, version)[1]
                ):
                    continue
                if fault is not None:
                    yield self._checkpoint(key, fault, is_damage=is_damage, is_newest=is_newest)

    def _checkpoint(self, key: str, fault: DeltaMQError, *, is_damage: bool, is_newest: bool) -> Finding:
        if isinstance(fault, FileMissing):
            return self._blemish(key, "is missing; other Delta readers may not open the table", _REPAIR)
        problem = fault.detail.removeprefix(f"{key}: ").removeprefix(f"{self._folder}: ")
        if is_damage:
            return self._damage(key, problem, _REPAIR)
        if is_newest or isinstance(fault, ForeignCheckpoint):
            return self._blemish(key, problem, _REPAIR)
        return self._blemish(key, problem, "none: there is a newer checkpoint; clean-up removes this one")

    def _commits(self, snapshot: Snapshot | None) -> Iterator[Finding]:
        commits = log_versions(self._store, self._folder)[0]
        base = newest_checkpoint(self._store, self._folder)
        table_id = snapshot.table_id if snapshot else self._table_id()
        there = set(commits)
        for version in range(base + 1, max(commits, default=base) + 1):
            key = f"{self._log}/{commit_name(version)}"
            if version not in there and not self._store.exists(key):
                yield self._damage(key, "is missing, but the log continues after it", _REPAIR)
        for version in commits:
            problem = self._commit_problem(version, table_id)
            key = f"{self._log}/{commit_name(version)}"
            if problem and version > base:
                yield self._damage(key, problem, _REPAIR)
            elif problem:
                yield self._blemish(key, problem, f"none: the checkpoint of version {base} covers it")

    def _table_id(self) -> str | None:
        """Return the id of a table whose log does not open, from any checkpoint or version 0 that can be read."""
        _, checkpoints = log_versions(self._store, self._folder)
        for version in [*reversed(checkpoints), -1]:
            try:
                return start(self._store, self._folder, version).table_id
            except (Corrupt, FileMissing):
                continue
        return None

    def _commit_problem(self, version: int, table_id: str | None) -> str | None:
        key = f"{self._log}/{commit_name(version)}"
        if version > 0 and table_id is None:
            return None  # without the id, a commit cannot be checked
        try:
            read_commit(self._store, self._folder, version, table_id or "")
        except FileMissing:
            return None
        except Corrupt as error:
            return error.detail.removeprefix(f"{key}: ")
        return None

    def _names(self, snapshot: Snapshot | None) -> Iterator[Finding]:
        """Check `.head` and `_last_checkpoint`, the second names of the newest commit and of a checkpoint."""
        table_id = snapshot.table_id if snapshot else self._table_id()
        key = head_key(self._folder)
        head = read_head(self._store, self._folder, table_id)
        if head is None and snapshot is not None and self._store.exists(key):
            yield self._blemish(key, "is not a complete commit", "none: the next commit replaces it")
        elif head is not None:
            name = f"{self._log}/{commit_name(head[0].version)}"
            newest = max(log_versions(self._store, self._folder)[0], default=-1)
            if head[0].version > newest and not self._store.exists(name):
                yield self._lost(name, head[0])
        yield from self._hint(snapshot is not None)

    def _lost(self, name: str, commit: Commit) -> Finding:
        if not commit.flushed and not can_put_back(self._store, self._folder, commit, commit.version):
            problem = f"a power cut lost this commit, which ended at {commit.end_offset} and was not durable yet"
            return self._blemish(name, problem, "none: the next commit takes its place")
        return self._damage(name, f"is missing, but its content is in {head_key(self._folder)}", _REPAIR)

    def _hint(self, sound: bool) -> Iterator[Finding]:
        key = hint_key(self._folder)
        try:
            named = hint_version(self._store, self._folder)
        except Corrupt as error:
            if sound:  # else the checkpoint that the hint names is the problem
                problem = error.detail.removeprefix(f"{key}: ")
                yield self._blemish(key, f"{problem}; other Delta readers may not open the table", _REPAIR)
            return
        if named is None and log_versions(self._store, self._folder)[1]:
            yield self._blemish(key, "is missing; other Delta readers take longer to open the table", _REPAIR)

    # Data.

    def _live_files(self, snapshot: Snapshot) -> Iterator[Finding]:
        sizes = {entry.name: entry.size for entry in self._store.entries(self._folder)}
        for file in list(snapshot.files):
            key = f"{self._folder}/{file.path}"
            problem = self._check(self._reader, key, file, sizes.get(file.path))
            self._report(file.size)
            if problem and self._still_live(file):
                remedy = f"{_RESTORE}; it holds offsets {file.start} to {file.end - 1}"
                yield self._damage(key, problem, remedy)

    def _still_live(self, file: DataFile) -> bool:
        """Return whether the newest log still names the file: a roll-up may have replaced it in the meantime."""
        try:
            return any(f.path == file.path for f in load(self._store, self._folder).files)
        except Corrupt:
            return True

    def _unnamed(self, snapshot: Snapshot) -> Iterator[Finding]:
        live = {f.path for f in snapshot.files}
        rest = [e for e in self._store.entries(self._folder) if e.name not in live]
        if rest:
            beyond = sum(_starts_at_or_after(e.name, snapshot.end_offset) for e in rest)
            size = sum(e.size for e in rest)
            problem = f"{len(rest)} files of {size} bytes that no commit names; {beyond} at or after the end offset"
            remedy = "none: rolled up, removed, left by a killed writer, or being written; upkeep deletes them in time"
            yield self._finding(self._folder, problem, remedy, Gravity.NOTE)


def _starts_at_or_after(name: str, offset: int) -> bool:
    try:
        return start_of_data_file(name) >= offset
    except ValueError:
        return False


def damaged(findings: Iterable[Finding]) -> list[PartitionRef]:
    """Return the partitions with findings other than notes, each once, in order."""
    return list(dict.fromkeys(f.ref for f in findings if f.gravity is not Gravity.NOTE))
