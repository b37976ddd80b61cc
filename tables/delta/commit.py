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
gap (RELIABILITY R2). Old commit files are deleted after `log_keep_ms`, oldest first, so "version n+1 does not exist"
is only believed by a writer that knew version n to be the newest a short time ago, or that finds version n still there
after it missed n+1. The same question decides, after a put that took long, whether the put was into the log or below
it (ARCHITECTURE I5).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mq.errors import Conflict, Corrupt, DeltaMQError, Unavailable, Unknown
from tables.clock import Clock
from tables.delta.actions import Commit, commit_name, parse_commit
from tables.delta.head import put_back
from tables.delta.snapshot import LOG_KEEP, CommitLost, Snapshot, load, read_commit
from tables.failpoints import failpoint
from tables.paths import LOG_FOLDER
from tables.settings import STALE_FRACTION, LogSettings
from tables.store import FileMissing, NotDurable, Store

__all__ = ["CommitLog", "LostRace"]

#: Reading a commit back after an error: the store may be out for a moment.
_READ_BACK_TRIES: Final = 3
#: Rebuilding from files that go while they are read: each try starts from a newer log.
_REBUILD_TRIES: Final = 5


class LostRace(Conflict):
    """Another commit took this version; the state has caught up with it."""

    code = "lost_race"


