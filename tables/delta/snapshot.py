"""The state of one message table at one version, and how it is rebuilt only from its log (SPEC META-3).

    checkpoint (if any)  ->  commits after it, each complete and in sequence  ->  checks

A state is accepted only if all facts agree (SPEC RELY-4): files lie end to end, the end offset of the log is the
end of the last file, and no commit that is known to have existed is missing.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Final

import msgspec
import pyarrow as pa

from deltamq.mq.errors import Corrupt, NotFound, Unavailable
from deltamq.tables.delta.actions import Commit, DataFile, commit_name, parse_commit
from deltamq.tables.delta.checkpoint import ForeignCheckpoint, LogCheckpoint, read_checkpoint, read_checkpoint_file
from deltamq.tables.delta.creation import check_no_data
from deltamq.tables.delta.foreign import check_metadata
from deltamq.tables.delta.head import can_put_back, head_key, read_head
from deltamq.tables.paths import LOG_FOLDER, PartitionRef, Space, generation_of
from deltamq.tables.store.store import FileMissing, Store

_COMMIT: Final = re.compile(r"(\d{20})\.json")
_OWN_COPY: Final = re.compile(r"\.checkpoint-(\d{20})")
_CHECKPOINT: Final = re.compile(rf"{_OWN_COPY.pattern}|(\d{{20}})\.checkpoint\.parquet")
#: Keys of the table's configuration: the least time that a commit file, and a file that no commit names, are kept.
LOG_KEEP: Final = "mq.log_keep_ms"
ORPHAN_KEEP: Final = "mq.orphan_keep_ms"
#: What bodies are made of, in a table that stores values without their bodies.
BODY: Final = "mq.body"
#: The columns that have statistics: without this, other engines look only at the first 32.
_SKIPPING: Final = "delta.dataSkippingStatsColumns"
_SKIPPED_BY: Final = "offset,born_time,append_time,deliver_time,value"
#: Tries of a load: a clean-up may delete what it is about to read; each further try starts from a newer checkpoint.
_LOAD_TRIES: Final = 5
#: Commits that are asked for at once.
_READ_AT_ONCE: Final = 64


class PartitionNotFound(NotFound):
    """There is no such partition."""

    code = "partition_not_found"


class CommitLost(Corrupt):
    """A commit's file is gone, but its content is in `.head`."""

    code = "commit_lost"

    def __init__(self, detail: str, *, table_id: str = "", version: int = -1) -> None:
        super().__init__(detail)
        self.table_id = table_id
        self.version = version


