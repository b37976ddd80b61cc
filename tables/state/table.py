"""State tables, which Spark writes, created and read without Spark: for a service that starts, and for the merge job.

    _delta_log/..20.checkpoint.parquet  +  ..21.json, ..22.json   -->   live files, the version of each transaction

Only the features that DeltaMQ's own state tables use are supported (Delta reader version 1, no partition columns);
anything else is an error. `format("delta")` and every other Delta reader see the same rows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from mq.errors import Corrupt, Unavailable
from tables.delta import UNGUARDED_PROTOCOL, create_table
from tables.paths import LOG_FOLDER
from tables.schema import delta_schema
from tables.store import FileMissing, Store

__all__ = [
    "State",
    "StateLog",
    "open_state_log",
    "read_state",
    "read_state_log",
    "state_transactions",
    "state_version",
]

_COMMIT: Final = re.compile(r"(\d{20})\.json")
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint\.parquet")
_CHECKPOINT_COLUMNS: Final = ("protocol", "metaData", "txn", "remove", "add")
_READER_VERSION: Final = 1
#: Tries of a read: clean-up may delete what is being read; each further try reads a newer version.
_TRIES: Final = 5


#: The configuration of every state table.
_CONFIGURATION: Final = {
    "delta.enableDeletionVectors": "false",
    # A MERGE every few seconds leaves many files and commits; the merge job removes them (`tables.state.upkeep`), and
    # another engine's VACUUM does so, too.
    "delta.deletedFileRetentionDuration": "interval 15 minutes",
    "delta.logRetentionDuration": "interval 1 days",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A state table at one version."""

    version: int
    #: The newest version of each application that writes idempotently.
    transactions: Mapping[str, int]
    rows: pa.Table


@dataclass(slots=True)
class StateLog:
    """The state that the log of a table adds up to, without the rows."""

    version: int = -1
    checkpoint_version: int = -1
    transactions: dict[str, int] = field(default_factory=dict)
    #: The live data files under their names in the log, each with its statistics in JSON if it has any.
    files: dict[str, str | None] = field(default_factory=dict)
    #: Data files that a commit removed, relative to the table's folder, with the time of that commit. Those of before
    #: the newest checkpoint are there if that has them: it leaves out what was removed longer ago than the table keeps.
    removed_ms: dict[str, int] = field(default_factory=dict)
    #: The names of the table's columns.
    columns: tuple[str, ...] = ()

    @property
    def paths(self) -> list[str]:
        """The live data files, relative to the table's folder."""
        return [unquote(path) for path in self.files]

    def apply(self, action: Mapping[str, Any], where: str) -> None:
        """Apply one action of a commit or a checkpoint."""
        if (add := action.get("add")) is not None:
            self.files[add["path"]] = add.get("stats")
            self.removed_ms.pop(unquote(add["path"]), None)
        elif (remove := action.get("remove")) is not None:
            self.files.pop(remove["path"], None)
            self.removed_ms[unquote(remove["path"])] = remove.get("deletionTimestamp") or 0
        elif (txn := action.get("txn")) is not None:
            self.transactions[txn["appId"]] = txn["version"]
        elif (metadata := action.get("metaData")) is not None:
            self.columns = tuple(one["name"] for one in msgspec.json.decode(metadata["schemaString"])["fields"])
        elif (protocol := action.get("protocol")) is not None and protocol["minReaderVersion"] > _READER_VERSION:
            raise Corrupt(
                f"{where}: needs a reader of version {protocol['minReaderVersion']}; another program altered the table"
            )


def open_state_log(
    store: Store, folder: str, schema: pa.Schema, now_ms: int, known: StateLog | None = None
) -> StateLog:
    """Return what `read_state_log` does; a table that does not exist is created, with these columns and no rows.

    Raises
    ------
    Corrupt
        The folder has data but no log, or its log cannot be read.
    """
    log = read_state_log(store, folder, known)
    if log is None:
        name = folder.rpartition("/")[2]
        create_table(
            store,
            folder,
            schema=delta_schema(schema),
            name=name,
            configuration=_CONFIGURATION,
            protocol=UNGUARDED_PROTOCOL,
            now_ms=now_ms,
        )
        log = read_state_log(store, folder)
    if log is None:
        raise Unavailable(f"{folder}: the table was created, but is gone again")
    return log


