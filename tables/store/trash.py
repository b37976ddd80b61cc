"""Deleted folders: renamed at once, removed in the background, after a crash by the next process.

    topics/orders/orders@broker-a  --rename, sync-->  .deleted-<uuid>  --a thread, file by file-->  nothing

Removing a tree of a hundred thousand files takes seconds: neither the call that deletes it nor a process that ends
waits for that. Each deleted folder gets a name of its own, so a new folder in the old place is not touched.
"""

from __future__ import annotations

import contextlib
import os
import threading
import uuid
from collections.abc import Callable
from typing import Final

_PREFIX: Final = ".deleted-"


class Trash:
    """The deleted folders of one root, and the thread that removes them."""

    def __init__(self, root: str, unlink: Callable[[str], None] = os.unlink) -> None:
        self._root = root
        self._unlink = unlink
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._again = False
        self._resumed = False
        #: Whether removing has ended.
        self.closed = False

    def new(self) -> str:
        """Return a new path to which the caller renames a deleted folder; the caller then calls `empty`."""
        return f"{self._root}/{_PREFIX}{uuid.uuid4().hex}"

    def resume(self) -> None:
        """Remove what earlier processes left; only the first call does something."""
        if not self._resumed:
            self._resumed = True
            self.empty()

    def empty(self) -> None:
        """Have a background thread remove all deleted folders."""
        with self._lock:
            self._again = True
            if self._thread is None and not self.closed:
                self._thread = threading.Thread(target=self._run, name="mq-trash", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Stop removing; the next process removes the rest."""
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
            # A folder that cannot be removed now is tried again with the next one, or by the next process.
            with contextlib.suppress(OSError):
                for name in os.listdir(self._root):
                    if name.startswith(_PREFIX):
                        self._remove(f"{self._root}/{name}")

    def _remove(self, deleted: str) -> None:
        """Remove a tree from its leaves up; other processes may be removing it at the same time."""
        for folder, _, names in os.walk(deleted, topdown=False):
            for name in names:
                if self.closed:
                    return
                with contextlib.suppress(OSError):
                    self._unlink(f"{folder}/{name}")
            with contextlib.suppress(OSError):
                os.rmdir(folder)
