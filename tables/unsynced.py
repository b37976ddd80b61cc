"""Files that are written and visible but could still be taken by a power cut (`Flush.ASYNC`)."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from tables.store import Store

__all__ = ["Unsynced"]


class Unsynced:
    """The keys to sync of one partition, in the order of their commits. Safe for threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._keys: list[str] = []
        self._keys_lock = threading.Lock()
        #: Held while syncing, so that a second caller returns only after the first one's files are durable.
        self._sync_lock = threading.Lock()
        self._syncing = 0

    def __len__(self) -> int:
        return len(self._keys) + self._syncing

    def add(self, keys: Sequence[str]) -> None:
        """These files are written, data before commit."""
        with self._keys_lock:
            self._keys += keys

    def sync(self) -> None:
        """Return when everything added before the call is durable; on an error it stays to be synced."""
        with self._sync_lock:
            with self._keys_lock:
                keys, self._keys = self._keys, []
                self._syncing = len(keys)
            try:
                if keys:
                    self._store.sync(keys)
            except BaseException:
                with self._keys_lock:
                    self._keys = keys + self._keys
                raise
            finally:
                self._syncing = 0