class Snapshot(msgspec.Struct, kw_only=True):
    """A table's state; `files` are the live files, in offset order. Only `apply` changes it, under the append lock."""

    version: int
    batch_id: str
    end_offset: int
    metadata: dict[str, object]
    files: list[DataFile] = msgspec.field(default_factory=list)
    checkpoint_version: int = -1
    #: The highest epoch of each fence; never modified.
    fences: Mapping[str, int] = msgspec.field(default_factory=dict)
    #: The table's writer features, by which other engines refuse to write to it (SPEC TABLE-1), and older releases.
    writer_features: frozenset[str] = frozenset()

    @property
    def table_id(self) -> str:
        """The table's own id: a partition that is deleted and created again gets another one."""
        return str(self.metadata["id"])

    @property
    def min_offset(self) -> int:
        """The first offset that is still stored; the end offset if the log is empty."""
        files = self.files
        return files[0].start if files else self.end_offset

    def keep_ms(self, name: str, default: int) -> int:
        """Return the keep time `name` (milliseconds) of the table's configuration, which binds all its writers."""
        return int(self.configuration.get(name, default))

    @property
    def schema_json(self) -> str:
        """The schema of the rows, as Delta's JSON."""
        return str(self.metadata["schemaString"])

    @property
    def is_rendered(self) -> bool:
        """Whether rows with a value have no body: it is rendered for who wants bytes (SPEC TYPE-4)."""
        return BODY in self.configuration

    def with_schema(self, schema_json: str, *, rendered: bool) -> dict[str, object]:
        """Return the table's metadata with another schema; engines skip files by its typed columns, too."""
        configuration = {**self.configuration, **typed_settings(rendered=rendered)}
        return {**self.metadata, "schemaString": schema_json, "configuration": configuration}

    @property
    def configuration(self) -> dict[str, str]:
        """The table's configuration."""
        configuration = self.metadata.get("configuration")
        if not isinstance(configuration, dict):
            raise Corrupt("the table's metadata has no configuration")
        return configuration

    def apply(self, commit: Commit) -> None:
        """Apply the next commit; raises `Corrupt` if it contradicts this state."""
        if commit.version != self.version + 1:
            raise Corrupt(f"commit {commit.version} does not follow version {self.version}")
        if commit.end_offset is not None:
            self._append(commit)
        elif commit.removes:
            self._rewrite(commit)
        if commit.fences:
            self._fence(commit)
        if commit.metadata is not None:
            self._alter(commit)
        if commit.writer_features is not None:
            self.writer_features = commit.writer_features
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
        # A new list, so that readers that hold the old one can finish.
        self.files = files

    def _fence(self, commit: Commit) -> None:
        for name, epoch in commit.fences:
            if epoch <= self.fences.get(name, 0):
                raise Corrupt(f"commit {commit.version}: fence {name} goes from {self.fences[name]} to {epoch}")
        # A new mapping: an append that holds the old one compares with the epochs that it knew.
        self.fences = {**self.fences, **dict(commit.fences)}

    @property
    def _name(self) -> str:
        return self.configuration.get("mq.partition", "")

    def _alter(self, commit: Commit) -> None:
        metadata = _shared(commit.metadata or {})
        if commit.author:
            check_metadata(
                self.metadata, metadata, author=commit.author, source=f"{self._name}: version {commit.version}"
            )
        self.metadata = metadata

    def checkpoint(self) -> LogCheckpoint:
        """Return this state as a checkpoint."""
        return LogCheckpoint(
            version=self.version,
            batch_id=self.batch_id,
            end_offset=self.end_offset,
            files=list(self.files),
            metadata=self.metadata,
            fences=self.fences,
            writer_features=self.writer_features,
        )


def typed_settings(*, rendered: bool) -> dict[str, str]:
    """Return the settings of a table with typed columns; `rendered`: values are stored without bodies."""
    return {_SKIPPING: _SKIPPED_BY, **({BODY: "value"} if rendered else {})}


def check_dense(files: Sequence[DataFile], end_offset: int, *, where: str) -> None:
    """Raise `Corrupt` unless the files lie end to end and finish at `end_offset` (SPEC RELY-4)."""
    for before, after in itertools.pairwise(files):
        if before.end != after.start:
            raise Corrupt(f"{where}: {before.path} ends at {before.end}, {after.path} starts at {after.start}")
    if files and files[-1].end != end_offset:
        raise Corrupt(f"{where}: {files[-1].path} ends at {files[-1].end}, the end offset is {end_offset}")


def log_versions(store: Store, folder: str) -> tuple[list[int], list[int]]:
    """Return the versions of the existing commit files and of the existing checkpoints, ascending."""
    names = store.names(f"{folder}/{LOG_FOLDER}")
    commits = [int(m[1]) for m in map(_COMMIT.fullmatch, names) if m]
    checkpoints = {int(m[1] or m[2]) for m in map(_CHECKPOINT.fullmatch, names) if m}
    return commits, sorted(checkpoints)


def newest_own_copy(store: Store, folder: str) -> int:
    """Return the newest version with our own copy of a checkpoint, -1 if there is none."""
    matches = map(_OWN_COPY.fullmatch, store.names(f"{folder}/{LOG_FOLDER}"))
    return max((int(m[1]) for m in matches if m), default=-1)


