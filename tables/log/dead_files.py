"""The data files that commits let go, until their time has passed: queries that started before still read them.

Each process that has a partition open counts the time from when it saw the commit, whoever made it: the task that
compacted a partition has ended long before (ARCHITECTURE I6). A process that opens the partition later sees the commits
since the last checkpoint; what was let go before that is found by the sweep for files that no commit names.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from itertools import takewhile

from tables.clock import Clock

__all__ = ["DeadFiles"]


class DeadFiles:
    """Those of one partition. Safe for threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        #: The path of each, with the boot time at which its end was seen; oldest first.
        self._seen: dict[str, int] = {}

    def add(self, paths: Iterable[str]) -> None:
        """Remember that a commit let these go; one that is known already keeps its time."""
        now = self._clock.boot_ms()
        with self._lock:
            for path in paths:
                self._seen.setdefault(path, now)

    def due(self, keep_ms: int) -> list[str]:
        """Return those that have been dead for `keep_ms`."""
        limit = self._clock.boot_ms() - keep_ms
        with self._lock:
            return [path for path, _ in takewhile(lambda one: one[1] <= limit, self._seen.items())]

    @property
    def first_seen_ms(self) -> int | None:
        """The boot time at which the end of the oldest was seen; None when there are none."""
        with self._lock:
            return next(iter(self._seen.values()), None)

    def forget(self, path: str) -> None:
        """Note that a file is deleted."""
        with self._lock:
            self._seen.pop(path, None)

    def paths(self) -> set[str]:
        """Return all of them."""
        with self._lock:
            return set(self._seen)
