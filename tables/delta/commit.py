"""The only writer of `_delta_log`: one commit at a time, against the state from which its offsets were taken.

                 put-if-absent of version n+1
                 /           |             \\
             stored       exists        no answer
               |             |              |
           we own it   read n+1 ... head   read it back
                             |          ours? -> stored
                 moved the end offset? -> renumber, again
                 only rearranged files? -> next version, again

So the log itself allocates offsets: any number of writers in any number of processes never use an offset twice or
leave a gap (SPEC RELY-2). Old commit files are deleted after `log_keep_ms`, oldest first. So a writer believes that
version n+1 does not exist only if it knew version n as the newest a short time ago, or if it finds version n still
there after it did not find n+1. After a put that took long, the same check decides whether the version was put at the
end of the log or among versions that were cleaned up (ARCHITECTURE I5).

A commit file may also vanish while a process goes on: its own reads come from memory, and every reader that opens the
table fails. So a writer looks back at what it stands on, once a second at most and only if the folder has changed; a
checkpoint from its memory then stands for what is gone (SPEC RELY-9).
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from deltamq.mq.errors import TABLE_NEWER, Conflict, Corrupt, DeltaMQError, Unavailable, Unknown
from deltamq.tables.clock import Clock
from deltamq.tables.delta.actions import Commit, NewCommit, commit_name, encode_guard
from deltamq.tables.delta.head import put_back
from deltamq.tables.delta.protocol import MESSAGE_FEATURES, MESSAGE_TABLE_SETTINGS, check_may_write, is_guarded
from deltamq.tables.delta.snapshot import (
    LOG_KEEP,
    CommitLost,
    Snapshot,
    load,
    log_versions,
    newest_own_copy,
    read_commit,
)
from deltamq.tables.failpoints import failpoint
from deltamq.tables.paths import LOG_FOLDER
from deltamq.tables.settings import STALE_FRACTION, LogSettings
from deltamq.tables.store.calls import on_a_thread
from deltamq.tables.store.store import FileMissing, NewFile, NotDurable, Store

log = logging.getLogger("deltamq.tables")

T = TypeVar("T")

#: How often a commit is read back after an error: the store may be unavailable for a moment.
_READ_BACK_TRIES: Final = 3
#: A writer that committed within this time, in milliseconds, does not look for other commits before its next one ...
_ALONE_MS: Final = 1_000
#: ... unless it met another writer's commit within this time.
_NOT_ALONE_MS: Final = 10_000
#: A writer looks back at most once in this time.
_LOOK_BACK_MS: Final = 1_000
#: How often a rebuild starts again because files vanished while it read them; each try reads a newer log.
_REBUILD_TRIES: Final = 5


class LostRace(Conflict):
    """Another commit has this version; the state includes that commit now."""

    code = "lost_race"


class CommitLog:
    """The commit log of one table, with its newest known state. Not thread-safe: its owner holds a lock.

    `on_commit` receives every commit of any writer, exactly once and in order. `on_reload` receives a state that was
    rebuilt from scratch; everything derived from the state must then be rebuilt, too. `on_replay` receives the commits
    from which such a state is rebuilt, perhaps more than once. `on_erase` is called before a commit is
    applied that takes rows' content away: who sees the new files must not take their rows from memory.
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
        on_erase: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._folder = folder
        self._log_folder = f"{folder}/{LOG_FOLDER}"
        self._clock = clock
        self._on_commit = on_commit
        self._on_reload = on_reload
        self._on_replay = on_replay
        self._on_erase = on_erase
        self._seen_ms = clock.boot_ms()
        #: When we committed last, and when we last met a commit of another writer.
        self._ours_ms = self._theirs_ms = self._seen_ms - max(_ALONE_MS, _NOT_ALONE_MS)
        self.snapshot = self._rebuilt()
        #: Seconds that puts of commits, with the files put together with them, have taken in all.
        self.published_s = 0.0
        #: Commits that were found missing since the last checkpoint of this process.
        self.missing: tuple[int, ...] = ()
        #: When this process last looked back, and the folder's stamp after the commit before which it did.
        self._looked_ms = self._seen_ms - _LOOK_BACK_MS
        self._stamp: int | None = None
        # Every process that cleans this table keeps commits for at least the time in the table's configuration.
        keep_ms = min(settings.log_keep_ms, self.snapshot.keep_ms(LOG_KEEP, settings.log_keep_ms))
        self._stale_ms = int(keep_ms * STALE_FRACTION)

    def key(self, version: int) -> str:
        """Return the key of a version's commit file."""
        return f"{self._log_folder}/{commit_name(version)}"

    def refresh(self) -> bool:
        """Apply the commits of other writers; return whether there were any.

        Raises
        ------
        Corrupt
            A commit is damaged, or the newest known commit is gone.
        """
        before = self.snapshot.version
        now = self._clock.boot_ms()
        careful = self._stale()
        while (commit := self._next()) is not None:
            if careful and not self._still_there():
                # Both versions may be cleaned up by now, and this commit may be the late put of a writer that slept.
                self._reload()
                break
            self._theirs_ms = now
            self._apply(commit)
        if self._stale() and not (careful and self._still_there()):
            self._reload()
        self._seen_ms = now
        return self.snapshot.version != before

    def _stale(self) -> bool:
        """Return whether our newest version may have been cleaned up since it was last confirmed."""
        return self._clock.boot_ms() - self._seen_ms > self._stale_ms

    async def look_ahead(self, *, must_know: bool) -> None:
        """Refresh where that is cheap or the state may be stale; called before work that a lost race would waste.

        A writer that commits again and again, and has met no other, looks only with `must_know`: a lost race would
        reveal another writer.
        """
        if self._stale() or (self._store.cheap_look and (must_know or not self._is_alone())):
            await self.reading(self.refresh)

    async def reading(self, work: Callable[[], T]) -> T:
        """Do what reads the store: aside where each read takes a round trip."""
        return work() if self._store.cheap_look else await on_a_thread(work)

    def _is_alone(self) -> bool:
        now = self._clock.boot_ms()
        return now - self._ours_ms < _ALONE_MS and now - self._theirs_ms >= _NOT_ALONE_MS

    async def commit(
        self, encode: Callable[[int], NewCommit], *, batch_id: str, durable: bool, file: NewFile | None = None
    ) -> int:
        """Put the commit that `encode(version)` makes as the next version, and apply it.

        `file` is a data file that is not put yet: it is there before the commit is.

        Returns
        -------
        int
            The version that was committed.

        Raises
        ------
        LostRace
            Another writer committed first: nothing of this commit is stored, and `snapshot` includes the other commit.
        Unknown
            The commit may be stored. `NotDurable`: it is stored and in `snapshot`, but a power cut could lose it.
        Unavailable
            `table_newer`: the table has a writer feature that this release does not know; nothing is stored.
        """
        features = self.snapshot.writer_features
        if features is not MESSAGE_FEATURES:
            check_may_write(features, self._folder)
            if not is_guarded(features):
                await self._guard(durable=durable)
        return await self._commit(encode, batch_id=batch_id, durable=durable, file=file)

    async def _guard(self, *, durable: bool) -> None:
        """Give a table from before TABLE-1 the present protocol, in front of what is about to be committed."""
        batch_id, now_ms = f"g{uuid.uuid4().hex[1:]}", self._clock.wall_us() // 1000
        snapshot = self.snapshot
        metadata = {**snapshot.metadata, "configuration": {**snapshot.configuration, **MESSAGE_TABLE_SETTINGS}}

        def encode(version: int) -> NewCommit:
            return encode_guard(
                table_id=snapshot.table_id,
                version=version,
                batch_id=batch_id,
                metadata=metadata,
                flushed=durable,
                now_ms=now_ms,
            )

        await self._commit(encode, batch_id=batch_id, durable=durable, file=None)

    async def _commit(
        self, encode: Callable[[int], NewCommit], *, batch_id: str, durable: bool, file: NewFile | None
    ) -> int:
        began = self._clock.boot_ms()
        looks = began - self._looked_ms >= _LOOK_BACK_MS
        if looks:
            self._looked_ms = began
            self._look_back_if_changed()
        version = self.snapshot.version + 1
        data, commit = new = encode(version)
        end_offset = new.check(version, self.snapshot.end_offset)
        not_durable = await self._put(version, data, batch_id, file, durable=durable)
        if self._stale() and not await self.reading(self._still_there):
            # Our predecessor was cleaned up while this process slept: before or after the put?
            await self.reading(partial(self._settle, commit))
        else:
            self._apply(commit)
            assert self.snapshot.version == version, "the version that was put is the newest one"
            assert self.snapshot.end_offset == end_offset, "the end moved by the rows of the commit, and only by these"
            self._seen_ms = self._ours_ms = began
        if looks:
            self._stamp = self._store.stamp(self._log_folder)
        if not_durable is not None:
            raise not_durable
        return version

    def _look_back_if_changed(self) -> None:
        stamp = self._store.stamp(self._log_folder)
        if stamp is not None and stamp != self._stamp:
            self._look_back(lambda version: self._store.exists(self.key(version)))

    def look_back(self) -> None:
        """Find commits that are missing, by one listing."""
        listed = set(log_versions(self._store, self._folder)[0])
        self._look_back(listed.__contains__)

    def _look_back(self, is_there: Callable[[int], bool]) -> None:
        """Note which commits are missing that no checkpoint stands for; give the newest its name back, if possible."""
        snapshot = self.snapshot
        missing = [v for v in range(snapshot.checkpoint_version + 1, snapshot.version + 1) if not is_there(v)]
        if missing:
            # Another process may have made a checkpoint, and cleaned up.
            covered = newest_own_copy(self._store, self._folder)
            snapshot.checkpoint_version = max(covered, snapshot.checkpoint_version)
            missing = [v for v in missing if v > covered]
        if missing:
            log.warning("event=commits_missing folder=%s versions=%s", self._folder, missing)
        if snapshot.version in missing and put_back(
            self._store, self._folder, snapshot.table_id, version=snapshot.version
        ):
            missing.remove(snapshot.version)
        self.missing = tuple(missing)

    async def _put(
        self, version: int, data: bytes, batch_id: str, file: NewFile | None, *, durable: bool
    ) -> NotDurable | None:
        """Put a version; return `NotDurable` if it is stored, but not durably. Raises as `commit` does."""
        key = self.key(version)
        unknown: Unknown | None = None
        began_s = time.perf_counter()
        try:
            if await self._store.put_commit(key, data, file, durable=durable):
                return None
        except NotDurable as error:
            return error
        except Unknown as error:
            unknown = error
        finally:
            self.published_s += time.perf_counter() - began_s
        # Without an error, too: the layers below repeat a put whose answer was lost, and then find their own file.
        holder = await self.reading(partial(self._holder, version, unknown))
        if holder == batch_id:
            return self._make_durable(key) if durable else None
        if holder is None:
            # Without an answer the put may still arrive. With one, the commit of this version was cleaned up since,
            # and it may have been ours.
            raise Unknown(f"{self._folder} has no version {version}, but our put may still arrive") from unknown
        await self.reading(self.refresh)
        raise LostRace(f"{self._folder}: version {version} was committed by another writer") from unknown

    def _holder(self, version: int, cause: Unknown | None) -> str | None:
        """Return the id of the batch that this version holds; None if the version does not exist (SPEC RELY-5)."""
        last: DeltaMQError | None = cause
        for _ in range(_READ_BACK_TRIES):
            try:
                return self._read(version).batch_id
            except FileMissing:
                return None
            except DeltaMQError as error:
                if isinstance(error, Corrupt) or error.code == TABLE_NEWER:  # then it is a later release's commit
                    raise
                last = error
        raise Unknown(f"version {version} could not be read back: {last.detail if last else ''}") from last

    def _make_durable(self, key: str) -> NotDurable | None:
        try:
            self._store.sync([key])
        except DeltaMQError as error:
            return NotDurable(f"{key} is stored, but may not be durable: {error.detail}")
        return None

    def _settle(self, commit: Commit) -> None:
        """Return if a commit is in the log, after a put during which this process slept; raise `Unknown` otherwise.

        If the commit's files are live, it is in the log. If not, it was put among versions that were cleaned up, where
        no reader looks, or its files were replaced since: only the producer's sequence can decide.
        """
        self._reload()
        live = {file.path for file in self.snapshot.files}
        if not commit.adds or not {file.path for file in commit.adds} <= live:
            raise Unknown(f"{self._folder}: the log was cleaned up while version {commit.version} was being put")

    def _still_there(self) -> bool:
        """Return whether our newest version still exists as we know it: then no later version has been deleted."""
        try:
            return self._read(self.snapshot.version).batch_id == self.snapshot.batch_id
        except FileMissing:
            return False

    def _next(self) -> Commit | None:
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
        if commit.erases:
            self._on_erase()
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
        """Load the state only from the files, let the owner derive its own state from it, and return it.

        After an error the old state stays complete: half a duplicate window would let a request be stored twice.
        """
        for _ in range(_REBUILD_TRIES):
            snapshot = self._load()
            try:
                self._on_reload(snapshot)
            except Corrupt:
                # This process may have slept in between, while a roll-up replaced a file, which was then deleted.
                if self._load().version == snapshot.version:
                    raise
            else:
                return snapshot
        raise Unavailable(f"{self._folder}: files are rolled up faster than they can be read", code="contention")

    def _reload(self) -> None:
        failpoint("commit.before_snapshot")
        now = self._clock.boot_ms()
        snapshot = self._rebuilt()
        if snapshot.end_offset < self.snapshot.end_offset:
            raise Corrupt(
                f"{self._folder}: the log ended at {self.snapshot.end_offset} and now ends at {snapshot.end_offset}"
            )
        if any(snapshot.fences.get(name, 0) < epoch for name, epoch in self.snapshot.fences.items()):
            raise Corrupt(f"{self._folder}: the fences were {self.snapshot.fences} and are {snapshot.fences}")
        snapshot.checkpoint_version = max(self.snapshot.checkpoint_version, snapshot.checkpoint_version)
        self.snapshot = snapshot
        self._seen_ms = now