def load_made(store: Store, folder: str) -> Snapshot | None:
    """Return the newest state, None if the table is not made yet or was deleted; raises as `load` does else.

    Data without a log is no table that is not made: that raises `Corrupt`.
    """
    try:
        return load(store, folder)
    except PartitionNotFound:
        check_no_data(store, folder)
        return None


def load(store: Store, folder: str, on_commit: Callable[[Commit], None] = lambda commit: None) -> Snapshot:
    """Rebuild the newest state; `on_commit` receives every replayed commit, some perhaps twice.

    Raises
    ------
    PartitionNotFound
        There is no log.
    CommitLost
        The newest commit's file is gone, but its content is in `.head`.
    Corrupt
        The log contradicts itself; the message names the file.
    Unavailable
        `table_newer`: the table has a reader feature that this release does not know.
    """
    foreign: set[int] = set()
    tries = 0
    while tries < _LOAD_TRIES:
        commits, checkpoints = log_versions(store, folder)
        if not commits and not checkpoints:
            raise PartitionNotFound(f"there is no table at {store.uri(folder)}")
        base = max((v for v in checkpoints if v not in foreign), default=-1)
        try:
            return _replayed(store, folder, base, commits[-1] if commits else -1, on_commit, foreign)
        except ForeignCheckpoint:
            foreign.add(base)
        except FileMissing as error:
            tries += 1
            if not _newer_checkpoint(store, folder, base, foreign):
                raise Corrupt(f"{error.detail} is missing, but the log continues after it") from error
    raise Unavailable(f"{folder}: the log is cleaned up faster than it can be read", code="contention")


def _newer_checkpoint(store: Store, folder: str, version: int, foreign: Set[int]) -> bool:
    """Return whether we have a checkpoint after `version`: a clean-up may have deleted files."""
    return any(v > version and v not in foreign for v in log_versions(store, folder)[1])


def _replayed(
    store: Store, folder: str, base: int, listed: int, on_commit: Callable[[Commit], None], foreign: Set[int]
) -> Snapshot:
    """Return the state of the checkpoint of version `base` (-1: none) and every commit after it.

    `foreign` holds the versions of other engines' checkpoints.

    Commits are read until there is none, not until the end of the listing, whose last version is `listed`: a listing
    does not show one moment, and may hold a file and lack one that was created before it.
    """
    snapshot = start(store, folder, base)
    while True:
        _read_on(store, folder, snapshot, on_commit, listed)
        if snapshot.version < listed:
            raise FileMissing(f"{folder}/{LOG_FOLDER}/{commit_name(snapshot.version + 1)}")
        head = read_head(store, folder, snapshot.table_id)
        if head is None or head[0].version <= snapshot.version:
            break
        key = f"{folder}/{LOG_FOLDER}/{commit_name(snapshot.version + 1)}"
        if not store.exists(key):
            if _newer_checkpoint(store, folder, base, foreign):
                raise FileMissing(key)  # this process slept while the log was cleaned
            _check_head(store, folder, snapshot, head[0])
            break
    check_dense(snapshot.files, snapshot.end_offset, where=folder)
    return snapshot


def _check_head(store: Store, folder: str, snapshot: Snapshot, head: Commit) -> None:
    """Raise `CommitLost` for a commit that only `.head` still has, unless a power cut was allowed to lose it.

    Such a commit was acknowledged as not durable; if its data files are incomplete, too, the log ends before it.
    """
    version = snapshot.version + 1
    if head.flushed or can_put_back(store, folder, head, version):
        lost = f"{folder}/{LOG_FOLDER}/{commit_name(version)}"
        raise CommitLost(
            f"{lost} is missing, but {head_key(folder)} holds version {head.version}: it was committed",
            table_id=snapshot.table_id,
            version=version,
        )


