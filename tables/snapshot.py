"""The state of one message table at one version, and how it is rebuilt from its log alone (SPEC META-3).

    checkpoint (if any)  ->  commits after it, every one whole and in sequence  ->  checks

Every fact is believed only when it agrees with the others (RELIABILITY R4): files lie end to end, the end offset of
the log is the end of the last file, and no commit is known to have been there that is not there now.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from mq.errors import Corrupt, DeltaMQError, NotFound, Unavailable
from tables.actions import Commit, DataFile, commit_name, parse_commit
from tables.checkpoint import Checkpoint, read_checkpoint
from tables.local_store import HEAD
from tables.paths import LOG_FOLDER
from tables.store import FileMissing, Store

__all__ = ["LOG_KEEP", "ORPHAN_KEEP", "PartitionNotFound", "Snapshot", "load", "log_versions"]

_COMMIT: Final = re.compile(r"(\d{20})\.json")
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint\.parquet")
#: Table configuration: how long a commit file, and a file that no commit names, live at least.
LOG_KEEP: Final = "mq.log_keep_ms"
ORPHAN_KEEP: Final = "mq.orphan_keep_ms"
#: A clean-up may delete what a load is about to read; each further try starts from a newer checkpoint.
_LOAD_TRIES: Final = 5


class PartitionNotFound(NotFound):
    """There is no such partition."""

    code = "partition_not_found"


@dataclass(slots=True, kw_only=True)
class Snapshot:
    """A table's state; `files` are live, in offset order. Changed only by `apply`, under the append lock."""

    version: int
    batch_id: str
    end_offset: int
    metadata: dict[str, object]
    files: list[DataFile] = field(default_factory=list)
    checkpoint_version: int = -1

    @property
    def min_offset(self) -> int:
        """The first offset still stored; the end offset when nothing is."""
        return self.files[0].start if self.files else self.end_offset

    def keep_ms(self, name: str, default: int) -> int:
        """A promise that the table's own configuration makes to all its writers, in milliseconds."""
        return int(self.configuration.get(name, default))

    @property
    def configuration(self) -> dict[str, str]:
        """The table's configuration."""
        configuration = self.metadata.get("configuration")
        if not isinstance(configuration, dict):
            raise Corrupt("the table's metadata has no configuration")
        return configuration

    def apply(self, commit: Commit) -> None:
        """Move one version on; raises `Corrupt` when the commit contradicts this state."""
        if commit.version != self.version + 1:
            raise Corrupt(f"commit {commit.version} does not follow version {self.version}")
        if commit.end_offset is not None:
            self._append(commit)
        elif commit.removes:
            self._rewrite(commit)
        self.version = commit.version
        self.batch_id = commit.batch_id

    def _append(self, commit: Commit) -> None:
        at = self.end_offset
        for file in commit.adds:
            if file.start != at:
                raise Corrupt(f"commit {commit.version}: {file.path} starts at {file.start}, the log ends at {at}")
            at = file.end
        if at != commit.end_offset or commit.removes:
            raise Corrupt(f"commit {commit.version}: its files end at {at}, its end offset is {commit.end_offset}")
        self.files.extend(commit.adds)
        self.end_offset = at

    def _rewrite(self, commit: Commit) -> None:
        gone = set(commit.removes)
        kept = [f for f in self.files if f.path not in gone]
        if len(kept) + len(gone) != len(self.files):
            raise Corrupt(f"commit {commit.version} removes files that are not live")
        files = sorted([*kept, *commit.adds], key=lambda f: f.start)
        check_dense(files, self.end_offset, where=f"commit {commit.version}")
        # A new list: readers that hold the old one finish undisturbed.
        self.files = files

    def checkpoint(self) -> Checkpoint:
        """This state as a checkpoint."""
        return Checkpoint(
            version=self.version,
            batch_id=self.batch_id,
            end_offset=self.end_offset,
            files=list(self.files),
            metadata=self.metadata,
        )


def check_dense(files: Sequence[DataFile], end_offset: int, *, where: str) -> None:
    """Raise `Corrupt` unless the files lie end to end and finish at `end_offset` (RELIABILITY R4)."""
    for before, after in itertools.pairwise(files):
        if before.end != after.start:
            raise Corrupt(f"{where}: {before.path} ends at {before.end}, {after.path} starts at {after.start}")
    if files and files[-1].end != end_offset:
        raise Corrupt(f"{where}: {files[-1].path} ends at {files[-1].end}, the end offset is {end_offset}")


