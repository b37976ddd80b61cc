"""Whether the Spark driver of a dead application still runs: it may commit after its Python process has ended.

The JVM that Python started ends by itself a moment after Python, however Python ended. Until then, a
MERGE that it has begun can still be committed, beside a MERGE of the next owner. So the JVM locks a file, and a process
that finds the shard of a dead application checks that lock first. It is a lock of the operating system, which is
released with the JVM. On an object store, the margin of the leases covers the time.

    jobs/apps/<application>.jvm
"""

from __future__ import annotations

import fcntl
from io import FileIO
from pathlib import Path
from typing import Any, Final

from deltamq.tables.store.local import LocalStore
from deltamq.tables.store.store import Store

_FOLDER: Final = "jobs/apps"


def lock_jvm(session: Any, store: Store, application: str) -> object:
    """Make a session's JVM lock the application's file until it ends; keep the result for as long as the session.

    Parameters
    ----------
    session
        A session whose driver is a JVM of this machine.
    """
    if not isinstance(store, LocalStore):
        return None
    store.folder_of_locks(_FOLDER)
    path = _path(store, application)
    file = session._jvm.java.io.RandomAccessFile(str(path), "rw")
    assert file.getChannel().tryLock() is not None, "no other process uses this application's id"
    return file


def may_commit(store: Store, application: str) -> bool:
    """Return whether the JVM of a dead application still runs; if not, remove its file."""
    if not isinstance(store, LocalStore):
        return False
    path = _path(store, application)
    try:
        file = FileIO(path, "r+")
    except FileNotFoundError:
        return False
    with file:
        try:
            # Java's locks are POSIX locks, which are independent of flock.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        path.unlink(missing_ok=True)
    return False


def forget_jvm(store: Store, application: str) -> None:
    """Remove the file of an application that has ended."""
    if isinstance(store, LocalStore):
        _path(store, application).unlink(missing_ok=True)


def _path(store: LocalStore, application: str) -> Path:
    return Path(store.uri(f"{_FOLDER}/{application}.jvm"))
