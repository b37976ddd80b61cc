"""State tables, which Spark writes, created and read without Spark: for a service that starts, and for the merge job.

    _delta_log/..20.checkpoint.parquet  +  ..21.json, ..22.json   -->   live files, the version of each transaction

What another engine did to rows or columns does not count (`tables.state.signature`): the state before it counts, until
the merge job takes it back (`tables.state.taken_back`). A checkpoint that holds such a change is skipped.

Only the features that DeltaMQ's own state tables use are supported (Delta reader version 1, no partition columns);
anything else is an error. `format("delta")` and every other Delta reader see the same rows.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace

from deltamq.mq.errors import Corrupt, Unavailable
from deltamq.tables.delta.creation import create_table
from deltamq.tables.delta.protocol import UNGUARDED_PROTOCOL
from deltamq.tables.paths import LOG_FOLDER
from deltamq.tables.schema import delta_schema
from deltamq.tables.state.signature import foreign_change, is_ours, signed_after
from deltamq.tables.store.store import FileMissing, Store

logger = logging.getLogger("deltamq.tables")

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


class State(msgspec.Struct, frozen=True, kw_only=True):
    """A state table at one version."""

    version: int
    #: The newest version of each application that writes idempotently.
    transactions: Mapping[str, int]
    rows: pa.Table


class StateLog(msgspec.Struct):
    """The state that the log of a table adds up to, without the rows."""

    version: int = -1
    checkpoint_version: int = -1
    transactions: dict[str, int] = msgspec.field(default_factory=dict)
    #: The live data files under their names in the log, each with its statistics in JSON if it has any.
    files: dict[str, str | None] = msgspec.field(default_factory=dict)
    #: Data files that a commit removed, relative to the table's folder, with the time of that commit. Files removed
    #: before the newest checkpoint are there if it lists them: it leaves out files past the table's keep time.
    removed_ms: dict[str, int] = msgspec.field(default_factory=dict)
    #: The names of the table's columns.
    columns: tuple[str, ...] = ()
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    reader_version: int = _READER_VERSION
    #: The newest version in the log; the same as `version` unless another engine changed the table since.
    newest: int = -1
    #: The version of that change, who made it, and what it does; empty if there is none.
    foreign: str = ""
    #: The newest versions of transactions, commits after that change included.
    all_transactions: dict[str, int] = msgspec.field(default_factory=dict)

    @property
    def paths(self) -> list[str]:
        """The live data files, relative to the table's folder."""
        return [unquote(path) for path in self.files]

    def apply(self, action: Mapping[str, Any]) -> None:
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
            self.metadata = metadata
            self.columns = tuple(column["name"] for column in msgspec.json.decode(metadata["schemaString"])["fields"])
        elif (protocol := action.get("protocol")) is not None:
            self.reader_version = protocol["minReaderVersion"]

    def copy(self) -> StateLog:
        """Return a copy that later changes of this one do not affect."""
        return replace(
            self, transactions=dict(self.transactions), files=dict(self.files), removed_ms=dict(self.removed_ms)
        )


