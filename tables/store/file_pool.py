"""Reuse of dead files, so that a log that deletes files as fast as it appends does not slow down.

ext4 does not reuse an inode for up to five minutes after its deletion, and walks past every such inode when it
creates a file: at a thousand commits a second, creating a file takes 0.5 ms instead of 0.02 ms (measured; see
tables/README.md). So small dead files are moved to a pool of this process and overwritten by later writes, as a
database does with its old log segments.

A file is overwritten only when no process has it open any more: only then does the kernel grant a write lease. Without
a lease (another system, another owner) the file is deleted and a new one is created; nothing depends on the pool.

    unlink --> pool --lease granted, opened (upkeep)--> ready --> write_new: rename, write

Some files are opened in advance: each system call of a writer releases the interpreter's lock, and in a busy service
getting the lock back takes longer than the call. With the native part, files are made and opened in one call.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import threading
import time
import uuid
from collections import deque
from typing import Final

import pyarrow as pa

from deltamq.mq.limits import KIB
from deltamq.tables.failpoints import any_armed
from deltamq.tables.store.calls import awaited
from deltamq.tables.store.disk_sync import sync_whole
from deltamq.tables.store.file_system import Failed, Publication
from deltamq.tables.store.local import OsFiles
from deltamq.tables.store.native import NativePublication, OpenFile, create_natively, native_library, open_dead_natively

#: Most files in the pool: 16,384 small files of one block are 64 MiB of disk.
POOL_FILES_MAX: Final = 16_384
#: Size of the largest file that goes to the pool. Larger files are deleted: they are few, and free many blocks.
POOL_FILE_BYTES_MAX: Final = 256 * KIB
#: Size from which a file of the pool counts as large, and most of these: 256 MiB of disk.
_LARGE_BYTES: Final = 64 * KIB
POOL_LARGE_MAX: Final = 1_024
#: Most files that one call of `refill` creates.
_REFILL_MAX: Final = 1_024
#: Fewest and most files that are opened in advance: each costs a file descriptor.
_READY_MIN: Final = 8
_READY_MAX: Final = 128
_PREFIX: Final = ".pool-"
_UNSEEN_PREFIX: Final = ".newpool-"
_PREFIXES: Final = (_PREFIX, _UNSEEN_PREFIX)
#: Age from which a folder that never got a pool's name belongs to a killed process.
_UNSEEN_KEEP_S: Final = 3600.0
_LOCK: Final = "lock"
#: Linux' F_SETSIG, which Python does not name: it sets the signal that a lease's owner gets when the file is opened.
_F_SETSIG: Final = 10


class PoolingFiles(OsFiles):
    """The real file system with a pool of dead files in `root`. Safe for threads."""

    def __init__(self, root: str, *, files_max: int = POOL_FILES_MAX, large_max: int = POOL_LARGE_MAX) -> None:
        self._files_max = files_max
        self._large_max = large_max
        self._pool: deque[str] = deque()
        #: The large ones among them.
        self._large: set[str] = set()
        #: Files that no other process has open, each with its open descriptor for writing.
        self._ready: deque[OpenFile] = deque()
        self._names = 0
        self._taken = 0
        self._lock = threading.Lock()
        _remove_abandoned(root)
        name = uuid.uuid4().hex
        self._folder = f"{root}/{_PREFIX}{name}"
        # The folder is locked before it gets a pool's name: a process that starts now would otherwise remove it.
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
                sync_whole(fd)
        finally:
            os.close(fd)

    async def publish(self, wanted: Publication, *, sync: bool) -> Failed | None:
        library = native_library()
        # A failpoint lies between two steps, and only the steps in Python pass it.
        if library is None or any_armed():
            return await super().publish(wanted, sync=sync)
        self._taken += 2
        return await awaited(NativePublication(library, wanted, self._at_hand(), self._at_hand(), sync=sync))

    def _reused(self, path: str) -> int | None:
        """Rename a dead file to `path` and return its descriptor for writing; None if no dead file is free."""
        self._taken += 1
        free = self._next()
        if free is None:
            return None
        dead, fd = free
        try:
            os.rename(dead, path)
        except OSError:
            os.close(fd)
            with contextlib.suppress(OSError):
                os.unlink(dead)
            return None
        return fd

    def _at_hand(self) -> OpenFile | None:
        """Return a dead file, an open one if possible (the native call opens others); None if there is none."""
        with contextlib.suppress(IndexError):
            return self._ready.popleft()
        with contextlib.suppress(IndexError):
            dead = self._pool.popleft()
            self._large.discard(dead)
            return dead, -1
        return None

    def _next(self) -> OpenFile | None:
        """Return a dead file that no other process has open, and its descriptor; None if there is none."""
        free = self._at_hand()
        return self._opened(free[0]) if free is not None and free[1] < 0 else free

    def _opened(self, dead: str) -> OpenFile | None:
        """Open the file for writing and return it with its descriptor; delete it and return None if it is in use.

        A process that opens it from now on opens a file of the pool, which no reader needs.
        """
        try:
            fd = os.open(dead, os.O_WRONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            # The default SIGIO would end this process if, say, a backup opened the file just now; SIGURG is ignored.
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
        size = os.stat(path).st_size
        is_large = size > _LARGE_BYTES
        is_full = len(self._pool) >= self._files_max or (is_large and len(self._large) >= self._large_max)
        if is_full or size > POOL_FILE_BYTES_MAX:
            super().unlink(path)
            return
        with self._lock:
            self._names += 1
            dead = f"{self._folder}/{self._names}"
        os.rename(path, dead)
        if os.stat(dead).st_nlink > 1:
            # The file still has another name (`.head`), whose content must not change.
            super().unlink(dead)
            return
        if is_large:
            self._large.add(dead)
        self._pool.append(dead)

    def refill(self) -> None:
        """Create as many files as writers took since the last call, and open those that they will take until the next.

        Creating files is slow, and writers should not wait for it.
        """
        taken, self._taken = self._taken, 0
        ready = min(max(2 * taken, _READY_MIN), _READY_MAX)
        self._create(min(taken, _REFILL_MAX) - len(self._pool) - len(self._ready), ready - len(self._ready))
        while dead := self._taken_out(ready - len(self._ready)):
            self._open(dead)

    def _create(self, count: int, kept: int) -> None:
        """Create files for the pool, of which `kept` stay open."""
        if count <= 0:
            return
        with self._lock:
            first, self._names = self._names + 1, self._names + count
        paths = [f"{self._folder}/{name}" for name in range(first, first + count)]
        library = native_library()
        if library is None:
            for path in paths:
                super().write_new(path, b"", sync=False)
                self._pool.append(path)
            return
        opened, made, failed = create_natively(library, paths, max(0, min(kept, count)))
        self._ready.extend(zip(paths, opened, strict=False))
        self._pool.extend(paths[len(opened) : made])
        if failed is not None:
            raise failed

    def _taken_out(self, count: int) -> list[str]:
        """Take at most `count` files out of the pool; writers take some at the same time."""
        paths: list[str] = []
        with contextlib.suppress(IndexError):
            while len(paths) < count:
                paths.append(self._pool.popleft())
        self._large.difference_update(paths)
        return paths

    def _open(self, dead: list[str]) -> None:
        library = native_library()
        if library is None:
            self._ready.extend(opened for path in dead if (opened := self._opened(path)) is not None)
            return
        for path, fd in zip(dead, open_dead_natively(library, dead), strict=True):
            if fd >= 0:
                self._ready.append((path, fd))

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
    """Remove the pools of processes that have ended: their locks are free.

    A folder that has no pool's name yet must be old, too, and have a lock: its process may be about to take it.
    """
    with os.scandir(root) as entries:
        pools = [(e.path, e.name.startswith(_UNSEEN_PREFIX)) for e in entries if e.name.startswith(_PREFIXES)]
    for pool, is_unseen in pools:
        if is_unseen and not _is_old(pool):
            continue
        create = 0 if is_unseen else os.O_CREAT
        with contextlib.suppress(OSError):
            guard = os.open(f"{pool}/{_LOCK}", os.O_RDONLY | create | os.O_CLOEXEC, 0o640)
            try:
                fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(pool, ignore_errors=True)
            finally:
                os.close(guard)


def _is_old(folder: str) -> bool:
    try:
        return time.time() - os.stat(folder).st_mtime > _UNSEEN_KEEP_S
    except FileNotFoundError:  # it has got its name
        return False


def empty_pools(root: str) -> None:
    """Delete the dead files in the pools of all processes: their content must be gone.

    A process that was about to write to one makes a new file instead.
    """
    with os.scandir(root) as entries:
        pools = [entry.path for entry in entries if entry.name.startswith(_PREFIX)]
    for pool in pools:
        with contextlib.suppress(FileNotFoundError), os.scandir(pool) as dead:
            for file in dead:
                with contextlib.suppress(FileNotFoundError):
                    if file.name != _LOCK and file.stat().st_size:
                        os.unlink(file.path)
