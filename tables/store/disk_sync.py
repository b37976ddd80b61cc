"""The call that makes what was written durable, as far as the system has one.

On macOS, `fsync` hands data to the drive, which may keep it in its cache and lose it with the power; `F_FULLFSYNC` has
the drive write it (fsync(2) there). Some file systems, such as network ones, do not support it: then only fsync
is left. The compiled way (`publish.c`) is for Linux only.
"""

from __future__ import annotations

import errno
import fcntl
import os
from typing import Final

_FULL: Final[int | None] = getattr(fcntl, "F_FULLFSYNC", None)
_UNKNOWN: Final = (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY)


def sync_whole(fd: int) -> None:
    """Return when all of a file, or a folder's entries, are on the drive; raises `OSError`."""
    if _FULL is not None:
        try:
            fcntl.fcntl(fd, _FULL)
        except OSError as error:
            if error.errno not in _UNKNOWN:
                raise
        else:
            return
    os.fsync(fd)