def log_versions(store: Store, folder: str) -> tuple[list[int], list[int]]:
    """Versions of the commit files and of the checkpoints that are there, ascending."""
    names = [entry.name for entry in store.entries(f"{folder}/{LOG_FOLDER}")]
    commits = [int(m[1]) for m in map(_COMMIT.fullmatch, names) if m]
    checkpoints = [int(m[1]) for m in map(_CHECKPOINT.fullmatch, names) if m]
    return commits, checkpoints


def load(store: Store, folder: str, on_commit: Callable[[Commit], None] = lambda commit: None) -> Snapshot:
    """Rebuild the newest state; `on_commit` sees every commit that was replayed.

    Raises
    ------
    PartitionNotFound
        There is no log.
    Corrupt
        The log contradicts itself; the message names the file.
    """
    last: DeltaMQError = Unavailable()
    for _ in range(_LOAD_TRIES):
        try:
            return _load_once(store, folder, on_commit)
        except FileMissing as error:
            last = error
    raise Corrupt(f"{folder}: a file that the log names is missing: {last.detail}")


def _load_once(store: Store, folder: str, on_commit: Callable[[Commit], None]) -> Snapshot:
    commits, checkpoints = log_versions(store, folder)
    if not commits and not checkpoints:
        raise PartitionNotFound(f"there is no table at {store.uri(folder)}")
    base = checkpoints[-1] if checkpoints else -1
    snapshot = _from_checkpoint(store, folder, base)
    replay = [v for v in commits if v > base]
    for expected, version in enumerate(replay, base + 1):
        if version != expected:
            raise Corrupt(f"{folder}/{LOG_FOLDER}/{commit_name(expected)} is missing; version {version} exists")
        commit = _read(store, folder, version)
        if snapshot is None:
            snapshot = _first(commit, folder)
        else:
            snapshot.apply(commit)
        on_commit(commit)
    assert snapshot is not None, "a log without checkpoint has at least version 0"
    check_dense(snapshot.files, snapshot.end_offset, where=folder)
    _check_head(store, folder, snapshot)
    return snapshot


def _from_checkpoint(store: Store, folder: str, version: int) -> Snapshot | None:
    if version < 0:
        return None
    found = read_checkpoint(store, folder, version)
    files = sorted(found.files, key=lambda f: f.start)
    return Snapshot(
        version=version,
        batch_id=found.batch_id,
        end_offset=found.end_offset,
        metadata=found.metadata,
        files=files,
        checkpoint_version=version,
    )


def _first(commit: Commit, folder: str) -> Snapshot:
    if commit.metadata is None:
        raise Corrupt(f"{folder}: version 0 does not create a table")
    return Snapshot(version=0, batch_id=commit.batch_id, end_offset=0, metadata=commit.metadata)


def _read(store: Store, folder: str, version: int) -> Commit:
    key = f"{folder}/{LOG_FOLDER}/{commit_name(version)}"
    return parse_commit(store.read(key), version=version, source=key)


def _check_head(store: Store, folder: str, snapshot: Snapshot) -> None:
    """The second name of the newest commit must not be newer than the log: else a commit file was lost."""
    key = f"{folder}/{LOG_FOLDER}/{HEAD}"
    try:
        version = head_version(bytes(store.read(key)))
    except FileMissing:
        return
    if version is None or version <= snapshot.version:
        return
    if store.exists(f"{folder}/{LOG_FOLDER}/{commit_name(version)}"):
        # Committed by somebody else since the listing: the caller loads again.
        raise FileMissing(key)
    raise Corrupt(
        f"{folder}/{LOG_FOLDER}/{commit_name(version)} is missing, and it was acknowledged: "
        f"its content is still in {key}; `deltamq doctor --repair` puts it back"
    )


def head_version(raw: bytes) -> int | None:
    """The version for which a `.head` file was written; None when it cannot tell."""
    match = re.search(rb'"mq\.version":"(\d+)"', raw[:4096])
    return int(match[1]) if match else None
