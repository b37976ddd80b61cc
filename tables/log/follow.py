"""One partition's log for a long-lived reader: opened once, then kept current commit by commit.

Nothing is written, so a reader needs no right to write. A reader that slept while commit files were cleaned up starts
again from the newest checkpoint (invariant I5).
"""

from __future__ import annotations

from collections.abc import Sequence

from deltamq.tables.clock import Clock
from deltamq.tables.delta.actions import Commit, DataFile
from deltamq.tables.delta.commit import CommitLog
from deltamq.tables.delta.snapshot import Snapshot, load
from deltamq.tables.settings import LogSettings
from deltamq.tables.store.store import Store


class LogFollower:
    """The live files and the end offset of one partition; for one thread.

    The constructor raises `PartitionNotFound` if there is no such partition.
    """

    def __init__(self, store: Store, folder: str, *, clock: Clock, settings: LogSettings | None = None) -> None:
        self._log = _ReadOnlyLog(
            store,
            folder,
            settings=settings or LogSettings(),
            clock=clock,
            on_commit=_nothing,
            on_reload=_nothing_of,
            on_replay=_nothing,
        )

    def refresh(self) -> bool:
        """Apply the commits since the last call; return whether there were any.

        Raises
        ------
        Corrupt
            A commit is damaged; the message names the file.
        """
        return self._log.refresh()

    @property
    def end_offset(self) -> int:
        """The next offset to be written."""
        return self._log.snapshot.end_offset

    @property
    def min_offset(self) -> int:
        """The first offset that is still stored."""
        return self._log.snapshot.min_offset

    @property
    def table_id(self) -> str:
        """The table's own id: a partition that is deleted and created again gets another one."""
        return self._log.snapshot.table_id

    @property
    def schema_json(self) -> str:
        """The schema of the rows, as Delta's JSON."""
        return self._log.snapshot.schema_json

    @property
    def is_rendered(self) -> bool:
        """Whether rows with a value have no body (SPEC TYPE-4)."""
        return self._log.snapshot.is_rendered

    @property
    def files(self) -> Sequence[DataFile]:
        """The live files in offset order; callers must not change the list."""
        return self._log.snapshot.files


class _ReadOnlyLog(CommitLog):
    """A commit log that repairs nothing: a commit that only `.head` still has raises `CommitLost`."""

    def _load(self) -> Snapshot:
        return load(self._store, self._folder, self._on_replay)


def _nothing(commit: Commit) -> None:
    """Do nothing: the snapshot has what the commit says."""


def _nothing_of(snapshot: Snapshot) -> None:
    """Do nothing: nothing is derived from the snapshot."""
