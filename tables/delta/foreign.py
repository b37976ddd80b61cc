"""Commits of other engines in a message table (SPEC TABLE-2).

Since the protocol keeps other engines out, they come from before a table had it, or from an engine that does not look.
What changes neither rows nor columns is passed over: a VACUUM writes two commits with nothing but `commitInfo`, a
COMMENT or a table property one with `metaData`. Everything else is refused: files that were added or removed, columns,
the protocol, our own transactions. The error says who did it, when, and what to do.
"""

from __future__ import annotations

import datetime
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from deltamq.mq.errors import Corrupt

#: How our own `engineInfo` begins.
OUR_ENGINE: Final = "DeltaMQ/"
#: The beginning of every transaction and every setting of ours.
_OURS: Final = "mq."
_LATEST_MS: Final = 253_402_300_799_000  # the last second that a calendar has
_REMEDY: Final = (
    "stop everything that writes to this warehouse and run `deltamq verify --repair`, which says what it takes back"
)
#: What makes a table's rows readable as we wrote them, besides its columns.
_FIXED: Final = ("id", "partitionColumns", "format")
_COLUMN_MAPPING: Final = "delta.columnMapping."


class ForeignCommit(Corrupt):
    """Another engine changed the rows or columns of a message table."""

    code = "foreign_commit"


class Foreign(msgspec.Struct, frozen=True, kw_only=True):
    """A commit of another engine that adds and removes nothing."""

    batch_id: str
    #: Who made it, with which operation, and when.
    author: str
    metadata: dict[str, object] | None


def foreign_commit(text: bytes, source: str) -> Foreign | None:
    """Parse a commit of another engine; None for a damaged commit of ours, or no commit at all.

    Raises
    ------
    ForeignCommit
        It changes files, the protocol, or transactions of ours; the message names `source` and the author.
    """
    actions = _actions(text)
    info: dict[str, Any] = next((a["commitInfo"] for a in actions if isinstance(a.get("commitInfo"), dict)), {})
    if not info or str(info.get("engineInfo")).startswith(OUR_ENGINE):
        return None
    author = author_of(info)
    if changed := _changes(actions):
        raise ForeignCommit(f"{source}: {author} {changed}; no other engine may write to message tables: {_REMEDY}")
    metadata = next((a["metaData"] for a in actions if isinstance(a.get("metaData"), dict)), None)
    return Foreign(batch_id=f"foreign-{zlib.crc32(text):08x}", author=author, metadata=metadata)


def _actions(text: bytes) -> Sequence[dict[str, Any]]:
    """Empty if the text is no commit file."""
    try:
        actions = [msgspec.json.decode(line) for line in text.splitlines() if line.strip()]
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return []
    return actions if all(isinstance(action, dict) for action in actions) else []


def author_of(info: Mapping[str, Any]) -> str:
    """Return in words who made a commit, with which operation and when, by its `commitInfo`."""
    engine = info.get("engineInfo") or info.get("clientVersion") or "an unknown engine"
    user = f" for {info['userName']}" if info.get("userName") else ""
    time_ms = info.get("timestamp")
    at = ""
    if isinstance(time_ms, int) and 0 <= time_ms <= _LATEST_MS:
        at = f" at {datetime.datetime.fromtimestamp(time_ms // 1_000, datetime.UTC):%Y-%m-%dT%H:%M:%SZ}"
    return f"{info.get('operation', 'a commit')} of {engine}{user}{at}"


def _changes(actions: Sequence[Mapping[str, Any]]) -> str:
    """Return in words what a commit does that only DeltaMQ may do; empty if there is nothing."""
    count = {kind: sum(kind in action for action in actions) for kind in ("add", "remove")}
    changes = [f"{verb} {count[kind]} files" for kind, verb in (("add", "adds"), ("remove", "removes")) if count[kind]]
    apps = [str(action["txn"].get("appId")) for action in actions if isinstance(action.get("txn"), dict)]
    changes += ["sets transactions of DeltaMQ"] if any(app.startswith(_OURS) for app in apps) else []
    rest = {kind for action in actions for kind in action} - {"add", "remove", "txn", "commitInfo", "metaData"}
    changes += [f"has {kind} actions" if kind != "protocol" else "changes the protocol" for kind in sorted(rest)]
    return " and ".join(changes)


def check_metadata(before: Mapping[str, object], after: Mapping[str, object], *, author: str, source: str) -> None:
    """Raise `ForeignCommit` if another engine's metadata change the columns, or settings of ours."""
    changed = [name for name in _FIXED if before.get(name) != after.get(name)]
    changed += ["the columns"] if columns_of(before) != columns_of(after) else []
    own = [_settings(metadata) for metadata in (before, after)]
    changed += sorted(name for name in {*own[0], *own[1]} if own[0].get(name) != own[1].get(name))
    if changed:
        raise ForeignCommit(
            f"{source}: {author} changes {', '.join(changed)}; no other engine may write to message tables: {_REMEDY}"
        )


def columns_of(metadata: Mapping[str, object]) -> object:
    """Return a table's columns without their comments."""
    try:
        schema = msgspec.json.decode(str(metadata.get("schemaString")))
        return [{name: value for name, value in field.items() if name != "metadata"} for field in schema["fields"]]
    except (msgspec.MsgspecError, KeyError, TypeError, AttributeError):
        return None


def _settings(metadata: Mapping[str, object]) -> dict[str, object]:
    configuration = metadata.get("configuration")
    settings = configuration if isinstance(configuration, dict) else {}
    return {name: value for name, value in settings.items() if name.startswith((_OURS, _COLUMN_MAPPING))}
