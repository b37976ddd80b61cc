"""The second name of a log's newest commit, by which a lost commit file is detected and restored.

A store on a local disk keeps the file that it put last under the name `.head`, too (see `tables.store.local`). If the
log ends before that commit, the commit's own name is gone: a power cut lost a folder entry that was not yet synced, or
the file was deleted. Its content is still there, so nothing that it acknowledged is lost.
"""

from __future__ import annotations

import re

from deltamq.mq.errors import Corrupt
from deltamq.tables.delta.actions import Commit, commit_name, parse_commit
from deltamq.tables.paths import LOG_FOLDER
from deltamq.tables.store.local import HEAD
from deltamq.tables.store.store import FileMissing, Store


def head_key(folder: str) -> str:
    """Return the key of the second name of the newest commit in a table's log."""
    return f"{folder}/{LOG_FOLDER}/{HEAD}"


def read_head(store: Store, folder: str, table_id: str | None) -> tuple[Commit, bytes] | None:
    """Return the commit in `.head` and its bytes; None if there is no `.head`, or it is damaged.

    A damaged `.head` proves nothing: the power cut that lost its other name may have cut its content.
    """
    key = head_key(folder)
    try:
        raw = bytes(store.read(key))
    except FileMissing:
        return None
    # The first match is in the first line, before any text that a user could have written.
    match = re.search(rb'"mq\.version":"(\d+)"', raw)
    if match is None:
        return None
    try:
        version = int(match[1])
        commit = parse_commit(raw, table_id=None if version == 0 else table_id, version=version, source=key)
    except Corrupt:
        return None
    return None if commit.author else (commit, raw)


def can_put_back(store: Store, folder: str, commit: Commit, version: int) -> bool:
    """Return whether `commit`, which `.head` holds, is of this version and all of its data files are there."""
    sizes = {entry.name: entry.size for entry in store.entries(folder)}
    return commit.version == version and all(sizes.get(f.path) == f.size for f in commit.adds)


def put_back(store: Store, folder: str, table_id: str, *, version: int) -> bool:
    """Restore the commit file of `version` from `.head`; return False if that is not possible.

    The writer of that commit had won the version, so the commit belongs there, whether it was acknowledged or not.
    """
    head = read_head(store, folder, table_id)
    if head is None or not can_put_back(store, folder, head[0], version):
        return False
    store.put_if_absent(f"{folder}/{LOG_FOLDER}/{commit_name(version)}", head[1], durable=True)
    return True
