"""Publishing of data files and the commit that names them, so that a power cut loses only what it may (SPEC RELY-1).

earlier    make everything before a durable commit durable first: losing an earlier commit loses all later ones
put        the data files
commit     the version that names them
put again  files that a sweep took for orphans, if this process was asleep long enough in between

Writers race for a partition's next version; the loser numbers its rows again, and tries again (SPEC RELY-2):

attempt: number the rows from the end offset, put version n+1 --it exists--> apply it --> attempt again
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from deltamq.mq.errors import DeltaMQError, Unavailable, Unknown
from deltamq.tables.clock import Clock
from deltamq.tables.delta.actions import Commit, DataFile, NewCommit, commit_name
from deltamq.tables.delta.commit import CommitLog, LostRace
from deltamq.tables.delta.encode import Encoded
from deltamq.tables.paths import LOG_FOLDER
from deltamq.tables.store.calls import Work, on_a_thread
from deltamq.tables.store.store import NotDurable, Store
from deltamq.tables.store.unsynced import Unsynced

T = TypeVar("T")


def keys_of(folder: str, commit: Commit) -> list[str]:
    """Return the keys of a commit's files: data files first, then the commit itself."""
    return [*(f"{folder}/{f.path}" for f in commit.adds), f"{folder}/{LOG_FOLDER}/{commit_name(commit.version)}"]


class Publisher:
    """Publishes files and commits of one partition. Its owner holds the append lock, except for `put`."""

    def __init__(
        self, store: Store, folder: str, log: CommitLog, unsynced: Unsynced, *, clock: Clock, stale_ms: int
    ) -> None:
        """Take the partition's parts; after `stale_ms` a sweep may have removed files that no commit names."""
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

    async def put_ahead(self, encoded: Encoded) -> bool:
        """Put a data file that no commit names yet, if the store gains by that; return whether it did."""
        return await self._store.put_ahead(self._key(encoded.file), encoded.data)

    async def commit(
        self,
        encode: Callable[[int], NewCommit],
        adds: Sequence[Encoded],
        *,
        batch_id: str,
        durable: bool,
        began_ms: int,
        put: Encoded | None = None,
    ) -> None:
        """Commit files of which the first was put at `began_ms` (boot clock); raises as `CommitLog.commit` does.

        `put` is the one of them that is not put yet, if any: it is put together with the commit.
        """
        file = None if put is None else (self._key(put.file), put.data)
        try:
            version = await self._log.commit(encode, batch_id=batch_id, durable=durable, file=file)
        except NotDurable:
            # A repeat of the request first waits until these files are durable.
            log = self._log
            self._unsynced.add_failed([*(self._key(e.file) for e in adds), log.key(log.snapshot.version)])
            raise
        if durable:
            self._durable_version = version
        if self._clock.boot_ms() - began_ms > self._stale_ms:
            await self._log.reading(partial(self._put_again, adds, version))

    async def sync_earlier(self) -> None:
        """Make everything before our next commit durable.

        That is what was appended without syncing, and the newest commit if it is another writer's, which may not have
        synced its name yet. (The commits before that one were durable when it was put.) In an object store every put is
        durable.
        """
        if self._unsynced or self._durable_version != self._log.snapshot.version:
            await on_a_thread(self._sync_earlier)

    def _sync_earlier(self) -> None:
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
            raise Unknown(f"version {version} is stored, but its file was swept and could not be put again") from error

    def _key(self, file: DataFile) -> str:
        return f"{self._folder}/{file.path}"


class Races:
    """The races for one partition's versions."""

    __slots__ = ("_name", "_on_lost", "_races_max")

    def __init__(self, name: str, races_max: int, on_lost: Callable[[], None]) -> None:
        """After `races_max` lost races in a row, the partition of this name is reported as contended.

        `on_lost` is called with each lost race, on any thread.
        """
        self._name = name
        self._on_lost = on_lost
        self._races_max = races_max

    async def win(self, attempt: Callable[[], Work[T]]) -> T:
        """Call `attempt` until it does not lose the race; the caller holds the append lock.

        An attempt that lost has applied the winner's commit, so the next one begins at the new end offset.

        Raises
        ------
        Unavailable
            `contention`: other writers were faster too many times in a row; nothing was stored.
        """
        for _ in range(self._races_max):
            try:
                return await attempt()
            except LostRace:
                self._on_lost()
        raise Unavailable(f"{self._name}: lost {self._races_max} races for the next version", code="contention")
