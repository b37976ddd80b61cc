"""Puts data files and the commit that names them, so that a power cut takes no more than it may (RELIABILITY R1).

settle     all before a durable commit is durable first: what a cut forgets would take what is behind it along
put        the data files
commit     the version that names them
look again if we slept so long in between that a sweep may have taken the files for orphans
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mq.errors import DeltaMQError, Unknown
from tables.clock import Clock
from tables.delta import Commit, CommitLog, DataFile, Encoded, commit_name
from tables.paths import LOG_FOLDER
from tables.store import NotDurable, Store, Unsynced

__all__ = ["Publisher", "keys_of"]


def keys_of(folder: str, commit: Commit) -> list[str]:
    """Return the files of a commit, data before the commit itself."""
    return [*(f"{folder}/{f.path}" for f in commit.adds), f"{folder}/{LOG_FOLDER}/{commit_name(commit.version)}"]


class Publisher:
    """Of one partition. Its owner holds the append lock, but for `put`."""

    def __init__(
        self, store: Store, folder: str, log: CommitLog, unsynced: Unsynced, *, clock: Clock, stale_ms: int
    ) -> None:
        """After `stale_ms` a sweep may have removed files that no commit names."""
        self._store = store
        self._folder = folder
        self._log = log
        self._unsynced = unsynced
        self._clock = clock
        self._stale_ms = stale_ms
        self._durable_version = -1

    def put(self, encoded: Encoded, *, durable: bool) -> None:
        """Store a data file that no commit names yet."""
        self._store.put(self._key(encoded.file), encoded.data, durable=durable)

    def commit(
        self,
        encode: Callable[[int], bytes],
        adds: Sequence[Encoded],
        *,
        batch_id: str,
        durable: bool,
        began_ms: int,
    ) -> None:
        """Commit files that were put from `began_ms` (boot clock) on; raises as `CommitLog.commit` does."""
        try:
            version = self._log.commit(encode, batch_id=batch_id, durable=durable)
        except NotDurable:
            # Whoever repeats the request waits for that first.
            log = self._log
            self._unsynced.add_failed([*(self._key(e.file) for e in adds), log.key(log.snapshot.version)])
            raise
        if durable:
            self._durable_version = version
        if self._clock.boot_ms() - began_ms > self._stale_ms:
            self._put_again(adds, version)

    def settle(self) -> None:
        """Make all before our next commit durable.

        That is what was appended without syncing, and the newest commit if it is another writer's, who may be just
        about to sync its name. (Those before it were durable when that one was put.)
        """
        if self._unsynced:
            self._unsynced.sync()
        version = self._log.snapshot.version
        if self._durable_version != version:
            self._store.sync([self._log.key(version)])
            self._durable_version = version

    def _put_again(self, adds: Sequence[Encoded], version: int) -> None:
        try:
            for encoded in adds:
                if not self._store.exists(self._key(encoded.file)):
                    self._store.replace(self._key(encoded.file), encoded.data)
        except DeltaMQError as error:
            raise Unknown(f"version {version} is stored, but a file of it was swept and is not back yet") from error

    def _key(self, file: DataFile) -> str:
        return f"{self._folder}/{file.path}"