def read_state(store: Store, folder: str, schema: pa.Schema, columns: Sequence[str] | None = None) -> State | None:
    """Return the newest rows of the state table in `folder`; None if there is no table.

    Parameters
    ----------
    schema
        The columns as this release knows them: a column that the table does not have yet is null.
    columns
        The names of the columns to read, all by default.

    Raises
    ------
    Corrupt
        The log or a file cannot be read; the message names it.
    """
    wanted = schema if columns is None else pa.schema([schema.field(name) for name in columns])
    for _ in range(_TRIES):
        try:
            log = _load(store, folder)
            if log is None:
                return None
            tables = [_file_rows(store, f"{folder}/{path}", wanted) for path in log.paths]
        except FileMissing as error:
            missing = error
            continue
        rows = pa.concat_tables(tables) if tables else wanted.empty_table()
        return State(version=log.version, transactions=log.transactions, rows=rows)
    raise Corrupt(f"{missing.detail} is missing, but the log of {folder} names it") from missing


def state_transactions(store: Store, folder: str) -> Mapping[str, int] | None:
    """Return the newest version of each idempotent application; None if there is no table. No rows are read."""
    log = read_state_log(store, folder)
    return None if log is None else log.transactions


def state_version(store: Store, folder: str) -> int:
    """Return the newest version of the table, -1 if there is none; this costs one listing."""
    commits, checkpoints = _versions(store, folder)
    return max([-1, *commits[-1:], *checkpoints[-1:]])


def _versions(store: Store, folder: str) -> tuple[list[int], list[int]]:
    """Return the versions of the existing commits and of the existing checkpoints, ascending."""
    names = store.names(f"{folder}/{LOG_FOLDER}")
    commits = sorted(int(m[1]) for m in map(_COMMIT.fullmatch, names) if m)
    checkpoints = sorted(int(m[1]) for m in map(_CHECKPOINT.fullmatch, names) if m)
    return commits, checkpoints


def read_state_log(store: Store, folder: str, known: StateLog | None = None) -> StateLog | None:
    """Return the newest state of the table's log, without the rows; None if there is no table.

    Parameters
    ----------
    known
        The result of an earlier call: it is returned if there is no newer commit, which takes two checks of the store.
    """
    if known is not None and _is_newest(store, folder, known.version):
        return known
    for _ in range(_TRIES):
        try:
            return _load(store, folder)
        except FileMissing:
            continue
    raise Unavailable(f"{folder}: the log is cleaned up faster than it can be read", code="contention")


def _is_newest(store: Store, folder: str, version: int) -> bool:
    """Return whether `version` is the last commit, which is never cleaned up."""
    here, after = (f"{folder}/{LOG_FOLDER}/{at:020d}.json" for at in (version, version + 1))
    return store.exists(here) and not store.exists(after)


def _load(store: Store, folder: str) -> StateLog | None:
    """Replay the newest checkpoint and the commits after it; raises `FileMissing` if a clean-up was faster."""
    commits, checkpoints = _versions(store, folder)
    if not commits and not checkpoints:
        return None
    log = StateLog()
    if checkpoints:
        _apply_checkpoint(store, f"{folder}/{LOG_FOLDER}/{checkpoints[-1]:020d}.checkpoint.parquet", log)
        log.version = log.checkpoint_version = checkpoints[-1]
    newest = commits[-1] if commits else -1
    for version in range(log.version + 1, newest + 1):
        _apply_commit(store, f"{folder}/{LOG_FOLDER}/{version:020d}.json", log)
        log.version = version
    return log


def _apply_commit(store: Store, key: str, log: StateLog) -> None:
    content = store.read(key).to_pybytes()
    try:
        actions = [msgspec.json.decode(line) for line in content.splitlines() if line]
        # A commit may remove a file and add one of the same name; by Delta's rules the addition counts.
        for action in sorted(actions, key=lambda one: "add" in one):
            log.apply(action, key)
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise Corrupt(f"{key}: is not a commit of a state table: {error!r}") from error


def _apply_checkpoint(store: Store, key: str, log: StateLog) -> None:
    try:
        table = pq.read_table(pa.BufferReader(store.read(key)), columns=list(_CHECKPOINT_COLUMNS))
        for name in _CHECKPOINT_COLUMNS:
            for value in table.column(name).drop_null().to_pylist():
                log.apply({name: value}, key)
    except (OSError, pa.ArrowException, msgspec.DecodeError, KeyError, TypeError) as error:
        raise Corrupt(f"{key}: the checkpoint cannot be read: {error}") from error


def _file_rows(store: Store, key: str, wanted: pa.Schema) -> pa.Table:
    data = store.read(key)
    try:
        with pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True) as file:
            there = set(file.schema_arrow.names)
            found = file.read(columns=[name for name in wanted.names if name in there])
        arrays = [
            found.column(one.name).cast(one.type) if one.name in there else pa.nulls(found.num_rows, one.type)
            for one in wanted
        ]
        return pa.table(arrays, schema=wanted)
    except (OSError, pa.ArrowException) as error:
        raise Corrupt(f"{key}: cannot be read: {error}") from error
