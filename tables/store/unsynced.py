"""Files that are written and visible but could still be taken by a power cut (`Flush.ASYNC`)."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence

from tables.store.store import FileMissing, Store

__all__ = ["Unsynced"]


class Unsynced:
    """The keys to sync of one partition, in the order of their commits. Safe for threads."""

    def __init__(self, store: Store, on_added: Callable[[Unsynced], None] = lambda unsynced: None) -> None:
        """`on_added` is called after each addition, so that nobody has to look for what must be synced."""
        self._store = store
        self._on_added = on_added
        self._keys: list[str] = []
        self._keys_lock = threading.Lock()
        #: Held while syncing, so that a second caller returns only after the first one's files are durable.
        self._sync_lock = threading.Lock()
        self._syncing = 0
        #: Whether a sync failed: the kernel then calls clean what it could not write, and syncing again proves nothing.
        self._failed = False
        self._is_dropped = False

    def __len__(self) -> int:
        with self._keys_lock:
            return len(self._keys) + self._syncing

    def add(self, keys: Sequence[str]) -> None:
        """These files are written, data before commit."""
        with self._keys_lock:
            if self._is_dropped:
                return
            self._keys += keys
        self._on_added(self)

    def add_failed(self, keys: Sequence[str]) -> None:
        """These files are written, and syncing them or their folder has failed."""
        with self._keys_lock:
            if self._is_dropped:
                return
            self._keys += keys
            self._failed = True
        self._on_added(self)

    def drop(self) -> None:
        """Sync nothing any more: the files are deleted."""
        with self._keys_lock:
            self._keys, self._is_dropped = [], True

    def sync(self) -> None:
        """Return when everything added before the call is durable; on an error it stays to be made so."""
        with self._sync_lock:
            with self._keys_lock:
                keys, self._keys = self._keys, []
                failed, self._failed = self._failed, False
                self._syncing = len(keys)
            try:
                if failed:
                    keys = list(dict.fromkeys(keys))
                    while keys:
                        self._write_anew(keys[0])
                        del keys[0]
                elif keys:
                    self._store.sync(keys)
            except BaseException:
                with self._keys_lock:
                    if self._is_dropped:
                        return
                    self._keys, self._syncing = keys + self._keys, 0
                    self._failed = True
                raise
            finally:
                with self._keys_lock:
                    self._syncing = 0

    def _write_anew(self, key: str) -> None:
        # A file that clean-up or a roll-up has removed meanwhile needs no syncing.
        with contextlib.suppress(FileMissing):
            self._store.replace(key, self._store.read(key))
