"""The only writer of `_delta_log`: one commit at a time, against the very state the offsets were taken from.

                 put-if-absent of version n+1
                 /           |             \\
             stored       exists        no answer
               |             |              |
           we own it   read n+1 ... head   read it back
                             |          ours? -> stored
                 moved the end offset? -> renumber, again
                 only rearranged files? -> next version, again

Offsets are therefore allocated by the log itself: any number of writers in any process never share one or leave a
gap (RELIABILITY R2). Old commit files are deleted after `log_keep_ms`, so "version n+1 does not exist" is only
believed by a writer that knew version n to be the newest a short time ago: one that slept looks again, and one that
slept in the middle of a put makes sure afterwards (ARCHITECTURE I5).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mq.errors import Conflict, Corrupt, DeltaMQError, Unavailable, Unknown
from tables.actions import Commit, commit_name, parse_commit
from tables.clock import Clock
from tables.failpoints import failpoint
from tables.paths import LOG_FOLDER
from tables.settings import STALE_FRACTION, LogSettings
from tables.snapshot import LOG_KEEP, Snapshot, load
from tables.store import FileMissing, Store

__all__ = ["CommitLog", "LostRace"]

#: Reading a commit back after an error: the store may be out for a moment.
_READ_BACK_TRIES: Final = 3


class LostRace(Conflict):
    """Another commit took this version; the state has caught up with it."""

    code = "lost_race"


class CommitLog:
    """The commit log of one table, with its newest known state. Not thread-safe: its owner holds a lock.

    `on_commit` sees every commit exactly once, in order, whoever made it; `on_reload` is told when the state was
    rebuilt from scratch and everything derived from it has to be, too.
    """

    def __init__(
        self,
        store: Store,
        folder: str,
        *,
        settings: LogSettings,
        clock: Clock,
        on_commit: Callable[[Commit], None],
        on_reload: Callable[[], None],
    ) -> None:
        self._store = store
        self._folder = folder
        self._clock = clock
        self._on_commit = on_commit
        self._on_reload = on_reload
        self._seen_ms = clock.boot_ms()
        self.snapshot: Snapshot = load(store, folder)
        # Whoever cleans this table keeps commits at least as long as the table says: every writer trusts only that.
        keep_ms = min(settings.log_keep_ms, self.snapshot.keep_ms(LOG_KEEP, settings.log_keep_ms))
        self._stale_ms = int(keep_ms * STALE_FRACTION)

    def key(self, version: int) -> str:
        """The commit file of a version."""
        return f"{self._folder}/{LOG_FOLDER}/{commit_name(version)}"

    def refresh(self) -> bool:
        """See the commits of other writers; True if there were any.

        Raises
        ------
        Corrupt
            A commit cannot be believed, or the newest one that was seen is gone.
        """
        before = self.snapshot.version
        now = self._clock.boot_ms()
        if now - self._seen_ms > self._stale_ms and not self._still_there():
            self._reload()
        else:
            while self._apply_next():
                pass
        self._seen_ms = now
        return self.snapshot.version != before

    def look_ahead(self) -> None:
        """Before work that a lost race would waste: catch up where looking is cheap or the state may be stale."""
        if self._store.cheap_look or self._clock.boot_ms() - self._seen_ms > self._stale_ms:
            self.refresh()

    def commit(self, encode: Callable[[int], bytes], *, batch_id: str, durable: bool) -> int:
        """Put the commit that `encode(version)` makes as the next version, and apply it.

        Returns
        -------
        int
            The version that was committed.

        Raises
        ------
        LostRace
            Somebody else committed first: nothing of this commit is stored, and `snapshot` has caught up.
        Unknown
            It is or may be stored, but not durably.
        """
        version = self.snapshot.version + 1
        data = encode(version)
        unknown: Unknown | None = None
        try:
            won = self._store.put_if_absent(self.key(version), data, durable=durable)
        except Unknown as error:
            unknown = error
            won = self._ours(version, batch_id, error)
        if not won:
            if self.refresh() or unknown is None:
                raise LostRace(f"{self._folder}: version {version} was taken")
            raise Unavailable("the commit did not arrive; try again", code="storage_error") from unknown
        if self._clock.boot_ms() - self._seen_ms > self._stale_ms and not self._still_there():
            # Our predecessor was cleaned up while we slept: what we put lies below the log, and nobody reads it.
            self._reload()
            raise LostRace(f"{self._folder}: the log moved on while version {version} was put")
        self._apply(parse_commit(data, version=version, source=self.key(version)))
        self._seen_ms = self._clock.boot_ms()
        if unknown is not None and durable:
            self._make_durable(version, unknown)
        return version

    def _ours(self, version: int, batch_id: str, cause: Unknown) -> bool:
        """Read a version back whose put had no clear answer (RELIABILITY R5)."""
        last: DeltaMQError = cause
        for _ in range(_READ_BACK_TRIES):
            try:
                return self._read(version).batch_id == batch_id
            except FileMissing:
                return False
            except Corrupt:
                raise
            except DeltaMQError as error:
                last = error
        raise Unknown(f"version {version} could not be read back: {last.detail}") from cause

    def _make_durable(self, version: int, cause: Unknown) -> None:
        """The commit is there, but its folder could not be synced: once more, else its durability is not known."""
        try:
            self._store.sync([self.key(version)])
        except DeltaMQError as error:
            raise Unknown(f"version {version} is stored, but not known to be durable: {error.detail}") from cause

    def _still_there(self) -> bool:
        """Whether the newest commit that we know is still what we know; clean-up deletes in ascending order."""
        try:
            return self._read(self.snapshot.version).batch_id == self.snapshot.batch_id
        except FileMissing:
            return False

    def _apply_next(self) -> bool:
        version = self.snapshot.version + 1
        if self._store.cheap_look and not self._store.exists(self.key(version)):
            return False
        try:
            commit = self._read(version)
        except FileMissing:
            return False
        self._apply(commit)
        return True

    def _read(self, version: int) -> Commit:
        key = self.key(version)
        return parse_commit(self._store.read(key), version=version, source=key)

    def _apply(self, commit: Commit) -> None:
        self.snapshot.apply(commit)
        self._on_commit(commit)

    def _reload(self) -> None:
        failpoint("commit.before_snapshot")
        before = self.snapshot.end_offset
        checkpoint = self.snapshot.checkpoint_version
        self.snapshot = load(self._store, self._folder)
        if self.snapshot.end_offset < before:
            raise Corrupt(f"{self._folder}: the log ended at {before} and now ends at {self.snapshot.end_offset}")
        self.snapshot.checkpoint_version = max(checkpoint, self.snapshot.checkpoint_version)
        self._on_reload()
