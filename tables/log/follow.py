"""One partition's log as a reader sees it that stays: opened once, then kept current commit by commit.

Nothing is written, so a reader needs no right to write; and nothing is believed too long: who slept while commit files
were cleaned up begins again with the newest checkpoint (invariant I5).
"""

from __future__ import annotations

from collections.abc import Sequence

from tables.clock import Clock
from tables.delta import Commit, CommitLog, DataFile, Snapshot, load
from tables.settings import LogSettings
from tables.store import Store

__all__ = ["LogFollower"]


class LogFollower:
    """The live files and the end of one partition; for one thread. Raises `PartitionNotFound` where there is none."""

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
        """See what was committed since; True if there was anything.

        Raises
        ------
        Corrupt
            A commit cannot be believed; the message names the file.
        """
        return self._log.refresh()

    @property
    def end_offset(self) -> int:
        """The next offset to be written."""
        return self._log.snapshot.end_offset

    @property
    def min_offset(self) -> int:
        """The first offset still stored."""
        return self._log.snapshot.min_offset

    @property
    def table_id(self) -> str:
        """The table's own id: a partition deleted and made again has another."""
        return self._log.snapshot.table_id

    @property
    def files(self) -> Sequence[DataFile]:
        """Live files in offset order; do not change it."""
        return self._log.snapshot.files


class _ReadOnlyLog(CommitLog):
    """Repairs nothing: a commit that only its second name still has is reported, as to every reader."""

    def _load(self) -> Snapshot:
        return load(self._store, self._folder, self._on_replay)


def _nothing(commit: Commit) -> None:
    """What a commit says is in the snapshot."""


def _nothing_of(snapshot: Snapshot) -> None:
    """Nothing else is derived from it."""
