"""Folders that are deleted: out of sight at once, removed in the background, also by who comes after a crash.

    topics/orders/orders@broker-a  --rename, sync-->  .deleted-<uuid>  --a thread, file by file-->  nothing

A tree of a hundred thousand files takes seconds to remove: nobody waits for that, neither the call that deletes it nor
a process that ends. A name is used for one folder only, so whatever is made anew in the old place is not touched.
"""

from __future__ import annotations

import contextlib
import os
import threading
import uuid
from collections.abc import Callable
from typing import Final

__all__ = ["Graves"]

_PREFIX: Final = ".deleted-"


class Graves:
    """The deleted folders of a root."""

    def __init__(self, root: str, unlink: Callable[[str], None] = os.unlink) -> None:
        """`unlink` removes a file."""
        self._root = root
        self._unlink = unlink
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._again = False
        self._resumed = False
        #: Whether no more is removed.
        self.closed = False

    def new(self) -> str:
        """Where a folder is to be renamed to; then call `dig`."""
        return f"{self._root}/{_PREFIX}{uuid.uuid4().hex}"

    def resume(self) -> None:
        """Remove what earlier processes had not come to; does something only once."""
        if not self._resumed:
            self._resumed = True
            self.dig()

    def dig(self) -> None:
        """Let everything that is deleted be removed."""
        with self._lock:
            self._again = True
            if self._thread is None and not self.closed:
                self._thread = threading.Thread(target=self._run, name="mq-graves", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Remove no more: the next process does the rest."""
        with self._lock:
            self.closed = True
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._lock:
                if self.closed or not self._again:
                    self._thread = None
                    return
                self._again = False
            # What cannot be removed now is tried again with the next folder, or by the next process.
            with contextlib.suppress(OSError):
                for name in os.listdir(self._root):
                    if name.startswith(_PREFIX):
                        self._remove(f"{self._root}/{name}")

    def _remove(self, grave: str) -> None:
        """All of a tree, from its leaves up; other processes may be at it, too."""
        for folder, _, names in os.walk(grave, topdown=False):
            for name in names:
                if self.closed:
                    return
                with contextlib.suppress(OSError):
                    self._unlink(f"{folder}/{name}")
            with contextlib.suppress(OSError):
                os.rmdir(folder)
