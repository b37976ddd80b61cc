"""Who wrote a commit of a state table, and whether it may count (SPEC TABLE-5).

Spark merges into state tables, so no protocol keeps other sessions of Spark out. Instead our merge job signs its
commits: `deltamq after 41` says that the job had looked at every version up to 41 before it wrote. So a reader that
finds version 42 signed like this need not look at what is behind it.

    ours       signed, or with a transaction of ours, or made without Spark by DeltaMQ itself
    passed     another engine's, and neither rows nor columns nor the protocol change: OPTIMIZE, VACUUM, comments
    foreign    another engine's, and they do: it does not count, and the merge job takes it back
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from deltamq.tables.delta.foreign import OUR_ENGINE, author_of, columns_of

_SIGNED: Final = re.compile(r"deltamq after (-?\d+)")
_OURS: Final = "mq."

Actions = Sequence[Mapping[str, Any]]


def signature(version: int) -> str:
    """Return the `userMetadata` of a commit of ours, whose writer has looked at everything up to `version`."""
    return f"deltamq after {version}"


def signed_after(actions: Actions) -> int | None:
    """Return the version up to which the writer of a commit had looked; None if it is not signed."""
    signed = _SIGNED.fullmatch(str(_info(actions).get("userMetadata")))
    return None if signed is None else int(signed[1])


def is_ours(actions: Actions) -> bool:
    """Return whether the merge job made a commit, or DeltaMQ without Spark."""
    apps = [str(action["txn"].get("appId")) for action in actions if action.get("txn")]
    by_us = str(_info(actions).get("engineInfo")).startswith(OUR_ENGINE)
    return by_us or any(app.startswith(_OURS) for app in apps) or signed_after(actions) is not None


def foreign_change(actions: Actions, metadata: Mapping[str, Any] | None) -> str | None:
    """Return who made a commit that may not count and what it does; None if it may count.

    `metadata` is the table's before it; if it is None, any new metadata counts as a change.
    """
    if is_ours(actions):
        return None
    info = _info(actions)
    did = _changes(actions, metadata)
    return f"{author_of(info)} {' and '.join(did)}" if did else None


def _info(actions: Actions) -> Mapping[str, Any]:
    return next((action["commitInfo"] for action in actions if action.get("commitInfo")), {})


def _changes(actions: Actions, metadata: Mapping[str, Any] | None) -> list[str]:
    changed = [a for action in actions for a in (action.get("add"), action.get("remove")) if a and a.get("dataChange")]
    did = ["changes rows"] if changed else []
    after = next((action["metaData"] for action in actions if action.get("metaData")), None)
    if after is not None and (metadata is None or columns_of(after) != columns_of(metadata)):
        did.append("changes columns")
    elif after is not None and metadata is not None and _mapping(after) != _mapping(metadata):
        did.append("changes the mapping of columns")
    return did + ["changes the protocol" for action in actions if action.get("protocol")]


def _mapping(metadata: Mapping[str, Any]) -> str:
    return str(dict(metadata.get("configuration") or {}).get("delta.columnMapping.mode", "none"))
