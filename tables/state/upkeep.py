"""Removal of what a MERGE every few seconds leaves in a state table: replaced data files and old commit files.

Delta's own VACUUM takes seconds of Spark for it, and its log clean-up keeps whole days: tens of thousands of files in
one folder, which every later MERGE lists. Only the table's one driver may do this, between two of its writes. The log
says when a file was replaced, so a process that has just started knows it, too: some run the job by cron.
"""

from __future__ import annotations

import re
from typing import Final

from deltamq.tables.paths import LOG_FOLDER
from deltamq.tables.state.table import read_state_log
from deltamq.tables.store.store import Store

#: How long a replaced data file is kept, for queries that still read it.
DATA_KEEP_MS: Final = 15 * 60_000
LOG_KEEP_MS: Final = 60 * 60_000

_LOG_FILE: Final = re.compile(r"(\d{20})\.(json|crc|checkpoint\.parquet)")


def sweep_state(store: Store, folder: str, now_ms: int) -> int:
    """Delete old data files that are not live, and old commits below the newest checkpoint.

    Returns the number of deleted files. After a kill the next call deletes the rest.
    """
    log = read_state_log(store, folder)
    if log is None:
        return 0
    live = set(log.paths)
    deleted = 0
    for entry in store.entries(folder):
        name = _checked(entry.name)
        # A file may have been live for days before it was replaced. One that no commit names was left by a kill.
        since_ms = max(entry.modified_ms, log.removed_ms.get(name, 0))
        if name.endswith(".parquet") and name not in live and since_ms < now_ms - DATA_KEEP_MS:
            store.delete(f"{folder}/{entry.name}")
            deleted += 1
    # In order of versions, so that a reader that finds a commit finds all later ones, too.
    for entry in sorted(store.entries(f"{folder}/{LOG_FOLDER}"), key=lambda file: _checked(file.name)):
        match = _LOG_FILE.fullmatch(_checked(entry.name))
        old = entry.modified_ms < now_ms - LOG_KEEP_MS
        if match and int(match[1]) < log.checkpoint_version and old:
            store.delete(f"{folder}/{LOG_FOLDER}/{entry.name}")
            deleted += 1
    return deleted


def _checked(name: str) -> str:
    """Return the name of the file that a `.crc` file belongs to: on a local disk, Spark puts one beside each file."""
    return name[1:-4] if name.startswith(".") and name.endswith(".crc") else name