class CommitLog:
    """The commit log of one table, with its newest known state. Not thread-safe: its owner holds a lock.

    `on_commit` sees every commit exactly once, in order, whoever made it; `on_reload` gets the state that was rebuilt
    from scratch and from which everything derived has to be, too. `on_replay` sees the commits that such a state was
    rebuilt from, perhaps more than once.
    """

    def __init__(
        self,
        store: Store,
        folder: str,
        *,
        settings: LogSettings,
        clock: Clock,
        on_commit: Callable[[Commit], None],
        on_reload: Callable[[Snapshot], None],
        on_replay: Callable[[Commit], None],
    ) -> None:
        self._store = store
        self._folder = folder
        self._clock = clock
        self._on_commit = on_commit
        self._on_reload = on_reload
        self._on_replay = on_replay
        self._seen_ms = clock.boot_ms()
        self.snapshot = self._rebuilt()
        # Whoever cleans this table keeps commits at least as long as the table says: every writer trusts only that.
        keep_ms = min(settings.log_keep_ms, self.snapshot.keep_ms(LOG_KEEP, settings.log_keep_ms))
        self._stale_ms = int(keep_ms * STALE_FRACTION)

    def key(self, version: int) -> str:
        """Return the commit file of a version."""
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
        careful = self._stale()
        while (commit := self._next()) is not None:
            if careful and not self._still_there():
                # Both may be cleaned by now, and what lies there be the put of another writer that slept.
                self._reload()
                break
            self._apply(commit)
        if self._stale() and not (careful and self._still_there()):
            self._reload()
        self._seen_ms = now
        return self.snapshot.version != before

    def _stale(self) -> bool:
        """Return whether so much time has passed since our newest version was the newest that it may be cleaned up."""
        return self._clock.boot_ms() - self._seen_ms > self._stale_ms

    def look_ahead(self) -> None:
        """Before work that a lost race would waste: catch up where looking is cheap or the state may be stale."""
        if self._store.cheap_look or self._stale():
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
            It may be stored; `NotDurable`: it is, and `snapshot` has it, but a power cut could take it.
        """
        version = self.snapshot.version + 1
        data = encode(version)
        commit = parse_commit(data, table_id=self.snapshot.table_id, version=version, source=self.key(version))
        began = self._clock.boot_ms()
        not_durable = self._put(version, data, batch_id, durable=durable)
        if self._stale() and not self._still_there():
            # Our predecessor was cleaned up while we slept: before or after the put?
            self._settle(commit)
        else:
            self._apply(commit)
            self._seen_ms = began
        if not_durable is not None:
            raise not_durable
        return version

    def _put(self, version: int, data: bytes, batch_id: str, *, durable: bool) -> NotDurable | None:
        """Put a version; return the store's doubt about its durability. Raises as `commit` does."""
        key = self.key(version)
        unknown: Unknown | None = None
        try:
            if self._store.put_if_absent(key, data, durable=durable):
                return None
        except NotDurable as error:
            return error
        except Unknown as error:
            unknown = error
        # Also without an error: a put whose answer got lost is repeated by the layers below us, and finds itself.
        holder = self._holder(version, unknown)
        if holder == batch_id:
            return self._make_durable(key) if durable else None
        if holder is None:
            # Without an answer it may still arrive; with one, whoever had it was cleaned up since, and that may be us.
            raise Unknown(f"nobody has version {version} of {self._folder}, and our put may still arrive") from unknown
        self.refresh()
        raise LostRace(f"{self._folder}: version {version} was taken") from unknown

    def _holder(self, version: int, cause: Unknown | None) -> str | None:
        """Return the id of the batch that has this version, None for none (RELIABILITY R5)."""
        last: DeltaMQError | None = cause
        for _ in range(_READ_BACK_TRIES):
            try:
                return self._read(version).batch_id
            except FileMissing:
                return None
            except Corrupt:
                raise
            except DeltaMQError as error:
                last = error
        raise Unknown(f"version {version} could not be read back: {last.detail if last else ''}") from last

    def _make_durable(self, key: str) -> NotDurable | None:
        try:
            self._store.sync([key])
        except DeltaMQError as error:
            return NotDurable(f"{key} is stored, but not known to be durable: {error.detail}")
        return None

    def _settle(self, commit: Commit) -> None:
        """After a put that was slept through: return if it is in the log.

        If its files are live, it is. If not, it was put below the log, where nobody reads it, or its files were
        replaced since: only the producer's sequence can tell.
        """
        self._reload()
        live = {file.path for file in self.snapshot.files}
        if not commit.adds or not {file.path for file in commit.adds} <= live:
            raise Unknown(f"{self._folder}: the log moved on while version {commit.version} was put")

    def _still_there(self) -> bool:
        """Return whether our newest version is still the one that we know: then none after it was ever deleted."""
        try:
            return self._read(self.snapshot.version).batch_id == self.snapshot.batch_id
        except FileMissing:
            return False

    def _next(self) -> Commit | None:
        """Return the commit that follows our newest, if it is there."""
        version = self.snapshot.version + 1
        if self._store.cheap_look and not self._store.exists(self.key(version)):
            return None
        try:
            return self._read(version)
        except FileMissing:
            return None

    def _read(self, version: int) -> Commit:
        return read_commit(self._store, self._folder, version, self.snapshot.table_id)

    def _apply(self, commit: Commit) -> None:
        self.snapshot.apply(commit)
        self._on_commit(commit)

    def _load(self) -> Snapshot:
        try:
            return load(self._store, self._folder, self._on_replay)
        except CommitLost as lost:
            if not put_back(self._store, self._folder, lost.table_id, version=lost.version):
                raise
        return load(self._store, self._folder, self._on_replay)

    def _rebuilt(self) -> Snapshot:
        """Return the state from the files alone, with all that is derived from it.

        An error leaves the old state, whole: half a duplicate window would store a request twice.
        """
        for _ in range(_REBUILD_TRIES):
            found = self._load()
            try:
                self._on_reload(found)
            except Corrupt:
                # We may have slept in between, while a roll-up replaced a file and its time passed.
                if self._load().version == found.version:
                    raise
            else:
                return found
        raise Unavailable(f"{self._folder}: the log is rolled up faster than it can be read", code="contention")

    def _reload(self) -> None:
        failpoint("commit.before_snapshot")
        now = self._clock.boot_ms()
        found = self._rebuilt()
        if found.end_offset < self.snapshot.end_offset:
            raise Corrupt(
                f"{self._folder}: the log ended at {self.snapshot.end_offset} and now ends at {found.end_offset}"
            )
        if any(found.fences.get(name, 0) < epoch for name, epoch in self.snapshot.fences.items()):
            raise Corrupt(f"{self._folder}: the fences were {self.snapshot.fences} and are {found.fences}")
        found.checkpoint_version = max(self.snapshot.checkpoint_version, found.checkpoint_version)
        self.snapshot = found
        self._seen_ms = now
