"""Whether the Spark driver of an application that died still runs: it may be committing when its Python is gone.

The JVM that Python started ends by itself when Python has ended, however that ended, but not in the same moment. Until
then a MERGE that it was told to do can still be committed, beside one of the next owner. So the JVM locks a file, and
who finds the shard of a dead application looks at it first. It is a lock of the operating system, which goes with the
JVM. On an object store the margin of the leases covers the time.

    jobs/apps/<application>.jvm
"""

from __future__ import annotations

import fcntl
from io import FileIO
from pathlib import Path
from typing import Any, Final

from tables.store import LocalStore, Store

__all__ = ["forget_jvm", "lock_jvm", "may_commit"]

_FOLDER: Final = "jobs/apps"


def lock_jvm(session: Any, store: Store, application: str) -> object:
    """Have the JVM of a session hold the file until it ends; the answer is to be kept as long as the session.

    Parameters
    ----------
    session
        A session whose driver is a JVM of this machine.
    """
    if not isinstance(store, LocalStore):
        return None
    path = _path(store, application)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
    file = session._jvm.java.io.RandomAccessFile(str(path), "rw")
    assert file.getChannel().tryLock() is not None, "no other process knows the application's name"
    return file


def may_commit(store: Store, application: str) -> bool:
    """Whether the JVM of an application, whose Python is dead, still runs; removes the file of one that does not."""
    if not isinstance(store, LocalStore):
        return False
    path = _path(store, application)
    try:
        file = FileIO(path, "r+")
    except FileNotFoundError:
        return False
    with file:
        try:
            # Java's locks are those of POSIX, which are others than flock.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        path.unlink(missing_ok=True)
    return False


def forget_jvm(store: Store, application: str) -> None:
    """Remove the file of an application that works no more."""
    if isinstance(store, LocalStore):
        _path(store, application).unlink(missing_ok=True)


def _path(store: LocalStore, application: str) -> Path:
    return Path(store.uri(f"{_FOLDER}/{application}.jvm"))
