"""Locks that tell processes of one machine which others of it are dead, without waiting for a lease (SPEC META-1).

A host keeps an exclusive `flock` on `<warehouse>/hosts/<id>.lock` from before it registers until it has left. The
kernel lets go of it when the process ends, however it ends, and keeps it while the process is stopped. So who can take
the lock of a registered host of its own machine knows that it is dead. Anything else (another machine, a file that is
missing, a warehouse on an object store) says nothing, and the lease decides.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import Final

__all__ = ["HostLocks", "this_machine"]

#: Beside the spaces of tables; no space has this name.
FOLDER: Final = "hosts"
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def this_machine() -> str:
    """What tells this machine, since it was started, from all others; empty where nothing does."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


class HostLocks:
    """The lock files of one warehouse; blocking, safe for threads."""

    def __init__(self, root: Path | None) -> None:
        """`root` is the warehouse's folder; None where it has none, and every method says that nothing is known."""
        self._folder = None if root is None else root / FOLDER
        self._held: dict[str, int] = {}
        #: Of this process, to be registered with its host; empty when its locks tell nobody anything.
        self.machine = "" if root is None else this_machine()

    def hold(self, host: str) -> bool:
        """Take the lock of a host that this process is about to be.

        False where there is none, also on a file system without such locks: the lease decides then.
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
        """Whether a registered host certainly is dead; False means that nothing is known."""
        if self._folder is None or not machine or machine != self.machine or host in self._held:
            return False
        try:
            fd = os.open(self._path(host), os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            # Shared, so that two who ask at the same time do not take each other for the host.
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return False
        finally:
            os.close(fd)
        return True

    def forget(self, host: str) -> None:
        """Remove the file of a host that has left, or was declared dead; its lock is let go if it was ours."""
        if self._folder is None:
            return
        with contextlib.suppress(OSError):
            os.unlink(self._path(host))
        fd = self._held.pop(host, None)
        if fd is not None:
            os.close(fd)

    def close(self) -> None:
        """Let go of everything, as the end of the process would."""
        while self._held:
            os.close(self._held.popitem()[1])

    def _path(self, host: str) -> Path:
        assert self._folder is not None, "asked before"
        return self._folder / f"{host}.lock"
