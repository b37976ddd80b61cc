"""Locks that show a process which other processes of its machine are dead, without waiting for a lease (SPEC META-1).

A host holds an exclusive `flock` on `<warehouse>/hosts/<id>.lock` from before it registers until it has left. The
kernel releases the lock when the process ends, however it ends, and keeps it while the process is stopped. So a
process that can take the lock of a registered host of its own machine knows that this host is dead. In all other cases
(another machine, a missing file, a warehouse on an object store) nothing is known, and the lease decides.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import Final

#: The folder of the locks, beside the folders of the spaces of tables; no space has this name.
FOLDER: Final = "hosts"
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def this_machine() -> str:
    """Return an id of this machine since its boot; an empty string where the system has none."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


class HostLocks:
    """The lock files of one warehouse. Its methods block and are safe for threads."""

    def __init__(self, root: Path | None) -> None:
        """Take the warehouse's folder; None if it has none: then every method returns that nothing is known."""
        self._folder = None if root is None else root / FOLDER
        self._held: dict[str, int] = {}
        #: The machine's id, registered with this process's host; empty if locks cannot be used.
        self.machine = "" if root is None else this_machine()

    def hold(self, host: str) -> bool:
        """Take the lock of the host that this process is about to register; return whether it was taken.

        Without a folder, or on a file system without such locks, this returns False: the lease decides then.
        """
        if self._folder is None:
            return False
        self._folder.mkdir(mode=0o750, exist_ok=True)
        fd = os.open(self._path(host), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            return False
        self._held[host] = fd
        return True

    def is_dead(self, host: str, machine: str) -> bool:
        """Return whether a registered host is certainly dead; False means that nothing is known."""
        if self._folder is None or not machine or machine != self.machine or host in self._held:
            return False
        try:
            fd = os.open(self._path(host), os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            # A shared lock, so that two processes that check at the same time do not take each other for the host.
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return False
        finally:
            os.close(fd)
        return True

    def forget(self, host: str) -> None:
        """Remove the lock file of a host that has left or was declared dead; release the lock if it is ours."""
        if self._folder is None:
            return
        with contextlib.suppress(OSError):
            os.unlink(self._path(host))
        fd = self._held.pop(host, None)
        if fd is not None:
            os.close(fd)

    def close(self) -> None:
        """Release all locks, as the end of the process would."""
        while self._held:
            os.close(self._held.popitem()[1])

    def _path(self, host: str) -> Path:
        assert self._folder is not None, "callers check for None first"
        return self._folder / f"{host}.lock"
