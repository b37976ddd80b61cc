"""A backup becomes a warehouse again (SPEC RELY-13).

    1 restoring.json    no process opens the warehouse while it is there
    2 data files        each checked against the backup's checksum
    3 logs, small files, sys/meta last
    4 restoring.json is removed

A restore that was killed is begun again: it goes on with the files that are not there yet.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec

from deltamq.mq.errors import Conflict
from deltamq.tables.backup.files import Backup, BackupFolder, StoredFile
from deltamq.tables.failpoints import failpoint
from deltamq.tables.log.warehouse import RESTORING
from deltamq.tables.queue.metadata import META_PARTITION
from deltamq.tables.store.store import FileMissing, Store

_THREADS = 8


def restore(
    folder: BackupFolder, backup: Backup, to: Store, *, progress: Callable[[int, int], None] = lambda done, total: None
) -> None:
    """Make the warehouse `to` what a backup holds.

    Parameters
    ----------
    to
        An empty folder or prefix, or one into which a restore of the same backup was begun.
    progress
        Called with the bytes that are there, and the bytes of the backup.

    Raises
    ------
    Conflict
        `warehouse_not_empty`.
    Corrupt, FileMissing
        A file of the backup is damaged or gone; nothing uses what is there of the warehouse.
    """
    begun = _begun(to)
    # What a process keeps beside the tables has a point before its name.
    if begun is None and not all(name.startswith(".") for name in (*to.folders(""), *to.names(""))):
        raise Conflict(
            f"{to.uri('')} is not empty: restore to a new folder, and let the service serve that one",
            code="warehouse_not_empty",
            field="warehouse",
        )
    if begun not in (None, backup.name):
        raise Conflict(
            f"{to.uri('')} holds a part of backup {begun}: restore that one, or empty the folder",
            code="warehouse_not_empty",
            field="warehouse",
        )
    to.replace(RESTORING, msgspec.json.encode(backup.name))
    contents = folder.archive(backup)
    done = 0

    def put(file: StoredFile) -> int:
        # Files appear whole, and here only restores of this backup write any.
        if begun is None or not to.exists(file.key):
            to.replace(file.key, folder.file(file))
        return file.size

    with ThreadPoolExecutor(_THREADS) as pool:
        for size in pool.map(put, backup.files):
            done += size
            progress(done, backup.size)
    failpoint("restore.before_logs")
    for key in sorted(contents, key=lambda key: (key.startswith(META_PARTITION.folder), key)):
        to.replace(key, contents[key])
    failpoint("restore.before_end")
    to.delete(RESTORING)
    progress(backup.size, backup.size)


def _begun(to: Store) -> str | None:
    """Return the name of the backup of which a restore was begun here; None if none was."""
    try:
        return str(msgspec.json.decode(to.read(RESTORING).to_pybytes()))
    except FileMissing:
        return None
