"""Dead files become new ones: why a log that deletes as fast as it appends does not slow down.

ext4 does not hand out an inode again for up to five minutes after it was deleted, and looks past every such inode
when it creates a file: at a thousand commits a second a create costs 0.5 ms instead of 0.02 (measured; the figures
stand in ARCHITECTURE.md). So small dead files are moved to a pool of this process and overwritten by later writes,
as a database does with its old log segments.

A file is overwritten only when nobody has it open any more: the kernel grants a write lease exactly then. Without
a lease (another system, another owner) the file is deleted and a new one made; nothing depends on the pool.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import threading
import uuid
from collections import deque
from typing import Final

import pyarrow as pa

from mq.limits import KIB
from tables.local_store import OsFiles

__all__ = ["RecyclingFiles"]

#: Pool bound: 16,384 files of one block are 64 MiB of disk.
POOL_FILES_MAX: Final = 16_384
#: Larger files are deleted: they are few, and their blocks are worth having back.
POOL_FILE_BYTES_MAX: Final = 64 * KIB
#: At most so many files are made in advance at once.
_REFILL_MAX: Final = 1_024
_PREFIX: Final = ".pool-"
_UNSEEN_PREFIX: Final = ".newpool-"
_LOCK: Final = "lock"
#: Linux' F_SETSIG, which Python does not name: which signal tells the owner of a lease that somebody opens the file.
_F_SETSIG: Final = 10


class RecyclingFiles(OsFiles):
    """The real file system with a pool of dead files in `root`. Safe for threads."""

    def __init__(self, root: str, *, files_max: int = POOL_FILES_MAX) -> None:
        self._files_max = files_max
        self._pool: deque[str] = deque()
        self._names = 0
        self._taken = 0
        self._lock = threading.Lock()
        _remove_abandoned(root)
        name = uuid.uuid4().hex
        self._folder = f"{root}/{_PREFIX}{name}"
        # Locked before it has the name of a pool: a process that starts at the same time would call it abandoned.
        unseen = f"{root}/{_UNSEEN_PREFIX}{name}"
        os.mkdir(unseen, 0o750)
        self._guard = os.open(f"{unseen}/{_LOCK}", os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o640)
        fcntl.flock(self._guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.rename(unseen, self._folder)

    def write_new(self, path: str, data: pa.Buffer | bytes, *, sync: bool) -> None:
        fd = self._reused(path)
        if fd is None:
            super().write_new(path, data, sync=sync)
            return
        try:
            self.write_all(fd, data)
            os.ftruncate(fd, len(data))
            if sync:
                os.fsync(fd)
        finally:
            os.close(fd)

    def _reused(self, path: str) -> int | None:
        """A dead file under its new name, open for writing; None when there is none that nobody holds."""
        self._taken += 1
        try:
            dead = self._pool.popleft()
        except IndexError:
            return None
        try:
            fd = os.open(dead, os.O_WRONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            # The usual SIGIO would end the process, if a backup opened the file just now; SIGURG is ignored.
            fcntl.fcntl(fd, _F_SETSIG, signal.SIGURG)
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
            os.rename(dead, path)
        except OSError:
            os.close(fd)
            with contextlib.suppress(OSError):
                os.unlink(dead)
            return None
        return fd

    def unlink(self, path: str) -> None:
        if len(self._pool) >= self._files_max or os.stat(path).st_size > POOL_FILE_BYTES_MAX:
            super().unlink(path)
            return
        with self._lock:
            self._names += 1
            dead = f"{self._folder}/{self._names}"
        os.rename(path, dead)
        if os.stat(dead).st_nlink > 1:
            # It still has another name (`.head`): that name's content must not change.
            super().unlink(dead)
            return
        self._pool.append(dead)

    def refill(self) -> None:
        """Make as many empty files as writers took since the last call: creating is slow, and they should not wait."""
        wanted = min(self._taken, _REFILL_MAX) - len(self._pool)
        self._taken = 0
        for _ in range(wanted):
            with self._lock:
                self._names += 1
                path = f"{self._folder}/{self._names}"
            super().write_new(path, b"", sync=False)
            self._pool.append(path)

    def close(self) -> None:
        """Remove the pool; a second call does nothing."""
        with self._lock:
            guard, self._guard = self._guard, -1
        if guard >= 0:
            self._files_max = 0
            self._pool.clear()
            shutil.rmtree(self._folder, ignore_errors=True)
            os.close(guard)


def _remove_abandoned(root: str) -> None:
    """Remove pools of processes that are gone: nobody holds their lock."""
    with os.scandir(root) as entries:
        pools = [e.path for e in entries if e.name.startswith(_PREFIX)]
    for pool in pools:
        with contextlib.suppress(OSError):
            guard = os.open(f"{pool}/{_LOCK}", os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o640)
            try:
                fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(pool, ignore_errors=True)
            finally:
                os.close(guard)
