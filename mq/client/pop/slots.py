"""Limits how much a consumer takes: one slot for each handler, and one for each message or batch to be prefetched."""

from __future__ import annotations

import threading


class Slots:
    """A number of slots, taken before a pop and given back when its messages are handled."""

    def __init__(self, count: int) -> None:
        assert count >= 1
        self._count = count
        self._free = count
        self._lock = threading.Lock()
        self._freed = threading.Condition(self._lock)
        self._closed = False

    def grow(self, count: int) -> None:
        """Add slots; a negative number removes slots, as they become free."""
        with self._lock:
            self._count += count
            self._free += count
            self._freed.notify_all()

    def take(self, most: int) -> int:
        """Take free slots, at most `most`, and return their number; waits for the first one. Returns 0 once closed."""
        with self._lock:
            self._freed.wait_for(lambda: self._free > 0 or self._closed)
            if self._closed:
                return 0
            taken = min(self._free, most)
            self._free -= taken
            return taken

    def give_back(self, count: int) -> None:
        """Give slots back."""
        if count:
            with self._lock:
                self._free += count
                assert self._free <= self._count, "more came back than was taken"
                self._freed.notify_all()

    def wait_all(self, timeout_s: float) -> bool:
        """Wait until all slots are free; returns False after `timeout_s`."""
        with self._lock:
            return self._freed.wait_for(lambda: self._free == self._count, max(0.0, timeout_s))

    def close(self) -> None:
        """Let every `take` return 0."""
        with self._lock:
            self._closed = True
            self._freed.notify_all()
