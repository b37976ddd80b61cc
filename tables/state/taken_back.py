"""What another engine did to a state table is taken back by a commit of our own (SPEC TABLE-5).

    41 ours   42 DELETE of another engine   43 RESTORE: the files of 41, its columns, its protocol; signed `after 42`

The table's one driver does this before its next MERGE, without Spark. Data files that the other engine removed are
still there, because only that driver deletes files of state tables. If another engine has deleted some of them, too,
what is left is kept, and what the logs still have is merged into it once more: a merge is a join.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from deltamq.mq.errors import Conflict
from deltamq.tables.delta.actions import ENGINE
from deltamq.tables.delta.protocol import UNGUARDED_PROTOCOL
from deltamq.tables.state.signature import signature
from deltamq.tables.state.table import (
    StateLog,
    apply_commit,
    commit_key,
    from_checkpoint,
    log_versions_of,
    read_actions,
)
from deltamq.tables.store.store import Store

log = logging.getLogger("deltamq.tables")

_LOSS: Final = "rows are lost that the logs do not have any more"


class _WholeLog(StateLog):
    """The state of a log with the whole action of each live file."""

    adds: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)

    def apply(self, action: Mapping[str, Any]) -> None:
        StateLog.apply(self, action)
        if (add := action.get("add")) is not None:
            self.adds[add["path"]] = _plain(add)
        elif (remove := action.get("remove")) is not None:
            self.adds.pop(remove["path"], None)


def is_whole(store: Store, folder: str, state: StateLog) -> bool:
    """Return whether the state before the change is known and all of its data files are there."""
    there = {entry.name for entry in store.entries(folder)}
    return state.version < state.newest and there.issuperset(state.paths)


def take_back(store: Store, folder: str, state: StateLog, transactions: Mapping[str, int], now_ms: int) -> None:
    """Restore the table to `state`, or to what is left of it; `transactions` are set by the same commit.

    Raises
    ------
    Conflict
        Another writer committed meanwhile.
    """
    is_loss = not is_whole(store, folder, state)
    now = _whole_log(store, folder, state.newest)
    wanted = _left(store, folder, state, now) if is_loss else _whole_log(store, folder, state.version).adds
    lines: list[object] = [
        {
            "commitInfo": {
                "timestamp": now_ms,
                "operation": "RESTORE",
                "operationParameters": {},
                "engineInfo": ENGINE,
                "userMetadata": signature(state.newest),
            }
        },
        {"protocol": UNGUARDED_PROTOCOL},
        {"metaData": _plain(state.metadata)},
    ]
    lines += [{"txn": {"appId": app, "version": at, "lastUpdated": now_ms}} for app, at in transactions.items()]
    lines += [
        {"remove": {"path": path, "deletionTimestamp": now_ms, "dataChange": True}}
        for path in now.adds
        if path not in wanted
    ]
    lines += [{"add": {**add, "dataChange": True}} for path, add in wanted.items() if now.adds.get(path) != add]
    data = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
    if not store.put_if_absent(commit_key(folder, state.newest + 1), data, durable=True):
        raise Conflict(f"{folder}: another writer committed before {state.foreign} was taken back", code="lost_race")
    log.error("event=state_table_restored table=%s by=%r loss=%r", folder, state.foreign, _LOSS if is_loss else "none")


def _whole_log(store: Store, folder: str, version: int) -> _WholeLog:
    bases = [base for base in log_versions_of(store, folder)[1] if base <= version]
    state = _WholeLog()
    if bases:
        from_checkpoint(store, folder, bases[-1], state)
    for at in range(state.version + 1, version + 1):
        apply_commit(state, read_actions(store, folder, at), at)
    return state


def _left(store: Store, folder: str, state: StateLog, now: _WholeLog) -> dict[str, dict[str, Any]]:
    """Return the table's existing files, or the existing files of `state` if it cannot be read as it is now."""
    readable = now.reader_version == state.reader_version and now.columns == state.columns
    adds = now.adds if readable else _whole_log(store, folder, state.version).adds
    there = {entry.name for entry in store.entries(folder)}
    return {path: add for path, add in adds.items() if unquote(path) in there}


def _plain(action: Mapping[str, Any]) -> dict[str, Any]:
    """Return an action as a commit has it: a checkpoint has maps as lists of pairs, and null for what is absent."""
    maps = ("partitionValues", "tags", "configuration", "options")
    return {
        name: dict(value or {}) if name in maps else _plain(value) if isinstance(value, dict) else value
        for name, value in action.items()
        if value is not None
    }
