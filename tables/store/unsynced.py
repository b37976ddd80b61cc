"""Files that are written and visible, but that a power cut could still lose (`Flush.ASYNC`)."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence

from deltamq.tables.store.store import FileMissing, Store


class Unsynced:
    """The keys of one partition that must be synced, in the order of their commits. Safe for threads."""

    def __init__(self, store: Store, on_added: Callable[[Unsynced], None] = lambda unsynced: None) -> None:
        """Take the store, and `on_added`, which is called after each addition, so that no caller has to poll."""
        self._store = store
        self._on_added = on_added
        self._keys: list[str] = []
        self._keys_lock = threading.Lock()
        #: Held while syncing, so that a second caller returns only after the first one's files are durable.
        self._sync_lock = threading.Lock()
        self._syncing = 0
        #: Whether a sync failed: the kernel marks what it could not write as clean, so syncing again proves nothing.
        self._failed = False
        self._is_dropped = False

    def __len__(self) -> int:
        with self._keys_lock:
            return len(self._keys) + self._syncing

    def add(self, keys: Sequence[str]) -> None:
        """Add files that are written, data before commit."""
        with self._keys_lock:
            if self._is_dropped:
                return
            self._keys += keys
        self._on_added(self)

    def add_failed(self, keys: Sequence[str]) -> None:
        """Add files that are written, but whose sync, or whose folder's sync, has failed."""
        with self._keys_lock:
            if self._is_dropped:
                return
            self._keys += keys
            self._failed = True
        self._on_added(self)

    def drop(self) -> None:
        """Forget all keys and take no more: the files are deleted."""
        with self._keys_lock:
            self._keys, self._is_dropped = [], True

    def sync(self) -> None:
        """Make everything added before the call durable; after an error, a later call tries again."""
        with self._sync_lock:
            with self._keys_lock:
                keys, self._keys = self._keys, []
                failed, self._failed = self._failed, False
                self._syncing = len(keys)
            try:
                if failed:
                    keys = list(dict.fromkeys(keys))
                    while keys:
                        self._write_again(keys[0])
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

    def _write_again(self, key: str) -> None:
        # A file that clean-up or a roll-up has removed in the meantime needs no sync.
        with contextlib.suppress(FileMissing):
            self._store.replace(key, self._store.read(key))
