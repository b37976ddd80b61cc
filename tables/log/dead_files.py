"""Data files that commits removed, kept for a time because queries that started before still read them.

Each process that has a partition open counts the time from when it saw the commit of any writer: the task that
compacted a partition has ended long before (ARCHITECTURE I6). A process that opens the partition later sees the commits
since the last checkpoint; the sweep for files that no commit names finds files that were removed before.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from itertools import takewhile

from deltamq.tables.clock import Clock


class DeadFiles:
    """The dead files of one partition. Safe for threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        #: Each file's path, with the boot time at which its removal was seen; oldest first.
        self._seen: dict[str, int] = {}

    def add(self, paths: Iterable[str]) -> None:
        """Remember that a commit removed these files; a file that is known already keeps its time."""
        now = self._clock.boot_ms()
        with self._lock:
            for path in paths:
                self._seen.setdefault(path, now)

    def due(self, keep_ms: int) -> list[str]:
        """Return the files that have been dead for at least `keep_ms`."""
        limit = self._clock.boot_ms() - keep_ms
        with self._lock:
            return [path for path, _ in takewhile(lambda item: item[1] <= limit, self._seen.items())]

    @property
    def first_seen_ms(self) -> int | None:
        """The boot time at which the oldest file's removal was seen; None if there are no dead files."""
        with self._lock:
            return next(iter(self._seen.values()), None)

    def forget(self, path: str) -> None:
        """Forget a file that is deleted."""
        with self._lock:
            self._seen.pop(path, None)

    def paths(self) -> set[str]:
        """Return the paths of all dead files."""
        with self._lock:
            return set(self._seen)
