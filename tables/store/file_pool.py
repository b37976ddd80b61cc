"""Dead files become new ones: why a log that deletes as fast as it appends does not slow down.

ext4 does not hand out an inode again for up to five minutes after it was deleted, and looks past every such inode
when it creates a file: at a thousand commits a second a create costs 0.5 ms instead of 0.02 (measured; the figures
stand in ARCHITECTURE.md). So small dead files are moved to a pool of this process and overwritten by later writes,
as a database does with its old log segments.

A file is overwritten only when nobody has it open any more: the kernel grants a write lease exactly then. Without
a lease (another system, another owner) the file is deleted and a new one made; nothing depends on the pool.

    unlink --> pool --lease granted, opened (upkeep)--> ready --> write_new: rename, write

Some are made ready in advance: each system call of a writer lets go of the interpreter's lock, and a busy service takes
longer to give it back than the call took.
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
from tables.store.local import OsFiles

__all__ = ["RecyclingFiles"]

#: Pool bound: 16,384 files of one block are 64 MiB of disk.
POOL_FILES_MAX: Final = 16_384
#: Larger files are deleted: they are few, and their blocks are worth having back.
POOL_FILE_BYTES_MAX: Final = 64 * KIB
#: At most so many files are made in advance at once.
_REFILL_MAX: Final = 1_024
#: So many are opened in advance, at least and at most: each costs a file descriptor.
_READY_MIN: Final = 8
_READY_MAX: Final = 128
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
        #: Of these nobody else has any open; each with the descriptor to write it.
        self._ready: deque[tuple[str, int]] = deque()
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
        found = self._next()
        if found is None:
            return None
        dead, fd = found
        try:
            os.rename(dead, path)
        except OSError:
            os.close(fd)
            with contextlib.suppress(OSError):
                os.unlink(dead)
            return None
        return fd

    def _next(self) -> tuple[str, int] | None:
        """A dead file that nobody has open, and its descriptor; None when there is none at hand."""
        with contextlib.suppress(IndexError):
            return self._ready.popleft()
        with contextlib.suppress(IndexError):
            return self._opened(self._pool.popleft())
        return None

    def _opened(self, dead: str) -> tuple[str, int] | None:
        """The file, open for writing; None, and it is gone, when somebody else has it open.

        Who opens it from now on reads a file of the pool, which nobody needs.
        """
        try:
            fd = os.open(dead, os.O_WRONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            # The usual SIGIO would end the process, if a backup opened the file just now; SIGURG is ignored.
            fcntl.fcntl(fd, _F_SETSIG, signal.SIGURG)
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        except OSError:
            os.close(fd)
            with contextlib.suppress(OSError):
                os.unlink(dead)
            return None
        return dead, fd

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
        """Make as many empty files as writers took since the last call, and open what they will take until the next.

        Creating is slow, and writers should not wait.
        """
        taken, self._taken = self._taken, 0
        ready = min(max(2 * taken, _READY_MIN), _READY_MAX)
        for _ in range(min(taken, _REFILL_MAX) - len(self._pool) - len(self._ready)):
            with self._lock:
                self._names += 1
                path = f"{self._folder}/{self._names}"
            super().write_new(path, b"", sync=False)
            self._pool.append(path)
        while self._pool and len(self._ready) < ready:
            found = self._opened(self._pool.popleft())
            if found is not None:
                self._ready.append(found)

    def close(self) -> None:
        """Remove the pool; a second call does nothing."""
        with self._lock:
            guard, self._guard = self._guard, -1
        if guard >= 0:
            self._files_max = 0
            self._pool.clear()
            while self._ready:
                os.close(self._ready.popleft()[1])
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