def open_state_log(
    store: Store,
    folder: str,
    schema: pa.Schema,
    now_ms: int,
    known: StateLog | None = None,
    begins: Callable[[], Mapping[str, int]] = dict,
    *,
    configuration: Mapping[str, str] | None = None,
) -> StateLog:
    """Return what `read_state_log` does; a table that does not exist is created, with these columns and no rows.

    Parameters
    ----------
    begins
        Returns the transactions that a new table begins with.
    configuration
        What a new table's configuration has besides that of all.

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
            configuration={**_CONFIGURATION, **(configuration or {})},
            protocol=UNGUARDED_PROTOCOL,
            now_ms=now_ms,
            transactions=begins(),
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
        if log.foreign:
            logger.warning("event=state_table_changed table=%s by=%r", folder, log.foreign)
        rows = pa.concat_tables(tables) if tables else wanted.empty_table()
        return State(version=log.version, transactions=log.transactions, rows=rows)
    raise Corrupt(f"{missing.detail} is missing, but the log of {folder} names it") from missing


def state_transactions(store: Store, folder: str) -> Mapping[str, int] | None:
    """Return the newest version of each idempotent application; None if there is no table. No rows are read."""
    log = read_state_log(store, folder)
    return None if log is None else log.transactions


def state_version(store: Store, folder: str) -> int:
    """Return the newest version of the table, -1 if there is none; this costs one listing."""
    commits, checkpoints = log_versions_of(store, folder)
    return max([-1, *commits[-1:], *checkpoints[-1:]])


def log_versions_of(store: Store, folder: str) -> tuple[list[int], list[int]]:
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
    here, after = (commit_key(folder, at) for at in (version, version + 1))
    return store.exists(here) and not store.exists(after)


def _load(store: Store, folder: str) -> StateLog | None:
    """Replay the newest checkpoint and the commits after it; raises `FileMissing` if a clean-up was faster."""
    commits, checkpoints = log_versions_of(store, folder)
    if not commits and not checkpoints:
        return None
    log = _base(store, folder, checkpoints)
    newest = max([*commits[-1:], *checkpoints[-1:]])
    state = _replayed(store, folder, log, newest)
    state.newest = newest
    if state.reader_version > _READER_VERSION:
        raise Corrupt(f"{folder}: needs a reader of version {state.reader_version}; another program altered the table")
    return state


def _replayed(store: Store, folder: str, log: StateLog, newest: int) -> StateLog:
    """Return the state after the commits up to `newest`, or before the first one that may not count.

    A later commit that is signed after that one ends this: it has taken the change back.
    """
    before: StateLog | None = None
    began = log.version
    for version in range(log.version + 1, newest + 1):
        actions = read_actions(store, folder, version)
        after = signed_after(actions)
        if after is not None and before is not None and after > before.version:
            before = None
        if after is not None and after >= began:
            log.foreign = ""
        change = foreign_change(actions, log.metadata) if before is None and version else None
        if change is not None:
            before = log.copy()
            before.foreign = f"version {version}: {change}"
        apply_commit(log, actions, version)
    state = log if before is None else before
    state.all_transactions = log.transactions
    return state


def _base(store: Store, folder: str, checkpoints: Sequence[int]) -> StateLog:
    """Return the state of the newest checkpoint that holds no change of another engine.

    If each of them holds one, the state before is lost: the newest checkpoint's is taken, and marked as `foreign`.
    """
    for version in reversed(checkpoints):
        if not _change_before(store, folder, version):
            return from_checkpoint(store, folder, version)
    if not checkpoints or store.exists(commit_key(folder, 0)):
        return StateLog()
    log = from_checkpoint(store, folder, checkpoints[-1])
    log.foreign = _change_before(store, folder, checkpoints[-1])
    return log


def _change_before(store: Store, folder: str, version: int) -> str:
    """Return what another engine did in this version or before it, as far as commits are there; empty if nothing."""
    for at in range(version, -1, -1):
        try:
            actions = read_actions(store, folder, at)
        except FileMissing:
            return ""
        if (change := foreign_change(actions, None)) is not None:
            return f"version {at}: {change}"
        after = signed_after(actions)
        if is_ours(actions) and (after is None or after >= at - 1):
            return ""
    return ""


def commit_key(folder: str, version: int) -> str:
    """Return the key of a commit of a state table."""
    return f"{folder}/{LOG_FOLDER}/{version:020d}.json"


def checkpoint_key(folder: str, version: int) -> str:
    """Return the key of a checkpoint of a state table."""
    return f"{folder}/{LOG_FOLDER}/{version:020d}.checkpoint.parquet"


def read_actions(store: Store, folder: str, version: int) -> list[dict[str, Any]]:
    """Return the actions of a commit; raises `FileMissing` or `Corrupt`."""
    key = commit_key(folder, version)
    content = store.read(key).to_pybytes()
    try:
        actions = [msgspec.json.decode(line) for line in content.splitlines() if line]
    except msgspec.DecodeError as error:
        raise Corrupt(f"{key}: is not a commit of a state table: {error!r}") from error
    if not actions or not all(isinstance(action, dict) for action in actions):
        raise Corrupt(f"{key}: is not a commit of a state table: it has no actions")
    return actions


def apply_commit(log: StateLog, actions: Sequence[Mapping[str, Any]], version: int) -> None:
    """Apply a commit; raise `Corrupt` if it is not a state table's."""
    try:
        # A commit may remove a file and add one of the same name; by Delta's rules the addition counts.
        for action in sorted(actions, key=lambda candidate: "add" in candidate):
            log.apply(action)
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise Corrupt(f"version {version}: is not a commit of a state table: {error!r}") from error
    log.version = version


def from_checkpoint(store: Store, folder: str, version: int, log: StateLog | None = None) -> StateLog:
    """Return the state that a checkpoint holds, in `log` if that is given."""
    key = checkpoint_key(folder, version)
    log = log or StateLog()
    try:
        table = pq.read_table(pa.BufferReader(store.read(key)), columns=list(_CHECKPOINT_COLUMNS))
        for name in _CHECKPOINT_COLUMNS:
            for value in table.column(name).drop_null().to_pylist():
                log.apply({name: value})
    except (OSError, pa.ArrowException, msgspec.DecodeError, KeyError, TypeError) as error:
        raise Corrupt(f"{key}: the checkpoint cannot be read: {error}") from error
    log.version = log.checkpoint_version = version
    return log


def _file_rows(store: Store, key: str, wanted: pa.Schema) -> pa.Table:
    data = store.read(key)
    try:
        with pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True) as file:
            there = set(file.schema_arrow.names)
            rows = file.read(columns=[name for name in wanted.names if name in there])
        arrays = [
            rows.column(column.name).cast(column.type) if column.name in there else pa.nulls(rows.num_rows, column.type)
            for column in wanted
        ]
        return pa.table(arrays, schema=wanted)
    except (OSError, pa.ArrowException) as error:
        raise Corrupt(f"{key}: cannot be read: {error}") from error
