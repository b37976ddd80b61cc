"""The producers' requests that a partition remembers, and which file carries each (SPEC SEND-5).

The memory of a request lives in the data: whoever moves its rows into another file moves it along, and whoever removes
the rows for good removes it for every process that opens the partition later.
"""

from __future__ import annotations

import threading

from mq.producer import Part, ProducerSeen, ProducerWindow
from tables.delta import Commit, DataFile, FileReader, Snapshot

__all__ = ["Requests"]


class Requests:
    """The requests of one partition. Its owner holds a lock, but for `seen`, which waits for no commit."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._window = ProducerWindow()
        self._by_file: dict[str, tuple[Part, ...]] = {}

    def rebuild(self, snapshot: Snapshot, reader: FileReader, now_ms: int) -> None:
        """Take over what the files of a snapshot carry; those older than the window are not read.

        An error leaves what was: half a memory would store a request twice.
        """
        window = ProducerWindow()
        by_file: dict[str, tuple[Part, ...]] = {}
        horizon = now_ms - window.window_ms
        for file in snapshot.files:
            if file.append_max_us // 1000 < horizon:
                continue
            parts = reader.parts(file)
            window.extend(parts)
            if parts:
                by_file[file.path] = parts
        self._window = window
        self._by_file = by_file

    def find(self, producer_id: str, seq: int, indexes: tuple[int, ...] | None) -> Part | None:
        """Where these messages of a request are stored; None when they are not, or are no longer remembered."""
        return self._window.find(producer_id, seq, indexes)

    def seen(self, producer_id: str) -> ProducerSeen | None:
        """Return all that is remembered of a producer; any thread may ask."""
        with self._changing:
            return self._window.seen(producer_id)

    def whole_since_ms(self) -> int:
        """Return the time from which on every request is surely remembered (`ProducerWindow.whole_since_ms`)."""
        with self._changing:
            return self._window.whole_since_ms

    def apply(self, commit: Commit) -> None:
        """Learn what a commit adds and moves, whoever made it."""
        with self._changing:
            self._window.extend(commit.parts)
        moved = [p for path in commit.removes for p in self._by_file.pop(path, ())]
        for file in commit.adds:
            parts = tuple(p for p in (*commit.parts, *moved) if file.start <= p.base_offset < file.end)
            if parts:
                self._by_file[file.path] = parts

    def in_file(self, file: DataFile) -> list[Part]:
        """Return the requests in a live file that are still remembered; a roll-up carries them on."""
        parts = self._by_file.get(file.path, ())
        return [p for p in parts if self._window.find(p.producer_id, p.seq, p.indexes) is not None]
