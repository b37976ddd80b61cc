"""The producers' requests that a partition remembers, and the files that carry them (SPEC SEND-5).

Requests are remembered in the data: moving a request's rows into another file moves its record along, and removing the
rows removes it for every process that opens the partition later.
"""

from __future__ import annotations

import threading

from deltamq.mq.producer import Part, ProducerSeen, ProducerWindow
from deltamq.tables.delta.actions import Commit, DataFile
from deltamq.tables.delta.reader import FileReader
from deltamq.tables.delta.snapshot import Snapshot


class Requests:
    """The requests of one partition. Its owner holds a lock, except for `seen`, which does not wait for commits."""

    def __init__(self, *, producers_max: int) -> None:
        self._changing = threading.Lock()
        self._producers_max = producers_max
        self._window = self._empty()
        self._by_file: dict[str, tuple[Part, ...]] = {}

    def rebuild(self, snapshot: Snapshot, reader: FileReader, now_ms: int) -> None:
        """Load the requests that the files of a snapshot carry; files older than the window are not read.

        After an error the old requests stay: with only half of them, a request could be stored twice.
        """
        window = self._empty()
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
        """Return the part that holds these messages of a request; None if none is stored, or none is remembered."""
        return self._window.find(producer_id, seq, indexes)

    def _empty(self) -> ProducerWindow:
        return ProducerWindow(producers_max=self._producers_max)

    def seen(self, producer_id: str) -> ProducerSeen | None:
        """Return all that is remembered of a producer; safe for any thread."""
        with self._changing:
            return self._window.seen(producer_id)

    def whole_since_ms(self) -> int:
        """Return the time from which on every request is surely remembered (`ProducerWindow.whole_since_ms`)."""
        with self._changing:
            return self._window.whole_since_ms

    def apply(self, commit: Commit) -> None:
        """Note the requests that a commit of any writer adds or moves."""
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