def start(store: Store, folder: str, base: int) -> Snapshot:
    """Return the state of the checkpoint of version `base`, or of version 0 if it is negative."""
    snapshot = _from_checkpoint(store, folder, base) if base >= 0 else _first(read_commit(store, folder, 0, ""), folder)
    _check_place(snapshot, folder)
    return snapshot


def _read_on(store: Store, folder: str, snapshot: Snapshot, on_commit: Callable[[Commit], None], listed: int) -> None:
    """Apply the commits that were listed, many at once, then those that came since."""

    def apply(commit: Commit) -> None:
        snapshot.apply(commit)
        on_commit(commit)

    for first in range(snapshot.version + 1, listed + 1, _READ_AT_ONCE):
        versions = range(first, min(first + _READ_AT_ONCE, listed + 1))
        keys = [f"{folder}/{LOG_FOLDER}/{commit_name(version)}" for version in versions]
        for version, key, data in zip(versions, keys, store.read_each(keys), strict=True):
            if data is None:
                return
            apply(_parsed(data, version, snapshot.table_id, key))
    while True:
        try:
            commit = read_commit(store, folder, snapshot.version + 1, snapshot.table_id)
        except FileMissing:
            return
        apply(commit)


def check_checkpoint_file(store: Store, folder: str, key: str, version: int) -> None:
    """Raise `Corrupt`, `ForeignCheckpoint` or `FileMissing` unless a file is that checkpoint of this partition."""
    _check_place(_of_checkpoint(read_checkpoint_file(store, key, version)), folder)


def _from_checkpoint(store: Store, folder: str, version: int) -> Snapshot:
    return _of_checkpoint(read_checkpoint(store, folder, version))


def _of_checkpoint(checkpoint: LogCheckpoint) -> Snapshot:
    return Snapshot(
        version=checkpoint.version,
        batch_id=checkpoint.batch_id,
        end_offset=checkpoint.end_offset,
        metadata=_shared(checkpoint.metadata),
        files=sorted(checkpoint.files, key=lambda f: f.start),
        checkpoint_version=checkpoint.version,
        fences=checkpoint.fences,
        writer_features=checkpoint.writer_features,
    )


def _first(commit: Commit, folder: str) -> Snapshot:
    if commit.metadata is None:
        raise Corrupt(f"{folder}: version 0 does not create a table")
    return Snapshot(
        version=0,
        batch_id=commit.batch_id,
        end_offset=0,
        metadata=_shared(commit.metadata),
        writer_features=commit.writer_features or frozenset(),
    )


def _shared(metadata: Mapping[str, object]) -> dict[str, object]:
    """Return the metadata with interned strings: a process may have thousands of tables open, which then share them."""
    return {sys.intern(key): _interned(value) for key, value in metadata.items()}


def _interned(value: object) -> object:
    if isinstance(value, str):
        return sys.intern(value)
    return _shared(value) if isinstance(value, dict) else value


def _check_place(snapshot: Snapshot, folder: str) -> None:
    """Raise `Corrupt` if the checkpoint or version 0 belongs to another partition, which no checksum reveals."""
    configuration = snapshot.configuration
    ref = PartitionRef(Space.TOPICS, configuration["mq.topic"], configuration["mq.partition"], generation_of(folder))
    if ref.folder.partition("/")[2] != folder.partition("/")[2]:
        raise Corrupt(f"{folder}: the log belongs to partition {ref.name} of topic {ref.topic}; files were moved")


def read_commit(store: Store, folder: str, version: int, table_id: str) -> Commit:
    """Return a commit of the table `table_id`; raises `FileMissing` or `Corrupt`."""
    key = f"{folder}/{LOG_FOLDER}/{commit_name(version)}"
    return _parsed(store.read(key), version, table_id, key)


def _parsed(data: pa.Buffer, version: int, table_id: str, key: str) -> Commit:
    return parse_commit(data, table_id=table_id if version else None, version=version, source=key)
